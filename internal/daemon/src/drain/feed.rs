//! What a process that drains has to tell: calls that are over, streams that it let go of. Kept, because the
//! successor listens a moment after it took over, may lose its connection, and may have a successor of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::line::{Begin, Line, Numbered};

/// Lines kept. A line comes once for each call and stream that was handed over; who missed the oldest of so many
/// learns what became of them from the journal.
const MOST_KEPT: usize = 65_536;
/// Lines on their way to one listener.
const AHEAD: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Feed {
    state: Mutex<State>,
    /// Moves on with every line, and at the end.
    news: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Kept>,
    /// The number of the last line.
    last: u64,
    /// The highest number that any listener was told.
    told: u64,
    closed: bool,
}

struct Kept {
    number: u64,
    /// Good for another listener too: that a call is over and what it brought stays true, where a stream stood does not.
    lasting: bool,
    text: Bytes,
}

enum Next {
    Line(u64, Bytes),
    Wait,
    Over,
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody who listens, or else whoever comes.
    pub(crate) fn tell(&self, line: Line) {
        let lasting = matches!(line, Line::CallOver(_) | Line::Handles(_));
        let mut state = self.state();
        let number = state.last + 1;
        let Ok(text) = write(number, line) else { return };
        state.last = number;
        state.kept.push_back(Kept { number, lasting, text });
        if state.kept.len() > MOST_KEPT {
            state.kept.pop_front();
        }
        drop(state);
        self.news.send_replace(number);
    }

    /// Nothing more will be told.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.news.send_modify(|_| ());
    }

    /// The lines behind `after`; without it all that are of use to somebody who has heard none.
    pub(crate) fn listen(self: &Arc<Self>, after: Option<u64>) -> mpsc::Receiver<Bytes> {
        let (tx, rx) = mpsc::channel(AHEAD);
        tokio::spawn(Arc::clone(self).speak(after, tx));
        rx
    }

    async fn speak(self: Arc<Self>, after: Option<u64>, tx: mpsc::Sender<Bytes>) {
        let mut news = self.news.subscribe();
        let stale = if after.is_none() { self.state().told } else { 0 };
        let mut at = after.unwrap_or(0);
        let Ok(begin) = write(0, Line::Begin(Begin { pid: Some(std::process::id()) })) else { return };
        if tx.send(begin).await.is_err() {
            return;
        }
        loop {
            news.mark_unchanged();
            match self.next(at, stale) {
                Next::Line(number, text) => {
                    if tx.send(text).await.is_err() {
                        return;
                    }
                    at = number;
                    let mut state = self.state();
                    state.told = state.told.max(number);
                }
                Next::Over => return,
                Next::Wait => tokio::select! {
                    changed = news.changed() => if changed.is_err() { return },
                    () = tx.closed() => return,
                },
            }
        }
    }

    fn next(&self, at: u64, stale: u64) -> Next {
        let state = self.state();
        let from = state.kept.partition_point(|kept| kept.number <= at);
        match state.kept.range(from..).find(|kept| kept.lasting || kept.number > stale) {
            Some(kept) => Next::Line(kept.number, kept.text.clone()),
            None if state.closed => Next::Over,
            None => Next::Wait,
        }
    }
}

fn write(number: u64, line: Line) -> serde_json::Result<Bytes> {
    let mut text = serde_json::to_vec(&Numbered { number, line })?;
    text.push(b'\n');
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evermux_core::handover::ReleasedStream;
    use evermux_core::names::{Handshake, Trajectory, WireId};

    use super::*;

    fn over(wire: u64) -> Line {
        Line::call_over(Trajectory(1), Handshake(1), WireId(wire), true)
    }

    fn released() -> Line {
        let (trajectory, handshake) = (Trajectory(1), Handshake(1));
        Line::released(&ReleasedStream {
            trajectory,
            handshake,
            cursor: None,
            heard: Vec::new(),
            missed: Vec::new(),
        })
    }

    async fn number(rx: &mut mpsc::Receiver<Bytes>) -> Option<u64> {
        let next = tokio::time::timeout(Duration::from_secs(20), rx.recv());
        let text = next.await.expect("a line in time")?;
        Some(serde_json::from_slice::<Numbered>(&text).unwrap().number)
    }

    #[tokio::test]
    async fn lines_wait_for_their_first_listener_and_are_told_again_to_who_asks() {
        let feed = Arc::new(Feed::default());
        feed.tell(over(1));
        feed.tell(released());
        let mut first = feed.listen(None);
        for expected in [0, 1, 2] {
            assert_eq!(number(&mut first).await, Some(expected));
        }
        feed.tell(over(2));
        assert_eq!(number(&mut first).await, Some(3), "as it comes");
        // It lost its connection after line 1.
        drop(first);
        let mut again = feed.listen(Some(1));
        for expected in [0, 2, 3] {
            assert_eq!(number(&mut again).await, Some(expected));
        }
        // A successor's successor: where the stream stood then is no news to it.
        let mut other = feed.listen(None);
        for expected in [0, 1, 3] {
            assert_eq!(number(&mut other).await, Some(expected));
        }
        feed.tell(released());
        assert_eq!((number(&mut again).await, number(&mut other).await), (Some(4), Some(4)));
        feed.close();
        assert_eq!((number(&mut again).await, number(&mut other).await), (None, None));
    }

    #[tokio::test]
    async fn the_oldest_lines_give_way() {
        let feed = Arc::new(Feed::default());
        for wire in 0..=MOST_KEPT as u64 {
            feed.tell(over(wire));
        }
        let mut rx = feed.listen(None);
        assert_eq!((number(&mut rx).await, number(&mut rx).await), (Some(0), Some(2)));
    }
}
