//! What can go wrong with the state directory, said so that a user knows whose fault it is and the caller knows
//! whether a repeat makes sense. No variant carries a secret.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evermux_core::names::Trajectory;

/// The state directory could not be used as asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Somebody else could put things there, so nothing in it can be believed. The user must act.
    #[error("{path} is a symbolic link (owner uid {uid}, mode {mode:04o}); evermux needs a directory of its own", path = path.display())]
    Symlink {
        /// What was to be used.
        path: PathBuf,
        /// Owner of the link.
        uid: u32,
        /// Permission bits of the link.
        mode: u32,
    },
    /// The path is taken by something else. The user must act.
    #[error("{path} is not a directory (owner uid {uid}, mode {mode:04o})", path = path.display())]
    NotADirectory {
        /// What was to be used.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user owns it, and could change it under us. The user must act.
    #[error("{path} belongs to uid {uid} (mode {mode:04o}), not to this user", path = path.display())]
    ForeignOwner {
        /// What was to be used.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A file that evermux must be able to trust is a link, foreign, or open to others, and could not be moved
    /// out of the way. The user must act.
    #[error("{path} cannot be trusted: {why}", path = path.display())]
    UnsafeFile {
        /// The file.
        path: PathBuf,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The operating system refused. A repeat is safe: every write starts from a fresh temporary file.
    #[error("{what} {path}", path = path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said. Shared, because one failed write can fail several tickets.
        source: Arc<io::Error>,
    },
    /// The record does not fit the format's limit; a repeat fails the same way. The upstream sent too much.
    #[error("the record of {trajectory} has {size} bytes, over the limit of {limit}")]
    TooLarge {
        /// Whose record.
        trajectory: Trajectory,
        /// What it would have had.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A value has no place in the format; a repeat fails the same way. A bug of the caller.
    #[error("the record's {field} cannot be written in this format")]
    Unencodable {
        /// The member.
        field: String,
    },
    /// An upstream name or quarantine reason that may not become part of a file name. A bug of the caller.
    #[error("{name:?} may not be part of a file name")]
    BadName {
        /// What was given.
        name: String,
    },
    /// The trajectory was deleted, and deleted stays deleted. A bug of the caller, or an old process.
    #[error("{trajectory} was deleted and is not written again")]
    Deleted {
        /// Which.
        trajectory: Trajectory,
    },
    /// A newer record was already written durably: this writer is an old process, or the caller has a bug.
    #[error("a newer record of {trajectory} was already written; this one is not")]
    Superseded {
        /// Which.
        trajectory: Trajectory,
    },
    /// Generations are used up (2^53): cannot happen in practice, and never wraps.
    #[error("no generation number is left")]
    GenerationsExhausted,
    /// The persist thread could not be started or has died; nothing is written any more.
    #[error("the persist thread is not running")]
    Stopped,
}

impl StoreError {
    /// Attaches what was being done, and to which file.
    pub(crate) fn io(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { what, path: path.to_owned(), source: Arc::new(source.into()) }
    }

    /// Whether the same request can succeed later without anybody changing it.
    pub fn is_worth_repeating(&self) -> bool {
        matches!(self, Self::Io { .. })
    }
}

/// The daemon lock could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// A live process holds it. Talk to that one, or try again later.
    #[error("another evermux daemon holds the lock")]
    Held,
    /// The lock file could not be used at all.
    #[error("the lock file cannot be used")]
    Io(#[from] StoreError),
}
