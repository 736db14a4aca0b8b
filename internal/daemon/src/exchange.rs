//! One task per exchange with an upstream: sends, reads, and reports facts. Never retries, never judges.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evermux_core::input::{End, ExchangeId, Fact, Refusal};
use evermux_core::names::SessionId;
use evermux_core::output::{ExchangeSpec, Verb};
use http::HeaderValue;
use mcp_http::{
    Client, Content, EventLimits, Incoming, Outgoing, Redirecting, SendError, SendErrorKind, SessionHeader,
    TcpOptions, TcpSender, Written,
};
use mcp_wire::{Batch, Message};
use tokio::sync::{OnceCell, Semaphore};

use crate::credentials::Resolved;
use crate::inbox::{Inbox, Told};

/// The largest JSON answer taken whole, in bytes; the same as the largest event.
const LARGEST_ANSWER: usize = 32 * 1024 * 1024;
/// How much of a refusal's body the symptom table may look at.
const REFUSAL_BODY: usize = 64 * 1024;
/// How long a refusal's body is waited for: its status alone says enough.
const REFUSAL_TIME: Duration = Duration::from_secs(5);
/// Bytes of one exchange that may be on their way to a client before its reader pauses (D22). One larger event
/// passes alone.
const IN_FLIGHT: usize = 1024 * 1024;

/// What an exchange needs.
pub(crate) struct Job {
    pub(crate) exchange: ExchangeId,
    pub(crate) spec: Box<ExchangeSpec>,
    pub(crate) resolved: Resolved,
    pub(crate) sender: Arc<LazySender>,
    pub(crate) inbox: Inbox,
}

/// The one sender, made at the first need: reading the platform's certificates costs a start what no local
/// upstream wants.
#[derive(Default)]
pub(crate) struct LazySender(OnceCell<Redirecting<TcpSender>>);

impl LazySender {
    async fn get(&self) -> Result<Redirecting<TcpSender>, String> {
        let make = || async {
            match tokio::task::spawn_blocking(|| TcpSender::new(&TcpOptions::default())).await {
                Ok(made) => made.map(Redirecting::new).map_err(|error| error.to_string()),
                Err(_) => Err("the HTTP client could not be set up".to_owned()),
            }
        };
        self.0.get_or_try_init(make).await.cloned()
    }
}

/// Runs one exchange to its end.
pub(crate) async fn run(job: Job) {
    let Job { exchange, spec, resolved, sender, inbox } = job;
    let reader = Reader { exchange, inbox, budget: Arc::new(Semaphore::new(IN_FLIGHT)) };
    let outgoing = match outgoing(*spec, resolved.headers) {
        Some(outgoing) => outgoing,
        None => return reader.end(End::NeverWritten("a header value cannot be sent".to_owned())),
    };
    let sender = match sender.get().await {
        Ok(sender) => sender,
        Err(why) => return reader.end(End::NeverWritten(why)),
    };
    let client = Client::new(sender, resolved.url).with_user_agent(USER_AGENT);
    match client.send(outgoing).await {
        Ok(incoming) => reader.read(incoming).await,
        Err(error) => {
            let why = in_words(&error);
            tracing::debug!(error = %error, source = ?error.source.as_ref().map(ToString::to_string), "exchange failed");
            reader.end(match error.written {
                Written::Never => End::NeverWritten(why),
                Written::Unknown => End::Cut(why),
            });
        }
    }
}

const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("evermux/", env!("CARGO_PKG_VERSION")));

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
    budget: Arc<Semaphore>,
}

impl Reader {
    fn tell(&self, facts: Vec<Fact>) {
        self.inbox.tell(Told::Exchange(self.exchange, facts));
    }

    fn end(&self, end: End) {
        self.tell(vec![Fact::Ended(end)]);
    }

    async fn read(self, incoming: Incoming) {
        let status = incoming.head.status;
        let session = match &incoming.head.session {
            Some(SessionHeader::Valid(value)) => value.to_str().ok().and_then(SessionId::new),
            _ => None,
        };
        let head = Fact::Head { session };
        match (status.is_success(), &incoming.head.content) {
            (true, Content::EventStream) => {
                self.tell(vec![head]);
                self.read_events(incoming).await;
            }
            (true, Content::Json) => self.read_answer(incoming, head).await,
            (true, Content::Other(kind)) => {
                let shown: String = kind.escape_default().take(80).collect();
                let why = format!("it has the content type `{shown}`");
                let body = incoming.into_bytes(REFUSAL_BODY).await;
                // 202 for a notification, an empty 200 for a DELETE: both are fine.
                let is_empty = body.is_ok_and(|body| body.is_empty());
                self.tell(vec![head, Fact::Ended(if is_empty { End::Clean } else { End::Cut(why) })]);
            }
            (true, Content::Empty) => {
                drop(incoming.into_bytes(REFUSAL_BODY).await);
                self.tell(vec![head, Fact::Ended(End::Clean)]);
            }
            (false, _) => self.read_refusal(incoming).await,
        }
    }

    async fn read_answer(self, incoming: Incoming, head: Fact) {
        let body = match incoming.into_bytes(LARGEST_ANSWER).await {
            Ok(body) => body,
            Err(error) => return self.tell(vec![head, Fact::Ended(End::Cut(error.to_string()))]),
        };
        let mut facts = vec![head];
        if body.is_empty() || &body[..] == b"null" {
            facts.push(Fact::Ended(End::Clean));
            return self.tell(facts);
        }
        let body = self.counted(body).await;
        facts.extend(match messages(body) {
            Ok(messages) => {
                messages.into_iter().map(|message| Fact::Message { message, cursor: None }).collect()
            }
            Err(why) => vec![Fact::Ended(End::Cut(why))],
        });
        facts.push(Fact::Ended(End::Clean));
        self.tell(facts);
    }

    async fn read_events(self, incoming: Incoming) {
        let mut events = incoming.into_events(EventLimits::default());
        loop {
            let event = match events.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => return self.end(End::Cut(error.to_string())),
                None => return self.end(End::Clean),
            };
            let mut facts: Vec<Fact> = event.retry.map(Fact::Retry).into_iter().collect();
            let cursor =
                event.id.and_then(|id| String::from_utf8(id.to_vec()).ok()).filter(|id| !id.is_empty());
            if says_nothing(&event.data) {
                facts.extend(cursor.map(Fact::Cursor));
                self.tell(facts);
                continue;
            }
            match messages(self.counted(event.data).await) {
                Ok(messages) => {
                    facts.extend(
                        messages.into_iter().map(|message| Fact::Message { message, cursor: cursor.clone() }),
                    );
                }
                Err(why) => return self.end(End::Cut(why)),
            }
            self.tell(facts);
        }
    }

    async fn read_refusal(self, incoming: Incoming) {
        let mut refusal = Refusal {
            status: incoming.head.status.as_u16(),
            json: matches!(incoming.head.content, Content::Json),
            retry_after: incoming.head.retry_after,
            challenge: incoming.head.www_authenticate.is_some(),
            scope: incoming
                .head
                .www_authenticate
                .as_ref()
                .is_some_and(|text| text.contains("insufficient_scope")),
            body: Bytes::new(),
        };
        if let Ok(Ok(body)) = tokio::time::timeout(REFUSAL_TIME, incoming.into_bytes(REFUSAL_BODY)).await {
            refusal.body = body;
        }
        self.end(End::Refused(refusal));
    }

    /// Bytes that carry their permit: it comes back when the last slice of them is gone, however far they went.
    async fn counted(&self, bytes: Bytes) -> Bytes {
        let wanted = u32::try_from(bytes.len().min(IN_FLIGHT)).unwrap_or(u32::MAX);
        match Arc::clone(&self.budget).acquire_many_owned(wanted).await {
            Ok(permit) => Bytes::from_owner(Counted { bytes, _permit: permit }),
            Err(_) => bytes,
        }
    }
}

struct Counted {
    bytes: Bytes,
    _permit: tokio::sync::OwnedSemaphorePermit,
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

/// One message, or the several of a 2025-03-26 batch.
fn messages(body: Bytes) -> Result<Vec<Message>, String> {
    match Message::parse_batch(body) {
        Ok(Batch::One(message)) => Ok(vec![message]),
        Ok(Batch::Many(messages)) => Ok(messages),
        Err(error) => Err(format!("the upstream sent what is no JSON-RPC message: {error}")),
    }
}
