//! Nothing that differs in content is ever believed; everything that differs in form is.

use std::collections::BTreeMap;

use evermux_core::names::{SessionId, UpstreamName};
use evermux_core::record::Learned;
use proptest::prelude::*;

use super::*;
use crate::testing::sample;

fn key() -> Key {
    Key::from_bytes(std::array::from_fn(|index| u8::try_from(index).unwrap()))
}

fn name() -> String {
    record_file_name(&sample(5).upstream, Trajectory(5)).unwrap()
}

fn record_of(decoded: Decoded) -> Record {
    match decoded {
        Decoded::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn reason_of(decoded: Decoded) -> Option<QuarantineReason> {
    match decoded {
        Decoded::Bad(reason, _) => Some(reason),
        Decoded::Newer => None,
        Decoded::Record(record) => panic!("believed {record:?}"),
    }
}

#[test]
fn reads_back_what_it_wrote() {
    let bare = Record {
        parent: None,
        session_id: None,
        get_cursor: None,
        owner: None,
        handles: Vec::new(),
        tools: None,
        learned: Learned::default(),
        subscriptions: BTreeMap::new(),
        log_levels: BTreeMap::new(),
        ..sample(5)
    };
    for record in [sample(5), bare] {
        assert_eq!(record_of(decode(&name(), encode(&record, &key()).unwrap().as_bytes(), &key())), record);
    }
}

/// The page is what another tool is written from, so its example must be what this crate does.
#[test]
fn worked_example_of_the_format_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planning/record-format.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (class, input) in [("store/key-id", ""), ("store/record", r#"{"a":[1,true,null],"b":"\n"}"#)] {
        let line = format!("`{class}` over `{input}` is `{}`", key().digest(class, input.as_bytes()));
        assert!(page.contains(&line), "{line}");
    }
    let text = encode(&sample(5), &key()).unwrap();
    assert!(page.contains(&format!("```json\n{text}\n```")), "{text}");
}

#[test]
fn a_cut_at_any_byte_is_unreadable() {
    let text = encode(&sample(5), &key()).unwrap();
    for end in 0..text.len() {
        let reason = reason_of(decode(&name(), &text.as_bytes()[..end], &key()));
        assert_eq!(reason, Some(QuarantineReason::RecordUnreadable), "cut at {end}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_never_believed_with_other_content() {
    let record = sample(5);
    let text = encode(&record, &key()).unwrap().into_bytes();
    let (mut mismatches, mut unreadable) = (0, 0);
    for position in 0..text.len() * 8 {
        let mut damaged = text.clone();
        damaged[position / 8] ^= 1 << (position % 8);
        match decode(&name(), &damaged, &key()) {
            // White space turned into other white space, at most.
            Decoded::Record(read) => assert_eq!(*read, record, "bit {position}"),
            Decoded::Bad(QuarantineReason::RecordDigestMismatch, _) => mismatches += 1,
            Decoded::Bad(..) => unreadable += 1,
            Decoded::Newer => assert_ne!(damaged, text),
        }
    }
    assert!(mismatches > 1000 && unreadable > 1000, "{mismatches} {unreadable}");
}

#[test]
fn key_order_and_white_space_do_not_matter() {
    let text = encode(&sample(5), &key()).unwrap();
    let members: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let reversed: Vec<String> =
        members.iter().rev().map(|(name, value)| format!("\t\"{name}\" :\r\n {value:#} ")).collect();
    let rewritten = format!("\n {{ {} }}\n\n", reversed.join(" ,"));
    assert_eq!(record_of(decode(&name(), rewritten.as_bytes(), &key())), sample(5));
    // Other escapes for the same text.
    let escaped = text.replace("evermux", "\\u0065vermux");
    assert_ne!(escaped, text);
    assert_eq!(record_of(decode(&name(), escaped.as_bytes(), &key())), sample(5));
}

#[test]
fn every_field_is_under_the_digest() {
    let text = encode(&sample(5), &key()).unwrap();
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    for field in members.keys().filter(|field| *field != "digest" && *field != "key_id" && *field != "format")
    {
        let mut without = members.clone();
        without.remove(field);
        let reason = reason_of(decode(&name(), &serde_json::to_vec(&without).unwrap(), &key()));
        assert_eq!(reason, Some(QuarantineReason::RecordDigestMismatch), "{field}");
    }
    let mut more = members.clone();
    more.insert("added".into(), 1.into());
    let reason = reason_of(decode(&name(), &serde_json::to_vec(&more).unwrap(), &key()));
    assert_eq!(reason, Some(QuarantineReason::RecordDigestMismatch));
}

/// A file as a newer evermux would write it: correctly signed.
fn signed(change: impl FnOnce(&mut BTreeMap<String, Json>)) -> String {
    let mut members = members_of(&sample(5)).unwrap();
    members.insert("key_id".into(), Json::Text(key_id(&key()).to_string()));
    change(&mut members);
    let digest = digest_of(&members, &key());
    members.insert("digest".into(), Json::Text(digest.to_string()));
    one_member_a_line(&members)
}

#[test]
fn a_newer_minor_is_read_and_its_fields_are_written_back() {
    let text = signed(|members| {
        members.insert("format".into(), Json::parse(br#"{"major":1,"minor":9}"#).unwrap());
        members.insert("era".into(), Json::parse(br#"{"b":[1,null],"a":"\u00e9"}"#).unwrap());
    });
    let record = record_of(decode(&name(), text.as_bytes(), &key()));
    assert_eq!(
        record.extra,
        BTreeMap::from([("era".to_owned(), "{\"a\":\"\u{e9}\",\"b\":[1,null]}".to_owned())])
    );
    let again = encode(&record, &key()).unwrap();
    assert_eq!(record_of(decode(&name(), again.as_bytes(), &key())), record);
}

#[test]
fn a_newer_major_is_told_apart_whatever_else_it_holds() {
    let text = br#"{"format":{"major":2,"minor":0,"x":1.5},"other":{"ratio":0.25}}"#;
    assert!(matches!(decode("other-name.json", text, &key()), Decoded::Newer));
    let zero = signed(|members| {
        members.insert("format".into(), Json::parse(br#"{"major":0,"minor":0}"#).unwrap());
    });
    assert_eq!(reason_of(decode(&name(), zero.as_bytes(), &key())), Some(QuarantineReason::RecordUnreadable));
}

#[test]
fn another_key_is_told_from_other_content() {
    let text = encode(&sample(5), &Key::from_bytes([9; 32])).unwrap();
    assert_eq!(reason_of(decode(&name(), text.as_bytes(), &key())), Some(QuarantineReason::ForeignKey));
}

#[test]
fn a_file_named_for_another_session_is_refused() {
    let text = encode(&sample(5), &key()).unwrap();
    for other in [
        "git-hub_2-00000000000000000000000000000006.json",
        "x-00000000000000000000000000000005.json",
        "a.json",
    ] {
        assert_eq!(
            reason_of(decode(other, text.as_bytes(), &key())),
            Some(QuarantineReason::RecordUnreadable)
        );
    }
}

#[test]
fn a_name_cannot_leave_the_directory() {
    for bad in ["", "../x", "a/b", "-a", "_a", "A", "a.b", "a\0", &"a".repeat(65)] {
        assert!(record_file_name(&UpstreamName::from(bad), Trajectory(1)).is_err(), "{bad:?}");
    }
    let longest = "a".repeat(64);
    let name = record_file_name(&UpstreamName::from(longest.as_str()), Trajectory(1)).unwrap();
    assert_eq!(parse_file_name(&name), Some((UpstreamName::from(longest.as_str()), Trajectory(1))));
}

#[test]
fn what_does_not_fit_is_an_error_and_not_a_loss() {
    let refuses = |record: Record, field: &str| {
        let error = encode(&record, &key()).unwrap_err();
        assert!(matches!(&error, StoreError::Unencodable { field: named } if named == field), "{error}");
    };
    refuses(Record { ids_reserved_until: 1 << 53, ..sample(5) }, "ids_reserved_until");
    refuses(Record { extra: BTreeMap::from([("owner".into(), "1".into())]), ..sample(5) }, "owner");
    refuses(Record { extra: BTreeMap::from([("x".into(), "1.5".into())]), ..sample(5) }, "x");
    refuses(Record { extra: BTreeMap::from([("digest".into(), "1".into())]), ..sample(5) }, "digest");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_survives(
        result in any::<String>(), cursor in any::<Option<String>>(), uri in any::<String>(),
        session in "[\\x21-\\x7e]{1,64}", number in 0u64..(1 << 53),
    ) {
        let record = Record {
            initialize_result: result,
            get_cursor: cursor,
            subscriptions: BTreeMap::from([(uri, vec![LinkNonce(1)])]),
            session_id: SessionId::new(&session),
            used_ms: number,
            ..sample(5)
        };
        let text = encode(&record, &key()).unwrap();
        prop_assert_eq!(record_of(decode(&name(), text.as_bytes(), &key())), record);
    }
}
