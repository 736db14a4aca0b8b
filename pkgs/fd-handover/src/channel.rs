//! A unix socket that carries frames with descriptors.
//!
//! Every read is a `recvmsg` with room for all descriptors that a message can have: a plain read closes them without a
//! word, and too little room loses them with one flag as the only sign.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use bytes::{Buf, Bytes};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::error::Error;
use crate::frame::{Decoder, Frame, encode};

/// The kernel takes no more in one message (`SCM_MAX_FD`).
pub const MOST_DESCRIPTORS: usize = 253;
const READ: usize = 64 * 1024;

/// One end of the conversation.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    decoder: Decoder,
    over: bool,
}

impl Channel {
    /// `already_read`: what was read of the stream before it became a channel.
    pub fn new(stream: UnixStream, already_read: &[u8]) -> Self {
        let mut decoder = Decoder::default();
        decoder.take_bytes(already_read);
        Self { stream, decoder, over: false }
    }

    /// User and process at the other end, as the kernel knows them: of whoever *connected*. On the connecting side it is
    /// whoever called `listen`, who may be long gone.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn peer(&self) -> Result<(u32, Option<i32>), Error> {
        let peer = self.stream.peer_cred()?;
        Ok((peer.uid(), peer.pid()))
    }

    /// Sends one frame. Not cancel-safe: a frame that was begun and dropped breaks the stream.
    ///
    /// # Errors
    /// [`Error::TooMany`] and [`Error::TooLarge`] before anything was sent; after any other the other side may have
    /// the frame or not.
    pub async fn send(&mut self, kind: u8, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let count = u8::try_from(fds.len()).ok().filter(|count| usize::from(*count) <= MOST_DESCRIPTORS);
        let Some(count) = count else { return Err(Error::TooMany(fds.len())) };
        let mut bytes = encode(kind, body, count)?;
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let mut unsent = &raw[..];
        while bytes.has_remaining() {
            let sent = self.stream.async_io(Interest::WRITABLE, || send_some(&self.stream, &bytes, unsent));
            bytes.advance(sent.await.map_err(limit)?);
            // They went with the first byte.
            unsent = &[];
        }
        Ok(())
    }

    /// The next frame; `None` at the end of the stream. Loses nothing when dropped while it waits.
    ///
    /// # Errors
    /// After any, nothing more can be received.
    pub async fn recv(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            if let Some(frame) = self.decoder.next()? {
                return Ok(Some(frame));
            }
            if self.over {
                self.decoder.end()?;
                return Ok(None);
            }
            let mut buffer = vec![0; READ];
            let stream = &self.stream;
            let got = stream.async_io(Interest::READABLE, || receive_some(stream, &mut buffer)).await;
            let got = match got {
                // Unread bytes at the other end's close make a reset of its end.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Received::default(),
                got => got?,
            };
            got.fds.into_iter().for_each(|fd| self.decoder.take_fd(fd));
            if got.truncated {
                return Err(Error::Truncated);
            }
            self.over = got.bytes == 0;
            self.decoder.take_bytes(buffer.get(..got.bytes).unwrap_or_default());
        }
    }
}

fn send_some(stream: &UnixStream, bytes: &Bytes, fds: &[RawFd]) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights };
    let parts = [IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    Ok(sendmsg::<UnixAddr>(stream.as_raw_fd(), &parts, control, flags, None)?)
}

#[derive(Default)]
struct Received {
    bytes: usize,
    fds: Vec<OwnedFd>,
    truncated: bool,
}

fn receive_some(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | CLOEXEC;
    let message = recvmsg::<UnixAddr>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let truncated = message.flags.contains(MsgFlags::MSG_CTRUNC);
    let mut fds = Vec::new();
    if let Ok(messages) = message.cmsgs() {
        for one in messages {
            if let ControlMessageOwned::ScmRights(raw) = one {
                fds.extend(raw.into_iter().map(own));
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    for fd in &fds {
        let flags = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
        nix::fcntl::fcntl(fd, flags)?;
    }
    Ok(Received { bytes: message.bytes, fds, truncated })
}

#[cfg(target_os = "linux")]
const CLOEXEC: MsgFlags = MsgFlags::MSG_CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOEXEC: MsgFlags = MsgFlags::empty();

/// Takes a descriptor that was just received into our hands, before anything else can go wrong.
#[allow(unsafe_code, reason = "the one place where a number becomes a descriptor")]
fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just opened it for this process, and nobody else has been told of it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

fn limit(error: io::Error) -> Error {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ETOOMANYREFS) => Error::InFlight,
        _ => Error::Io(error),
    }
}
