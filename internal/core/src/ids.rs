//! JSON-RPC ids towards an upstream, out of blocks that are reserved on disk before they are used (D9).

use crate::names::WireId;

/// Ids in one reservation.
pub const BLOCK: u64 = 1024;

/// The ids this process may use in one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ids {
    next: u64,
    /// First id that is not (yet) durably ours.
    end: u64,
}

impl Ids {
    /// The ids of a session that is being made: its first block is written with its record, before any of it
    /// could be confused with a former process's.
    pub(crate) fn first_block() -> Self {
        Self { next: 1, end: 1 + BLOCK }
    }

    /// The ids after a former process: what it had reserved is burned, nothing is ours yet.
    pub(crate) fn after(reserved_until: u64) -> Self {
        Self { next: reserved_until, end: reserved_until }
    }

    pub(crate) fn take(&mut self) -> Option<WireId> {
        if self.next >= self.end {
            return None;
        }
        self.next += 1;
        Some(WireId(self.next - 1))
    }

    /// Whether it was used in this session's life, or may have been.
    pub(crate) fn gave_out(&self, id: WireId) -> bool {
        id.0 != 0 && id.0 < self.next
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// A reservation up to `until` is on disk.
    pub(crate) fn granted(&mut self, until: u64) {
        self.end = self.end.max(until);
    }

    /// Half of the block is gone: reserve the next one now, so that no call waits for the disk.
    pub(crate) fn runs_low(&self) -> bool {
        self.end - self.next < BLOCK / 2
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next >= self.end
    }
}
