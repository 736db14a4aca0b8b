//! A manifest as it is written, read, cut and tampered with.

use std::collections::BTreeMap;

use evermux_core::class::Class;
use evermux_core::names::Continuation;
use evermux_core::record::{Fingerprint, HandshakeState, Learned, Record};
use evermux_core::seal::LinkClaim;

use super::*;

mod made_up;

fn record() -> Record {
    Record {
        upstream: "docs".into(),
        trajectory: Trajectory(7),
        handshake: Handshake(2),
        continuation: Continuation(8),
        parent: Some(Continuation(9)),
        generation: Generation(3),
        fingerprint: Fingerprint {
            endpoint: Digest(1),
            identity: Digest(2),
            headers: Digest(3),
            class: Digest(4),
        },
        session_id: evermux_core::names::SessionId::new("s"),
        protocol_version: "2025-11-25".to_owned(),
        initialize_result: r#"{"protocolVersion":"2025-11-25"}"#.to_owned(),
        client_info: "{}".to_owned(),
        capabilities: "{}".to_owned(),
        handshake_state: HandshakeState::Acknowledged,
        ids_reserved_until: 4096,
        get_cursor: Some("c".to_owned()),
        subscriptions: BTreeMap::from([("x:1".to_owned(), vec![LinkNonce(5)])]),
        log_levels: BTreeMap::from([(LinkNonce(5), "info".to_owned())]),
        owner: None,
        handles: Vec::new(),
        tools: None,
        learned: Learned::default(),
        created_ms: 1,
        used_ms: 2,
        ok_ms: 3,
        extra: BTreeMap::new(),
    }
}

fn link() -> HandedLink {
    let claim = LinkClaim {
        nonce: LinkNonce(5),
        upstream: "docs".into(),
        identity: Digest(2),
        class: Class::FORM,
        version: "2025-11-25".to_owned(),
    };
    let own = Declared {
        version: "2025-11-25".to_owned(),
        client_info: "{}".to_owned(),
        capabilities: r#"{"x":1e400}"#.to_owned(),
    };
    HandedLink {
        claim,
        own: Some(own),
        acked: Seq(1),
        forgotten: Seq(2),
        numbers: vec![(Seq(3), Generation(3))],
        listening: true,
        missed: vec![Bytes::from_static(b"{}")],
        trail: Some(HandedTrail {
            place: place(3, 8, 4),
            lost: 2,
            told: vec![(3, Bytes::from_static(b"{\"a\":1}")), (4, Bytes::from_static(b"{}"))],
            former: vec![place(1, 5, 1), place(2, 9, 2)],
        }),
        leased: Some(Trajectory(7)),
    }
}

fn place(generation: u64, trail: u64, number: u64) -> Place {
    Place { generation: Generation(generation), trail, number, of_call: false }
}

/// One of everything.
fn whole() -> Manifest {
    let call = HandedCall {
        generation: Generation(3),
        link: LinkNonce(5),
        client_id: Id::from_raw(Bytes::from_static(b"\"a\"")).unwrap(),
        wire: WireId(11),
        handshake: Handshake(2),
        cancelled: true,
    };
    let ask =
        HandedAsk { generation: Generation(3), handshake: Handshake(2), wire: WireId(0), ask: Digest(6) };
    let session = HandedSession {
        record: record(),
        standing: Standing::Ready,
        reason: Some("404".to_owned()),
        ids: (3072, 4096),
        stream: Some(Generation(3)),
        calls: vec![call],
        asks: vec![ask],
        loose: vec![(Handshake(2), LinkNonce(5), Duration::from_millis(12))],
        elicitations: vec![("e".to_owned(), LinkNonce(5))],
        news: vec![Bytes::from_static(b"{}")],
        drift: Drift { server: true, instructions: false, tools: true },
        listed: vec![LinkNonce(5)],
    };
    let journalled = JournalledCall {
        link: LinkNonce(5),
        seq: None,
        trajectory: Trajectory(7),
        handshake: Handshake(1),
        wire: WireId(4),
        cursor: Some("c".to_owned()),
        settled: false,
        at_ms: 5,
    };
    let closed =
        ClosedAsk { trajectory: Trajectory(7), handshake: Handshake(2), wire: WireId(9), ask: Digest(10) };
    Manifest {
        generation: Generation(3),
        sessions: vec![session],
        links: vec![link()],
        ended: vec![LinkNonce(12)],
        journal: vec![journalled],
        closed: vec![closed],
        replies: vec![(LinkNonce(5), Seq(6))],
        doubt: Duration::from_secs(7),
    }
}

fn lent() -> Lent {
    let one = |value: &str| BTreeMap::from([("NAME".to_owned(), value.to_owned())]);
    Lent { environment: one("a"), outputs: one("b"), given: vec![("docs".to_owned(), one("c"))] }
}

fn sealer() -> Sealer {
    Sealer::new(Key::from_bytes([7; 32]).bytes())
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
    let codec = Codec { sealer: &sealer, key: &key };
    let text = codec.write(&whole(), lent()).unwrap();
    let (manifest, read) = codec.read(&text).unwrap();
    assert_eq!(manifest, whole());
    assert!(read == lent());
}

#[test]
fn its_form_is_as_ever() {
    let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
    let codec = Codec { sealer: &sealer, key: &key };
    let text = String::from_utf8(codec.write(&whole(), lent()).unwrap()).unwrap();
    let golden = include_str!("../golden/manifest-2.json").trim();
    assert_eq!(text, golden);
    let newer = golden.replacen('{', r#"{"newer":{"a":1},"#, 1);
    assert_eq!(codec.read(newer.as_bytes()).unwrap().0, whole());
}

/// Links with these names, the first of which changed since.
fn since(names: &[u128], acked: u64) -> Vec<HandedLink> {
    let named = |(at, name): (usize, &u128)| {
        let mut link = link();
        link.claim.nonce = LinkNonce(*name);
        link.acked = Seq(if at == 0 { acked } else { 1 });
        link
    };
    names.iter().enumerate().map(named).collect()
}

#[test]
fn what_was_written_ahead_is_corrected_behind() {
    let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
    let codec = Codec { sealer: &sealer, key: &key };
    for (before, after, acked) in [
        (vec![5, 6, 7], vec![5, 6, 7], 1),
        (vec![5, 6, 7], vec![5, 6, 7], 9),
        (vec![5, 6, 7], vec![5, 7, 8], 9),
        (vec![5, 6, 7], vec![8], 1),
        (vec![5], vec![], 1),
        (vec![], vec![5, 6], 1),
    ] {
        let (written, mut text) = Ahead::write(&codec, since(&before, 1)).unwrap();
        let manifest = Manifest { links: since(&after, acked), ..whole() };
        let (rest, count) = written.write_rest(&codec, &manifest, lent()).unwrap();
        let said = written.end(&rest, 1, count);
        let read = if text.is_empty() { Ahead::default() } else { Ahead::read(&codec, &text).unwrap() };
        assert_eq!(read.end(&rest, 1, count), said);
        let (other, other_lent, links) = read.read_rest(&codec, &rest).unwrap();
        assert_eq!((&other, links), (&manifest, count), "{before:?} {after:?}");
        assert!(other_lent == lent());
        // A build that reads nothing ahead takes it as one text: a link's last word counts there, and one that is gone stays.
        text.extend_from_slice(&rest);
        assert_eq!(super::super::frames::End::of(&text, 1, count), said);
        let (flat, _) = codec.read(&text).unwrap();
        assert_eq!(flat.links.len(), count);
        let last: BTreeMap<_, _> = flat.links.into_iter().map(|link| (link.claim.nonce, link)).collect();
        for link in &manifest.links {
            assert_eq!(last.get(&link.claim.nonce), Some(link));
        }
    }
}

#[test]
fn what_came_ahead_and_makes_no_sense_is_refused() {
    let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
    let codec = Codec { sealer: &sealer, key: &key };
    let (_, text) = Ahead::write(&codec, since(&[5, 6], 1)).unwrap();
    for cut in 0..text.len() {
        // Between two links it is whole, and less: the digest tells.
        let whole = text.get(cut..).is_some_and(|rest| rest.starts_with(br#",{"id""#));
        let nothing = text.get(..cut) == Some(br#"{"links":["#);
        assert_eq!(Ahead::read(&codec, &text[..cut]).is_ok(), whole || nothing, "cut at {cut}");
    }
    let strange = Key::from_bytes([8; 32]);
    let other = Codec { sealer: &Sealer::new(strange.bytes()), key: &strange };
    assert!(Ahead::read(&other, &text).is_err());
    assert!(Ahead::read(&codec, br#"{"generation":3"#).is_err());
}

#[test]
fn one_from_before_trails_and_drift_is_read_for_ever() {
    let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
    let codec = Codec { sealer: &sealer, key: &key };
    let (manifest, read) = codec.read(include_bytes!("../golden/manifest.json").trim_ascii()).unwrap();
    let mut expected = whole();
    for link in &mut expected.links {
        (link.trail, link.leased) = (None, None);
    }
    for session in &mut expected.sessions {
        (session.drift, session.listed) = (Drift::default(), Vec::new());
    }
    assert_eq!(manifest, expected);
    assert!(read == lent());
}

#[test]
fn what_is_not_from_here_or_makes_no_sense_is_refused() {
    let (sealer, key) = (sealer(), Key::from_bytes([7; 32]));
    let codec = Codec { sealer: &sealer, key: &key };
    let text = String::from_utf8(codec.write(&whole(), lent()).unwrap()).unwrap();
    let strange = Key::from_bytes([8; 32]);
    let other = Codec { sealer: &Sealer::new(strange.bytes()), key: &strange };
    assert!(other.read(text.as_bytes()).is_err());
    for (from, to) in [
        ("[3072,4096]", "[4096,8192]"),
        ("\"ready\"", "\"asleep\""),
        ("\\\"session_id\\\": \\\"s\\\"", "\\\"session_id\\\": \\\"t\\\""),
        ("\"client_id\":\"\\\"a\\\"\"", "\"client_id\":\"{}\""),
    ] {
        assert!(text.contains(from), "{from}: {text}");
        assert!(codec.read(text.replacen(from, to, 1).as_bytes()).is_err(), "{from}");
    }
    for cut in 0..text.len() {
        if text.is_char_boundary(cut) {
            assert!(codec.read(&text.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
    }
}
