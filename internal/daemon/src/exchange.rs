//! One task per exchange with an upstream: sends, reads, and reports facts. Never retries, never judges.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evermux_core::input::{End, ExchangeId, Fact, Refusal};
use evermux_core::names::SessionId;
use evermux_core::output::{ExchangeSpec, Verb};
use http::HeaderValue;
use mcp_http::{
    BodyError, Client, Content, EventLimits, EventStream, Incoming, Outgoing, SendError, SendErrorKind,
    SessionHeader, Written,
};
use mcp_wire::{Batch, Kind, Message, method};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::credentials::Resolved;
use crate::inbox::{Inbox, Told};
use crate::network::LazySender;
use crate::scrub::Secrets;

/// The largest JSON answer taken whole, in bytes; the same as the largest event.
const LARGEST_ANSWER: usize = 32 * 1024 * 1024;
/// How much of a refusal's body the symptom table may look at.
const REFUSAL_BODY: usize = 64 * 1024;
/// How long a refusal's body is waited for: its status alone says enough.
const REFUSAL_TIME: Duration = Duration::from_secs(5);
/// Bytes of one stream of events that may be on their way before its reader pauses (D22): to the client that takes its
/// answer, or, of a session's shared stream, to the core. One larger event passes alone.
const IN_FLIGHT: usize = 1024 * 1024;
/// What an event costs besides its bytes.
const EVENT: usize = 256;
/// Data up to this size is copied out of the buffer it came in: it may be held for long, and a read's buffer is many
/// times as large as a small event. Nor could the next read use that buffer again.
const COPY_UP_TO: usize = 16 * 1024;

/// Of an answer: its head, its message, its end.
const USUAL_FACTS: usize = 3;

/// What an exchange needs.
pub(crate) struct Job {
    pub(crate) exchange: ExchangeId,
    pub(crate) spec: Box<ExchangeSpec>,
    pub(crate) resolved: Arc<Resolved>,
    pub(crate) sender: Arc<LazySender>,
    pub(crate) inbox: Inbox,
}

/// Runs one exchange to its end. A block and no `async fn`, which would have room for its arguments twice: the task is moved when
/// it is made and when it ends.
pub(crate) fn run(job: Job) -> impl Future<Output = ()> + Send {
    let Job { exchange, spec, resolved, sender, inbox } = job;
    let shared = matches!(spec.verb, Verb::Get);
    let greeting = is_greeting(&spec);
    let sent = Sent { resolved: Arc::clone(&resolved), session: spec.session.clone() };
    let reader = Reader { exchange, inbox, shared, sent, greeting };
    async move {
        let sender = match sender.get(&resolved.url).await {
            Ok(sender) => sender,
            Err(why) => return reader.end(End::NeverWritten(why)),
        };
        let Some(outgoing) = outgoing(*spec, resolved.headers.clone()) else {
            return reader.end(End::NeverWritten("a header value cannot be sent".to_owned()));
        };
        let sending = Client::new(sender, resolved.url.clone()).with_user_agent(USER_AGENT).send(outgoing);
        let incoming = match sending.await {
            Ok(incoming) => incoming,
            Err(error) => return reader.end(end_before(&error)),
        };
        let head = Fact::Head { session: session_of(&incoming) };
        match (incoming.head.status.is_success(), &incoming.head.content) {
            (true, Content::EventStream) => {
                reader.tell(vec![head]);
                reader.read_events(incoming.into_events(EventLimits::default())).await;
            }
            (true, Content::Json) if !reader.shared => {
                let mut facts = Vec::with_capacity(USUAL_FACTS);
                facts.push(head);
                reader.read_answer(incoming.into_bytes(LARGEST_ANSWER), facts).await;
            }
            // A GET is for a stream (2025-11-25, "Listening for Messages from the Server"): anything else is a no. Boxed, as
            // every rare way is: a task takes room for the largest of its ways.
            _ => Box::pin(reader.read_rest(incoming, head)).await,
        }
    }
}

/// There is no response.
fn end_before(error: &SendError) -> End {
    let why = in_words(error);
    tracing::debug!(error = %error, source = ?error.source.as_ref().map(ToString::to_string), "exchange failed");
    match (error.written, error.kind) {
        (Written::Never, SendErrorKind::Exhausted) => End::Exhausted(why),
        (Written::Never, _) => End::NeverWritten(why),
        (Written::Unknown, _) => End::Cut(why),
    }
}

fn session_of(incoming: &Incoming) -> Option<SessionId> {
    match &incoming.head.session {
        Some(SessionHeader::Valid(value)) => value.to_str().ok().and_then(SessionId::new),
        _ => None,
    }
}

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("evermux/", env!("CARGO_PKG_VERSION")));

fn is_greeting(spec: &ExchangeSpec) -> bool {
    let Verb::Post(body) = &spec.verb else { return false };
    // It carries no session; so a call's body is parsed only where its server has no session ids. A revision it may
    // carry (`core/offers.rs`).
    spec.session.is_none()
        && Message::parse(body.clone()).is_ok_and(|message| message.method() == Some(method::INITIALIZE))
}

fn outgoing(spec: ExchangeSpec, headers: http::HeaderMap) -> Option<Outgoing> {
    let value = |text: String| HeaderValue::try_from(text).ok();
    let verb = match spec.verb {
        Verb::Post(body) => mcp_http::Verb::Post(body),
        Verb::Get => mcp_http::Verb::Get,
        Verb::Delete => mcp_http::Verb::Delete,
    };
    let mut outgoing = Outgoing::new(verb);
    outgoing.headers = headers;
    if let Some(session) = spec.session {
        outgoing.session = Some(value(session.expose().to_owned())?);
    }
    if let Some(version) = spec.protocol_version {
        outgoing.protocol_version = Some(value(version)?);
    }
    if let Some(cursor) = spec.last_event_id {
        outgoing.last_event_id = Some(value(cursor)?);
    }
    Some(outgoing)
}

/// What went wrong, with the system's own words where they tell a typo from an outage. They name no URL.
fn in_words(error: &SendError) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> =
        error.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static));
    let mut last = None;
    while let Some(error) = cause {
        last = Some(error);
        cause = error.source();
    }
    match (error.kind, last) {
        (SendErrorKind::Redirect, Some(cause)) => cause.to_string(),
        (SendErrorKind::Connect | SendErrorKind::Tls, Some(cause)) => format!("{} ({cause})", error.kind),
        _ => error.kind.to_string(),
    }
}

struct Reader {
    exchange: ExchangeId,
    inbox: Inbox,
    /// Many listen to it, and one that reads nothing must not hold up the others: its bytes count until the core has
    /// them, and each listener's queue has a limit of its own (`body.rs`).
    shared: bool,
    /// What was sent in secret.
    sent: Sent,
    /// It is an `initialize`: what a server says about its refusal is for people.
    greeting: bool,
}

/// What was sent in secret. Taken apart only where a server's words are shown to people.
struct Sent {
    resolved: Arc<Resolved>,
    session: Option<SessionId>,
}

impl Sent {
    fn secrets(&self) -> Secrets {
        Secrets::of(&self.resolved.headers, self.session.as_ref(), &self.resolved.url)
    }
}

impl Reader {
    /// One message, or the several of a 2025-03-26 batch, as the core may have them.
    fn messages(&self, bytes: Bytes, cursor: Option<&str>, facts: &mut Vec<Fact>) -> Result<(), String> {
        match Message::parse_batch(bytes) {
            Ok(Batch::One(message)) => facts.push(self.message(message, cursor)),
            Ok(Batch::Many(messages)) => {
                facts.extend(messages.into_iter().map(|message| self.message(message, cursor)));
            }
            Err(error) => return Err(format!("the upstream sent what is no JSON-RPC message: {error}")),
        }
        Ok(())
    }

    fn message(&self, message: Message, cursor: Option<&str>) -> Fact {
        let shown = self.greeting && message.kind() == Kind::ErrorResponse;
        let message = if shown { self.sent.secrets().cut_out_of(message) } else { message };
        Fact::Message { message, cursor: cursor.map(str::to_owned) }
    }

    fn tell(&self, facts: Vec<Fact>) {
        self.tell_with(facts, None);
    }

    fn tell_with(&self, facts: Vec<Fact>, until_taken: Option<OwnedSemaphorePermit>) {
        self.inbox.tell(Told::Exchange(self.exchange, facts, until_taken));
    }

    fn end(&self, end: End) {
        self.tell(vec![Fact::Ended(end)]);
    }

    async fn read_rest(self, incoming: Incoming, head: Fact) {
        let status = incoming.head.status;
        match &incoming.head.content {
            _ if self.shared || !status.is_success() => self.read_refusal(incoming).await,
            Content::Other(kind) => {
                let shown: String = kind.escape_default().take(80).collect();
                let why = format!("it has the content type `{shown}`");
                let body = incoming.into_bytes(REFUSAL_BODY).await;
                // 202 for a notification, an empty 200 for a DELETE: both are fine.
                let is_empty = body.is_ok_and(|body| body.is_empty());
                self.tell(vec![head, Fact::Ended(if is_empty { End::Clean } else { End::Cut(why) })]);
            }
            _ => {
                drop(incoming.into_bytes(REFUSAL_BODY).await);
                self.tell(vec![head, Fact::Ended(End::Clean)]);
            }
        }
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn has room for its arguments twice")]
    fn read_answer(
        self,
        body: impl Future<Output = Result<Bytes, BodyError>> + Send,
        mut facts: Vec<Fact>,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let body = match body.await {
                Ok(body) => body,
                Err(error) => {
                    facts.push(Fact::Ended(unread(&error)));
                    return self.tell(facts);
                }
            };
            if matches!(body.trim_ascii(), b"" | b"null") {
                facts.push(Fact::Ended(End::Clean));
                return self.tell(facts);
            }
            // It is all that comes: there is no reading on that its client could hold up.
            if let Err(why) = self.messages(counted(body, None), None, &mut facts) {
                facts.push(Fact::Ended(End::Cut(why)));
            }
            facts.push(Fact::Ended(End::Clean));
            self.tell(facts);
        }
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn has room for its arguments twice")]
    fn read_events(self, mut events: EventStream) -> impl Future<Output = ()> + Send {
        async move {
            let budget = Arc::new(Semaphore::new(IN_FLIGHT));
            let mut passed_over = None;
            loop {
                let event = match events.next().await {
                    Some(Ok(event)) => event,
                    Some(Err(error)) => return self.end(unread(&error)),
                    None => return self.end(end_of(passed_over)),
                };
                let mut facts: Vec<Fact> = event.retry.map(Fact::Retry).into_iter().collect();
                let cursor =
                    event.id.and_then(|id| String::from_utf8(id.to_vec()).ok()).filter(|id| !id.is_empty());
                let permit = permit(&budget, event.data.len() + EVENT).await;
                if says_nothing(&event.data) || !is_message(event.event.as_deref()) {
                    facts.extend(cursor.map(Fact::Cursor));
                    self.tell_with(facts, permit);
                    continue;
                }
                let meant = looks_like_a_message(&event.data);
                let (data, until_taken) =
                    if self.shared { (event.data, permit) } else { (counted(event.data, permit), None) };
                match self.messages(data, cursor.as_deref(), &mut facts) {
                    Err(why) if !meant => {
                        tracing::debug!(why, "an event that is no message was passed over");
                        passed_over = Some(why);
                        facts.extend(cursor.map(Fact::Cursor));
                    }
                    Ok(()) => {}
                    Err(why) => return self.end(End::Cut(why)),
                }
                self.tell_with(facts, until_taken);
            }
        }
    }

    async fn read_refusal(self, incoming: Incoming) {
        let challenge = incoming.head.www_authenticate.as_deref();
        let mut refusal = Refusal {
            status: incoming.head.status.as_u16(),
            json: matches!(incoming.head.content, Content::Json),
            retry_after: incoming.head.retry_after,
            challenge: challenge.is_some(),
            scope: challenge.is_some_and(|text| text.contains("insufficient_scope")),
            wanted_scope: challenge.and_then(wanted_scope).map(|scope| self.without_secrets(scope)),
            body: Bytes::new(),
        };
        if let Ok(Ok(body)) = tokio::time::timeout(REFUSAL_TIME, incoming.into_bytes(REFUSAL_BODY)).await {
            refusal.body = if self.greeting { self.sent.secrets().cut_out(body) } else { body };
        }
        self.end(End::Refused(refusal));
    }

    fn without_secrets(&self, words: String) -> String {
        String::from_utf8_lossy(&self.sent.secrets().cut_out(words.into())).into_owned()
    }
}

/// Waits until this many bytes more may be on their way.
async fn permit(budget: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let wanted = u32::try_from(bytes.min(IN_FLIGHT)).unwrap_or(u32::MAX);
    Arc::clone(budget).acquire_many_owned(wanted).await.ok()
}

/// `scope="a b"` of a challenge (RFC 6750 section 3), quoted or not.
fn wanted_scope(challenge: &str) -> Option<String> {
    let (_, rest) = challenge.split_once("scope=")?;
    let scope = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split([',', ' ']).next(),
    };
    scope.filter(|scope| !scope.is_empty()).map(str::to_owned)
}

/// An answer that did not come whole.
fn unread(error: &BodyError) -> End {
    let why = error.to_string();
    if error.is_too_large() { End::TooLarge(why) } else { End::Cut(why) }
}

/// Small data, copied: see [`COPY_UP_TO`].
pub(crate) fn out_of_its_buffer(bytes: Bytes) -> Bytes {
    if bytes.len() <= COPY_UP_TO { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// Bytes that carry their permit, if they need one: it comes back when the last slice of them is gone, however far they went.
fn counted(bytes: Bytes, permit: Option<OwnedSemaphorePermit>) -> Bytes {
    let bytes = out_of_its_buffer(bytes);
    match permit {
        Some(permit) => Bytes::from_owner(Counted { bytes, _permit: permit }),
        None => bytes,
    }
}

struct Counted {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An event that only has a position. One SDK stores its priming events as `{}`, and a replay gives them back as that,
/// between the messages that are looked for.
fn says_nothing(data: &[u8]) -> bool {
    matches!(data, b"" | b"{}")
}

/// Other types of events are a hop's or a framework's own: signs of life, the old transport's endpoint (WHATWG HTML,
/// "Server-sent events": they go to whoever listens for their type, and nobody does).
fn is_message(kind: Option<&str>) -> bool {
    kind.is_none_or(|kind| kind == "message")
}

/// What names no revision of JSON-RPC was never meant as a message: a heart-beat, also one in JSON. What does and cannot
/// be read may be what somebody waits for, so it must not be passed over.
fn looks_like_a_message(data: &[u8]) -> bool {
    memchr::memmem::find(data, b"\"jsonrpc\"").is_some()
}

/// The end of a stream that ended as HTTP says it must.
fn end_of(passed_over: Option<String>) -> End {
    passed_over.map_or(End::Clean, |why| End::Cut(format!("the stream ended without an answer; {why}")))
}

#[cfg(test)]
mod tests {
    use evermux_core::names::Digest;
    use evermux_core::record::Fingerprint;

    use super::*;

    fn spec(body: &'static str, version: Option<&str>, session: Option<&str>) -> ExchangeSpec {
        let none = Digest(0);
        ExchangeSpec {
            upstream: "up".into(),
            fingerprint: Fingerprint { endpoint: none, identity: none, headers: none, class: none },
            verb: Verb::Post(Bytes::from_static(body.as_bytes())),
            session: session.and_then(SessionId::new),
            protocol_version: version.map(str::to_owned),
            last_event_id: None,
        }
    }

    /// What a server says about its refusal is for people, however the handshake was offered.
    #[test]
    fn a_handshake_is_known_in_whatever_words_it_is_offered() {
        let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"initialize"}}"#;
        assert!(is_greeting(&spec(hello, None, None)));
        assert!(is_greeting(&spec(hello, Some("2025-11-25"), None)), "offered with the header");
        assert!(!is_greeting(&spec(call, Some("2025-11-25"), None)));
        assert!(!is_greeting(&spec(call, Some("2025-11-25"), Some("s"))));
    }

    /// Each call makes one, and moves it twice.
    #[test]
    fn its_task_is_small() {
        fn size_of_what_it_makes<F>(_: impl FnOnce(Job) -> F) -> usize {
            size_of::<F>()
        }
        let size = size_of_what_it_makes(run);
        assert!(size <= 1536, "{size} bytes: which rare way is not boxed, which argument is held twice?");
    }
}
