//! The symptom table: what an upstream's refusal says about the session. One place, so that no caller ever
//! decides for itself what a status means.
//!
//! Facts from the field are in the rows' comments; a server's wording is looked at only where its status alone
//! is ambiguous, and never where a wrong guess could run a call twice.

use std::time::Duration;

use mcp_wire::Message;

use crate::input::Refusal;

/// What was being asked when the refusal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The request carried a session id.
    pub carried_session: bool,
    /// This session had at least one success, or was restored from a record.
    pub worked: bool,
    /// The JSON-RPC id of the request, if it had one.
    pub wire: Option<u64>,
}

/// What a refusal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The session is gone; the request was not processed. The row's name is for log and record.
    Gone(&'static str),
    /// Not with these credentials; a fresh handshake may cure it. Not processed.
    Denied(&'static str),
    /// The server's own answer to this request: pass it on.
    Answer,
    /// Not now; not processed.
    Busy(Option<Duration>),
    /// Something failed after the request was written: whether it ran is not known. The session is kept.
    Trouble(Option<Duration>),
    /// No usable answer, and not processed; says nothing about the session.
    Unusable,
}

/// The table for HTTP refusals (`reference` rows: 404, 400, 401, 403, 429, 5xx, anything else).
pub fn refusal(context: Context, refusal: &Refusal) -> Meaning {
    let said = Said::of(refusal);
    match refusal.status {
        404 => not_found(context, &said),
        400 if context.carried_session && context.worked && said.session_shaped() => Meaning::Gone("400"),
        400 if said.is_error => Meaning::Answer,
        401 => Meaning::Denied("401"),
        403 => forbidden(context, refusal, &said),
        429 => Meaning::Busy(refusal.retry_after),
        // A success that says nothing we can read: it may well have run.
        200..=299 | 500..=599 => Meaning::Trouble(refusal.retry_after),
        _ if said.is_error => Meaning::Answer,
        _ => Meaning::Unusable,
    }
}

/// 2025-11-25 "Session Management": 404 to a request with a session id means a new session must be started.
/// One framework answers an unknown *method* with 404 and −32601 under our own id: that is an answer.
fn not_found(context: Context, said: &Said) -> Meaning {
    let ours = said.id.is_some() && said.id == context.wire;
    if ours && said.code == Some(mcp_wire::code::METHOD_NOT_FOUND) {
        return Meaning::Answer;
    }
    if context.carried_session { Meaning::Gone("404") } else { Meaning::Unusable }
}

/// A session bound to another principal is refused with a JSON-RPC error; a firewall's page is HTML or empty,
/// and a missing scope is no matter of sessions.
fn forbidden(context: Context, refusal: &Refusal, said: &Said) -> Meaning {
    if refusal.scope {
        return Meaning::Unusable;
    }
    let about_session = said.is_error || said.session_shaped();
    if context.carried_session && context.worked && about_session {
        return Meaning::Denied("403");
    }
    if context.carried_session { Meaning::Unusable } else { Meaning::Denied("403") }
}

/// The table for JSON-RPC errors that come with 200: a lost session only if code **and** words say so.
pub fn answer(context: Context, message: &Message) -> Option<Meaning> {
    let code = message.error_code()?;
    // Under our own id a generic code may be a tool's own words ("browser session not found"): there only the
    // codes for a request that was not even taken count.
    let ours = message.id().and_then(|id| id.as_number()).is_some_and(|id| Some(id) == context.wire);
    let session_code = matches!(code, -32600 | -32015) || (!ours && matches!(code, -32002..=-32000));
    let words = message.error_message().unwrap_or_default().to_ascii_lowercase();
    let gone = context.carried_session && context.worked && session_code && names_a_lost_session(&words);
    gone.then_some(Meaning::Gone("200-error"))
}

/// What a refusal's body says, as far as it can be read.
struct Said {
    is_error: bool,
    code: Option<i64>,
    id: Option<u64>,
    words: String,
}

impl Said {
    fn of(refusal: &Refusal) -> Self {
        let message = refusal.json.then(|| Message::parse(refusal.body.clone()).ok()).flatten();
        let code = message.as_ref().and_then(Message::error_code);
        let words = match message.as_ref().and_then(Message::error_message) {
            Some(words) => words,
            None => String::from_utf8_lossy(&refusal.body[..refusal.body.len().min(512)]).into_owned(),
        };
        Self {
            is_error: code.is_some(),
            code,
            id: message.and_then(|message| message.id()).and_then(|id| id.as_number()),
            words: words.to_ascii_lowercase(),
        }
    }

    fn session_shaped(&self) -> bool {
        names_a_lost_session(&self.words)
    }
}

/// Wordings seen for "I do not know this session". "Missing/required header" is not among them: we sent one.
fn names_a_lost_session(words: &str) -> bool {
    const LOST: [&str; 12] = [
        "session not found",
        "no valid session",
        "unknown session",
        "invalid session",
        "session expired",
        "session has expired",
        "session terminated",
        "session does not exist",
        "session id not found",
        "invalid or expired session",
        "no such session",
        "not initialized",
    ];
    LOST.iter().any(|row| words.contains(row))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const SESSION: Context = Context { carried_session: true, worked: true, wire: Some(5) };
    const HANDSHAKE: Context = Context { carried_session: false, worked: false, wire: Some(5) };

    fn said(status: u16, body: &str) -> Refusal {
        let json = body.starts_with('{');
        Refusal { status, body: Bytes::copy_from_slice(body.as_bytes()), json, ..Refusal::default() }
    }

    fn error(code: i64, words: &str, id: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{words}"}}}}"#)
    }

    #[test]
    fn a_404_with_a_session_is_a_lost_session_whatever_the_body() {
        for body in ["", "Session not found", &error(-32001, "Session not found", "null"), "<html>"] {
            assert_eq!(refusal(SESSION, &said(404, body)), Meaning::Gone("404"), "{body}");
        }
    }

    #[test]
    fn a_404_that_names_our_request_and_no_method_is_an_answer() {
        assert_eq!(refusal(SESSION, &said(404, &error(-32601, "nope", "5"))), Meaning::Answer);
        assert_eq!(refusal(SESSION, &said(404, &error(-32601, "nope", "6"))), Meaning::Gone("404"));
    }

    #[test]
    fn a_404_without_a_session_is_a_wrong_url() {
        assert_eq!(refusal(HANDSHAKE, &said(404, "")), Meaning::Unusable);
    }

    #[test]
    fn a_400_is_a_lost_session_only_in_words_and_only_if_it_worked() {
        for words in ["Bad Request: No valid session ID provided", "Bad Request: Server not initialized"] {
            assert_eq!(refusal(SESSION, &said(400, &error(-32000, words, "null"))), Meaning::Gone("400"));
            let never = Context { worked: false, ..SESSION };
            assert_eq!(refusal(never, &said(400, &error(-32000, words, "null"))), Meaning::Answer);
        }
        let missing = error(-32000, "Bad Request: Mcp-Session-Id header is required", "null");
        assert_eq!(refusal(SESSION, &said(400, &missing)), Meaning::Answer);
        assert_eq!(refusal(SESSION, &said(400, "what?")), Meaning::Unusable);
    }

    #[test]
    fn a_401_is_cured_by_a_fresh_handshake_or_not_at_all() {
        assert_eq!(refusal(SESSION, &said(401, "unknown session")), Meaning::Denied("401"));
        assert_eq!(refusal(HANDSHAKE, &said(401, "")), Meaning::Denied("401"));
    }

    #[test]
    fn a_403_is_the_sessions_only_when_it_speaks_of_it() {
        let theirs = error(-32003, "Session belongs to another user", "null");
        assert_eq!(refusal(SESSION, &said(403, &theirs)), Meaning::Denied("403"));
        assert_eq!(refusal(SESSION, &said(403, "<html>blocked</html>")), Meaning::Unusable);
        assert_eq!(refusal(SESSION, &said(403, "")), Meaning::Unusable);
        let scope = Refusal { scope: true, ..said(403, &theirs) };
        assert_eq!(refusal(SESSION, &scope), Meaning::Unusable);
    }

    #[test]
    fn trouble_never_costs_the_session() {
        // 2xx: a body that is no MCP answer; the call may have run.
        for status in [200, 202, 500, 502, 503, 504, 520] {
            let body = error(-32000, "No valid session", "null");
            assert_eq!(refusal(SESSION, &said(status, &body)), Meaning::Trouble(None), "{status}");
        }
        let wait = Some(Duration::from_secs(2));
        let busy = Refusal { retry_after: wait, ..said(429, "") };
        assert_eq!(refusal(SESSION, &busy), Meaning::Busy(wait));
    }

    #[test]
    fn a_200_error_needs_code_and_words() {
        let parse = |text: String| Message::parse(Bytes::from(text)).unwrap();
        let lost = parse(error(-32600, "Session not found", "null"));
        assert_eq!(answer(SESSION, &lost), Some(Meaning::Gone("200-error")));
        let made_up = parse(error(-32002, "Server not initialized", "\"err_8f2c\""));
        assert_eq!(answer(SESSION, &made_up), Some(Meaning::Gone("200-error")));
        assert_eq!(answer(SESSION, &parse(error(-32000, "browser session not found", "5"))), None);
        assert_eq!(answer(SESSION, &parse(error(-32602, "Session not found", "5"))), None);
        assert_eq!(answer(SESSION, &parse(error(-32600, "bad arguments", "5"))), None);
        assert_eq!(answer(HANDSHAKE, &lost), None);
    }
}
