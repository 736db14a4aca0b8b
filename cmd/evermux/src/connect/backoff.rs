//! How long to wait before the next try: doubling, capped, and jittered without a source of chance.

use std::time::Duration;

/// The first wait at most.
const FIRST: Duration = Duration::from_millis(50);
/// Any wait at most.
const LONGEST: Duration = Duration::from_secs(2);

/// A stream of jitter, from a seed.
#[derive(Debug)]
pub(crate) struct Backoff(u64);

impl Backoff {
    pub(crate) fn new(seed: u64) -> Self {
        // xorshift never leaves zero.
        Self(seed | 1)
    }

    /// The wait after so many failures before this one; half of it is jitter, so that many shims that lost the
    /// same daemon do not come back at once.
    pub(crate) fn after(&mut self, failures: u32) -> Duration {
        // xorshift64: only spread is needed.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let half = FIRST.saturating_mul(1 << failures.min(10)).min(LONGEST) / 2;
        let share = u32::try_from(self.0 >> 48).unwrap_or(0);
        half + half.saturating_mul(share) / (1 << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_two_seconds_and_stays_within_its_half() {
        let mut backoff = Backoff::new(7);
        for failures in 0..40 {
            let full = FIRST.saturating_mul(1 << failures.min(10)).min(LONGEST);
            let wait = backoff.after(failures);
            assert!(wait >= full / 2 && wait <= full, "{failures}: {wait:?}");
        }
        assert!(backoff.after(1000) <= LONGEST);
    }
}
