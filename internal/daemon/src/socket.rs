//! The owner-only socket: made beside its name and renamed into place, so that no connect ever meets a gap; and made
//! again if somebody removes its file, because nobody finds a listener without a name.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

mod sentry;

pub(crate) use sentry::Sentry;

/// A listener, and which file of the socket's name is its own.
pub(crate) struct Socket {
    path: PathBuf,
    listener: UnixListener,
    /// Device and inode. Nothing else can have it: the listener keeps its file alive.
    file: (u64, u64),
}

/// So many wait to be let in, as with a socket that is made here.
const BACKLOG: i32 = 1024;

/// A file that no name leads to.
const NOBODYS: (u64, u64) = (0, 0);

/// What became of a socket's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is where it was made.
    Ours,
    /// Another process listens under its name.
    Taken,
    /// It is gone, or what is there leads nowhere.
    Lost,
}

impl Socket {
    /// Listens at `path`, in place of whatever socket a former process left there. Call it under the daemon lock.
    pub(crate) fn listen(path: &Path) -> io::Result<Self> {
        let name = format!(".{}.sock", std::process::id());
        let beside = path.with_file_name(name);
        remove_if_there(&beside)?;
        let listener = UnixListener::bind(&beside)?;
        std::fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        let file = file_at(&beside)?;
        std::fs::rename(&beside, path)?;
        Ok(Self { path: path.to_owned(), listener, file })
    }

    /// A listener that the predecessor passed on, which is its name's too.
    ///
    /// # Errors
    /// If it does not listen, or under that name lies another.
    pub(crate) fn from_passed(path: &Path, passed: OwnedFd) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(passed);
        let listens = nix::sys::socket::getsockopt(&listener, nix::sys::socket::sockopt::AcceptConn)?;
        let bound = listener.local_addr()?;
        // It was bound beside its name and renamed: its own address tells the directory only.
        let beside = is_one_directory(bound.as_pathname().and_then(Path::parent), path.parent());
        if !listens || !beside {
            return Err(io::Error::other("not the socket of this runtime directory"));
        }
        listener.set_nonblocking(true)?;
        // Its name stays the predecessor's until this process is active: one that gives up must not take it away.
        let file = NOBODYS;
        Ok(Self { path: path.to_owned(), listener: UnixListener::from_std(listener)?, file })
    }

    /// This process is active: the name is its own from here on, and the kernel names this process to those who ask for
    /// their peer.
    pub(crate) fn claim(&mut self) {
        let backlog = nix::sys::socket::Backlog::new(BACKLOG);
        // It listens already; without this only the wrong process is named.
        if let Err(error) = backlog.and_then(|backlog| nix::sys::socket::listen(&self.listener, backlog)) {
            tracing::warn!(%error, "clients cannot be told which process they reach");
        }
        self.file = file_at(&self.path).unwrap_or(NOBODYS);
    }

    /// Closes this process's copy, and leaves the name to whoever has the other. (Never a shutdown: that would end it
    /// for both.)
    pub(crate) fn leave(mut self) {
        self.file = NOBODYS;
    }

    /// The next connection. Loses none when dropped while it waits.
    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Looks at the name. Two daemons of one runtime directory must not take it from each other for ever, so who
    /// listens there keeps it.
    pub(crate) async fn place(&self) -> Place {
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            return Place::Ours;
        }
        match UnixStream::connect(&self.path).await {
            Err(error) if leads_nowhere(&error) => Place::Lost,
            // Also one that is too busy to be reached now.
            _ => Place::Taken,
        }
    }

    /// Makes the socket anew under its name, in a directory that may be gone too. Call it under the daemon lock.
    pub(crate) fn listen_again(&mut self) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            evermux_store::ensure_private_dir(directory).map_err(io::Error::other)?;
        }
        *self = Self::listen(&self.path)?;
        Ok(())
    }
}

impl AsFd for Socket {
    /// For passing on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Socket {
    /// Leaves no name behind that leads nowhere, and takes none away from another.
    fn drop(&mut self) {
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            drop(remove_if_there(&self.path));
        }
    }
}

fn leads_nowhere(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | ConnectionRefused)
}

/// By what lies there: the predecessor may have been told another spelling of it.
fn is_one_directory(one: Option<&Path>, other: Option<&Path>) -> bool {
    let place = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    let (Some(one), Some(other)) = (one, other) else { return false };
    one == other || place(one).is_some_and(|one| place(other) == Some(one))
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// Whether the other end is a process of the same user. The directory's mode says so too; this is the second lock.
pub(crate) fn is_ours(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_passed_socket_takes_its_name_away_from_nobody_before_it_is_claimed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s.sock");
        let socket = Socket::listen(&path).unwrap();
        let copy = || socket.as_fd().try_clone_to_owned().unwrap();
        drop(Socket::from_passed(&path, copy()).unwrap());
        assert_eq!(socket.place().await, Place::Ours, "a successor gave up");
        let mut taken = Socket::from_passed(&path, copy()).unwrap();
        taken.claim();
        socket.leave();
        assert_eq!(taken.place().await, Place::Ours);
        let (dialled, accepted) = tokio::join!(UnixStream::connect(&path), taken.accept());
        assert!(dialled.is_ok() && accepted.is_ok());
        drop(taken);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_passed_socket_listens_for_its_old_owner_until_it_is_claimed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s.sock");
        let socket = Socket::listen(&path).unwrap();
        // Who listens says how many may wait: here one, until somebody else does.
        nix::sys::socket::listen(&socket, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let mut taken = Socket::from_passed(&path, socket.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let _first = UnixStream::connect(&path).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_err(), "a successor that is not active listens");
        taken.claim();
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn another_spelling_of_the_directory_is_the_same_directory() {
        let home = tempfile::tempdir().unwrap();
        let (real, link) = (home.path().join("real"), home.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let socket = Socket::listen(&link.join("s.sock")).unwrap();
        let mut taken =
            Socket::from_passed(&real.join("s.sock"), socket.as_fd().try_clone_to_owned().unwrap()).unwrap();
        taken.claim();
        assert_eq!(taken.place().await, Place::Ours);
    }

    #[tokio::test]
    async fn what_does_not_listen_here_is_refused() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = home.path().join("s.sock");
        let strange = Socket::listen(&other.path().join("s.sock")).unwrap();
        let fd = strange.as_fd().try_clone_to_owned().unwrap();
        assert!(Socket::from_passed(&path, fd).is_err());
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(Socket::from_passed(&path, one.into_std().unwrap().into()).is_err());
    }
}
