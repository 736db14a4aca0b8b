//! Server-sent events without IO: bytes in, events out.
//!
//! An own decoder, because the ones at hand either have no limit on an event, lose the id of an event without
//! data (which is how an MCP server primes a stream), or copy every byte several times. Rules: WHATWG HTML,
//! "Server-sent events", section "Parsing an event stream"; MCP 2025-11-25 transports, "Sending Messages to the
//! Server" for events that carry an id and no data.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::{Buf, Bytes};
use memchr::{memchr, memchr2};

#[cfg(test)]
mod tests;

/// The default limit on one event, in bytes: 32 MiB. Tool results of 16 MiB exist, so they must pass.
pub const DEFAULT_MAX_EVENT: usize = 32 * 1024 * 1024;

/// The longest wait a server can ask for by `retry:` or `Retry-After`. Longer ones are shortened to it, so that
/// adding one to a clock's reading can never overflow.
pub const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// One event of a stream.
///
/// Events without data are delivered too when they carry an id or a retry: their id is where a stream is
/// resumed. (WHATWG drops them but still remembers the id; MCP 2025-11-25 primes every stream with one.)
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// Only if this event itself had an `id` field. Valid UTF-8 without NUL, CR and LF; empty means that the
    /// server takes back the last id.
    pub id: Option<Bytes>,
    /// The event's type, if it has one. Absent means `message`.
    pub event: Option<String>,
    /// Valid UTF-8. Empty for priming events. Often a slice of the chunk it came in, which it keeps alive.
    pub data: Bytes,
    /// How long to wait before reconnecting, if this event said so; at most [`MAX_WAIT`].
    pub retry: Option<Duration>,
}

impl fmt::Debug for SseEvent {
    /// Ids and data belong to the session's owner, so only their sizes are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SseEvent")
            .field("id_len", &self.id.as_ref().map(Bytes::len))
            .field("event", &self.event)
            .field("data_len", &self.data.len())
            .field("retry", &self.retry)
            .finish()
    }
}

/// Why a stream of events cannot be read on. The server's fault in each case, and final for this stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SseError {
    /// One event's lines (without line ends and comments) are longer than the limit.
    #[error("an event is larger than the limit of {cap} bytes")]
    TooLarge {
        /// The limit, in bytes.
        cap: usize,
    },
    /// An event's data, id or type is not UTF-8. WHATWG would put replacement characters there, but a message
    /// changed in silence is worse than an error.
    #[error("an event's `{field}` is not valid UTF-8")]
    Utf8 {
        /// The name of the field.
        field: &'static str,
    },
}

/// Turns chunks of a body into events.
///
/// Push a chunk, take events until `None`, push the next. Holds at most the limit plus the chunks that were
/// pushed and not yet read. Work is linear in the bytes pushed, however they are cut.
pub struct Decoder {
    max_event: usize,
    chunks: VecDeque<Bytes>,
    /// How many bytes of a byte order mark were seen; `None` once the question is settled.
    mark_seen: Option<usize>,
    /// The last line ended with CR, so a LF that follows belongs to that end. The event is not held back for it:
    /// a server may wait for an answer before it sends another byte.
    skip_lf: bool,
    line: Line,
    event: Building,
    /// Bytes of this event's complete lines.
    used: usize,
    retry: Option<Duration>,
    failed: bool,
    /// Bytes looked at or copied, for the test that work is linear.
    #[cfg(test)]
    work: usize,
}

/// The part of a line that began in an earlier chunk.
#[derive(Default)]
enum Line {
    #[default]
    Nothing,
    Kept(Vec<u8>),
    /// Comments are skipped as they come: one that never ends must not fill memory.
    Comment,
}

#[derive(Default)]
struct Building {
    id: Option<Bytes>,
    event: Option<String>,
    data: Data,
    retry: Option<Duration>,
}

#[derive(Default)]
enum Data {
    #[default]
    Nothing,
    One(Bytes),
    Many(Vec<u8>),
}

impl Decoder {
    /// A decoder at the start of a stream that takes events of up to `max_event` bytes. What counts is the length
    /// of an event's lines with their field names, without line ends and comments.
    #[must_use]
    pub fn new(max_event: usize) -> Self {
        Self {
            max_event,
            chunks: VecDeque::new(),
            mark_seen: Some(0),
            skip_lf: false,
            line: Line::Nothing,
            event: Building::default(),
            used: 0,
            retry: None,
            failed: false,
            #[cfg(test)]
            work: 0,
        }
    }

    /// Takes the next chunk of the body (cheaply: it is not copied). Ignored after an error.
    pub fn push(&mut self, chunk: &Bytes) {
        if !self.failed && !chunk.is_empty() {
            self.chunks.push_back(chunk.clone());
        }
    }

    /// The next event that is complete, or `None` if more bytes are needed. After an error always `None`.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: after None there may be more")]
    pub fn next(&mut self) -> Option<Result<SseEvent, SseError>> {
        while let Some(mut chunk) = self.chunks.pop_front() {
            let found = self.read(&mut chunk).transpose();
            if let Some(Err(_)) = found {
                self.fail();
            } else if !chunk.is_empty() {
                self.chunks.push_front(chunk);
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The body is over: what is left of an event without its blank line is discarded, as WHATWG demands.
    /// Call it after [`Decoder::next`] gave `None`. True if something was discarded.
    pub fn finish(&mut self) -> bool {
        let unfinished = match &self.line {
            Line::Kept(_) => true,
            Line::Nothing | Line::Comment => self.used > 0,
        };
        self.fail();
        unfinished
    }

    /// The last `retry:` seen, at most [`MAX_WAIT`]. Counts from its line on, even if its event never ends.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn fail(&mut self) {
        self.failed = true;
        self.chunks.clear();
        self.line = Line::Nothing;
        self.event = Building::default();
        self.used = 0;
    }

    /// Reads lines off `chunk` until an event is complete or the chunk is used up.
    fn read(&mut self, chunk: &mut Bytes) -> Result<Option<SseEvent>, SseError> {
        loop {
            self.skip(chunk);
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = memchr2(b'\r', b'\n', chunk);
            self.worked(end.map_or(chunk.len(), |at| at + 1));
            let Some(at) = end else {
                self.keep(&std::mem::take(chunk))?;
                return Ok(None);
            };
            let part = chunk.split_to(at);
            self.skip_lf = chunk.first() == Some(&b'\r');
            chunk.advance(1);
            if let Some(event) = self.end_line(part)? {
                return Ok(Some(event));
            }
        }
    }

    /// Skips a byte order mark at the start of the stream, and the LF of a CRLF whose CR was read before.
    fn skip(&mut self, chunk: &mut Bytes) {
        while let (Some(seen), Some(&byte)) = (self.mark_seen, chunk.first()) {
            if BYTE_ORDER_MARK.get(seen) == Some(&byte) {
                chunk.advance(1);
                self.mark_seen = if seen + 1 < BYTE_ORDER_MARK.len() { Some(seen + 1) } else { None };
            } else {
                // Not a mark after all: its first bytes begin the first line.
                self.mark_seen = None;
                if seen > 0 {
                    self.line = Line::Kept(BYTE_ORDER_MARK.iter().copied().take(seen).collect());
                }
            }
        }
        if self.skip_lf
            && let Some(&byte) = chunk.first()
        {
            self.skip_lf = false;
            if byte == b'\n' {
                chunk.advance(1);
            }
        }
    }

    /// Keeps the part of a line whose end is in a later chunk.
    fn keep(&mut self, part: &[u8]) -> Result<(), SseError> {
        match &mut self.line {
            Line::Comment => Ok(()),
            Line::Nothing if part.first() == Some(&b':') => {
                self.line = Line::Comment;
                Ok(())
            }
            Line::Nothing => self.append(Vec::new(), part),
            Line::Kept(kept) => {
                let kept = std::mem::take(kept);
                self.append(kept, part)
            }
        }
    }

    fn append(&mut self, mut kept: Vec<u8>, part: &[u8]) -> Result<(), SseError> {
        let length = kept.len() + part.len();
        self.check(length)?;
        if kept.capacity() < length {
            // Doubling keeps the work linear; never past the limit, so that memory stays bounded by it.
            let capacity = length.max((kept.capacity() * 2).min(self.max_event));
            self.worked(kept.len());
            kept.reserve_exact(capacity - kept.len());
        }
        self.worked(part.len());
        kept.extend_from_slice(part);
        self.line = Line::Kept(kept);
        Ok(())
    }

    fn check(&self, line_length: usize) -> Result<(), SseError> {
        match self.used.checked_add(line_length) {
            Some(total) if total <= self.max_event => Ok(()),
            _ => Err(SseError::TooLarge { cap: self.max_event }),
        }
    }

    /// `part` is the last part of a line; gives the event that the line completed, if it is a blank one.
    fn end_line(&mut self, part: Bytes) -> Result<Option<SseEvent>, SseError> {
        let line = match std::mem::take(&mut self.line) {
            Line::Comment => return Ok(None),
            Line::Nothing => part,
            Line::Kept(kept) => {
                self.append(kept, &part)?;
                match std::mem::take(&mut self.line) {
                    Line::Kept(whole) => Bytes::from(whole),
                    Line::Nothing | Line::Comment => Bytes::new(),
                }
            }
        };
        match line.first() {
            None => Ok(self.end_event()),
            Some(b':') => Ok(None),
            Some(_) => {
                self.check(line.len())?;
                self.used += line.len();
                self.field(&line)?;
                Ok(None)
            }
        }
    }

    fn field(&mut self, line: &Bytes) -> Result<(), SseError> {
        let name_length = memchr(b':', line).unwrap_or(line.len());
        let mut value = line.slice(name_length..);
        if value.first() == Some(&b':') {
            value.advance(1);
            if value.first() == Some(&b' ') {
                value.advance(1);
            }
        }
        match line.get(..name_length) {
            Some(b"data") => {
                self.worked(value.len());
                text("data", &value)?;
                self.event.data.push_line(value);
            }
            Some(b"id") if memchr(0, &value).is_none() => {
                text("id", &value)?;
                // Copied: ids are kept for long, and must not keep a whole chunk alive.
                self.event.id = Some(Bytes::copy_from_slice(&value));
            }
            Some(b"event") => self.event.event = Some(text("event", &value)?.to_owned()),
            Some(b"retry") => {
                if let Some(wait) = milliseconds(&value) {
                    self.retry = Some(wait);
                    self.event.retry = Some(wait);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end_event(&mut self) -> Option<SseEvent> {
        self.used = 0;
        let Building { id, event, data, retry } = std::mem::take(&mut self.event);
        let data = match data {
            Data::Nothing if id.is_none() && retry.is_none() => return None,
            Data::Nothing => Bytes::new(),
            Data::One(line) => line,
            Data::Many(lines) => Bytes::from(lines),
        };
        Some(SseEvent { id, event: event.filter(|name| !name.is_empty()), data, retry })
    }

    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "counts only under test"))]
    fn worked(&mut self, _bytes: usize) {
        #[cfg(test)]
        {
            self.work += _bytes;
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("max_event", &self.max_event)
            .field("used", &self.used)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Data {
    fn push_line(&mut self, line: Bytes) {
        *self = match std::mem::take(self) {
            Self::Nothing => Self::One(line),
            Self::One(first) => {
                let mut lines = Vec::with_capacity(first.len() + 1 + line.len());
                lines.extend_from_slice(&first);
                Self::Many(joined(lines, &line))
            }
            Self::Many(lines) => Self::Many(joined(lines, &line)),
        };
    }
}

fn joined(mut lines: Vec<u8>, line: &[u8]) -> Vec<u8> {
    lines.push(b'\n');
    lines.extend_from_slice(line);
    lines
}

fn text<'a>(field: &'static str, value: &'a [u8]) -> Result<&'a str, SseError> {
    simdutf8::basic::from_utf8(value).map_err(|_| SseError::Utf8 { field })
}

/// Digits only, or nothing; too many of them are a long wait and not an error.
fn milliseconds(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = value
        .iter()
        .fold(0_u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    Some(Duration::from_millis(number).min(MAX_WAIT))
}
