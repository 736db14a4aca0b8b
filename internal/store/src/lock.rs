//! The lock that makes one daemon of many (D11).
//!
//! Dropping it closes the descriptor and nothing else: after a takeover the successor holds the same open file,
//! and an explicit unlock here would free the lock under it.

use std::fs::{File, Permissions, TryLockError};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::dir::StateDir;
use crate::error::{LockError, StoreError};
use crate::file::PRIVATE_FILE;

pub(crate) const LOCK_NAME: &str = "lock";

/// How often the lock file may be replaced under us while we open it before that is called an error.
const REOPEN_TRIES: usize = 8;

/// Held for a daemon's whole life. The right to write records.
#[derive(Debug)]
pub struct DaemonLock {
    file: File,
}

impl StateDir {
    /// Takes the lock if it is free; never waits.
    ///
    /// # Errors
    /// [`LockError::Held`] if a live process has it.
    pub fn try_lock(&self) -> Result<DaemonLock, LockError> {
        for _ in 0..REOPEN_TRIES {
            let lock = DaemonLock { file: self.open_lock_file()? };
            match lock.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(LockError::Held),
                Err(TryLockError::Error(source)) => {
                    return Err(LockError::Io(self.lock_error("cannot lock", source)));
                }
            }
            // Somebody may have put another file in its place between open and lock; then ours excludes nobody.
            if lock.is_in_place(self) {
                return Ok(lock);
            }
        }
        let source = std::io::Error::other("it is replaced again and again");
        Err(LockError::Io(self.lock_error("cannot lock", source)))
    }

    fn open_lock_file(&self) -> Result<File, StoreError> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mode = Mode::from_bits_truncate(PRIVATE_FILE);
        let unsafe_file = |why| StoreError::UnsafeFile { path: self.root().join(LOCK_NAME), why };
        let file = match openat(self.root().handle(), LOCK_NAME, flags, mode) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::ELOOP) => return Err(unsafe_file("a symbolic link")),
            Err(errno) => return Err(self.lock_error("cannot open", errno)),
        };
        let meta = file.metadata().map_err(|source| self.lock_error("cannot examine", source))?;
        if !meta.is_file() {
            return Err(unsafe_file("not a plain file"));
        }
        if meta.uid() != nix::unistd::geteuid().as_raw() {
            return Err(unsafe_file("owned by another user"));
        }
        if meta.mode() & 0o7777 != PRIVATE_FILE {
            file.set_permissions(Permissions::from_mode(PRIVATE_FILE))
                .map_err(|source| self.lock_error("cannot close to others:", source))?;
        }
        Ok(file)
    }

    fn lock_error(&self, what: &'static str, source: impl Into<std::io::Error>) -> StoreError {
        StoreError::io(what, &self.root().join(LOCK_NAME), source)
    }
}

impl DaemonLock {
    /// Takes over a lock whose descriptor was passed by the predecessor, which still holds it.
    ///
    /// # Errors
    /// [`LockError::Io`] if the descriptor is not this directory's lock file.
    pub fn from_passed(file: File, state: &StateDir) -> Result<Self, LockError> {
        let lock = Self { file };
        if lock.is_in_place(state) {
            return Ok(lock);
        }
        let path = state.root().join(LOCK_NAME);
        Err(LockError::Io(StoreError::UnsafeFile { path, why: "not the file that was passed" }))
    }

    /// Whether the path still names the locked file. If not, somebody removed the state directory or made a
    /// second one: stop persisting. Worth a look every 30 s.
    pub fn is_in_place(&self, state: &StateDir) -> bool {
        let named = std::fs::symlink_metadata(state.root().join(LOCK_NAME));
        match (self.file.metadata(), named) {
            (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
            _ => false,
        }
    }
}

impl AsFd for DaemonLock {
    /// For passing to a successor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
