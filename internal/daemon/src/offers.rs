//! Whether a newer build may take over without a person asking for it (decision 0022).
//!
//! Starting shims ask, and the daemon that runs answers: it is the one place that all of them share, so of twenty that
//! start at once one is told yes, and its clock is one that nobody sets.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most one offer is taken in so long.
const PAUSE: Duration = Duration::from_secs(60 * 60);

/// Whose decision it was that this daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartedBy {
    /// A person's or a service manager's: `evermux daemon`, `evermux upgrade`. No shim replaces it.
    Choice,
    /// A shim's, because none ran.
    Shim,
    /// A shim's, because it is of a newer build than the one before.
    Offer,
}

/// The offers of one daemon process.
pub(crate) struct Offers {
    by: StartedBy,
    last: Mutex<Option<Instant>>,
}

impl Offers {
    /// For a process started at `now`. One that came by an offer has just had one.
    pub(crate) fn new(by: StartedBy, now: Instant) -> Self {
        Self { by, last: Mutex::new((by == StartedBy::Offer).then_some(now)) }
    }

    /// Takes an offer at `now`, or says why not.
    pub(crate) fn take(&self, now: Instant) -> Result<(), &'static str> {
        if self.by == StartedBy::Choice {
            return Err("this daemon was chosen by hand; `evermux upgrade` replaces it");
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            return Err("another offer came less than an hour ago");
        }
        *last = Some(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_offer_an_hour_and_none_against_a_choice() {
        let start = Instant::now();
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let offers = Offers::new(StartedBy::Shim, start);
        assert_eq!(offers.take(at(0)), Ok(()));
        assert!([0, 1, 59].iter().all(|minutes| offers.take(at(*minutes)).is_err()));
        assert_eq!(offers.take(at(60)), Ok(()));
        assert!(offers.take(at(61)).is_err());
        let offers = Offers::new(StartedBy::Offer, start);
        assert!(offers.take(at(59)).is_err() && offers.take(at(60)).is_ok());
        let offers = Offers::new(StartedBy::Choice, start);
        assert!(offers.take(at(0)).is_err() && offers.take(at(600)).is_err());
    }
}
