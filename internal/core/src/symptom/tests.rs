//! Every row, as it was seen in the field.

use bytes::Bytes;

use super::*;

const SESSION: Context = Context { asked: Asked::Call, carried_session: true, worked: true, wire: Some(5) };
const NEW: Context = Context { worked: false, ..SESSION };
/// A server that makes no session ids.
const STATELESS: Context = Context { carried_session: false, ..SESSION };
const PROBE: Context = Context { asked: Asked::Probe, ..SESSION };
const HANDSHAKE: Context =
    Context { asked: Asked::Initialize, carried_session: false, worked: false, wire: Some(5) };
/// The handshake that replaces a session which had worked.
const AGAIN: Context = Context { worked: true, ..HANDSHAKE };

fn said(status: u16, body: &str) -> Refusal {
    let json = body.starts_with('{');
    Refusal { status, body: Bytes::copy_from_slice(body.as_bytes()), json, ..Refusal::default() }
}

fn error(code: i64, words: &str, id: &str) -> String {
    let words = serde_json::Value::from(words);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{words}}}}}"#)
}

const NO_SESSION: &str = "Bad Request: No valid session ID provided";

#[track_caller]
fn check(rows: &[(Context, u16, &str, Meaning)]) {
    for (context, status, body, meaning) in rows {
        assert_eq!(refusal(*context, &said(*status, body)), *meaning, "{status} {body} {context:?}");
    }
}

#[test]
fn a_404_is_a_lost_session_whatever_the_body() {
    use Meaning::{Answer, Gone, Unusable};
    check(&[
        (SESSION, 404, "", Gone("404")),
        (SESSION, 404, "Session not found", Gone("404")),
        (SESSION, 404, "<html>", Gone("404")),
        (SESSION, 404, &error(-32001, "Session not found", "null"), Gone("404")),
        (SESSION, 404, &error(-32600, "Session not found", "\"server-error\""), Gone("404")),
        (SESSION, 404, r#"{"jsonrpc":"2.0","id":5}"#, Gone("404")),
        (NEW, 404, "", Gone("404")),
        (PROBE, 404, "", Gone("404")),
        // An unknown method under our own id; another's id says nothing.
        (SESSION, 404, &error(-32601, "method not found", "5"), Answer),
        (SESSION, 404, &error(-32601, "method not found", "6"), Gone("404")),
        // Another answer of such a server, or not: a ping tells.
        (SESSION, 404, &error(-32002, "Resource not found", "5"), Meaning::Doubtful("404")),
        (SESSION, 404, &error(-32602, "no such tool", "5"), Meaning::Doubtful("404")),
        (SESSION, 404, &error(-32001, "Session not found", "5"), Gone("404")),
        (SESSION, 404, &error(-32002, "Resource not found", "6"), Gone("404")),
        (PROBE, 404, &error(-32001, "no", "5"), Gone("404")),
        (STATELESS, 404, &error(-32002, "Resource not found", "5"), Answer),
        (STATELESS, 404, "", Unusable),
        (SESSION, 404, &error(-32601, "method not found", "null"), Gone("404")),
        // A wrong URL.
        (HANDSHAKE, 404, "", Unusable),
        (AGAIN, 404, "", Unusable),
    ]);
}

#[test]
fn a_400_is_a_lost_session_only_in_words_and_only_if_it_worked() {
    use Meaning::{Answer, Gone, Unusable};
    check(&[
        (SESSION, 400, &error(-32000, NO_SESSION, "null"), Gone("400")),
        (SESSION, 400, &error(-32000, "Bad Request: Server not initialized", "null"), Gone("400")),
        (SESSION, 400, &error(-32600, "Invalid session", "5"), Gone("400")),
        (SESSION, 400, "No valid session ID provided", Gone("400")),
        (SESSION, 400, "Invalid or missing session ID", Gone("400")),
        (SESSION, 400, &error(-32001, "No session found for sessionId", "5"), Gone("400")),
        (SESSION, 400, &error(-32000, "Session 0d5c-11 not found", "null"), Gone("400")),
        (SESSION, 400, &error(-32000, "Session with ID abc4 has been terminated", "null"), Gone("400")),
        (SESSION, 400, &error(-32000, "Session is no longer valid", "null"), Gone("400")),
        (SESSION, 400, &error(-32000, "session store: table not found", "null"), Answer),
        // A tool's own sessions.
        (SESSION, 400, &error(-32602, "Unknown session: of the browser", "5"), Answer),
        (SESSION, 400, &error(-32602, "Unknown session", "null"), Gone("400")),
        (NEW, 400, &error(-32000, NO_SESSION, "null"), Answer),
        (AGAIN, 400, &error(-32000, NO_SESSION, "null"), Answer),
        // We sent one, so it is not ours that is missing.
        (SESSION, 400, &error(-32000, "Bad Request: Mcp-Session-Id header is required", "null"), Answer),
        (SESSION, 400, &error(-32602, "bad arguments", "5"), Answer),
        (SESSION, 400, "what?", Unusable),
    ]);
}

#[test]
fn a_revision_that_is_not_taken_ends_a_session_and_refuses_a_handshake() {
    use Meaning::{Answer, Gone, Mismatch};
    check(&[
        (SESSION, 400, &error(-32022, "Unsupported protocol version", "null"), Gone("version_mismatch")),
        (SESSION, 400, &error(-32020, "Header mismatch", "5"), Gone("version_mismatch")),
        (
            SESSION,
            400,
            &error(-32000, "Bad Request: Unsupported protocol version: x", "null"),
            Gone("version_mismatch"),
        ),
        (SESSION, 400, &error(-32020, "no such row", "5"), Answer),
        (HANDSHAKE, 400, &error(-32022, "", "5"), Mismatch),
        (AGAIN, 400, &error(-32022, "", "5"), Mismatch),
        (NEW, 400, &error(-32020, "Header mismatch", "null"), Mismatch),
    ]);
}

#[test]
fn a_401_is_cured_by_a_new_value_a_fresh_handshake_or_not_at_all() {
    use Meaning::Denied;
    check(&[
        (SESSION, 401, "Unauthorized: Session not found", Denied("401")),
        (SESSION, 401, &error(-32001, "Unauthorized", "null"), Denied("401")),
        (PROBE, 401, "", Denied("401")),
        (HANDSHAKE, 401, "", Denied("401")),
    ]);
}

#[test]
fn a_403_is_the_sessions_only_when_it_speaks_of_it() {
    use Meaning::{Denied, Unusable};
    let theirs = error(-32003, "Session belongs to another user", "null");
    check(&[
        (SESSION, 403, &theirs, Denied("403")),
        (SESSION, 403, &error(-32001, "principal mismatch", "null"), Denied("403")),
        (SESSION, 403, "<html>Just a moment...</html>", Unusable),
        (SESSION, 403, "", Unusable),
        (SESSION, 403, "Invalid Host header", Unusable),
        (SESSION, 421, "Invalid Host header", Unusable),
        // Without the envelope, as one broker sends it; a firewall's JSON costs one handshake at most.
        (SESSION, 403, r#"{"error":{"code":-32001,"message":"principal mismatch"}}"#, Denied("403")),
        (HANDSHAKE, 403, "Forbidden: unknown token", Denied("403")),
        (HANDSHAKE, 403, &theirs, Denied("403")),
        // A wall stands before the handshake too, and a login would not open it.
        (HANDSHAKE, 403, "", Unusable),
        (HANDSHAKE, 403, "\n<html>Just a moment...</html>", Unusable),
        (HANDSHAKE, 403, "Invalid Host header", Unusable),
        (HANDSHAKE, 421, "", Unusable),
    ]);
    let text = |body: &str| Refusal { json: false, ..said(403, body) };
    assert_eq!(refusal(SESSION, &text(&theirs)), Denied("403"), "a JSON-RPC error is one under any name");
    assert_eq!(refusal(SESSION, &text(r#"{"message":"Forbidden"}"#)), Unusable);
    let scope = Refusal { scope: true, ..said(403, &theirs) };
    assert_eq!(refusal(SESSION, &scope), Unusable);
}

#[test]
fn trouble_never_costs_the_session() {
    // 2xx: a body that is no MCP answer; the call may have run.
    for status in [200, 202, 500, 502, 504, 520] {
        check(&[(SESSION, status, "Session store: connection lost", Meaning::Trouble(None))]);
        check(&[(SESSION, status, "", Meaning::Trouble(None))]);
    }
    let wait = Some(Duration::from_secs(2));
    let busy = Refusal { retry_after: wait, ..said(429, "") };
    assert_eq!(refusal(SESSION, &busy), Meaning::Busy(wait));
    let blip = Refusal { retry_after: wait, ..said(503, "session unknown on this instance") };
    assert_eq!(refusal(SESSION, &blip), Meaning::Trouble(wait), "it says when to come back, so it keeps it");
}

#[test]
fn a_400_wrapped_in_a_500_is_a_lost_session() {
    use Meaning::{Gone, Trouble};
    let inner = error(-32000, NO_SESSION, "null");
    check(&[
        (SESSION, 500, &format!("upstream said 400: {inner}"), Gone("500-wrapped")),
        (SESSION, 500, &error(-32603, &inner, "5"), Gone("500-wrapped")),
        (SESSION, 500, "session not found", Trouble(None)),
        (SESSION, 502, &inner, Trouble(None)),
        (NEW, 500, &inner, Trouble(None)),
        (AGAIN, 500, &inner, Trouble(None)),
    ]);
}

#[test]
fn an_instance_without_the_session_is_not_the_server() {
    use Meaning::{Astray, Trouble};
    check(&[
        (SESSION, 503, "session unknown on this instance", Astray("503")),
        (SESSION, 503, &error(-32000, "Session not found", "null"), Astray("503")),
        (PROBE, 503, "session unknown on this instance", Astray("503")),
        (SESSION, 503, "down for maintenance", Trouble(None)),
        (HANDSHAKE, 503, "session unknown on this instance", Trouble(None)),
    ]);
}

#[test]
fn anything_else_is_passed_on_if_it_is_an_answer() {
    use Meaning::{Answer, Unusable};
    check(&[
        (SESSION, 406, &error(-32000, "Not Acceptable", "null"), Answer),
        (SESSION, 415, "", Unusable),
        (SESSION, 422, &error(-32602, "no", "null"), Answer),
        (SESSION, 302, "", Unusable),
    ]);
}

#[test]
fn a_200_error_needs_code_and_words() {
    let parse = |text: String| Message::parse(Bytes::from(text)).unwrap();
    let gone = Some(Meaning::Gone("200-error"));
    for (context, code, words, id, meaning) in [
        (SESSION, -32600, "Session not found", "null", gone),
        (SESSION, -32600, "Session not found", "5", gone),
        (SESSION, -32015, "session not found", "5", gone),
        (SESSION, -32002, "Server not initialized", "\"err_8f2c\"", gone),
        (SESSION, 0, "method \"tools/call\" is invalid during session initialization", "5", gone),
        (SESSION, -32000, "browser session not found", "5", None),
        (SESSION, -32602, "Session not found", "5", None),
        (SESSION, -32600, "bad arguments", "5", None),
        (SESSION, 0, "something else", "5", None),
        // Not read at all: a ping tells why.
        (SESSION, -32600, "Invalid Request", "null", Some(Meaning::Doubtful("200-error"))),
        (PROBE, -32600, "Invalid Request", "null", gone),
        (PROBE, -32601, "no ping here", "5", None),
        (NEW, -32600, "Invalid Request", "null", None),
        (HANDSHAKE, -32600, "Session not found", "null", None),
        (HANDSHAKE, -32022, "", "5", Some(Meaning::Mismatch)),
        (SESSION, -32022, "", "5", Some(Meaning::Gone("version_mismatch"))),
    ] {
        assert_eq!(
            answer(context, &parse(error(code, words, id))),
            meaning,
            "{code} {words} {id} {context:?}"
        );
    }
}

#[test]
fn a_refused_stream_never_costs_the_session() {
    use Stream::{Doubtful, Later, NotOffered};
    for (status, never, was_there) in [
        (405, NotOffered { lasting: true }, Later(None)),
        (404, NotOffered { lasting: false }, Doubtful(None)),
        (400, NotOffered { lasting: false }, Doubtful(None)),
        (401, Later(None), Doubtful(None)),
        (403, Later(None), Doubtful(None)),
        (406, NotOffered { lasting: false }, Later(None)),
        (501, NotOffered { lasting: false }, Later(None)),
        (409, Later(None), Later(None)),
        (429, Later(None), Later(None)),
        (503, Later(None), Later(None)),
        (302, Later(None), Later(None)),
    ] {
        assert_eq!(stream(false, &said(status, "")), never, "{status}");
        assert_eq!(stream(true, &said(status, "")), was_there, "{status}");
    }
    // Booked by a former process that could not say so (B27).
    for words in ["Session already exists", "Only one SSE stream is allowed per session"] {
        assert_eq!(stream(false, &said(400, words)), Later(None), "{words}");
    }
}

/// B26: a 200 that is no stream looks like one that opened and ended, and would be asked for without end.
#[test]
fn a_success_that_is_no_stream_is_a_no_or_a_doubt() {
    let no = Stream::NotOffered { lasting: false };
    for body in ["<!doctype html>", &error(-32601, "Method not found", "null")] {
        assert_eq!(stream(false, &said(200, body)), no);
        assert_eq!(stream(true, &said(200, body)), Stream::Later(None));
    }
    let instance = said(503, "session unknown on this instance");
    assert_eq!(stream(true, &instance), Stream::Doubtful(None));
    assert_eq!(stream(false, &instance), Stream::Later(None));
    let lost = said(200, &error(-32600, "Session not found", "null"));
    assert_eq!(stream(true, &lost), Stream::Doubtful(None));
    assert_eq!(stream(false, &lost), no);
}
