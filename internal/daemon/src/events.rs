//! A whole event stream towards a client: the events of one response, or of every member of a batch, and where it is
//! wanted a comment in the silence between them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::body::Events;
use crate::relay::Seam;

/// A comment (HTML, "Server-sent events", section 9.2.6): clients read over it.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// The stream breaks off where a connection did that it came by.
#[derive(Debug, thiserror::Error)]
#[error("the process that answered is gone")]
pub(crate) struct BrokenOff;

/// hyper's end of an event stream.
#[derive(Default)]
pub(crate) struct EventBody {
    /// Those that have not ended.
    sources: Vec<Events>,
    /// What was known when it began.
    ready: VecDeque<Bytes>,
    /// If the first source is in the middle of an event: nothing may come between its pieces.
    seam: Seam,
    /// One of them broke off.
    broken: bool,
    silence: Option<Silence>,
}

/// Speaks up when nothing was said for a while. Sleeps, but for once in that time.
struct Silence {
    limit: Duration,
    last: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl EventBody {
    pub(crate) fn of(events: Events) -> Self {
        Self { sources: vec![events], ..Self::default() }
    }

    /// The events of one more response.
    pub(crate) fn add(&mut self, events: Events) {
        self.sources.push(events);
    }

    /// One more event, which is sent first.
    pub(crate) fn say(&mut self, chunks: impl IntoIterator<Item = Bytes>) {
        self.ready.extend(chunks);
    }

    /// Whether nothing will ever come of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.ready.is_empty()
    }

    /// Has it carry a comment whenever it was silent for so long.
    pub(crate) fn break_silence(&mut self, limit: Option<Duration>) {
        let now = Instant::now();
        self.silence = limit.map(|limit| {
            let first = now.checked_add(limit).unwrap_or(now + Duration::from_secs(86_400));
            Silence { limit, last: now, alarm: Box::pin(sleep_until(first)) }
        });
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(chunk) = self.ready.pop_front() {
            return Poll::Ready(Some(chunk));
        }
        let mut at = 0;
        while let Some(source) = self.sources.get_mut(at) {
            match source.poll_chunk(cx) {
                Poll::Ready(Some(chunk)) => {
                    self.seam.pass(&chunk);
                    // The pieces of an event come from the first source until it is whole.
                    self.sources.swap(0, at);
                    return Poll::Ready(Some(chunk));
                }
                Poll::Ready(None) => {
                    self.broken |= self.sources.remove(at).is_broken();
                    self.seam = Seam::default();
                }
                Poll::Pending if !self.seam.is_whole() => return Poll::Pending,
                Poll::Pending => at += 1,
            }
        }
        if self.sources.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl Silence {
    fn is_too_long(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            if self.alarm.as_mut().poll(cx).is_pending() {
                return false;
            }
            let (due, now) = (self.last + self.limit, Instant::now());
            let over = due <= now;
            if over {
                self.last = now;
            }
            // An alarm is not moved for each event: it looks when it rings.
            self.alarm.as_mut().reset(if over { now + self.limit } else { due });
            if over {
                return true;
            }
        }
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let chunk = match self.next(cx) {
            Poll::Ready(chunk) => chunk,
            Poll::Pending => {
                let within = !self.seam.is_whole();
                let speaks = self.silence.as_mut().is_some_and(|silence| silence.is_too_long(cx));
                return if speaks && !within {
                    Poll::Ready(Some(Ok(Frame::data(COMMENT))))
                } else {
                    Poll::Pending
                };
            }
        };
        if let (Some(_), Some(silence)) = (&chunk, &mut self.silence) {
            silence.last = Instant::now();
        }
        if chunk.is_none() && std::mem::take(&mut self.broken) {
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

#[cfg(test)]
mod tests;
