//! One exchange of HTTP/1.1 from the client's side, without IO: a request as bytes, and the parts of its response.
//!
//! It exists because a shim is one small process of many: what its calls cost is the code that they touch with cold
//! caches, and hyper's connection brings a task, two channels and a general writer to each (decision 0028). The
//! grammar is httparse's, as it is hyper's; the framing is RFC 9112 section 6.3. What is only odd makes the connection
//! unfit for another request, and what is wrong is an error: no response is guessed at.

use std::fmt;
use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::response::Parts;
use http::{Request, Response, StatusCode, Version};
use httparse::{ParserConfig, Status};

/// The largest head taken, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// The most headers of one head.
const MAX_HEADERS: usize = 100;
/// Room for the usual head of a request and a small body, in bytes. glibc keeps pieces of up to about a KiB at hand; for a larger
/// one, and where it has none at hand from that size on, it joins and looks through all that is free.
const USUAL_REQUEST: usize = 896;
/// The longest line before a chunk, and the longest trailer, in bytes.
const MAX_LINE: usize = 4 << 10;

/// What came is not HTTP/1.1, or more of it than is taken. The peer's fault; nothing after it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The head breaks the grammar, or is not of HTTP/1.
    #[error("the response's head is not HTTP/1.1")]
    Head,
    /// There is more of it than is taken.
    #[error("the response's head has more than {MAX_HEAD} bytes or {MAX_HEADERS} headers")]
    HeadTooLarge,
    /// `Content-Length` is not one number.
    #[error("the response's length is not one number")]
    Length,
    /// The chunked coding is broken (RFC 9112 section 7.1).
    #[error("the response's chunks are not as HTTP/1.1 has them")]
    Chunk,
}

/// What came of a response.
pub enum Part {
    /// Its head; the first part, once.
    Head(Parts),
    /// Some of its body, never empty.
    Data(Bytes),
    /// It is whole.
    End,
}

impl fmt::Debug for Part {
    /// Values of headers and bodies are the server's secrets or the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(parts) => write!(f, "Head({})", parts.status),
            Self::Data(data) => write!(f, "Data({} bytes)", data.len()),
            Self::End => f.write_str("End"),
        }
    }
}

/// Reads one response. It is not the answer to `HEAD` or `CONNECT`, which nobody sends here.
pub struct Reader {
    /// What came and is not a part yet.
    pending: Bytes,
    state: State,
    /// Nothing was said against another request on the connection.
    persistent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    /// So many bytes of the body are to come.
    Length(u64),
    ChunkLine,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// The connection's end is the body's.
    UntilClose,
    Over,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.pending.len();
        f.debug_struct("Reader")
            .field("pending", &pending)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self { pending: Bytes::new(), state: State::Head, persistent: true }
    }
}

impl Reader {
    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: Bytes) {
        if self.pending.is_empty() {
            self.pending = bytes;
        } else {
            // A piece of a head or of a line: all else leaves at once.
            let mut joined = BytesMut::with_capacity(self.pending.len() + bytes.len());
            joined.extend_from_slice(&self.pending);
            joined.extend_from_slice(&bytes);
            self.pending = joined.freeze();
        }
    }

    /// The next part that is there; `None` if more has to come. After the end it is always `None`.
    ///
    /// # Errors
    /// If what came is not HTTP; the connection is of no use then.
    pub fn next_part(&mut self) -> Result<Option<Part>, Malformed> {
        loop {
            match self.state {
                State::Head => match self.head()? {
                    // An interim response (RFC 9110 section 15.2), and the real one is to come.
                    Some(parts) if parts.status.is_informational() => {}
                    Some(parts) => return Ok(Some(Part::Head(parts))),
                    None => return Ok(None),
                },
                State::Over => return Ok(None),
                State::Length(0) => {
                    self.state = State::Over;
                    return Ok(Some(Part::End));
                }
                _ if self.pending.is_empty() => return Ok(None),
                State::Length(left) => return Ok(Some(self.data(left, State::Length))),
                State::Chunk(left) => return Ok(Some(self.data(left, State::Chunk))),
                State::UntilClose => return Ok(Some(Part::Data(std::mem::take(&mut self.pending)))),
                State::ChunkLine | State::ChunkEnd | State::Trailers => {
                    if !self.between_chunks()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The connection ended. True if that is the end of a whole response.
    pub fn finish(&mut self) -> bool {
        self.persistent = false;
        matches!(std::mem::replace(&mut self.state, State::Over), State::UntilClose | State::Over)
    }

    /// Goes to the end, if bytes that have come are all that is left; true at the end.
    pub fn end_if_here(&mut self) -> bool {
        let framing = |state| matches!(state, State::ChunkLine | State::ChunkEnd | State::Trailers);
        // What is wrong is told by `next_part`, which comes to the same place.
        while framing(self.state) && matches!(self.between_chunks(), Ok(true)) {}
        if self.state == State::Length(0) {
            self.state = State::Over;
        }
        self.state == State::Over
    }

    /// After the end: whether the connection may carry another request. Not if there is more than was asked for: whose answer
    /// that would be taken for is not to be found out.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.state == State::Over && self.persistent && self.pending.is_empty()
    }

    /// Bytes of the body that are known to come.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Over => Some(0),
            _ => None,
        }
    }

    /// There is something that is no part yet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// So many bytes of a body of known length went another way.
    pub(crate) fn skip(&mut self, length: usize) {
        if let State::Length(left) = &mut self.state {
            *left = left.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
        }
    }

    fn data(&mut self, left: u64, state: impl Fn(u64) -> State) -> Part {
        let here = u64::try_from(self.pending.len()).unwrap_or(u64::MAX);
        let data = match usize::try_from(left) {
            Ok(length) if left < here => self.pending.split_to(length),
            _ => std::mem::take(&mut self.pending),
        };
        self.state = match left.saturating_sub(here) {
            0 if matches!(self.state, State::Chunk(_)) => State::ChunkEnd,
            left => state(left),
        };
        Part::Data(data)
    }

    /// Lines of the chunked coding; false if more has to come.
    fn between_chunks(&mut self) -> Result<bool, Malformed> {
        let length = match self.state {
            // httparse takes a line without a number for the last chunk, which would end a body in its middle.
            State::ChunkLine if self.pending.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) => {
                return Err(Malformed::Chunk);
            }
            State::ChunkLine => match httparse::parse_chunk_size(&self.pending) {
                Ok(Status::Complete((length, 0))) => {
                    self.state = State::Trailers;
                    length
                }
                Ok(Status::Complete((length, size))) => {
                    self.state = State::Chunk(size);
                    length
                }
                Ok(Status::Partial) if self.pending.len() <= MAX_LINE => return Ok(false),
                Ok(Status::Partial) | Err(_) => return Err(Malformed::Chunk),
            },
            State::ChunkEnd => match &*self.pending {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkLine;
                    2
                }
                [] | [b'\r'] => return Ok(false),
                _ => return Err(Malformed::Chunk),
            },
            _ => match memchr::memchr(b'\n', &self.pending) {
                Some(at) => {
                    let line = self.pending.get(..at).unwrap_or_default();
                    if matches!(line, b"" | b"\r") {
                        // The same end as that of a counted body.
                        self.state = State::Length(0);
                    }
                    at + 1
                }
                None if self.pending.len() <= MAX_LINE => return Ok(false),
                None => return Err(Malformed::Chunk),
            },
        };
        self.pending.advance(length);
        Ok(true)
    }

    /// The head, if it is whole; what follows it is known then.
    fn head(&mut self) -> Result<Option<Parts>, Malformed> {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let parsed = ParserConfig::default().parse_response_with_uninit_headers(
            &mut response,
            &self.pending,
            &mut headers,
        );
        let length = match parsed {
            Ok(Status::Complete(length)) if length <= MAX_HEAD => length,
            Ok(Status::Partial) if self.pending.len() <= MAX_HEAD => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Malformed::HeadTooLarge),
            Err(_) => return Err(Malformed::Head),
        };
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status =
            response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Malformed::Head)?;
        parts.version = if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
        parts.headers.reserve(response.headers.len());
        for header in &*response.headers {
            let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| Malformed::Head)?;
            let value = HeaderValue::from_maybe_shared(self.pending.slice_ref(header.value));
            parts.headers.append(name, value.map_err(|_| Malformed::Head)?);
        }
        self.pending.advance(length);
        if !parts.status.is_informational() {
            self.frame(&parts)?;
        } else if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Malformed::Head);
        }
        Ok(Some(parts))
    }

    /// How the body ends (RFC 9112 section 6.3), and whether the connection outlives it (section 9.3).
    fn frame(&mut self, parts: &Parts) -> Result<(), Malformed> {
        let headers = &parts.headers;
        self.persistent = parts.version == Version::HTTP_11 && !says(headers, header::CONNECTION, "close");
        if matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            self.state = State::Length(0);
            return Ok(());
        }
        let length = length(headers)?;
        self.state = match (headers.get_all(header::TRANSFER_ENCODING).iter().next_back(), length) {
            (Some(coding), length) => {
                // Two ends that may differ: the way that one response is smuggled into another.
                self.persistent &= length.is_none();
                let chunked = coding.as_bytes().rsplit(|byte| *byte == b',').next().unwrap_or_default();
                if chunked.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    State::ChunkLine
                } else {
                    State::UntilClose
                }
            }
            (None, Some(length)) => State::Length(length),
            (None, None) => State::UntilClose,
        };
        Ok(())
    }
}

/// `Content-Length`, which may come more than once if it is the same (RFC 9110 section 8.6).
fn length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut found = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for text in value.as_bytes().split(|byte| *byte == b',') {
            let text = str::from_utf8(text.trim_ascii()).map_err(|_| Malformed::Length)?;
            // A sign is a number to Rust and none to HTTP.
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| digits).ok_or(Malformed::Length)?;
            if found.replace(number).is_some_and(|before| before != number) {
                return Err(Malformed::Length);
            }
        }
    }
    Ok(found)
}

/// Whether one of the header's tokens is this one.
fn says(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        let mut tokens = value.as_bytes().split(|byte| *byte == b',');
        tokens.any(|said| said.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    })
}

/// A request's head as it goes out. No `Debug`: it holds credentials.
pub struct Head(BytesMut);

impl Head {
    /// The request line. The method and the path are as they must be.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        let mut head = Self(BytesMut::with_capacity(USUAL_REQUEST));
        // `*`, and a URL that begins with its query, have no slash of their own.
        let slash = if path.starts_with('/') { "" } else { "/" };
        head.extend([method, " ", slash, path, " HTTP/1.1\r\n"].map(str::as_bytes));
        head
    }

    /// That of a request; `Host` is `localhost` unless its URL or headers name another. Headers of framing are the caller's
    /// fault, and are not looked for.
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Self {
        let (uri, headers) = (request.uri(), request.headers());
        let mut head =
            Self::new(request.method().as_str(), uri.path_and_query().map_or("/", |path| path.as_str()));
        if !headers.contains_key(header::HOST) {
            let host = uri.authority().map_or("localhost", |authority| authority.as_str());
            let host =
                memchr::memrchr(b'@', host.as_bytes()).and_then(|at| host.get(at + 1..)).unwrap_or(host);
            // A server that knows itself by name only would take the port that is meant anyway for a stranger's.
            head.put("host", host.strip_suffix(":80").unwrap_or(host));
        }
        for (name, value) in headers {
            // It is one by its type.
            head.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        head
    }

    /// A header; one whose value cannot be one is left out (RFC 9110 section 5.5).
    pub fn put(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        if value.iter().all(|byte| (*byte >= b' ' && *byte != 0x7F) || *byte == b'\t') {
            self.extend([name.as_bytes(), b": ", value, b"\r\n"]);
        }
    }

    fn extend<const N: usize>(&mut self, parts: [&[u8]; N]) {
        parts.iter().for_each(|part| self.0.extend_from_slice(part));
    }

    /// The whole head of a request with so long a body. Without its length a server takes a body for none.
    pub(crate) fn end(mut self, body_length: usize) -> BytesMut {
        if body_length > 0 || self.0.starts_with(b"POST ") {
            self.put("content-length", itoa::Buffer::new().format(body_length));
        }
        self.0.extend_from_slice(b"\r\n");
        self.0
    }
}

#[cfg(test)]
mod tests;
