//! A minimal pool of HTTP/1.1 connections to the upstream, for the limits.
//!
//! `hyper_util`'s own client would do, but it adds what a limit should not pay for (per-host maps, background tasks,
//! retries). A connection goes back when its answer was read to the end, and the last one used is taken first.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Connections to one upstream.
pub(crate) struct Pool<B> {
    authority: String,
    host: HeaderValue,
    path: Uri,
    idle: Mutex<Vec<SendRequest<B>>>,
}

/// An answer's body; gives its connection back at the end.
pub(crate) struct PooledBody<B> {
    body: Incoming,
    sender: Option<SendRequest<B>>,
    pool: Arc<Pool<B>>,
}

impl<B> Pool<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// A pool for the endpoint `url` (`http://host:port/path`).
    pub(crate) fn new(url: &str) -> Result<Arc<Self>> {
        let url: Uri = url.parse().context("the upstream's URL")?;
        let authority = url.authority().context("the upstream's URL has no host")?.to_string();
        let path: Uri = url.path().parse()?;
        Ok(Arc::new(Self { host: authority.parse()?, authority, path, idle: Mutex::new(Vec::new()) }))
    }

    /// Sends a request to the endpoint; its URI and `Host` are set here.
    pub(crate) async fn send(self: &Arc<Self>, mut request: Request<B>) -> Result<Response<PooledBody<B>>> {
        *request.uri_mut() = self.path.clone();
        request.headers_mut().insert(HOST, self.host.clone());
        let mut sender = self.connection().await?;
        let response = sender.send_request(request).await?;
        let pool = Arc::clone(self);
        Ok(response.map(|body| PooledBody { body, sender: Some(sender), pool }))
    }

    async fn connection(&self) -> Result<SendRequest<B>> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut sender) = idle else { break };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let stream = TcpStream::connect(&self.authority).await.context("cannot reach the upstream")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Its failure shows at the request that is on it.
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl<B> PooledBody<B> {
    fn give_back(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        }
    }
}

impl<B> Body for PooledBody<B> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() {
            self.give_back();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for PooledBody<B> {
    fn drop(&mut self) {
        // A body of known length is dropped without being polled for its end.
        if self.body.is_end_stream() {
            self.give_back();
        }
    }
}
