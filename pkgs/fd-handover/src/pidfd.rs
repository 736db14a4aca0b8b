//! A process by a handle that stays its own: between looking at a pid and sending a signal the number may become
//! another's.

use std::io;

/// A process, for ending it.
#[derive(Debug)]
pub struct Process {
    #[cfg(target_os = "linux")]
    handle: std::os::fd::OwnedFd,
    #[cfg(not(target_os = "linux"))]
    pid: nix::unistd::Pid,
}

impl Process {
    /// The process that has this pid now. Open it while that is known to be the right one (its connection is there).
    ///
    /// # Errors
    /// If there is none.
    pub fn open(pid: i32) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        {
            let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
            let handle = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            Ok(Self { handle })
        }
        #[cfg(not(target_os = "linux"))]
        Ok(Self { pid: nix::unistd::Pid::from_raw(pid) })
    }

    /// SIGKILL. One that is gone already is no error.
    ///
    /// # Errors
    /// If it may not be killed.
    pub fn kill(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        let killed = rustix::process::pidfd_send_signal(&self.handle, rustix::process::Signal::KILL)
            .map_err(io::Error::from);
        #[cfg(not(target_os = "linux"))]
        let killed =
            nix::sys::signal::kill(self.pid, nix::sys::signal::Signal::SIGKILL).map_err(io::Error::from);
        match killed {
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(()),
            killed => killed,
        }
    }
}
