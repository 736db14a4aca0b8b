//! A reverse proxy that writes down what it passes on: the witness of what really went from one side to the other.
//!
//! A real server keeps no journal that a test could judge by, and its own log knows neither ids nor headers. The proxy
//! listens on TCP, as a user's server does, and may reach the real one through a unix socket: so nothing here has to
//! guess a free port, a restarted server comes back at the same place, and no other test can come in between. It can
//! also add a header, for clients that cannot be told to send one.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::wait::Watched;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// One HTTP request that came.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// When it came, since the proxy's start.
    pub at: Duration,
    /// HTTP method.
    pub verb: String,
    /// JSON-RPC method; absent for answers, GET and DELETE.
    pub rpc_method: Option<String>,
    /// JSON-RPC id as JSON text.
    pub id: Option<String>,
    /// `Mcp-Session-Id` as sent.
    pub session: Option<String>,
    /// `MCP-Protocol-Version` as sent.
    pub version: Option<String>,
    /// `Last-Event-ID` as sent.
    pub last_event_id: Option<String>,
    /// The body.
    pub body: Value,
    /// Status of the answer, once its head has come.
    pub status: Option<u16>,
    /// `Mcp-Session-Id` of the answer.
    pub reply_session: Option<String>,
}

impl Seen {
    /// Whether it is a request or notification of this method.
    #[must_use]
    pub fn is(&self, rpc_method: &str) -> bool {
        self.rpc_method.as_deref() == Some(rpc_method)
    }

    /// Whether it calls this tool.
    #[must_use]
    pub fn calls(&self, tool: &str) -> bool {
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

/// Where a proxy passes requests on to.
#[derive(Debug, Clone)]
pub enum Target {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// What a proxy does with each request.
#[derive(Debug)]
struct Way {
    target: Target,
    /// Put on every request in place of its own.
    authorization: Option<HeaderValue>,
    journal: Journal,
}

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    journal: Journal,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts on a free loopback port, in front of the server at this unix socket.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn start(server: &Path) -> Self {
        Self::before(Target::Unix(server.to_owned()), None)
    }

    /// Starts on a free loopback port, in front of this server, with a value of `Authorization` for every request. The
    /// rest of their heads goes through as it came, `Host` and `Origin` too.
    ///
    /// # Panics
    /// If there is no free port, or that is no header value.
    #[must_use]
    pub fn before(target: Target, authorization: Option<&str>) -> Self {
        let authorization = authorization.map(|value| HeaderValue::from_str(value).expect("a header value"));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let address = listener.local_addr().expect("a listener has an address");
        let journal = Journal { since: Instant::now(), seen: Arc::new(Watched::new(Vec::new())) };
        let (stop, stopped) = watch::channel(false);
        let way = Arc::new(Way { target, authorization, journal: journal.clone() });
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(serve(listener, way, stopped));
        });
        Self { address, journal, stop, thread: Some(thread) }
    }

    /// The MCP endpoint.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("/mcp")
    }

    /// What lies at this path of the server.
    #[must_use]
    pub fn url_of(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Every request so far, in order of arrival.
    #[must_use]
    pub fn journal(&self) -> Vec<Seen> {
        self.journal.seen.read(Clone::clone)
    }

    /// How many requests satisfy `wanted`.
    pub fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        self.journal().iter().filter(|seen| wanted(seen)).count()
    }

    /// The journal, one request a line.
    #[must_use]
    pub fn summary(&self) -> String {
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
            writeln!(io::stderr(), "---- what came through the proxy\n{}", self.summary()).ok();
        } else {
            assert!(matches!(ended, Some(Ok(()))), "the proxy panicked");
        }
    }
}

async fn serve(listener: std::net::TcpListener, way: Arc<Way>, mut stop: watch::Receiver<bool>) {
    let listener = TcpListener::from_std(listener).expect("the runtime takes a listener");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => {
                if let Ok((socket, _)) = accepted {
                    connections.spawn(connection(socket, Arc::clone(&way)));
                }
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    connections.shutdown().await;
}

async fn connection(socket: TcpStream, way: Arc<Way>) {
    socket.set_nodelay(true).ok();
    let service = service_fn(|request| {
        let way = Arc::clone(&way);
        async move { forward(request, &way).await }
    });
    // An error is a side that broke off; hyper then breaks the other one too, which is what a proxy is to do.
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await.ok();
}

/// Passes one request on and its answer back, event by event. A server that cannot be reached breaks the client's connection: a status
/// made up here would be taken for the server's word.
async fn forward(request: Request<Incoming>, way: &Way) -> io::Result<Response<Incoming>> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let seen = Seen::of(way.journal.since.elapsed(), head.method.as_str(), &head.headers, &body);
    let place = way.journal.seen.update(|journal| {
        journal.push(seen);
        journal.len() - 1
    });
    head.headers.remove(CONNECTION);
    if let Some(value) = &way.authorization {
        head.headers.insert(AUTHORIZATION, value.clone());
    }
    let forwarded = Request::from_parts(head, Full::new(body));
    // A connection for each request, so that one that breaks takes no other with it.
    let mut reply = match &way.target {
        Target::Unix(path) => exchange(UnixStream::connect(path).await?, forwarded).await?,
        Target::Tcp(address) => {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            exchange(socket, forwarded).await?
        }
    };
    way.journal.seen.update(|journal| {
        if let Some(seen) = journal.get_mut(place) {
            seen.status = Some(reply.status().as_u16());
            seen.reply_session = text(reply.headers(), "mcp-session-id");
        }
    });
    reply.headers_mut().remove(CONNECTION);
    reply.headers_mut().remove(TRANSFER_ENCODING);
    Ok(reply)
}

async fn exchange(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> io::Result<Response<Incoming>> {
    let (mut sender, driver) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(io::Error::other)?;
    // Ends by itself: with its answer's body, read or dropped.
    drop(tokio::spawn(driver));
    sender.send_request(request).await.map_err(io::Error::other)
}
