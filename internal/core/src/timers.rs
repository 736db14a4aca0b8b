//! Deadlines as data: what is due when, cancelled by key.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::call::CallId;
use crate::input::{ExchangeId, Mono};
use crate::names::LinkNonce;
use crate::session::SessionIx;

/// What becomes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A call's longest life.
    Call(CallId),
    /// A cancel has waited long enough for a sign that the call reached the server.
    CancelGrace(CallId),
    /// A cancelled call gets no answer any more.
    CancelEnd(CallId),
    /// A call is tried once more.
    CallRetry(CallId),
    /// A replay has been silent.
    ReplaySilent(CallId),
    /// A replay is tried once more.
    ReplayRetry(CallId),
    /// A ping, handshake or notification got no answer.
    Exchange(ExchangeId),
    /// The next attempt on a session.
    Backoff(SessionIx),
    /// The session has been quiet.
    Keepalive(SessionIx),
    /// The GET stream is opened again.
    Standalone(SessionIx),
    /// A chore that got no answer is tried again.
    Chores(SessionIx),
    /// A failed id reservation is tried again.
    Reserve(SessionIx),
    /// An answer is posted once more, or looks whether its session is ready.
    Lane(SessionIx, LinkNonce),
    /// The client of a session of its own has been gone for long.
    Grace(SessionIx),
    /// Links that were not heard of are forgotten.
    Sweep,
    /// Sessions that nobody uses are.
    Daily,
    /// A successor that asks for no GET stream gets them all.
    LetGo,
    /// A GET stream that a process which drains does not let go of.
    Unreleased(SessionIx),
}

/// Names one armed timer.
pub(crate) type TimerId = (Mono, u64);

#[derive(Debug, Default)]
pub(crate) struct Timers {
    armed: BTreeMap<TimerId, Timer>,
    counter: u64,
}

impl Timers {
    /// Arms a timer strictly later than `now`, so that a due deadline can never spin the loop (P8).
    pub(crate) fn arm(&mut self, now: Mono, after: Duration, timer: Timer) -> TimerId {
        self.counter += 1;
        let id = (now + after.max(Duration::from_micros(1)), self.counter);
        self.armed.insert(id, timer);
        id
    }

    pub(crate) fn cancel(&mut self, id: Option<TimerId>) {
        if let Some(id) = id {
            self.armed.remove(&id);
        }
    }

    /// Takes the oldest timer that is due.
    pub(crate) fn due(&mut self, now: Mono) -> Option<Timer> {
        let id = *self.armed.first_key_value()?.0;
        if id.0 > now {
            return None;
        }
        self.armed.remove(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.armed.len()
    }

    pub(crate) fn next(&self) -> Option<Mono> {
        self.armed.first_key_value().map(|(id, _)| id.0)
    }
}
