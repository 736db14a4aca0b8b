//! What an upstream may answer and should not.

use std::time::Duration;

use evermux_testkit::{Fault, Harness, Matching, Replies, Script};

use super::raw_upstream::RawUpstream;
use crate::support::{PATIENCE, binary, with_upstream};

fn reply(content: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {content}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

const SSE: &str = "text/event-stream";
const JSON: &str = "application/json";

/// Answers that hold none for the call.
fn worthless() -> Vec<(&'static str, Vec<u8>)> {
    let huge = format!("HTTP/1.1 200 OK\r\nx-huge: {}\r\ncontent-length: 0\r\n\r\n", "h".repeat(2 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", "x-many: 1\r\n".repeat(5000));
    vec![
        ("not_json", reply(JSON, b"oops, not JSON")),
        ("half_json", reply(JSON, br#"{"jsonrpc":"2.0","id":ID,"result":{"#)),
        // Of another request, the handshake's.
        ("other_id", reply(JSON, br#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#)),
        ("both", reply(JSON, br#"{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":"m"}}"#)),
        ("neither", reply(JSON, br#"{"jsonrpc":"2.0","id":ID}"#)),
        ("no_version", reply(JSON, br#"{"id":ID,"result":{}}"#)),
        ("bad_utf8_json", reply(JSON, b"{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"x\":\"\xff\xfe\"}}")),
        ("empty_json", reply(JSON, b"")),
        ("html", reply("text/html", b"<html><h1>It works</h1></html>")),
        ("no_type", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}".to_vec()),
        ("huge_header", huge.into_bytes()),
        ("many_headers", many.into_bytes()),
        ("no_http", b"220 smtp.example.com ESMTP\r\n".to_vec()),
        ("bad_status", b"HTTP/1.1 banana\r\n\r\n".to_vec()),
        ("nothing", Vec::new()),
        (
            "short_body",
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"jsonrpc\""
                .to_vec(),
        ),
        (
            "bad_chunk",
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
                .to_vec(),
        ),
        ("truncated_event", reply(SSE, br#"data: {"jsonrpc":"2.0","id":ID,"result":{"content""#)),
        ("unfinished_event", reply(SSE, b"data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\n")),
        (
            "bad_utf8_event",
            reply(SSE, b"data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"x\":\"\xff\xfe\"}}\n\n"),
        ),
        ("event_not_json", reply(SSE, b"data: hello\n\n")),
        (
            "heartbeats_only",
            reply(SSE, b"data: {\"type\":\"heartbeat\"}\n\n: x\n\nevent: ping\ndata: {}\n\n"),
        ),
        (
            "other_event",
            reply(
                SSE,
                b"event: result\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}\n\n",
            ),
        ),
        ("blank_json", reply(JSON, b" \r\n")),
        ("null_json", reply(JSON, b"null\n")),
        ("no_events", reply(SSE, b": only comments\n\n")),
        ("status_204", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        ("status_202", b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()),
    ]
}

/// Odd answers that are answers.
fn odd() -> Vec<(&'static str, Vec<u8>)> {
    let good = br#"{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}"#;
    let event = |before: &str| {
        let text = format!("{before}data: {}\n\n", String::from_utf8_lossy(good));
        reply(SSE, text.as_bytes())
    };
    vec![
        ("batch", reply(JSON, &[b"[", good.as_slice(), b"]"].concat())),
        ("batch_event", reply(SSE, &[b"data: [", good.as_slice(), b"]\n\n"].concat())),
        (
            "batch_with_news",
            event("data: [{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\"}}]\n\n"),
        ),
        ("charset", reply("Application/JSON; charset=utf-8", good)),
        ("spaced", reply(JSON, &[b"\r\n  ", good.as_slice(), b"\n\n"].concat())),
        ("bom", event("\u{feff}")),
        ("comments", event(&": nothing\n\n".repeat(10_000))),
        ("priming", event("id: 1\ndata:\n\n")),
        ("odd_fields", event("event: message\nretry: soon\nid: a\0b\nfoo: bar\n")),
        ("crlf", reply(SSE, b"data: {\"jsonrpc\":\"2.0\",\r\ndata: \"id\":ID,\r\ndata: \"result\":{\"content\":[]}}\r\n\r\n")),
        ("made_up_id", reply(JSON, br#"{"jsonrpc":"2.0","id":"made-up","result":{"content":[]}}"#)),
        ("unknown_id", reply(JSON, br#"{"jsonrpc":"2.0","id":424242,"result":{"content":[]}}"#)),
        ("string_id", reply(SSE, b"data: {\"jsonrpc\":\"2.0\",\"id\":\"ID\",\"result\":{\"content\":[]}}\n\n")),
        ("heartbeat", event("data: {\"type\":\"heartbeat\"}\n\ndata: {\"ping\":1}\n\n")),
        ("keepalive_text", event("data: keepalive\n\ndata: [DONE]\n\ndata: [1,2]\n\ndata: 7\n\n")),
        (
            "ping_event",
            event("event: ping\ndata:\n\nevent: ping\ndata: {\"time\":1}\n\nevent: keepalive\ndata: x\n\n"),
        ),
        (
            "endpoint_event",
            event("event: endpoint\ndata: /messages?id=1\n\nevent: error\ndata: {\"jsonrpc\":\"x\"}\n\n"),
        ),
        (
            "early_frames",
            event(concat!(
                "id: e0\ndata: \n\n",
                "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\"}}\n\n",
                "data: {\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\"}\n\n",
            )),
        ),
        (
            "cr_only",
            reply(SSE, b": hi\r\rid: e1\rdata: {\"jsonrpc\":\"2.0\",\"id\":ID,\rdata:\"result\":{\"content\":[]}}\r\r"),
        ),
        ("fraction_id", reply(SSE, b"data: {\"jsonrpc\":\"2.0\",\"id\":ID.0,\"result\":{\"content\":[]}}\n\n")),
        ("twice", event(&format!("data: {}\n\n", String::from_utf8_lossy(good)))),
    ]
}

#[test]
fn garbage_of_an_upstream_becomes_a_clear_error_of_its_call() {
    let (worthless, odd) = (worthless(), odd());
    let all = worthless.iter().chain(&odd).map(|(tool, reply)| ((*tool).to_owned(), reply.clone())).collect();
    let upstream = RawUpstream::start(all);
    let harness = Harness::new(binary());
    harness.add_upstream("up", &upstream.url(), "");
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    let pid = harness.daemon_pid();
    // All at once: each is waited out on its own, and none may reach into another.
    let bad: Vec<_> = worthless.iter().map(|(tool, _)| (*tool, client.start_call(tool, "{}"))).collect();
    let good: Vec<_> = odd.iter().map(|(tool, _)| (*tool, client.start_call(tool, "{}"))).collect();
    for (tool, pending) in &good {
        let answer = client.wait(pending, PATIENCE);
        assert_eq!(answer.result(), r#"{"content":[]}"#, "{tool}: {}", answer.raw);
    }
    for (tool, pending) in &bad {
        let answer = client.wait(pending, PATIENCE);
        // It was written, so nobody knows.
        assert_eq!(answer.evermux_kind().as_deref(), Some("outcome_unknown"), "{tool}: {}", answer.raw);
        let error = answer.error().unwrap();
        assert_eq!(error["data"]["evermux"]["outcome"], "unknown", "{tool}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.len() > 30 && message.len() < 600, "{tool}: {message}");
    }
    assert_eq!(client.call("fine", "{}").result(), r#"{"content":[]}"#);
    // No call was sent again, and no session was given up for it.
    assert_eq!((upstream.calls(), upstream.initializes()), (bad.len() + good.len(), 1));
    assert_eq!(harness.daemon_pid(), pid);
}

/// What is wrong is named, so that the author of the server can find it.
#[test]
fn the_error_says_what_was_wrong_with_the_answer() {
    let cases = [
        ("not_json", "JSON"),
        ("html", "text/html"),
        ("event_not_json", "no JSON-RPC message"),
        ("truncated_event", "ended"),
        ("huge_header", "HTTP"),
    ];
    let replies = worthless().into_iter().map(|(tool, reply)| (tool.to_owned(), reply)).collect();
    let upstream = RawUpstream::start(replies);
    let harness = Harness::new(binary());
    harness.add_upstream("up", &upstream.url(), "");
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    let mut silent = Vec::new();
    for (tool, says) in cases {
        let error = client.call(tool, "{}").error().unwrap();
        let message = error["message"].as_str().unwrap().to_owned();
        if !message.contains(says) {
            silent.push(format!("{tool} does not say `{says}`: {message}"));
        }
    }
    assert_eq!(silent, [] as [String; 0]);
}

fn check_too_large(replies: Replies) {
    let (harness, upstream) = with_upstream(Script::replying(replies));
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    let pid = harness.daemon_pid();
    let call = client.start_call("big", &format!(r#"{{"bytes":{}}}"#, 64 << 20));
    let answer = client.wait(&call, 2 * PATIENCE);
    let error = answer.error().unwrap();
    assert_eq!(answer.evermux_kind().as_deref(), Some("outcome_unknown"), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("bytes") || message.contains("MiB"), "the limit is not named: {message}");
    assert_eq!(client.call("counter", "{}").structured()["count"], 1);
    assert_eq!(upstream.count(|entry| entry.calls("big")), 1);
    assert_eq!((harness.daemon_pid(), upstream.initializes()), (pid, 1));
}

#[test]
fn an_event_of_64_mebibytes_is_refused_with_a_clear_error() {
    check_too_large(Replies::Sse);
}

#[test]
fn an_answer_of_64_mebibytes_is_refused_with_a_clear_error() {
    check_too_large(Replies::Json);
}

/// Garbage in the place of an InitializeResult: the client is told within the time it waits.
#[test]
fn garbage_for_a_greeting_is_told_to_the_client() {
    let (harness, upstream) = with_upstream(Script::default());
    let typed = |content: &str, body: &str| Fault::Status {
        status: 200,
        headers: vec![("content-type".into(), content.into())],
        body: body.into(),
    };
    for fault in [
        typed("text/html", "<html></html>"),
        typed(JSON, "garbage"),
        typed(JSON, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
        typed(SSE, "data: x\n\n"),
        Fault::status(500, "broken"),
    ] {
        upstream.fail_while_matching(Matching::method("initialize"), fault.clone());
        let mut client = harness.connect("up");
        let pending = client.request(
            "initialize",
            r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#,
        );
        let answer = client.wait(&pending, Duration::from_secs(15));
        assert!(answer.evermux_kind().is_some(), "{fault:?}: {}", answer.raw);
        upstream.clear_faults();
    }
    let mut client = harness.connect("up");
    let greeted = evermux_testkit::wait::poll_until(PATIENCE, || {
        let pending = client.request(
            "initialize",
            r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#,
        );
        client.wait(&pending, PATIENCE).error().is_none().then_some(())
    });
    assert!(greeted.is_some(), "{}", harness.logs());
    upstream.assert_no_violations();
}

#[test]
fn garbage_on_the_standalone_stream_costs_no_call() {
    let (harness, upstream) = with_upstream(Script::default());
    for fault in [
        Fault::Status {
            status: 200,
            headers: vec![("content-type".into(), SSE.into())],
            body: "data: x\n\ndata".into(),
        },
        Fault::status(200, "text for a stream"),
        Fault::status(500, "broken"),
    ] {
        upstream.fail_next_matching(Matching::verb("GET"), 1, fault);
    }
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    assert_eq!(client.call("counter", "{}").structured()["count"], 1);
    upstream.wait_sessions(2 * PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    // What is no message for us is no reason to leave either.
    for message in [
        r#"{"jsonrpc":"2.0","id":9999,"result":{}}"#,
        r#"{"jsonrpc":"2.0","method":"unknown/thing","params":{"x":1e400}}"#,
    ] {
        upstream.notify(message);
    }
    let passed = client.wait_notification(PATIENCE, |message| message.method() == "unknown/thing");
    assert_eq!(passed.params(), r#"{"x":1e400}"#);
    assert_eq!(client.call("counter", "{}").structured()["count"], 2);
    assert_eq!(upstream.initializes(), 1);
}
