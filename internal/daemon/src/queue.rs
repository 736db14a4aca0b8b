//! What a response has for its client and its client has not read yet: one end for the reactor, one for the connection.
//!
//! tokio's channel makes room for 32 pieces with each response, where nearly every one has one piece; that room was 1 KiB of
//! every idle GET stream.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

/// Both ends of a queue.
pub(crate) fn queue() -> (Writer, Reader) {
    let shared = Arc::default();
    (Writer(Arc::clone(&shared)), Reader(shared))
}

/// Dropped, it ends the queue behind its last piece.
pub(crate) struct Writer(Arc<Shared>);

/// Dropped, it tells the other end so.
pub(crate) struct Reader(Arc<Shared>);

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// Bytes in them.
    unread: usize,
    /// Whoever waits at either end.
    reader: Option<Waker>,
    writer: Option<Waker>,
    reader_is_gone: bool,
    end: Option<End>,
}

/// How a queue ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Whole,
    /// There should have been more.
    Broken,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        wake(state.reader.take(), state);
    }
}

/// What an empty queue may keep room for: a stream lives for days, and may have had one hour in which nobody read.
const KEPT: usize = 8;

/// Without the lock: the one who wakes up takes it.
fn wake(waker: Option<Waker>, locked: MutexGuard<'_, State>) {
    drop(locked);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The task that waits is nearly always the same.
fn wait(place: &mut Option<Waker>, context: &Context<'_>) {
    if !place.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        *place = Some(context.waker().clone());
    }
}

impl Writer {
    /// `false`: nobody will read it.
    pub(crate) fn push(&self, piece: Bytes) -> bool {
        let mut state = self.0.state();
        if state.reader_is_gone {
            return false;
        }
        state.unread += piece.len();
        state.pieces.push_back(piece);
        wake(state.reader.take(), state);
        true
    }

    /// Bytes that were not read.
    pub(crate) fn unread(&self) -> usize {
        self.0.state().unread
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.state().reader_is_gone
    }

    /// Waits until nobody reads any more.
    pub(crate) async fn closed(&self) {
        /// Who waits no more is not to be kept.
        struct Waiting<'a>(&'a Shared);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                let waker = self.0.state().writer.take();
                drop(waker);
            }
        }
        let _waiting = Waiting(&self.0);
        poll_fn(|context| {
            let mut state = self.0.state();
            if state.reader_is_gone {
                return Poll::Ready(());
            }
            wait(&mut state.writer, context);
            Poll::Pending
        })
        .await;
    }

    /// Ends it where there should be more.
    pub(crate) fn break_off(self) {
        self.0.end(End::Broken);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.end(End::Whole);
    }
}

impl Reader {
    /// The next piece, or how it ends. It spends nothing of its task's budget: who reads is a connection, which takes what it has
    /// room for and then writes, and that spends it.
    pub(crate) fn poll_next(&mut self, context: &Context<'_>) -> Poll<Result<Bytes, End>> {
        let mut state = self.0.state();
        if let Some(piece) = state.pieces.pop_front() {
            state.unread -= piece.len();
            if state.pieces.is_empty() && state.pieces.capacity() > KEPT {
                state.pieces = VecDeque::new();
            }
            return Poll::Ready(Ok(piece));
        }
        if let Some(end) = state.end {
            return Poll::Ready(Err(end));
        }
        wait(&mut state.reader, context);
        Poll::Pending
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.reader_is_gone = true;
        // With them go the permits that let their source read on.
        let unread = std::mem::take(&mut state.pieces);
        wake(state.writer.take(), state);
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waiting() -> (Arc<Count>, Waker) {
        let count = Arc::<Count>::default();
        (Arc::clone(&count), count.into())
    }

    fn read(reader: &mut Reader, waker: &Waker) -> Poll<Result<Bytes, End>> {
        reader.poll_next(&Context::from_waker(waker))
    }

    fn piece(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn pieces_are_read_in_their_order_and_then_the_end() {
        let ((writer, mut reader), (_, waker)) = (queue(), waiting());
        assert!(writer.push(piece("one")) && writer.push(piece("three")));
        assert_eq!(writer.unread(), 8);
        assert_eq!(read(&mut reader, &waker), Poll::Ready(Ok(piece("one"))));
        assert_eq!(writer.unread(), 5);
        drop(writer);
        assert_eq!(read(&mut reader, &waker), Poll::Ready(Ok(piece("three"))));
        assert_eq!(read(&mut reader, &waker), Poll::Ready(Err(End::Whole)));
        assert_eq!(read(&mut reader, &waker), Poll::Ready(Err(End::Whole)), "and stays so");
    }

    #[test]
    fn what_breaks_off_says_so_behind_its_pieces() {
        let ((writer, mut reader), (_, waker)) = (queue(), waiting());
        assert!(writer.push(piece("one")));
        writer.break_off();
        assert_eq!(read(&mut reader, &waker), Poll::Ready(Ok(piece("one"))));
        assert_eq!(read(&mut reader, &waker), Poll::Ready(Err(End::Broken)));
    }

    #[test]
    fn a_reader_is_woken_once_for_each_time_it_waits() {
        let ((writer, mut reader), (count, waker)) = (queue(), waiting());
        let woken = || count.0.load(Ordering::Relaxed);
        for _ in 0..3 {
            assert!(read(&mut reader, &waker).is_pending());
        }
        assert!(writer.push(piece("one")) && writer.push(piece("two")));
        assert_eq!(woken(), 1, "nobody waited when the second came");
        assert!(read(&mut reader, &waker).is_ready() && read(&mut reader, &waker).is_ready());
        assert!(read(&mut reader, &waker).is_pending());
        drop(writer);
        assert_eq!(woken(), 2);
    }

    #[test]
    fn neither_room_nor_waiters_are_kept() {
        let ((writer, mut reader), (count, waker)) = (queue(), waiting());
        for _ in 0..1000 {
            assert!(writer.push(piece("one")));
        }
        for _ in 0..1000 {
            assert!(read(&mut reader, &waker).is_ready());
        }
        assert!(writer.0.state().pieces.capacity() <= KEPT);
        let waiters = Arc::strong_count(&count);
        let mut closed = Box::pin(writer.closed());
        assert!(closed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(Arc::strong_count(&count), waiters + 1);
        drop(closed);
        assert_eq!(Arc::strong_count(&count), waiters);
    }

    /// A response may be read by another task than the one that made it.
    #[test]
    fn whoever_waited_last_is_woken() {
        let ((writer, mut reader), (first, one), (second, other)) = (queue(), waiting(), waiting());
        assert!(read(&mut reader, &one).is_pending() && read(&mut reader, &other).is_pending());
        assert!(writer.push(piece("one")));
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn a_reader_that_goes_away_is_noticed_and_keeps_nothing() {
        let ((writer, reader), (count, waker)) = (queue(), waiting());
        let held = Arc::new(());
        struct Held(#[expect(dead_code, reason = "it is counted")] Arc<()>);
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                b"held"
            }
        }
        assert!(writer.push(Bytes::from_owner(Held(Arc::clone(&held)))) && !writer.is_closed());
        let mut closed = Box::pin(writer.closed());
        assert!(closed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(reader);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(closed.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        drop(closed);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(writer.is_closed() && !writer.push(piece("late")));
    }
}
