//! Level-triggered waits with a deadline.
//!
//! Every wait of a test looks at a condition, never at an event that may already have passed, and every wait ends. Sleeping "long
//! enough" is refused on purpose: it is either too short on a busy machine or wasted time on an idle one.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a wait of the kit itself may last before it counts as a failure. Generous, since it is only spent when something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How often a condition outside this process (a file, a process table) is looked at.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// A value that other threads change and a test waits on.
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Watched<T> {
    /// Wraps a first value.
    pub const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    /// Changes the value and wakes every waiter.
    pub fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Looks at the value without waking anyone.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    /// Waits until `condition` gives something; `None` once `within` has passed.
    pub fn wait<R>(&self, within: Duration, mut condition: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let deadline = Instant::now() + within;
        let mut guard = self.lock();
        loop {
            if let Some(result) = condition(&mut guard) {
                return Some(result);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            guard = self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A test that panicked while holding the lock has already failed; the rest of the teardown must still work.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

/// Looks at something outside this process until it gives a value; `None` once `within` has passed.
pub fn poll_until<R>(within: Duration, mut condition: impl FnMut() -> Option<R>) -> Option<R> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(result) = condition() {
            return Some(result);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(POLL_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_already_holds_needs_no_event() {
        let watched = Watched::new(3);
        assert_eq!(watched.wait(Duration::ZERO, |value| (*value == 3).then_some(*value)), Some(3));
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let watched = Watched::new(3);
        assert_eq!(watched.wait(Duration::from_millis(20), |value| (*value == 4).then_some(())), None);
    }

    #[test]
    fn a_change_from_another_thread_ends_the_wait() {
        let watched = Watched::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| watched.update(|value| *value = 7));
            assert_eq!(watched.wait(PATIENCE, |value| (*value == 7).then_some(())), Some(()));
        });
    }
}
