//! The one body type that every sender hands back, whatever carries it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use crate::error::{BodyError, BoxError};

/// A response's body as it comes. Dropping it before its end closes its connection (HTTP/1) or resets its stream
/// (HTTP/2); what that means is for the caller to say: up to 2025-11-25 it is not a cancel.
pub struct RawBody(UnsyncBoxBody<Bytes, BodyError>);

/// The body of an [`Incoming`](crate::Incoming).
pub type Body = RawBody;

impl RawBody {
    /// Wraps a body as it comes from the connection: each of its errors means "cut".
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(body.map_err(|error| BodyError::Cut { source: error.into() }).boxed_unsync())
    }

    /// Wraps a layer above one, whose errors say more than "cut".
    pub(crate) fn decoded<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes, Error = BodyError> + Send + 'static,
    {
        Self(body.boxed_unsync())
    }
}

impl HttpBody for RawBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl fmt::Debug for RawBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawBody").finish_non_exhaustive()
    }
}
