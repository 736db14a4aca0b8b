//! The takeover itself, as two pure machines: what the running process and its successor say to each other, in which
//! order, and what silence, a broken connection or a death means at each step (design §8).
//!
//! The machines decide; connections, descriptors and processes are the shell's. What the sessions have to do with it is
//! the hub's (`handing.rs`, `taking.rs`). Two rules make it sound: a decision is written before it is acted on, and a
//! process is dead when that is proven, not when it is silent. The shell's part of the second: before it says that the
//! peer is gone it has handed in everything that the peer had written.

pub mod predecessor;
mod reason;
#[cfg(test)]
mod rules;
pub mod successor;

pub use predecessor::Predecessor;
pub use reason::{Blame, Reason};
pub use successor::Successor;

/// What a process can speak and read, as ranges (both ends included).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ability {
    /// Versions of the conversation.
    pub protocol: (u32, u32),
    /// Versions of records.
    pub records: (u32, u32),
}

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Version of the conversation.
    pub protocol: u32,
    /// Version of records.
    pub records: u32,
}

impl Ability {
    /// The highest versions that both know.
    ///
    /// # Errors
    /// If there are none; the same two processes will never agree.
    pub fn agree(self, theirs: Self) -> Result<Agreed, Reason> {
        let protocol = common(self.protocol, theirs.protocol);
        let records = common(self.records, theirs.records);
        match (protocol, records) {
            (Some(protocol), Some(records)) => Ok(Agreed { protocol, records }),
            (None, _) => Err(Reason::Protocol { running: self.protocol, successor: theirs.protocol }),
            (_, None) => Err(Reason::Records { running: self.records, successor: theirs.records }),
        }
    }
}

fn common(ours: (u32, u32), theirs: (u32, u32)) -> Option<u32> {
    let highest = ours.1.min(theirs.1);
    (highest >= ours.0.max(theirs.0)).then_some(highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_agreed_on() {
        let able = |protocol, records| Ability { protocol, records };
        let agreed = able((1, 3), (1, 1)).agree(able((2, 5), (1, 4)));
        assert_eq!(agreed, Ok(Agreed { protocol: 3, records: 1 }));
        let error = able((1, 1), (2, 2)).agree(able((1, 1), (1, 1))).unwrap_err();
        assert_eq!(error, Reason::Records { running: (2, 2), successor: (1, 1) });
        assert!(!error.is_worth_repeating());
        assert!(able((2, 2), (1, 1)).agree(able((1, 1), (1, 1))).is_err());
    }
}
