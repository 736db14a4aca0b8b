//! stdin and stdout of the shim, without a thread where that can be.
//!
//! MCP clients give pipes or sockets: these are made non-blocking and polled. `O_NONBLOCK` is a property of the
//! open file, which others may share, so it is put back at the end. Terminals, files and `/dev/null` cannot be
//! polled so; each gets a thread that blocks in its stead.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use bytes::{Bytes, BytesMut};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

/// How much is read or handed to a thread at once, in bytes.
const CHUNK: usize = 64 << 10;

/// Puts the flags of an open file back when dropped.
pub(crate) struct Restore {
    fd: OwnedFd,
    before: OFlag,
}

impl Restore {
    fn of(fd: &impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        let before = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        Ok(Self { fd, before })
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        // Nothing can be done about a failure, and the process is about to end.
        let _unrestored = fcntl(&self.fd, FcntlArg::F_SETFL(self.before));
    }
}

/// The kind of file behind a descriptor.
fn kind_of(fd: &impl AsFd) -> io::Result<SFlag> {
    Ok(SFlag::from_bits_truncate(fstat(fd.as_fd())?.st_mode) & SFlag::S_IFMT)
}

/// A socket of the client's, taken as a unix one: nothing is asked of it that another kind could not do.
fn socket_of(fd: &impl AsFd) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(fd.as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Where the client's bytes come from.
pub(crate) enum Source {
    Pipe { pipe: pipe::Receiver, _restore: Restore },
    Socket { socket: UnixStream, _restore: Restore },
    Thread(mpsc::Receiver<io::Result<Bytes>>),
}

impl Source {
    /// Over this process's stdin. Inside a runtime only.
    pub(crate) fn stdin() -> io::Result<Self> {
        let stdin = io::stdin();
        let _restore = Restore::of(&stdin)?;
        match kind_of(&stdin)? {
            SFlag::S_IFIFO => {
                let pipe = pipe::Receiver::from_owned_fd(stdin.as_fd().try_clone_to_owned()?)?;
                Ok(Self::Pipe { pipe, _restore })
            }
            SFlag::S_IFSOCK => Ok(Self::Socket { socket: socket_of(&stdin)?, _restore }),
            _ => {
                let (sender, receiver) = mpsc::channel(1);
                std::thread::Builder::new().name("stdin".into()).spawn(move || pump_in(&sender))?;
                Ok(Self::Thread(receiver))
            }
        }
    }

    /// The next bytes; empty at the end. Loses nothing when dropped while it waits.
    pub(crate) async fn read(&mut self) -> io::Result<Bytes> {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        match self {
            Self::Thread(chunks) => return chunks.recv().await.unwrap_or_else(|| Ok(Bytes::new())),
            Self::Pipe { pipe, .. } => pipe.read_buf(&mut buffer).await?,
            Self::Socket { socket, .. } => socket.read_buf(&mut buffer).await?,
        };
        Ok(buffer.freeze())
    }
}

/// A thread that cannot be woken: it ends with the process, or with stdin.
fn pump_in(sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut buffer = vec![0; CHUNK];
    let mut stdin = io::stdin().lock();
    loop {
        let chunk = match stdin.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => Ok(Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        if sender.blocking_send(chunk).is_err() {
            return;
        }
    }
}

/// Where the client's lines go.
pub(crate) enum Sink {
    Pipe { pipe: pipe::Sender, _restore: Restore },
    Socket { socket: UnixStream, _restore: Restore },
    Thread { chunks: mpsc::Sender<Bytes>, done: oneshot::Receiver<()> },
}

impl Sink {
    /// Over this process's stdout. Inside a runtime only.
    pub(crate) fn stdout() -> io::Result<Self> {
        let stdout = io::stdout();
        let _restore = Restore::of(&stdout)?;
        match kind_of(&stdout)? {
            SFlag::S_IFIFO => {
                let pipe = pipe::Sender::from_owned_fd(stdout.as_fd().try_clone_to_owned()?)?;
                Ok(Self::Pipe { pipe, _restore })
            }
            SFlag::S_IFSOCK => Ok(Self::Socket { socket: socket_of(&stdout)?, _restore }),
            _ => {
                let (chunks, receiver) = mpsc::channel(1);
                let (finished, done) = oneshot::channel();
                std::thread::Builder::new().name("stdout".into()).spawn(move || {
                    pump_out(receiver);
                    drop(finished);
                })?;
                Ok(Self::Thread { chunks, done })
            }
        }
    }

    /// Writes some of `bytes` and says how many. Nothing was written if it is dropped while it waits.
    async fn write(&mut self, bytes: &Bytes) -> io::Result<usize> {
        match self {
            Self::Pipe { pipe, .. } => pipe.write(bytes).await,
            Self::Socket { socket, .. } => socket.write(bytes).await,
            Self::Thread { chunks, .. } => {
                let slot = chunks.reserve().await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
                let chunk = bytes.slice(..bytes.len().min(CHUNK));
                let length = chunk.len();
                slot.send(chunk);
                Ok(length)
            }
        }
    }

    /// Waits until what was written is out of this process.
    pub(crate) async fn finish(self) {
        if let Self::Thread { chunks, done } = self {
            drop(chunks);
            drop(done.await);
        }
    }
}

fn pump_out(mut chunks: mpsc::Receiver<Bytes>) {
    // Not `io::stdout()`, whose buffer would hold a line's end back.
    let Ok(fd) = io::stdout().as_fd().try_clone_to_owned() else { return };
    let mut stdout = std::fs::File::from(fd);
    while let Some(chunk) = chunks.blocking_recv() {
        if stdout.write_all(&chunk).is_err() {
            return;
        }
    }
}

/// Lines that wait for stdout.
#[derive(Default)]
pub(crate) struct Outbox {
    parts: VecDeque<Bytes>,
    length: usize,
}

impl Outbox {
    /// Lines up to this are joined with their end, so that they take one system call; longer ones are not copied.
    const JOINED: usize = 16 << 10;

    pub(crate) fn push(&mut self, line: Bytes) {
        self.length += line.len() + 1;
        if line.len() <= Self::JOINED {
            let mut joined = Vec::with_capacity(line.len() + 1);
            joined.extend_from_slice(&line);
            joined.push(b'\n');
            self.parts.push_back(joined.into());
        } else {
            self.parts.push_back(line);
            self.parts.push_back(Bytes::from_static(b"\n"));
        }
    }

    /// Bytes that wait.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Writes some of it. Loses nothing when dropped while it waits.
    pub(crate) async fn write_some(&mut self, sink: &mut Sink) -> io::Result<()> {
        let Some(part) = self.parts.front_mut() else { return Ok(()) };
        let written = sink.write(part).await?;
        let _gone = part.split_to(written.min(part.len()));
        self.length -= written;
        if part.is_empty() {
            self.parts.pop_front();
        }
        Ok(())
    }
}

/// Whether an error of stdout means that the client is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
