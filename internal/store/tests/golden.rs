//! Records of every version there was, as files: each is read for ever, as what it said, and written with the same
//! content. A version that adds something adds its file here; none is ever changed.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

#[path = "common/mod.rs"]
#[allow(dead_code, reason = "the samples are of today")]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::path_of;
use evermux_core::drift::KnownTools;
use evermux_core::handles::Handle;
use evermux_core::names::{Continuation, Digest, Generation, Handshake, LinkNonce, SessionId, Trajectory};
use evermux_core::record::{Fingerprint, HandshakeState, Learned, Record};
use evermux_store::{StateDir, bare};
use serde_json::{Map, Value};

/// A file, and what it says. Written out here and not taken from anywhere: what changes elsewhere must not change it.
type Golden = (&'static str, Record);

fn all() -> [Golden; 4] {
    [
        (include_str!("golden/record-1.0.json"), full()),
        (include_str!("golden/record-1.0-empty.json"), empty()),
        (include_str!("golden/record-1.0-unknown-member.json"), with_an_unknown_member()),
        (include_str!("golden/record-1.1.json"), with_handles_and_tools()),
    ]
}

/// Something in every member.
fn full() -> Record {
    Record {
        upstream: "docs_1".into(),
        trajectory: Trajectory(0x0123_4567_89ab_cdef),
        handshake: Handshake(2),
        continuation: Continuation(0xc2),
        parent: Some(Continuation(0xc1)),
        generation: Generation(7),
        fingerprint: Fingerprint {
            endpoint: Digest(1),
            identity: Digest(2),
            headers: Digest(3),
            class: Digest(4),
        },
        session_id: SessionId::new("session-of-1.0"),
        protocol_version: "2025-11-25".to_owned(),
        initialize_result: r#"{"protocolVersion":"2025-11-25","x":1e400,"s":"\u0000 é 😀"}"#.to_owned(),
        client_info: r#"{"name":"evermux","version":"0.1.0"}"#.to_owned(),
        capabilities: r#"{"elicitation":{}}"#.to_owned(),
        handshake_state: HandshakeState::Acknowledged,
        ids_reserved_until: 4096,
        get_cursor: Some("stream \"1\"\n17".to_owned()),
        subscriptions: BTreeMap::from([
            ("file:///a".to_owned(), vec![LinkNonce(10), LinkNonce(11)]),
            ("x:é".to_owned(), vec![LinkNonce(11)]),
        ]),
        log_levels: BTreeMap::from([(LinkNonce(10), "debug".to_owned())]),
        owner: Some(LinkNonce(10)),
        learned: Learned { get_stream: Some(true), gone_signature: Some("404".to_owned()) },
        handles: Vec::new(),
        tools: None,
        created_ms: 1_764_000_000_000,
        used_ms: 1_764_000_000_001,
        ok_ms: 1_764_000_000_002,
        extra: BTreeMap::new(),
    }
}

fn empty() -> Record {
    Record {
        trajectory: Trajectory(1),
        handshake: Handshake(1),
        parent: None,
        session_id: None,
        handshake_state: HandshakeState::Sent,
        get_cursor: None,
        subscriptions: BTreeMap::new(),
        log_levels: BTreeMap::new(),
        owner: None,
        learned: Learned::default(),
        ..full()
    }
}

fn with_an_unknown_member() -> Record {
    let extra = BTreeMap::from([("era".to_owned(), r#"{"a":[1,null],"b":"é"}"#.to_owned())]);
    Record { trajectory: Trajectory(2), handshake_state: HandshakeState::Answered, extra, ..full() }
}

/// Since 1.1.
fn with_handles_and_tools() -> Record {
    let whole = Handle {
        value: Digest(0xa1),
        handshake: Handshake(2),
        expires_ms: 1_764_000_600_000,
        tool: Some(Digest(0xb1)),
        known_to: vec![LinkNonce(10), LinkNonce(11)],
        looked: Some(vec![LinkNonce(11)]),
    };
    let least = Handle {
        value: Digest(0xa2),
        handshake: Handshake(1),
        tool: None,
        known_to: vec![],
        looked: None,
        ..whole.clone()
    };
    let bearers = BTreeMap::from([(Digest(0xb1), Digest(0xd1)), (Digest(0xb2), Digest(0xd2))]);
    let tools = Some(KnownTools { list: Digest(0xe1), bearers });
    Record { trajectory: Trajectory(3), handles: vec![whole, least], tools, ..full() }
}

/// A state directory with this file in it, and the key it was written under.
fn home(text: &str, record: &Record) -> (tempfile::TempDir, StateDir) {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::open(&temp.path().join("state")).unwrap();
    let key = std::array::from_fn::<u8, 32, _>(|at| u8::try_from(at).unwrap());
    for (path, content) in
        [(state.path().join("key"), &key[..]), (path_of(state.path(), record), text.as_bytes())]
    {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    (temp, state)
}

fn members(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_record_of_any_version_is_read_as_what_it_said() {
    for (text, record) in all() {
        let (_temp, state) = home(text, &record);
        let loaded = state.load_records(state.key().unwrap().key()).unwrap();
        assert_eq!(loaded.records, [record], "{:?} {:?}", loaded.quarantined, loaded.newer);
    }
}

#[test]
fn a_record_of_any_version_is_written_with_the_same_content() {
    for (text, record) in all() {
        let (_temp, state) = home(text, &record);
        let key = state.key().unwrap().into_key();
        let written = bare::write_record(&record, &key).unwrap();
        let (before, mut after) = (members(text), members(&written));
        // These say which version wrote it.
        for (name, value) in before.iter().filter(|(name, _)| !matches!(name.as_str(), "format" | "digest")) {
            assert_eq!(after.remove(name).as_ref(), Some(value), "{name}");
        }
        let (_temp, state) = home(&written, &record);
        assert_eq!(state.load_records(&key).unwrap().records, [record]);
    }
}

/// So that nobody forgets: the versions that are written today have their files.
#[test]
fn the_versions_of_today_have_their_files() {
    for record in [full(), with_handles_and_tools()] {
        let (_temp, state) = home("", &record);
        let written = bare::write_record(&record, state.key().unwrap().key()).unwrap();
        let format = members(&written).remove("format").unwrap();
        let today = all().iter().any(|(text, _)| members(text).get("format") == Some(&format));
        assert!(today, "no golden file of {format}:\n{written}");
    }
}
