//! A connection to the daemon that never blocks and is waited for by the shim's own loop.
//!
//! Not tokio's: what it does for each wake-up is several times the work that a call is for the shim.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use mcp_http::exchange::Wire;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::scratch::Scratch;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    scratch: Rc<RefCell<Scratch>>,
    /// There may be something to read.
    readable: bool,
}

impl Socket {
    /// Connects, or says at once that it cannot: a daemon whose queue is full is not waited for.
    pub(crate) fn dial(path: &Path, scratch: &Rc<RefCell<Scratch>>) -> io::Result<Self> {
        let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self { fd, scratch: Rc::clone(scratch), readable: false })
    }

    /// The loop has seen that it can be read, or is at its end.
    pub(crate) fn is_readable_now(&mut self) {
        self.readable = true;
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wire for Socket {
    fn poll_write(&mut self, _: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            return match rustix::io::writev(&self.fd, parts) {
                Ok(length) => Poll::Ready(Ok(length)),
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error.into())),
            };
        }
    }

    /// Reads as much as the shared buffer holds, whatever the room. After a short read the loop is asked first: a look
    /// that finds nothing costs as much as one that finds something.
    fn poll_read(&mut self, _: &mut Context<'_>, _room: usize) -> Poll<io::Result<Bytes>> {
        if !self.readable {
            return Poll::Pending;
        }
        match self.scratch.borrow_mut().read(&self.fd) {
            Ok(Some(bytes)) => {
                self.readable = !Scratch::drained(bytes.len());
                Poll::Ready(Ok(bytes))
            }
            Ok(None) => {
                self.readable = false;
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
