//! The server role of streamable HTTP towards local clients: reads a request, hands the fact to the reactor, waits
//! for the head. What a message means is not its business.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use evermux_config::ConfigError;
use evermux_core::class::Class;
use evermux_core::input::{Delivery, Input, Sender, StreamId};
use evermux_core::names::{Seq, UpstreamName};
use evermux_core::seal::Sealer;
use evermux_store::StateDir;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use mcp_wire::Message;

use crate::body::{Events, Head, Sink};
use crate::control;
use crate::guard::{Guard, Refusal};
use crate::inbox::{Inbox, Told};
use crate::keeper::Keeper;
use crate::port::Port;

/// The largest message taken from a client, in bytes.
const LARGEST_REQUEST: usize = 64 * 1024 * 1024;

pub(crate) type Reply = Response<Either<Events, Full<Bytes>>>;

/// Which listener a request came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// The owner-only socket: whoever can connect is the user.
    Socket,
    /// The loopback port: any program, and any web page, of this machine can.
    Tcp,
}

/// What every connection shares.
pub(crate) struct Face {
    pub(crate) inbox: Inbox,
    pub(crate) sealer: Sealer,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) state: StateDir,
    pub(crate) streams: AtomicU64,
    pub(crate) port: Port,
    pub(crate) guard: Guard,
}

impl Face {
    /// Reads the config and the token anew. A bad config changes nothing.
    pub(crate) async fn reload(&self) -> Result<(), ConfigError> {
        self.keeper.reload(&self.inbox).await?;
        match self.state.http_token() {
            Ok(token) => self.guard.expect_token(&token),
            Err(error) => tracing::error!(%error, "the token cannot be read; the one of before counts"),
        }
        self.port.configure(self.keeper.config().http.map(|http| http.listen));
        Ok(())
    }

    /// Serves one request.
    pub(crate) async fn serve(
        self: Arc<Self>,
        via: Via,
        request: Request<Incoming>,
    ) -> Result<Reply, Infallible> {
        let path = request.uri().path().to_owned();
        if via == Via::Tcp
            && let Err(refusal) = self.guard.check(request.uri(), request.headers())
        {
            return Ok(refused(refusal));
        }
        if let Some(name) = path.strip_prefix("/mcp/") {
            return Ok(self.serve_mcp(name, request).await);
        }
        // Control is for whoever can open the socket; a token lets nobody stop the daemon.
        let control = path.strip_prefix("/control/").filter(|_| via == Via::Socket);
        Ok(match control {
            Some(rest) => control::serve(&self, rest, request).await,
            None if path == "/healthz" => plain(StatusCode::OK, Bytes::new()),
            None => plain(StatusCode::NOT_FOUND, Bytes::new()),
        })
    }

    async fn serve_mcp(&self, name: &str, request: Request<Incoming>) -> Reply {
        let upstream = UpstreamName::from(name);
        self.keeper.ensure(name).await;
        let (parts, body) = request.into_parts();
        let from = self.sender(&parts.headers);
        let stream = StreamId(self.streams.fetch_add(1, Ordering::Relaxed));
        match parts.method {
            Method::POST => match self.read_message(&parts.headers, body).await {
                Ok(message) => {
                    if let Sender::Link(claim) = &from {
                        self.keeper.await_identity(name, claim.identity).await;
                    }
                    match self.delivery(&parts.headers) {
                        Ok(delivery) => {
                            self.ask(stream, Input::Posted { stream, upstream, from, message, delivery })
                                .await
                        }
                        Err(reply) => *reply,
                    }
                }
                Err(reply) => *reply,
            },
            Method::GET => match self.delivery(&parts.headers) {
                Ok(Delivery { after: None, .. })
                    if is_plain(&from) && parts.headers.contains_key("last-event-id") =>
                {
                    // Taken for none, its client would wait on a GET stream for the answer to a call.
                    malformed(StatusCode::BAD_REQUEST, "the Last-Event-ID is no event id of this session")
                }
                Ok(Delivery { after, .. }) => {
                    self.ask(stream, Input::Listening { stream, upstream, from, after }).await
                }
                Err(reply) => *reply,
            },
            Method::DELETE => self.ask(stream, Input::LinkEnded { stream, upstream, from }).await,
            _ => {
                let mut reply = plain(StatusCode::METHOD_NOT_ALLOWED, Bytes::new());
                reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
                reply
            }
        }
    }

    async fn read_message(&self, headers: &HeaderMap, body: Incoming) -> Result<Message, Box<Reply>> {
        let content = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !content.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
            let text = "the Content-Type of a message must be application/json";
            return Err(Box::new(malformed(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)));
        }
        let bytes = match Limited::new(body, LARGEST_REQUEST).collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let text = format!("a message may have {LARGEST_REQUEST} bytes at most");
                return Err(Box::new(malformed(StatusCode::PAYLOAD_TOO_LARGE, &text)));
            }
            Err(_) => return Err(Box::new(malformed(StatusCode::BAD_REQUEST, "the body broke off"))),
        };
        Message::parse(bytes).map_err(|error| {
            let body = mcp_wire::error(error.request_id(), error.code(), &error.to_string(), None);
            Box::new(plain(StatusCode::BAD_REQUEST, body))
        })
    }

    fn sender(&self, headers: &HeaderMap) -> Sender {
        match headers.get(&mcp_http::SESSION_ID) {
            None => Sender::Unknown,
            Some(id) => match id.to_str().ok().and_then(|id| self.sealer.open_link(id)) {
                Some(claim) => Sender::Link(claim),
                None => Sender::Foreign,
            },
        }
    }

    /// How a message came. A number that cannot be read is refused: taken for none, its message could run twice.
    fn delivery(&self, headers: &HeaderMap) -> Result<Delivery, Box<Reply>> {
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        let revision = |text: &str| mcp_wire::version::is_known_session_revision(text).then_some(());
        // Transports, "Protocol Version Header" (2025-06-18): an unknown one must get 400.
        checked(
            headers,
            "MCP-Protocol-Version",
            "a revision that is served (2025-03-26 to 2025-11-25)",
            revision,
        )?;
        let after = headers.get("last-event-id").and_then(|id| self.sealer.open_event(id.to_str().ok()?));
        Ok(Delivery {
            seq: checked(headers, "Evermux-Seq", "a whole number", number)?.map(Seq),
            ack: checked(headers, "Evermux-Ack", "a whole number", number)?.map(Seq),
            after,
            identity: checked(headers, "Evermux-Identity", "32 hex digits", |text| text.parse().ok())?,
            batched: false,
        })
    }

    /// Hands a request to the reactor and waits for its head. A client that goes away before is told of too.
    async fn ask(&self, stream: StreamId, input: Input) -> Reply {
        let (sink, head) = Sink::new(&input);
        let mut waiting = Waiting { stream, inbox: &self.inbox, over: false };
        self.inbox.tell(Told::Client { stream, sink, input });
        let head = head.await;
        waiting.over = true;
        match head {
            Ok(Head::Events { link, body }) => events(link, body),
            Ok(Head::Accepted) => plain(StatusCode::ACCEPTED, Bytes::new()),
            Ok(Head::Refused { status, body }) => {
                plain(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
            }
            Err(_) => malformed(StatusCode::SERVICE_UNAVAILABLE, "evermux is ending"),
        }
    }
}

/// The value of a header that may be absent, but not of another form.
fn checked<T>(
    headers: &HeaderMap,
    name: &'static str,
    form: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Box<Reply>> {
    let mut values = headers.get_all(name).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().ok().and_then(parse),
        (Some(_), Some(_)) => None,
    };
    value.map(Some).ok_or_else(|| {
        Box::new(malformed(StatusCode::BAD_REQUEST, &format!("the header {name} must be {form}, once")))
    })
}

fn is_plain(from: &Sender) -> bool {
    matches!(from, Sender::Link(claim) if claim.class.has(Class::PLAIN))
}

struct Waiting<'a> {
    stream: StreamId,
    inbox: &'a Inbox,
    over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.inbox.tell(Told::Fact(Input::StreamClosed(self.stream)));
        }
    }
}

fn events(link: Option<String>, body: Events) -> Reply {
    let mut reply = Response::new(Either::Left(body));
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
        headers.insert(mcp_http::SESSION_ID, link);
    }
    reply
}

/// A reply without events; JSON if it has a body.
pub(crate) fn plain(status: StatusCode, body: Bytes) -> Reply {
    let has_body = !body.is_empty();
    let mut reply = Response::new(Either::Right(Full::new(body)));
    *reply.status_mut() = status;
    if has_body {
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    reply
}

fn refused(refusal: Refusal) -> Reply {
    let mut reply = malformed(refusal.status(), refusal.text());
    if refusal == Refusal::Token {
        // No `resource_metadata`: there is no authorization server to go to (contract, "Endpoints").
        reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

fn malformed(status: StatusCode, text: &str) -> Reply {
    plain(status, mcp_wire::error(None, mcp_wire::code::INVALID_REQUEST, text, None))
}
