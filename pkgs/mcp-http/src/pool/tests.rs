//! Idle connections against real sockets: whom they lead to, how long they live, what makes them unfit.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use http::Request;
use tokio::net::UnixStream;

use super::*;
use crate::error::SendErrorKind;

struct Socket(PathBuf);

impl Kind for Socket {
    type Place = u8;
    type Stream = UnixStream;
    const MAX_IDLE: usize = 2;
    const IDLE_LIMIT: Duration = Duration::from_secs(30);

    async fn dial(&self, _place: &u8) -> Result<UnixStream, SendError> {
        let connected = UnixStream::connect(&self.0).await;
        connected.map_err(|error| SendError::new(SendErrorKind::Connect, Written::Never, error))
    }
}

fn listening() -> (tempfile::TempDir, UnixListener, Arc<Pool<Socket>>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    (directory, listener, Arc::new(Pool::new(Socket(path))))
}

fn message() -> Message {
    Message::new(&Request::post("http://localhost/").body(Bytes::from_static(b"{}")).unwrap())
}

/// Puts an idle connection to this place there, and gives its other end.
async fn idle(
    pool: &Arc<Pool<Socket>>,
    listener: &UnixListener,
    place: u8,
) -> std::os::unix::net::UnixStream {
    let connection = pool.open(&place).await.unwrap();
    pool.put(connection);
    listener.accept().unwrap().0
}

/// Time goes on, and whoever waited for it has a turn.
async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::task::yield_now().await;
}

fn is_closed(end: &mut std::os::unix::net::UnixStream) -> bool {
    end.set_nonblocking(true).unwrap();
    match end.read(&mut [0]) {
        Ok(length) => length == 0,
        // What was sent there was not read.
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// A connection whose first write finds it closed: that happened after the last look at it.
struct Dying {
    stream: UnixStream,
    dies: bool,
}

impl AsFd for Dying {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsyncRead for Dying {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Dying {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.dies {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Its first connections die.
struct Deadly(PathBuf, AtomicU64);

impl Kind for Deadly {
    type Place = ();
    type Stream = Dying;
    const MAX_IDLE: usize = 4;
    const IDLE_LIMIT: Duration = Duration::from_secs(30);

    async fn dial(&self, (): &()) -> Result<Dying, SendError> {
        let connected = UnixStream::connect(&self.0).await;
        let stream =
            connected.map_err(|error| SendError::new(SendErrorKind::Connect, Written::Never, error))?;
        let left = self.1.load(Ordering::Relaxed);
        self.1.store(left.saturating_sub(1), Ordering::Relaxed);
        Ok(Dying { stream, dies: left > 0 })
    }
}

/// The server closes idle connections after the last look at them: nothing was written, so the request goes out on the next one,
/// and in the end on a fresh one.
#[tokio::test]
async fn an_idle_connection_that_dies_unseen_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let pool = Arc::new(Pool::new(Deadly(path, AtomicU64::new(2))));
    let (one, other) = (pool.open(&()).await.unwrap(), pool.open(&()).await.unwrap());
    let ends = (listener.accept().unwrap(), listener.accept().unwrap());
    pool.put(one);
    pool.put(other);
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1000];
        let length = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        length
    });
    assert_eq!(pool.exchange(&(), message()).await.unwrap().status(), 204);
    assert!(server.join().unwrap() > 0);
    drop(ends);
}

/// Over TCP a request that is written to it would be taken, and lost: nothing runs between the close and the look.
#[tokio::test]
async fn a_close_that_has_arrived_is_seen() {
    let (_directory, listener, pool) = listening();
    let end = idle(&pool, &listener, 1).await;
    let connection = pool.take(&1).unwrap();
    pool.put(connection);
    drop(end);
    assert!(pool.take(&1).is_none());
}

/// A fresh connection is not replaced: the caller decides, and is told that nothing went out.
#[tokio::test]
async fn a_fresh_connection_that_dies_unseen_is_reported_as_never_sent() {
    let (_directory, listener, pool) = listening();
    let connection = pool.open(&1).await.unwrap();
    drop(listener.accept().unwrap());
    let error = pool.exchange_on(connection, message()).await.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::Closed, Written::Never), "{error:?}");
}

/// An idle connection goes after a while, by itself; what is used meanwhile stays.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_a_while() {
    let (_directory, listener, pool) = listening();
    let (mut unused, mut used) = (idle(&pool, &listener, 1).await, idle(&pool, &listener, 2).await);
    pass(20).await;
    let connection = pool.take(&2).unwrap();
    pool.put(connection);
    pass(11).await;
    assert!(is_closed(&mut unused) && !is_closed(&mut used));
    pass(20).await;
    assert!(is_closed(&mut used));
    assert!(!pool.idle().watched, "nothing wakes up for nothing");
}

#[tokio::test]
async fn a_connection_leads_to_one_place_and_only_so_many_are_kept() {
    let (_directory, listener, pool) = listening();
    let mut first = idle(&pool, &listener, 1).await;
    let mut second = idle(&pool, &listener, 2).await;
    let mut third = idle(&pool, &listener, 2).await;
    assert!(!is_closed(&mut first) && !is_closed(&mut second) && is_closed(&mut third));
    assert!(pool.take(&3).is_none());
    assert!(pool.take(&2).is_some() && pool.take(&2).is_none());
    pool.dial_anew();
    assert!(pool.take(&1).is_none() && is_closed(&mut first));
}

/// What nobody asked for would be taken for the next answer.
#[tokio::test]
async fn a_connection_on_which_something_came_is_not_used() {
    let (_directory, listener, pool) = listening();
    let mut end = idle(&pool, &listener, 1).await;
    end.write_all(b"x").unwrap();
    assert!(pool.take(&1).is_none());
    assert!(is_closed(&mut end));
}
