//! Two processes in one: faces on real sockets, reactors whose core is overruled by a script where the test says so,
//! and peers that are nothing but bytes.

mod ends;
mod relayed;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytes::Bytes;
use evermux_core::handover::{Peer, Relayed, RelayedVerb};
use evermux_core::input::Delivery;
use evermux_core::names::{Digest, LinkNonce};
use evermux_core::seal::LinkClaim;
use evermux_store::StateDir;
use http::{Request, Response};
use http_body_util::BodyExt;
use mcp_http::{RawBody, Sender as _, UnixSender};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::accept::{Door, LockBox, accept};
use crate::downstream::Face;
use crate::drain::Drain;
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::lifecycle::{Setting, load};
use crate::neighbours::Times;
use crate::network::Network;
use crate::offers::{Offers, StartedBy};
use crate::port::Port;
use crate::seals::Seals;
use crate::socket::Socket;

const SOON: Duration = Duration::from_secs(20);
const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a"}}"#;
const TIMES: Times = Times {
    patience: Duration::from_millis(300),
    relays_first: Duration::from_millis(50),
    linger: Duration::from_millis(50),
    idle: Duration::from_millis(300),
};

/// What the core orders; `None`: ask the real one.
type Script = Box<dyn FnMut(&Input) -> Option<Vec<Output>> + Send>;

/// One process.
struct Node {
    face: Arc<Face>,
    inbox: Inbox,
    socket: PathBuf,
    phase: watch::Sender<Phase>,
    tracker: TaskTracker,
    sealer: Sealer,
    /// Ends its loops.
    _stop: DropGuard,
    _state: tempfile::TempDir,
}

impl Node {
    /// Listens at `name` in `dir`, where the main socket is `evermux.sock`.
    fn start(dir: &Path, name: &str, times: Times, script: Script) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let state = StateDir::open(kept.path()).unwrap();
        let lock = state.try_lock().unwrap();
        let key = state.key().unwrap().into_key();
        let sealer = Sealer::new(&[7; 32]);
        let (inbox, rx) = Inbox::new();
        let config = evermux_config::parse("[upstream.up]\nurl = \"http://127.0.0.1:9/mcp\"\n").unwrap();
        let mut neighbours = Neighbours::new(dir.join("evermux.sock"));
        neighbours.times = times;
        let neighbours = Arc::new(neighbours);
        let (phase, tracker) = (watch::channel(Phase::Serving).0, TaskTracker::new());
        let setting = Setting {
            sealer: sealer.clone(),
            inbox: inbox.clone(),
            tracker: tracker.clone(),
            phase: phase.clone(),
            neighbours: Arc::clone(&neighbours),
            network: Network::new(None),
        };
        let parts = load(config.clone(), &state, &lock, &key, setting).unwrap();
        let keeper = Arc::new(Keeper::new(kept.path().join("none"), config, key, inbox.clone()));
        let guard = Guard::new("token");
        let (streams, port) = (1.into(), Port::default());
        let face = Face {
            founded: tokio::sync::OnceCell::new(),
            inbox: inbox.clone(),
            seals: Seals::new(sealer.clone()),
            keeper,
            state: state.clone(),
            streams,
            port,
            guard,
            neighbours,
            offers: Offers::new(StartedBy::Choice, Instant::now()),
            house: OnceLock::new(),
        };
        let face = Arc::new(face);
        let socket = dir.join(name);
        let door = Door {
            socket: Socket::listen(&socket).unwrap(),
            lock: LockBox::new(lock),
            notices: mpsc::unbounded_channel().1,
            state,
            look: Arc::new(Notify::new()),
        };
        let stop = CancellationToken::new();
        let accepting = accept(door, Arc::clone(&face), tracker.clone(), phase.subscribe());
        tokio::spawn(stop.clone().run_until_cancelled_owned(accepting));
        let working = follow_script(Reactor::new(parts), rx, script);
        tokio::spawn(stop.clone().run_until_cancelled_owned(working));
        let _stop = stop.drop_guard();
        Self { face, inbox, socket, phase, tracker, sealer, _stop, _state: kept }
    }

    /// Listens on the drain socket of this generation too.
    fn drain(&self, generation: u64) -> tokio::task::JoinHandle<()> {
        let drain =
            Drain::listen(&self.face.neighbours.path(Peer::Successor), Generation(generation)).unwrap();
        let (face, tracker) = (Arc::clone(&self.face), self.tracker.clone());
        tokio::spawn(drain.serve(face, tracker, self.phase.subscribe(), Arc::default()))
    }

    fn link(&self) -> String {
        self.sealer.link(&claim())
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<RawBody>, mcp_http::SendError> {
        let send = UnixSender::new(self.socket.clone());
        tokio::time::timeout(SOON, send.send(&request)).await.expect("a head in time")
    }

    async fn post(&self) -> Result<Response<RawBody>, mcp_http::SendError> {
        self.send(post("/mcp/up").body(Bytes::from_static(CALL.as_bytes())).unwrap()).await
    }

    async fn listen(&self) -> Response<RawBody> {
        let request = Request::get("/mcp/up").header("accept", "text/event-stream");
        let request = request.header("mcp-session-id", self.link()).body(Bytes::new()).unwrap();
        self.send(request).await.unwrap()
    }
}

async fn follow_script(mut reactor: Reactor, mut rx: mpsc::UnboundedReceiver<Told>, mut script: Script) {
    while let Some(told) = rx.recv().await {
        let outputs = match &told {
            Told::Client { input, .. } | Told::Fact(input) => script(input),
            _ => None,
        };
        match (told, outputs) {
            (Told::Client { stream, sink, input }, Some(outputs)) => {
                reactor.sinks.insert(stream, sink);
                reactor.parts.neighbours.note(&input, &reactor.parts.inbox);
                outputs.into_iter().for_each(|output| reactor.carry_out(output));
            }
            (Told::Fact(input), Some(outputs)) => {
                reactor.parts.neighbours.note(&input, &reactor.parts.inbox);
                outputs.into_iter().for_each(|output| reactor.carry_out(output));
            }
            (told, _) => reactor.take(told),
        }
        reactor.end_turn();
    }
}

fn claim() -> LinkClaim {
    LinkClaim {
        nonce: LinkNonce(7),
        upstream: "up".into(),
        identity: Digest(9),
        class: evermux_core::class::Class(0),
        version: "2025-11-25".into(),
    }
}

fn post(path: &str) -> http::request::Builder {
    let both = "application/json, text/event-stream";
    Request::post(path).header("accept", both).header("content-type", "application/json")
}

/// Relays whatever comes.
fn relays(to: Peer) -> Script {
    Box::new(move |input| Some(vec![relay(input, to)?]))
}

fn relay(input: &Input, to: Peer) -> Option<Output> {
    let (stream, upstream, from, what, delivery) = match input.clone() {
        Input::Posted { stream, upstream, from, message, delivery } => {
            (stream, upstream, from, RelayedVerb::Post(message), delivery)
        }
        Input::Listening { stream, upstream, from, delivery } => {
            (stream, upstream, from, RelayedVerb::Listen, delivery)
        }
        Input::LinkEnded { stream, upstream, from, delivery } => {
            (stream, upstream, from, RelayedVerb::EndLink, delivery)
        }
        _ => return None,
    };
    Some(Output::Relay(Box::new(Relayed { stream, to, upstream, from, what, delivery })))
}

fn stream_of(input: &Input) -> Option<StreamId> {
    match input {
        Input::Posted { stream, .. } | Input::Listening { stream, .. } | Input::LinkEnded { stream, .. } => {
            Some(*stream)
        }
        _ => None,
    }
}

/// A peer that is nothing but bytes.
struct Peered {
    listener: UnixListener,
}

impl Peered {
    fn listen(dir: &Path, name: &str) -> Self {
        Self { listener: UnixListener::bind(dir.join(name)).unwrap() }
    }

    /// The next connection, and the request on it.
    async fn request(&self) -> (UnixStream, String) {
        let accepting = tokio::time::timeout(SOON, self.listener.accept());
        let (mut stream, _) = accepting.await.expect("a connection in time").unwrap();
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                    return (stream, text);
                }
            }
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "cut in a request: {text}");
        }
    }

    /// Answers the next request with these bytes, and closes.
    async fn answer(&self, bytes: impl AsRef<str>) -> String {
        let (mut stream, request) = self.request().await;
        stream.write_all(bytes.as_ref().as_bytes()).await.unwrap();
        request
    }
}

/// The other end closed.
async fn closed(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut rest));
    drop(read.await.expect("it closes in time"));
}

async fn text(response: Response<RawBody>) -> String {
    let body = tokio::time::timeout(SOON, response.into_body().collect()).await.expect("it ends");
    String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, wait).await.is_ok(), "in vain: {what}");
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
