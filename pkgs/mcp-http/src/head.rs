//! A response's head, with what MCP reads from it already checked.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, response};

use crate::outgoing::SESSION_ID;
use crate::sse::MAX_WAIT;

/// The longest session id that is taken, in bytes. The protocol sets no limit; real ids are under 100.
pub const MAX_SESSION_ID: usize = 1024;

/// What came before the body. Redirects are reported like any other status and never followed.
pub struct Head {
    /// The HTTP status.
    pub status: StatusCode,
    /// The `Mcp-Session-Id` of the response, if it has one.
    pub session: Option<SessionHeader>,
    /// What the body is.
    pub content: Content,
    /// `Retry-After`, as seconds or as a date (measured against the response's own `Date`); at most
    /// [`MAX_WAIT`].
    pub retry_after: Option<Duration>,
    /// `WWW-Authenticate`, several joined by a comma.
    pub www_authenticate: Option<String>,
    /// All headers.
    pub headers: HeaderMap,
}

/// The value of a `Mcp-Session-Id` header (all revisions, "Session Management": visible ASCII, 0x21 to 0x7E).
#[derive(Clone, PartialEq, Eq)]
pub enum SessionHeader {
    /// May be sent back as it is. Marked sensitive.
    Valid(HeaderValue),
    /// The server broke the rule. What to do about it is for the caller; it must not be sent back.
    Invalid(SessionIdError),
}

/// How a session id breaks the rules. The server's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionIdError {
    /// The header has no value.
    #[error("the session id is empty")]
    Empty,
    /// Longer than [`MAX_SESSION_ID`].
    #[error("the session id has {length} bytes, more than {MAX_SESSION_ID}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// A byte outside 0x21 to 0x7E.
    #[error("the session id has a byte outside 0x21 to 0x7E")]
    Charset,
    /// Several headers with different values.
    #[error("the response names more than one session id")]
    Several,
}

/// What a body is, by its head. Decide by this and not by the request: a server may answer a GET with HTML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// `application/json`, with any parameters.
    Json,
    /// `text/event-stream`, with any parameters.
    EventStream,
    /// No body, whatever the type says.
    Empty,
    /// Another type, in lower case without parameters; empty if the head has none.
    Other(String),
}

impl SessionHeader {
    /// The id, or how it breaks the rules.
    ///
    /// # Errors
    /// If the server sent an id that must not be used.
    pub fn value(&self) -> Result<&HeaderValue, SessionIdError> {
        match self {
            Self::Valid(value) => Ok(value),
            Self::Invalid(error) => Err(*error),
        }
    }

    /// Checks a value, from a response or from a record.
    #[must_use]
    pub fn check(value: &HeaderValue) -> Self {
        let bytes = value.as_bytes();
        if bytes.is_empty() {
            Self::Invalid(SessionIdError::Empty)
        } else if bytes.len() > MAX_SESSION_ID {
            Self::Invalid(SessionIdError::TooLong { length: bytes.len() })
        } else if bytes.iter().all(|byte| (0x21..=0x7E).contains(byte)) {
            let mut value = value.clone();
            value.set_sensitive(true);
            Self::Valid(value)
        } else {
            Self::Invalid(SessionIdError::Charset)
        }
    }

    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(SESSION_ID).iter();
        let first = values.next()?;
        if values.any(|other| other != first) {
            return Some(Self::Invalid(SessionIdError::Several));
        }
        Some(Self::check(first))
    }
}

impl fmt::Debug for SessionHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Valid(_) => f.write_str("Valid(..)"),
            Self::Invalid(error) => write!(f, "Invalid({error:?})"),
        }
    }
}

impl Head {
    /// Reads one that a sender brought. `empty`: the body is known to have nothing in it.
    #[must_use]
    pub fn new(mut parts: response::Parts, empty: bool) -> Self {
        // An entry of each name would make room for it first.
        for (name, value) in &mut parts.headers {
            if *name == SESSION_ID || *name == header::SET_COOKIE {
                value.set_sensitive(true);
            }
        }
        let headers = parts.headers;
        Self {
            status: parts.status,
            session: SessionHeader::of(&headers),
            content: if empty { Content::Empty } else { content(&headers) },
            retry_after: retry_after(&headers),
            www_authenticate: www_authenticate(&headers),
            headers,
        }
    }
}

impl fmt::Debug for Head {
    /// Header names only: their values are the server's secrets or the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("status", &self.status)
            .field("session", &self.session)
            .field("content", &self.content)
            .field("retry_after", &self.retry_after)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

fn content(headers: &HeaderMap) -> Content {
    let declared = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = declared.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        Content::Json
    } else if essence.eq_ignore_ascii_case(b"text/event-stream") {
        Content::EventStream
    } else {
        Content::Other(String::from_utf8_lossy(essence).to_ascii_lowercase())
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // Only a number too large for its type fails here.
        return Some(value.parse().map_or(MAX_WAIT, Duration::from_secs).min(MAX_WAIT));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    // The server's clock and ours may differ by hours, and it meant its own.
    let now = headers
        .get(header::DATE)
        .and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok())
        .unwrap_or_else(SystemTime::now);
    Some(until.duration_since(now).unwrap_or_default().min(MAX_WAIT))
}

fn www_authenticate(headers: &HeaderMap) -> Option<String> {
    let challenges: Vec<_> = headers
        .get_all(header::WWW_AUTHENTICATE)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
        .collect();
    if challenges.is_empty() { None } else { Some(challenges.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(headers: &[(&'static str, &str)]) -> Head {
        let mut response = http::Response::builder();
        for (name, value) in headers {
            response = response.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        Head::new(response.body(()).unwrap().into_parts().0, false)
    }

    fn session(value: &str) -> SessionHeader {
        head(&[("Mcp-Session-Id", value)]).session.unwrap()
    }

    #[test]
    fn session_ids_are_visible_ascii_of_bounded_length() {
        assert_eq!(session("!~abc").value().unwrap(), "!~abc");
        assert_eq!(session(&"x".repeat(1024)).value().unwrap().len(), 1024);
        assert_eq!(session("a b"), SessionHeader::Invalid(SessionIdError::Charset));
        assert_eq!(session("a\u{e9}"), SessionHeader::Invalid(SessionIdError::Charset));
        assert_eq!(session(""), SessionHeader::Invalid(SessionIdError::Empty));
        assert_eq!(
            session(&"x".repeat(1025)),
            SessionHeader::Invalid(SessionIdError::TooLong { length: 1025 })
        );
        assert!(head(&[]).session.is_none());
        let two = head(&[("mcp-session-id", "a"), ("mcp-session-id", "b")]);
        assert_eq!(two.session.unwrap(), SessionHeader::Invalid(SessionIdError::Several));
        let same = head(&[("mcp-session-id", "a"), ("mcp-session-id", "a")]);
        assert!(same.session.unwrap().value().is_ok());
    }

    #[test]
    fn content_types_are_read_without_case_and_parameters() {
        let of = |value| head(&[("content-type", value)]).content;
        assert_eq!(of("application/json; charset=utf-8"), Content::Json);
        assert_eq!(of("Text/Event-Stream ;x=y"), Content::EventStream);
        assert_eq!(of("text/html"), Content::Other("text/html".into()));
        assert_eq!(head(&[]).content, Content::Other(String::new()));
        let packed = head(&[("content-type", "application/json"), ("content-encoding", "gzip")]);
        assert_eq!(packed.content, Content::Json);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let of = |value| head(&[("retry-after", value)]).retry_after;
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("99999999999999999999999"), Some(MAX_WAIT));
        assert_eq!(of("soon"), None);
        assert_eq!(of("-1"), None);
        let dated = head(&[
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"),
        ]);
        assert_eq!(dated.retry_after, Some(Duration::from_secs(30)));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
    }

    #[test]
    fn challenges_are_joined_and_debug_shows_no_value() {
        let head = head(&[
            ("www-authenticate", "Bearer a=b"),
            ("www-authenticate", "Basic"),
            ("mcp-session-id", "s3cret"),
        ]);
        assert_eq!(head.www_authenticate.as_deref(), Some("Bearer a=b, Basic"));
        assert!(!format!("{head:?} {:?}", head.headers).contains("s3cret"));
    }
}
