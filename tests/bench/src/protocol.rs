//! The messages that the load generator sends, and the check of every answer.
//!
//! Here and nowhere else it is decided whether an answer is the right one: its id in the very spelling that was
//! sent, the caller's own nonce, the size asked for, and every byte of the filling. The check is written against
//! JSON-RPC and not against the crates under measurement, which would repeat their mistakes.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

/// Revision asked for at `initialize`.
pub(crate) const PROTOCOL_VERSION: &str = "2025-11-25";
/// Session header of streamable HTTP.
pub(crate) const SESSION_HEADER: &str = "mcp-session-id";
/// Byte that results are filled with; needs no escape in JSON.
pub(crate) const FILL: u8 = b'x';

const FILLING: [u8; 4096] = [FILL; 4096];

/// An answer that is not the right one. The fault is the path's (or the upstream's); the run fails.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum WrongAnswer {
    #[error("not a JSON-RPC message ({reason}): {start}")]
    Unreadable { reason: String, start: String },
    #[error("the answer has id {got}, the request had {expected}")]
    Id { expected: String, got: String },
    #[error("an error was answered: {0}")]
    ErrorAnswer(String),
    #[error("the result lacks {0}")]
    Shape(&'static str),
    #[error("the answer carries another caller's nonce: {got}, expected {expected}")]
    Nonce { expected: String, got: String },
    #[error("the result has {got} bytes, asked for were {expected}")]
    Size { expected: usize, got: usize },
    #[error("the filling of the result was changed")]
    Fill,
}

/// What a message that arrived turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The answer waited for, and right in every part.
    Answer,
    /// A notification or request from the server.
    Other,
}

/// A message to send, and what its answer must look like.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) body: Bytes,
    id: String,
    expected: Expected,
}

#[derive(Debug)]
enum Expected {
    Initialize,
    Tools,
    Echo { nonce: String, size: usize },
}

#[derive(Deserialize)]
struct Incoming<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct EchoAnswer<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<EchoResult<'a>>,
}

#[derive(Deserialize)]
struct EchoResult<'a> {
    #[serde(borrow)]
    content: Vec<EchoContent<'a>>,
}

#[derive(Deserialize)]
struct EchoContent<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// `notifications/initialized`.
pub(crate) fn initialized() -> Bytes {
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
}

impl Exchange {
    /// `initialize`; `id` is JSON text, as in all of these.
    pub(crate) fn initialize(id: &str) -> Self {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"{PROTOCOL_VERSION}","capabilities":{{}},"clientInfo":{{"name":"evermux-bench","version":"{}"}}}}}}"#,
            env!("CARGO_PKG_VERSION")
        );
        Self { body: body.into(), id: id.to_owned(), expected: Expected::Initialize }
    }

    /// `tools/list`.
    pub(crate) fn list(id: &str) -> Self {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#);
        Self { body: body.into(), id: id.to_owned(), expected: Expected::Tools }
    }

    /// `tools/call` of `echo` with a result text of `size` bytes (at least the nonce's length).
    pub(crate) fn call(id: &str, nonce: String, size: usize) -> Self {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"nonce":"{nonce}","size":{size}}}}}}}"#
        );
        let size = size.max(nonce.len());
        Self { body: body.into(), id: id.to_owned(), expected: Expected::Echo { nonce, size } }
    }

    /// Looks at a message that came while the answer was waited for.
    ///
    /// # Errors
    /// When it is an answer, but not the right one, or no message at all.
    pub(crate) fn check(&self, message: &[u8]) -> Result<Verdict, WrongAnswer> {
        if let Expected::Echo { nonce, size } = &self.expected {
            // The common case is read in one pass; anything else about it is told by the careful way below.
            if let Ok(EchoAnswer { id: Some(id), result: Some(result) }) = serde_json::from_slice(message) {
                self.check_id(id)?;
                return check_echo(&result, nonce, *size).map(|()| Verdict::Answer);
            }
        }
        let incoming: Incoming<'_> = serde_json::from_slice(message).map_err(|error| {
            WrongAnswer::Unreadable { reason: error.to_string(), start: start_of(message) }
        })?;
        if incoming.method.is_some() {
            return Ok(Verdict::Other);
        }
        if let Some(error) = incoming.error {
            return Err(WrongAnswer::ErrorAnswer(start_of(error.get().as_bytes())));
        }
        self.check_id(incoming.id.ok_or(WrongAnswer::Shape("an id"))?)?;
        let result = incoming.result.ok_or(WrongAnswer::Shape("a result"))?.get();
        let (member, what) = match self.expected {
            Expected::Initialize => ("protocolVersion", "protocolVersion"),
            Expected::Tools => ("tools", "tools"),
            Expected::Echo { .. } => return Err(WrongAnswer::Shape("content with a text")),
        };
        let value: serde_json::Value = serde_json::from_str(result).map_err(|error| {
            WrongAnswer::Unreadable { reason: error.to_string(), start: start_of(message) }
        })?;
        if value.get(member).is_none() { Err(WrongAnswer::Shape(what)) } else { Ok(Verdict::Answer) }
    }

    fn check_id(&self, id: &RawValue) -> Result<(), WrongAnswer> {
        if id.get() == self.id {
            Ok(())
        } else {
            Err(WrongAnswer::Id { expected: self.id.clone(), got: start_of(id.get().as_bytes()) })
        }
    }
}

fn check_echo(result: &EchoResult<'_>, nonce: &str, size: usize) -> Result<(), WrongAnswer> {
    let text = result.content.first().ok_or(WrongAnswer::Shape("content with a text"))?.text.as_bytes();
    let Some(filling) = text.strip_prefix(nonce.as_bytes()) else {
        let got = start_of(text.get(..nonce.len()).unwrap_or(text));
        return Err(WrongAnswer::Nonce { expected: nonce.to_owned(), got });
    };
    if text.len() != size {
        return Err(WrongAnswer::Size { expected: size, got: text.len() });
    }
    if filling.chunks(FILLING.len()).all(|part| FILLING.starts_with(part)) {
        Ok(())
    } else {
        Err(WrongAnswer::Fill)
    }
}

/// Appends `nonce`, filled up to `size` bytes.
pub(crate) fn write_filled(into: &mut Vec<u8>, nonce: &str, size: usize) {
    into.extend_from_slice(nonce.as_bytes());
    into.resize(into.len() + size.saturating_sub(nonce.len()), FILL);
}

fn start_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..200).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: &str, text: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
    }

    fn check(message: &str) -> Result<Verdict, WrongAnswer> {
        Exchange::call("7", "a-1".to_owned(), 8).check(message.as_bytes())
    }

    #[test]
    fn the_right_answer_is_taken_and_every_wrong_one_is_named() {
        assert_eq!(check(&answer("7", "a-1xxxxx")), Ok(Verdict::Answer));
        assert!(matches!(check(&answer("\"7\"", "a-1xxxxx")), Err(WrongAnswer::Id { .. })));
        assert!(matches!(check(&answer("8", "a-1xxxxx")), Err(WrongAnswer::Id { .. })));
        assert!(matches!(check(&answer("7", "a-2xxxxx")), Err(WrongAnswer::Nonce { .. })));
        assert!(matches!(check(&answer("7", "a-1xxxx")), Err(WrongAnswer::Size { .. })));
        assert_eq!(check(&answer("7", "a-1xxyxx")), Err(WrongAnswer::Fill));
        assert!(matches!(check("{\"id\":7"), Err(WrongAnswer::Unreadable { .. })));
        let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-33001,"message":"unknown"}}"#;
        assert!(matches!(check(error), Err(WrongAnswer::ErrorAnswer(_))));
        assert!(matches!(check(r#"{"id":7,"result":{}}"#), Err(WrongAnswer::Shape(_))));
    }

    #[test]
    fn what_the_server_says_besides_is_no_answer() {
        let other = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        assert_eq!(check(other), Ok(Verdict::Other));
    }

    #[test]
    fn extra_members_of_a_result_do_no_harm() {
        let message = r#"{"id":7,"result":{"_meta":{"evermux/session":{}},"content":[{"text":"a-1xxxxx"}]}}"#;
        assert_eq!(check(message), Ok(Verdict::Answer));
    }
}
