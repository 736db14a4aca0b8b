//! JSON-RPC ids towards an upstream, out of blocks that are reserved on disk before they are used (D9).

use crate::names::WireId;

/// Ids in one reservation.
pub const BLOCK: u64 = 1024;

/// Between the first ids of two sessions: more than one uses in its life.
const SPAN: u64 = 1 << 20;
const MOST_SPANS: u64 = (1 << 31) / SPAN;

/// The ids this process may use in one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ids {
    next: u64,
    /// First id that is not (yet) durably ours.
    end: u64,
    /// The block after a gap: what lies between was granted to a successor that never became active, and is burned.
    spare: Option<(u64, u64)>,
}

impl Ids {
    /// The ids of a session that is being made: its first block is written with its record, before any of it
    /// could be confused with a former process's.
    ///
    /// Not those of other sessions of the upstream, which end before `taken`: servers with one event store for all sessions, as
    /// one official SDK sets it up, keep events by the id of the request, and a replay would bring another session's answer.
    pub(crate) fn first_block(taken: u64) -> Self {
        let span = taken.div_ceil(SPAN);
        // Some servers have 32 bits for them.
        let start = if span < MOST_SPANS { span * SPAN + 1 } else { 1 };
        Self::block(start, start + BLOCK)
    }

    /// The ids after a former process: what it had reserved is burned, nothing is ours yet.
    pub(crate) fn after(reserved_until: u64) -> Self {
        Self::block(reserved_until, reserved_until)
    }

    /// A block that the predecessor reserved for us.
    pub(crate) fn block(start: u64, end: u64) -> Self {
        Self { next: start, end, spare: None }
    }

    pub(crate) fn take(&mut self) -> Option<WireId> {
        if self.next >= self.end {
            (self.next, self.end) = self.spare.take()?;
        }
        self.next += 1;
        Some(WireId(self.next - 1))
    }

    /// Whether it was used in this session's life, or may have been.
    pub(crate) fn gave_out(&self, id: WireId) -> bool {
        id.0 != 0 && id.0 < self.next
    }

    pub(crate) fn end(&self) -> u64 {
        self.spare.map_or(self.end, |(_, end)| end)
    }

    /// A reservation of `start..until` is on disk.
    pub(crate) fn granted(&mut self, start: u64, until: u64) {
        match self.spare {
            _ if until <= self.end() => {}
            Some((from, end)) if start <= end => self.spare = Some((from, until)),
            None if start <= self.end => self.end = until,
            // Nothing is left before the gap, or the gap is left out here as well.
            _ if self.next >= self.end => (self.next, self.end, self.spare) = (start, until, None),
            _ => self.spare = Some((start, until)),
        }
    }

    /// Half of the block is gone: reserve the next one now, so that no call waits for the disk.
    pub(crate) fn runs_low(&self) -> bool {
        let spare = self.spare.map_or(0, |(start, end)| end - start);
        self.end - self.next + spare < BLOCK / 2
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next >= self.end && self.spare.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_one_upstream_have_ids_of_their_own() {
        let start = |taken| Ids::first_block(taken).take().map(|id| id.0);
        assert_eq!(start(0), Some(1));
        assert_eq!(start(1 + BLOCK), Some(SPAN + 1));
        assert_eq!(start(SPAN + 1), Some(2 * SPAN + 1), "its last block went beyond");
        let last = (1 << 31) - SPAN;
        assert_eq!(start(last), Some(last + 1));
        assert_eq!(start(last + 1), Some(1), "no id beyond 32 bits");
    }

    #[test]
    fn a_block_that_was_granted_to_another_is_left_out() {
        let mut ids = Ids::block(10, 12);
        // 12..14 was a successor's.
        ids.granted(14, 16);
        ids.granted(16, 18);
        let all: Vec<u64> = std::iter::from_fn(|| ids.take()).map(|id| id.0).collect();
        assert_eq!(all, [10, 11, 14, 15, 16, 17]);
        assert!(ids.is_empty());
        ids.granted(20, 21);
        assert_eq!(ids.take(), Some(WireId(20)));
    }

    #[test]
    fn two_gaps_lose_the_older_rest_at_most() {
        let mut ids = Ids::block(1, 2);
        ids.granted(4, 6);
        ids.granted(8, 10);
        let all: Vec<u64> = std::iter::from_fn(|| ids.take()).map(|id| id.0).collect();
        assert_eq!(all, [1, 8, 9]);
    }
}
