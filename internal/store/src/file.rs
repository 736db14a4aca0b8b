//! The rules under which a file of ours is opened, and the only ways in which one is replaced.
//!
//! Reading goes through the directory's descriptor and refuses everything that another user, or a careless copy,
//! could have put there. Writing goes through a fresh temporary file and a rename, so that a process killed at
//! any instant leaves the old content or the new.

use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use tempfile::NamedTempFile;

use crate::error::StoreError;

/// Permission bits of every file here.
pub(crate) const PRIVATE_FILE: u32 = 0o600;

/// A directory of ours: its path for names and messages, its descriptor for lookups and syncs.
#[derive(Debug)]
pub(crate) struct Dir {
    path: PathBuf,
    handle: File,
    /// Whose files are believed in it: this user's, or the owner's of a copy that is only looked at.
    owner: u32,
}

impl Dir {
    pub(crate) fn new(path: PathBuf, handle: File, owner: u32) -> Self {
        Self { path, handle, owner }
    }

    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn handle(&self) -> &File {
        &self.handle
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes renames and removals in it durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// The names in it, sorted; names that are not UTF-8 are not ours and are left out.
    pub(crate) fn names(&self) -> Result<Vec<String>, StoreError> {
        self.list().map_err(|source| StoreError::io("cannot list", &self.path, source))
    }

    pub(crate) fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }
}

/// Why a file was not opened.
#[derive(Debug)]
pub(crate) enum Refusal {
    Missing,
    /// It breaks this rule: what is in it must not be believed.
    Unsafe(&'static str),
    /// The system could not say (out of descriptors, a failing disk): nothing is known about the file.
    Io(io::Error),
}

/// What a file turned out to hold: all that a judgement about it needs.
#[derive(Debug)]
pub(crate) enum Content {
    Missing,
    /// It breaks this rule: what is in it must not be believed.
    Unsafe(&'static str),
    /// The system could not say: nothing is known about the file.
    Unread(io::Error),
    /// More than the limit.
    TooLong,
    Text(Vec<u8>),
}

impl From<Refusal> for Content {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Missing => Self::Missing,
            Refusal::Unsafe(why) => Self::Unsafe(why),
            Refusal::Io(error) => Self::Unread(error),
        }
    }
}

/// Reads `name` under the rules of [`open_checked`].
pub(crate) fn read_checked(dir: &Dir, name: &str, limit: usize) -> Content {
    match open_checked(dir, name, OFlag::O_RDONLY) {
        Ok(file) => match read_capped(&file, limit) {
            Ok(Some(text)) => Content::Text(text),
            Ok(None) => Content::TooLong,
            Err(error) => Content::Unread(error),
        },
        Err(refusal) => refusal.into(),
    }
}

/// Opens `name` if it is a plain file of this user, closed to everybody else, and known by no other name.
pub(crate) fn open_checked(dir: &Dir, name: &str, access: OFlag) -> Result<File, Refusal> {
    let file = open_own(dir, name, access)?;
    let meta = file.metadata().map_err(Refusal::Io)?;
    if meta.mode() & 0o077 != 0 {
        Err(Refusal::Unsafe("open to other users"))
    } else if meta.nlink() != 1 {
        Err(Refusal::Unsafe("known by a second name (hard link)"))
    } else {
        Ok(file)
    }
}

/// Opens `name` if it is a plain file of this user, whatever its mode.
pub(crate) fn open_own(dir: &Dir, name: &str, access: OFlag) -> Result<File, Refusal> {
    // O_NONBLOCK: a FIFO put in place of a file must not hang us. It means nothing on a plain file.
    let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = match openat(dir.handle(), name, flags, Mode::empty()) {
        Ok(descriptor) => File::from(descriptor),
        Err(Errno::ENOENT) => return Err(Refusal::Missing),
        Err(Errno::ELOOP) => return Err(Refusal::Unsafe("a symbolic link")),
        Err(Errno::ENXIO | Errno::EISDIR | Errno::ENODEV) => return Err(Refusal::Unsafe("not a plain file")),
        // Of somebody else's copy it says something about us, and nothing about the file.
        Err(Errno::EACCES) if is_this_user(dir.owner) => {
            return Err(Refusal::Unsafe("not readable by its user"));
        }
        Err(errno) => return Err(Refusal::Io(errno.into())),
    };
    let meta = file.metadata().map_err(Refusal::Io)?;
    if !meta.is_file() {
        Err(Refusal::Unsafe("not a plain file"))
    } else if meta.uid() != dir.owner {
        Err(Refusal::Unsafe("owned by another user"))
    } else {
        Ok(file)
    }
}

pub(crate) fn is_this_user(uid: u32) -> bool {
    uid == nix::unistd::geteuid().as_raw()
}

/// Reads a whole file, or `None` if it is longer than `limit` bytes.
pub(crate) fn read_capped(file: &File, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= limit).then_some(bytes))
}

/// A new temporary file in `dir` that is to become `name`.
pub(crate) fn temp_for(dir: &Dir, name: &str, append: bool) -> io::Result<NamedTempFile> {
    let temp = tempfile::Builder::new()
        .prefix(&format!(".{name}."))
        .suffix(TEMP_SUFFIX)
        .append(append)
        .permissions(Permissions::from_mode(PRIVATE_FILE))
        .tempfile_in(dir.path())?;
    // The umask may have taken bits away; nothing here depends on it.
    temp.as_file().set_permissions(Permissions::from_mode(PRIVATE_FILE))?;
    Ok(temp)
}

const TEMP_SUFFIX: &str = ".tmp";

/// Whether `name` is one that [`temp_for`] makes.
pub(crate) fn is_temp_name(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMP_SUFFIX)
}

/// Removes what killed processes left half done. Only under the daemon lock, where no one else writes.
pub(crate) fn sweep_temps(dir: &Dir) -> Result<usize, StoreError> {
    let mut swept = 0;
    for name in dir.names()?.iter().filter(|name| is_temp_name(name)) {
        let path = dir.join(name);
        let ours = std::fs::symlink_metadata(&path)
            .is_ok_and(|meta| meta.is_file() && meta.uid() == nix::unistd::geteuid().as_raw());
        if ours && std::fs::remove_file(&path).is_ok() {
            swept += 1;
        }
    }
    Ok(swept)
}
