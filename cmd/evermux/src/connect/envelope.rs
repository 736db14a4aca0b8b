//! What the shim reads of a message, and the few lines it writes itself.
//!
//! It looks at ids and three methods, nothing more: everything else of MCP is the daemon's.

use bytes::Bytes;
use mcp_wire::{Id, Kind, Message, Segments, code, method};
use serde_json::json;

/// A message of the client, as far as the shim is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Client {
    Request {
        id: Id,
        initialize: bool,
    },
    Initialized,
    /// `notifications/cancelled`, and for which request.
    Cancelled(Option<Id>),
    /// Another notification, or an answer to the server.
    Notice,
}

/// A line of the client that is no message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Garbage {
    /// The JSON-RPC error that is owed.
    pub(crate) answer: Bytes,
    /// For stderr; holds nothing of the message.
    pub(crate) note: String,
}

/// A message of the daemon, as far as the shim is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    /// A response or error response under this id; an error response without one belongs to no request.
    Answer(Option<Id>),
    /// A request to the client.
    Ask(Id),
    /// A notification.
    Other,
}

/// The kinds of error that the shim itself makes (contract, "What a client sees").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    OutcomeUnknown,
    Misconfigured,
    Draining,
}

impl ErrorKind {
    const fn code(self) -> i64 {
        match self {
            Self::OutcomeUnknown => -33001,
            Self::Misconfigured => -33006,
            Self::Draining => -33008,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Misconfigured => "misconfigured",
            Self::Draining => "draining",
        }
    }
}

/// Reads a client's line. Batches (2025-03-26 only) are refused whole: no client of the session-bearing
/// revisions sends them on stdio, and one answer for many requests cannot be repeated by number.
pub(crate) fn client(line: &Bytes) -> Result<Client, Garbage> {
    let message = Message::parse(line.clone()).map_err(|error| Garbage {
        answer: mcp_wire::error(error.request_id(), error.code(), &format!("evermux: {error}"), None),
        note: format!("evermux: a line from the client is not a message: {error}"),
    })?;
    Ok(match (message.kind(), message.id(), message.method()) {
        (Kind::Request, Some(id), name) => {
            Client::Request { id, initialize: name == Some(method::INITIALIZE) }
        }
        (_, _, Some(method::NOTIFICATIONS_INITIALIZED)) => Client::Initialized,
        (_, _, Some(method::NOTIFICATIONS_CANCELLED)) => Client::Cancelled(message.cancelled_request_id()),
        _ => Client::Notice,
    })
}

/// Reads what the daemon sent; `None` if it is not JSON-RPC.
pub(crate) fn server(data: &Bytes) -> Option<Server> {
    let message = Message::parse(data.clone()).ok()?;
    Some(match (message.kind(), message.id()) {
        (Kind::Response | Kind::ErrorResponse, id) => Server::Answer(id),
        (Kind::Request, Some(id)) => Server::Ask(id),
        (Kind::Request | Kind::Notification, _) => Server::Other,
    })
}

/// The `protocolVersion` of an InitializeResult.
pub(crate) fn protocol_version(answer: &Bytes) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct InitializeResult {
        #[serde(rename = "protocolVersion")]
        protocol_version: String,
    }
    let message = Message::parse(answer.clone()).ok()?;
    let result: InitializeResult = serde_json::from_slice(message.result()?).ok()?;
    Some(result.protocol_version)
}

/// `data.evermux.kind` of a JSON-RPC error.
pub(crate) fn error_kind(body: &Bytes) -> Option<String> {
    let message = Message::parse(body.clone()).ok()?;
    let error: serde_json::Value = serde_json::from_slice(message.error()?).ok()?;
    Some(error.get("data")?.get("evermux")?.get("kind")?.as_str()?.to_owned())
}

/// An error that evermux makes.
pub(crate) fn our_error(id: &Id, kind: ErrorKind, upstream: &str, outcome: &str, reason: &str) -> Bytes {
    let data = json!({ "evermux": { "kind": kind.name(), "upstream": upstream, "outcome": outcome } });
    mcp_wire::error(Some(id), kind.code(), &format!("evermux: {reason}"), Some(&data))
}

/// The daemon's error under the client's id; without a JSON-RPC error in `body`, one that names the status.
pub(crate) fn passed_error(id: &Id, body: &Bytes, status: u16) -> Bytes {
    let Some(message) = Message::parse(body.clone()).ok().filter(|message| message.error().is_some()) else {
        let text = format!("evermux: the daemon refused the request with HTTP status {status}");
        return mcp_wire::error(Some(id), code::INTERNAL_ERROR, &text, None);
    };
    let mut line = b"{\"jsonrpc\":\"2.0\",\"id\":".to_vec();
    line.extend_from_slice(id.as_raw());
    line.extend_from_slice(b",\"error\":");
    line.extend_from_slice(message.error().unwrap_or_default());
    line.push(b'}');
    one_line(line.into())
}

/// A request under an id that is still open. The answer carries no id: under the id it would end the first.
pub(crate) fn duplicate_id(id: &Id) -> Bytes {
    let id = String::from_utf8_lossy(id.as_raw());
    let text =
        format!("evermux: the id {id} belongs to a request that is not answered yet; this one was dropped");
    mcp_wire::error(None, code::INVALID_REQUEST, &text, None)
}

/// A line beyond the limit, which was dropped; under its id if that could be read.
pub(crate) fn line_too_long(id: Option<&Id>, limit: usize) -> Bytes {
    let text = format!("evermux: a line has more than {limit} bytes; it was dropped");
    mcp_wire::error(id, code::INVALID_REQUEST, &text, None)
}

/// An answer that cannot be read, as an error body.
pub(crate) fn unreadable(error: &mcp_http::BodyError) -> Bytes {
    let text = format!("evermux: the answer cannot be passed on: {error}");
    mcp_wire::error(None, code::INTERNAL_ERROR, &text, None)
}

/// The same JSON without line breaks. Inside a JSON text they can only be white space between tokens.
pub(crate) fn one_line(json: Bytes) -> Bytes {
    // An answer can be large, and nearly none has any.
    if !Segments::from(json.clone()).has_line_ends() {
        return json;
    }
    let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
    json.iter().map(|byte| if breaks(byte) { b' ' } else { *byte }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[test]
    fn a_broken_line_is_answered_with_what_is_wrong() {
        let not_json = client(&bytes("{oops")).unwrap_err();
        let text = String::from_utf8(not_json.answer.to_vec()).unwrap();
        assert!(text.contains("-32700") && text.contains("\"id\":null"), "{text}");

        let no_version = client(&bytes(r#"{"id":7,"method":"ping"}"#)).unwrap_err();
        let text = String::from_utf8(no_version.answer.to_vec()).unwrap();
        assert!(text.contains("-32600") && text.contains("\"id\":7") && text.contains("jsonrpc"), "{text}");
    }

    #[test]
    fn a_passed_error_keeps_its_bytes_under_the_clients_id() {
        let body = bytes(
            "{\"jsonrpc\":\"2.0\",\"id\":9,\"error\":{\"code\":-1,\n\"message\":\"m\",\"data\":{\"x\":1.0}}}",
        );
        assert_eq!(
            passed_error(&Id::from_raw(bytes("\"a\"")).unwrap(), &body, 400),
            bytes(r#"{"jsonrpc":"2.0","id":"a","error":{"code":-1, "message":"m","data":{"x":1.0}}}"#)
        );
        let bare = passed_error(&Id::number(3), &bytes("<html>"), 502);
        assert!(String::from_utf8(bare.to_vec()).unwrap().contains("HTTP status 502"));
    }

    #[test]
    fn reads_the_kind_of_an_error() {
        let id = Id::number(1);
        let line = our_error(&id, ErrorKind::Misconfigured, "up", "not_sent", "no such name");
        assert_eq!(error_kind(&line).as_deref(), Some("misconfigured"));
        assert!(String::from_utf8(line.to_vec()).unwrap().contains("-33006"));
    }
}
