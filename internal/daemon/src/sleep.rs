//! Notices that the machine slept.
//!
//! The monotonic clock stands still in a sleep and the wall clock does not. They are compared when the reactor
//! handles something anyway: a machine that wakes for nobody must not wake a daemon either. What is handled then has that
//! look's time: reading both clocks for each of a call's facts was a hundredth of the call.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Less is a clock being set right, and costs no connection its life: servers and middle boxes wait longer.
const ASLEEP: Duration = Duration::from_secs(20);

/// The two clocks, and how they stood at the last look.
pub(crate) struct Clocks {
    started: Instant,
    wall: Wall,
    last: (Duration, Duration),
}

/// Time since 1970; given in, so that a test can let a machine sleep.
pub(crate) type Wall = Box<dyn Fn() -> Duration + Send>;

/// The system's.
pub(crate) fn system_wall() -> Wall {
    Box::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

impl Clocks {
    pub(crate) fn new(wall: Wall) -> Self {
        let last = (Duration::ZERO, wall());
        Self { started: Instant::now(), wall, last }
    }

    /// Since the process started, without sleep; as of the last look.
    pub(crate) const fn mono(&self) -> Duration {
        self.last.0
    }

    /// Milliseconds since 1970; as of the last look.
    pub(crate) fn wall_ms(&self) -> u64 {
        u64::try_from(self.last.1.as_millis()).unwrap_or(u64::MAX)
    }

    /// The moment of a time since the start.
    pub(crate) fn at(&self, mono: Duration) -> Instant {
        self.started + mono
    }

    /// Looks at the clocks. How long the machine has slept since the last look, if it has. A wall clock that is set
    /// forward by hand looks the same, and costs a few new connections; one that is set back is nothing.
    pub(crate) fn slept(&mut self) -> Option<Duration> {
        let (mono, wall) = (self.started.elapsed(), (self.wall)());
        let (mono_before, wall_before) = std::mem::replace(&mut self.last, (mono, wall));
        let passed = wall.saturating_sub(wall_before);
        let ahead = passed.saturating_sub(mono.saturating_sub(mono_before));
        (ahead > ASLEEP).then_some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_wall_clock_that_ran_ahead_is_a_sleep_once() {
        let seconds = Arc::new(AtomicU64::new(1_000_000));
        let read = Arc::clone(&seconds);
        let mut clocks = Clocks::new(Box::new(move || Duration::from_secs(read.load(Ordering::Relaxed))));
        assert_eq!(clocks.slept(), None);
        for (step, slept) in [(20, false), (22, true), (0, false), (3600, true), (19, false), (19, false)] {
            seconds.fetch_add(step, Ordering::Relaxed);
            assert_eq!(clocks.slept().is_some(), slept, "{step} s");
        }
        seconds.fetch_sub(5000, Ordering::Relaxed);
        assert_eq!(clocks.slept(), None);
        seconds.fetch_add(10, Ordering::Relaxed);
        assert_eq!(clocks.slept(), None);
    }
}
