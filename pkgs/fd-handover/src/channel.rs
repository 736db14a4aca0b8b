//! A unix socket that carries frames with descriptors.
//!
//! Every read is a `recvmsg` with room for all descriptors that a message can have: a plain read closes them without a
//! word, and too little room loses them with one flag as the only sign.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use bytes::{Buf, Bytes};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::error::Error;
use crate::frame::{Decoder, Frame, encode};

/// The kernel takes no more in one message (`SCM_MAX_FD`).
pub const MOST_DESCRIPTORS: usize = 253;
const READ: usize = 64 * 1024;
/// Room for all descriptors of one message.
const CONTROL: usize = rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS));

/// One end of the conversation.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    decoder: Decoder,
    over: bool,
    /// A frame was begun: what is sent now would be taken for the rest of it, until it is whole.
    half_sent: bool,
    /// What was received does not fit together: nothing that comes now can be told apart.
    broken: bool,
}

impl Channel {
    /// `already_read`: what was read of the stream before it became a channel. If that was read by anything but a
    /// `recvmsg` with room, descriptors among it are lost: who speaks first after the change must be this side.
    pub fn new(stream: UnixStream, already_read: &[u8]) -> Self {
        let mut decoder = Decoder::default();
        decoder.take_bytes(already_read);
        Self { stream, decoder, over: false, half_sent: false, broken: false }
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

    /// Sends one frame. Dropped before it is done, it may have sent a part: then nothing more is sent.
    ///
    /// # Errors
    /// [`Error::TooMany`] and [`Error::TooLarge`] before anything was sent; [`Error::HalfSent`] if a frame before this
    /// one was; after any other the other side may have the frame or not.
    pub async fn send(&mut self, kind: u8, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let count = u8::try_from(fds.len()).ok().filter(|count| usize::from(*count) <= MOST_DESCRIPTORS);
        let Some(count) = count else { return Err(Error::TooMany(fds.len())) };
        let mut bytes = encode(kind, body, count)?;
        if self.half_sent {
            return Err(Error::HalfSent);
        }
        let mut unsent = fds;
        while bytes.has_remaining() {
            let sent = self.stream.async_io(Interest::WRITABLE, || {
                let sent = send_some(&self.stream, &bytes, unsent)?;
                self.half_sent = sent < bytes.len();
                Ok(sent)
            });
            bytes.advance(sent.await.map_err(limit)?);
            // They went with the first byte.
            unsent = &[];
        }
        Ok(())
    }

    /// The next frame; `None` at the end of the stream. Loses nothing when dropped while it waits.
    ///
    /// # Errors
    /// After any, nothing more is received.
    pub async fn recv(&mut self) -> Result<Option<Frame>, Error> {
        if self.broken {
            return Err(Error::Malformed("something after what made no sense"));
        }
        let received = self.next().await;
        if received.is_err() {
            self.broken = true;
            // Descriptors that belong to nothing are closed now, not when the channel is.
            self.decoder = Decoder::default();
        }
        received
    }

    async fn next(&mut self) -> Result<Option<Frame>, Error> {
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
            // Once it has read, it is ready: between here and `take` nobody can drop this.
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

fn send_some(stream: &UnixStream, bytes: &Bytes, fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

#[derive(Default)]
struct Received {
    bytes: usize,
    fds: Vec<OwnedFd>,
    truncated: bool,
}

fn receive_some(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    // Owns what comes, and closes what is not taken out of it. Some come even if others are lost.
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | CLOEXEC;
    let message = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fds = Vec::new();
    for one in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = one {
            fds.extend(received);
        }
    }
    #[cfg(not(target_os = "linux"))]
    for fd in &fds {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok(Received { bytes: message.bytes, fds, truncated: message.flags.contains(ReturnFlags::CTRUNC) })
}

#[cfg(target_os = "linux")]
const CLOEXEC: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOEXEC: RecvFlags = RecvFlags::empty();

fn limit(error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::TOOMANYREFS) => Error::InFlight,
        _ => Error::Io(error),
    }
}
