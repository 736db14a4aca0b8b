//! The symptom table: what an upstream's refusal says about the session. One place, so that no caller ever
//! decides for itself what a status means.
//!
//! Facts from the field are in the rows' comments; a server's wording is looked at only where its status alone
//! is ambiguous, and never where a wrong guess could run a call twice. What a row costs:
//!
//! | meaning | session | call | record |
//! |---|---|---|---|
//! | `Gone` | one fresh handshake | once more there | replaced when that succeeded |
//! | `Denied` | values read again, then one fresh handshake | once more | kept until that succeeded |
//! | `Astray` | pinged after a pause; after four of them as `Gone` | waits | kept |
//! | `Doubtful` | pinged: the answer decides | waits, once | kept |
//! | `Mismatch` | back-off, `version_mismatch` | fails, refused | kept |
//! | `Answer` | kept | this is its answer | kept |
//! | `Busy` | back-off | fails, refused | kept |
//! | `Trouble` | kept; after several in a row, back-off | unknown; a read once more | kept |
//! | `Unusable` | as `Trouble` | fails, refused | kept |

use std::time::Duration;

use mcp_wire::Message;

use crate::input::Refusal;

/// What was being asked when the refusal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// `initialize`.
    Initialize,
    /// `notifications/initialized`.
    Initialized,
    /// A `ping` of ours that decides whether the session is there.
    Probe,
    /// A client's request.
    Call,
    /// A notification, an answer to a question, a keep-alive.
    Aside,
}

/// What is known besides the refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The message.
    pub asked: Asked,
    /// The request carried a session id.
    pub carried_session: bool,
    /// This session had at least one success, or was restored from a record.
    pub worked: bool,
    /// The JSON-RPC id of the request, if it had one.
    pub wire: Option<u64>,
}

impl Context {
    /// Only a session that was there can be gone.
    fn may_be_gone(self) -> bool {
        self.carried_session && self.worked && self.asked != Asked::Initialize
    }
}

/// What a refusal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The session is gone; the request was not processed. The row's name is for log and record.
    Gone(&'static str),
    /// Not with these credentials; a fresh handshake may cure it. Not processed.
    Denied(&'static str),
    /// An instance that does not have the session; another one may. Not processed.
    Astray(&'static str),
    /// The request was not even read; whether the session is the reason, a ping will tell.
    Doubtful(&'static str),
    /// The server does not speak our revision (any more).
    Mismatch,
    /// The server's own answer to this request: pass it on.
    Answer,
    /// Not now; not processed.
    Busy(Option<Duration>),
    /// Something failed after the request was written: whether it ran is not known. The session is kept.
    Trouble(Option<Duration>),
    /// No usable answer, and not processed; says nothing about the session.
    Unusable,
}

/// 2026-07-28, "Error Codes": the revision is not supported; header and body do not agree. Older servers say so in
/// words only.
const UNSUPPORTED_VERSION: i64 = -32022;
const HEADER_MISMATCH: i64 = -32020;

/// The table for HTTP refusals of a POST.
pub fn refusal(context: Context, refusal: &Refusal) -> Meaning {
    let said = Said::of(refusal);
    match refusal.status {
        404 => not_found(context, &said),
        400 | 426 if said.about_version() => version(context),
        // Servers copied from an early example fold "no header" and "unknown session" into one 400 (B02).
        400 if context.may_be_gone() && said.session_shaped() && !said.is_about_the_request(context.wire) => {
            Meaning::Gone("400")
        }
        401 => Meaning::Denied("401"),
        403 => forbidden(context, refusal, &said),
        429 => Meaning::Busy(refusal.retry_after),
        // A proxy that wraps its server's 400 in a 500 of its own: the 400 was a refusal at the head (B02).
        500 if context.may_be_gone() && said.wraps_a_lost_session() => Meaning::Gone("500-wrapped"),
        503 if context.may_be_gone() && refusal.retry_after.is_none() && said.names_another_instance() => {
            Meaning::Astray("503")
        }
        // A success that says nothing we can read: it may well have run.
        200..=299 | 500..=599 => Meaning::Trouble(refusal.retry_after),
        _ if said.is_error => Meaning::Answer,
        _ => Meaning::Unusable,
    }
}

/// A session negotiated a revision that the server does not take any more: what it was is gone. A server that refuses
/// our revision from the beginning is another matter, and no loop.
fn version(context: Context) -> Meaning {
    if context.may_be_gone() { Meaning::Gone("version_mismatch") } else { Meaning::Mismatch }
}

/// 2025-11-25 "Session Management": 404 to a request with a session id means a new session must be started.
/// One framework answers an unknown *method* with 404 and −32601 under our own id: that is an answer (B07). Whoever
/// names our id has read the request; what else such a server says with 404 may be an answer too, or the end of the
/// session, so a ping tells.
fn not_found(context: Context, said: &Said) -> Meaning {
    let ours = said.is_error && said.names(context.wire);
    if ours && said.code == Some(mcp_wire::code::METHOD_NOT_FOUND) {
        return Meaning::Answer;
    }
    if ours && context.asked == Asked::Call && !said.session_shaped() {
        if context.may_be_gone() {
            return Meaning::Doubtful("404");
        }
        if !context.carried_session {
            return Meaning::Answer;
        }
    }
    if context.carried_session { Meaning::Gone("404") } else { Meaning::Unusable }
}

/// A session bound to another principal is refused in JSON, by some without the envelope of JSON-RPC; a firewall's page
/// is HTML or empty, and a missing scope is no matter of sessions (B04, B23).
fn forbidden(context: Context, refusal: &Refusal, said: &Said) -> Meaning {
    if refusal.scope {
        return Meaning::Unusable;
    }
    let about_session = said.is_error || said.session_shaped() || (refusal.json && said.is_object());
    if context.may_be_gone() && about_session {
        return Meaning::Denied("403");
    }
    if context.carried_session || said.is_a_walls() { Meaning::Unusable } else { Meaning::Denied("403") }
}

/// The table for JSON-RPC errors that come with 200: a lost session only if code **and** words say so (B05, B06).
pub fn answer(context: Context, message: &Message) -> Option<Meaning> {
    let code = message.error_code()?;
    if !context.may_be_gone() {
        let refused = context.asked == Asked::Initialize && code == UNSUPPORTED_VERSION;
        return refused.then_some(Meaning::Mismatch);
    }
    // Under our own id a generic code may be a tool's own words ("browser session not found"): there only the
    // codes for a request that was not even taken count.
    let ours = message.id().and_then(|id| id.as_number_loosely()).is_some_and(|id| Some(id) == context.wire);
    let session_code = matches!(code, -32600 | -32015) || (!ours && matches!(code, -32002..=-32000));
    let words = message.error_message().unwrap_or_default().to_ascii_lowercase();
    // One SDK has no code for it.
    let uninitialized = code == 0 && words.contains("invalid during session initialization");
    if uninitialized || (session_code && names_a_lost_session(&words)) {
        return Some(Meaning::Gone("200-error"));
    }
    if code == UNSUPPORTED_VERSION {
        return Some(Meaning::Gone("version_mismatch"));
    }
    // "Invalid Request" without an id: not read, for whatever reason. Some proxies say no more of a lost session.
    let unread = code == mcp_wire::code::INVALID_REQUEST && message.id().is_none();
    match context.asked {
        Asked::Probe if unread => Some(Meaning::Gone("200-error")),
        // A keep-alive too: then it is found out before a call is.
        Asked::Call | Asked::Aside if unread => Some(Meaning::Doubtful("200-error")),
        _ => None,
    }
}

/// What a refused GET says about the stream. About the session it says nothing: many servers have no stream, and
/// some refuse it while the session works (B25–B28).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The server has none. `lasting`: it says so itself, so that it need not be asked in the next process.
    NotOffered {
        /// Worth remembering.
        lasting: bool,
    },
    /// Not now: another stream is still booked, or an outage.
    Later(Option<Duration>),
    /// It was there before: asked again later, and a ping tells whether it is the session that is gone.
    Doubtful(Option<Duration>),
}

/// The table for a refused GET. `was_there`: this session had a stream before.
pub fn stream(was_there: bool, refusal: &Refusal) -> Stream {
    match refusal.status {
        // A stream that was there is not taken back by what a hop says during a deployment.
        405 | 406 | 501 if was_there => Stream::Later(refusal.retry_after),
        405 => Stream::NotOffered { lasting: true },
        // Also "session already exists", a 409 by another name (B27).
        400 | 401 | 403 | 404 if was_there => Stream::Doubtful(refusal.retry_after),
        // 200 with JSON or a page is no stream (B26). Where one was it may be an outage's page, or the server's own way
        // to say that it does not know the session (B05).
        200..=299 if was_there && Said::of(refusal).session_shaped() => Stream::Doubtful(None),
        200..=299 if was_there => Stream::Later(None),
        503 if was_there && refusal.retry_after.is_none() && Said::of(refusal).names_another_instance() => {
            Stream::Doubtful(None)
        }
        // A former process's stream that the server has not missed yet.
        400 if Said::of(refusal).is_booked() => Stream::Later(refusal.retry_after),
        200..=299 | 400 | 404 | 406 | 501 => Stream::NotOffered { lasting: false },
        _ => Stream::Later(refusal.retry_after),
    }
}

/// What a refusal's body says, as far as it can be read.
struct Said {
    is_error: bool,
    code: Option<i64>,
    id: Option<u64>,
    words: String,
    /// The beginning of the body as it came.
    raw: String,
}

impl Said {
    fn of(refusal: &Refusal) -> Self {
        // Whatever its head calls it: some frameworks send every error as text.
        let message = Message::parse(refusal.body.clone()).ok();
        let code = message.as_ref().and_then(Message::error_code);
        let raw = String::from_utf8_lossy(&refusal.body[..refusal.body.len().min(2048)]).to_ascii_lowercase();
        let words = message.as_ref().and_then(Message::error_message);
        Self {
            is_error: code.is_some(),
            code,
            id: message.and_then(|message| message.id()).and_then(|id| id.as_number_loosely()),
            words: words.map_or_else(|| raw.chars().take(512).collect(), |words| words.to_ascii_lowercase()),
            raw,
        }
    }

    fn session_shaped(&self) -> bool {
        names_a_lost_session(&self.words)
    }

    fn names(&self, wire: Option<u64>) -> bool {
        self.id.is_some() && self.id == wire
    }

    /// Under our own id, and with a code for what was asked: a tool's words about sessions of its own.
    fn is_about_the_request(&self, wire: Option<u64>) -> bool {
        self.names(wire) && self.code.is_some_and(|code| !matches!(code, -32600 | -32099..=-32000))
    }

    fn is_object(&self) -> bool {
        self.raw.trim_start().starts_with('{')
    }

    /// A firewall's page, or a guard's word about hosts: nothing that other credentials would cure.
    fn is_a_walls(&self) -> bool {
        let text = self.raw.trim_start();
        let guard = ["invalid host", "host not allowed", "invalid origin", "origin not allowed"];
        text.is_empty() || text.starts_with('<') || guard.iter().any(|words| text.contains(words))
    }

    /// Most servers have one stream a session, and notice late that one is dead (B27).
    fn is_booked(&self) -> bool {
        ["already", "only one"].iter().any(|word| self.words.contains(word))
    }

    fn wraps_a_lost_session(&self) -> bool {
        let wrapped = self.raw.contains("bad request") || self.raw.contains("400");
        wrapped && names_a_lost_session(&self.raw)
    }

    fn names_another_instance(&self) -> bool {
        names_a_lost_session(&self.words) || self.words.contains("session unknown")
    }

    fn about_version(&self) -> bool {
        let code = match self.code {
            Some(UNSUPPORTED_VERSION) => true,
            Some(HEADER_MISMATCH) => self.words.contains("version") || self.words.contains("header"),
            _ => false,
        };
        code || self.words.contains("unsupported protocol version")
    }
}

/// Wordings seen for "I do not know this session". "Missing/required header" is not among them: we sent one.
fn names_a_lost_session(words: &str) -> bool {
    const LOST: [&str; 15] = [
        "session not found",
        "no valid session",
        "unknown session",
        "invalid session",
        "invalid or missing session",
        "invalid or expired session",
        "session expired",
        "session has expired",
        "session terminated",
        "session does not exist",
        "session id not found",
        "no such session",
        "no session found",
        "no active session",
        "not initialized",
    ];
    LOST.iter().any(|row| words.contains(row)) || names_one_that_is_gone(words)
}

/// "Session 1f0c-77 has been terminated", "session with id '7' not found": with an id, or a verb, in between.
fn names_one_that_is_gone(words: &str) -> bool {
    const GONE: [&str; 9] = [
        "not found",
        "does not exist",
        "no longer",
        "expired",
        "terminated",
        "closed",
        "unknown",
        "invalid",
        "not valid",
    ];
    let Some((_, rest)) = words.split_once("session ") else { return false };
    let mut rest = rest.trim_start();
    for filler in ["with ", "id: ", "id "] {
        rest = rest.strip_prefix(filler).unwrap_or(rest);
    }
    let (first, behind) = rest.split_once(' ').unwrap_or((rest, ""));
    // An id has a digit somewhere; a word that has none belongs to the sentence.
    if first.contains(|c: char| c.is_ascii_digit()) {
        rest = behind;
    }
    for filler in ["was ", "is ", "has ", "been "] {
        rest = rest.strip_prefix(filler).unwrap_or(rest);
    }
    GONE.iter().any(|verb| rest.starts_with(verb))
}

#[cfg(test)]
mod tests;
