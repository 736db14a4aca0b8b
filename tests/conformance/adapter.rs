//! Puts `evermux connect` behind streamable HTTP, which is all the suite speaks: a shim for each of its sessions.
//!
//! It stands for a host that speaks stdio, so it adds nothing: what a client posts goes to the shim's stdin as it is,
//! and what the shim says goes onto the stream of the newest request without an answer, else onto the GET stream.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinSet;

const SESSION: &str = "mcp-session-id";

type Reply = Response<Either<Events, Full<Bytes>>>;

/// A running adapter. Dropping it ends its shims.
#[derive(Debug)]
pub(crate) struct Adapter {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Adapter {
    /// Starts on a free loopback port; `connect` is the command of a shim.
    pub(crate) fn start(connect: Command) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(listener, connect, stopped));
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// The MCP endpoint.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the adapter panicked");
        }
    }
}

async fn serve(listener: std::net::TcpListener, connect: Command, mut stop: watch::Receiver<bool>) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let sessions = Arc::new(Sessions { connect, number: AtomicU64::default(), table: Mutex::default() });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Ok((socket, _)) = listener.accept() => {
                let sessions = Arc::clone(&sessions);
                connections.spawn(async move {
                    let service = service_fn(|request| {
                        let sessions = Arc::clone(&sessions);
                        async move { Ok::<_, Infallible>(sessions.answer(request).await) }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    http.serve_connection(TokioIo::new(socket), service).await.ok();
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    connections.shutdown().await;
    let shims: Vec<_> = lock(&sessions.table).values().cloned().collect();
    for shim in shims {
        shim.child.lock().await.kill().await.ok();
    }
}

fn lock<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sessions {
    connect: Command,
    number: AtomicU64,
    table: Mutex<BTreeMap<String, Arc<Shim>>>,
}

impl Sessions {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let is_local = |host: &str| host.starts_with("127.0.0.1:");
        let origin = text("origin").is_none_or(|origin| is_local(origin.trim_start_matches("http://")));
        if !text("host").is_some_and(is_local) || !origin {
            return plain(StatusCode::FORBIDDEN);
        }
        let id = text(SESSION).map(str::to_owned);
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let (id, shim) = match id {
            None => self.spawn(),
            Some(id) => {
                let Some(shim) = lock(&self.table).get(&id).cloned() else {
                    return plain(StatusCode::NOT_FOUND);
                };
                (id, shim)
            }
        };
        match head.method {
            Method::POST => shim.post(&id, &body).await,
            Method::GET => stream(&id, |sender| lock(&shim.out).listen(sender)),
            _ => {
                lock(&self.table).remove(&id);
                // As a host does: its end of stdin, and the shim ends by itself.
                shim.stdin.lock().await.take();
                shim.child.lock().await.wait().await.ok();
                plain(StatusCode::OK)
            }
        }
    }

    fn spawn(&self) -> (String, Arc<Shim>) {
        let mut command = tokio::process::Command::new(self.connect.get_program());
        command.args(self.connect.get_args()).env_clear();
        command.envs(self.connect.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let out = Arc::<Mutex<Out>>::default();
        drop(tokio::spawn(read(stdout, Arc::clone(&out))));
        let shim = Arc::new(Shim { stdin: AsyncMutex::new(stdin), child: AsyncMutex::new(child), out });
        // Never one that was there before: a session that was ended stays unknown.
        let id = format!("shim-{}", self.number.fetch_add(1, Ordering::Relaxed));
        lock(&self.table).insert(id.clone(), Arc::clone(&shim));
        (id, shim)
    }
}

/// One session.
struct Shim {
    stdin: AsyncMutex<Option<ChildStdin>>,
    child: AsyncMutex<Child>,
    out: Arc<Mutex<Out>>,
}

impl Shim {
    async fn post(&self, id: &str, body: &[u8]) -> Reply {
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        let reply = match (message.get("method"), message.get("id")) {
            (Some(_), Some(request)) => stream(id, |sender| lock(&self.out).expect(request, sender)),
            _ => plain(StatusCode::ACCEPTED),
        };
        let mut line = body.to_vec();
        line.push(b'\n');
        if let Some(stdin) = self.stdin.lock().await.as_mut() {
            stdin.write_all(&line).await.ok();
        }
        reply
    }
}

/// Where a shim's lines go.
#[derive(Default)]
struct Out {
    /// Requests without an answer, the oldest first.
    pending: Vec<(String, UnboundedSender<Bytes>)>,
    listener: Option<UnboundedSender<Bytes>>,
    /// Came while nobody listened.
    kept: VecDeque<Bytes>,
}

impl Out {
    fn expect(&mut self, request: &Value, sender: UnboundedSender<Bytes>) {
        self.pending.push((request.to_string(), sender));
    }

    fn listen(&mut self, sender: UnboundedSender<Bytes>) {
        for event in self.kept.drain(..) {
            sender.send(event).ok();
        }
        self.listener = Some(sender);
    }

    fn take(&mut self, line: &str) {
        let event = Bytes::from(format!("data: {line}\n\n"));
        let message: Value = serde_json::from_str(line).expect("a shim says nothing but messages");
        let id = message.get("id").map(Value::to_string);
        if message.get("method").is_none() {
            let place = self.pending.iter().position(|(request, _)| Some(request) == id.as_ref());
            let (_, sender) = self.pending.remove(place.expect("an answer has a request"));
            sender.send(event).ok();
            return;
        }
        let place = self.pending.last().map(|(_, sender)| sender).or(self.listener.as_ref());
        if place.is_none_or(|sender| sender.send(event.clone()).is_err()) {
            self.kept.push_back(event);
        }
    }
}

async fn read(stdout: ChildStdout, out: Arc<Mutex<Out>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        lock(&out).take(&line);
    }
    *lock(&out) = Out::default();
}

/// Ends when its sender is dropped.
struct Events(UnboundedReceiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

fn stream(id: &str, keep: impl FnOnce(UnboundedSender<Bytes>)) -> Reply {
    let (sender, receiver) = unbounded_channel();
    keep(sender);
    let reply = Response::builder().header("content-type", "text/event-stream").header(SESSION, id);
    reply.body(Either::Left(Events(receiver))).unwrap()
}

fn plain(status: StatusCode) -> Reply {
    Response::builder().status(status).body(Either::Right(Full::default())).unwrap()
}
