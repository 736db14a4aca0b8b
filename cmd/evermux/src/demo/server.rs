//! The demo's MCP server (streamable HTTP, 2025-11-25), on a loopback port, with a journal.
//!
//! It is not the test kit's: that one is for tests and stays out of the shipped binary. This one is as small as
//! the demo allows: sessions with a counter, and a slow call whose stream can be resumed by event id.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::journal::{Entry, Journal};

/// The only revision it speaks.
pub(crate) const VERSION: &str = "2025-11-25";
/// Between two events of the slow call.
const TICK: Duration = Duration::from_millis(150);
/// Progress events of the slow call before its answer.
const TICKS: u64 = 12;

#[derive(Default)]
struct State {
    journal: Journal,
    /// Session id to its counter.
    sessions: HashMap<String, u64>,
    n_sessions: u64,
    /// Events of slow calls, to be read from any place by whoever comes back.
    calls: Vec<Call>,
}

#[derive(Default)]
struct Call {
    events: Vec<Bytes>,
    readers: Vec<mpsc::UnboundedSender<Bytes>>,
    ended: bool,
}

type Shared = Arc<Mutex<State>>;

fn locked(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running server; it ends when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    state: Shared,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Shared::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { address, state, _tasks: tasks })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn journal(&self) -> Journal {
        locked(&self.state).journal.clone()
    }

    pub(crate) fn forget_sessions(&self) {
        locked(&self.state).sessions.clear();
    }
}

async fn accept(listener: TcpListener, state: Shared) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request| handle(Arc::clone(&state), request));
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        });
        while connections.try_join_next().is_some() {}
    }
}

/// A body that is there, or is fed as events come. Ends when its feeder is gone.
pub(crate) struct Feed(mpsc::UnboundedReceiver<Bytes>);

impl Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

type Reply = Response<Feed>;

fn reply(status: StatusCode, kind: Option<&'static str>, feed: Feed) -> Reply {
    let mut response = Response::new(feed);
    *response.status_mut() = status;
    if let Some(kind) = kind {
        response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    }
    response
}

fn whole(bytes: Bytes) -> Feed {
    let (sender, receiver) = mpsc::unbounded_channel();
    drop(sender.send(bytes));
    Feed(receiver)
}

fn empty(status: StatusCode) -> Reply {
    reply(status, None, whole(Bytes::new()))
}

fn answer(id: &Value, result: &Value) -> Reply {
    let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    reply(StatusCode::OK, Some("application/json"), whole(body.into()))
}

async fn handle(state: Shared, request: Request<Incoming>) -> Result<Reply, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body: Value = serde_json::from_slice(&body.collect().await?.to_bytes()).unwrap_or_default();
    let mut entry = entry(&parts.method, &parts.headers, &body);
    let session = entry.session.clone();
    let initialize = entry.method == "initialize";
    let known = session.as_ref().is_some_and(|session| locked(&state).sessions.contains_key(session));
    entry.refused = !known && !initialize;
    let refused = entry.refused;
    locked(&state).journal.0.push(entry);
    if refused {
        return Ok(empty(StatusCode::NOT_FOUND));
    }
    let session = session.unwrap_or_default();
    Ok(match parts.method {
        Method::POST => post(&state, &session, &body),
        Method::GET => resume(&state, &parts.headers),
        _ => {
            locked(&state).sessions.remove(&session);
            empty(StatusCode::OK)
        }
    })
}

fn entry(verb: &Method, headers: &HeaderMap, body: &Value) -> Entry {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let method = body.get("method").and_then(Value::as_str).unwrap_or_default().to_owned();
    let tool = body.pointer("/params/name").and_then(Value::as_str).map(str::to_owned);
    Entry {
        verb: verb.to_string(),
        tool: tool.filter(|_| method == "tools/call"),
        id: body.get("id").filter(|_| !method.is_empty()).map(ToString::to_string),
        method,
        session: header("mcp-session-id"),
        version: header("mcp-protocol-version"),
        refused: false,
    }
}

fn post(state: &Shared, session: &str, body: &Value) -> Reply {
    let Some(id) = body.get("id").filter(|_| body.get("method").is_some()) else {
        return empty(StatusCode::ACCEPTED);
    };
    let tool = body.pointer("/params/name").and_then(Value::as_str).unwrap_or_default();
    let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
    match (body.get("method").and_then(Value::as_str).unwrap_or_default(), tool) {
        ("initialize", _) => initialize(state, id),
        ("tools/list", _) => answer(id, &tools()),
        ("tools/call", "count") => {
            let mut state = locked(state);
            let counter = state.sessions.entry(session.to_owned()).or_default();
            *counter += 1;
            answer(id, &text(&counter.to_string()))
        }
        ("tools/call", "side_effect") => answer(id, &text("done")),
        ("tools/call", "slow") => slow(state, id, body.pointer("/params/_meta/progressToken")),
        ("ping", _) => answer(id, &json!({})),
        _ => {
            let error = json!({"code": -32601, "message": "not served by the demo"});
            let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
            reply(StatusCode::OK, Some("application/json"), whole(body.into()))
        }
    }
}

fn initialize(state: &Shared, id: &Value) -> Reply {
    let session = {
        let mut state = locked(state);
        state.n_sessions += 1;
        let session = format!("demo-session-{}", state.n_sessions);
        state.sessions.insert(session.clone(), 0);
        session
    };
    let info = json!({"name": "evermux-demo-server", "version": env!("CARGO_PKG_VERSION")});
    let result = json!({"protocolVersion": VERSION, "capabilities": {"tools": {}}, "serverInfo": info});
    let mut reply = answer(id, &result);
    if let Ok(value) = http::HeaderValue::from_str(&session) {
        reply.headers_mut().insert("mcp-session-id", value);
    }
    reply
}

fn tools() -> Value {
    let tool = |name: &str, text: &str| json!({"name": name, "description": text, "inputSchema": {"type": "object"}});
    json!({"tools": [
        tool("count", "Counts the calls in this session"),
        tool("side_effect", "Does something that must not be done twice"),
        tool("slow", "Takes two seconds and tells its progress"),
    ]})
}

/// Starts a slow call, which runs to its end whether anybody listens or not.
fn slow(state: &Shared, id: &Value, token: Option<&Value>) -> Reply {
    let number = {
        let mut state = locked(state);
        state.calls.push(Call::default());
        state.calls.len() - 1
    };
    let (state_of_task, id, token) = (Arc::clone(state), id.clone(), token.cloned());
    // Not joined on purpose: it ends by itself, or with the runtime.
    drop(tokio::spawn(async move {
        emit(&state_of_task, number, None, false);
        for tick in 1..=TICKS {
            tokio::time::sleep(TICK).await;
            if let Some(token) = &token {
                let params = json!({"progressToken": token, "progress": tick, "total": TICKS});
                let message = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
                emit(&state_of_task, number, Some(&message), false);
            }
        }
        let result = json!({"content": [{"type": "text", "text": "done"}]});
        emit(&state_of_task, number, Some(&json!({"jsonrpc": "2.0", "id": id, "result": result})), true);
    }));
    stream(state, number, 0)
}

/// Keeps an event of a call and hands it to everybody who reads it now.
fn emit(state: &Shared, number: usize, message: Option<&Value>, last: bool) {
    let mut state = locked(state);
    let Some(call) = state.calls.get_mut(number) else { return };
    let data = message.map(ToString::to_string).unwrap_or_default();
    let event = Bytes::from(format!("id: {number}-{}\ndata: {data}\n\n", call.events.len()));
    call.events.push(event.clone());
    call.readers.retain(|reader| reader.send(event.clone()).is_ok());
    if last {
        call.ended = true;
        call.readers.clear();
    }
}

/// The events of a call from `from` on.
fn stream(state: &Shared, number: usize, from: usize) -> Reply {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut state = locked(state);
    if let Some(call) = state.calls.get_mut(number) {
        for event in call.events.iter().skip(from) {
            drop(sender.send(event.clone()));
        }
        if !call.ended {
            call.readers.push(sender);
        }
    }
    reply(StatusCode::OK, Some("text/event-stream"), Feed(receiver))
}

/// A GET: resumes a call's stream by its event id. The server has nothing to say on a stream of its own.
fn resume(state: &Shared, headers: &HeaderMap) -> Reply {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let place = last.and_then(|last| last.split_once('-'));
    let place = place.and_then(|(number, event)| Some((number.parse().ok()?, event.parse::<usize>().ok()?)));
    match place {
        Some((number, event)) => stream(state, number, event + 1),
        None => empty(StatusCode::METHOD_NOT_ALLOWED),
    }
}
