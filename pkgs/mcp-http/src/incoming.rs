//! A response: its head at once, its body whole or as events.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::HeaderMap;
use http_body::Body as HttpBody;
use http_body_util::BodyExt;

use crate::body::{Body, RawBody};
use crate::decode::decoded;
use crate::error::BodyError;
use crate::head::Head;
use crate::sse::{DEFAULT_MAX_EVENT, Decoder, SseEvent};

/// A response whose body has not been read.
#[derive(Debug)]
pub struct Incoming {
    /// What came before the body.
    pub head: Head,
    /// The body, unpacked if it came compressed. A connection can be used again only once its body was read to the end.
    pub body: Body,
}

/// What a stream of events may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventLimits {
    /// The largest event taken, in bytes; see [`Decoder::new`] for what counts.
    pub max_event: usize,
}

impl Default for EventLimits {
    fn default() -> Self {
        Self { max_event: DEFAULT_MAX_EVENT }
    }
}

impl Incoming {
    pub(crate) fn new(response: http::Response<RawBody>) -> Self {
        let (parts, body) = response.into_parts();
        let empty = body.is_end_stream()
            || body.size_hint().exact() == Some(0)
            || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let body = if empty { body } else { decoded(body, &parts.headers) };
        Self { head: Head::new(parts, empty), body }
    }

    /// Reads the body to its end, of at most `cap` bytes. One that came in one piece is not copied, and a large one of known
    /// length over plain HTTP is read into a buffer of its own. The future holds the body alone: what is needed of the head is to be
    /// taken before.
    ///
    /// # Errors
    /// If it is larger than `cap` (found before reading where the head tells its length) or was cut.
    pub fn into_bytes(self, cap: usize) -> impl Future<Output = Result<Bytes, BodyError>> + Send + use<> {
        whole(self.body, cap)
    }

    /// Reads the body as a stream of events. The head is gone then: take what is needed of it before.
    #[must_use]
    pub fn into_events(self, limits: EventLimits) -> EventStream {
        EventStream { body: Some(self.body), decoder: Decoder::new(limits.max_event), last_event_id: None }
    }

    /// The head's headers, for what [`Head`] does not name.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }
}

/// A body of known length that has so many bytes is read into a buffer of its own: what is smaller comes in one read.
const OWN_BUFFER: usize = 8 << 10;

async fn whole(mut body: Body, cap: usize) -> Result<Bytes, BodyError> {
    let hint = body.size_hint();
    let announced = usize::try_from(hint.lower()).unwrap_or(usize::MAX);
    if announced > cap {
        return Err(BodyError::TooLarge { cap });
    }
    if announced >= OWN_BUFFER && hint.exact().is_some() {
        // Boxed: a future takes room for the largest of its ways.
        match Box::pin(body.in_one_buffer(announced)).await {
            Ok(read) => return read,
            Err(back) => body = back,
        }
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let length = first.len().max(rest.len()) + data.len();
        if length > cap {
            return Err(BodyError::TooLarge { cap });
        }
        if length == data.len() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(announced.max(length));
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// The events of one response. Says nothing about whether the stream can be resumed, and does not resume it.
pub struct EventStream {
    body: Option<RawBody>,
    decoder: Decoder,
    last_event_id: Option<Bytes>,
}

impl EventStream {
    /// The next event; `None` at a clean end of the body. All events that came before an error are given first;
    /// after an error it is `None`.
    ///
    /// May be dropped while it waits (in a `select!`, say) without losing anything.
    ///
    /// # Errors
    /// If the body was cut, or an event is not acceptable.
    pub async fn next(&mut self) -> Option<Result<SseEvent, BodyError>> {
        loop {
            match self.decoder.next() {
                Some(Ok(event)) => {
                    if let Some(id) = &event.id {
                        self.last_event_id = Some(id.clone());
                    }
                    return Some(Ok(event));
                }
                Some(Err(error)) => {
                    self.body = None;
                    return Some(Err(error.into()));
                }
                None => {}
            }
            match self.body.as_mut()?.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.decoder.push(data);
                    }
                }
                Some(Err(error)) => {
                    self.end();
                    return Some(Err(error));
                }
                None => {
                    self.end();
                    return None;
                }
            }
        }
    }

    fn end(&mut self) {
        self.body = None;
        self.decoder.finish();
    }

    /// How long to wait before reconnecting, by the last `retry:` line (2025-11-25: the client MUST obey it).
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.decoder.retry()
    }

    /// The id of the last event that had one, priming events included: where to resume. `None` also if the server
    /// took it back by an empty one.
    #[must_use]
    pub fn last_event_id(&self) -> Option<&Bytes> {
        self.last_event_id.as_ref().filter(|id| !id.is_empty())
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("open", &self.body.is_some()).finish_non_exhaustive()
    }
}
