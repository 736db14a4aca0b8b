//! The IO of a takeover: connections, descriptors, processes. What to do, and when to give up, is decided by the two
//! machines in `evermux_core::takeover`; `planning/takeover.md` has the steps.

pub(crate) mod beside;
pub(crate) mod frames;
pub(crate) mod manifest;
pub(crate) mod predecessor;
mod say;
pub(crate) mod successor;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use fd_handover::{Alive, Frame, Witness, liveness};
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::downstream::{Face, Reply, plain};
use predecessor::House;

/// What the connection is upgraded to.
const PROTOCOL_NAME: &str = "evermux-takeover";

/// Held for the whole life of the process: only the kernel closes it.
static LIFE: OnceLock<Alive> = OnceLock::new();

/// The end of this process's life that others get to see.
pub(crate) struct Pipe(OwnedFd);

impl Pipe {
    /// Makes it; once a process.
    pub(crate) fn lay() -> io::Result<Self> {
        let (seen, held) = liveness()?;
        match LIFE.set(held) {
            Ok(()) => Ok(Self(seen)),
            Err(_) => Err(io::Error::other("this process's life has an end already")),
        }
    }
}

#[cfg(test)]
impl Pipe {
    /// Another life than this process's.
    pub(crate) fn of(seen: OwnedFd) -> Self {
        Self(seen)
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A successor asks.
pub(crate) fn welcome(face: &Face, request: Request<Incoming>) -> Reply {
    switch(face, request, |house, stream, read| async move { house.hand_over(stream, &read).await })
}

/// From here on the connection carries frames.
fn switch<F>(
    face: &Face,
    mut request: Request<Incoming>,
    converse: impl FnOnce(Arc<House>, UnixStream, Bytes) -> F + Send + 'static,
) -> Reply
where
    F: Future<Output = ()> + Send,
{
    let asks = request.headers().get(UPGRADE).is_some_and(|value| value == PROTOCOL_NAME);
    let Some(house) = face.house.get().cloned().filter(|_| asks) else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, bytes::Bytes::new());
    };
    let upgrading = hyper::upgrade::on(&mut request);
    // Not in the tracker: an end of this process does not wait for a successor.
    tokio::spawn(async move {
        let Ok(upgraded) = upgrading.await else { return };
        match upgraded.downcast::<TokioIo<UnixStream>>() {
            Ok(parts) => converse(house, parts.io.into_inner(), parts.read_buf).await,
            Err(_) => tracing::error!("a process came on something that is no socket"),
        }
    });
    let mut reply = plain(StatusCode::SWITCHING_PROTOCOLS, bytes::Bytes::new());
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    reply.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL_NAME));
    reply
}

/// Waits until that process is gone. For ever where its life cannot be watched: that proves nothing.
async fn gone(life: &Witness) {
    if life.gone().await.is_err() {
        std::future::pending().await
    }
}

/// What a frame says; `None`: not what its kind should say.
fn body_of<T: serde::de::DeserializeOwned>(frame: &Frame) -> Option<T> {
    serde_json::from_slice(&frame.body).ok()
}
