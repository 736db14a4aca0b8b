//! stdin and stdout of the shim, waited for by its loop.
//!
//! MCP clients give pipes or sockets: these never block. `O_NONBLOCK` is a property of the open file, which others may
//! share, so it is put back at the end. Terminals and files keep what they have: they are read when they can be, and
//! written little by little.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{Buf as _, Bytes};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use rustix::io::Errno;

use super::scratch::Scratch;

/// How much a file that may block is given at once, in bytes. A terminal says that it can be written with any room at all,
/// and blocks for the rest; the less it is given, the seldomer.
const PIECE: usize = 256;
/// How many parts leave at once.
const PARTS: usize = 16;

/// One of the two, as it was found.
struct File {
    fd: OwnedFd,
    /// Its flags before it was made not to block.
    before: Option<OFlag>,
}

impl File {
    /// Of a descriptor that others hold too.
    fn of(fd: &impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        let kind = SFlag::from_bits_truncate(fstat(&fd)?.st_mode) & SFlag::S_IFMT;
        if !matches!(kind, SFlag::S_IFIFO | SFlag::S_IFSOCK) {
            return Ok(Self { fd, before: None });
        }
        let before = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(before | OFlag::O_NONBLOCK))?;
        Ok(Self { fd, before: Some(before) })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Nothing can be done about a failure, and the process is about to end.
        let _unrestored = self.before.map(|before| fcntl(&self.fd, FcntlArg::F_SETFL(before)));
    }
}

/// Where the client's bytes come from.
pub(crate) struct Source(File);

impl Source {
    /// Over this process's stdin.
    pub(crate) fn stdin() -> io::Result<Self> {
        File::of(&io::stdin()).map(Self)
    }

    /// The next bytes, once the loop has seen that there are some; empty at the end.
    pub(crate) fn read(&self, scratch: &mut Scratch) -> io::Result<Option<Bytes>> {
        scratch.read(&self.0.fd)
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// Where the client's lines go, and those that wait.
pub(crate) struct Sink {
    file: File,
    parts: VecDeque<Bytes>,
    length: usize,
}

impl Sink {
    /// Over this process's stdout.
    pub(crate) fn stdout() -> io::Result<Self> {
        Ok(Self { file: File::of(&io::stdout())?, parts: VecDeque::new(), length: 0 })
    }

    /// A line that is to leave. It is not copied.
    pub(crate) fn push(&mut self, line: Bytes) {
        self.length += line.len() + 1;
        self.parts.extend([line, Bytes::from_static(b"\n")]);
    }

    /// Bytes that wait.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// It may be written without being asked: it takes what it can and never blocks.
    pub(crate) fn never_blocks(&self) -> bool {
        self.file.before.is_some()
    }

    /// Writes once, of what waits; false if there is no room.
    pub(crate) fn write(&mut self) -> io::Result<bool> {
        let mut slices = [IoSlice::new(&[]); PARTS];
        let limit = if self.never_blocks() { usize::MAX } else { PIECE };
        let mut room = limit;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part.get(..room.min(part.len())).unwrap_or_default());
            room -= slice.len();
        }
        loop {
            return match rustix::io::writev(&self.file.fd, &slices) {
                Ok(written) => {
                    self.advance(written);
                    Ok(true)
                }
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => Ok(false),
                Err(error) => Err(error.into()),
            };
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.length -= written;
        while let Some(part) = self.parts.front_mut() {
            let of_part = written.min(part.len());
            part.advance(of_part);
            written -= of_part;
            if !part.is_empty() {
                return;
            }
            self.parts.pop_front();
        }
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.fd.as_fd()
    }
}

/// Whether an error of stdout means that the client is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
