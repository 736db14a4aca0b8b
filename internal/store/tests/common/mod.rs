//! Records to test with, and a look at the directory from outside.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evermux_core::names::{
    Continuation, Digest, Generation, Handshake, LinkNonce, SessionId, Trajectory, UpstreamName,
};
use evermux_core::record::{Fingerprint, HandshakeState, Learned, Record};

/// A record with something in every field.
pub(crate) fn sample(trajectory: u128) -> Record {
    Record {
        upstream: UpstreamName::from("git-hub_2"),
        trajectory: Trajectory(trajectory),
        handshake: Handshake(2),
        continuation: Continuation(0xc0),
        parent: Some(Continuation(0xbf)),
        generation: Generation(3),
        fingerprint: Fingerprint {
            endpoint: Digest(1),
            identity: Digest(2),
            headers: Digest(3),
            class: Digest(u128::MAX),
        },
        session_id: SessionId::new("s3cret-session!"),
        protocol_version: "2025-11-25".to_owned(),
        initialize_result: "{\"n\":1.50,\"big\":12345678901234567890,\"s\":\"\u{1f600}\\u0000\"}".to_owned(),
        client_info: r#"{"name":"evermux"}"#.to_owned(),
        capabilities: r#"{"sampling":{}}"#.to_owned(),
        handshake_state: HandshakeState::Answered,
        ids_reserved_until: 2048,
        get_cursor: Some("cursor \"7\"\n".to_owned()),
        subscriptions: BTreeMap::from([("file:///a".to_owned(), vec![LinkNonce(7), LinkNonce(8)])]),
        log_levels: BTreeMap::from([(LinkNonce(7), "debug".to_owned())]),
        owner: Some(LinkNonce(7)),
        handles: vec![evermux_core::handles::Handle {
            value: Digest(77),
            handshake: Handshake(2),
            expires_ms: 1_790_000_000_000,
            tool: None,
            known_to: vec![LinkNonce(5)],
            looked: None,
        }],
        tools: Some(evermux_core::drift::KnownTools {
            list: Digest(78),
            bearers: BTreeMap::from([(Digest(79), Digest(80))]),
        }),
        learned: Learned { get_stream: Some(true), gone_signature: Some("404".to_owned()) },
        created_ms: 1_764_000_000_000,
        used_ms: 1_764_000_000_001,
        ok_ms: 1_764_000_000_002,
        extra: BTreeMap::new(),
    }
}

/// Where a record lies.
#[allow(dead_code, reason = "not every test file asks where a record lies")]
pub(crate) fn path_of(root: &Path, record: &Record) -> PathBuf {
    root.join("records").join(format!("{}-{}.json", record.upstream, record.trajectory))
}
