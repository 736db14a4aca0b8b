//! The HTTP side: listener, connections, verbs, and where faults bite.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::access;
use super::access::session_of;
use super::era;
use super::events::{ChannelBody, EarlyEnd, View, follow, parse_event_id};
use super::faults::{Canned, Fault};
use super::journal::{Entry, hash};
use super::rpc::{self, Message};
use super::state::{GET_STREAM, Session, Shared, State};
use super::{DeleteSupport, GetSupport, Replies};
use crate::wait::{PATIENCE, poll_until};

pub(super) type ReplyBody = Either<Full<Bytes>, ChannelBody>;
pub(super) type Reply = Response<ReplyBody>;

pub(super) const SESSION_HEADER: &str = "mcp-session-id";

/// Accepts until told to stop. Everything it started ends with it.
pub(super) async fn serve(
    shared: Arc<Shared>,
    address: SocketAddr,
    first: std::net::TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    let mut listener = Some(into_tokio(first));
    let mut connections = JoinSet::new();
    shared.update(|state| state.listening = true);
    loop {
        let listening = listener.is_some();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            () = shared.when(|state| (state.refusing == listening).then_some(())) => {
                if listening {
                    listener = None;
                    connections.shutdown().await;
                } else {
                    listener = Some(into_tokio(bind(address)));
                }
                shared.update(|state| state.listening = !listening);
            }
            accepted = accept(listener.as_ref()) => {
                if let Ok(socket) = accepted {
                    let number = shared.update(|state| { state.n_connections += 1; state.n_connections });
                    connections.spawn(connection(Arc::clone(&shared), socket, number));
                }
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    connections.shutdown().await;
    shared.update(|state| state.listening = false);
}

/// Listens on the port; the kit's holder socket keeps it ours in between. A child that another test forks just now holds a copy of
/// the former listener until it is another program, so that "in use" may pass.
pub(super) fn bind(address: SocketAddr) -> std::net::TcpListener {
    let mut last = None;
    let bound = poll_until(PATIENCE, || {
        std::net::TcpListener::bind(address).map_err(|error| last = Some(error)).ok()
    });
    bound.unwrap_or_else(|| panic!("the upstream cannot listen on its port: {last:?}"))
}

fn into_tokio(listener: std::net::TcpListener) -> TcpListener {
    listener.set_nonblocking(true).expect("a listener can be made non-blocking");
    TcpListener::from_std(listener).expect("the runtime takes a listener")
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(socket, _)| socket),
        None => std::future::pending().await,
    }
}

async fn connection(shared: Arc<Shared>, socket: TcpStream, number: u64) {
    socket.set_nodelay(true).ok();
    let reset = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Socket { inner: socket, reset: Arc::clone(&reset) });
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        let reset = Arc::clone(&reset);
        async move { exchange(&shared, number, &reset, request).await }
    });
    // An error here is a client that left or a fault that was asked for; both are in the journal.
    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await.ok();
}

/// A socket that can end in a TCP reset instead of an orderly close.
struct Socket {
    inner: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            self.inner.set_zero_linger().ok();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Makes hyper close the connection without a head.
#[derive(Debug)]
struct NoAnswer;

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed by a scripted fault")
    }
}

impl std::error::Error for NoAnswer {}

/// One request with its body read.
pub(super) struct Received {
    pub(super) verb: Method,
    pub(super) headers: HeaderMap,
    pub(super) message: Message,
    pub(super) entry: Entry,
    pub(super) early_end: Option<(usize, EarlyEnd)>,
}

impl Received {
    /// The path without its query.
    pub(super) fn path(&self) -> &str {
        self.entry.path.split('?').next().unwrap_or_default()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

async fn exchange(
    shared: &Arc<Shared>,
    connection: u64,
    reset: &AtomicBool,
    request: Request<Incoming>,
) -> Result<Reply, NoAnswer> {
    let (head, body) = request.into_parts();
    // A body that breaks off is journalled with what came of it, and never acted on.
    let (body, whole) = match body.collect().await {
        Ok(body) => (body.to_bytes(), true),
        Err(_) => (Bytes::new(), false),
    };
    let mut received = Received {
        message: Message::parse(&body),
        entry: entry_of(&head, &body, connection),
        verb: head.method,
        headers: head.headers,
        early_end: None,
    };
    received.message.describe(&mut received.entry);
    record(shared, &mut received);
    if !whole {
        return Err(NoAnswer);
    }
    let n = received.entry.n;
    let stalled_on = received.entry.rpc_method.clone().unwrap_or_default();
    shared.when(|state| (!state.stalled.contains(&stalled_on)).then_some(())).await;
    let fault = shared.update(|state| state.faults.take(&received.entry));
    let reply = with_fault(shared, received, fault, reset).await?;
    let session = reply.headers().get(SESSION_HEADER).and_then(|id| id.to_str().ok()).map(str::to_owned);
    shared.journal.answered(n, reply.status().as_u16(), session);
    Ok(reply)
}

fn record(shared: &Shared, received: &mut Received) {
    let is_initialize = received.entry.is("initialize");
    let (mut broken, answers) = shared.update(|state| {
        if era::is_modern(state.script.era, received) {
            return (Vec::new(), None);
        }
        let answers = state.asks.answered_by(&received.entry).map(|ask| ask.method.clone());
        (state.check(&received.entry, is_initialize), answers)
    });
    received.entry.answers = answers;
    if received.verb != Method::DELETE && !accepts(received) {
        broken.push(super::Violation::Accept);
    }
    received.entry.violations = broken;
    received.entry = shared.journal.append(std::mem::take(&mut received.entry));
}

/// POST has to accept both kinds of answer, GET the stream (C2, C6).
fn accepts(received: &Received) -> bool {
    let accept = received.header("accept").unwrap_or_default();
    accept.contains("text/event-stream")
        && (received.verb != Method::POST || accept.contains("application/json"))
}

fn entry_of(head: &http::request::Parts, body: &Bytes, connection: u64) -> Entry {
    let text = |name: &str| {
        head.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let mut entry = Entry {
        verb: head.method.to_string(),
        path: head.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        session: text(SESSION_HEADER),
        protocol_version: text("mcp-protocol-version"),
        last_event_id: text("last-event-id"),
        auth: head.headers.get(AUTHORIZATION).map(|value| hash(value.as_bytes())),
        accept: text("accept"),
        connection,
        ..Entry::default()
    };
    entry.keep_body(body);
    entry.headers = head
        .headers
        .iter()
        .filter(|(name, _)| *name != AUTHORIZATION)
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    entry
}

async fn with_fault(
    shared: &Arc<Shared>,
    mut received: Received,
    fault: Option<Fault>,
    reset: &AtomicBool,
) -> Result<Reply, NoAnswer> {
    match fault {
        None => Ok(dispatch(shared, &received).await),
        Some(Fault::Status { status, headers, body }) => Ok(canned(Canned { status, headers, body })),
        Some(Fault::TooManyRequests { retry_after }) => {
            Ok(canned(Canned::text(429, "slow down").with("retry-after", &retry_after.to_string())))
        }
        Some(Fault::Unavailable { retry_after }) => {
            Ok(canned(Canned::text(503, "come back later").with("retry-after", &retry_after.to_string())))
        }
        Some(Fault::HangBeforeHead { processed }) => {
            let cleared = shared.read(|state| state.faults_cleared);
            let early = if processed { Some(dispatch(shared, &received).await) } else { None };
            shared.when(|state| (state.faults_cleared != cleared).then_some(())).await;
            match early {
                Some(reply) => Ok(reply),
                None => Ok(dispatch(shared, &received).await),
            }
        }
        Some(Fault::CloseBeforeHead { processed }) => {
            if processed {
                // A stream begins before the tool runs: its end says that it did.
                drop(dispatch(shared, &received).await.into_body().collect().await);
            }
            Err(NoAnswer)
        }
        Some(Fault::ResetAfterHead) => {
            reset.store(true, Ordering::Relaxed);
            let reply = dispatch(shared, &received).await;
            Ok(reply.map(|_| Either::Right(ChannelBody::broken_after(Bytes::new()))))
        }
        Some(Fault::CutAfterEvents(after)) => {
            received.early_end = Some((after, EarlyEnd::Cut));
            Ok(cut_in_the_middle(dispatch(shared, &received).await).await)
        }
        Some(Fault::EndAfterEvents(after)) => {
            received.early_end = Some((after, EarlyEnd::Clean));
            Ok(dispatch(shared, &received).await)
        }
        Some(Fault::Gate(name)) => {
            rpc::at_gate(shared, &name, |_| false).await;
            Ok(dispatch(shared, &received).await)
        }
    }
}

/// Breaks a JSON answer half way, under its full content length; a stream breaks by its own view.
async fn cut_in_the_middle(reply: Reply) -> Reply {
    let (mut head, body) = reply.into_parts();
    let Either::Left(body) = body else { return Response::from_parts(head, body) };
    let bytes = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(never) => {
            let never: Infallible = never;
            match never {}
        }
    };
    head.headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    Response::from_parts(head, Either::Right(ChannelBody::broken_after(bytes.slice(..bytes.len() / 2))))
}

/// A fixed answer as a response.
pub(super) fn canned(canned: Canned) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(Bytes::from(canned.body))));
    *reply.status_mut() = StatusCode::from_u16(canned.status).expect("a script gives a valid HTTP status");
    for (name, value) in canned.headers {
        let name = HeaderName::try_from(name).expect("a script gives a valid header name");
        let value = HeaderValue::try_from(value).expect("a script gives a valid header value");
        reply.headers_mut().append(name, value);
    }
    reply
}

async fn dispatch(shared: &Arc<Shared>, received: &Received) -> Reply {
    let refusal = shared.update(|state| {
        state.end_idle_sessions();
        access::refusal(state, received)
    });
    if let Some(refusal) = refusal {
        return canned(refusal);
    }
    if era::is_modern(shared.read(|state| state.script.era), received) {
        return era::serve(shared, received).await;
    }
    match received.verb {
        Method::POST => rpc::post(shared, received).await,
        Method::GET => get(shared, received),
        Method::DELETE => delete(shared, received),
        _ => canned(Canned::text(405, "Method Not Allowed").with("allow", "GET, POST, DELETE")),
    }
}

/// The GET stream, or the rest of any stream when the request has a `Last-Event-ID`.
fn get(shared: &Arc<Shared>, received: &Received) -> Reply {
    if !accepts(received) {
        return canned(Canned::rpc(406, -32000, "Not Acceptable: Client must accept text/event-stream"));
    }
    let view = shared.update(|state| {
        let session = session_of(state, received)?;
        attach(state, session, received)
    });
    match view {
        Ok(view) => event_stream(shared, view),
        Err(refusal) => canned(refusal),
    }
}

fn attach(state: &mut State, session_id: String, received: &Received) -> Result<View, Canned> {
    if state.script.get_stream == GetSupport::MethodNotAllowed {
        return Err(Canned::rpc(405, -32000, "Method not allowed.").with("allow", "POST, DELETE"));
    }
    let event_ids = state.script.replies.has_event_ids();
    let retry_ms = state.script.retry_ms;
    state.n_viewers += 1;
    let viewer = state.n_viewers;
    let unknown = || Canned::rpc(400, -32000, "Invalid event ID");
    let session: &mut Session = state.session(&session_id).ok_or_else(unknown)?;
    let (stream, from) = match &received.entry.last_event_id {
        Some(id) if event_ids => parse_event_id(id).ok_or_else(unknown)?,
        _ => (GET_STREAM, session.get_stream().messages.len()),
    };
    let log =
        session.streams.get_mut(&stream).filter(|log| from <= log.messages.len()).ok_or_else(unknown)?;
    if stream == GET_STREAM && log.viewer.is_some() {
        return Err(Canned::rpc(409, -32000, "Conflict: Only one SSE stream is allowed per session"));
    }
    log.viewer = Some(viewer);
    let prime = received.entry.last_event_id.is_none();
    let early_end = received.early_end;
    Ok(View {
        session: session_id,
        stream,
        viewer,
        from,
        event_ids,
        prime,
        retry_ms,
        early_end,
        discard: false,
    })
}

/// A view as a response.
pub(super) fn event_stream(shared: &Arc<Shared>, view: View) -> Reply {
    let mut reply = Response::new(Either::Right(follow(shared, view)));
    reply.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    reply.headers_mut().insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

/// A view on the answer of a POST.
pub(super) fn answer_view(state: &mut State, session: &str, stream: u64, received: &Received) -> View {
    state.n_viewers += 1;
    let viewer = state.n_viewers;
    let event_ids = state.script.replies == Replies::SseWithIds && !state.visits.contains_key(session);
    if let Some(log) = state.session(session).and_then(|session| session.streams.get_mut(&stream)) {
        log.viewer = Some(viewer);
    }
    View {
        session: session.to_owned(),
        stream,
        viewer,
        from: 0,
        event_ids,
        prime: true,
        retry_ms: state.script.retry_ms,
        early_end: received.early_end,
        discard: !event_ids,
    }
}

fn delete(shared: &Shared, received: &Received) -> Reply {
    let outcome = shared.update(|state| {
        let session = session_of(state, received)?;
        let status = match state.script.delete {
            DeleteSupport::MethodNotAllowed => return Err(Canned::rpc(405, -32000, "Method not allowed.")),
            DeleteSupport::Ok => 200,
            DeleteSupport::NoContent => 204,
        };
        state.end_session(&session);
        Ok(Canned::empty(status))
    });
    canned(outcome.unwrap_or_else(|refusal| refusal))
}
