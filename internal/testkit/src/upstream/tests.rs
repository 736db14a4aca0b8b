//! The upstream against a raw HTTP client: a fixture that lies would make every test above it worthless.

use std::io::ErrorKind;

mod asks;
mod engine;
mod era;
mod kinds;
mod lists;
mod options;
mod witness;

use super::*;
use crate::http_client::{HttpClient, HttpReply};

const LONG: Duration = PATIENCE;
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}"#;
const VERSION: (&str, &str) = ("mcp-protocol-version", "2025-11-25");

fn connect(upstream: &Upstream) -> HttpClient {
    HttpClient::tcp(upstream.address()).unwrap()
}

/// Handshake on its own connection; gives the session id.
fn open_session(upstream: &Upstream) -> String {
    open_session_with(upstream, INITIALIZE, &[])
}

/// A handshake whose client declares these capabilities.
fn open_capable_session(upstream: &Upstream, capabilities: &str) -> String {
    let body = INITIALIZE.replace(r#""capabilities":{}"#, &format!(r#""capabilities":{capabilities}"#));
    open_session_with(upstream, &body, &[])
}

fn open_session_with(upstream: &Upstream, initialize: &str, headers: &[(&str, &str)]) -> String {
    let mut http = connect(upstream);
    let reply = http.post_mcp("/mcp", headers, initialize).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    let body = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let headers = [headers, &[("mcp-session-id", &session), VERSION]].concat();
    let reply = http.post_mcp("/mcp", &headers, body).unwrap();
    assert_eq!(reply.status, 202);
    session
}

/// Posts any message on a session.
fn post(upstream: &Upstream, session: &str, body: &str) -> HttpReply {
    connect(upstream).post_mcp("/mcp", &[("mcp-session-id", session), VERSION], body).unwrap()
}

/// A GET stream behind its priming event.
fn open_get(upstream: &Upstream, session: &str) -> (HttpClient, HttpReply) {
    let mut http = connect(upstream);
    let mut stream = http.open_stream("/mcp", &[("mcp-session-id", session), VERSION]).unwrap();
    assert_eq!(stream.status, 200);
    http.next_event(&mut stream).unwrap();
    (http, stream)
}

/// A call's stream behind its priming event.
fn open_call(upstream: &Upstream, session: &str, body: &str) -> (HttpClient, HttpReply) {
    let mut http = connect(upstream);
    let mut stream = http.open_mcp("/mcp", &[("mcp-session-id", session), VERSION], body).unwrap();
    http.next_event(&mut stream).unwrap();
    (http, stream)
}

fn next_data((http, stream): &mut (HttpClient, HttpReply)) -> String {
    http.next_event(stream).unwrap().unwrap().data
}

fn call_body(id: u32, tool: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},"_meta":{{"progressToken":"p{id}"}}}}}}"#
    )
}

fn call(
    upstream: &Upstream,
    session: &str,
    id: u32,
    tool: &str,
    arguments: &str,
) -> std::io::Result<HttpReply> {
    connect(upstream).post_mcp(
        "/mcp",
        &[("mcp-session-id", session), VERSION],
        &call_body(id, tool, arguments),
    )
}

#[test]
fn a_session_holds_its_counter_in_every_kind_of_reply() {
    for replies in [Replies::Json, Replies::Sse, Replies::SseWithIds] {
        let upstream = Upstream::start(Script::replying(replies));
        let session = open_session(&upstream);
        call(&upstream, &session, 1, "counter", "{}").unwrap();
        let second = call(&upstream, &session, 2, "counter", "{}").unwrap();
        assert!(second.text().contains(r#"{"count":2}"#), "{replies:?}: {}", second.text());
        let other = open_session(&upstream);
        let first = call(&upstream, &other, 1, "counter", "{}").unwrap();
        assert!(first.text().contains(r#"{"count":1}"#), "{}", first.text());
        upstream.assert_no_violations();
    }
}

#[test]
fn echo_keeps_every_byte() {
    let upstream = Upstream::start(Script::replying(Replies::Json));
    let session = open_session(&upstream);
    let raw = r#"{"z":1e400,"a": 12345678901234567890123, "dup":1,"dup":2,"u":"é😀"}"#;
    let reply = call(&upstream, &session, 1, "echo", raw).unwrap();
    assert!(reply.text().contains(raw), "{}", reply.text());
}

#[test]
fn a_lost_session_is_refused_in_the_chosen_way() {
    for lost in LostAs::ALL {
        let upstream = Upstream::start(Script { lost, ..Script::default() });
        let session = open_session(&upstream);
        upstream.forget_sessions();
        let reply = call(&upstream, &session, 1, "side_effect", r#"{"key":"k"}"#).unwrap();
        let name = lost.name();
        assert!(name.starts_with(&reply.status.to_string()), "{name}: {}", reply.status);
        assert_eq!(reply.header("retry-after").is_some(), lost == LostAs::UnavailableRetryAfter);
        assert_eq!(reply.header("www-authenticate").is_some(), lost == LostAs::UnauthorizedChallenge);
        assert_eq!(upstream.side_effects("k"), 0);
    }
}

#[test]
fn a_call_that_ends_while_nobody_listens_is_replayed_from_its_cursor() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let headers = [("mcp-session-id", session.as_str()), VERSION];
    let mut http = connect(&upstream);
    let body = call_body(1, "slow", r#"{"steps":2,"gate":"g"}"#);
    let mut reply = http.open_mcp("/mcp", &headers, &body).unwrap();
    let priming = http.next_event(&mut reply).unwrap().unwrap();
    assert_eq!(priming.data, "");
    let progress = http.next_event(&mut reply).unwrap().unwrap();
    assert!(progress.data.contains(r#""progressToken":"p1","progress":1"#), "{}", progress.data);
    drop(http);
    upstream.open_gate("g");
    upstream.wait_sessions(LONG, |sessions| sessions[0].running == 0);

    let mut http = connect(&upstream);
    let cursor = progress.id.clone().unwrap();
    let mut reply = http.open_stream("/mcp", &[headers[0], headers[1], ("last-event-id", &cursor)]).unwrap();
    let events = http.all_events(&mut reply).unwrap();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].data.contains(r#""progress":2"#));
    assert!(events[1].data.contains(r#""id":1,"result""#));
    assert!(events.iter().all(|event| event.id > progress.id));
}

#[test]
fn the_get_stream_is_one_and_carries_what_is_sent_meanwhile() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let headers = [("mcp-session-id", session.as_str()), VERSION];
    let mut http = connect(&upstream);
    let mut stream = http.open_stream("/mcp", &headers).unwrap();
    let priming = http.next_event(&mut stream).unwrap().unwrap();
    assert_eq!(connect(&upstream).open_stream("/mcp", &headers).unwrap().status, 409);

    call(&upstream, &session, 1, "list_change", "{}").unwrap();
    let event = http.next_event(&mut stream).unwrap().unwrap();
    assert_eq!(event.data, tools::TOOLS_CHANGED);
    drop(http);
    upstream.wait_sessions(LONG, |sessions| !sessions[0].get_open);
    upstream.notify(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);

    let mut http = connect(&upstream);
    let cursor = [headers[0], headers[1], ("last-event-id", priming.id.as_deref().unwrap())];
    let mut stream = http.open_stream("/mcp", &cursor).unwrap();
    assert_eq!(http.next_event(&mut stream).unwrap().unwrap(), event);
    assert!(http.next_event(&mut stream).unwrap().unwrap().data.contains("notifications/x"));
}

#[test]
fn get_and_delete_can_be_unsupported() {
    let script = Script {
        get_stream: GetSupport::MethodNotAllowed,
        delete: DeleteSupport::MethodNotAllowed,
        ..Script::default()
    };
    let upstream = Upstream::start(script);
    let session = open_session(&upstream);
    let headers = [("mcp-session-id", session.as_str()), VERSION];
    assert_eq!(connect(&upstream).open_stream("/mcp", &headers).unwrap().status, 405);
    assert_eq!(connect(&upstream).exchange("DELETE", "/mcp", &headers, "").unwrap().status, 405);
    upstream.change(|script| script.delete = DeleteSupport::NoContent);
    assert_eq!(connect(&upstream).exchange("DELETE", "/mcp", &headers, "").unwrap().status, 204);
    assert_eq!(call(&upstream, &session, 1, "counter", "{}").unwrap().status, 404);
    assert_eq!(upstream.deletes(), 2);
}

#[test]
fn a_close_before_the_head_says_in_the_journal_what_the_client_cannot_see() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    for (processed, key) in [(false, "kept"), (true, "ran")] {
        upstream.fail_next(1, Fault::CloseBeforeHead { processed });
        let failure = call(
            &upstream,
            &session,
            1 + u32::from(processed),
            "side_effect",
            &format!(r#"{{"key":"{key}"}}"#),
        );
        let kind = failure.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{kind:?}");
    }
    upstream.wait_sessions(LONG, |sessions| sessions[0].running == 0);
    assert_eq!((upstream.side_effects("kept"), upstream.side_effects("ran")), (0, 1));
    let journal = upstream.journal();
    let entry = journal.iter().find(|entry| entry.side_effect_key.as_deref() == Some("ran")).unwrap();
    assert_eq!(entry.reply_status, None);
}

#[test]
fn a_reset_after_the_head_is_a_reset() {
    for replies in [Replies::Json, Replies::SseWithIds] {
        let upstream = Upstream::start(Script::replying(replies));
        let session = open_session(&upstream);
        upstream.fail_next(1, Fault::ResetAfterHead);
        let mut http = connect(&upstream);
        let body = call_body(1, "counter", "{}");
        let mut reply = http.open_mcp("/mcp", &[("mcp-session-id", &session), VERSION], &body).unwrap();
        assert_eq!(reply.status, 200);
        assert_eq!(http.read_body(&mut reply).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_stream_can_be_cut_or_ended_after_some_messages() {
    for (fault, orderly) in [(Fault::CutAfterEvents(2), false), (Fault::EndAfterEvents(2), true)] {
        let upstream = Upstream::start(Script::default());
        let session = open_session(&upstream);
        upstream.fail_next_matching(Matching::tool("slow"), 1, fault);
        let mut http = connect(&upstream);
        let headers = [("mcp-session-id", session.as_str()), VERSION];
        let mut reply = http.open_mcp("/mcp", &headers, &call_body(1, "slow", r#"{"steps":3}"#)).unwrap();
        let mut last = None;
        let end = loop {
            match http.next_event(&mut reply) {
                Ok(Some(event)) => last = event.id,
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        assert_eq!((last.as_deref(), end), (Some("2-2"), orderly));
        let mut http = connect(&upstream);
        let mut rest = http.open_stream("/mcp", &[headers[0], headers[1], ("last-event-id", "2-2")]).unwrap();
        assert_eq!(http.all_events(&mut rest).unwrap().len(), 2);
    }
}

#[test]
fn a_json_answer_can_be_cut_in_its_middle() {
    let upstream = Upstream::start(Script::replying(Replies::Json));
    let session = open_session(&upstream);
    upstream.fail_next(1, Fault::CutAfterEvents(0));
    let failure = call(&upstream, &session, 1, "counter", "{}").unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_hung_request_goes_on_when_faults_are_cleared() {
    for processed in [false, true] {
        let upstream = Upstream::start(Script::replying(Replies::Json));
        let session = open_session(&upstream);
        upstream.fail_while_matching(Matching::method("tools/call"), Fault::HangBeforeHead { processed });
        let mut http = connect(&upstream);
        let headers = [
            ("accept", "application/json, text/event-stream"),
            ("mcp-session-id", session.as_str()),
            VERSION,
        ];
        http.send("POST", "/mcp", &headers, &call_body(1, "side_effect", r#"{"key":"k"}"#)).unwrap();
        upstream.wait_for(LONG, |journal| journal.iter().any(|entry| entry.calls("side_effect")));
        http.patience = Duration::from_millis(50);
        assert_eq!(http.read_head().unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(upstream.side_effects("k"), u64::from(processed));
        upstream.clear_faults();
        http.patience = LONG;
        assert_eq!(http.read_head().unwrap().status, 200);
        assert_eq!(upstream.side_effects("k"), 1);
    }
}

#[test]
fn status_faults_are_used_up() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    upstream.fail_next(1, Fault::TooManyRequests { retry_after: 7 });
    upstream.fail_next(1, Fault::status(502, "bad gateway"));
    let first = call(&upstream, &session, 1, "counter", "{}").unwrap();
    assert_eq!((first.status, first.header("retry-after")), (429, Some("7")));
    assert_eq!(call(&upstream, &session, 2, "counter", "{}").unwrap().status, 502);
    assert!(call(&upstream, &session, 3, "counter", "{}").unwrap().text().contains(r#"{"count":1}"#));
}

#[test]
fn a_gate_holds_a_call_and_a_cancel_frees_it() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let headers = [("mcp-session-id", session.as_str()), VERSION];
    let mut http = connect(&upstream);
    let mut reply = http.open_mcp("/mcp", &headers, &call_body(1, "gate", r#"{"name":"g"}"#)).unwrap();
    upstream.wait_at_gate("g", 1, LONG);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(connect(&upstream).post_mcp("/mcp", &headers, cancel).unwrap().status, 202);
    upstream.wait_at_gate("g", 0, LONG);
    let events = http.all_events(&mut reply).unwrap();
    assert!(events.iter().all(|event| event.data.is_empty()), "{events:?}");
    upstream.open_gate("g");
    assert!(call(&upstream, &session, 2, "gate", r#"{"name":"g"}"#).unwrap().text().contains("passed"));
}

#[test]
fn refused_and_restarted_on_the_same_port() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    upstream.refuse_connections();
    assert_eq!(HttpClient::tcp(upstream.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    upstream.accept_connections();
    assert_eq!(call(&upstream, &session, 1, "counter", "{}").unwrap().status, 200);
    upstream.stop();
    assert_eq!(HttpClient::tcp(upstream.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    upstream.restart();
    assert!(call(&upstream, &session, 2, "counter", "{}").unwrap().text().contains(r#"{"count":2}"#));
    upstream.restart_without_state();
    assert_eq!(call(&upstream, &session, 3, "counter", "{}").unwrap().status, 404);
    assert_eq!(upstream.journal().len(), 5);
}

#[test]
fn broken_rules_are_in_the_journal() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    call(&upstream, &session, 5, "counter", "{}").unwrap();
    call(&upstream, &session, 5, "counter", "{}").unwrap();
    let ping = r#"{"jsonrpc":"2.0","id":6,"method":"ping"}"#;
    connect(&upstream).post_mcp("/mcp", &[("mcp-session-id", &session)], ping).unwrap();
    assert_eq!(connect(&upstream).post_mcp("/mcp", &[VERSION], ping).unwrap().status, 400);
    let refused =
        connect(&upstream).post_mcp("/mcp", &[("mcp-session-id", &session), VERSION], INITIALIZE).unwrap();
    assert_eq!(refused.status, 400);
    let violations: Vec<_> = upstream.journal().into_iter().flat_map(|entry| entry.violations).collect();
    let expected = [
        Violation::RepeatedId,
        Violation::ProtocolVersionHeader,
        Violation::NoSession,
        Violation::InitializeWithSession,
    ];
    assert_eq!(violations, expected);
    assert_eq!(upstream.ids_of_session(&session), ["5", "5", "6", "0"]);
    assert_eq!(upstream.minted_sessions(), [session]);
}

#[test]
fn a_request_before_initialized_was_answered_is_a_violation() {
    let upstream = Upstream::start(Script::default());
    upstream.stall("notifications/initialized");
    let mut http = connect(&upstream);
    let reply = http.post_mcp("/mcp", &[], INITIALIZE).unwrap();
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    let headers =
        [("accept", "application/json, text/event-stream"), ("mcp-session-id", session.as_str()), VERSION];
    http.send("POST", "/mcp", &headers, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).unwrap();
    upstream.wait_for(LONG, |journal| journal.iter().any(|entry| entry.is("notifications/initialized")));
    call(&upstream, &session, 1, "counter", "{}").unwrap();
    assert_eq!(upstream.journal().last().unwrap().violations, [Violation::BeforeInitialized]);
    upstream.release("notifications/initialized");
    assert_eq!(http.read_head().unwrap().status, 202);
}

#[test]
fn the_bearer_token_is_required_and_never_kept() {
    let upstream = Upstream::start(Script { bearer: Some("s3cret".to_owned()), ..Script::default() });
    assert_eq!(connect(&upstream).post_mcp("/mcp", &[], INITIALIZE).unwrap().status, 401);
    let good = [("authorization", "Bearer s3cret")];
    assert_eq!(connect(&upstream).post_mcp("/mcp", &good, INITIALIZE).unwrap().status, 200);
    let journal = upstream.journal();
    assert_eq!(journal[0].auth, None);
    assert!(!format!("{:?}", journal[1]).contains("s3cret"));
}

#[test]
fn subscriptions_get_their_updates() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let headers = [("mcp-session-id", session.as_str()), VERSION];
    let subscribe =
        r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://counter"}}"#;
    connect(&upstream).post_mcp("/mcp", &headers, subscribe).unwrap();
    assert_eq!(upstream.sessions()[0].subscriptions, ["test://counter"]);
    let mut http = connect(&upstream);
    let mut stream = http.open_stream("/mcp", &headers).unwrap();
    http.next_event(&mut stream).unwrap();
    upstream.touch_resource("test://other");
    upstream.touch_resource("test://counter");
    assert!(http.next_event(&mut stream).unwrap().unwrap().data.contains("test://counter"));
}

#[test]
fn the_journal_file_says_the_same_as_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.jsonl");
    let upstream = Upstream::start(Script { journal_file: Some(path.clone()), ..Script::default() });
    let session = open_session(&upstream);
    call(&upstream, &session, 1, "side_effect", r#"{"key":"k"}"#).unwrap();
    upstream.fail_next(1, Fault::CloseBeforeHead { processed: false });
    call(&upstream, &session, 2, "counter", "{}").unwrap_err();
    let in_memory: Vec<_> = upstream
        .journal()
        .into_iter()
        .map(|entry| Entry { headers: Vec::new(), body: String::new(), ..entry })
        .collect();
    assert_eq!(read_file(&path).unwrap(), in_memory);
}
