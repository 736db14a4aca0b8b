//! HTTP/1 over a unix socket, with no task and no buffer but while an exchange is under way: the shim links this and
//! must stay small.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::net::UnixStream;
use tokio::runtime::Handle;

use crate::body::RawBody;
use crate::client::Sender;
use crate::error::{SendError, SendErrorKind, Written, is_exhausted};
use crate::exchange::{Broken, Exchange, Message, Wire};
use crate::h1::{Malformed, Part};

/// One client has few calls at a time; more idle connections than this only cost the server.
const MAX_IDLE: usize = 8;

/// A connection that was not used for this long, and for less than twice, is closed: an idle one costs the server its
/// buffers. Closed from here it can meet no request on its way.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Sends requests over a unix socket. Clones share their idle connections. Must be used within one tokio runtime.
#[derive(Clone)]
pub struct UnixSender {
    pool: Arc<Pool>,
}

struct Pool {
    path: PathBuf,
    idle: Mutex<Idle>,
    /// Counts the calls of [`UnixSender::dial_anew`]: a connection made before the last one is not kept.
    era: AtomicU64,
}

#[derive(Default)]
struct Idle {
    connections: Vec<Connection>,
    /// A task looks for those that stay unused.
    watched: bool,
}

/// A connection. Dropping it closes its socket.
struct Connection {
    stream: UnixStream,
    /// The pool's when it was made.
    era: u64,
    /// The watch has seen it idle, and it was not used since.
    seen_idle: bool,
    /// Room for what is read next.
    buffer: BytesMut,
}

impl UnixSender {
    /// A sender to the socket at `path`. Connects when it is first needed.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { pool: Arc::new(Pool { path, idle: Mutex::default(), era: AtomicU64::new(0) }) }
    }

    /// Uses no connection again that was made before: the socket may lead to another process by now, while the former
    /// one still serves what it has. Exchanges under way are not disturbed.
    pub fn dial_anew(&self) {
        let mut idle = self.pool.idle();
        self.pool.era.fetch_add(1, Ordering::AcqRel);
        idle.connections.clear();
    }
}

impl fmt::Debug for UnixSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixSender").field("path", &self.pool.path).finish_non_exhaustive()
    }
}

impl Sender for UnixSender {
    async fn send(&self, request: Request<Bytes>) -> Result<http::Response<RawBody>, SendError> {
        let message = Message::new(&request);
        // An idle connection that the server closed meanwhile is not an error as long as nothing was written.
        while let Some(connection) = self.pool.take() {
            match connection.exchange(message.clone(), &self.pool).await {
                Err(SendError { written: Written::Never, .. }) => {}
                outcome => return outcome,
            }
        }
        Connection::open(&self.pool).await?.exchange(message, &self.pool).await
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last and still lives.
    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle();
        while let Some(connection) = idle.connections.pop() {
            if connection.is_open() {
                return Some(connection);
            }
        }
        None
    }

    /// Takes a connection back after its response was read to the end.
    fn put(self: &Arc<Self>, mut connection: Connection) {
        let mut idle = self.idle();
        idle.connections.retain(Connection::is_open);
        if idle.connections.len() >= MAX_IDLE || connection.era != self.era.load(Ordering::Acquire) {
            return;
        }
        connection.seen_idle = false;
        // An idle one holds no memory.
        connection.buffer = BytesMut::new();
        idle.connections.push(connection);
        if !idle.watched
            && let Ok(runtime) = Handle::try_current()
        {
            idle.watched = true;
            runtime.spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Closes what was idle at the last look and is still; false if nothing is left to look for.
    fn close_unused(&self) -> bool {
        let mut idle = self.idle();
        idle.connections.retain_mut(|connection| !std::mem::replace(&mut connection.seen_idle, true));
        idle.watched = !idle.connections.is_empty();
        idle.watched
    }
}

/// Ends with the last idle connection, so that a client that does nothing wakes up for nothing.
async fn watch(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(IDLE_LIMIT).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_unused()) {
            return;
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
        Ok(Self { stream, era, seen_idle: false, buffer: BytesMut::new() })
    }

    /// Whether an idle one may be used: the server has not closed it, and has sent nothing that nobody asked for. As far
    /// as the runtime has seen; it costs no system call.
    fn is_open(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    async fn exchange(
        self,
        message: Message,
        pool: &Arc<Pool>,
    ) -> Result<http::Response<RawBody>, SendError> {
        let mut exchange = Exchange::new(self, message);
        let head = poll_fn(|context| exchange.poll_head(context)).await?;
        let mut response = Response { exchange: Some(exchange), pool: Arc::clone(pool) };
        response.settle();
        Ok(http::Response::from_parts(head, RawBody::new(response)))
    }
}

impl Wire for Connection {
    fn poll_write(&mut self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn poll_read(&mut self, context: &mut Context<'_>, room: usize) -> Poll<io::Result<Bytes>> {
        self.buffer.reserve(room);
        // Holds nothing between two polls.
        ready!(pin!(self.stream.read_buf(&mut self.buffer)).poll(context))?;
        Poll::Ready(Ok(self.buffer.split().freeze()))
    }
}

/// An exchange that is the body of its response. Gives its connection back at the end; dropped before, it closes it.
struct Response {
    /// `None` once it is over.
    exchange: Option<Exchange<Connection>>,
    pool: Arc<Pool>,
}

impl Response {
    fn end(&mut self) {
        if let Some(connection) = self.exchange.take().and_then(Exchange::into_reusable) {
            self.pool.put(connection);
        }
    }

    /// Gives the connection back if nothing is to come that was not read yet.
    fn settle(&mut self) {
        if self.exchange.as_mut().is_some_and(Exchange::end_if_here) {
            self.end();
        }
    }
}

impl HttpBody for Response {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(exchange) = &mut self.exchange else { return Poll::Ready(None) };
        Poll::Ready(match ready!(exchange.poll_part(context)) {
            Ok(Part::Data(data)) => {
                self.settle();
                Some(Ok(Frame::data(data)))
            }
            Ok(Part::End) => {
                self.end();
                None
            }
            Ok(Part::Head(_)) => {
                self.exchange = None;
                Some(Err(Malformed::Head.into()))
            }
            Err(broken) => {
                self.exchange = None;
                Some(Err(broken))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.exchange.as_ref().map_or(Some(0), Exchange::left);
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
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

    /// An idle connection goes after a while, by itself; what is used meanwhile stays.
    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed_after_a_while() {
        let (_directory, listener, sender) = listening();
        listener.set_nonblocking(true).unwrap();
        let mut served = Vec::new();
        for _ in 0..2 {
            let connection = Connection::open(&sender.pool).await.unwrap();
            served.push(listener.accept().unwrap().0);
            sender.pool.put(connection);
        }
        tokio::time::sleep(IDLE_LIMIT + Duration::from_secs(1)).await;
        let used = sender.pool.take().unwrap();
        sender.pool.put(used);
        tokio::time::sleep(IDLE_LIMIT).await;
        assert_eq!(served[0].read(&mut [0]).unwrap(), 0, "closed");
        served[1].set_nonblocking(true).unwrap();
        assert_eq!(served[1].read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "open");
        tokio::time::sleep(IDLE_LIMIT).await;
        assert_eq!(served[1].read(&mut [0]).unwrap(), 0, "closed");
        assert!(!sender.pool.idle().watched, "nothing wakes up for nothing");
    }

    /// A fresh connection is not replaced: the caller decides, and is told that nothing went out.
    #[tokio::test]
    async fn a_fresh_connection_that_dies_unseen_is_reported_as_never_sent() {
        let (_directory, listener, sender) = listening();
        let connection = Connection::open(&sender.pool).await.unwrap();
        drop(listener.accept().unwrap());
        let request = Message::new(&Request::post("/").body(Bytes::from_static(b"{}")).unwrap());
        let error = connection.exchange(request, &sender.pool).await.unwrap_err();
        assert_eq!((error.kind, error.written), (SendErrorKind::Closed, Written::Never), "{error:?}");
    }
}
