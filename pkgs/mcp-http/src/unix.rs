//! HTTP/1 over a unix socket, on hyper alone: the shim links this and must stay small.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::body::RawBody;
use crate::client::Sender;
use crate::error::{SendError, SendErrorKind, Written, is_exhausted};

/// One client has few calls at a time; more idle connections than this only cost the server.
const MAX_IDLE: usize = 8;

/// How long a connection whose response was read may take to become usable again. It takes longer only if the
/// server answered without reading the whole request, and then it is of no use.
const SETTLE: Duration = Duration::from_secs(1);

/// Sends requests over a unix socket. Clones share their idle connections. Must be used within one tokio runtime.
#[derive(Clone)]
pub struct UnixSender {
    pool: Arc<Pool>,
}

struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// Counts the calls of [`UnixSender::dial_anew`]: a connection made before the last one is not kept.
    era: AtomicU64,
}

/// A connection. Dropping it ends its task and closes its socket.
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// Bytes that the kernel took from us, over the connection's life.
    written: Arc<AtomicU64>,
    /// The pool's when it was made.
    era: u64,
    _task: AbortOnDrop,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl UnixSender {
    /// A sender to the socket at `path`. Connects when it is first needed.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { pool: Arc::new(Pool { path, idle: Mutex::new(Vec::new()), era: AtomicU64::new(0) }) }
    }

    /// Uses no connection again that was made before: the socket may lead to another process by now, while the former
    /// one still serves what it has. Exchanges under way are not disturbed.
    pub fn dial_anew(&self) {
        let mut idle = self.pool.idle();
        self.pool.era.fetch_add(1, Ordering::AcqRel);
        idle.clear();
    }
}

impl fmt::Debug for UnixSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixSender").field("path", &self.pool.path).finish_non_exhaustive()
    }
}

impl Sender for UnixSender {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<RawBody>, SendError> {
        let request = origin_form(request)?;
        // An idle connection that the server closed meanwhile is not an error as long as nothing was written.
        while let Some(connection) = self.pool.take() {
            match connection.exchange(request.clone(), &self.pool).await {
                Err(SendError { written: Written::Never, .. }) => {}
                outcome => return outcome,
            }
        }
        Connection::open(&self.pool).await?.exchange(request, &self.pool).await
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last and still lives.
    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle();
        while let Some(connection) = idle.pop() {
            if connection.requests.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.idle();
        idle.retain(|other| !other.requests.is_closed());
        if idle.len() < MAX_IDLE && connection.era == self.era.load(Ordering::Acquire) {
            idle.push(connection);
        }
    }

    /// Takes a connection back after its response was read to the end.
    fn put_when_ready(self: Arc<Self>, mut connection: Connection) {
        if connection.requests.is_ready() {
            self.put(connection);
        } else if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let ready = tokio::time::timeout(SETTLE, connection.requests.ready()).await;
                if let Ok(Ok(())) = ready {
                    self.put(connection);
                }
            });
        }
    }
}

impl Connection {
    async fn open(pool: &Pool) -> Result<Self, SendError> {
        let era = pool.era.load(Ordering::Acquire);
        let stream = UnixStream::connect(&pool.path).await.map_err(|error| {
            let kind = if is_exhausted(&error) { SendErrorKind::Exhausted } else { SendErrorKind::Connect };
            SendError::new(kind, Written::Never, error)
        })?;
        let written = Arc::new(AtomicU64::new(0));
        let io = TokioIo::new(Counting { stream, written: Arc::clone(&written) });
        let (requests, connection) = http1::handshake(io)
            .await
            .map_err(|error| SendError::new(SendErrorKind::Connect, Written::Never, error))?;
        // How the connection ended is told to the request or body that was on it.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { requests, written, era, _task: AbortOnDrop(task.abort_handle()) })
    }

    async fn exchange(
        mut self,
        request: Request<Full<Bytes>>,
        pool: &Arc<Pool>,
    ) -> Result<Response<RawBody>, SendError> {
        let before = self.written.load(Ordering::Acquire);
        match self.requests.try_send_request(request).await {
            Ok(response) => {
                let held = Some((self, Arc::clone(pool)));
                Ok(response.map(|body| RawBody::new(Lease { body, held }.settled())))
            }
            Err(mut error) => {
                // Either hyper hands the request back untouched, or the kernel never took a byte of it. The
                // connection's task has ended or ends with `self`, so nothing is written later.
                let unsent = error.take_message().is_some() || self.written.load(Ordering::Acquire) == before;
                let written = if unsent { Written::Never } else { Written::Unknown };
                let error = error.into_error();
                let kind = if error.is_parse() { SendErrorKind::Protocol } else { SendErrorKind::Closed };
                Err(SendError::new(kind, written, error))
            }
        }
    }
}

/// A response's body that holds its connection and gives it back at its end.
struct Lease {
    body: Incoming,
    held: Option<(Connection, Arc<Pool>)>,
}

impl Lease {
    fn settled(mut self) -> Self {
        self.settle();
        self
    }

    fn settle(&mut self) {
        if self.body.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some((connection, pool)) = self.held.take() {
            pool.put_when_ready(connection);
        }
    }
}

impl HttpBody for Lease {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(_))) => self.settle(),
            Poll::Ready(Some(Err(_))) => self.held = None,
            Poll::Ready(None) => self.give_back(),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// HTTP/1 wants the path in the request line and the authority in `Host`.
fn origin_form(request: Request<Bytes>) -> Result<Request<Full<Bytes>>, SendError> {
    let wrong = |error: http::Error| SendError::new(SendErrorKind::Request, Written::Never, error);
    let mut request = request.map(Full::new);
    let uri = request.uri();
    let host = uri.authority().map_or("localhost", |authority| authority.as_str());
    let host = host.rsplit('@').next().unwrap_or(host);
    let host = HeaderValue::from_str(host).map_err(|error| wrong(error.into()))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = Uri::builder().path_and_query(path).build().map_err(wrong)?;
    *request.uri_mut() = path;
    request.headers_mut().entry(HOST).or_insert(host);
    Ok(request)
}

/// Counts what the kernel took, so that "nothing was written" is known and not guessed.
struct Counting {
    stream: UnixStream,
    written: Arc<AtomicU64>,
}

impl Counting {
    fn count(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &polled {
            self.written.fetch_add(u64::try_from(*bytes).unwrap_or(u64::MAX), Ordering::Release);
        }
        polled
    }
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.count(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.count(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn listening() -> (tempfile::TempDir, UnixListener, UnixSender) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        (directory, listener, UnixSender::new(path))
    }

    /// The server closes an idle connection and the request is handed to it before its task could see that: on this
    /// runtime nothing else runs in between.
    #[tokio::test]
    async fn an_idle_connection_that_dies_unseen_is_replaced() {
        let (_directory, listener, sender) = listening();
        let connection = Connection::open(&sender.pool).await.unwrap();
        let first = listener.accept().unwrap();
        while !connection.requests.is_ready() {
            tokio::task::yield_now().await;
        }
        sender.pool.put(connection);
        drop(first);

        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1000];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            length
        });
        let request = Request::post("http://localhost/").body(Bytes::from_static(b"{}")).unwrap();
        assert_eq!(sender.send(request).await.unwrap().status(), 204);
        assert!(server.join().unwrap() > 0);
    }

    /// A fresh connection is not replaced: the caller decides, and is told that nothing went out.
    #[tokio::test]
    async fn a_fresh_connection_that_dies_unseen_is_reported_as_never_sent() {
        let (_directory, listener, sender) = listening();
        let connection = Connection::open(&sender.pool).await.unwrap();
        drop(listener.accept().unwrap());
        let request = Request::post("/").body(Full::new(Bytes::from_static(b"{}"))).unwrap();
        let error = connection.exchange(request, &sender.pool).await.unwrap_err();
        assert_eq!((error.kind, error.written), (SendErrorKind::Closed, Written::Never), "{error:?}");
    }
}
