//! Compressed bodies, read as they come.
//!
//! None is asked for: `Accept-Encoding: identity` goes out with every request, because compressors between us and
//! the server hold a stream's events back until they have enough. Some compress all the same, and then each piece
//! is unpacked as far as it goes, so that a server that flushes after each event is heard at once. All limits
//! of this crate count unpacked bytes; a piece of 4 KiB makes at most about 4 MiB of them before they are counted.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use http::header::{CONTENT_ENCODING, HeaderMap};
use http_body::{Body as HttpBody, Frame};

use crate::body::RawBody;
use crate::error::BodyError;

const PIECE: usize = 4 * 1024;
const LONGEST_SHOWN: usize = 40;

/// The body as it was before its `Content-Encoding` (RFC 9110 section 8.4). `identity` and nothing cost nothing; a
/// coding that cannot be undone makes a body that is an error.
pub(crate) fn decoded(body: RawBody, headers: &HeaderMap) -> RawBody {
    let codings = codings(headers);
    let unpacker = match codings.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => return body,
        ["gzip" | "x-gzip"] => Unpacker::Gzip(MultiGzDecoder::new(Vec::new())),
        ["deflate"] => Unpacker::Deflate(ZlibDecoder::new(Vec::new())),
        _ => {
            let shown = codings.join(", ").escape_default().take(LONGEST_SHOWN).collect();
            return RawBody::decoded(Unreadable { coding: Some(shown) });
        }
    };
    RawBody::decoded(Decoding { body, unpacker, packed: Bytes::new(), begun: false, over: false })
}

fn codings(headers: &HeaderMap) -> Vec<String> {
    let values =
        headers.get_all(CONTENT_ENCODING).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let mut codings = Vec::new();
    for value in values {
        let names = value.split(',').map(|name| name.trim().to_ascii_lowercase());
        codings.extend(names.filter(|name| !matches!(name.as_str(), "" | "identity")));
    }
    codings
}

enum Unpacker {
    Gzip(MultiGzDecoder<Vec<u8>>),
    /// As HTTP means it: zlib. Servers that send the bare kind are refused by their own checksum.
    Deflate(ZlibDecoder<Vec<u8>>),
}

impl Unpacker {
    /// All that these bytes make.
    fn unpack(&mut self, packed: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(decoder) => {
                decoder.write_all(packed).and_then(|()| decoder.flush())?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Self::Deflate(decoder) => {
                decoder.write_all(packed).and_then(|()| decoder.flush())?;
                Ok(std::mem::take(decoder.get_mut()))
            }
        }
    }

    /// An error if the end is missing: a body whose connection was cut by a proxy may look whole to HTTP.
    fn finish(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(decoder) => decoder.try_finish().map(|()| std::mem::take(decoder.get_mut())),
            Self::Deflate(decoder) => decoder.try_finish().map(|()| std::mem::take(decoder.get_mut())),
        }
    }
}

struct Decoding {
    body: RawBody,
    unpacker: Unpacker,
    packed: Bytes,
    begun: bool,
    over: bool,
}

impl Decoding {
    fn given(&mut self, unpacked: io::Result<Vec<u8>>) -> Option<Result<Frame<Bytes>, BodyError>> {
        match unpacked {
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => Some(Ok(Frame::data(bytes.into()))),
            Err(source) => {
                self.over = true;
                self.packed.clear();
                Some(Err(BodyError::Packed { source: source.into() }))
            }
        }
    }
}

impl HttpBody for Decoding {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if !self.packed.is_empty() {
                let length = self.packed.len().min(PIECE);
                let piece = self.packed.split_to(length);
                let unpacked = self.unpacker.unpack(&piece);
                match self.given(unpacked) {
                    None => continue,
                    given => return Poll::Ready(given),
                }
            }
            if self.over {
                return Poll::Ready(None);
            }
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.begun |= !data.is_empty();
                        self.packed = data;
                    }
                }
                Some(Err(error)) => {
                    self.over = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.over = true;
                    let rest = if self.begun { self.unpacker.finish() } else { Ok(Vec::new()) };
                    return Poll::Ready(self.given(rest));
                }
            }
        }
    }
}

/// A body in a coding that nobody asked for and nobody here can undo.
struct Unreadable {
    coding: Option<String>,
}

impl HttpBody for Unreadable {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.coding.take().map(|coding| Err(BodyError::Coding { coding })))
    }
}
