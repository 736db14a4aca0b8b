//! One endpoint, any number of requests to it.

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use http::Uri;
use http::header::HeaderValue;

use crate::body::RawBody;
use crate::error::SendError;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;

/// Something that carries one HTTP request and brings its response's head.
///
/// It must not send a request a second time if any byte of it may have been written, must not follow redirects (but for
/// [`Redirecting`](crate::Redirecting)), and
/// must not wait for the body. There is no time limit on an answer: the caller drops the future, which closes the
/// connection (HTTP/1) or resets the stream (HTTP/2).
pub trait Sender: Clone + Send + Sync + 'static {
    /// Sends a request.
    fn send(
        &self,
        request: &http::Request<Bytes>,
    ) -> impl Future<Output = Result<http::Response<RawBody>, SendError>> + Send;
}

/// A client of one endpoint. It holds no session: that is an argument of each request, so a stored one is used like
/// a fresh one, and losing the client loses nothing.
#[derive(Clone)]
pub struct Client<S> {
    sender: S,
    url: Uri,
    user_agent: Option<HeaderValue>,
}

impl<S: Sender> Client<S> {
    /// A client of the endpoint at `url` (for a unix socket `http://localhost/` and a path).
    pub fn new(sender: S, url: Uri) -> Self {
        Self { sender, url, user_agent: None }
    }

    /// Sets the `User-Agent` of requests that do not bring their own. Without it none is sent.
    #[must_use]
    pub fn with_user_agent(mut self, user_agent: HeaderValue) -> Self {
        self.user_agent = Some(user_agent);
        self
    }

    /// Sends one request, at most once, and waits for the head of its response. Any status is a response and not an
    /// error.
    ///
    /// # Errors
    /// If no head came. [`SendError::written`] says whether the request may have had an effect.
    pub fn send(&self, out: Outgoing) -> impl Future<Output = Result<Incoming, SendError>> + Send + use<S> {
        let request = out.into_request(&self.url, self.user_agent.as_ref());
        let sender = self.sender.clone();
        async move { sender.send(&request).await.map(Incoming::new) }
    }
}

impl<S> fmt::Debug for Client<S> {
    /// Without the URL, whose query may hold a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
