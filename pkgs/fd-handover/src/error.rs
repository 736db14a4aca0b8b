//! What can go wrong between two processes, with whose fault it is and whether trying again helps.

use std::io;

/// Why a frame could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other side's fault, or a broken wire: the stream ended in the middle of a frame. What was received before
    /// it counts.
    #[error("the other side went away in the middle of a message")]
    Cut,
    /// The other side's fault; it says the same again.
    #[error("the other side sent {0}")]
    Malformed(&'static str),
    /// This process's limit of open files: descriptors arrived and could not be taken. They are lost.
    #[error("file descriptors were lost on the way: this process may open no more of them (ulimit -n)")]
    Truncated,
    /// The other side declared another number of descriptors than came.
    #[error("{came} file descriptors came where {declared} were announced")]
    Count {
        /// Announced.
        declared: usize,
        /// Received.
        came: usize,
    },
    /// Our own fault: more than one message takes.
    #[error("{0} file descriptors are more than one message takes")]
    TooMany(usize),
    /// Our own fault: the frame before was given up in its middle, so the stream is good for nothing more.
    #[error("the message before this one was only sent in part")]
    HalfSent,
    /// Our own fault: larger than a frame may be.
    #[error("a message of {0} bytes is larger than is allowed")]
    TooLarge(usize),
    /// The machine's limit of descriptors in flight, or this user's; a repeat may help.
    #[error("too many file descriptors are on their way (ulimit -n)")]
    InFlight,
    /// The socket itself.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// A limit of descriptors, which one raises with `ulimit -n`.
    pub fn is_limit(&self) -> bool {
        match self {
            Self::Truncated | Self::InFlight | Self::TooMany(_) => true,
            Self::Io(error) => {
                matches!(error.raw_os_error(), Some(code) if code == nix::libc::EMFILE || code == nix::libc::ENFILE)
            }
            _ => false,
        }
    }
}
