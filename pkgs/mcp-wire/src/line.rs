//! Newline framing of the stdio transport (2025-11-25, Transports, stdio: messages are delimited by newlines and
//! MUST NOT contain embedded newlines), without IO.

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2_iter};

use crate::{Id, Segments, request_id_of_start};

/// A line was longer than allowed and was thrown away.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {limit} bytes")]
pub struct LineTooLong {
    /// The limit, in bytes without the line end.
    pub limit: usize,
    /// The id to answer under, if the line was a request that told it within the limit: [`request_id_of_start`].
    pub request_id: Option<Id>,
}

/// Splits bytes into lines. Lines of nothing but white space are skipped, `\r\n` counts as `\n`.
///
/// Holds at most one unfinished line of `max_line` bytes beside what was pushed and not yet taken, so take until
/// `None` after every push.
pub struct LineDecoder {
    buffer: BytesMut,
    /// No newline before this offset of `buffer`.
    scanned: usize,
    max_line: usize,
    /// Inside a line that was already reported.
    skipping: bool,
}

impl LineDecoder {
    /// An empty buffer larger than this is given back, or one long line would cost its size for ever.
    const KEEP: usize = 1 << 20;

    /// `max_line` in bytes, without the line end.
    #[must_use]
    pub fn new(max_line: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, max_line, skipping: false }
    }

    /// Adds what was read.
    pub fn push(&mut self, chunk: impl AsRef<[u8]>) {
        self.buffer.extend_from_slice(chunk.as_ref());
    }

    /// The next whole line without its end, or `None` until more is pushed. An over-long line is reported once,
    /// as soon as it is known to be one, and its rest is dropped.
    pub fn next_line(&mut self) -> Option<Result<Bytes, LineTooLong>> {
        loop {
            if self.skipping && !self.skip() {
                return None;
            }
            let unscanned = self.buffer.get(self.scanned..).unwrap_or_default();
            let Some(found) = memchr(b'\n', unscanned) else {
                self.scanned = self.buffer.len();
                return self.over_long_already().then(|| {
                    self.skipping = true;
                    let too_long = self.too_long(&self.buffer);
                    self.clear();
                    Err(too_long)
                });
            };
            let mut line = self.buffer.split_to(self.scanned + found + 1);
            self.scanned = 0;
            if self.buffer.is_empty() && self.buffer.capacity() > Self::KEEP {
                self.clear();
            }
            line.truncate(line.len() - 1);
            if let Some(line) = self.checked(line) {
                return Some(line);
            }
        }
    }

    /// At the end of input: what is still there, the last line also without its newline. Call until `None`.
    pub fn finish(&mut self) -> Option<Result<Bytes, LineTooLong>> {
        if let Some(line) = self.next_line() {
            return Some(line);
        }
        self.scanned = 0;
        self.skipping = false;
        let rest = std::mem::take(&mut self.buffer);
        self.checked(rest)
    }

    /// Drops up to the end of the over-long line; whether that was found.
    fn skip(&mut self) -> bool {
        match memchr(b'\n', &self.buffer) {
            Some(found) => {
                self.buffer.advance(found + 1);
                self.skipping = false;
                true
            }
            None => {
                self.buffer.clear();
                false
            }
        }
    }

    /// `None` for a line that is skipped.
    fn checked(&self, mut line: BytesMut) -> Option<Result<Bytes, LineTooLong>> {
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.max_line {
            return Some(Err(self.too_long(&line)));
        }
        let blank = line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
        (!blank).then(|| Ok(line.freeze()))
    }

    /// One byte over is still open: it may be the `\r` of the line end.
    fn over_long_already(&self) -> bool {
        let spare = usize::from(self.buffer.last() == Some(&b'\r'));
        self.buffer.len() - spare > self.max_line
    }

    fn clear(&mut self) {
        self.buffer = BytesMut::new();
        self.scanned = 0;
    }

    /// Only what is within the limit is looked at, so that it does not matter how the bytes came.
    fn too_long(&self, line: &[u8]) -> LineTooLong {
        let start = line.get(..self.max_line).unwrap_or(line);
        LineTooLong { limit: self.max_line, request_id: request_id_of_start(start) }
    }
}

impl std::fmt::Debug for LineDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LineDecoder({} bytes held, limit {})", self.buffer.len(), self.max_line)
    }
}

/// The message as one line with its newline. Copies.
#[must_use]
pub fn to_line(message: &Segments) -> Bytes {
    let mut out = Vec::new();
    write_line(message, &mut out);
    out.into()
}

/// Appends the message to `out` as one line with its newline.
///
/// Raw CR and LF become spaces: inside a JSON string they cannot occur raw, so they are insignificant there, and
/// relayed as they are they would cut the message in two.
pub fn write_line(message: &Segments, out: &mut Vec<u8>) {
    out.reserve(message.len() + 1);
    for piece in message {
        let mut done = 0;
        for line_end in memchr2_iter(b'\r', b'\n', piece) {
            out.extend_from_slice(&piece[done..line_end]);
            out.push(b' ');
            done = line_end + 1;
        }
        out.extend_from_slice(&piece[done..]);
    }
    out.push(b'\n');
}
