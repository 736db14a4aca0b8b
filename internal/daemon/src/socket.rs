//! The owner-only socket: made beside its name and renamed into place, so that no connect ever meets a gap.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::net::{UnixListener, UnixStream};

/// Listens at `path`, in place of whatever socket a former process left there. Call it under the daemon lock.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let name = format!(".{}.sock", std::process::id());
    let beside = path.with_file_name(name);
    remove_if_there(&beside)?;
    let listener = UnixListener::bind(&beside)?;
    std::fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
    std::fs::rename(&beside, path)?;
    Ok(listener)
}

/// Whether the other end is a process of the same user. The directory's mode says so too; this is the second lock.
pub(crate) fn is_ours(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
}

pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
