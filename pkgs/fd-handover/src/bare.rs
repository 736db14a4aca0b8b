//! The framing without a socket: pieces of a stream and what came with them in, frames out. For the fuzzer and the
//! replay of what it found.

use std::os::fd::OwnedFd;

use crate::error::Error;
use crate::frame::{Decoder, Frame};

pub use crate::frame::encode;

/// The frames of a stream that came in these pieces, each with descriptors, and how it ended. After what makes no sense
/// nothing is taken.
pub fn frames(pieces: impl IntoIterator<Item = (Vec<u8>, Vec<OwnedFd>)>) -> (Vec<Frame>, Result<(), Error>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for (bytes, fds) in pieces {
        fds.into_iter().for_each(|fd| decoder.take_fd(fd));
        decoder.take_bytes(&bytes);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    let end = decoder.end();
    (frames, end)
}
