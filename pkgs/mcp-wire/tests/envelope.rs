//! What is a message, what is not, and what is said about it.

#![expect(clippy::panic, clippy::expect_used, reason = "helpers of tests")]

use bytes::Bytes;
use mcp_wire::{Batch, Fault, Kind, Message, ParseError, code};

fn parse(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refuse(text: &str) -> ParseError {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).expect_err(text)
}

fn raw(id: Option<mcp_wire::Id>) -> Option<String> {
    id.map(|id| id.to_string())
}

#[test]
fn kinds() {
    for (text, kind, id, method) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Kind::Request, Some("1"), Some("ping")),
        (r#"{"method":"ping","id":"1","jsonrpc":"2.0"}"#, Kind::Request, Some("\"1\""), Some("ping")),
        (
            "\t\r\n {\"jsonrpc\" : \"2.0\" , \"id\" :\n1.0 , \"method\" : \"a\" } \n",
            Kind::Request,
            Some("1.0"),
            Some("a"),
        ),
        (r#"{"jsonrpc":"2.0","method":"x"}"#, Kind::Notification, None, Some("x")),
        (r#"{"jsonrpc":"2.0","id":-3,"result":null}"#, Kind::Response, Some("-3"), None),
        (r#"{"jsonrpc":"2.0","id":1e400,"result":{}}"#, Kind::Response, Some("1e400"), None),
        (
            r#"{"jsonrpc":"2.0","id":12345678901234567890,"result":0}"#,
            Kind::Response,
            Some("12345678901234567890"),
            None,
        ),
        (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, Kind::ErrorResponse, None, None),
        (r#"{"jsonrpc":"2.0","error":{}}"#, Kind::ErrorResponse, None, None),
        (
            r#"{"jsonrpc":"2.0","id":"server-error","error":{}}"#,
            Kind::ErrorResponse,
            Some("\"server-error\""),
            None,
        ),
        // Escaped spellings are the member.
        (
            r#"{"jsonrpc":"2\u002e0","\u0069d":7,"m\u0065thod":"tools\/list"}"#,
            Kind::Request,
            Some("7"),
            Some("tools/list"),
        ),
        (r#"{"jsonrpc":"2.0","id":"\u0061","method":""}"#, Kind::Request, Some("\"\\u0061\""), Some("")),
    ] {
        let message = parse(text);
        assert_eq!(message.kind(), kind, "{text}");
        assert_eq!(raw(message.id()).as_deref(), id, "{text}");
        assert_eq!(message.method(), method, "{text}");
        assert_eq!(message.bytes(), text.as_bytes());
    }
}

#[test]
fn null_is_not_absence() {
    assert_eq!(parse(r#"{"jsonrpc":"2.0","id":1,"result":null}"#).result(), Some(&b"null"[..]));
    assert_eq!(parse(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).error(), None);
    assert_eq!(parse(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":null}"#).params(), Some(&b"null"[..]));
    assert_eq!(parse(r#"{"jsonrpc":"2.0","id":1,"method":"a"}"#).params(), None);
}

#[test]
fn what_a_typed_relay_would_break_passes_untouched() {
    let odd = r#"{"z":1e400,"a":12345678901234567890,"z":1.0,"nested":{"_meta":1,"_meta":2,"id":1,"id":2},"\ud800":"\udfff","é":"\u00e9"  ,"id":1,"id":2}"#;
    for text in [
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{odd},"x":1,"x":2,"vendor":null}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{odd},"\ud800":0}}"#),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"requestId":1,"requestId":{},"progressToken":1,"progressToken":[]}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[1,2,{"_meta":1,"_meta":2}]}"#.to_owned(),
    ] {
        let message = parse(&text);
        assert_eq!(message.bytes(), text.as_bytes());
        assert_eq!(message.splice().finish().into_bytes(), text.as_bytes());
        if let Some(payload) = message.result() {
            assert_eq!(payload, odd.as_bytes());
        }
    }
}

#[test]
fn depth_costs_no_call_stack() {
    for depth in [5_000, 300_000] {
        let run = move || {
            let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
            let result = parse(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"a":{nested}}}}}"#));
            let spliced = result.splice().result_meta("k", b"1").finish().into_bytes();
            assert_eq!(Message::parse(spliced).unwrap().kind(), Kind::Response);
            let meta =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"_meta":{{"x":{nested}}}}}}}"#);
            assert_eq!(parse(&meta).param_str("x"), None);
            refuse(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}"#, "{\"a\":".repeat(depth)));
            refuse(&"[".repeat(depth));
            Message::parse_batch(Bytes::from("[".repeat(depth))).unwrap_err();
        };
        // Small enough that recursion over 5,000 levels would end the test process.
        std::thread::Builder::new().stack_size(64 * 1024).spawn(run).unwrap().join().unwrap();
    }
}

fn assert_refused(table: &[(&str, Fault, usize)]) {
    for (text, fault, at) in table {
        let error = refuse(text);
        assert_eq!((&error.fault, error.at), (fault, *at), "{text}: {error}");
        assert_eq!(error.code(), code::INVALID_REQUEST, "{text}");
        assert!(error.to_string().contains("at byte"), "{error}");
    }
}

#[test]
fn what_is_no_message_is_refused_by_name_and_place() {
    use Fault::{MethodAnd, Missing, NotAMessage, NotAnObject, ResultAndError, Type, Version};
    let kind_of = |member, expected| Type { member, expected };
    let id = |expected| kind_of("id", expected);
    assert_refused(&[
        ("[]", NotAnObject, 0),
        (" 3 ", NotAnObject, 1),
        ("null", NotAnObject, 0),
        ("{}", Missing("jsonrpc"), 0),
        (r#" {"id":1,"method":"a"}"#, Missing("jsonrpc"), 1),
        (r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#, Version, 11),
        (r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#, Version, 11),
        (r#"{"jsonrpc":null,"id":1,"method":"a"}"#, Version, 11),
        (r#"{"jsonrpc":"2.0"}"#, NotAMessage, 0),
        (r#"{"jsonrpc":"2.0","id":1}"#, NotAMessage, 0),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","result":null}"#, MethodAnd("result"), 46),
        (r#"{"jsonrpc":"2.0","error":{},"method":"a"}"#, MethodAnd("error"), 25),
        (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":null}"#, ResultAndError, 43),
        (r#"{"jsonrpc":"2.0","id":1,"error":null}"#, kind_of("error", "an object, not null"), 32),
        (r#"{"jsonrpc":"2.0","result":1}"#, Missing("id"), 0),
        (r#"{"jsonrpc":"2.0","id":null,"result":1}"#, id("a string or an integer, never null"), 22),
        (r#"{"jsonrpc":"2.0","id":null,"method":"a"}"#, id("a string or an integer, never null"), 22),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"a"}"#, id("a string or an integer, not a fraction"), 22),
        (r#"{"jsonrpc":"2.0","id":true,"method":"a"}"#, id("a string or an integer"), 22),
        (r#"{"jsonrpc":"2.0","id":{},"result":1}"#, id("a string or an integer"), 22),
        (r#"{"jsonrpc":"2.0","id":[1],"error":{}}"#, id("a string, an integer or null"), 22),
        (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, kind_of("method", "a string"), 33),
        (r#"{"jsonrpc":"2.0","id":1,"method":null}"#, kind_of("method", "a string"), 33),
        (r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#, kind_of("method", "a string"), 33),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":true}}}"#,
            kind_of("params._meta.progressToken", "a string or a number"),
            72,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}"#,
            kind_of("params.requestId", "a string or a number"),
            74,
        ),
    ]);
}

/// Two parsers could see two messages.
#[test]
fn ambiguous_members_are_refused_by_name_and_place() {
    use Fault::{Duplicate, Lookalike};
    assert_refused(&[
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","id":2}"#, Duplicate("id"), 37),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","\u0069d":1}"#, Duplicate("id"), 37),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#, Duplicate("method"), 37),
        (r#"{"jsonrpc":"2.0","id":1,"result":1,"result":1}"#, Duplicate("result"), 35),
        (r#"{"jsonrpc":"2.0","id":1,"error":{},"error":{}}"#, Duplicate("error"), 35),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{},"params":{}}"#, Duplicate("params"), 49),
        (r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"a"}"#, Duplicate("jsonrpc"), 17),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","ID":2}"#, Lookalike("id"), 37),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"param\u{17f}\":{}}", Lookalike("params"), 37),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{},"_meta":{}}}"#,
            Duplicate("params._meta"),
            58,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_META":{}}}"#, Lookalike("params._meta"), 47),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":1,"progress\u0054oken":2}}}"#,
            Duplicate("params._meta.progressToken"),
            74,
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"params\":{\"_meta\":{\"progressTo\u{212a}en\":1}}}",
            Lookalike("params._meta.progressToken"),
            56,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"a","params":{"_meta":{"requestId":1,"requestId":2}}}"#,
            Duplicate("params._meta.requestId"),
            63,
        ),
        (
            r#"{"jsonrpc":"2.0","params":{"requestId":1,"requestId":2},"method":"notifications/cancelled"}"#,
            Duplicate("params.requestId"),
            41,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications\/cancelled","params":{"requestId":1,"requestID":2}}"#,
            Lookalike("params.requestId"),
            77,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progressToken":2}}"#,
            Duplicate("params.progressToken"),
            79,
        ),
    ]);
}

#[test]
fn broken_json_is_a_parse_error() {
    for (text, at) in [
        ("", 0),
        ("  ", 2),
        ("{", 1),
        (r#"{"jsonrpc":"2.0""#, 16),
        (r#"{"jsonrpc":"2.0",}"#, 17),
        (r#"{"jsonrpc":"2.0" "id":1}"#, 17),
        (r#"{"jsonrpc":"2.0","id" 1}"#, 22),
        (r#"{,"id":1}"#, 1),
        (r#"{'id':1}"#, 1),
        (r#"{id:1}"#, 1),
        (r#"{"id":01}"#, 7),
        (r#"{"id":tru}"#, 9),
        ("{\"jsonrpc\":\"2.0\",\n\"result\":{\n\"a\":[1,\n 2,,]}}", 41),
        ("{\"a\":\"raw\nnewline\"}", 9),
        (r#"{"a":"\x"}"#, 7),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a"}{"jsonrpc":"2.0","id":2,"method":"a"}"#, 37),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a"}]"#, 37),
        ("\u{feff}{}", 0),
        (r#"{"a":/**/1}"#, 5),
        (r#"{"a":NaN}"#, 5),
    ] {
        let error = refuse(text);
        assert!(matches!(error.fault, Fault::Syntax(_)), "{text}: {error}");
        assert!(error.at.abs_diff(at) <= 1 && error.at <= text.len(), "{text}: {error}, not {at}");
        assert_eq!(error.code(), code::PARSE_ERROR);
    }
    let error = Message::parse(Bytes::from_static(b"{\"a\":\"\xff\"}")).unwrap_err();
    assert_eq!((error.fault, error.at), (Fault::NotUtf8, 6));
}

#[test]
fn an_error_tells_whose_id_it_read() {
    for (text, request, response) in [
        (r#"{"id":5,"method":"a"}"#, Some("5"), None),
        (r#"{"jsonrpc":"2.0","id":5,"method":"a","params":{"x":"#, Some("5"), None),
        (r#"{"jsonrpc":"2.0","id":5,"method":"a"} x"#, Some("5"), None),
        // Answered under 5, this would end a request of the peer's.
        (r#"{"jsonrpc":"2.0","id":5,"result":{"content":[{"text":"cut"#, None, Some("5")),
        (r#"{"jsonrpc":"2.0","id":5,"result":1,"result":1}"#, None, Some("5")),
        (r#"{"jsonrpc":"2.0","id":5,"result":1} x"#, None, Some("5")),
        (r#"{"jsonrpc":"2.0","id":null,"error":{}} x"#, None, None),
        (r#"{"jsonrpc":"2.0","id":5,"method":"a","result":1}"#, None, None),
        (r#"{"jsonrpc":"2.0","id":5}"#, None, None),
        // Which of the two?
        (r#"{"jsonrpc":"2.0","id":5,"method":"a","id":6}"#, None, None),
        (r#"{"jsonrpc":"2.0","id":5,"method":"a","Id":6}"#, None, None),
        (r#"{"jsonrpc":"2.0","id":5.5,"method":"a"}"#, None, None),
        (r#"{"jsonrpc":"2.0","id":null,"method":"a"}"#, None, None),
    ] {
        let error = refuse(text);
        assert_eq!(raw(error.request_id().cloned()).as_deref(), request, "{text}: {error}");
        assert_eq!(raw(error.response_id().cloned()).as_deref(), response, "{text}: {error}");
    }
}

#[test]
fn errors_and_debug_show_no_content() {
    let secret = "s3cr3t";
    for text in [
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"token":"{secret}",}}}}"#),
        format!(r#"{{"jsonrpc":"{secret}","id":1,"method":"a"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{secret}}}"#),
    ] {
        let error = refuse(&text);
        assert!(!format!("{error} {error:?}").contains(secret), "{error:?}");
    }
    let message = parse(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"t":"{secret}"}}}}"#));
    let shown = format!("{message:?} {:?}", message.splice().finish());
    assert!(!shown.contains(secret) && shown.contains("Request"), "{shown}");
}

#[test]
fn tokens_belong_to_their_method() {
    let tokens = |text: &str| {
        let m = parse(text);
        (raw(m.progress_token()), raw(m.cancelled_request_id()), raw(m.meta_request_id()))
    };
    let some = |text: &str| Some(text.to_owned());
    for (text, expected) in [
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"progressToken":9,"requestId":9,"_meta":{"progressToken":"t","requestId":4}}}"#,
            (some("\"t\""), None, some("4")),
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1.5,"_meta":{"progressToken":2}}}"#,
            (some("1.5"), None, None),
        ),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"r\u0065questId":"7"}}"#,
            (None, some("\"7\""), None),
        ),
        (
            r#"{"jsonrpc":"2.0","method":"codex/event","params":{"_meta":{"requestId":0,"requestID":"vendor"}}}"#,
            (None, None, some("0")),
        ),
        (
            r#"{"jsonrpc":"2.0","method":"codex/event","params":{"_meta":{"requestId":{"a":1}}}}"#,
            (None, None, None),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":null}}}"#,
            (None, None, None),
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":null}}"#, (None, None, None)),
        (r#"{"jsonrpc":"2.0","method":"a","params":{"progressToken":1,"requestId":{}}}"#, (None, None, None)),
        (r#"{"jsonrpc":"2.0","method":"a","params":{"_meta":{"progressToken":1}}}"#, (None, None, None)),
        (
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":null}}"#,
            (None, None, None),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"progressToken":1,"requestId":2}}}"#,
            (None, None, None),
        ),
    ] {
        assert_eq!(tokens(text), expected, "{text}");
    }
}

#[test]
fn errors_and_parameters_are_read_leniently_but_not_guessed() {
    let code_and_message = |error: &str| {
        let message = parse(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#));
        assert_eq!(message.error(), Some(error.as_bytes()));
        (message.error_code(), message.error_message())
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        code_and_message(r#"{"code":-32600,"message":"a\"b","data":[1e400]}"#),
        (Some(-32600), text("a\"b"))
    );
    assert_eq!(code_and_message(r#"{"code":"x","message":5}"#), (None, None));
    assert_eq!(code_and_message("{}"), (None, None));
    assert_eq!(code_and_message("\"boom\""), (None, text("boom")));
    assert_eq!(code_and_message("7"), (None, None));

    let call = parse(
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"uri":"file:\/\/x","n":1,"two":"a","two":"b","deep":{"in":"x"}}}"#,
    );
    assert_eq!(call.param_str("uri"), text("file://x"));
    for name in ["n", "two", "in", "deep", "absent"] {
        assert_eq!(call.param_str(name), None, "{name}");
    }
    assert_eq!(parse(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":["uri"]}"#).param_str("uri"), None);
}

#[test]
fn batches_are_slices_of_one_buffer() {
    let bytes = Bytes::from_static(
        b" [ {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"} ,\n{\"result\":{\"x\":[]},\"jsonrpc\":\"2.0\",\"id\":\"b\"}] ",
    );
    let Batch::Many(messages) = Message::parse_batch(bytes.clone()).unwrap() else { panic!("a batch") };
    let ids: Vec<_> = messages.iter().map(|m| raw(m.id())).collect();
    assert_eq!(ids, [Some("1".to_owned()), Some("\"b\"".to_owned())]);
    assert_eq!(messages[0].bytes(), &b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"}"[..]);
    assert_eq!(messages[1].result(), Some(&b"{\"x\":[]}"[..]));
    for message in &messages {
        assert!(bytes.as_ptr_range().contains(&message.bytes().as_ptr()));
        assert_eq!(Message::parse(message.bytes().clone()).unwrap().id(), message.id());
    }
    assert!(matches!(
        Message::parse_batch(Bytes::from_static(b" {\"jsonrpc\":\"2.0\",\"method\":\"a\"}")),
        Ok(Batch::One(_))
    ));
}

#[test]
fn bad_batches_are_refused_whole() {
    let refuse =
        |text: &'static str| Message::parse_batch(Bytes::from_static(text.as_bytes())).expect_err(text);
    assert_eq!(refuse("[ ]").fault, Fault::EmptyBatch);
    let error = refuse(r#"[{"jsonrpc":"2.0","method":"a"}, {"id":3,"method":"b"}]"#);
    assert_eq!((error.fault.clone(), error.at), (Fault::Missing("jsonrpc"), 33));
    assert_eq!(raw(error.request_id().cloned()).as_deref(), Some("3"));
    assert_eq!(refuse(r#"[[{"jsonrpc":"2.0","method":"a"}]]"#).fault, Fault::NotAnObject);
    assert_eq!(refuse("[1]").fault, Fault::NotAnObject);
    for text in ["[", "[{]", r#"[{"jsonrpc":"2.0","method":"a"},]"#, r#"[{"jsonrpc":"2.0","method":"a"}] 1"#]
    {
        assert_eq!(refuse(text).code(), code::PARSE_ERROR, "{text}");
    }
}
