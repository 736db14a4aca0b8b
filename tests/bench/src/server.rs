//! The accept loop shared by the bench's own servers, and how they start and end.
//!
//! A server says where it listens in one line on stdout and ends when its stdin does, so that none is left over when
//! the run that owns it dies.

use std::convert::Infallible;
use std::future::Future;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::output::say;

/// Where a server listens.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// A socket at `path`, or without one any free loopback port.
    pub(crate) async fn bind(path: Option<&Path>) -> Result<Self> {
        Ok(match path {
            Some(path) => Self::Unix(
                UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?,
            ),
            None => {
                Self::Tcp(TcpListener::bind(("127.0.0.1", 0)).await.context("cannot listen on 127.0.0.1")?)
            }
        })
    }

    /// Tells on stdout where to connect: a URL with `path`, or the socket's path.
    pub(crate) fn announce(&self, path: &str) -> Result<()> {
        match self {
            Self::Tcp(listener) => say(&format!("http://{}{path}", listener.local_addr()?)),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                say(&address.as_pathname().unwrap_or(Path::new("(unnamed)")).display().to_string())
            }
        }
    }
}

/// How many connections a server has had.
#[derive(Default)]
pub(crate) struct Connections {
    accepted: AtomicU64,
    open: AtomicU64,
    most_open: AtomicU64,
}

impl Connections {
    /// Accepted, open, and most open at once since the last `reset`.
    pub(crate) fn tell(&self, reset: bool) -> (u64, u64, u64) {
        let open = self.open.load(Ordering::Relaxed);
        if reset {
            self.most_open.store(open, Ordering::Relaxed);
        }
        (self.accepted.load(Ordering::Relaxed), open, self.most_open.load(Ordering::Relaxed))
    }

    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_open.fetch_max(open, Ordering::Relaxed);
        Counted(Arc::clone(self))
    }
}

/// A connection that is open.
pub(crate) struct Counted(Arc<Connections>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves HTTP/1.1 until accepting fails.
pub(crate) async fn serve_http<F, W, B>(
    listener: Listener,
    connections: &Arc<Connections>,
    handler: F,
) -> Result<()>
where
    F: Fn(Request<Incoming>) -> W + Clone + Send + 'static,
    W: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    loop {
        match &listener {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                spawn_connection(stream, connections.count(), handler.clone());
            }
            Listener::Unix(listener) => {
                spawn_connection(listener.accept().await?.0, connections.count(), handler.clone());
            }
        }
    }
}

/// hyper's service of a handler that never fails.
pub(crate) fn answering<F, W, B>(
    handler: F,
) -> impl Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send + 'static>
where
    F: Fn(Request<Incoming>) -> W,
    W: Future<Output = Response<B>> + Send + 'static,
    B: Body,
{
    service_fn(move |request| {
        let response = handler(request);
        async move { Ok(response.await) }
    })
}

fn spawn_connection<S, F, W, B>(stream: S, counted: Counted, handler: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> W + Send + 'static,
    W: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let service = answering(handler);
    tokio::spawn(async move {
        let _open = counted;
        // A connection that breaks is the peer's news; it finds out by its missing answer.
        let _ =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    });
}

/// Runs `work` on one thread (one is the fastest for a hop on few cores).
pub(crate) fn run_on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// Runs `server`, until stdin ends if `owned`.
pub(crate) fn run_server(owned: bool, server: impl Future<Output = Result<()>>) -> Result<()> {
    run_on_one_thread(async {
        if !owned {
            return server.await;
        }
        tokio::select! {
            ended = stdin_end() => ended,
            served = server => served,
        }
    })
}

async fn stdin_end() -> Result<()> {
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while matches!(std::io::stdin().lock().read(&mut buffer), Ok(read) if read > 0) {}
        // The other side is gone only when the process ends anyway.
        let _ = ended.send(());
    });
    end.await.context("the thread that watches stdin ended")
}
