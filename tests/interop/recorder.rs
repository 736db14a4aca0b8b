//! A reverse proxy between evermux and a real server: the witness of what really went upstream.
//!
//! A real server keeps no journal that a test could judge by, and its own log knows neither ids nor headers. The proxy listens on TCP, as
//! a user's server does, and reaches the real one through a unix socket: so nothing here has to guess a free port, a restarted server
//! comes back at the same place, and no other test can come in between.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evermux_testkit::wait::Watched;
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// One HTTP request that evermux sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// When it came, since the proxy's start.
    pub(crate) at: Duration,
    pub(crate) verb: String,
    /// JSON-RPC method; absent for answers, GET and DELETE.
    pub(crate) rpc_method: Option<String>,
    /// JSON-RPC id as JSON text.
    pub(crate) id: Option<String>,
    /// `Mcp-Session-Id` as sent.
    pub(crate) session: Option<String>,
    /// `MCP-Protocol-Version` as sent.
    pub(crate) version: Option<String>,
    /// `Last-Event-ID` as sent.
    pub(crate) last_event_id: Option<String>,
    /// The body.
    pub(crate) body: Value,
    /// Status of the answer, once its head has come.
    pub(crate) status: Option<u16>,
    /// `Mcp-Session-Id` of the answer.
    pub(crate) reply_session: Option<String>,
}

impl Seen {
    /// Whether it is a request or notification of this method.
    pub(crate) fn is(&self, rpc_method: &str) -> bool {
        self.rpc_method.as_deref() == Some(rpc_method)
    }

    /// Whether it calls this tool.
    pub(crate) fn calls(&self, tool: &str) -> bool {
        self.is("tools/call") && self.body.pointer("/params/name").and_then(Value::as_str) == Some(tool)
    }

    fn of(at: Duration, verb: &str, headers: &HeaderMap, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        Self {
            at,
            verb: verb.to_owned(),
            rpc_method: body.get("method").and_then(Value::as_str).map(str::to_owned),
            id: body.get("id").map(Value::to_string),
            session: text(headers, "mcp-session-id"),
            version: text(headers, "mcp-protocol-version"),
            last_event_id: text(headers, "last-event-id"),
            body,
            status: None,
            reply_session: None,
        }
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// What came so far, and since when.
#[derive(Debug, Clone)]
struct Journal {
    since: Instant,
    seen: Arc<Watched<Vec<Seen>>>,
}

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Recorder {
    address: SocketAddr,
    journal: Journal,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts on a free loopback port, in front of the server at this unix socket.
    pub(crate) fn start(server: &Path) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let address = listener.local_addr().expect("a listener has an address");
        let journal = Journal { since: Instant::now(), seen: Arc::new(Watched::new(Vec::new())) };
        let (stop, stopped) = watch::channel(false);
        let (server, into) = (server.to_owned(), journal.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(serve(listener, server, into, stopped));
        });
        Self { address, journal, stop, thread: Some(thread) }
    }

    /// The MCP endpoint.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Every request so far, in order of arrival.
    pub(crate) fn journal(&self) -> Vec<Seen> {
        self.journal.seen.read(Clone::clone)
    }

    /// How many requests satisfy `wanted`.
    pub(crate) fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        self.journal().iter().filter(|seen| wanted(seen)).count()
    }

    /// The journal, one request a line.
    pub(crate) fn summary(&self) -> String {
        let line = |seen: &Seen| {
            let Seen { at, verb, rpc_method, id, session, version, last_event_id, status, .. } = seen;
            format!(
                "  {at:.3?} {verb} {rpc_method:?} id {id:?} session {session:?} version {version:?} last {last_event_id:?} -> {status:?}\n"
            )
        };
        self.journal().iter().map(line).collect()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let ended = self.thread.take().map(JoinHandle::join);
        if std::thread::panicking() {
            writeln!(io::stderr(), "---- what went upstream\n{}", self.summary()).ok();
        } else {
            assert!(matches!(ended, Some(Ok(()))), "the proxy panicked");
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    server: PathBuf,
    journal: Journal,
    mut stop: watch::Receiver<bool>,
) {
    let listener = TcpListener::from_std(listener).expect("the runtime takes a listener");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => {
                if let Ok((socket, _)) = accepted {
                    connections.spawn(connection(socket, server.clone(), journal.clone()));
                }
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    connections.shutdown().await;
}

async fn connection(socket: TcpStream, server: PathBuf, journal: Journal) {
    socket.set_nodelay(true).ok();
    let service = service_fn(|request| {
        let (server, journal) = (server.clone(), journal.clone());
        async move { forward(request, &server, &journal).await }
    });
    // An error is a side that broke off; hyper then breaks the other one too, which is what a proxy is to do.
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await.ok();
}

/// Passes one request on and its answer back, event by event. A server that cannot be reached breaks the client's connection: a status
/// made up here would be taken for the server's word.
async fn forward(
    request: Request<Incoming>,
    server: &Path,
    journal: &Journal,
) -> io::Result<Response<Incoming>> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let seen = Seen::of(journal.since.elapsed(), head.method.as_str(), &head.headers, &body);
    let place = journal.seen.update(|journal| {
        journal.push(seen);
        journal.len() - 1
    });
    head.headers.remove(CONNECTION);
    // A connection for each request, so that one that breaks takes no other with it.
    let socket = TokioIo::new(UnixStream::connect(server).await?);
    let (mut sender, driver) =
        hyper::client::conn::http1::handshake::<_, Full<Bytes>>(socket).await.map_err(io::Error::other)?;
    // Ends by itself: with its answer's body, read or dropped.
    drop(tokio::spawn(driver));
    let forwarded = Request::from_parts(head, Full::new(body));
    let mut reply = sender.send_request(forwarded).await.map_err(io::Error::other)?;
    journal.seen.update(|journal| {
        if let Some(seen) = journal.get_mut(place) {
            seen.status = Some(reply.status().as_u16());
            seen.reply_session = text(reply.headers(), "mcp-session-id");
        }
    });
    reply.headers_mut().remove(CONNECTION);
    reply.headers_mut().remove(TRANSFER_ENCODING);
    Ok(reply)
}
