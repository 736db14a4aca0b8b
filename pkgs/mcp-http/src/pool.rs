//! Connections of HTTP/1 that wait for their next request, and the exchanges that take them and give them back.
//!
//! No task while no exchange is under way, and one small buffer for all of them: a client that waits holds hardly anything but
//! sockets, and wakes up for nothing.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::body::{RawBody, ReadInto};
use crate::error::{BodyError, SendError, Written};
use crate::exchange::{Broken, Exchange, Message, READ, Wire, WireInto};
use crate::h1::{Malformed, Part};

/// What a pool's connections are and lead to.
pub(crate) trait Kind: Send + Sync + Unpin + 'static {
    /// Where one leads to.
    type Place: Clone + PartialEq + Send + Sync + Unpin;
    type Stream: AsyncRead + AsyncWrite + AsFd + Unpin + Send;
    /// More idle connections than this only cost the server.
    const MAX_IDLE: usize;
    /// One that was not used for so long is closed: from here, where a close can meet no request on its way.
    const IDLE_LIMIT: Duration;

    /// Connects.
    fn dial(&self, place: &Self::Place) -> impl Future<Output = Result<Self::Stream, SendError>> + Send;
}

/// See the module's head. Must be used within one tokio runtime.
pub(crate) struct Pool<K: Kind> {
    kind: K,
    idle: Mutex<Idle<K>>,
    room: Arc<Room>,
    /// Counts the calls of [`Pool::dial_anew`]: a connection made before the last one is not kept.
    era: AtomicU64,
}

struct Idle<K: Kind> {
    /// The one that was used last is the last.
    connections: Vec<(Connection<K>, Instant)>,
    /// A task looks for those that stay unused.
    watched: bool,
}

/// A connection. Dropping it closes its socket.
struct Connection<K: Kind> {
    stream: K::Stream,
    place: K::Place,
    /// The pool's when it was made.
    era: u64,
    /// The pool's.
    room: Arc<Room>,
    /// Room for what is read next of a large body.
    buffer: BytesMut,
}

/// Room for a read of [`READ`] bytes, which every connection takes for the time of the read alone. What came last is out of it
/// soon, mostly, so it is one allocation for all of them, and in the processor's cache.
#[derive(Default)]
struct Room(Mutex<BytesMut>);

impl Room {
    fn lock(&self) -> MutexGuard<'_, BytesMut> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> Pool<K> {
    pub(crate) fn new(kind: K) -> Self {
        let idle = Mutex::new(Idle { connections: Vec::new(), watched: false });
        Self { kind, idle, room: Arc::default(), era: AtomicU64::new(0) }
    }

    pub(crate) const fn kind(&self) -> &K {
        &self.kind
    }

    /// Uses no connection again that was made before. Exchanges under way are not disturbed.
    pub(crate) fn dial_anew(&self) {
        let mut idle = self.idle();
        self.era.fetch_add(1, Ordering::AcqRel);
        idle.connections.clear();
    }

    /// One exchange, on an idle connection if there is one.
    pub(crate) async fn exchange(
        self: &Arc<Self>,
        place: &K::Place,
        message: Message,
    ) -> Result<http::Response<RawBody>, SendError> {
        // An idle connection that the server closed meanwhile is not an error as long as nothing was written.
        while let Some(connection) = self.take(place) {
            match self.exchange_on(connection, message.clone()).await {
                Err(SendError { written: Written::Never, .. }) => {}
                outcome => return outcome,
            }
        }
        // Boxed: it takes more room than all the rest, and most exchanges connect to nothing.
        let connection = Box::pin(self.open(place)).await?;
        self.exchange_on(connection, message).await
    }

    async fn open(&self, place: &K::Place) -> Result<Connection<K>, SendError> {
        let era = self.era.load(Ordering::Acquire);
        let stream = self.kind.dial(place).await?;
        let (place, room) = (place.clone(), Arc::clone(&self.room));
        Ok(Connection { stream, place, era, room, buffer: BytesMut::new() })
    }

    /// A block and no `async fn`, which would have room for its arguments twice.
    fn exchange_on(
        self: &Arc<Self>,
        connection: Connection<K>,
        message: Message,
    ) -> impl Future<Output = Result<http::Response<RawBody>, SendError>> + Send {
        let mut exchange = Exchange::new(connection, message);
        async move {
            let head = poll_fn(|context| exchange.poll_head(context)).await?;
            let mut body = Body { exchange: Some(exchange), pool: Arc::clone(self) };
            // Only where the head itself says that there is nothing: an empty stream of events is one, also if its end came
            // in the same read.
            if body.exchange.as_ref().and_then(Exchange::left) == Some(0) {
                body.settle();
            }
            Ok(http::Response::from_parts(head, RawBody::own(body)))
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle<K>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last and still lives.
    fn take(&self, place: &K::Place) -> Option<Connection<K>> {
        let mut idle = self.idle();
        loop {
            let at = idle.connections.iter().rposition(|(connection, _)| connection.place == *place)?;
            let (connection, since) = idle.connections.remove(at);
            if since.elapsed() < K::IDLE_LIMIT && connection.is_open() {
                return Some(connection);
            }
        }
    }

    /// Takes a connection back after its response was read to the end.
    fn put(self: &Arc<Self>, mut connection: Connection<K>) {
        let mut idle = self.idle();
        if connection.era != self.era.load(Ordering::Acquire) {
            return;
        }
        if idle.connections.len() >= K::MAX_IDLE {
            idle.connections.retain(|(connection, _)| connection.is_open());
            if idle.connections.len() >= K::MAX_IDLE {
                return;
            }
        }
        connection.buffer = BytesMut::new();
        idle.connections.push((connection, Instant::now()));
        if !idle.watched
            && let Ok(runtime) = Handle::try_current()
        {
            idle.watched = true;
            runtime.spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Closes what is of no use any more; says when to look again, if there is anything to look for.
    fn close_unused(&self) -> Option<Instant> {
        let mut idle = self.idle();
        idle.connections
            .retain(|(connection, since)| since.elapsed() < K::IDLE_LIMIT && connection.is_open());
        let next = idle.connections.iter().map(|(_, since)| *since + K::IDLE_LIMIT).min();
        idle.watched = next.is_some();
        next
    }
}

/// Ends with the last idle connection.
async fn watch<K: Kind>(pool: Weak<Pool<K>>) {
    let mut next = Some(Instant::now() + K::IDLE_LIMIT);
    while let Some(at) = next {
        tokio::time::sleep_until(at).await;
        next = pool.upgrade().and_then(|pool| pool.close_unused());
    }
}

impl<K: Kind> Connection<K> {
    /// Whether an idle one may be used: the server has not closed it, and has sent nothing that nobody asked for. The system
    /// is asked, not the runtime, which may not have looked yet: a request that is written to a connection whose close has
    /// arrived is lost with its outcome unknown.
    fn is_open(&self) -> bool {
        let mut byte = [0];
        loop {
            match recv(&self.stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => return matches!(other, Err(Errno::AGAIN)),
            }
        }
    }
}

impl<K: Kind> Wire for Connection<K> {
    fn poll_write(&mut self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn poll_read(&mut self, context: &mut Context<'_>, room: usize) -> Poll<io::Result<Bytes>> {
        let mut shared;
        let buffer = if room > READ {
            &mut self.buffer
        } else {
            // A stream that waits after a large event is not to hold its room.
            self.buffer = BytesMut::new();
            shared = self.room.lock();
            &mut *shared
        };
        buffer.reserve(room);
        // Holds nothing between two polls.
        ready!(pin!(self.stream.read_buf(buffer)).poll(context))?;
        Poll::Ready(Ok(buffer.split().freeze()))
    }
}

impl<K: Kind> WireInto for Connection<K> {
    fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        pin!(self.stream.read_buf(&mut into.limit(most))).poll(context)
    }
}

/// An exchange that is the body of its response. Gives its connection back at the end; dropped before, it closes it.
struct Body<K: Kind> {
    /// `None` once it is over.
    exchange: Option<Exchange<Connection<K>>>,
    pool: Arc<Pool<K>>,
}

impl<K: Kind> Body<K> {
    fn end(&mut self) {
        if let Some(connection) = self.exchange.take().and_then(Exchange::into_reusable) {
            self.pool.put(connection);
        }
    }

    /// Its connection is of no use any more.
    fn cut(&mut self, broken: Broken) -> BodyError {
        self.exchange = None;
        BodyError::Cut { source: broken.into() }
    }

    /// Gives the connection back if nothing is to come that was not read yet.
    fn settle(&mut self) {
        if self.exchange.as_mut().is_some_and(Exchange::end_if_here) {
            self.end();
        }
    }
}

impl<K: Kind> HttpBody for Body<K> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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
            Ok(Part::Head(_)) => Some(Err(self.cut(Malformed::Head.into()))),
            Err(broken) => Some(Err(self.cut(broken))),
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

impl<K: Kind> ReadInto for Body<K> {
    fn poll_into(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<Result<(), BodyError>> {
        let Some(exchange) = &mut self.exchange else { return Poll::Ready(Err(self.cut(Broken::Eof))) };
        match ready!(exchange.poll_into(context, into)) {
            Ok(()) => {
                self.settle();
                Poll::Ready(Ok(()))
            }
            Err(broken) => Poll::Ready(Err(self.cut(broken))),
        }
    }
}

#[cfg(test)]
mod tests;
