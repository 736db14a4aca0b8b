//! The server role of streamable HTTP towards local clients: reads a request, hands the fact to the reactor, waits
//! for the head. What a message means is not its business.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use evermux_config::ConfigError;
use evermux_core::input::{Delivery, Input, Sender, StreamId};
use evermux_core::names::UpstreamName;
use evermux_store::StateDir;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use mcp_http::BoxError;
use mcp_wire::Segments;
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio_util::either::Either;

use crate::batch::Member;
use crate::body::{Head, Queues, Sink, encode};
use crate::control;
use crate::drain;
use crate::events::EventBody;
use crate::exchange::out_of_its_buffer;
use crate::fields::{Field, Fields};
use crate::guard::{Guard, Refusal};
use crate::inbox::{Inbox, Told};
use crate::keeper::Keeper;
use crate::neighbours::Neighbours;
use crate::offers::Offers;
use crate::port::Port;
use crate::relay::{self, PassedBody};
use crate::request::{self, Body};
use crate::seals::Seals;
use crate::takeover;
use crate::takeover::predecessor::House;

pub(crate) type Reply = Response<ReplyBody>;

/// What follows a head.
pub(crate) enum ReplyBody {
    /// It breaks off, as one of the others said.
    Breaking(Option<BoxError>),
    Events(EventBody),
    Whole(Full<Bytes>),
    /// What another process answers.
    Passed(PassedBody),
    /// Lines of a process that drains.
    Lines(mpsc::Receiver<Bytes>),
}

/// In a reply's extensions: there is to be none, the connection breaks instead.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the process that a request was relayed to is gone")]
pub(crate) struct Broken;

/// Which listener a request came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// The owner-only socket: whoever can connect is the user.
    Socket,
    /// The loopback port: any program, and any web page, of this machine can.
    Tcp,
    /// The socket of a process that drains: the active process of the same user.
    Drain,
}

/// What every connection shares.
pub(crate) struct Face {
    pub(crate) inbox: Inbox,
    pub(crate) seals: Seals,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) state: StateDir,
    /// This process's generation is durable.
    pub(crate) founded: OnceCell<()>,
    pub(crate) streams: AtomicU64,
    pub(crate) port: Port,
    pub(crate) guard: Guard,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) offers: Offers,
    /// What a successor asks for, once this process serves.
    pub(crate) house: OnceLock<Arc<House>>,
}

impl Face {
    /// Reads the config and the token anew. A bad config changes nothing.
    pub(crate) async fn reload(&self) -> Result<(), ConfigError> {
        self.keeper.reload(&self.inbox).await?;
        let state = self.state.clone();
        // A token that is gone is made anew, and synced: no work for this thread.
        let token = tokio::task::spawn_blocking(move || {
            let token = state.http_token()?;
            state.settle().map(|()| token)
        });
        match token.await {
            Ok(Ok(token)) => self.guard.expect_token(&token),
            Ok(Err(error)) => tracing::error!(%error, "the token cannot be read; the one of before counts"),
            Err(error) => tracing::error!(%error, "the token cannot be read; the one of before counts"),
        }
        self.port.configure(self.keeper.config().http.map(|http| http.listen));
        Ok(())
    }

    /// Serves one request. Its head is read at once, so that the future holds what is still needed of it and no more: room for
    /// it is made for each request.
    pub(crate) fn serve(
        self: Arc<Self>,
        via: Via,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Reply, Broken>> + Send {
        match self.examine(via, request) {
            Ok(asked) => Either::Left(self.serve_mcp(asked)),
            // Boxed, as every rare way is: a future takes room for the largest of its ways.
            Err(aside) => Either::Right(Box::pin(async move {
                let reply = match aside {
                    Aside::Refused(reply) => *reply,
                    Aside::Control(request) => self.control(via, *request).await,
                };
                self.finish(via, reply)
            })),
        }
    }

    fn finish(&self, via: Via, mut reply: Reply) -> Result<Reply, Broken> {
        if reply.extensions().get::<Broken>().is_some() {
            return Err(Broken);
        }
        if via != Via::Drain && self.neighbours.is_handed_over() {
            // Whoever comes again is to come to the successor.
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(reply)
    }

    fn examine(&self, via: Via, request: Request<Incoming>) -> Result<Asked, Aside> {
        if via == Via::Tcp
            && let Err(refusal) = self.guard.check(request.uri(), request.headers())
        {
            tracing::debug!(?refusal, "refused a request on TCP");
            return Err(Aside::Refused(Box::new(refused(refusal))));
        }
        let Some(upstream) = request.uri().path().strip_prefix("/mcp/").map(UpstreamName::from) else {
            return Err(Aside::Control(Box::new(request)));
        };
        let (Parts { method, headers, .. }, body) = request.into_parts();
        let fields = Fields::of(&headers);
        let examined = request::examine(via, &self.seals, &method, &headers, &fields);
        let (from, delivery) = examined.map_err(Aside::Refused)?;
        let what = match method {
            Method::POST => What::Post {
                body,
                revision: request::check_revision(&fields).err(),
                // Its sender waits for the head: a shim with more to send (HTTP gives no order between requests, so the next one
                // goes when this was taken), and the active process, whose own client may.
                prompt: via == Via::Drain || fields.has(Field::More),
            },
            Method::GET => What::Listen,
            _ => What::End,
        };
        Ok(Asked { via, upstream, from, delivery, what })
    }

    /// Control is for whoever can open the socket; a token lets nobody stop the daemon.
    async fn control(&self, via: Via, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        match (path.strip_prefix("/control/"), via) {
            (Some("describe"), Via::Drain) => takeover::beside::describe(self, request),
            (Some(rest), Via::Drain) => drain::control(self, rest, &request),
            (Some(_), Via::Socket) if self.neighbours.is_handed_over() => {
                control::pass_on(self, request).await
            }
            (Some("takeover"), Via::Socket) => takeover::welcome(self, request),
            (Some(rest), Via::Socket) => control::serve(self, rest, request).await,
            _ if path == "/healthz" => plain(StatusCode::OK, Bytes::new()),
            _ => plain(StatusCode::NOT_FOUND, Bytes::new()),
        }
    }

    fn serve_mcp(self: Arc<Self>, asked: Asked) -> impl Future<Output = Result<Reply, Broken>> + Send {
        let Asked { via, upstream, from, delivery, what } = asked;
        // A block and no `async fn`, which would have room for its arguments twice.
        async move {
            if delivery.seq.is_none() && !self.founded.initialized() {
                // It is given ids of events, which name this process's generation and may come back after a power cut.
                Box::pin(self.founded.get_or_init(|| settled(self.state.clone()))).await;
            }
            if !self.neighbours.is_handed_over() {
                // The successor's business from then on.
                self.keeper.ensure(&upstream.0).await;
            }
            let stream = self.stream();
            let (input, prompt) = match what {
                What::Post { body, revision, prompt } => {
                    let read = self.read(via, body).await;
                    let most = self.keeper.config().limits.batch;
                    let message = match read.and_then(|bytes| request::read(&from, revision, bytes, most)) {
                        Ok(Body::One(message)) => message,
                        Ok(Body::Batch(members)) => {
                            let answered = Box::pin(self.post_batch(via, upstream, from, members)).await;
                            return self.finish(via, answered.unwrap_or_else(|reply| *reply));
                        }
                        Err(reply) => return self.finish(via, *reply),
                    };
                    self.await_identity(&upstream, &from).await;
                    (Input::Posted { stream, upstream, from, message, delivery }, prompt)
                }
                What::Listen => (Input::Listening { stream, upstream, from, delivery }, true),
                What::End => (Input::LinkEnded { stream, upstream, from, delivery }, true),
            };
            // A client that goes away before there is a head is told of too.
            let head = self.hand_in(stream, input, prompt).head().await;
            self.finish(via, reply(head, self.comments(via)))
        }
    }

    /// Every member is a message of its own, in their order; what answers them is one stream.
    async fn post_batch(
        &self,
        via: Via,
        upstream: UpstreamName,
        from: Sender,
        members: Vec<Member>,
    ) -> Result<Reply, Box<Reply>> {
        self.await_identity(&upstream, &from).await;
        // All of them before the first answer: they are for the core what a client sends without waiting.
        let taken: Vec<Result<Waiting<'_>, Bytes>> = members
            .into_iter()
            .map(|member| {
                let (stream, upstream, from) = (self.stream(), upstream.clone(), from.clone());
                let delivery = Delivery { batched: true, ..Delivery::default() };
                member.map(|message| {
                    self.hand_in(stream, Input::Posted { stream, upstream, from, message, delivery }, true)
                })
            })
            .collect();
        let mut body = EventBody::default();
        for one in taken {
            let refused = match one {
                Err(error) => error,
                Ok(waiting) => match waiting.head().await {
                    Some(Head::Events { body: events, .. }) => {
                        body.add(events);
                        continue;
                    }
                    Some(Head::Accepted) => continue,
                    // The link is gone, and with it the place of all the others.
                    Some(refusal @ Head::Refused { status: 404, .. }) => {
                        return Ok(reply(Some(refusal), None));
                    }
                    Some(Head::Refused { body, .. }) => body,
                    Some(Head::Passed(passed)) if passed.status() == StatusCode::NOT_FOUND => {
                        return Ok(reply(Some(Head::Passed(passed)), None));
                    }
                    Some(Head::Passed(passed)) => {
                        relay::whole(*passed).await.ok_or_else(|| Box::new(broken()))?
                    }
                    Some(refusal @ (Head::NotMine(_) | Head::Broken)) => {
                        return Ok(reply(Some(refusal), None));
                    }
                    None => return Ok(reply(None, None)),
                },
            };
            body.say(encode(None, &Segments::from(refused)));
        }
        if body.is_empty() {
            return Ok(plain(StatusCode::ACCEPTED, Bytes::new()));
        }
        body.break_silence(self.comments(via));
        Ok(events(None, body))
    }

    async fn read(&self, via: Via, body: Incoming) -> Result<Bytes, Box<Reply>> {
        let config = self.keeper.config();
        let largest = config.limits.body;
        let whole = Limited::new(body, largest).collect();
        let collected = match config.http.filter(|_| via == Via::Tcp) {
            None => whole.await,
            Some(http) => tokio::time::timeout(http.request_timeout, whole).await.map_err(|_late| {
                let text = "the body did not come in time";
                let mut reply = malformed(StatusCode::REQUEST_TIMEOUT, text);
                reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                Box::new(reply)
            })?,
        };
        collected.map(|whole| out_of_its_buffer(whole.to_bytes())).map_err(|error| {
            Box::new(if error.is::<LengthLimitError>() {
                let text = format!("a message may have {largest} bytes at most");
                malformed(StatusCode::PAYLOAD_TOO_LARGE, &text)
            } else {
                malformed(StatusCode::BAD_REQUEST, "the body broke off")
            })
        })
    }

    async fn await_identity(&self, upstream: &UpstreamName, from: &Sender) {
        if let Sender::Link(claim) = from
            && !self.neighbours.is_handed_over()
        {
            self.keeper.await_identity(&upstream.0, claim.identity).await;
        }
    }

    fn stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// Only on TCP: a shim waits as long as it must, and an idle daemon is to sleep.
    fn comments(&self, via: Via) -> Option<Duration> {
        if via == Via::Tcp { self.keeper.config().http?.keepalive } else { None }
    }

    /// Hands a request to the reactor.
    /// `prompt`: its head is not to wait for an event.
    fn hand_in(&self, stream: StreamId, input: Input, prompt: bool) -> Waiting<'_> {
        let limits = self.keeper.config().limits;
        let queues = Queues { response: limits.queued_response, stream: limits.queued_stream };
        let (sink, head) = Sink::new(&input, queues);
        let sink = if prompt { sink.at_once() } else { sink };
        self.inbox.tell(Told::Client { stream, sink, input });
        Waiting { stream, inbox: &self.inbox, head, over: false }
    }
}

/// A request that is to no upstream.
enum Aside {
    Refused(Box<Reply>),
    Control(Box<Request<Incoming>>),
}

/// A request to an upstream.
struct Asked {
    via: Via,
    upstream: UpstreamName,
    from: Sender,
    delivery: Delivery,
    what: What,
}

enum What {
    Post {
        body: Incoming,
        /// What is said of its revision, unless the message is about revisions.
        revision: Option<Box<Reply>>,
        prompt: bool,
    },
    Listen,
    End,
}

fn reply(head: Option<Head>, comments: Option<Duration>) -> Reply {
    match head {
        Some(Head::Events { link, body }) => {
            let mut body = EventBody::of(body);
            body.break_silence(comments);
            events(link, body)
        }
        Some(Head::Accepted) => plain(StatusCode::ACCEPTED, Bytes::new()),
        Some(Head::Refused { status, body }) => {
            plain(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
        }
        Some(Head::Passed(passed)) => passed.map(ReplyBody::Passed),
        Some(Head::NotMine(generation)) => {
            let mut reply = plain(StatusCode::MISDIRECTED_REQUEST, Bytes::new());
            reply.headers_mut().insert(relay::NOT_MINE, HeaderValue::from(generation.0));
            reply
        }
        Some(Head::Broken) => broken(),
        None => malformed(StatusCode::SERVICE_UNAVAILABLE, "evermux is ending"),
    }
}

/// A request that has no head yet.
struct Waiting<'a> {
    stream: StreamId,
    inbox: &'a Inbox,
    head: oneshot::Receiver<Head>,
    over: bool,
}

impl Waiting<'_> {
    /// None: the reactor is gone.
    async fn head(mut self) -> Option<Head> {
        let head = (&mut self.head).await;
        self.over = true;
        head.ok()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.inbox.tell(Told::Fact(Input::StreamClosed(self.stream)));
        }
    }
}

fn events(link: Option<String>, body: EventBody) -> Reply {
    let mut reply = Response::new(ReplyBody::Events(body));
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    // A proxy in between that collects or packs events would hold a question back that its server waits on (B34).
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
        headers.insert(mcp_http::SESSION_ID, link);
    }
    reply
}

/// A disk that does not take it is told by the records, which cannot be written either.
async fn settled(state: StateDir) {
    drop(tokio::task::spawn_blocking(move || state.settle()).await);
}

fn broken() -> Reply {
    let mut reply = plain(StatusCode::BAD_GATEWAY, Bytes::new());
    reply.extensions_mut().insert(Broken);
    reply
}

impl HttpBody for ReplyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = match &mut *self {
            Self::Events(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Passed(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Lines(lines) => lines.poll_recv(cx).map(|line| Some(Ok(Frame::data(line?)))),
            Self::Breaking(error) => return Poll::Ready(error.take().map(Err)),
        };
        if let Poll::Ready(Some(Err(error))) = polled {
            // hyper drops what it has not written when a body breaks. What came before is the client's: a turn later.
            *self = Self::Breaking(Some(error));
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Events(body) => body.is_end_stream(),
            Self::Whole(body) => body.is_end_stream(),
            Self::Passed(body) => body.is_end_stream(),
            Self::Lines(_) => false,
            Self::Breaking(error) => error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Events(body) => body.size_hint(),
            Self::Whole(body) => body.size_hint(),
            Self::Passed(body) => body.size_hint(),
            Self::Lines(_) | Self::Breaking(_) => SizeHint::default(),
        }
    }
}

/// A reply without events; JSON if it has a body.
pub(crate) fn plain(status: StatusCode, body: Bytes) -> Reply {
    let has_body = !body.is_empty();
    let mut reply = Response::new(ReplyBody::Whole(Full::new(body)));
    *reply.status_mut() = status;
    if has_body {
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    reply
}

pub(crate) fn refused(refusal: Refusal) -> Reply {
    let mut reply = malformed(refusal.status(), refusal.text());
    if refusal == Refusal::Token {
        // No `resource_metadata`: there is no authorization server to go to (contract, "Endpoints").
        reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

pub(crate) fn malformed(status: StatusCode, text: &str) -> Reply {
    plain(status, mcp_wire::error(None, mcp_wire::code::INVALID_REQUEST, text, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each request makes one.
    #[test]
    fn its_future_is_small() {
        fn size_of_what_it_makes<F>(_: impl FnOnce(Arc<Face>, Via, Request<Incoming>) -> F) -> usize {
            size_of::<F>()
        }
        let size = size_of_what_it_makes(Face::serve);
        assert!(size <= 1024, "{size} bytes: which rare way is not boxed, which argument is held twice?");
    }
}
