//! One request and its response over one connection, whatever carries the bytes and whoever waits for them.
//!
//! It is here that "no byte of it was written" is known and not guessed: the caller's repeats stand on it. Two kinds of
//! connection use it: those of the pool (`pool.rs`), over sockets and plain TCP, and a shim's, whose loop waits for all its
//! files at once.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::Request;
use http::response::Parts;

use crate::error::{SendError, SendErrorKind, Written};
use crate::h1::{Head, Malformed, Part, Reader};

/// How much is read at once, in bytes: at first, and of a body that fills that again and again. Pieces of that size are still in
/// the processor's cache when they are copied together.
pub(crate) const READ: usize = 8 << 10;
const MAX_READ: usize = 128 << 10;
/// Idle connections to one socket that are kept: one client has few calls at a time, and more only cost the server.
pub const SOCKET_MAX_IDLE: usize = 8;
/// So long one of them is kept. It is closed from here, where a close can meet no request on its way.
pub const SOCKET_IDLE: Duration = Duration::from_secs(30);
/// A body up to this leaves in one piece with its head, in bytes; a larger one is not copied.
const SMALL_BODY: usize = 16 << 10;

/// A connection's bytes. What is pending is told to the context's waker, or to whoever waits for the connection otherwise.
pub trait Wire {
    /// Writes some of these.
    fn poll_write(&mut self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// The next bytes, at best `room`; none at the end.
    fn poll_read(&mut self, context: &mut Context<'_>, room: usize) -> Poll<io::Result<Bytes>>;
}

/// A [`Wire`] that can read to where the bytes shall lie.
pub(crate) trait WireInto: Wire {
    /// The next bytes, at most so many, to the end of `into`, which has room for them. How many; 0 at the end.
    fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        most: usize,
    ) -> Poll<io::Result<usize>>;
}

/// A request as it goes out. Clones share its bytes. No `Debug`: it holds credentials.
#[derive(Clone)]
pub struct Message {
    head: Bytes,
    /// Empty if it is behind the head already.
    body: Bytes,
}

impl Message {
    /// A request with its body and their framing.
    #[must_use]
    pub fn new(request: &Request<Bytes>) -> Self {
        Self::of(Head::of(request), request.body())
    }

    /// The same, of a head that was written without a map.
    #[must_use]
    pub fn of(head: Head, body: &Bytes) -> Self {
        let mut head = head.end(body.len());
        if body.len() > SMALL_BODY {
            return Self { head: head.freeze(), body: body.clone() };
        }
        head.extend_from_slice(body);
        Self { head: head.freeze(), body: Bytes::new() }
    }

    fn is_gone(&self) -> bool {
        self.head.is_empty() && self.body.is_empty()
    }

    fn advance(&mut self, length: usize) {
        let of_head = length.min(self.head.len());
        self.head.advance(of_head);
        self.body.advance((length - of_head).min(self.body.len()));
    }
}

/// One request and its response. Dropping it closes its connection.
pub struct Exchange<W> {
    wire: W,
    unsent: Message,
    /// The kernel took some of it.
    written: bool,
    /// How writing it failed. What the server said before is still read.
    failed: Option<io::Error>,
    reader: Reader,
    /// How much is read next.
    read: usize,
}

/// Why no part came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The connection ended in the middle.
    #[error("the connection ended before the response did")]
    Eof,
    /// It broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is not HTTP.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl<W: Wire> Exchange<W> {
    /// An exchange that begins when it is polled first.
    pub fn new(wire: W, message: Message) -> Self {
        Self { wire, unsent: message, written: false, failed: None, reader: Reader::default(), read: READ }
    }

    /// The connection, to wait for it.
    pub const fn wire(&self) -> &W {
        &self.wire
    }

    /// The connection, to tell it that the wait is over.
    pub const fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Some of the request is not written yet: writing is waited for too.
    pub fn is_writing(&self) -> bool {
        !self.unsent.is_gone()
    }

    /// Bytes of the body that are known to come.
    pub fn left(&self) -> Option<u64> {
        self.reader.left()
    }

    /// The response's head.
    pub(crate) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Parts, SendError>> {
        Poll::Ready(match ready!(self.poll_part(context)) {
            Ok(Part::Head(parts)) => Ok(parts),
            // The head is the first part.
            Ok(Part::Data(_) | Part::End) => Err(self.error(Malformed::Head.into())),
            Err(broken) => Err(self.error(broken)),
        })
    }

    fn error(&self, broken: Broken) -> SendError {
        let written = if self.written { Written::Unknown } else { Written::Never };
        let kind = match &broken {
            Broken::Malformed(_) => SendErrorKind::Protocol,
            // The peer acknowledges nothing any more.
            Broken::Io(error) if error.kind() == io::ErrorKind::TimedOut => SendErrorKind::Timeout,
            Broken::Eof | Broken::Io(_) => SendErrorKind::Closed,
        };
        SendError::new(kind, written, broken)
    }

    /// Writes what is left of the request, and reads until there is a part of the response. Not to be called again after an
    /// error or the end.
    ///
    /// # Errors
    /// If the response cannot be had whole.
    pub fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<Part, Broken>> {
        loop {
            if let Some(part) = self.reader.next_part()? {
                return Poll::Ready(Ok(part));
            }
            self.send(context)?;
            let bytes = ready!(self.wire.poll_read(context, self.read));
            let bytes = bytes.map_err(|error| self.failed.take().unwrap_or(error))?;
            if bytes.is_empty() {
                return Poll::Ready(if self.reader.finish() {
                    Ok(Part::End)
                } else {
                    // The cause of it, if it is known.
                    Err(self.failed.take().map_or(Broken::Eof, Broken::Io))
                });
            }
            // Small again after a large body: that much room is the pool's, and a stream that waits keeps none.
            self.read = if bytes.len() >= self.read { (self.read * 4).min(MAX_READ) } else { READ };
            self.reader.push(bytes);
        }
    }

    /// Writes as much as goes; otherwise the first poll does.
    ///
    /// # Errors
    /// Only if nothing went before: a server may have answered and closed while the request was still being written, and
    /// [`poll_part`](Self::poll_part) finds that out.
    pub fn send(&mut self, context: &mut Context<'_>) -> Result<(), Broken> {
        while !self.unsent.is_gone() {
            let parts = [IoSlice::new(&self.unsent.head), IoSlice::new(&self.unsent.body)];
            match self.wire.poll_write(context, &parts) {
                Poll::Ready(Ok(0)) if !self.written => {
                    return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                }
                Poll::Ready(Ok(0)) => self.give_up_writing(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => {
                    self.written = true;
                    self.unsent.advance(length);
                }
                Poll::Ready(Err(error)) if !self.written => return Err(error.into()),
                Poll::Ready(Err(error)) => self.give_up_writing(error),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Reads some of a body of known length to the end of `into`, which has room for what is left; nothing once nothing is.
    pub(crate) fn poll_into(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<Result<(), Broken>>
    where
        W: WireInto,
    {
        if self.reader.has_pending() {
            if let Some(Part::Data(data)) = self.reader.next_part()? {
                into.extend_from_slice(&data);
            }
            return Poll::Ready(Ok(()));
        }
        self.send(context)?;
        let left = self.reader.left().and_then(|left| usize::try_from(left).ok()).unwrap_or_default();
        let read = ready!(self.wire.poll_read_into(context, into, left));
        match read.map_err(|error| self.failed.take().unwrap_or(error))? {
            0 if left > 0 => Poll::Ready(Err(self.failed.take().map_or(Broken::Eof, Broken::Io))),
            length => {
                self.reader.skip(length);
                Poll::Ready(Ok(()))
            }
        }
    }

    fn give_up_writing(&mut self, error: io::Error) {
        self.failed = Some(error);
        (self.unsent.head, self.unsent.body) = (Bytes::new(), Bytes::new());
    }

    /// Whether the response is whole, if all that is left of it are bytes that have come.
    pub fn end_if_here(&mut self) -> bool {
        self.reader.end_if_here()
    }

    /// The connection after the end, if it may carry another request.
    pub fn into_reusable(self) -> Option<W> {
        let whole = self.unsent.is_gone() && self.failed.is_none();
        (whole && self.reader.is_reusable()).then_some(self.wire)
    }
}
