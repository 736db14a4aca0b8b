//! What a case does to a record while no multiplexer runs, in evermux's own files.

use std::fs;
use std::path::PathBuf;

use evermux_testkit::Harness;
use serde_json::Value;

use super::form::Edit;
use crate::state::records;

/// The one record there is.
#[track_caller]
fn record(harness: &Harness) -> PathBuf {
    let all = records(harness);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

#[track_caller]
pub(super) fn copy(harness: &Harness) -> String {
    fs::read_to_string(record(harness)).unwrap()
}

#[track_caller]
pub(super) fn edit(harness: &Harness, how: Edit, kept: Option<&String>) {
    if matches!(how, Edit::ChangeKey) {
        return fs::write(harness.state_dir().join("key"), [7; 32]).unwrap();
    }
    let path = record(harness);
    let text = fs::read_to_string(&path).unwrap();
    let changed = match how {
        Edit::FlipByte => flip(&text, "\"session_id\": \""),
        Edit::SwapBinding => flip(&text, "\"identity\":\""),
        Edit::Truncate => text[..text.len() / 2].to_owned(),
        Edit::Reserialise => reserialise(&text),
        Edit::RestoreCopy => kept.expect("a copy was made").clone(),
        Edit::ChangeKey => unreachable!("that is another file"),
    };
    assert_ne!(changed, text, "the edit changes nothing");
    fs::write(path, changed).unwrap();
}

/// Another character of the same kind behind these.
fn flip(text: &str, before: &str) -> String {
    let at = text.find(before).unwrap() + before.len();
    let mut bytes = text.as_bytes().to_vec();
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    String::from_utf8(bytes).unwrap()
}

/// The same content: members the other way round, other white space, an escape for the first character of each text.
fn reserialise(text: &str) -> String {
    let record: Value = serde_json::from_str(text).unwrap();
    let spelled = |value: &Value| match value.as_str().and_then(|text| text.chars().next()) {
        Some(first) if first.is_ascii_graphic() => {
            let rest = Value::from(&value.as_str().unwrap()[1..]).to_string();
            format!("\"\\u{:04X}{}", u32::from(first), &rest[1..])
        }
        _ => serde_json::to_string_pretty(value).unwrap(),
    };
    let members = record.as_object().unwrap().iter().rev();
    let members: Vec<_> =
        members.map(|(name, value)| format!("  \"{name}\" :\t{}", spelled(value))).collect();
    format!("{{\n{}\n}}", members.join(" ,\n"))
}
