//! A message on its way to the daemon and back, and the standalone stream: what they bring, as facts for the machine.
//!
//! No decisions here: a fact is told for everything that happens, and the machine says what it means. Whoever drives an
//! exchange stops when stdout is not read; the rest waits in the socket.

use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use mcp_http::exchange::{Exchange, Message};
use mcp_http::h1::{self, Part};
use mcp_http::sse::{Decoder, SseEvent};
use mcp_http::{Content, Head, LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};

use super::envelope;
use super::facts::{Event, Input, Post};
use super::socket::Socket;

/// The largest event taken, in bytes: an answer may be larger than what a client may send.
const EVENT_CAP: usize = 128 << 20;
/// The largest error body taken, in bytes.
const ERROR_CAP: usize = 1 << 20;

/// What an exchange is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The message of this number.
    Post(u64),
    /// The standalone stream.
    Stream,
}

/// An exchange that is under way.
pub(crate) struct Running {
    pub(crate) of: Of,
    pub(crate) exchange: Exchange<Socket>,
    /// The loop's when it began.
    pub(crate) era: u32,
    /// There may be more to tell.
    pub(crate) is_ready: bool,
    stage: Stage,
}

enum Stage {
    Head,
    Events(Box<Decoder>),
    /// A body that is taken whole: an answer, or that of an error of this status.
    Whole {
        status: Option<u16>,
        body: BytesMut,
    },
    /// All was told but the end.
    Told,
}

/// What comes next of an exchange.
pub(crate) enum Step {
    Fact(Input),
    /// The last one.
    Over(Input),
    /// Nothing before its socket is ready.
    Pending,
}

/// What is told of a request that no connection took.
pub(crate) fn never_sent(of: Of) -> Input {
    match of {
        Of::Post(seq) => Input::Cut { seq },
        Of::Stream => Input::StreamEnded { refused: None, body: Bytes::new() },
    }
}

/// The request that carries a message.
pub(crate) fn post(path: &str, post: &Post) -> Message {
    let mut head = head("POST", path);
    head.put("content-type", "application/json");
    head.put("accept", "application/json, text/event-stream");
    common(&mut head, post.link.as_deref(), post.version.as_deref(), post.last_event.as_deref());
    let mut number = itoa::Buffer::new();
    head.put("evermux-seq", number.format(post.seq));
    head.put("evermux-ack", number.format(post.ack));
    if post.more {
        head.put("evermux-more", "1");
    }
    if let Some(identity) = &post.identity {
        head.put("evermux-identity", identity);
    }
    Message::of(head, &post.body)
}

/// The request for the standalone stream.
pub(crate) fn stream(
    path: &str,
    link: Option<&str>,
    version: Option<&str>,
    last_event: Option<&str>,
) -> Message {
    let mut head = head("GET", path);
    head.put("accept", "text/event-stream");
    common(&mut head, link, version, last_event);
    Message::of(head, &Bytes::new())
}

fn head(method: &str, path: &str) -> h1::Head {
    let mut head = h1::Head::new(method, path);
    head.put("host", "localhost");
    head.put("evermux-shim", "1");
    head
}

fn common(head: &mut h1::Head, link: Option<&str>, version: Option<&str>, last_event: Option<&str>) {
    for (name, value) in [(SESSION_ID, link), (PROTOCOL_VERSION, version), (LAST_EVENT_ID, last_event)] {
        if let Some(value) = value {
            head.put(name.as_str(), value);
        }
    }
}

impl Running {
    pub(crate) fn new(of: Of, socket: Socket, message: Message, era: u32) -> Self {
        Self { of, exchange: Exchange::new(socket, message), era, is_ready: false, stage: Stage::Head }
    }

    /// Sends as much as goes at once; false if the connection takes nothing.
    pub(crate) fn send(&mut self) -> bool {
        self.exchange.send(&mut Context::from_waker(Waker::noop())).is_ok()
    }

    /// The next fact.
    pub(crate) fn step(&mut self) -> Step {
        loop {
            if let Stage::Events(decoder) = &mut self.stage {
                match decoder.next() {
                    Some(Ok(event)) => return Step::Fact(self.event(event)),
                    // The same bytes would come again: a repeat cannot help.
                    Some(Err(error)) => return Step::Over(self.unusable(&error.into())),
                    None => {}
                }
            }
            if matches!(self.stage, Stage::Told) {
                return Step::Over(self.ended());
            }
            let part = match self.exchange.poll_part(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return Step::Pending,
                Poll::Ready(Ok(part)) => part,
                Poll::Ready(Err(_broken)) => return Step::Over(self.cut()),
            };
            let step = match part {
                Part::Head(parts) => self.head(parts),
                Part::Data(data) => self.data(&data),
                Part::End => self.end(),
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    fn head(&mut self, parts: Parts) -> Option<Step> {
        let head = Head::new(parts, self.exchange.left() == Some(0));
        let success = head.status.is_success();
        let whole = |status| Stage::Whole { status, body: BytesMut::new() };
        self.stage = match (&head.content, self.of) {
            (Content::EventStream, _) if success => Stage::Events(Box::new(Decoder::new(EVENT_CAP))),
            (Content::Json, Of::Post(_)) if success => whole(None),
            (_, Of::Post(seq)) if success => {
                // Nothing in it is of use, and it is mostly empty.
                self.exchange.end_if_here();
                return Some(Step::Over(Input::Accepted { seq }));
            }
            _ => whole(Some(head.status.as_u16())),
        };
        let Of::Post(seq) = self.of else { return None };
        if !success {
            return None;
        }
        let session = head.session.as_ref().and_then(|session| session.value().ok());
        let link = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
        Some(Step::Fact(Input::Head { seq, link }))
    }

    fn data(&mut self, data: &Bytes) -> Option<Step> {
        match &mut self.stage {
            Stage::Events(decoder) => decoder.push(data),
            Stage::Whole { status, body } => {
                let cap = if status.is_some() { ERROR_CAP } else { EVENT_CAP };
                if body.len() + data.len() > cap {
                    return Some(Step::Over(match (*status, self.of) {
                        (None, Of::Post(seq)) => Input::Cut { seq },
                        (status, _) => self.refused(status.unwrap_or_default(), Bytes::new()),
                    }));
                }
                body.extend_from_slice(data);
            }
            Stage::Head | Stage::Told => {}
        }
        None
    }

    fn end(&mut self) -> Option<Step> {
        match std::mem::replace(&mut self.stage, Stage::Told) {
            Stage::Events(mut decoder) => {
                decoder.finish();
                None
            }
            Stage::Whole { status: Some(status), body } => {
                Some(Step::Over(self.refused(status, body.freeze())))
            }
            Stage::Whole { status: None, body } => {
                let event = SseEvent { data: body.freeze(), ..SseEvent::default() };
                Some(Step::Fact(self.event(event)))
            }
            Stage::Head | Stage::Told => None,
        }
    }

    fn event(&self, event: SseEvent) -> Input {
        let id = event.id.and_then(|id| String::from_utf8(id.to_vec()).ok());
        let name = event.event.filter(|name| name != "message");
        let event = Event { name, id, data: event.data };
        match self.of {
            Of::Post(seq) => Input::Event { seq, event },
            Of::Stream => Input::StreamEvent(event),
        }
    }

    fn refused(&self, status: u16, body: Bytes) -> Input {
        match self.of {
            Of::Post(seq) => Input::Refused { seq, status, body },
            Of::Stream => Input::StreamEnded { refused: Some(status), body },
        }
    }

    fn unusable(&self, error: &mcp_http::BodyError) -> Input {
        match self.of {
            Of::Post(seq) => Input::Refused { seq, status: 200, body: envelope::unreadable(error) },
            Of::Stream => self.ended(),
        }
    }

    fn cut(&self) -> Input {
        match (self.of, &self.stage) {
            (Of::Post(seq), _) => Input::Cut { seq },
            // The status is all that counts of it.
            (Of::Stream, Stage::Whole { status: Some(status), .. }) => self.refused(*status, Bytes::new()),
            (Of::Stream, _) => self.ended(),
        }
    }

    fn ended(&self) -> Input {
        match self.of {
            Of::Post(seq) => Input::Ended { seq },
            Of::Stream => Input::StreamEnded { refused: None, body: Bytes::new() },
        }
    }
}
