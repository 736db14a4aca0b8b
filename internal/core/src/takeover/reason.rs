//! Why a takeover came to nothing: whose fault it is, whether another attempt may do better, and the words for people.

use std::fmt;

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The process that runs.
    Predecessor,
    /// The one that was to take over.
    Successor,
    /// Nobody's: it was not the moment.
    Moment,
}

/// Why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// No version of the conversation in common.
    Protocol {
        /// What the running process knows.
        running: (u32, u32),
        /// What the successor knows.
        successor: (u32, u32),
    },
    /// No version of records in common.
    Records {
        /// What the running process reads and writes.
        running: (u32, u32),
        /// What the successor does.
        successor: (u32, u32),
    },
    /// Another user's process.
    Foreign,
    /// Another takeover is under way.
    Busy,
    /// Something is under way that cannot be handed over; what, in words.
    Unsettled(String),
    /// The running process stops, or was handed over already.
    Ending,
    /// The generation could not be written.
    Disk(String),
    /// The other side said or did nothing for too long, at this step.
    Silent(&'static str),
    /// The conversation broke off, at this step.
    Broken(&'static str),
    /// The other process died.
    Died,
    /// The successor cannot go on with what it was given; its words.
    Declined(String),
}

impl Reason {
    /// Another attempt of the same two may do better.
    pub fn is_worth_repeating(&self) -> bool {
        matches!(self, Self::Busy | Self::Unsettled(_) | Self::Silent(_))
    }

    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Busy | Self::Unsettled(_) | Self::Ending | Self::Silent(_) | Self::Broken(_) => {
                Blame::Moment
            }
            Self::Disk(_) => Blame::Predecessor,
            Self::Protocol { .. } | Self::Records { .. } | Self::Foreign | Self::Died | Self::Declined(_) => {
                Blame::Successor
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol { running, successor } => write!(
                f,
                "the two speak no common version of the takeover: the running daemon {} to {}, the successor {} to {}; \
                 `evermux stop` and start anew",
                running.0, running.1, successor.0, successor.1
            ),
            Self::Records { running, successor } => write!(
                f,
                "the successor cannot read what runs: records of version {} to {}, and it knows {} to {}; use a newer \
                 binary",
                running.0, running.1, successor.0, successor.1
            ),
            Self::Foreign => f.write_str("the successor runs as another user; start it as the daemon's"),
            Self::Busy => f.write_str("another takeover is under way; try again in a moment"),
            Self::Unsettled(what) => {
                write!(f, "{what} cannot be handed over just now; try again in a moment")
            }
            Self::Ending => f.write_str("the running daemon is stopping; start a new one when it has ended"),
            Self::Disk(why) => {
                write!(
                    f,
                    "the running daemon cannot write its state directory: {why}; mend that, and try again"
                )
            }
            Self::Silent(step) => write!(f, "nothing happened for too long ({step}); try again"),
            Self::Broken(step) => write!(f, "the conversation broke off ({step}); try again"),
            Self::Died => f.write_str("the successor ended before it was active; its log may say why"),
            Self::Declined(why) => {
                write!(f, "the successor cannot go on with it: {why}; the running daemon goes on")
            }
        }
    }
}
