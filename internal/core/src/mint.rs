//! Fresh names and jitter from a seed: randomness is handed in once, so that a run can be replayed.

use std::time::Duration;

use crate::names::{Continuation, LinkNonce, Trajectory};

pub(crate) struct Mint {
    seed: [u8; 32],
    counter: u64,
}

impl Mint {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self { seed, counter: 0 }
    }

    fn next(&mut self) -> u128 {
        self.counter += 1;
        let hash = blake3::keyed_hash(&self.seed, &self.counter.to_be_bytes());
        let (head, _) = hash.as_bytes().split_at(16);
        head.iter().fold(0, |value, byte| (value << 8) | u128::from(*byte))
    }

    pub(crate) fn trajectory(&mut self) -> Trajectory {
        Trajectory(self.next())
    }

    pub(crate) fn continuation(&mut self) -> Continuation {
        Continuation(self.next())
    }

    pub(crate) fn link(&mut self) -> LinkNonce {
        LinkNonce(self.next())
    }

    /// Between three and five quarters of `base`, so that a crowd does not come back as one.
    pub(crate) fn jitter(&mut self, base: Duration) -> Duration {
        let part = u32::try_from(self.next() % 501).unwrap_or(0);
        base * (750 + part) / 1000
    }
}
