//! A splice changes what it is told and not a byte more.

#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use mcp_wire::{Id, LineDecoder, Message, error, notification, request, result, to_line};

fn parse(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn id(text: &str) -> Id {
    Id::from_raw(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

#[test]
fn ids_and_tokens_are_replaced_in_place() {
    let new = id("\"new\"");
    let spliced = |text: &str| {
        let message = parse(text);
        let splice = message.splice().id(&new).progress_token(&Id::number(77));
        splice.cancelled_request_id(&Id::number(88)).meta_request_id(&Id::number(99)).finish().into_bytes()
    };
    for (text, expected) in [
        (
            r#" { "params" :{"_meta":{"progressToken": "1" ,"requestId":1},"n":1e400}, "id" : 1.0 ,"method":"x","jsonrpc":"2.0"}"#,
            r#" { "params" :{"_meta":{"progressToken": 77 ,"requestId":99},"n":1e400}, "id" : "new" ,"method":"x","jsonrpc":"2.0"}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"_meta":{"progressToken":1}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":77,"_meta":{"progressToken":1}}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a","reason":"r"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":88,"reason":"r"}}"#,
        ),
        // A notification must not become a request.
        (r#"{"jsonrpc":"2.0","method":"a"}"#, r#"{"jsonrpc":"2.0","method":"a"}"#),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":null}}}"#,
            r#"{"jsonrpc":"2.0","id":"new","method":"a","params":{"_meta":{"progressToken":null}}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{"id":1}}"#,
            r#"{"jsonrpc":"2.0","id":"new","result":{"id":1}}"#,
        ),
        // The HTTP exchange says whose error this is.
        (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, r#"{"jsonrpc":"2.0","id":"new","error":{}}"#),
        (r#"{ "jsonrpc":"2.0","error":{}}"#, r#"{"id":"new", "jsonrpc":"2.0","error":{}}"#),
    ] {
        assert_eq!(spliced(text), expected, "{text}");
    }
}

#[test]
fn result_meta_is_made_extended_or_replaced() {
    let with_meta = |result: &str| {
        let message = parse(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result},"z":0}}"#));
        let splice =
            message.splice().id(&Id::number(2)).result_meta("a/b", b"old").result_meta("a/b", b"{\"n\":1}");
        let bytes = splice.result_meta("c\"", b"[]").result_meta("bad", b"1 2").finish().into_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let inner = text.strip_prefix(r#"{"jsonrpc":"2.0","id":2,"result":"#).expect("the id");
        inner.strip_suffix(r#","z":0}"#).expect("the rest").to_owned()
    };
    let both = r#""a/b":{"n":1},"c\"":[]"#;
    for (result, expected) in [
        ("{}", format!(r#"{{"_meta":{{{both}}}}}"#)),
        (r#"{ "x":1e400}"#, format!(r#"{{"_meta":{{{both}}}, "x":1e400}}"#)),
        (r#"{"_meta":{ },"x":1}"#, format!(r#"{{"_meta":{{{both} }},"x":1}}"#)),
        (r#"{"_meta":null}"#, format!(r#"{{"_meta":{{{both}}}}}"#)),
        (r#"{"\u005fmeta":{"k":1}}"#, format!(r#"{{"\u005fmeta":{{{both},"k":1}}}}"#)),
        (r#"{"_meta":{"k":1,"a\/b":5}}"#, r#"{"_meta":{"c\"":[],"k":1,"a\/b":{"n":1}}}"#.to_owned()),
        (r#"{"_meta":{"c\"":5,"a/b" : 5}}"#, r#"{"_meta":{"c\"":[],"a/b" : {"n":1}}}"#.to_owned()),
        (r#"{"_meta":{"k":1},"_meta":{}}"#, format!(r#"{{"_meta":{{"k":1}},"_meta":{{{both}}}}}"#)),
        // Nothing to put it into.
        (r#"{"_meta":[1]}"#, r#"{"_meta":[1]}"#.to_owned()),
        ("null", "null".to_owned()),
        ("[{}]", "[{}]".to_owned()),
        ("\"{}\"", "\"{}\"".to_owned()),
    ] {
        assert_eq!(with_meta(result), expected, "{result}");
    }
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"error":{"a":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{}}"#,
    ] {
        assert_eq!(parse(text).splice().result_meta("k", b"1").finish().into_bytes(), text);
    }
}

#[test]
fn a_large_result_is_shared_not_copied() {
    let payload = "x".repeat(16 << 20);
    let original = Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":123,"result":{{"text":"{payload}"}}}}"#));
    let message = Message::parse(original.clone()).unwrap();
    let segments = message.splice().id(&Id::number(4)).result_meta("k", b"1").finish();
    let largest = segments.iter().max_by_key(|piece| piece.len()).unwrap();
    assert!(largest.len() > payload.len());
    assert!(original.as_ptr_range().contains(&largest.as_ptr()), "shares the message's buffer");
    assert_eq!(segments.len(), original.len() - 2 + r#""_meta":{"k":1},"#.len());
    // Unchanged: not even pieces.
    assert_eq!(message.splice().finish().into_bytes().as_ptr(), original.as_ptr());
    assert_eq!(message.clone().bytes().as_ptr(), original.as_ptr());
}

#[test]
fn composed_messages_parse_to_what_they_were_made_of() {
    let parsed = |bytes: Bytes| Message::parse(bytes).unwrap();
    let call = parsed(request(&id("\"q\""), "a\"\n/b", Some(b"{\"x\":1e400}")));
    assert_eq!(
        (call.id(), call.method(), call.params()),
        (Some(id("\"q\"")), Some("a\"\n/b"), Some(&b"{\"x\":1e400}"[..]))
    );
    let bare = parsed(request(&Id::number(1), "ping", None));
    assert_eq!((bare.params(), bare.id()), (None, Some(Id::number(1))));
    let told = parsed(notification("n", Some(b"{}")));
    assert_eq!((told.id(), told.params()), (None, Some(&b"{}"[..])));
    let answer = parsed(result(&Id::number(3), b"null"));
    assert_eq!((answer.id(), answer.result()), (Some(Id::number(3)), Some(&b"null"[..])));
    let data = serde_json::json!({"k": ["v\u{2028}\n"]});
    let bytes = error(None, -32700, "no \"good\"\r\n", Some(&data));
    assert!(bytes.starts_with(br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"#));
    let refused = parsed(bytes);
    assert_eq!(
        (refused.id(), refused.error_code(), refused.error_message().as_deref()),
        (None, Some(-32700), Some("no \"good\"\r\n"))
    );
    assert_eq!(parsed(error(Some(&id("1.0")), 1, "", None)).id(), Some(id("1.0")));
}

#[test]
fn a_line_has_one_newline_and_the_same_meaning() {
    let text = "\r\n{\n\t\"jsonrpc\" :\r\"2.0\",\r\n\"id\":1,\"result\":{\"a\":[1,\n2],\"s\":\"\\n\\r\u{2028}\"}\n}\n";
    let message = parse(text);
    for segments in [message.splice().finish(), message.splice().id(&Id::number(1)).finish()] {
        let line = to_line(&segments);
        assert_eq!(line.iter().filter(|byte| matches!(byte, b'\r' | b'\n')).count(), 1);
        assert_eq!(line.len(), text.len() + 1);
        let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        assert_eq!(value(&line), value(text.as_bytes()));
        let mut decoder = LineDecoder::new(1000);
        decoder.push(&line);
        assert_eq!(decoder.next_line(), Some(Ok(line.slice(..line.len() - 1))));
    }
}

/// What the parser says of line ends is relied on where lines frame messages: it may not miss one, wherever it stands.
#[test]
fn no_line_end_is_missed() {
    let flat = r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1,{},[],{"b":[2]}],"c":"\n\r"}}"#;
    let spliced = |text: String| Message::parse(text.into()).map(|m| m.splice().id(&Id::number(7)).finish());
    assert!(!spliced(flat.to_owned()).unwrap().has_line_ends());
    let mut seen = 0;
    for at in 0..=flat.len() {
        for end in ["\n", "\r"] {
            let text = format!("{}{end}{}", &flat[..at], &flat[at..]);
            let Ok(message) = spliced(text) else { continue };
            assert!(message.has_line_ends(), "{end:?} at {at}");
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} places");
    let message = Message::parse(Bytes::from_static(flat.as_bytes())).unwrap();
    assert!(message.splice().result_meta("k", b"[1,\n2]").finish().has_line_ends());
}
