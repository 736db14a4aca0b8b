//! What may be written on the daemon's socket and should not.

use std::io::ErrorKind;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, HttpClient, HttpReply, Script};
use serde_json::Value;

use super::Bystander;
use crate::support::{PATIENCE, with_upstream};

const GREETING: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"raw","version":"1"}}}"#
);
const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
const COUNTER: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"counter"}}"#;

fn dial(harness: &Harness) -> HttpClient {
    HttpClient::unix(&harness.socket()).unwrap()
}

/// A link made by hand.
#[track_caller]
fn greeted(harness: &Harness) -> String {
    let mut http = dial(harness);
    let reply = http.post_mcp("/mcp/up", &[("evermux-shim", "1")], GREETING).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let link = reply.header("mcp-session-id").unwrap().to_owned();
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(http.post_mcp("/mcp/up", &[("mcp-session-id", &link)], initialized).unwrap().status, 202);
    link
}

#[track_caller]
fn check_error(reply: &HttpReply, status: u16, says: &str) -> Value {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"), "{}", reply.text());
    let body: Value = serde_json::from_str(&reply.text()).unwrap();
    let message = body["error"]["message"].as_str().or(body["error"].as_str()).unwrap();
    assert!(message.contains(says), "`{says}` is not in: {message}");
    body
}

#[test]
fn malformed_requests_get_clear_errors() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let link = greeted(&harness);
    let session = ("mcp-session-id", link.as_str());
    let mut http = dial(&harness);
    let json = ("content-type", "application/json");

    let accept = ("accept", "application/json, text/event-stream");
    let text = ("content-type", "text/plain");
    let reply = http.exchange("POST", "/mcp/up", &[session, accept, text], LIST).unwrap();
    check_error(&reply, 415, "application/json");
    check_error(
        &http.exchange("POST", "/mcp/up", &[session, accept], LIST).unwrap(),
        415,
        "application/json",
    );
    check_error(&http.exchange("POST", "/mcp/up", &[session, json], LIST).unwrap(), 406, "Accept");
    check_error(&http.exchange("GET", "/mcp/up", &[session, json], "").unwrap(), 406, "text/event-stream");
    let spaced = ("mcp-session-id", "two words");
    check_error(&http.exchange("DELETE", "/mcp/up", &[spaced], "").unwrap(), 400, "Mcp-Session-Id");
    for (body, code, says) in [
        ("{", -32700, "not JSON"),
        ("", -32700, "not JSON"),
        ("[]", -32600, "object"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600, "`id`"),
        (r#"{"jsonrpc":"1.0","id":3,"method":"tools/list"}"#, -32600, "`jsonrpc`"),
    ] {
        let error = check_error(&http.post_mcp("/mcp/up", &[session], body).unwrap(), 400, says);
        assert_eq!(error["error"]["code"], code, "{body}");
    }
    for path in [
        "/",
        "/nope",
        "/mcp",
        "/control",
        "/mcp/up/more",
        "/mcp/UP",
        "/mcp/",
        "/mcp/..%2f..",
        "/control/nope",
    ] {
        let reply = http.exchange("POST", path, &[json, accept, session], LIST).unwrap();
        assert_eq!(reply.status, 404, "{path}: {}", reply.text());
    }
    let error = check_error(&http.post_mcp("/mcp/nobody", &[session], LIST).unwrap(), 404, "nobody");
    assert_eq!(
        (&error["error"]["data"]["evermux"]["kind"], &error["id"]),
        (&Value::from("misconfigured"), &Value::from(1))
    );
    for verb in ["PUT", "PATCH", "OPTIONS", "BREW"] {
        let reply = http.exchange(verb, "/mcp/up", &[session], "").unwrap();
        assert_eq!((reply.status, reply.header("allow")), (405, Some("GET, POST, DELETE")), "{verb}");
    }
    bystander.check(&harness, &upstream);
}

#[test]
fn link_ids_that_are_not_ours_are_refused() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.add_upstream("twin", &upstream.url(), "");
    let bystander = Bystander::arrive(&harness, &upstream);
    let link = greeted(&harness);
    let mut http = dial(&harness);
    check_error(&http.post_mcp("/mcp/up", &[], LIST).unwrap(), 400, "Mcp-Session-Id");
    let mut strange = vec![
        "made-up".to_owned(),
        "x".repeat(4000),
        format!("{link}A"),
        link[..link.len() - 1].to_owned(),
        upstream.minted_sessions()[0].clone(),
    ];
    for at in [0, link.len() / 2, link.len() - 2] {
        let mut bytes = link.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        strange.push(String::from_utf8(bytes).unwrap());
    }
    for id in &strange {
        let error = check_error(
            &http.post_mcp("/mcp/up", &[("mcp-session-id", id)], LIST).unwrap(),
            404,
            "initialize",
        );
        assert_eq!(error["error"]["data"]["evermux"]["kind"], "session_lost", "{id}");
        let reply = http
            .exchange("GET", "/mcp/up", &[("mcp-session-id", id), ("accept", "text/event-stream")], "")
            .unwrap();
        assert_eq!(reply.status, 404, "{id}: {}", reply.text());
        let reply = http.exchange("DELETE", "/mcp/up", &[("mcp-session-id", id)], "").unwrap();
        // What is gone, or never was, is ended: 202 says that it does not matter.
        assert!(reply.status < 500, "{id}: {}", reply.status);
    }
    // Of the same daemon, for another upstream.
    let reply = http.post_mcp("/mcp/twin", &[("mcp-session-id", &link)], LIST).unwrap();
    check_error(&reply, 404, "initialize");
    // After its end.
    let session = [("mcp-session-id", link.as_str())];
    assert!(http.post_mcp("/mcp/up", &session, COUNTER).unwrap().text().contains(r#""count":1"#));
    assert!(http.exchange("DELETE", "/mcp/up", &session, "").unwrap().status < 300);
    check_error(&http.post_mcp("/mcp/up", &session, LIST).unwrap(), 404, "initialize");
    assert_eq!(upstream.deletes(), 0);
    bystander.check(&harness, &upstream);
}

#[test]
fn headers_that_make_no_sense_are_named() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let link = greeted(&harness);
    let session = ("mcp-session-id", link.as_str());
    let mut http = dial(&harness);
    for value in ["abc", "-1", "1.5", "", "18446744073709551616", "1, 2", "0x1", "\u{664}"] {
        for header in ["evermux-seq", "evermux-ack"] {
            let reply = http.post_mcp("/mcp/up", &[session, (header, value)], COUNTER).unwrap();
            check_error(&reply, 400, if header == "evermux-seq" { "Evermux-Seq" } else { "Evermux-Ack" });
        }
    }
    check_error(
        &http.post_mcp("/mcp/up", &[("evermux-identity", "zz")], GREETING).unwrap(),
        400,
        "Evermux-Identity",
    );
    for value in ["1999-01-01", "latest", ""] {
        let reply = http.post_mcp("/mcp/up", &[session, ("mcp-protocol-version", value)], COUNTER).unwrap();
        check_error(&reply, 400, "MCP-Protocol-Version");
    }
    // A position that nobody gave out is none: the call runs, once.
    for (n, value) in ["garbage", "", "AAAA"].into_iter().enumerate() {
        let reply = http.post_mcp("/mcp/up", &[session, ("last-event-id", value)], COUNTER).unwrap();
        assert!(reply.text().contains(&format!(r#""count":{}"#, n + 1)), "{}", reply.text());
        let mut listening = dial(&harness);
        let head = listening.open_stream("/mcp/up", &[session, ("last-event-id", value)]).unwrap();
        assert!(head.status == 200 || (400..500).contains(&head.status), "{}", head.status);
    }
    bystander.check(&harness, &upstream);
}

#[test]
fn what_is_too_large_is_refused() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let link = greeted(&harness);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"x":"{}"}}}}"#,
        "x".repeat(64 << 20)
    );
    let mut http = dial(&harness);
    // The refusal may come before all of it was taken.
    let headers = [
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
        ("mcp-session-id", link.as_str()),
    ];
    drop(http.send("POST", "/mcp/up", &headers, &body));
    let mut reply = http.read_head().unwrap();
    http.read_body(&mut reply).unwrap();
    check_error(&reply, 413, "67108864");
    let mut http = dial(&harness);
    drop(http.send("GET", "/control/status", &[("x-long", &"y".repeat(2 << 20))], ""));
    match http.read_head() {
        Ok(reply) => assert!(matches!(reply.status, 400 | 431), "{}", reply.status),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{error}")
        }
    }
    let mut http = dial(&harness);
    drop(http.send("POST", "/control/purge", &[], &" ".repeat(2 << 20)));
    let mut reply = http.read_head().unwrap();
    http.read_body(&mut reply).unwrap();
    check_error(&reply, 413, "too large");
    bystander.check(&harness, &upstream);
}

/// Requests that break off at any byte do nothing; a hundred that never end keep nobody out.
#[test]
fn half_requests_do_nothing() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let link = greeted(&harness);
    let whole = format!(
        "POST /mcp/up HTTP/1.1\r\nhost: x\r\naccept: application/json, text/event-stream\r\ncontent-type: application/json\r\n\
         mcp-session-id: {link}\r\ncontent-length: {}\r\n\r\n{COUNTER}",
        COUNTER.len()
    );
    for end in (0..whole.len()).step_by(7) {
        dial(&harness).write_raw(&whole.as_bytes()[..end]).unwrap();
    }
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    ] {
        let mut http = dial(&harness);
        drop(http.write_raw(garbage));
        drop(http.read_head());
    }
    let mut idle = Vec::new();
    for _ in 0..100 {
        let mut http = dial(&harness);
        http.write_raw(&whole.as_bytes()[..100]).unwrap();
        idle.push(http);
    }
    let mut http = dial(&harness);
    http.write_raw(whole.as_bytes()).unwrap();
    let mut reply = http.read_head().unwrap();
    http.read_body(&mut reply).unwrap();
    assert!(reply.text().contains(r#""count":1"#), "{}", reply.text());
    bystander.check(&harness, &upstream);
}

/// A connection that breaks is no cancel, and the number brings the client back to its call.
#[test]
fn a_connection_dropped_in_the_middle_loses_nothing() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let link = greeted(&harness);
    let headers = [
        ("mcp-session-id", link.as_str()),
        ("evermux-shim", "1"),
        ("evermux-seq", "7"),
        ("evermux-ack", "7"),
    ];
    let call = r#"{"jsonrpc":"2.0","id":"late","method":"tools/call","params":{"name":"gate","arguments":{"name":"late"}}}"#;
    for _ in 0..5 {
        let mut http = dial(&harness);
        assert_eq!(http.open_mcp("/mcp/up", &headers, call).unwrap().status, 200);
        upstream.wait_at_gate("late", 1, PATIENCE);
    }
    let mut http = dial(&harness);
    let mut reply = http.open_mcp("/mcp/up", &headers, call).unwrap();
    upstream.open_gate("late");
    let events = http.all_events(&mut reply).unwrap();
    let last = &events.last().unwrap().data;
    assert!(last.contains(r#""id":"late""#) && last.contains(r#""passed":true"#), "{events:?}");
    assert_eq!(upstream.count(|entry| entry.calls("gate") && entry.body.contains("late")), 1);
    assert_eq!(upstream.count(|entry| entry.is("notifications/cancelled")), 0);
    let idle = poll_until(PATIENCE, || (harness.status()["sessions"][0]["in_flight"] == 1).then_some(()));
    assert!(idle.is_some(), "{:#}", harness.status());
    bystander.check(&harness, &upstream);
}

#[test]
fn control_requests_are_checked() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let mut http = dial(&harness);
    for (path, body, says) in [
        ("/control/purge", "nonsense", "JSON"),
        ("/control/purge", "{}", "`upstream`"),
        ("/control/purge", r#"{"upstream":5}"#, "`upstream`"),
        ("/control/env/up", "nonsense", "vars"),
        ("/control/env/up", r#"{"vars":{"A":5}}"#, "vars"),
    ] {
        check_error(&http.exchange("POST", path, &[], body).unwrap(), 400, says);
    }
    for (verb, path) in [
        ("GET", "/control/stop"),
        ("GET", "/control/purge"),
        ("DELETE", "/control/status"),
        ("POST", "/control/"),
        ("GET", "/control/env/up"),
    ] {
        check_error(&http.exchange(verb, path, &[], "").unwrap(), 404, "control");
    }
    let reply = http.exchange("POST", "/control/env/nobody", &[], r#"{"vars":{}}"#).unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (200, r#"{"identity":null}"#));
    assert_eq!(upstream.deletes(), 0);
    bystander.check(&harness, &upstream);
}
