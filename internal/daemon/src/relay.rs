//! Relays: a request that another process of this daemon deals with is sent to it as it came, and its answer goes to
//! the client as it comes. Nothing of a body is looked at, nothing is sent twice: once a byte of it was written, what
//! became of a request is for its client to find out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use evermux_core::failure::{Failure, Kind};
use evermux_core::handover::{Peer, Relayed, RelayedVerb};
use evermux_core::input::{Input, Sender};
use evermux_core::names::Generation;
use evermux_core::seal::Sealer;
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Collected, Limited};
use mcp_http::{BodyError, RawBody, SendErrorKind, Sender as _, UnixSender, Written};
use mcp_wire::Segments;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use crate::body::{Head, Sink};
use crate::fields::Field;
use crate::inbox::{Inbox, Told};
use crate::neighbours::{Counted, Neighbours};

/// On a 421: the process that says so.
pub(crate) const NOT_MINE: HeaderName = HeaderName::from_static("evermux-not-mine");
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of an event stream on their way to a client; the next ones are read once it took these.
const WINDOW: usize = 1024 * 1024;
/// The largest answer that is made an event, in bytes: larger than any that a daemon gives.
const LARGEST_EVENT: usize = 64 * 1024 * 1024;

/// A relay and what it takes.
pub(crate) struct Job {
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) sealer: Sealer,
    pub(crate) inbox: Inbox,
    pub(crate) relayed: Box<Relayed>,
    pub(crate) sink: Sink,
}

/// What came of a request.
enum Came {
    Answer(Response<RawBody>),
    /// That process has not got what the request is about.
    Declined(Generation),
    /// The end of the process was taken in, and the request never reached it.
    Departed,
    /// The request never reached it.
    Unreachable,
    /// The request may have reached it, and there is no answer.
    Broke,
}

/// Relays a request. Ends with its client.
pub(crate) async fn run(mut job: Job) {
    let is_post = matches!(job.relayed.what, RelayedVerb::Post(_));
    let under_way = is_post.then(|| job.neighbours.posts.enter());
    let Ok(request) = to_http(&job.sealer, &job.relayed) else { return job.refuse() };
    let came = tokio::select! {
        biased;
        () = job.sink.gone() => return,
        came = reach(&job.neighbours, job.relayed.to, &request) => came,
    };
    match came {
        Came::Answer(response) => job.pass(response, under_way).await,
        // Twice by the same: it would go on for ever.
        Came::Declined(by) if job.relayed.delivery.declined_by != Some(by) => job.give_back(Some(by)),
        Came::Departed => {
            let by = job.relayed.delivery.declined_by;
            job.give_back(by);
        }
        Came::Declined(_) | Came::Unreachable => job.refuse(),
        Came::Broke => job.sink.break_off(),
    }
}

/// The same request, from what is known of it.
fn to_http(sealer: &Sealer, relayed: &Relayed) -> Result<Request<Bytes>, http::Error> {
    let (method, body) = match &relayed.what {
        RelayedVerb::Post(message) => (Method::POST, message.bytes().clone()),
        RelayedVerb::Listen => (Method::GET, Bytes::new()),
        RelayedVerb::EndLink => (Method::DELETE, Bytes::new()),
    };
    let mut request = Request::builder().method(method).uri(format!("/mcp/{}", relayed.upstream));
    request = request.header(ACCEPT, "application/json, text/event-stream");
    request = request.header(CONTENT_TYPE, "application/json");
    let delivery = &relayed.delivery;
    let headers = [
        (Field::Session, link_id(sealer, &relayed.from)),
        (Field::Seq, delivery.seq.map(|seq| seq.0.to_string())),
        (Field::Ack, delivery.ack.map(|seq| seq.0.to_string())),
        (Field::EventId, delivery.after.as_ref().map(|after| sealer.event(after))),
        (Field::Identity, delivery.identity.map(|identity| identity.to_string())),
        (Field::Batched, delivery.batched.then(|| "1".to_owned())),
        (Field::DeclinedBy, delivery.declined_by.map(|generation| generation.0.to_string())),
    ];
    for (field, value) in headers {
        if let Some(value) = value {
            request = request.header(field.name(), value);
        }
    }
    request.body(body)
}

fn link_id(sealer: &Sealer, from: &Sender) -> Option<String> {
    match from {
        Sender::Unknown => None,
        Sender::Link(claim) => Some(sealer.link(claim)),
        // What it said is not kept; anything that no key sealed says the same.
        Sender::Foreign => Some("foreign".to_owned()),
    }
}

/// Sends it once there is somebody to send it to.
async fn reach(neighbours: &Neighbours, to: Peer, request: &Request<Bytes>) -> Came {
    let sender = UnixSender::new(neighbours.path(to));
    let until = Instant::now() + neighbours.times.patience;
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match sender.send(request).await {
            Ok(response) => return judge(response),
            Err(error) => error,
        };
        tracing::debug!(%error, "a relayed request found no process");
        match (error.written, error.kind) {
            (Written::Never, SendErrorKind::Request) => return Came::Unreachable,
            (Written::Never, _) => {}
            _ => return Came::Broke,
        }
        match to {
            Peer::Successor if Instant::now() + pause > until => return Came::Unreachable,
            Peer::Successor => sleep(pause).await,
            Peer::Draining(generation) => {
                // The pause counts too if its end is known already: whoever relays to it then still does so at once.
                sleep(pause).await;
                if neighbours.has_departed(generation) {
                    return Came::Departed;
                }
            }
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn judge(response: Response<RawBody>) -> Came {
    let by = response.headers().get(NOT_MINE).and_then(|by| by.to_str().ok()?.parse().ok());
    match by {
        Some(by) if response.status() == StatusCode::MISDIRECTED_REQUEST => Came::Declined(Generation(by)),
        _ => Came::Answer(response),
    }
}

impl Job {
    /// Hands the input in again.
    fn give_back(self, declined_by: Option<Generation>) {
        let Self { relayed, sink, inbox, .. } = self;
        let Relayed { stream, upstream, from, what, mut delivery, .. } = *relayed;
        delivery.declined_by = declined_by;
        let input = match what {
            RelayedVerb::Post(message) => Input::Posted { stream, upstream, from, message, delivery },
            RelayedVerb::Listen => Input::Listening { stream, upstream, from, delivery },
            RelayedVerb::EndLink => Input::LinkEnded { stream, upstream, from, delivery },
        };
        inbox.tell(Told::Client { stream, sink, input });
    }

    fn refuse(mut self) {
        let id = match &self.relayed.what {
            RelayedVerb::Post(message) => message.id(),
            RelayedVerb::Listen | RelayedVerb::EndLink => None,
        };
        let text = "this daemon was replaced, and its successor cannot be reached; send this again later";
        let body = Failure::new(Kind::Draining, text).to_error(id.as_ref(), &self.relayed.upstream);
        self.sink.answer(Head::Refused { status: StatusCode::SERVICE_UNAVAILABLE.as_u16(), body });
    }

    async fn pass(mut self, response: Response<RawBody>, under_way: Option<Counted>) {
        let (mut parts, body) = response.into_parts();
        if parts.status == StatusCode::OK && is(&parts.headers, "text/event-stream") {
            let link = parts.headers.get(&mcp_http::SESSION_ID).and_then(|id| id.to_str().ok());
            if self.sink.accept(self.relayed.stream, link.map(str::to_owned), &self.inbox)
                && self.sink.release()
            {
                self.pump(body).await;
            }
        } else if self.sink.has_begun() {
            self.append(&parts.headers, body).await;
        } else if parts.status == StatusCode::ACCEPTED {
            self.sink.answer(Head::Accepted);
        } else {
            strip(&mut parts.headers);
            let body = PassedBody { body, _under_way: under_way };
            self.sink.answer(Head::Passed(Box::new(Response::from_parts(parts, body))));
        }
    }

    /// A whole answer, to a client that has the head of an event stream.
    async fn append(mut self, headers: &HeaderMap, body: RawBody) {
        let collected = tokio::select! {
            biased;
            () = self.sink.gone() => return,
            collected = Limited::new(body, LARGEST_EVENT).collect() => collected,
        };
        match collected.map(Collected::to_bytes) {
            Ok(body) if is(headers, "application/json") && !body.is_empty() => {
                self.sink.event(None, &Segments::from(body));
            }
            Ok(_nothing) => {}
            Err(_cut) => self.sink.break_off(),
        }
    }

    async fn pump(self, mut body: RawBody) {
        let ends = matches!(self.relayed.what, RelayedVerb::Listen) && self.relayed.to == Peer::Successor;
        let room = Arc::new(Semaphore::new(WINDOW));
        let mut seam = Seam::default();
        let mut sink = self.sink;
        loop {
            let frame = tokio::select! {
                biased;
                () = sink.gone() => return,
                () = self.neighbours.hang_up.cancelled(), if ends && seam.is_whole() => return,
                frame = body.frame() => frame,
            };
            let chunk = match frame {
                None => return,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(_cut)) => return sink.break_off(),
            };
            seam.pass(&chunk);
            let size = u32::try_from(chunk.len().min(WINDOW)).unwrap_or(u32::MAX);
            let permit = tokio::select! {
                biased;
                () = sink.gone() => return,
                permit = Arc::clone(&room).acquire_many_owned(size) => permit,
            };
            sink.push(Bytes::from_owner(Lent { chunk, _until_taken: permit.ok() }));
        }
    }
}

/// What is about the connection, which is another one; the length comes with the body.
fn strip(headers: &mut HeaderMap) {
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE, CONTENT_LENGTH] {
        headers.remove(name);
    }
}

/// The whole body of another process's answer; `None`: it broke off.
pub(crate) async fn whole(passed: Response<PassedBody>) -> Option<Bytes> {
    let body = Limited::new(passed.into_body(), LARGEST_EVENT).collect().await;
    body.ok().map(Collected::to_bytes)
}

fn is(headers: &HeaderMap, content: &str) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(content)
}

/// Where events end in a stream that comes in any pieces.
#[derive(Default)]
pub(crate) struct Seam {
    /// The piece before ended with a line.
    line: bool,
    within: bool,
}

impl Seam {
    pub(crate) fn pass(&mut self, chunk: &[u8]) {
        if !chunk.is_empty() {
            self.within = !(chunk.ends_with(b"\n\n") || (self.line && chunk == b"\n"));
            self.line = chunk.ends_with(b"\n");
        }
    }

    /// No event is begun.
    pub(crate) fn is_whole(&self) -> bool {
        !self.within
    }
}

/// Bytes of a stream, and the room that they take up until their client has them.
struct Lent {
    chunk: Bytes,
    _until_taken: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

/// The body of another process's answer.
pub(crate) struct PassedBody {
    body: RawBody,
    _under_way: Option<Counted>,
}

impl Body for PassedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stop that came in the moment of the takeover is meant for whoever serves now.
pub(crate) async fn stop_successor(neighbours: &Neighbours) {
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static("/control/stop");
    if pass_on(neighbours, request).await.is_none() {
        tracing::error!("the successor cannot be told to stop");
    }
}

/// Passes a request about the daemon on to the active process; `None`: it could not be reached.
pub(crate) async fn pass_on(
    neighbours: &Neighbours,
    request: Request<Bytes>,
) -> Option<Response<PassedBody>> {
    // Nobody waits long for these; a shim asks again.
    let until = Instant::now() + neighbours.times.patience / 3;
    match timeout_at(until, reach(neighbours, Peer::Successor, &request)).await {
        Ok(Came::Answer(mut response)) => {
            strip(response.headers_mut());
            Some(response.map(|body| PassedBody { body, _under_way: None }))
        }
        _ => None,
    }
}
