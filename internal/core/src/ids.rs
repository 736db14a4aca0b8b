//! JSON-RPC ids towards an upstream, out of blocks that are reserved on disk before they are used (D9).

use std::collections::BTreeSet;

use crate::names::WireId;

/// Ids in one reservation.
pub const BLOCK: u64 = 1024;

/// Between the first ids of two sessions: more than one uses in its life.
const SPAN: u64 = 1 << 20;
const MOST_SPANS: u64 = (1 << 31) / SPAN;

const fn span_of(id: u64) -> u64 {
    id.saturating_sub(1) / SPAN
}

/// The ids this process may use in one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ids {
    /// Nothing below was used in this session's life.
    first: u64,
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
    /// Not those of the upstream's other sessions: servers with one event store for all sessions, as one official SDK sets it up,
    /// keep events by the id of the request, and a replay would bring another session's answer. `others`: spans that those use.
    pub(crate) fn first_block(others: &BTreeSet<u64>) -> Self {
        let free = (0..MOST_SPANS).find(|span| !others.contains(span));
        let start = free.unwrap_or(0) * SPAN + 1;
        Self { first: start, next: start, end: start + BLOCK, spare: None }
    }

    /// The spans that these ids are in, `reserved_until` with them.
    pub(crate) fn spans(&self, reserved_until: u64) -> [u64; 3] {
        let end = self.end();
        [self.first, end.saturating_sub(1), end.max(reserved_until).saturating_sub(1)].map(span_of)
    }

    /// The ids after a former process: what it had reserved is burned, nothing is ours yet.
    pub(crate) fn after(reserved_until: u64) -> Self {
        Self::block(reserved_until, reserved_until)
    }

    /// A block that the predecessor reserved for us.
    pub(crate) fn block(start: u64, end: u64) -> Self {
        // Those of former processes are before it.
        Self { first: span_of(start.saturating_sub(1)) * SPAN + 1, next: start, end, spare: None }
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
        (self.first..self.next).contains(&id.0)
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
        let start =
            |others: &[u64]| Ids::first_block(&others.iter().copied().collect()).take().map(|id| id.0);
        assert_eq!(start(&[]), Some(1));
        assert_eq!(start(&[0]), Some(SPAN + 1));
        assert_eq!(start(&[0, 2]), Some(SPAN + 1), "the lowest that is free");
        let all: Vec<u64> = (0..MOST_SPANS).collect();
        assert_eq!(start(&all[..all.len() - 1]), Some((1 << 31) - SPAN + 1));
        assert_eq!(start(&all), Some(1), "no id beyond 32 bits");
    }

    #[test]
    fn only_ids_of_the_session_were_used_in_it() {
        let mut ids = Ids::first_block(&BTreeSet::from([0]));
        let id = ids.take().unwrap();
        for (other, used) in [(0, false), (1, false), (id.0 - 1, false), (id.0, true), (id.0 + 1, false)] {
            assert_eq!(ids.gave_out(WireId(other)), used, "{other}");
        }
        // Its predecessor's, too.
        let after = Ids::after(id.0 + BLOCK);
        assert!(after.gave_out(id) && !after.gave_out(WireId(1)));
        assert!(Ids::after(1 + BLOCK).gave_out(WireId(1)));
        assert_eq!(after.spans(0), [1, 1, 1]);
        assert_eq!(Ids::block(SPAN, SPAN + BLOCK).spans(3 * SPAN + 2), [0, 1, 3], "it went beyond its own");
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
