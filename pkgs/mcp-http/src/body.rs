//! The one body type that every sender hands back, whatever carries it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use crate::error::{BodyError, BoxError};

/// A response's body as it comes. Dropping it before its end closes its connection (HTTP/1) or resets its stream
/// (HTTP/2); what that means is for the caller to say: up to 2025-11-25 it is not a cancel.
pub struct RawBody(Source);

enum Source {
    Any(UnsyncBoxBody<Bytes, BodyError>),
    Own(Pin<Box<dyn ReadInto + Send>>),
}

/// A body that can be read to where its bytes shall lie: a large one is not copied together then.
pub(crate) trait ReadInto: HttpBody<Data = Bytes, Error = BodyError> {
    /// Reads some of a body of known length to the end of `into`, which has room for all that is left. An error once nothing
    /// is.
    fn poll_into(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<Result<(), BodyError>>;
}

/// The body of an [`Incoming`](crate::Incoming).
pub type Body = RawBody;

impl RawBody {
    /// Wraps a body as it comes from the connection: each of its errors means "cut".
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::decoded(body.map_err(|error| BodyError::Cut { source: error.into() }))
    }

    /// A body of one of our own connections.
    pub(crate) fn own<B: ReadInto + Send + 'static>(body: B) -> Self {
        Self(Source::Own(Box::pin(body)))
    }

    /// Wraps a layer above one, whose errors say more than "cut".
    pub(crate) fn decoded<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes, Error = BodyError> + Send + 'static,
    {
        Self(Source::Any(body.boxed_unsync()))
    }

    /// The whole of it, of which so many bytes are left; `Err` gives it back if it is not one of our own. Those are hyper's to
    /// end: one that is dropped behind its last byte and before its end resets its stream (HTTP/2).
    pub(crate) async fn in_one_buffer(self, length: usize) -> Result<Result<Bytes, BodyError>, Self> {
        let Source::Own(mut body) = self.0 else { return Err(self) };
        let mut whole = BytesMut::with_capacity(length);
        while whole.len() < length {
            if let Err(error) = poll_fn(|context| body.as_mut().poll_into(context, &mut whole)).await {
                return Ok(Err(error));
            }
        }
        Ok(Ok(whole.freeze()))
    }
}

impl HttpBody for RawBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Source::Any(body) => Pin::new(body).poll_frame(context),
            Source::Own(body) => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Any(body) => body.is_end_stream(),
            Source::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Any(body) => body.size_hint(),
            Source::Own(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for RawBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawBody").finish_non_exhaustive()
    }
}
