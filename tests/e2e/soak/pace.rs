//! When the next call is due. Workers take turns from one clock, so that the rate does not depend on how many they
//! are; who is late goes on at once.

use std::time::{Duration, Instant};

use evermux_testkit::wait::Watched;

use crate::support::PATIENCE;

/// What a worker is to do next.
pub(super) enum Turn {
    /// Call number so-and-so, at this moment.
    Call(u64, Instant),
    /// Settle what is out and rest.
    Rest,
    /// Settle what is out and end.
    Stop,
}

/// The clock.
pub(super) struct Pace {
    between: Duration,
    state: Watched<State>,
}

struct State {
    workers: usize,
    stopped: bool,
    paused: bool,
    resting: usize,
    given: u64,
    /// When the next call is due.
    due: Instant,
}

/// Stops the clock when dropped.
pub(super) struct Over<'a>(&'a Pace);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.state.update(|state| state.stopped = true);
    }
}

impl Pace {
    /// A clock that has not begun.
    pub(super) fn new(rate: u32) -> Self {
        let state =
            State { workers: 0, stopped: false, paused: true, resting: 0, given: 0, due: Instant::now() };
        Self { between: Duration::from_secs(1) / rate, state: Watched::new(state) }
    }

    pub(super) fn stop_at_the_end(&self) -> Over<'_> {
        Over(self)
    }

    /// Waits for all workers to be there, and begins.
    #[track_caller]
    pub(super) fn begin(&self, workers: usize) {
        self.state.update(|state| state.workers = workers);
        self.pause();
        self.resume();
    }

    /// Comes back when nobody has a call out.
    #[track_caller]
    pub(super) fn pause(&self) {
        self.state.update(|state| state.paused = true);
        let all = self.state.wait(PATIENCE * 4, |state| (state.resting == state.workers).then_some(()));
        assert!(all.is_some(), "the clients do not come to rest");
    }

    /// Goes on, without making up for the pause.
    pub(super) fn resume(&self) {
        self.state.update(|state| {
            state.paused = false;
            state.due = Instant::now();
        });
    }

    /// How many calls were given out.
    pub(super) fn given(&self) -> u64 {
        self.state.read(|state| state.given)
    }

    pub(super) fn next(&self) -> Turn {
        self.state.update(|state| {
            if state.stopped {
                return Turn::Stop;
            }
            if state.paused {
                return Turn::Rest;
            }
            state.given += 1;
            let due = state.due;
            state.due += self.between;
            Turn::Call(state.given, due)
        })
    }

    /// Rests until the pause is over.
    pub(super) fn rest(&self) {
        self.state.update(|state| state.resting += 1);
        let over = self.state.wait(PATIENCE * 8, |state| (!state.paused || state.stopped).then_some(()));
        self.state.update(|state| state.resting -= 1);
        assert!(over.is_some(), "the pause does not end");
    }
}

/// Rests until a moment. Nothing is taken for done because it has come: it only says how fast to go.
pub(super) fn rest_until(moment: Instant) {
    while let Some(left) = moment.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
