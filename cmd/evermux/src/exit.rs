//! The exit codes: a contract that scripts branch on, so each has a name and one meaning.

/// Done.
pub(crate) const DONE: u8 = 0;
/// Failed for a reason the message tells; nothing the user typed was wrong.
pub(crate) const FAILED: u8 = 1;
/// The command line or the config is wrong: a repeat fails alike until one of them is changed.
/// (Also what the argument parser exits with.)
pub(crate) const CONFIG: u8 = 2;
/// There is nothing to look at, or it cannot be read.
pub(crate) const UNREADABLE: u8 = 2;
/// The command needs a running daemon and there is none.
pub(crate) const NO_DAEMON: u8 = 3;
