//! A pipe that is held for life. Its end can only mean that the holder is gone: the kernel closes it, and nobody else
//! does. The end of a connection proves nothing (a task may drop it while the process lives on), and a pid may be
//! another's by now.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tokio::net::unix::pipe::Receiver;

/// The holder's end: to be kept until the process ends. Close-on-exec, so that no child keeps it.
#[derive(Debug)]
pub struct Alive {
    _end: OwnedFd,
}

/// The end that sees it.
#[derive(Debug)]
pub struct Witness {
    end: Receiver,
}

/// A pipe: what to hold, and what to give to those who want to know.
///
/// # Errors
/// If no descriptor is left.
pub fn liveness() -> io::Result<(OwnedFd, Alive)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    Ok((read, Alive { _end: write }))
}

impl Witness {
    /// Watches a pipe of another process. Call it within a tokio runtime.
    ///
    /// # Errors
    /// If it is no pipe to read from.
    pub fn new(end: OwnedFd) -> io::Result<Self> {
        Ok(Self { end: Receiver::from_owned_fd(end)? })
    }

    /// Whether it is proven by now that the holder is gone.
    pub fn is_gone(&self) -> bool {
        // Nothing is ever written into it, so there is nothing to read but its end.
        matches!(nix::unistd::read(&self.end, &mut [0; 1]), Ok(0))
    }

    /// Comes back when the holder is gone.
    ///
    /// # Errors
    /// If it cannot be watched any more; that proves nothing.
    pub async fn gone(&self) -> io::Result<()> {
        loop {
            self.end.readable().await?;
            match self.end.try_read(&mut [0; 1]) {
                Ok(0) => return Ok(()),
                // Nobody writes here; if somebody did it would prove a life.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Witness {
    /// For passing on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}
