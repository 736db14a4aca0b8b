//! Locking and replacing the config file.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::EditError;

/// Longest chain of symbolic links, as in Linux (`ELOOP`).
const MAX_LINKS: usize = 40;

/// The file that an edit replaces, locked for as long as this lives.
pub(super) struct Target {
    pub(super) file: PathBuf,
    directory: PathBuf,
    /// Held, not read: closing it gives the lock up.
    _lock: File,
}

fn failed<'a>(action: &'static str, file: &'a Path) -> impl FnOnce(io::Error) -> EditError + 'a {
    move |source| EditError::Io { action, file: file.to_owned(), source }
}

impl Target {
    /// Follows links, makes the directory (0700) if it is missing, and waits for the lock.
    pub(super) fn locked(path: &Path) -> Result<Self, EditError> {
        let file = followed(path).map_err(failed("find", path))?;
        let directory = file.parent().unwrap_or(Path::new("/")).to_owned();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(failed("make the directory", &directory))?;
        let name =
            file.file_name().ok_or(io::ErrorKind::IsADirectory.into()).map_err(failed("edit", &file))?;
        let mut lock_name = std::ffi::OsString::from(".");
        lock_name.push(name);
        lock_name.push(".lock");
        let lock_file = directory.join(lock_name);
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_file)
            .and_then(|lock| lock.lock().map(|()| lock))
            .map_err(failed("lock", &lock_file))?;
        Ok(Self { file, directory, _lock: lock })
    }

    /// Replaces the content in one step; a reader sees the old file or the new one.
    pub(super) fn replace(&self, text: &str) -> Result<(), EditError> {
        self.try_replace(text).map_err(failed("write", &self.file))
    }

    fn try_replace(&self, text: &str) -> io::Result<()> {
        let mode = match fs::metadata(&self.file) {
            Ok(old) => old.permissions().mode() & 0o7777,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0o600,
            Err(error) => return Err(error),
        };
        let mut new = tempfile::Builder::new().prefix(".evermux-config-").tempfile_in(&self.directory)?;
        new.write_all(text.as_bytes())?;
        // Afterwards, so that the umask has no say; until here the file was 0600.
        new.as_file().set_permissions(Permissions::from_mode(mode))?;
        // This file is the user's work, and an edit by hand is rare: worth a sync.
        new.as_file().sync_all()?;
        new.persist(&self.file).map_err(|error| error.error)?;
        Ok(())
    }
}

/// The absolute path of what a path stands for, which need not exist. `canonicalize` would refuse a link to a file
/// that is not there yet.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..MAX_LINKS {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => {
                let link = fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("/")).join(link);
            }
            Ok(found) if !found.is_file() => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}
