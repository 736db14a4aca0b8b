//! Everything that can go wrong between a client and a server, as values a test can switch on.

use super::journal::Entry;

/// How a server says that it does not know the session a request carries. Each is seen in the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LostAs {
    /// 404 with JSON-RPC −32001, the TypeScript SDK's answer.
    #[default]
    NotFoundJson,
    /// 404 with plain text.
    NotFoundText,
    /// 400, −32000 "No valid session ID provided".
    NoValidSession,
    /// 400, −32000 "Server not initialized".
    NotInitialized,
    /// 401 with a `WWW-Authenticate` challenge.
    UnauthorizedChallenge,
    /// 401 "Session not found" as text, without a challenge.
    UnauthorizedText,
    /// 403, −32003: the session is someone else's.
    Forbidden,
    /// 200 with a JSON-RPC error whose id is null.
    OkErrorBody,
    /// 503 "session unknown on this instance".
    Unavailable,
    /// 503 with `Retry-After: 2`.
    UnavailableRetryAfter,
}

impl LostAs {
    /// All of them, for tests that go through the table.
    pub const ALL: [Self; 10] = [
        Self::NotFoundJson,
        Self::NotFoundText,
        Self::NoValidSession,
        Self::NotInitialized,
        Self::UnauthorizedChallenge,
        Self::UnauthorizedText,
        Self::Forbidden,
        Self::OkErrorBody,
        Self::Unavailable,
        Self::UnavailableRetryAfter,
    ];

    /// The name in command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotFoundJson => "404",
            Self::NotFoundText => "404-text",
            Self::NoValidSession => "400-nosession",
            Self::NotInitialized => "400-notinit",
            Self::UnauthorizedChallenge => "401-auth",
            Self::UnauthorizedText => "401-unknown",
            Self::Forbidden => "403",
            Self::OkErrorBody => "200-err",
            Self::Unavailable => "503",
            Self::UnavailableRetryAfter => "503-retry",
        }
    }

    /// The answer as it goes out.
    pub(super) fn answer(self) -> Canned {
        match self {
            Self::NotFoundJson => Canned::rpc(404, -32001, "Session not found"),
            Self::NotFoundText => Canned::text(404, "Session not found"),
            Self::NoValidSession => Canned::rpc(400, -32000, "Bad Request: No valid session ID provided"),
            Self::NotInitialized => Canned::rpc(400, -32000, "Bad Request: Server not initialized"),
            Self::UnauthorizedChallenge => Canned::rpc(401, -32001, "Unauthorized")
                .with("www-authenticate", "Bearer error=\"invalid_token\""),
            Self::UnauthorizedText => Canned::text(401, "Unauthorized: Session not found"),
            Self::Forbidden => Canned::rpc(403, -32003, "Session belongs to another principal"),
            Self::OkErrorBody => Canned::rpc(200, -32600, "Session not found"),
            Self::Unavailable => Canned::text(503, "session unknown on this instance"),
            Self::UnavailableRetryAfter => {
                Canned::rpc(503, -32001, "Temporarily unavailable").with("retry-after", "2")
            }
        }
    }
}

/// A fixed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Canned {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Canned {
    /// A JSON-RPC error without an id.
    pub(super) fn rpc(status: u16, code: i32, message: &str) -> Self {
        let message = serde_json::Value::from(message);
        let body = format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":{message}}},"id":null}}"#);
        Self { status, headers: Vec::new(), body }.with("content-type", "application/json")
    }

    /// Plain text.
    pub(super) fn text(status: u16, body: &str) -> Self {
        Self { status, headers: Vec::new(), body: body.to_owned() }.with("content-type", "text/plain")
    }

    /// No body.
    pub(super) const fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: String::new() }
    }

    /// One header more.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// What happens to a request instead of, or on top of, its normal answer.
///
/// "Processed" says whether the server acted: a tool ran, a counter rose, a session was minted. A client cannot see the difference,
/// which is the point of having both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// An answer with this status, headers and body; not processed. Headers include the content type.
    Status {
        /// HTTP status.
        status: u16,
        /// Header fields.
        headers: Vec<(String, String)>,
        /// Body.
        body: String,
    },
    /// The request is read, and no head comes until [`clear_faults`](super::Upstream::clear_faults); then the normal answer.
    HangBeforeHead {
        /// Whether it was processed before the hang.
        processed: bool,
    },
    /// The request is read and the connection closed without a head.
    CloseBeforeHead {
        /// Whether it was processed before the close.
        processed: bool,
    },
    /// Processed; the head goes out, then a TCP reset instead of a body.
    ResetAfterHead,
    /// Processed; the connection breaks after so many messages of the answer's stream (priming events not counted). A JSON answer breaks
    /// in its middle.
    CutAfterEvents(usize),
    /// Processed; the stream ends cleanly, but early, after so many messages. For a JSON answer the same as no fault.
    EndAfterEvents(usize),
    /// Held before processing until that gate is open, then normal.
    Gate(String),
    /// 429 with `Retry-After` in seconds; not processed.
    TooManyRequests {
        /// Seconds.
        retry_after: u64,
    },
    /// 503 with `Retry-After` in seconds; not processed.
    Unavailable {
        /// Seconds.
        retry_after: u64,
    },
}

impl Fault {
    /// A plain status with a text body.
    #[must_use]
    pub fn status(status: u16, body: &str) -> Self {
        let Canned { status, headers, body } = Canned::text(status, body);
        Self::Status { status, headers, body }
    }
}

/// Which requests a fault is for. The parts that are given all have to fit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matching {
    /// HTTP method.
    pub verb: Option<String>,
    /// JSON-RPC method.
    pub rpc_method: Option<String>,
    /// Tool of a `tools/call`.
    pub tool: Option<String>,
    /// Session header.
    pub session: Option<String>,
}

impl Matching {
    /// Every request.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests of this HTTP method.
    #[must_use]
    pub fn verb(verb: &str) -> Self {
        Self { verb: Some(verb.to_owned()), ..Self::default() }
    }

    /// Requests of this JSON-RPC method.
    #[must_use]
    pub fn method(rpc_method: &str) -> Self {
        Self { rpc_method: Some(rpc_method.to_owned()), ..Self::default() }
    }

    /// Calls of this tool.
    #[must_use]
    pub fn tool(tool: &str) -> Self {
        Self { tool: Some(tool.to_owned()), ..Self::default() }
    }

    /// Whether a received request fits.
    #[must_use]
    pub fn fits(&self, entry: &Entry) -> bool {
        let part = |wanted: &Option<String>, actual: Option<&str>| {
            wanted.as_deref().is_none_or(|w| Some(w) == actual)
        };
        part(&self.verb, Some(&entry.verb))
            && part(&self.rpc_method, entry.rpc_method.as_deref())
            && part(&self.tool, entry.tool.as_deref())
            && part(&self.session, entry.session.as_deref())
    }
}

/// The faults that are switched on, oldest first.
#[derive(Debug, Default)]
pub(super) struct FaultBook {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    matching: Matching,
    fault: Fault,
    /// `None`: until cleared.
    left: Option<usize>,
}

impl FaultBook {
    /// Adds a fault for the next `times` fitting requests, or until cleared.
    pub(super) fn add(&mut self, matching: Matching, fault: Fault, times: Option<usize>) {
        self.rules.push(Rule { matching, fault, left: times });
    }

    /// The fault for this request, used up by one.
    pub(super) fn take(&mut self, entry: &Entry) -> Option<Fault> {
        let rule = self.rules.iter_mut().find(|rule| rule.left != Some(0) && rule.matching.fits(entry))?;
        rule.left = rule.left.map(|left| left - 1);
        Some(rule.fault.clone())
    }

    /// Drops all of them.
    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }
}
