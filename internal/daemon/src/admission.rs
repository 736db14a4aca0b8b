//! How many connections are served at a time, and what the others are told.
//!
//! Without a limit a client that leaks connections takes the last descriptor, and then calls of all clients fail as if
//! their upstreams could not be reached.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

use crate::downstream::{Reply, Via, plain};

/// Told why at a time; more are closed without a word.
const MOST_TOLD: usize = 16;
const TELLING: Duration = Duration::from_secs(5);
/// To answer a message under its id it has to be read; of a larger one the id is not looked for.
const LARGEST_READ: usize = 1024 * 1024;

/// Who gets in.
#[derive(Default)]
pub(crate) struct Admission {
    served: Arc<AtomicUsize>,
    /// Of these, those on TCP.
    tcp: Arc<AtomicUsize>,
    told: Arc<AtomicUsize>,
}

/// What becomes of a connection. The places are held for as long as it lasts.
pub(crate) enum Admitted {
    Served([Option<Place>; 2]),
    Told(Place),
    Closed,
}

/// A place among those of its kind, given back when dropped. No semaphore: the limit may change under it.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(of: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let free = |taken: usize| (taken < most).then_some(taken + 1);
        let taken = of.fetch_update(Ordering::AcqRel, Ordering::Acquire, free);
        taken.ok().map(|_| Self(Arc::clone(of)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Admission {
    /// `most` connections in all; on TCP half of them, because any user of this machine can connect there, and is not
    /// to keep the socket's clients out.
    pub(crate) fn admit(&self, via: Via, most: usize) -> Admitted {
        let on_tcp = match via {
            Via::Socket | Via::Drain => Some(None),
            Via::Tcp => Place::take(&self.tcp, (most / 2).max(1)).map(Some),
        };
        let served = on_tcp.and_then(|place| Some([place, Some(Place::take(&self.served, most)?)]));
        match served {
            Some(places) => Admitted::Served(places),
            None => Place::take(&self.told, MOST_TOLD).map_or(Admitted::Closed, Admitted::Told),
        }
    }
}

/// Descriptors for what is there once: listeners, files, streams of sessions, and those that are told.
const OWN_DESCRIPTORS: u64 = 32;

/// What the config allows, but never more than there are descriptors for: each may need another one towards its
/// upstream. Beyond that no connection could be accepted, and its client would wait instead of being told.
pub(crate) fn most_connections(configured: usize) -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(descriptors.saturating_sub(OWN_DESCRIPTORS) / 2)
        .unwrap_or(usize::MAX)
        .min(configured)
        .max(1)
}

/// Answers one request with 503.
pub(crate) async fn turn_away<S>(stream: S, place: Place)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(|request| async { Ok::<_, Infallible>(refuse(request).await) });
    let connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    drop(tokio::time::timeout(TELLING, connection).await);
    drop(place);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_leaves_room_for_the_socket() {
        let admission = Admission::default();
        let is_served = |admitted: &Admitted| matches!(admitted, Admitted::Served(_));
        let tcp: Vec<Admitted> = (0..3).map(|_| admission.admit(Via::Tcp, 4)).collect();
        assert_eq!(tcp.iter().map(is_served).collect::<Vec<_>>(), [true, true, false]);
        let socket: Vec<Admitted> = (0..3).map(|_| admission.admit(Via::Socket, 4)).collect();
        assert_eq!(socket.iter().map(is_served).collect::<Vec<_>>(), [true, true, false]);
        drop(tcp);
        assert!(is_served(&admission.admit(Via::Tcp, 4)));
        // A limit that was lowered counts for those who come.
        assert!(!is_served(&admission.admit(Via::Socket, 2)));
        drop(socket);
        let told: Vec<Admitted> = (0..=MOST_TOLD).map(|_| admission.admit(Via::Socket, 0)).collect();
        assert!(told.iter().take(MOST_TOLD).all(|one| matches!(one, Admitted::Told(_))));
        assert!(matches!(told.last(), Some(Admitted::Closed)));
    }
}
