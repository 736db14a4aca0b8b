//! The daemon's control endpoints, from the other side of its socket.
//!
//! Every exchange is bounded in time, so that a daemon that hangs is reported and not waited for.

use std::io;
use std::path::Path;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use mcp_http::{SendError, SendErrorKind, Sender as _, UnixSender};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::Deserialize;

use crate::limits::Limits;
use crate::report::{Failure, chain};

/// The largest control answer taken, in bytes: a status of a great many sessions.
const ANSWER_CAP: usize = 16 << 20;
/// The protocol between shim and daemon that this binary speaks.
const PROTOCOL: u32 = 1;

/// An answer of the daemon, of whatever status.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Who answers on the socket.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Hello {
    /// Of the protocol between shim and daemon.
    pub(crate) protocol: u32,
    pub(crate) pid: Option<u32>,
    pub(crate) version: Option<String>,
    /// What tells it from another build of its version; only if asked for, and not by older daemons.
    pub(crate) build: Option<String>,
}

/// No answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// Nobody listens on the socket: no daemon runs, or it is about to end. A repeat may find one.
    #[error("no daemon listens on the socket")]
    Nobody,
    /// Somebody listens, or may, but no answer came. A repeat is safe for all control calls.
    #[error("the daemon did not answer: {0}")]
    NoAnswer(String),
    /// The daemon is of another build that speaks another protocol.
    #[error("the daemon speaks protocol {theirs}, this evermux {PROTOCOL}")]
    Protocol { theirs: u32 },
}

impl Answer {
    /// The `error` member of the body, or what the status says.
    pub(crate) fn error(&self) -> String {
        #[derive(Deserialize)]
        struct Body {
            error: String,
        }
        serde_json::from_slice::<Body>(&self.body)
            .map_or_else(|_| format!("HTTP status {}", self.status.as_u16()), |body| body.error)
    }
}

/// One control call.
pub(crate) async fn call(
    sender: &UnixSender,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Answer, ControlError> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() =
        path.parse().map_err(|error: http::uri::InvalidUri| ControlError::NoAnswer(error.to_string()))?;
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let exchange = async {
        let response = sender.send(&request).await.map_err(|error| unanswered(&error))?;
        let status = response.status();
        let body = collect(response.into_body()).await?;
        Ok(Answer { status, body })
    };
    let limit = Limits::get().answer;
    match tokio::time::timeout(limit, exchange).await {
        Ok(answer) => answer,
        Err(_late) => Err(ControlError::NoAnswer(format!("nothing within {limit:?}"))),
    }
}

async fn collect(body: mcp_http::RawBody) -> Result<Bytes, ControlError> {
    use http_body_util::BodyExt as _;
    let limited = http_body_util::Limited::new(body, ANSWER_CAP);
    let collected = limited.collect().await.map_err(|error| ControlError::NoAnswer(error.to_string()))?;
    Ok(collected.to_bytes())
}

/// Whether nobody listens (missing socket, refused, or a full queue of a daemon that is ending), or worse.
fn unanswered(error: &SendError) -> ControlError {
    let source = error.source.as_deref().and_then(|source| source.downcast_ref::<io::Error>());
    let nobody = source.is_some_and(|error| {
        matches!(
            error.kind(),
            // Something else in the way of the socket: a daemon that is started tells what and where.
            io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::WouldBlock
        )
    });
    if error.kind == SendErrorKind::Connect && nobody {
        ControlError::Nobody
    } else {
        ControlError::NoAnswer(chain(error))
    }
}

/// Says hello; an error unless a daemon is there that speaks our protocol.
pub(crate) async fn hello(sender: &UnixSender) -> Result<Hello, ControlError> {
    match greet(sender, "/control/hello").await? {
        hello if hello.protocol == PROTOCOL => Ok(hello),
        Hello { protocol: theirs, .. } => Err(ControlError::Protocol { theirs }),
    }
}

/// Says hello to a daemon of whatever protocol, and asks for its build.
pub(crate) async fn who_serves(sender: &UnixSender) -> Result<Hello, ControlError> {
    greet(sender, "/control/hello?build").await
}

async fn greet(sender: &UnixSender, path: &str) -> Result<Hello, ControlError> {
    let answer = call(sender, Method::GET, path, Bytes::new()).await?;
    serde_json::from_slice(&answer.body)
        .map_err(|_| ControlError::NoAnswer("its greeting is not understood".to_owned()))
}

/// One control call of a short-lived command, with a runtime of its own.
pub(crate) fn call_once(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<Answer, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    let sender = UnixSender::new(socket.to_owned());
    runtime.block_on(call(&sender, method, path, body)).map_err(|error| failure(&error, socket))
}

/// What a command says when the daemon gave no answer.
pub(crate) fn failure(error: &ControlError, socket: &Path) -> Failure {
    match error {
        ControlError::Nobody => Failure::no_daemon(socket),
        ControlError::NoAnswer(_) => Failure::failed(error.to_string())
            .at(socket.display().to_string())
            .next("see whether the daemon's process still runs, and its log in the state directory"),
        ControlError::Protocol { .. } => Failure::failed(error.to_string())
            .at(socket.display().to_string())
            .next("`evermux stop`, then try again: this build starts its own daemon"),
    }
}

/// Whether a daemon's process holds nothing any more: it is gone, or a zombie whose parent has not looked yet. Its first
/// thread is dead at once, but the lock stays until the last one is.
pub(crate) fn has_ended(pid: Pid) -> bool {
    if kill(pid, None) == Err(Errno::ESRCH) {
        return true;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    zombie && std::fs::read_dir(format!("/proc/{pid}/task")).map_or(true, |threads| threads.count() <= 1)
}
