//! The event store and the bodies that follow it.
//!
//! Every answer, whatever its transport, is a list of messages in its session. A body is only a view on that list: it can be cut, dropped
//! and taken up again by GET with `Last-Event-ID`, and the work behind it goes on, as the transport says ("disconnect is not cancel").

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;

use super::state::{Shared, State};

/// The messages of one stream.
#[derive(Debug, Default)]
pub(super) struct StreamLog {
    pub(super) messages: Vec<String>,
    /// Nothing will be added.
    pub(super) done: bool,
    /// Who reads it now. A message goes to one reader only (S12), so a newer one displaces the older.
    pub(super) viewer: Option<u64>,
}

/// How a view ends before its stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyEnd {
    /// The connection breaks, without the end of the chunked body.
    Cut,
    /// The body ends in order.
    Clean,
}

/// One reader of one stream.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) session: String,
    pub(super) stream: u64,
    pub(super) viewer: u64,
    /// First message to send.
    pub(super) from: usize,
    pub(super) event_ids: bool,
    /// Begin with a priming event; a replay does not.
    pub(super) prime: bool,
    pub(super) retry_ms: Option<u64>,
    /// After how many messages of this view, and how.
    pub(super) early_end: Option<(usize, EarlyEnd)>,
    /// Forget the stream when it was sent whole: there is no event store.
    pub(super) discard: bool,
}

/// `STREAM-SEQ`; sequence 0 is the priming event. Unique in a session, and names its stream (S13).
fn event_id(stream: u64, sequence: usize) -> String {
    format!("{stream}-{sequence}")
}

/// The stream and the next message of a `Last-Event-ID`.
pub(super) fn parse_event_id(id: &str) -> Option<(u64, usize)> {
    let (stream, sequence) = id.split_once('-')?;
    Some((stream.parse().ok()?, sequence.parse().ok()?))
}

/// One SSE event. A message may hold line feeds between its tokens; each line is a `data` field of its own.
fn encode(id: Option<&str>, message: &str) -> Bytes {
    let mut text = String::with_capacity(message.len() + 40);
    text.push_str("event: message\n");
    if let Some(id) = id {
        text.push_str("id: ");
        text.push_str(id);
        text.push('\n');
    }
    for line in message.split('\n') {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    Bytes::from(text)
}

/// The priming event: an id to come back with, before anything is known (S8).
fn prime(view: &View) -> Bytes {
    let retry = view.retry_ms.map_or_else(String::new, |ms| format!("retry: {ms}\n"));
    Bytes::from(format!("id: {}\n{retry}data:\n\n", event_id(view.stream, view.from)))
}

enum Step {
    Message(String),
    End,
}

impl View {
    fn next(&self, state: &State, position: usize) -> Option<Step> {
        let Some(log) = state.find(&self.session).and_then(|session| session.streams.get(&self.stream))
        else {
            return Some(Step::End);
        };
        if log.viewer != Some(self.viewer) {
            return Some(Step::End);
        }
        match log.messages.get(position) {
            Some(message) => Some(Step::Message(message.clone())),
            None => log.done.then_some(Step::End),
        }
    }
}

/// Starts a view: the task that follows the stream, and the body that it feeds.
pub(super) fn follow(shared: &Arc<Shared>, view: View) -> ChannelBody {
    let (sender, receiver) = mpsc::channel(1);
    let shared = Arc::clone(shared);
    // Not joined: the runtime of the upstream owns it, and it ends with its body.
    tokio::spawn(async move {
        let sent_whole = pump(&shared, &view, &sender).await;
        shared.update(|state| release(state, &view, sent_whole));
    });
    ChannelBody::new(receiver)
}

/// Gives the stream free for the next reader.
fn release(state: &mut State, view: &View, sent_whole: bool) {
    // In the session-less revision the end of the response is the end of the request (2026-07-28, cancellation).
    state.visits.remove(&view.session);
    state.touch(&view.session);
    let Some(session) = state.session(&view.session) else { return };
    let Some(log) = session.streams.get_mut(&view.stream) else { return };
    if log.viewer == Some(view.viewer) {
        log.viewer = None;
    }
    if log.done && view.discard && sent_whole {
        session.streams.remove(&view.stream);
    }
}

/// Sends until the stream, the reader or the fault ends it; true if everything was sent.
async fn pump(shared: &Shared, view: &View, sender: &mpsc::Sender<io::Result<Bytes>>) -> bool {
    if view.event_ids && view.prime && sender.send(Ok(prime(view))).await.is_err() {
        return false;
    }
    let mut position = view.from;
    loop {
        match view.early_end {
            Some((after, EarlyEnd::Clean)) if position - view.from == after => return false,
            Some((after, EarlyEnd::Cut)) if position - view.from == after => {
                sender.send(Err(io::ErrorKind::ConnectionReset.into())).await.ok();
                return false;
            }
            _ => {}
        }
        let step = tokio::select! {
            step = shared.when(|state| view.next(state, position)) => step,
            () = sender.closed() => return false,
        };
        let Step::Message(message) = step else { return true };
        position += 1;
        let id = view.event_ids.then(|| event_id(view.stream, position));
        if sender.send(Ok(encode(id.as_deref(), &message))).await.is_err() {
            return false;
        }
    }
}

/// A body fed from a channel. An error breaks the connection, but only after what came before it was flushed.
#[derive(Debug)]
pub(super) struct ChannelBody {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    failure: Option<io::Error>,
}

impl ChannelBody {
    pub(super) const fn new(receiver: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { receiver, failure: None }
    }

    /// A body that gives these bytes and then breaks the connection.
    pub(super) fn broken_after(bytes: Bytes) -> Self {
        let (sender, receiver) = mpsc::channel(2);
        if !bytes.is_empty() {
            sender.try_send(Ok(bytes)).expect("the channel has room");
        }
        sender.try_send(Err(io::ErrorKind::ConnectionReset.into())).expect("the channel has room");
        Self::new(receiver)
    }
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        match self.receiver.poll_recv(cx) {
            Poll::Ready(Some(Err(failure))) => {
                // hyper drops what it has buffered when a body fails; being pending once makes it flush first.
                self.failure = Some(failure);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(bytes))) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
