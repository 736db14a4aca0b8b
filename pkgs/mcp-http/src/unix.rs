//! HTTP/1 over a unix socket: what asks a daemon of this machine, and stays small.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::net::UnixStream;

use crate::body::RawBody;
use crate::client::Sender;
use crate::error::{SendError, SendErrorKind, Written, is_exhausted};
use crate::exchange::{Message, SOCKET_IDLE, SOCKET_MAX_IDLE};
use crate::pool::{Kind, Pool};

/// Sends requests over a unix socket. Clones share their idle connections. Must be used within one tokio runtime.
#[derive(Clone)]
pub struct UnixSender {
    pool: Arc<Pool<Socket>>,
}

/// Connections to the socket at this path.
struct Socket(PathBuf);

impl UnixSender {
    /// A sender to the socket at `path`. Connects when it is first needed.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { pool: Arc::new(Pool::new(Socket(path))) }
    }

    /// Uses no connection again that was made before: the socket may lead to another process by now, while the former
    /// one still serves what it has. Exchanges under way are not disturbed.
    pub fn dial_anew(&self) {
        self.pool.dial_anew();
    }
}

impl fmt::Debug for UnixSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixSender").field("path", &self.pool.kind().0).finish_non_exhaustive()
    }
}

impl Sender for UnixSender {
    async fn send(&self, request: &Request<Bytes>) -> Result<http::Response<RawBody>, SendError> {
        self.pool.exchange(&(), Message::new(request)).await
    }
}

impl Kind for Socket {
    type Place = ();
    type Stream = UnixStream;
    const MAX_IDLE: usize = SOCKET_MAX_IDLE;
    const IDLE_LIMIT: Duration = SOCKET_IDLE;

    async fn dial(&self, (): &()) -> Result<UnixStream, SendError> {
        UnixStream::connect(&self.0).await.map_err(|error| {
            let kind = if is_exhausted(&error) { SendErrorKind::Exhausted } else { SendErrorKind::Connect };
            SendError::new(kind, Written::Never, error)
        })
    }
}
