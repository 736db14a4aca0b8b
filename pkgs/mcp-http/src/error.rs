//! Errors that say whose fault it was and whether a repeat is safe.
//!
//! The caller decides about repeats (a tool call that ran twice is worse than one that failed), so the one fact
//! it needs, "did any of it go out", is part of the type and not of a message.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::sse::SseError;

/// Any cause, kept for logs.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// No response head was had for a request.
#[derive(Debug, thiserror::Error)]
#[error("{kind} ({written})")]
pub struct SendError {
    /// What went wrong.
    pub kind: SendErrorKind,
    /// Whether the request may have had an effect.
    pub written: Written,
    /// The cause, if there is one. Holds no URL and no header value.
    #[source]
    pub source: Option<BoxError>,
}

impl SendError {
    /// An error with its cause.
    pub fn new(kind: SendErrorKind, written: Written, source: impl Into<BoxError>) -> Self {
        Self { kind, written, source: Some(source.into()) }
    }
}

/// What went wrong before a response head came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// The request cannot be expressed, for example its URL. The caller's fault.
    Request,
    /// No connection: name not found, refused, no such socket, or a proxy said no.
    Connect,
    /// No connection, because this process or machine has no file descriptor left for one (`EMFILE`, `ENFILE`). Our
    /// own fault, and none of the server's. Always with [`Written::Never`].
    Exhausted,
    /// TLS was not agreed on: certificate, versions. The server's or the configuration's fault.
    Tls,
    /// No connection within the time limit, or the peer stopped acknowledging.
    Timeout,
    /// The connection ended before a head came.
    Closed,
    /// The server said, by HTTP/2, that it has processed nothing of this request (RFC 9113 section 8.7:
    /// `REFUSED_STREAM`, or a GOAWAY with a lower stream). Always with [`Written::Never`].
    Refused,
    /// The server sent the request elsewhere, and it was not followed there. The source is a `RedirectError`.
    Redirect,
    /// What came back is not HTTP, or its head is larger than is taken. The server's fault.
    Protocol,
}

impl BodyError {
    /// There is more of it than is taken: asked again, the server would say the same again.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::Sse(SseError::TooLarge { .. }))
    }
}

impl fmt::Display for SendErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "the request cannot be sent as HTTP",
            Self::Connect => "no connection",
            Self::Exhausted => "no file descriptor is left for another connection",
            Self::Tls => "no agreement on TLS",
            Self::Timeout => "timed out",
            Self::Closed => "the connection closed before an answer",
            Self::Refused => "the server refused the request unprocessed",
            Self::Redirect => "the server redirects the request",
            Self::Protocol => "the answer is not valid HTTP",
        })
    }
}

/// Whether a request may have reached the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Provably no byte of it reached the peer, or the peer itself said that it processed nothing of it
    /// ([`SendErrorKind::Refused`], [`SendErrorKind::Redirect`]). Sending it again is safe.
    Never,
    /// Some or all of it may have arrived and may have had its effect.
    Unknown,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "never sent",
            Self::Unknown => "may have been processed",
        })
    }
}

/// Looks through the causes, and into IO errors, whose `source` skips the error that they carry.
#[cfg(feature = "tcp")]
pub(crate) fn find(error: &(dyn StdError + 'static), is: impl Fn(&(dyn StdError + 'static)) -> bool) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if is(cause) {
            return true;
        }
        next = match cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(carried) => Some(carried),
            None => cause.source(),
        };
    }
    false
}

/// Whether the cause is that no file descriptor was left. Names no crate's constant: both numbers are the same
/// wherever this runs.
pub(crate) fn is_exhausted(cause: &(dyn StdError + 'static)) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    let number = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    matches!(number, Some(ENFILE | EMFILE))
}

/// A response's head came, but its body cannot be had whole. The request was processed at least in part, so a
/// repeat is never safe on this ground alone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The connection was cut in the middle of the body: no proper end came. Distinct from a clean end, after
    /// which a stream of events gives `None`. (A HTTP/1.0 style body that ends with its connection cannot be told
    /// from a whole one; that is a clean end.)
    #[error("the body was cut before its end")]
    Cut {
        /// What the connection said. Holds no URL.
        #[source]
        source: BoxError,
    },
    /// The body is larger than the caller takes.
    #[error("the body is larger than the limit of {cap} bytes")]
    TooLarge {
        /// The limit, in bytes.
        cap: usize,
    },
    /// The body has a `Content-Encoding` that was not asked for and cannot be undone.
    #[error("the body has the content encoding `{coding}`, which was not asked for and cannot be read")]
    Coding {
        /// The coding, made fit for a line of a log.
        coding: String,
    },
    /// The body is compressed, and not as its head says, or without its end.
    #[error("the compressed body is broken")]
    Packed {
        /// What the decoder says.
        #[source]
        source: BoxError,
    },
    /// The body came, but is not a stream of events that can be read on.
    #[error(transparent)]
    Sse(#[from] SseError),
}
