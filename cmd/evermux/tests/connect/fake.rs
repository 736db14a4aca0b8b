//! A scripted daemon: the other side of the shim's protocol, with a cut wherever a test wants one.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One request that came in.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    /// Which process had taken its connection: they are counted by [`FakeDaemon::hand_over`].
    pub(crate) process: u32,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn rpc(&self) -> &str {
        self.body.get("method").and_then(Value::as_str).unwrap_or("")
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) seen: Vec<Seen>,
    pub(crate) links: u32,
    /// Links that are unknown from now on.
    pub(crate) lost: Vec<String>,
    pub(crate) attempts: HashMap<String, u32>,
    /// Open standalone streams.
    streams: Vec<mpsc::UnboundedSender<io::Result<Bytes>>>,
    /// Upstream `up` is unknown until a reload.
    pub(crate) stale_config: bool,
    /// Parts of the large answer that were handed over.
    pub(crate) big_chunks: usize,
    /// What it says it is; version 0.1.0 and no build if nothing.
    pub(crate) version: Option<String>,
    pub(crate) build: Option<String>,
    /// Its answer to a newer build's offer; without one it does not know the question.
    pub(crate) welcome: Option<bool>,
    /// The process that takes connections now.
    process: u32,
    /// Connections that are open.
    connections: usize,
    /// Calls that wait to be finished: where their answers go, and these.
    slow: Vec<(mpsc::UnboundedSender<io::Result<Bytes>>, Bytes)>,
}

type Shared = Arc<Mutex<State>>;

/// A connection, counted for as long as it is open.
struct Open(Shared);

impl Open {
    fn new(state: &Shared) -> Self {
        state.lock().unwrap().connections += 1;
        Self(Arc::clone(state))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().unwrap().connections -= 1;
    }
}

/// A body that is fed from elsewhere.
struct Body(mpsc::UnboundedReceiver<io::Result<Bytes>>);

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }
}

/// A body that is there already.
fn whole(bytes: impl Into<Bytes>) -> Body {
    let (sender, receiver) = mpsc::unbounded_channel();
    sender.send(Ok(bytes.into())).unwrap();
    Body(receiver)
}

pub(crate) struct FakeDaemon {
    pub(crate) socket: PathBuf,
    pub(crate) state: Shared,
    server: JoinSet<()>,
}

impl FakeDaemon {
    pub(crate) fn start(runtime_dir: &Path) -> Self {
        std::fs::create_dir_all(runtime_dir).unwrap();
        let mut daemon = Self {
            socket: runtime_dir.join("evermux.sock"),
            state: Shared::default(),
            server: JoinSet::new(),
        };
        daemon.serve();
        daemon
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// As a SIGKILL does: the socket stays, every connection breaks.
    pub(crate) async fn kill(&mut self) {
        self.server.shutdown().await;
        self.state().streams.clear();
    }

    pub(crate) fn serve(&mut self) {
        drop(std::fs::remove_file(&self.socket));
        let listener = UnixListener::bind(&self.socket).unwrap();
        let state = Arc::clone(&self.state);
        self.server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                let process = state.lock().unwrap().process;
                let open = Open::new(&state);
                connections.spawn(async move {
                    let _open = open;
                    let service = service_fn(move |request| handle_as(process, Arc::clone(&state), request));
                    let mut http = hyper::server::conn::http1::Builder::new();
                    drop(http.half_close(true).serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
    }

    /// As a takeover does: connections stay and are of the former process, which lets go of its streams and says on each
    /// connection with the next answer that it closes; new ones are of the next.
    pub(crate) fn hand_over(&self) {
        let mut state = self.state();
        state.process += 1;
        state.streams.clear();
    }

    pub(crate) fn slow_calls(&self) -> usize {
        self.state().slow.len()
    }

    /// Answers every call of the tool `slow`.
    pub(crate) fn finish_slow(&self) {
        for (stream, answer) in self.state().slow.drain(..) {
            drop(stream.send(Ok(answer)));
        }
    }

    /// Sends an event to every open standalone stream.
    pub(crate) fn announce(&self, event: &str) {
        for stream in &self.state().streams {
            drop(stream.send(Ok(Bytes::from(event.to_owned()))));
        }
    }

    pub(crate) fn posts(&self) -> Vec<Seen> {
        let is_post = |seen: &&Seen| seen.method == Method::POST && seen.path.starts_with("/mcp/");
        self.state().seen.iter().filter(is_post).cloned().collect()
    }

    /// How often this path was asked for.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.state().seen.iter().filter(|seen| seen.path == path).count()
    }

    pub(crate) fn open_connections(&self) -> usize {
        self.state().connections
    }

    pub(crate) fn open_streams(&self) -> usize {
        self.state().streams.iter().filter(|stream| !stream.is_closed()).count()
    }
}

async fn handle_as(
    process: u32,
    state: Shared,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let mut response = handle(process, Arc::clone(&state), request).await?;
    if state.lock().unwrap().process != process {
        response.headers_mut().insert("connection", "close".parse().unwrap());
    }
    Ok(response)
}

async fn handle(
    process: u32,
    state: Shared,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let path = parts.uri.path().to_owned();
    let seen = Seen { method: parts.method, path, headers: parts.headers, body, process };
    state.lock().unwrap().seen.push(seen.clone());
    match (seen.method.as_str(), seen.path.as_str()) {
        ("GET", "/control/hello") => Ok(hello(&state)),
        ("POST", "/control/offer") => Ok(match state.lock().unwrap().welcome {
            Some(welcome) => json_answer(200, json!({"welcome": welcome, "reason": null})),
            None => json_answer(404, json!({"error": "no such control endpoint"})),
        }),
        ("POST", "/control/env/up") => Ok(json_answer(200, json!({"identity": "abcd"}))),
        ("POST", "/control/reload") => {
            state.lock().unwrap().stale_config = false;
            Ok(json_answer(200, json!({})))
        }
        ("GET", "/mcp/up") => Ok(standalone(&state)),
        ("DELETE", "/mcp/up") => Ok(empty(200)),
        ("POST", "/mcp/up") => message(&state, &seen).await,
        _ => Ok(json_answer(404, error(&Value::Null, "misconfigured"))),
    }
}

fn hello(state: &Shared) -> Response<Body> {
    let state = state.lock().unwrap();
    let version = state.version.as_deref().unwrap_or("0.1.0");
    json_answer(200, json!({"version": version, "pid": 1, "protocol": 1, "build": state.build}))
}

async fn message(state: &Shared, seen: &Seen) -> Result<Response<Body>, io::Error> {
    let id = seen.body.get("id").cloned().unwrap_or(Value::Null);
    if state.lock().unwrap().stale_config {
        return Ok(json_answer(404, error(&id, "misconfigured")));
    }
    if let Some(link) = seen.header("mcp-session-id")
        && state.lock().unwrap().lost.iter().any(|lost| lost == link)
    {
        return Ok(json_answer(404, error(&id, "session_lost")));
    }
    match (seen.rpc(), id.is_null()) {
        ("initialize", _) => Ok(initialize(state, &id)),
        (_, true) => Ok(empty(202)),
        ("tools/call", _) => call(state, seen, &id),
        _ => Ok(events(200, vec![answer(&id, json!({}))])),
    }
}

fn initialize(state: &Shared, id: &Value) -> Response<Body> {
    let mut state = state.lock().unwrap();
    state.links += 1;
    let link = format!("link-{}", state.links);
    let result = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "fake", "version": "1"}});
    let mut response = events(200, vec![answer(id, result)]);
    response.headers_mut().insert("mcp-session-id", link.parse().unwrap());
    response
}

fn call(state: &Shared, seen: &Seen, id: &Value) -> Result<Response<Body>, io::Error> {
    let name = seen.body["params"]["name"].as_str().unwrap_or("").to_owned();
    let attempt = {
        let mut state = state.lock().unwrap();
        let attempts = state.attempts.entry(name.clone()).or_default();
        *attempts += 1;
        *attempts
    };
    let text = json!({"content": [{"type": "text", "text": name}], "attempt": attempt});
    let done = answer(id, text);
    let priming = Bytes::from_static(b"id: ev-1\n\n");
    let progress = Bytes::from_static(
        b"id: ev-2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\n",
    );
    match (name.as_str(), attempt) {
        ("refuse-head", 1) => Err(io::Error::other("cut before the head")),
        ("cut" | "hang", 1) => Ok(broken(vec![priming, progress], name == "hang")),
        ("end", 1 | 2) => Ok(events(200, vec![priming])),
        ("big", _) => Ok(big(state, done)),
        ("slow", _) => {
            let (sender, receiver) = mpsc::unbounded_channel();
            sender.send(Ok(priming)).unwrap();
            state.lock().unwrap().slow.push((sender, done));
            let response = Response::builder().status(200).header("content-type", "text/event-stream");
            Ok(response.body(Body(receiver)).unwrap())
        }
        ("denied", _) => Ok(json_answer(503, error(id, "draining"))),
        ("html", _) => Ok(Response::builder().status(502).body(whole("<html>")).unwrap()),
        ("multiline", _) => Ok(events(
            200,
            vec![Bytes::from(format!(
                "data: {{\"jsonrpc\":\"2.0\",\ndata: \"id\":{id},\"result\":{{}}}}\n\n"
            ))],
        )),
        ("foreign", _) => Ok(events(
            200,
            vec![answer(&json!(999), json!({})), Bytes::from_static(b"data: no json\n\n"), done],
        )),
        _ => Ok(events(200, vec![done])),
    }
}

fn answer(id: &Value, result: Value) -> Bytes {
    Bytes::from(format!("id: ev-9\ndata: {}\n\n", json!({"jsonrpc": "2.0", "id": id, "result": result})))
}

fn error(id: &Value, kind: &str) -> Value {
    let data = json!({"evermux": {"kind": kind, "upstream": "up", "outcome": "not_sent"}});
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -33000, "message": kind, "data": data}})
}

fn json_answer(status: u16, body: Value) -> Response<Body> {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(whole(body.to_string())).unwrap()
}

fn empty(status: u16) -> Response<Body> {
    let (_, receiver) = mpsc::unbounded_channel();
    Response::builder().status(status).header("content-length", "0").body(Body(receiver)).unwrap()
}

fn events(status: u16, parts: Vec<Bytes>) -> Response<Body> {
    let response = Response::builder().status(status).header("content-type", "text/event-stream");
    response.body(whole(parts.concat())).unwrap()
}

/// A body that gives `parts`, then hangs or breaks.
fn broken(parts: Vec<Bytes>, hang: bool) -> Response<Body> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for part in parts {
        sender.send(Ok(part)).unwrap();
    }
    if hang {
        tokio::spawn(async move { sender.closed().await });
    } else {
        sender.send(Err(io::Error::other("cut"))).unwrap();
    }
    let response = Response::builder().status(200).header("content-type", "text/event-stream");
    response.body(Body(receiver)).unwrap()
}

/// A body of 32 MiB of notifications, made as fast as it is taken, and then the answer.
struct Big {
    state: Shared,
    left: usize,
    done: Bytes,
}

fn big(state: &Shared, done: Bytes) -> Response<Body> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut big = Big { state: Arc::clone(state), left: 512, done };
    let line = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x".repeat(64 << 10)}});
    let chunk = Bytes::from(format!("data: {line}\n\n"));
    let response = Response::builder().status(200).header("content-type", "text/event-stream");
    tokio::spawn(async move {
        while big.left > 0 {
            big.left -= 1;
            if sender.send(Ok(chunk.clone())).is_err() {
                return;
            }
            big.state.lock().unwrap().big_chunks += 1;
        }
        drop(sender.send(Ok(big.done)));
    });
    response.body(Body(receiver)).unwrap()
}

fn standalone(state: &Shared) -> Response<Body> {
    let (sender, receiver) = mpsc::unbounded_channel();
    state.lock().unwrap().streams.push(sender);
    let response = Response::builder().status(200).header("content-type", "text/event-stream");
    response.body(Body(receiver)).unwrap()
}
