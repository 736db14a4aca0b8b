//! Made-up manifests: each is read as it was written, and no value of it is lost or bent on the way.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

fn number() -> impl Strategy<Value = u64> {
    // What a record can hold: JSON integers that every reader keeps.
    prop_oneof![0u64..4, 0u64..1 << 53]
}

fn name() -> impl Strategy<Value = u128> {
    prop_oneof![0u128..4, any::<u128>()]
}

fn age() -> impl Strategy<Value = Duration> {
    number().prop_map(Duration::from_millis)
}

fn message() -> impl Strategy<Value = Bytes> {
    any::<String>().prop_map(Bytes::from)
}

fn request_id() -> impl Strategy<Value = Id> {
    prop_oneof![
        any::<u64>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just("-1.50e3".to_owned()),
    ]
    .prop_map(|text| Id::from_raw(Bytes::from(text)).unwrap())
}

fn made_record() -> impl Strategy<Value = Record> {
    let texts = (any::<String>(), any::<String>(), any::<String>(), proptest::option::of(any::<String>()));
    let names = (name(), name(), proptest::option::of(name()), any::<u32>(), "[a-z0-9][a-z0-9_-]{0,20}");
    let links = (
        btree_map(any::<String>(), vec(name().prop_map(LinkNonce), 0..3), 0..3),
        btree_map(name().prop_map(LinkNonce), any::<String>(), 0..3),
    );
    let rest = (number(), proptest::option::of("[!-~]{1,40}"), any::<Option<bool>>(), number());
    (texts, names, links, rest).prop_map(|(texts, names, links, rest)| Record {
        upstream: names.4.as_str().into(),
        trajectory: Trajectory(names.0),
        handshake: Handshake(names.3),
        parent: names.2.map(Continuation),
        owner: names.2.map(LinkNonce),
        fingerprint: Fingerprint { endpoint: Digest(names.1), ..record().fingerprint },
        initialize_result: texts.0,
        client_info: texts.1,
        capabilities: texts.2,
        get_cursor: texts.3.clone(),
        handles: Vec::new(),
        tools: None,
        learned: Learned { get_stream: rest.2, gone_signature: texts.3 },
        subscriptions: links.0,
        log_levels: links.1,
        session_id: rest.1.and_then(|text| evermux_core::names::SessionId::new(&text)),
        ids_reserved_until: rest.0,
        used_ms: rest.3,
        ..record()
    })
}

fn made_call() -> impl Strategy<Value = HandedCall> {
    (number(), name(), request_id(), number(), any::<u32>(), any::<bool>()).prop_map(
        |(generation, link, client_id, wire, handshake, cancelled)| HandedCall {
            generation: Generation(generation),
            link: LinkNonce(link),
            client_id,
            wire: WireId(wire),
            handshake: Handshake(handshake),
            cancelled,
        },
    )
}

fn made_ask() -> impl Strategy<Value = HandedAsk> {
    (number(), any::<u32>(), number(), name()).prop_map(|(generation, handshake, wire, ask)| HandedAsk {
        generation: Generation(generation),
        handshake: Handshake(handshake),
        wire: WireId(wire),
        ask: Digest(ask),
    })
}

fn made_session() -> impl Strategy<Value = HandedSession> {
    let standing = prop_oneof![
        Just(Standing::Ready),
        Just(Standing::Dormant),
        Just(Standing::Lost),
        Just(Standing::LostForGood)
    ];
    let loose = (any::<u32>().prop_map(Handshake), name().prop_map(LinkNonce), age());
    let says = (proptest::option::of(any::<String>()), proptest::option::of(number().prop_map(Generation)));
    let told = (vec((any::<String>(), name().prop_map(LinkNonce)), 0..3), vec(message(), 0..3), made_drift());
    let block = (any::<u64>(), any::<u64>());
    (
        made_record(),
        standing,
        says,
        block,
        vec(made_call(), 0..3),
        vec(made_ask(), 0..3),
        vec(loose, 0..3),
        told,
    )
        .prop_map(|(record, standing, (reason, stream), block, calls, asks, loose, told)| {
            let end = block.0 % (record.ids_reserved_until + 1);
            let ids = (block.1 % (end + 1), end);
            let (elicitations, news, drifted) = told;
            let (drift, listed) = drifted;
            HandedSession {
                record,
                standing,
                reason,
                ids,
                stream,
                calls,
                asks,
                loose,
                elicitations,
                news,
                drift,
                listed,
            }
        })
}

/// Who has listed again matters only where something has changed.
fn made_drift() -> impl Strategy<Value = (Drift, Vec<LinkNonce>)> {
    let drift = (any::<bool>(), any::<bool>(), any::<bool>());
    (drift, vec(name().prop_map(LinkNonce), 0..3)).prop_map(|((server, instructions, tools), listed)| {
        let listed = if tools { listed } else { Vec::new() };
        (Drift { server, instructions, tools }, listed)
    })
}

fn made_trail() -> impl Strategy<Value = HandedTrail> {
    let place = || {
        (any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(generation, trail, number)| super::place(generation, trail, number))
    };
    (place(), any::<u64>(), vec((any::<u64>(), message()), 0..4), vec(place(), 0..3))
        .prop_map(|(place, lost, told, former)| HandedTrail { place, lost, told, former })
}

fn made_link() -> impl Strategy<Value = HandedLink> {
    let claim =
        (name(), name(), any::<u8>(), any::<String>()).prop_map(|(nonce, identity, class, version)| {
            LinkClaim {
                nonce: LinkNonce(nonce),
                upstream: "docs".into(),
                identity: Digest(identity),
                class: Class(class),
                version,
            }
        });
    let own = proptest::option::of(
        (any::<String>(), any::<String>(), any::<String>())
            .prop_map(|(version, client_info, capabilities)| Declared { version, client_info, capabilities }),
    );
    let numbers = vec((any::<u64>().prop_map(Seq), any::<u64>().prop_map(Generation)), 0..4);
    let leased = proptest::option::of(name());
    let told = (any::<bool>(), vec(message(), 0..3), proptest::option::of(made_trail()), leased);
    (claim, own, any::<u64>(), any::<u64>(), numbers, told).prop_map(
        |(claim, own, acked, forgotten, numbers, (listening, missed, trail, leased))| HandedLink {
            claim,
            own,
            acked: Seq(acked),
            forgotten: Seq(forgotten),
            numbers,
            listening,
            missed,
            trail,
            leased: leased.map(Trajectory),
        },
    )
}

fn made_journalled() -> impl Strategy<Value = JournalledCall> {
    (name(), any::<Option<u64>>(), number(), any::<Option<String>>(), any::<bool>(), any::<u64>()).prop_map(
        |(link, seq, wire, cursor, settled, at_ms)| JournalledCall {
            link: LinkNonce(link),
            seq: seq.map(Seq),
            trajectory: Trajectory(link),
            handshake: Handshake(1),
            wire: WireId(wire),
            cursor,
            settled,
            at_ms,
        },
    )
}

fn made_up() -> impl Strategy<Value = Manifest> {
    let closed =
        (name(), any::<u32>(), number(), name()).prop_map(|(trajectory, handshake, wire, ask)| ClosedAsk {
            trajectory: Trajectory(trajectory),
            handshake: Handshake(handshake),
            wire: WireId(wire),
            ask: Digest(ask),
        });
    let replies = vec((name().prop_map(LinkNonce), any::<u64>().prop_map(Seq)), 0..3);
    (
        any::<u64>().prop_map(Generation),
        vec(made_session(), 0..3),
        vec(made_link(), 0..3),
        vec(name().prop_map(LinkNonce), 0..3),
        vec(made_journalled(), 0..3),
        vec(closed, 0..3),
        replies,
        age(),
    )
        .prop_map(|(generation, sessions, links, ended, journal, closed, replies, doubt)| Manifest {
            generation,
            sessions,
            links,
            ended,
            journal,
            closed,
            replies,
            doubt,
        })
}

/// Puts a member that nobody knows into every object, also of those within.
fn grow(value: &mut serde_json::Value) {
    match value {
        // In a map of names every member is one of them.
        serde_json::Value::Object(members) if !members.contains_key("NAME") => {
            members.values_mut().for_each(grow);
            members.insert("of_a_newer_version".to_owned(), serde_json::json!([1]));
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(grow),
        _ => {}
    }
}

#[test]
fn what_a_newer_version_adds_anywhere_is_passed_over() {
    let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
    let codec = Codec { sealer: &sealer, key: &key };
    let mut value = serde_json::from_str(include_str!("../../golden/manifest-2.json")).unwrap();
    grow(&mut value);
    let text = value.to_string();
    assert!(text.matches("of_a_newer_version").count() >= 8, "{text}");
    let (manifest, read) = codec.read(text.as_bytes()).unwrap();
    assert_eq!(manifest, whole());
    assert!(read == lent());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_manifest_is_read_as_it_was_written(manifest in made_up()) {
        let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
        let codec = Codec { sealer: &sealer, key: &key };
        let text = codec.write(&manifest, lent()).map_err(TestCaseError::fail)?;
        let (read, _) = codec.read(&text).map_err(TestCaseError::fail)?;
        prop_assert_eq!(read, manifest);
    }
}
