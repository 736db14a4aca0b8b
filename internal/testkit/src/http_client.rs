//! A model HTTP client for raw probing: one connection, headers exactly as given, answers exactly as they come.
//!
//! Hand-written and blocking on purpose. A real client library would add headers, retry on a stale connection or hide how a body ended,
//! and these are the things that a test wants to see.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Header fields of every MCP POST.
const MCP_DEFAULTS: [(&str, &str); 2] =
    [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];

/// One connection, kept alive over requests.
#[derive(Debug)]
pub struct HttpClient {
    stream: Stream,
    buffer: Vec<u8>,
    /// How long one read may take before it is an error of kind `TimedOut`.
    pub patience: Duration,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The head of an answer, and the body as far as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpReply {
    /// HTTP status.
    pub status: u16,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    framing: Framing,
    /// Decoded but not yet handed out as events.
    pending: Vec<u8>,
    ended: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Framing {
    #[default]
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

/// One server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `id`, if it had one.
    pub id: Option<String>,
    /// `event`, if it had one.
    pub event: Option<String>,
    /// `retry`, in milliseconds.
    pub retry: Option<u64>,
    /// `data` lines, joined; empty for a priming event.
    pub data: String,
}

impl HttpReply {
    /// The first value of a header field; `name` in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl HttpClient {
    /// Connects over TCP.
    ///
    /// # Errors
    /// The connection is refused or takes too long.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, crate::wait::PATIENCE)?;
        stream.set_nodelay(true)?;
        Ok(Self::over(Stream::Tcp(stream)))
    }

    /// Connects to a unix socket.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn unix(path: &Path) -> io::Result<Self> {
        Ok(Self::over(Stream::Unix(UnixStream::connect(path)?)))
    }

    const fn over(stream: Stream) -> Self {
        Self { stream, buffer: Vec::new(), patience: crate::wait::PATIENCE }
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }

    /// Sends one request with these header fields and no other than `host` and `content-length`.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send(&mut self, verb: &str, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<()> {
        let mut head = format!("{verb} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("host: localhost\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || verb == "POST" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head.push_str(body);
        self.write_raw(head.as_bytes())
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// As [`read_head`](Self::read_head) and [`read_body`](Self::read_body).
    pub fn exchange(
        &mut self,
        verb: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<HttpReply> {
        self.send(verb, path, headers, body)?;
        let mut reply = self.read_head()?;
        self.read_body(&mut reply)?;
        Ok(reply)
    }

    /// POSTs an MCP message with `accept`, `content-type` and these header fields, and reads the whole answer.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub fn post_mcp(&mut self, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<HttpReply> {
        let headers: Vec<_> = MCP_DEFAULTS.iter().chain(headers).copied().collect();
        self.exchange("POST", path, &headers, body)
    }

    /// POSTs an MCP message and reads only the head.
    ///
    /// # Errors
    /// As [`read_head`](Self::read_head).
    pub fn open_mcp(&mut self, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<HttpReply> {
        let headers: Vec<_> = MCP_DEFAULTS.iter().chain(headers).copied().collect();
        self.send("POST", path, &headers, body)?;
        self.read_head()
    }

    /// Opens an event stream by GET and reads only the head.
    ///
    /// # Errors
    /// As [`read_head`](Self::read_head).
    pub fn open_stream(&mut self, path: &str, headers: &[(&str, &str)]) -> io::Result<HttpReply> {
        let headers: Vec<_> = [("accept", "text/event-stream")].iter().chain(headers).copied().collect();
        self.send("GET", path, &headers, "")?;
        self.read_head()
    }

    /// Reads the head of an answer.
    ///
    /// # Errors
    /// `UnexpectedEof` if the peer closed without one; `TimedOut` after [`patience`](Self::patience); what the socket says, a reset for one.
    pub fn read_head(&mut self) -> io::Result<HttpReply> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        parse_head(&String::from_utf8_lossy(&head))
    }

    /// Reads the rest of the body.
    ///
    /// # Errors
    /// `UnexpectedEof` if the connection ended before the body did.
    pub fn read_body(&mut self, reply: &mut HttpReply) -> io::Result<()> {
        while self.more(reply)? {}
        Ok(())
    }

    /// The next event of a stream; `None` at its orderly end.
    ///
    /// # Errors
    /// As [`read_body`](Self::read_body).
    pub fn next_event(&mut self, reply: &mut HttpReply) -> io::Result<Option<SseEvent>> {
        loop {
            if let Some(event) = take_event(&mut reply.pending) {
                return Ok(Some(event));
            }
            if !self.more(reply)? {
                return Ok(None);
            }
        }
    }

    /// All events until the orderly end.
    ///
    /// # Errors
    /// As [`read_body`](Self::read_body).
    pub fn all_events(&mut self, reply: &mut HttpReply) -> io::Result<Vec<SseEvent>> {
        let mut events = Vec::new();
        while let Some(event) = self.next_event(reply)? {
            events.push(event);
        }
        Ok(events)
    }

    /// Reads one more piece into the reply's body, comments of an event stream too; false when there is no more.
    ///
    /// # Errors
    /// As [`read_body`](Self::read_body).
    pub fn read_piece(&mut self, reply: &mut HttpReply) -> io::Result<bool> {
        self.more(reply)
    }

    /// Decodes one piece of body; false when there is no more.
    fn more(&mut self, reply: &mut HttpReply) -> io::Result<bool> {
        if reply.ended {
            return Ok(false);
        }
        let piece = match reply.framing {
            Framing::None => None,
            Framing::Length(length) if reply.body.len() >= length => None,
            Framing::Length(length) => Some(self.some(length - reply.body.len())?),
            Framing::Chunked => self.chunk()?,
            Framing::UntilClose => {
                if self.buffer.is_empty() && self.fill()? == 0 {
                    None
                } else {
                    Some(std::mem::take(&mut self.buffer))
                }
            }
        };
        let Some(piece) = piece else {
            reply.ended = true;
            return Ok(false);
        };
        reply.body.extend_from_slice(&piece);
        reply.pending.extend_from_slice(&piece);
        Ok(true)
    }

    fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line_end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                break end;
            }
            self.need()?;
        };
        let line: Vec<u8> = self.buffer.drain(..line_end + 2).collect();
        let text = String::from_utf8_lossy(&line);
        let size = text.trim().split(';').next().unwrap_or_default();
        let size =
            usize::from_str_radix(size, 16).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        while self.buffer.len() < size + 2 {
            self.need()?;
        }
        let piece: Vec<u8> = self.buffer.drain(..size).collect();
        self.buffer.drain(..2);
        Ok((size > 0).then_some(piece))
    }

    fn some(&mut self, at_most: usize) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.need()?;
        }
        let size = self.buffer.len().min(at_most);
        Ok(self.buffer.drain(..size).collect())
    }

    fn need(&mut self) -> io::Result<()> {
        if self.fill()? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Reads what there is; 0 at the end.
    fn fill(&mut self) -> io::Result<usize> {
        let deadline = Instant::now() + self.patience;
        let mut piece = [0; 16 * 1024];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let read = match &mut self.stream {
                Stream::Tcp(stream) => {
                    stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut piece))
                }
                Stream::Unix(stream) => {
                    stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut piece))
                }
            };
            match read {
                Ok(size) => {
                    self.buffer.extend_from_slice(&piece[..size]);
                    return Ok(size);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn parse_head(head: &str) -> io::Result<HttpReply> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(invalid)?;
    let mut reply = HttpReply { status, ..HttpReply::default() };
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(invalid)?;
        reply.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = reply.header("content-length").and_then(|length| length.parse().ok());
    reply.framing = if matches!(status, 204 | 304) {
        Framing::None
    } else if reply.header("transfer-encoding").is_some() {
        Framing::Chunked
    } else {
        length.map_or(Framing::UntilClose, Framing::Length)
    };
    Ok(reply)
}

/// Takes one whole event off the front. Line ends may be `\n` or `\r\n`; comments alone give nothing.
fn take_event(bytes: &mut Vec<u8>) -> Option<SseEvent> {
    loop {
        let end = [find(bytes, b"\n\n").map(|at| at + 2), find(bytes, b"\r\n\r\n").map(|at| at + 4)];
        let end = end.into_iter().flatten().min()?;
        let block: Vec<u8> = bytes.drain(..end).collect();
        let text = String::from_utf8_lossy(&block);
        let mut event = SseEvent::default();
        let mut data = Vec::new();
        let mut fields = 0;
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with(':')) {
            fields += 1;
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => event.id = Some(value.to_owned()),
                "event" => event.event = Some(value.to_owned()),
                "retry" => event.retry = value.parse().ok(),
                "data" => data.push(value),
                _ => {}
            }
        }
        if fields > 0 {
            event.data = data.join("\n");
            return Some(event);
        }
    }
}
