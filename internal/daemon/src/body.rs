//! A response towards a client: the reactor's end (`Sink`) and the reading end (`Events`), which `events.rs` makes a
//! body of.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use evermux_core::input::{Input, StreamId};
use evermux_core::names::Generation;
use http::Response;
use mcp_wire::Segments;
use tokio::sync::oneshot;

use crate::inbox::{Inbox, Told};
use crate::queue::{self, End, queue};
use crate::relay::PassedBody;

/// An event up to this size is copied into one buffer; a larger one goes out as the slices it came in.
const COPY_UP_TO: usize = 16 * 1024;

/// What a client may leave unread, in bytes (`[limits]`). Beyond it the response is ended once the client has read so
/// far; its client comes back for the rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queues {
    /// Of an answer.
    pub(crate) response: usize,
    /// Of a GET stream.
    pub(crate) stream: usize,
}

/// A priming event behind its id: how long a client whose stream broke is asked to wait before it comes back (SSE `retry`, in
/// ms; a daemon that was killed serves again by then), and no data.
const BEHIND_ID: &str = "\nretry: 1000\ndata: \n\n";

/// How a response begins.
pub(crate) enum Head {
    /// 200 with events.
    Events { link: Option<String>, body: Events },
    /// 202.
    Accepted,
    /// An error status with a JSON-RPC error.
    Refused { status: u16, body: Bytes },
    /// What another process answered.
    Passed(Box<Response<PassedBody>>),
    /// 421: nothing was done about it, because it is none of this process's.
    NotMine(Generation),
    /// None: the request may have reached another process, which may have acted on it.
    Broken,
}

/// The reactor's end of a response.
///
/// The head of an event stream is held back until there is an event to go out with it, or [`Sink::release`] says that
/// its client has waited long enough: a head by itself costs a write here and a wake-up there, and most answers of a
/// near server are here a moment later.
pub(crate) struct Sink {
    head: Option<oneshot::Sender<Head>>,
    /// The head, until it is released.
    held: Option<Head>,
    events: Option<queue::Writer>,
    most_queued: usize,
    is_answer: bool,
    /// Its head goes out at once.
    prompt: bool,
}

impl Sink {
    /// The response to this, and where its head will appear.
    pub(crate) fn new(input: &Input, queues: Queues) -> (Self, oneshot::Receiver<Head>) {
        let (head, waiting) = oneshot::channel();
        let is_answer = !matches!(input, Input::Listening { .. });
        let most_queued = if is_answer { queues.response } else { queues.stream };
        let (held, events) = (None, None);
        let prompt = !is_answer;
        (Self { head: Some(head), held, events, most_queued, is_answer, prompt }, waiting)
    }

    /// Somebody waits for the head itself.
    pub(crate) fn at_once(mut self) -> Self {
        self.prompt = true;
        self
    }

    /// Begins an event stream, unless it was begun before. `false`: the client is gone.
    pub(crate) fn accept(&mut self, stream: StreamId, link: Option<String>, inbox: &Inbox) -> bool {
        if let Some(events) = &self.events {
            // Another process was to go on with it, and gave it back.
            return !events.is_closed();
        }
        if self.head.as_ref().is_none_or(oneshot::Sender::is_closed) {
            return false;
        }
        let (events, reader) = queue();
        self.events = Some(events);
        let body = Events { stream, reader, inbox: inbox.clone(), end: None };
        self.held = Some(Head::Events { link, body });
        !self.prompt || self.release()
    }

    /// Lets the head go. `false`: the client is gone.
    pub(crate) fn release(&mut self) -> bool {
        let Some(held) = self.held.take() else { return true };
        self.head.take().is_some_and(|head| head.send(held).is_ok())
    }

    /// Whether a head is held back.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub(crate) fn answer(&mut self, answer: Head) -> bool {
        if self.has_begun() {
            return match answer {
                Head::Refused { body, .. } if !body.is_empty() => self.event(None, &Segments::from(body)),
                _ => false,
            };
        }
        self.head.take().is_some_and(|head| head.send(answer).is_ok())
    }

    /// The client has the head of an event stream, or will have it.
    pub(crate) fn has_begun(&self) -> bool {
        self.events.is_some()
    }

    /// Waits until the client is gone.
    pub(crate) async fn gone(&mut self) {
        match (&mut self.head, &self.events) {
            (Some(head), _) => head.closed().await,
            (None, Some(events)) => events.closed().await,
            (None, None) => {}
        }
    }

    /// Ends the response as a connection that breaks does.
    pub(crate) fn break_off(mut self) {
        self.answer(Head::Broken);
        self.release();
        if let Some(events) = self.events.take() {
            events.break_off();
        }
    }

    /// Queues one event. `false`: it was the last one, because the client is gone or had too much unread before. (In
    /// that order: what the core has sent must not be lost in between.)
    pub(crate) fn event(&mut self, id: Option<&str>, data: &Segments) -> bool {
        let slow = self.events.as_ref().is_some_and(|events| events.unread() > self.most_queued);
        let chunks = encode(id, data);
        // A copy gives the bytes back, and with them the permit that says how much its reader may go on reading.
        let copied = chunks.len() == 1 && !data.is_empty() && self.is_answer;
        let hold = |bytes| match copied {
            true => Bytes::from_owner(Held { bytes, _data: data.clone() }),
            false => bytes,
        };
        chunks.into_iter().map(hold).all(|chunk| self.push(chunk)) && !slow
    }

    /// Sends an id to come back with, together with the head. `false`: the client is gone.
    pub(crate) fn prime(&self, id: &str) -> bool {
        self.queue(Bytes::from(["id: ", id, BEHIND_ID].concat()))
    }

    pub(crate) fn push(&mut self, chunk: Bytes) -> bool {
        self.queue(chunk) && self.release()
    }

    fn queue(&self, chunk: Bytes) -> bool {
        self.events.as_ref().is_some_and(|events| events.push(chunk))
    }
}

impl Drop for Sink {
    /// A response that ends has begun.
    fn drop(&mut self) {
        self.release();
    }
}

/// An event, and the bytes it was copied from.
struct Held {
    bytes: Bytes,
    _data: Segments,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The first line of a `text/event-stream` event with a message, without copying a large one.
pub(crate) fn encode(id: Option<&str>, data: &Segments) -> VecDeque<Bytes> {
    let mut head = BytesMut::with_capacity(data.len().min(COPY_UP_TO) + id.map_or(0, str::len) + 32);
    if let Some(id) = id {
        head.extend_from_slice(b"id: ");
        head.extend_from_slice(id.as_bytes());
        head.extend_from_slice(b"\n");
    }
    // A message may hold raw line ends as insignificant white space; in this framing they would end the line.
    if data.has_line_ends() {
        head.extend_from_slice(b"data: ");
        head.extend_from_slice(&mcp_wire::to_line(data));
        head.extend_from_slice(b"\n");
        return VecDeque::from([head.freeze()]);
    }
    head.extend_from_slice(b"data: ");
    if data.len() <= COPY_UP_TO {
        data.iter().for_each(|part| head.extend_from_slice(part));
        head.extend_from_slice(b"\n\n");
        return VecDeque::from([head.freeze()]);
    }
    let mut chunks = VecDeque::from([head.freeze()]);
    chunks.extend(data.iter().cloned());
    chunks.push_back(Bytes::from_static(b"\n\n"));
    chunks
}

/// The reading end of a response. Dropped before its end, it tells the reactor that the client is away.
pub(crate) struct Events {
    stream: StreamId,
    reader: queue::Reader,
    inbox: Inbox,
    /// Once it was read so far.
    end: Option<End>,
}

impl Events {
    /// The next piece of an event; the last piece of each ends with an empty line.
    pub(crate) fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        self.reader.poll_next(cx).map(|next| match next {
            Ok(chunk) => Some(chunk),
            Err(end) => {
                self.end = Some(end);
                None
            }
        })
    }

    /// After the last chunk: there should have been more.
    pub(crate) fn is_broken(&self) -> bool {
        self.end == Some(End::Broken)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.inbox.tell(Told::Fact(Input::StreamClosed(self.stream)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(id: Option<&str>, data: &Segments) -> String {
        let all: Vec<u8> = encode(id, data).into_iter().flat_map(|chunk| chunk.to_vec()).collect();
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn an_event_is_one_data_line() {
        let data = Segments::from(Bytes::from_static(b"{\"a\":1}"));
        assert_eq!(text(Some("x"), &data), "id: x\ndata: {\"a\":1}\n\n");
        assert_eq!(text(None, &Segments::default()), "data: \n\n");
    }

    #[test]
    fn raw_line_ends_do_not_break_the_framing() {
        let data = Segments::from(Bytes::from_static(b"{\r\n\"a\":\n1}"));
        assert_eq!(text(None, &data), "data: {  \"a\": 1}\n\n");
    }

    #[test]
    fn a_large_event_is_not_copied() {
        let large = Bytes::from(vec![b'x'; COPY_UP_TO + 1]);
        let chunks = encode(None, &Segments::from(large.clone()));
        assert!(chunks.iter().any(|chunk| chunk.as_ptr() == large.as_ptr()));
    }
}
