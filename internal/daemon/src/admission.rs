//! How many connections are served at a time, and what the others are told.
//!
//! Without a limit a client that leaks connections takes the last descriptor, and then calls of all clients fail as if
//! their upstreams could not be reached.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evermux_core::failure::{Failure, Kind};
use evermux_core::names::UpstreamName;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use mcp_wire::Message;
use nix::sys::resource::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::downstream::{Reply, plain};

/// Each stdio client holds two or three.
const MOST: usize = 4096;
/// Told why at a time; more are closed without a word.
const MOST_TOLD: usize = 16;
const TELLING: Duration = Duration::from_secs(5);
/// To answer a message under its id it has to be read; of a larger one the id is not looked for.
const LARGEST_READ: usize = 1024 * 1024;

/// Who gets in.
pub(crate) struct Admission {
    served: Arc<Semaphore>,
    told: Arc<Semaphore>,
}

/// What becomes of a connection. The permits are held for as long as it lasts.
pub(crate) enum Admitted {
    Served(OwnedSemaphorePermit),
    Told(OwnedSemaphorePermit),
    Closed,
}

impl Admission {
    /// The limit leaves at least half of the process's descriptors for upstreams and files.
    pub(crate) fn new() -> Self {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let most = usize::try_from(descriptors / 2).unwrap_or(MOST).clamp(1, MOST);
        Self { served: Arc::new(Semaphore::new(most)), told: Arc::new(Semaphore::new(MOST_TOLD)) }
    }

    pub(crate) fn admit(&self) -> Admitted {
        let permit = |from: &Arc<Semaphore>| Arc::clone(from).try_acquire_owned();
        match permit(&self.served).map_err(|_| permit(&self.told)) {
            Ok(permit) => Admitted::Served(permit),
            Err(Ok(permit)) => Admitted::Told(permit),
            Err(Err(_)) => Admitted::Closed,
        }
    }
}

/// Answers one request with 503.
pub(crate) async fn turn_away<S>(stream: S, permit: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(|request| async { Ok::<_, Infallible>(refuse(request).await) });
    let connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    drop(tokio::time::timeout(TELLING, connection).await);
    drop(permit);
}

async fn refuse(request: Request<Incoming>) -> Reply {
    let upstream = UpstreamName::from(request.uri().path().strip_prefix("/mcp/").unwrap_or_default());
    let body = Limited::new(request.into_body(), LARGEST_READ).collect().await;
    let body = body.map_or_else(|_| Bytes::new(), |body| body.to_bytes());
    let id = Message::parse(body).ok().and_then(|message| message.id());
    let text = "too many connections to this daemon are open; close some clients, or send this again later";
    let body = Failure::new(Kind::Overloaded, text).to_error(id.as_ref(), &upstream);
    let mut reply = plain(StatusCode::SERVICE_UNAVAILABLE, body);
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}
