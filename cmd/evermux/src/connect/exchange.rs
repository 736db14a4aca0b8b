//! One exchange with the daemon each: carries out an order, and tells the machine what came of it.
//!
//! No decisions here: a fact is sent for everything that happens, and the machine says what it means. The channel
//! of facts is narrow on purpose: a stdout that is not read stops the reading of bodies here.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use mcp_http::{
    BodyError, Client, Content, EventLimits, EventStream, Incoming, Outgoing, SseEvent, UnixSender, Verb,
};
use tokio::sync::mpsc;

use super::envelope;
use super::facts::{Event, Input, Post, Unreachable};
use super::spawn::{StartError, ensure_daemon};
use crate::control::{self, ControlError};
use evermux_config::Paths;

/// The largest event taken, in bytes: an answer may be larger than what a client may send.
const EVENT_CAP: usize = 128 << 20;
/// The largest error body taken, in bytes.
const ERROR_CAP: usize = 1 << 20;

const SEQ: HeaderName = HeaderName::from_static("evermux-seq");
const ACK: HeaderName = HeaderName::from_static("evermux-ack");
const MORE: HeaderName = HeaderName::from_static("evermux-more");
const SHIM: HeaderName = HeaderName::from_static("evermux-shim");
const IDENTITY: HeaderName = HeaderName::from_static("evermux-identity");

/// Takes the facts.
pub(crate) type Facts = mpsc::Sender<Input>;

/// The daemon as this shim sees it: one upstream of it.
#[derive(Clone)]
pub(crate) struct Daemon {
    client: Client<UnixSender>,
    pub(super) sender: UnixSender,
    pub(super) paths: Paths,
    upstream: String,
}

impl Daemon {
    /// `None` if the name does not fit into a URL, which no valid name does not.
    pub(crate) fn new(paths: Paths, upstream: &str) -> Option<Self> {
        let url = format!("http://localhost/mcp/{upstream}").parse::<Uri>().ok()?;
        let sender = UnixSender::new(paths.socket());
        let client = Client::new(sender.clone(), url);
        Some(Self { client, sender, paths, upstream: upstream.to_owned() })
    }

    /// Finds the daemon, or starts one, and hands over the variables that the upstream's headers name.
    pub(crate) async fn reach(self, may_start: bool, facts: Facts) {
        let fact = match self.try_reach(may_start).await {
            Ok(identity) => Input::Reached(identity),
            Err(why) => Input::Unreachable(why),
        };
        tell(&facts, fact).await;
    }

    async fn try_reach(&self, may_start: bool) -> Result<Option<String>, Unreachable> {
        // A daemon that handed over still serves its connections: what it says on an idle one is about the past.
        self.sender.dial_anew();
        match control::hello(&self.sender).await {
            Ok(_) => {}
            Err(ControlError::Nobody) if may_start => {
                ensure_daemon(&self.paths, &self.sender).await.map_err(|error| match error {
                    StartError::NotYet(reason) => Unreachable::NotYet(reason),
                    StartError::Failed(reason) => Unreachable::Failed(reason),
                    StartError::Config(reason) => Unreachable::Config(reason),
                })?;
            }
            Err(ControlError::Nobody) => return Err(Unreachable::NoDaemon),
            Err(error @ ControlError::Protocol { .. }) => return Err(Unreachable::Failed(error.to_string())),
            Err(error) => return Err(Unreachable::NotYet(error.to_string())),
        }
        self.hand_over_variables().await.map_err(|error| Unreachable::NotYet(error.to_string()))
    }

    /// The config is read anew each time: a header may have been added. A config that cannot be read now was
    /// fine when this shim began, and is the daemon's to complain about.
    async fn hand_over_variables(&self) -> Result<Option<String>, ControlError> {
        let Ok(config) = evermux_config::load(&self.paths.config_file) else { return Ok(None) };
        let upstream = config.upstreams.values().find(|upstream| upstream.name.as_str() == self.upstream);
        let names = upstream.map(evermux_config::Upstream::env_vars).unwrap_or_default();
        if names.is_empty() {
            return Ok(None);
        }
        let set =
            names.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?.into())));
        let vars: serde_json::Map<String, serde_json::Value> = set.collect();
        let body = Bytes::from(serde_json::json!({ "vars": vars }).to_string());
        let path = format!("/control/env/{}", self.upstream);
        let answer = control::call(&self.sender, Method::POST, &path, body).await?;
        // An upstream that this daemon does not know yet: the message itself is refused, and a reload follows.
        let identity = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
        Ok(identity.and_then(|body| body.get("identity")?.as_str().map(str::to_owned)))
    }

    /// Sends one message and follows its answer to the end. Whoever ordered it stops it if no head comes.
    pub(crate) async fn post(self, post: Post, facts: Facts) {
        let seq = post.seq;
        let fact = match self.client.send(outgoing(post)).await {
            Ok(incoming) => follow(seq, incoming, &facts).await,
            Err(_no_head) => Input::Cut { seq },
        };
        tell(&facts, fact).await;
    }

    /// Holds the standalone stream.
    pub(crate) async fn stream(
        self,
        link: Option<String>,
        version: Option<String>,
        last_event: Option<String>,
        facts: Facts,
    ) {
        let mut out = Outgoing::new(Verb::Get);
        (out.session, out.protocol_version, out.last_event_id) =
            (value(link), value(version), value(last_event));
        out.headers.insert(SHIM, HeaderValue::from_static("1"));
        let mut refused = None;
        let mut body = Bytes::new();
        if let Ok(incoming) = self.client.send(out).await {
            if incoming.head.content == Content::EventStream && incoming.head.status.is_success() {
                let mut events = incoming.into_events(EventLimits { max_event: EVENT_CAP });
                while let Some(Ok(event)) = events.next().await {
                    tell(&facts, Input::StreamEvent(plain(event))).await;
                }
            } else {
                refused = Some(incoming.head.status.as_u16());
                body = control::body_of(incoming, ERROR_CAP).await.unwrap_or_default();
            }
        }
        tell(&facts, Input::StreamEnded { refused, body }).await;
    }

    /// Has the daemon read its config again.
    pub(crate) async fn reload(self, facts: Facts) {
        // Whatever comes of it, the message is sent once more, and its answer tells.
        drop(control::call(&self.sender, Method::POST, "/control/reload", Bytes::new()).await);
        tell(&facts, Input::Reloaded).await;
    }

    /// Ends the link.
    pub(crate) async fn delete(self, link: String, version: Option<String>, facts: Facts) {
        let mut out = Outgoing::new(Verb::Delete);
        (out.session, out.protocol_version) = (value(Some(link)), value(version));
        out.headers.insert(SHIM, HeaderValue::from_static("1"));
        drop(self.client.send(out).await);
        tell(&facts, Input::Deleted).await;
    }
}

/// A receiver that is gone means that the shim ends; then no fact matters.
async fn tell(facts: &Facts, fact: Input) {
    drop(facts.send(fact).await);
}

fn value(text: Option<String>) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(Bytes::from(text?)).ok()
}

fn outgoing(post: Post) -> Outgoing {
    let mut out = Outgoing::new(Verb::Post(post.body));
    (out.session, out.protocol_version, out.last_event_id) =
        (value(post.link), value(post.version), value(post.last_event));
    let mut headers = HeaderMap::new();
    headers.insert(SEQ, HeaderValue::from(post.seq));
    headers.insert(ACK, HeaderValue::from(post.ack));
    headers.insert(SHIM, HeaderValue::from_static("1"));
    if post.more {
        headers.insert(MORE, HeaderValue::from_static("1"));
    }
    if let Some(identity) = value(post.identity) {
        headers.insert(IDENTITY, identity);
    }
    out.headers = headers;
    out
}

/// Reads what came after a message was sent; returns the last fact of it.
async fn follow(seq: u64, incoming: Incoming, facts: &Facts) -> Input {
    let status = incoming.head.status;
    if !status.is_success() {
        return match control::body_of(incoming, ERROR_CAP).await {
            Ok(body) => Input::Refused { seq, status: status.as_u16(), body },
            Err(BodyError::Cut { .. }) => Input::Cut { seq },
            Err(_unusable) => Input::Refused { seq, status: status.as_u16(), body: Bytes::new() },
        };
    }
    let session = incoming.head.session.as_ref().and_then(|session| session.value().ok());
    let link = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
    match incoming.head.content {
        Content::EventStream => {
            tell(facts, Input::Head { seq, link }).await;
            follow_events(seq, incoming.into_events(EventLimits { max_event: EVENT_CAP }), facts).await
        }
        Content::Json => {
            tell(facts, Input::Head { seq, link }).await;
            match control::body_of(incoming, EVENT_CAP).await {
                Ok(data) => {
                    tell(facts, Input::Event { seq, event: Event { data, ..Event::default() } }).await;
                    Input::Ended { seq }
                }
                Err(_cut) => Input::Cut { seq },
            }
        }
        Content::Empty | Content::Other(_) => Input::Accepted { seq },
    }
}

async fn follow_events(seq: u64, mut events: EventStream, facts: &Facts) -> Input {
    loop {
        match events.next().await {
            Some(Ok(event)) => tell(facts, Input::Event { seq, event: plain(event) }).await,
            None => return Input::Ended { seq },
            Some(Err(BodyError::Cut { .. })) => return Input::Cut { seq },
            // The same bytes would come again: a repeat cannot help.
            Some(Err(error)) => {
                return Input::Refused { seq, status: 200, body: envelope::unreadable(&error) };
            }
        }
    }
}

fn plain(event: SseEvent) -> Event {
    let id = event.id.and_then(|id| String::from_utf8(id.to_vec()).ok());
    let name = event.event.filter(|name| name != "message");
    Event { name, id, data: event.data }
}
