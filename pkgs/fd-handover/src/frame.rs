//! The framing: `u32` length (big-endian) of what follows, one byte of type, one byte with the number of descriptors, the
//! body. Pure: bytes and descriptors in, frames out, so that any cut of the stream can be tried.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::Error;

/// The largest body, in bytes.
pub const LARGEST_FRAME: usize = 16 * 1024 * 1024;
/// Type and number of descriptors.
const HEAD: usize = 2;

/// One message.
#[derive(Debug)]
pub struct Frame {
    /// What it is; the meaning is the caller's.
    pub kind: u8,
    /// Its bytes.
    pub body: Bytes,
    /// Its descriptors, in the order they were sent; close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// The bytes of a frame that announces `fds` descriptors.
///
/// # Errors
/// [`Error::TooLarge`].
pub fn encode(kind: u8, body: &[u8], fds: u8) -> Result<Bytes, Error> {
    let length = u32::try_from(body.len() + HEAD).map_err(|_| Error::TooLarge(body.len()))?;
    if body.len() > LARGEST_FRAME {
        return Err(Error::TooLarge(body.len()));
    }
    let mut out = BytesMut::with_capacity(body.len() + HEAD + 4);
    out.put_u32(length);
    out.put_u8(kind);
    out.put_u8(fds);
    out.extend_from_slice(body);
    Ok(out.freeze())
}

/// Takes a stream apart. The kernel glues the bytes of several messages together, and hands their descriptors over with
/// the first of those bytes or later: so they are matched in their order, by the number each frame announces.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    bytes: BytesMut,
    fds: VecDeque<OwnedFd>,
}

impl Decoder {
    pub(crate) fn take_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn take_fd(&mut self, fd: OwnedFd) {
        self.fds.push_back(fd);
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Error> {
        let Some((length, _)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length =
            usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Error::Malformed("a length"))?;
        if length < HEAD {
            return Err(Error::Malformed("a message without a type"));
        }
        if length > LARGEST_FRAME + HEAD {
            return Err(Error::Malformed("a message larger than is allowed"));
        }
        if self.bytes.len() < 4 + length {
            return Ok(None);
        }
        self.bytes.advance(4);
        let mut frame = self.bytes.split_to(length).freeze();
        let (kind, declared) = (frame.get_u8(), usize::from(frame.get_u8()));
        // They come with the first byte of their frame at the latest, so what is not here will not come.
        if self.fds.len() < declared {
            return Err(Error::Count { declared, came: self.fds.len() });
        }
        let fds = self.fds.drain(..declared).collect();
        // With nothing of a next frame here they were this one's. Left alone they would go to whatever comes next.
        if self.bytes.is_empty() && !self.fds.is_empty() {
            return Err(Error::Count { declared, came: declared + self.fds.len() });
        }
        Ok(Some(Frame { kind, body: frame, fds }))
    }

    /// The stream is over.
    pub(crate) fn end(&self) -> Result<(), Error> {
        match (self.bytes.is_empty(), self.fds.len()) {
            (true, 0) => Ok(()),
            (true, came) => Err(Error::Count { declared: 0, came }),
            (false, _) => Err(Error::Cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let frames = [(1, &b"first"[..]), (2, b""), (3, b"third")];
        frames.iter().flat_map(|(kind, body)| encode(*kind, body, 0).unwrap()).collect()
    }

    #[test]
    fn a_stream_may_be_cut_anywhere() {
        let stream = stream();
        for cut in 0..=stream.len() {
            let mut decoder = Decoder::default();
            let mut kinds = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                decoder.take_bytes(part);
                while let Some(frame) = decoder.next().unwrap() {
                    kinds.push((frame.kind, frame.body.len()));
                }
            }
            assert_eq!(kinds, [(1, 5), (2, 0), (3, 5)], "cut at {cut}");
            decoder.end().unwrap();
        }
    }

    #[test]
    fn an_end_in_a_frame_is_a_cut() {
        let stream = stream();
        let whole = [0, 11, 17, stream.len()];
        for cut in 0..=stream.len() {
            let mut decoder = Decoder::default();
            decoder.take_bytes(&stream[..cut]);
            while decoder.next().unwrap().is_some() {}
            assert_eq!(decoder.end().is_ok(), whole.contains(&cut), "cut at {cut}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bytes in [&[0, 0, 0, 1, 7][..], &[0xff, 0xff, 0xff, 0xff, 1, 0]] {
            let mut decoder = Decoder::default();
            decoder.take_bytes(bytes);
            assert!(matches!(decoder.next(), Err(Error::Malformed(_))), "{bytes:?}");
        }
        let mut decoder = Decoder::default();
        decoder.take_bytes(&encode(1, b"x", 2).unwrap());
        assert!(matches!(decoder.next(), Err(Error::Count { declared: 2, came: 0 })));
        assert!(matches!(encode(1, &vec![0; LARGEST_FRAME + 1], 0), Err(Error::TooLarge(_))));
    }
}
