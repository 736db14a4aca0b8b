//! What a caller wants sent, and the HTTP request it becomes.
//!
//! Rules: MCP transports, "Streamable HTTP", of 2025-03-26, 2025-06-18 and 2025-11-25. Each header of the protocol
//! is sent only if the caller gives it: 2025-03-26 has no version header, and a session may be stored or not.

use std::fmt;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Uri};

/// `Mcp-Session-Id`: names the session (all revisions, "Session Management").
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// `MCP-Protocol-Version`: the negotiated revision (2025-06-18 and later, "Protocol Version Header").
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// `Last-Event-ID`: where a stream is resumed (all revisions, "Resumability and Redelivery").
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// No compression: see `decode.rs`.
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON_OR_EVENT_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// Headers that a caller's extra ones may not set: the framing is the sender's, the protocol's own have a place in
/// [`Outgoing`], and a compressed stream would come late.
const NOT_EXTRA: [HeaderName; 13] = [
    SESSION_ID,
    PROTOCOL_VERSION,
    LAST_EVENT_ID,
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
];

/// The headers that a POST has anyway, with the session's two.
const USUAL_HEADERS: usize = 6;

/// The three things that can be done with an MCP endpoint.
#[derive(Clone)]
pub enum Verb {
    /// Send one message (or, in 2025-03-26, one batch): a JSON body that goes out byte for byte.
    Post(Bytes),
    /// Open or resume a stream of events.
    Get,
    /// End the session.
    Delete,
}

/// One request, before it has an endpoint.
#[derive(Clone)]
pub struct Outgoing {
    /// What to do.
    pub method: Verb,
    /// The session, if there is one: fresh or stored, it makes no difference.
    pub session: Option<HeaderValue>,
    /// The negotiated revision; `None` on `initialize` and for 2025-03-26.
    pub protocol_version: Option<HeaderValue>,
    /// Where to resume; only for [`Verb::Get`] by the protocol, not checked here.
    pub last_event_id: Option<HeaderValue>,
    /// Extra headers, credentials for example. All are treated as secrets. Headers of the protocol, of framing and
    /// of encoding are left out.
    pub headers: HeaderMap,
}

impl Outgoing {
    /// A request with nothing but its verb.
    #[must_use]
    pub fn new(method: Verb) -> Self {
        Self { method, session: None, protocol_version: None, last_event_id: None, headers: HeaderMap::new() }
    }

    pub(crate) fn into_request(self, url: &Uri, user_agent: Option<&HeaderValue>) -> Request<Bytes> {
        let mut headers = extra(self.headers);
        headers.reserve(USUAL_HEADERS);
        if let Some(agent) = user_agent {
            headers.entry(header::USER_AGENT).or_insert_with(|| agent.clone());
        }
        headers.insert(header::ACCEPT_ENCODING, IDENTITY);
        let (method, body) = match self.method {
            Verb::Post(body) => {
                headers.insert(header::CONTENT_TYPE, JSON);
                headers.insert(header::ACCEPT, JSON_OR_EVENT_STREAM);
                (Method::POST, body)
            }
            Verb::Get => {
                headers.insert(header::ACCEPT, EVENT_STREAM);
                (Method::GET, Bytes::new())
            }
            Verb::Delete => (Method::DELETE, Bytes::new()),
        };
        for (name, value, secret) in [
            (SESSION_ID, self.session, true),
            (PROTOCOL_VERSION, self.protocol_version, false),
            (LAST_EVENT_ID, self.last_event_id, true),
        ] {
            if let Some(mut value) = value {
                value.set_sensitive(secret);
                headers.insert(name, value);
            }
        }
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = url.clone();
        *request.headers_mut() = headers;
        request
    }
}

fn extra(mut headers: HeaderMap) -> HeaderMap {
    // There are few of them, and mostly none to leave out.
    if headers.keys().any(|name| NOT_EXTRA.contains(name)) {
        for name in &NOT_EXTRA {
            headers.remove(name);
        }
    }
    for value in headers.values_mut() {
        value.set_sensitive(true);
    }
    headers
}

impl fmt::Debug for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post(body) => write!(f, "Post({} bytes)", body.len()),
            Self::Get => f.write_str("Get"),
            Self::Delete => f.write_str("Delete"),
        }
    }
}

impl fmt::Debug for Outgoing {
    /// Names only: every value here may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("method", &self.method)
            .field("session", &self.session.is_some())
            .field("protocol_version", &self.protocol_version)
            .field("last_event_id", &self.last_event_id.is_some())
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .finish()
    }
}
