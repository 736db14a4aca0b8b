//! What must hold for any bytes given to the message parser. One function for the fuzzer, for the replay of its
//! corpus on stable, and for the property tests.

use bytes::Bytes;
use mcp_wire::{Batch, Id, Message, Segments, to_line};
use serde::de::IgnoredAny;

/// Panics if `input` is treated wrongly.
pub(crate) fn check(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let is_json = std::str::from_utf8(input).is_ok() && serde_json::from_slice::<IgnoredAny>(input).is_ok();
    match Message::parse_batch(bytes.clone()) {
        Ok(batch) => {
            assert!(is_json, "accepted what is not JSON");
            let messages = match batch {
                Batch::One(message) => {
                    assert_eq!(message.bytes(), &bytes);
                    vec![message]
                }
                Batch::Many(messages) => messages,
            };
            messages.iter().for_each(check_message);
        }
        Err(error) => {
            assert!(error.at <= input.len(), "{error} of {}", input.len());
            assert!(!is_json || error.code() == mcp_wire::code::INVALID_REQUEST, "JSON, but: {error}");
            assert!(error.request_id().is_none() || error.response_id().is_none());
        }
    }
}

fn check_message(message: &Message) {
    let again = Message::parse(message.bytes().clone()).expect("a slice of a batch is a message");
    assert_eq!(ids(&again), ids(message));
    assert_eq!(message.splice().finish().into_bytes(), message.bytes());
    check_value_agrees(message);

    // Other ids in, the old ones back: the same bytes, so nothing but the spans was touched.
    let other =
        ["\"a much longer id than the one before it, so that spans move\"", "0", "\"\\u0061\"", "-1.0"]
            .map(|text| Id::from_raw(Bytes::from_static(text.as_bytes())).expect("an id"));
    let there = splice(message, &other.each_ref().map(Some));
    let there = Message::parse(there.into_bytes()).expect("still a message");
    let old = ids(message);
    for (now, (old, new)) in ids(&there).iter().zip(old.iter().zip(&other)) {
        let gained_an_id = message.kind() == mcp_wire::Kind::ErrorResponse && now.as_ref() == Some(&other[0]);
        assert!(now.as_ref() == old.as_ref().map(|_| new) || gained_an_id);
    }
    assert_eq!((there.kind(), there.method()), (message.kind(), message.method()));
    assert_eq!((there.result(), there.error()), (message.result(), message.error()));
    if old[0].is_some() || message.kind() != mcp_wire::Kind::ErrorResponse {
        let back = splice(&there, &old.each_ref().map(Option::as_ref));
        assert_eq!(back.into_bytes(), message.bytes());
    }

    let noted = message.splice().result_meta("k", b"[1]").finish().into_bytes();
    let noted = Message::parse(noted).expect("still a message");
    assert_eq!((ids(&noted), noted.method()), (ids(message), message.method()));
    // Twice is once.
    assert_eq!(noted.splice().result_meta("k", b"[1]").finish().into_bytes(), noted.bytes());

    let line = to_line(&Segments::from(message.clone()));
    assert_eq!(line.iter().position(|b| matches!(b, b'\r' | b'\n')), Some(line.len() - 1));
    assert_eq!(ids(&Message::parse(line).expect("a line is the message")), ids(message));
    for name in ["", "uri", "_meta"] {
        assert!(message.param_str(name).is_none() || message.params().is_some());
    }
    assert!(
        (message.error_code().is_none() && message.error_message().is_none()) || message.error().is_some()
    );
}

/// Where serde_json can build the message, it must see the same method and id.
fn check_value_agrees(message: &Message) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(message.bytes()) else { return };
    assert_eq!(value.get("method").and_then(|method| method.as_str()), message.method());
    let id = message
        .id()
        .map(|id| serde_json::from_slice::<serde_json::Value>(id.as_raw()).expect("an id is JSON"));
    assert_eq!(value.get("id").filter(|id| !id.is_null()), id.as_ref());
    assert_eq!(value.get("result").is_some(), message.result().is_some());
    let uri = value.pointer("/params/uri").and_then(|uri| uri.as_str());
    assert!(message.param_str("uri").is_none_or(|ours| Some(ours.as_str()) == uri));
}

fn ids(message: &Message) -> [Option<Id>; 4] {
    [message.id(), message.progress_token(), message.cancelled_request_id(), message.meta_request_id()]
}

fn splice(message: &Message, to: &[Option<&Id>; 4]) -> Segments {
    let mut splice = message.splice();
    if let Some(id) = to[0] {
        splice = splice.id(id);
    }
    if let Some(id) = to[1] {
        splice = splice.progress_token(id);
    }
    if let Some(id) = to[2] {
        splice = splice.cancelled_request_id(id);
    }
    if let Some(id) = to[3] {
        splice = splice.meta_request_id(id);
    }
    splice.finish()
}
