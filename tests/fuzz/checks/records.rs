//! What must hold for any bytes given as a record: canonical JSON is one form and the same value, what is written is
//! what is read, and no changed byte is believed with other content. One function for the fuzzer and for the replay
//! on stable.

use evermux_store::{Key, bare};
use serde_json::Value;

/// Panics if `input` is treated wrongly, as the text of a record or as its members.
pub(crate) fn check(input: &[u8]) {
    check_canonical(input);
    let (key, other) = (Key::from_bytes([7; 32]), Key::from_bytes([8; 32]));
    check_record(input, &key, &other);
    if let Some(text) = bare::sealed(input, &key) {
        check_record(text.as_bytes(), &key, &other);
    }
}

fn check_canonical(input: &[u8]) {
    let value = serde_json::from_slice::<Value>(input).ok();
    let Some(canonical) = bare::canonical(input) else {
        let again = value.filter(has_only_small_integers).map(|value| value.to_string());
        // What is left are names given twice, of which `Value` kept one.
        assert!(
            again.is_none_or(|text| text.len() < input.len() && bare::canonical(text.as_bytes()).is_some())
        );
        return;
    };
    assert_eq!(serde_json::from_str::<Value>(&canonical).ok(), value);
    assert_eq!(bare::canonical(canonical.as_bytes()).as_ref(), Some(&canonical));
}

fn has_only_small_integers(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_i64().is_some_and(|number| number.unsigned_abs() < 1 << 53),
        Value::Array(items) => items.iter().all(has_only_small_integers),
        Value::Object(members) => members.values().all(has_only_small_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

fn check_record(text: &[u8], key: &Key, other: &Key) {
    let name = name_in(text);
    let Some(record) = bare::read_record(&name, text, key) else { return };
    assert_eq!(bare::read_record(&name, text, other), None, "believed under another key");
    assert_eq!(bare::read_record("x-00000000000000000000000000000000.json", text, key), None);
    let written = bare::write_record(&record, key);
    assert!(written.is_some(), "what was read cannot be written");
    let written = written.unwrap_or_default();
    assert_eq!(bare::read_record(&name, written.as_bytes(), key).as_ref(), Some(&record));
    assert_eq!(bare::write_record(&record, key), Some(written));
    // One place for each input: over many inputs, all of them.
    let at = text.iter().fold(text.len(), |sum, byte| sum.wrapping_mul(31) + usize::from(*byte)) % text.len();
    let mut damaged = text.to_vec();
    for bit in 0..8 {
        damaged[at] ^= 1 << bit;
        let believed = bare::read_record(&name, &damaged, key);
        assert!(believed.is_none_or(|believed| believed == record), "byte {at}, bit {bit}");
        damaged[at] ^= 1 << bit;
    }
    assert_eq!(bare::read_record(&name, &text[..at], key), None, "cut at {at}");
}

/// The name of the file that this text may stand in.
fn name_in(text: &[u8]) -> String {
    let value = serde_json::from_slice::<Value>(text).unwrap_or_default();
    let member = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    format!("{}-{}.json", member("upstream"), member("trajectory"))
}
