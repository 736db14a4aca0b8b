//! Opening the state directory so that only this user can have put anything there.

use std::fs::{DirBuilder, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmod, fchmodat, fstatat, mkdirat};

use crate::error::StoreError;
use crate::file::Dir;
use crate::settle::Unsettled;
use crate::witness::Witness;

/// Permission bits of every directory here.
const PRIVATE_DIR: Mode = Mode::S_IRWXU;

/// The opened state directory. Cloning is cheap and gives the same directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: Dir,
    records: Dir,
    quarantine: Dir,
    journal: Dir,
    /// One lock for all appends to `journal/attach` of this process, so that a compaction cannot lose a line.
    witness: Mutex<Witness>,
    /// What stands there and would not survive a power cut.
    unsettled: Mutex<Unsettled>,
    /// One quarantine move at a time: finding a free name and taking it are two steps.
    quarantine_turn: Mutex<()>,
    warnings: Vec<String>,
}

impl StateDir {
    /// Opens the directory, or makes it (and missing parents) with mode 0700 whatever the umask.
    ///
    /// # Errors
    /// A symbolic link, something that is no directory, and a directory of another user are refused, naming path,
    /// uid and mode. One of our own that others can enter is closed to them; see [`Self::warnings`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let path = plain_path(path)?;
        make_parents(&path)?;
        let mut warnings = Vec::new();
        let root = open_private(AT_FDCWD, &path, path.clone(), &mut warnings)?;
        let mut room =
            |name: &str| open_private(root.handle().as_fd(), Path::new(name), path.join(name), &mut warnings);
        let (records, quarantine, journal) = (room("records")?, room("quarantine")?, room("journal")?);
        room("log")?;
        room("run")?;
        Ok(Self::assemble(root, records, quarantine, journal, warnings))
    }

    fn assemble(root: Dir, records: Dir, quarantine: Dir, journal: Dir, warnings: Vec<String>) -> Self {
        let witness = Mutex::new(Witness::default());
        let unsettled = Mutex::default();
        let quarantine_turn = Mutex::new(());
        let inner =
            Inner { root, records, quarantine, journal, witness, unsettled, quarantine_turn, warnings };
        Self { inner: Arc::new(inner) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.inner.root.path()
    }

    /// Where the daemon's log files go.
    pub fn log_dir(&self) -> PathBuf {
        self.inner.root.join("log")
    }

    /// The default runtime directory.
    pub fn run_dir(&self) -> PathBuf {
        self.inner.root.join("run")
    }

    /// What was put right while opening, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    pub(crate) fn root(&self) -> &Dir {
        &self.inner.root
    }

    pub(crate) fn records(&self) -> &Dir {
        &self.inner.records
    }

    pub(crate) fn quarantine(&self) -> &Dir {
        &self.inner.quarantine
    }

    pub(crate) fn journal(&self) -> &Dir {
        &self.inner.journal
    }

    pub(crate) fn witness(&self) -> MutexGuard<'_, Witness> {
        // A panic while it was held leaves at worst an outdated copy, which is noticed by the file's length.
        self.inner.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken after the witness, where both are. Held while the disk is waited for.
    pub(crate) fn unsettled(&self) -> MutexGuard<'_, Unsettled> {
        // A panic while it was held leaves at worst something that is synced once more.
        self.inner.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn quarantine_turn(&self) -> MutexGuard<'_, ()> {
        self.inner.quarantine_turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes or checks a directory outside the state directory (the runtime directory in `/tmp`) by the same rules:
/// ours, no symbolic link, mode 0700. Returns what was put right, for the log.
///
/// # Errors
/// As [`StateDir::open`].
pub fn ensure_private_dir(path: &Path) -> Result<Vec<String>, StoreError> {
    let path = plain_path(path)?;
    make_parents(&path)?;
    let mut warnings = Vec::new();
    open_private(AT_FDCWD, &path, path.clone(), &mut warnings)?;
    Ok(warnings)
}

/// Absolute, because the daemon changes to `/`; without a trailing slash, which would follow a symbolic link.
pub(crate) fn plain_path(path: &Path) -> Result<PathBuf, StoreError> {
    let absolute =
        std::path::absolute(path).map_err(|source| StoreError::io("cannot make absolute:", path, source))?;
    Ok(absolute.components().collect())
}

fn make_parents(path: &Path) -> Result<(), StoreError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
    made.map_err(|source| StoreError::io("cannot create", parent, source))
}

fn open_private(
    at: BorrowedFd<'_>,
    name: &Path,
    full: PathBuf,
    warnings: &mut Vec<String>,
) -> Result<Dir, StoreError> {
    let created = match mkdirat(at, name, PRIVATE_DIR) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(errno) => return Err(StoreError::io("cannot create", &full, errno)),
    };
    let handle = open_own(at, name, &full)?;
    let mode = mode_of(&handle, &full)?;
    if mode != 0o700 {
        fchmod(&handle, PRIVATE_DIR)
            .map_err(|errno| StoreError::io("cannot close to others:", &full, errno))?;
        if !created {
            warnings.push(format!("{} had mode {mode:04o}; it has 0700 now", full.display()));
        }
    }
    Ok(Dir::new(full, handle, nix::unistd::geteuid().as_raw()))
}

fn open_own(at: BorrowedFd<'_>, name: &Path, full: &Path) -> Result<File, StoreError> {
    let handle = match open_dir(at, name) {
        // Ours, but closed even to us: a hostile umask at creation, or a stray chmod.
        Err(Errno::EACCES) if is_own_dir(at, name) => {
            fchmodat(at, name, PRIVATE_DIR, FchmodatFlags::FollowSymlink)
                .and_then(|()| open_dir(at, name))
                .map_err(|errno| StoreError::io("cannot open", full, errno))?
        }
        opened => opened.map_err(|errno| refusal(full, errno))?,
    };
    check_owner(&handle, full)?;
    Ok(handle)
}

pub(crate) fn open_dir(at: BorrowedFd<'_>, name: &Path) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(at, name, flags, Mode::empty()).map(File::from)
}

fn is_own_dir(at: BorrowedFd<'_>, name: &Path) -> bool {
    fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
            && stat.st_uid == nix::unistd::geteuid().as_raw()
    })
}

fn check_owner(handle: &File, full: &Path) -> Result<(), StoreError> {
    let meta = handle.metadata().map_err(|source| StoreError::io("cannot examine", full, source))?;
    if meta.uid() == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    Err(StoreError::ForeignOwner { path: full.to_owned(), uid: meta.uid(), mode: meta.mode() & 0o7777 })
}

fn mode_of(handle: &File, full: &Path) -> Result<u32, StoreError> {
    let meta = handle.metadata().map_err(|source| StoreError::io("cannot examine", full, source))?;
    Ok(meta.mode() & 0o7777)
}

/// Turns a failed open into the reason a user can act on.
pub(crate) fn refusal(full: &Path, errno: Errno) -> StoreError {
    let Ok(meta) = std::fs::symlink_metadata(full) else {
        return StoreError::io("cannot open", full, errno);
    };
    let (path, uid, mode) = (full.to_owned(), meta.uid(), meta.mode() & 0o7777);
    if meta.is_symlink() {
        StoreError::Symlink { path, uid, mode }
    } else if !meta.is_dir() {
        StoreError::NotADirectory { path, uid, mode }
    } else if uid != nix::unistd::geteuid().as_raw() {
        StoreError::ForeignOwner { path, uid, mode }
    } else {
        StoreError::io("cannot open", full, errno)
    }
}
