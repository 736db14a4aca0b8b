//! Messages nobody thought of: any JSON, spelled in any legal way.

#[path = "../../../tests/fuzz/checks/wire_envelope.rs"]
#[expect(clippy::expect_used, reason = "a check panics")]
mod wire_envelope;

use bytes::Bytes;
use mcp_wire::{Batch, Message};
use proptest::{prelude::*, sample::select};

fn space() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(String::new()), 1 => "[ \t\r\n]{0,3}"]
}

/// A JSON string of this text, each letter plain or escaped.
fn spelled(text: &str) -> BoxedStrategy<String> {
    let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let plain = serde_json::Value::from(text).to_string();
    prop_oneof![5 => Just(plain), 1 => Just(format!("\"{escaped}\""))].boxed()
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec!["0", "-0", "1e400", "12345678901234567890", "1.0", "-1E-400", "0.1e+1"])
            .prop_map(str::to_owned),
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,4})?",
    ]
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,10}".prop_flat_map(|text| spelled(&text)),
        select(vec![r#""\ud800""#, r#""\/""#, "\"\"", "\"\u{2028}\""]).prop_map(str::to_owned),
    ]
}

fn key() -> impl Strategy<Value = String> {
    let known = select(vec![
        "jsonrpc",
        "id",
        "method",
        "params",
        "result",
        "error",
        "_meta",
        "progressToken",
        "requestId",
        "uri",
        "ID",
        "Id",
    ]);
    prop_oneof![1 => string(), 2 => known.prop_flat_map(spelled)]
}

fn list(open: char, items: &[String], close: char) -> String {
    format!("{open}{}{close}", items.join(","))
}

fn member(
    key: impl Strategy<Value = String> + 'static,
    value: impl Strategy<Value = String> + 'static,
) -> BoxedStrategy<String> {
    (space(), key, space(), space(), value, space())
        .prop_map(|(a, key, b, c, value, d)| format!("{a}{key}{b}:{c}{value}{d}"))
        .boxed()
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![number(), string(), select(vec!["null", "true", "false"]).prop_map(str::to_owned)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let items = proptest::collection::vec((space(), inner.clone()).prop_map(|(a, b)| a + &b), 0..4);
        let members = proptest::collection::vec(member(key(), inner), 0..4);
        prop_oneof![
            items.prop_map(|items| list('[', &items, ']')),
            members.prop_map(|members| list('{', &members, '}')),
        ]
    })
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![string(), "-?[1-9][0-9]{0,20}", Just("1.0".to_owned())]
}

/// Parameters with the members that are spliced, in any place among others.
fn params() -> BoxedStrategy<String> {
    let named = |name: &'static str, value: BoxedStrategy<String>| member(spelled(name), value);
    let other = || proptest::collection::vec(member("\"[a-d]\"", json()), 0..3);
    let meta = (other(), named("progressToken", id().boxed()), named("requestId", id().boxed()))
        .prop_flat_map(|(mut members, token, request)| {
            members.extend([token, request]);
            Just(members).prop_shuffle()
        })
        .prop_map(|members| list('{', &members, '}'));
    (
        other(),
        named("_meta", meta.boxed()),
        named("requestId", id().boxed()),
        named("progressToken", id().boxed()),
    )
        .prop_flat_map(|(mut members, meta, request, token)| {
            members.extend([meta, request, token]);
            Just(members).prop_shuffle()
        })
        .prop_map(|members| list('{', &members, '}'))
        .boxed()
}

/// A legal message.
fn message() -> impl Strategy<Value = String> {
    let methods = select(vec!["tools/call", "notifications/cancelled", "notifications/progress", "a\"é"]);
    let call = (
        member(spelled("method"), methods.prop_flat_map(spelled)),
        proptest::option::of(member(spelled("params"), prop_oneof![3 => params(), 1 => "\\[\\]"])),
        proptest::option::of(member(spelled("id"), id())),
    );
    let call =
        call.prop_map(|(method, params, id)| [Some(method), params, id].into_iter().flatten().collect());
    let answer =
        (member(spelled("id"), id()), member(spelled("result"), json())).prop_map(|(a, b)| vec![a, b]);
    let refusal = (
        proptest::option::of(member(
            spelled("id"),
            prop_oneof![id().boxed(), Just("null".to_owned()).boxed()],
        )),
        member(spelled("error"), json().prop_filter("null is no error", |error| error != "null")),
    );
    let refusal = refusal.prop_map(|(id, error)| id.into_iter().chain([error]).collect());
    let others = proptest::collection::vec(member("\"[a-d]\"", json()), 0..3);
    (prop_oneof![call, answer, refusal], member(spelled("jsonrpc"), spelled("2.0")), others, space(), space())
        .prop_flat_map(
            |(mut members, version, others, before, after): (Vec<String>, _, Vec<String>, _, _)| {
                members.push(version);
                members.extend(others);
                (Just(members).prop_shuffle(), Just(before), Just(after))
            },
        )
        .prop_map(|(members, before, after)| format!("{before}{}{after}", list('{', &members, '}')))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn legal_messages_are_taken_and_spliced_exactly(text in message()) {
        let parsed = Message::parse(Bytes::from(text.clone()));
        prop_assert!(parsed.is_ok(), "{text}: {parsed:?}");
        wire_envelope::check(text.as_bytes());
    }

    #[test]
    fn batches_are_their_messages(texts in proptest::collection::vec(message(), 1..4)) {
        let text = list('[', &texts, ']');
        let Ok(Batch::Many(messages)) = Message::parse_batch(Bytes::from(text.clone())) else {
            return Err(TestCaseError::fail(text));
        };
        for (message, text) in messages.iter().zip(&texts) {
            prop_assert_eq!(message.bytes(), text.trim_matches([' ', '\t', '\r', '\n']).as_bytes());
        }
        prop_assert_eq!(messages.len(), texts.len());
        wire_envelope::check(text.as_bytes());
    }

    #[test]
    fn any_json_is_judged_without_panic(text in json()) {
        wire_envelope::check(text.as_bytes());
    }

    #[test]
    fn damaged_messages_are_judged_without_panic(
        text in message(),
        at in any::<prop::sample::Index>(),
        with in proptest::option::of(prop_oneof![any::<u8>(), select(b"{}[],:\"\\n1 ".to_vec())]),
        cut in any::<bool>(),
    ) {
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        match (with, cut) {
            (_, true) => bytes.truncate(at),
            (Some(byte), false) => bytes[at] = byte,
            (None, false) => { bytes.remove(at); }
        }
        wire_envelope::check(&bytes);
    }
}
