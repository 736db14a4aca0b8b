//! The socket of a process that was succeeded: `drain-GENERATION.sock` beside the main one. The active process relays
//! to it what belongs to calls that still run here, hears there which ones are over, and asks for streams. And how such
//! a process comes to its end without a client noticing.

mod feed;
mod follow;
mod line;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evermux_core::input::Input;
use evermux_core::names::{Generation, Trajectory};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

pub(crate) use feed::Feed;
pub(crate) use follow::{follow, release};
pub(crate) use line::Line;

use crate::accept;
use crate::downstream::{Face, Reply, ReplyBody, plain};
use crate::inbox::{Inbox, Told};
use crate::neighbours::Neighbours;
use crate::reactor::Phase;
use crate::socket::Socket;

/// To find out whether anybody listens.
const KNOCK: Duration = Duration::from_secs(1);
const PREFIX: &str = "drain-";
const SUFFIX: &str = ".sock";

/// Where that process listens; `socket`: the main one.
pub(crate) fn path(socket: &Path, generation: Generation) -> PathBuf {
    socket.with_file_name(format!("{PREFIX}{}{SUFFIX}", generation.0))
}

/// The socket, from before anybody may need it to the end of the process, when its file goes.
pub(crate) struct Drain {
    socket: Socket,
}

impl Drain {
    /// Listens, owner only. `socket`: the main one.
    pub(crate) fn listen(socket: &Path, generation: Generation) -> io::Result<Self> {
        Ok(Self { socket: Socket::listen(&path(socket, generation))? })
    }

    /// Takes connections until it is dropped.
    pub(crate) async fn serve(
        mut self,
        face: Arc<Face>,
        tracker: TaskTracker,
        phases: watch::Receiver<Phase>,
        look: Arc<Notify>,
    ) {
        accept::accept_relays(&mut self.socket, face, tracker, phases, &look).await;
    }
}

/// Serves what is about this process on its drain socket.
pub(crate) fn control(face: &Face, path: &str, request: &Request<Incoming>) -> Reply {
    match (request.method(), path) {
        (&Method::GET, "drain") => {
            let after = request.uri().query().and_then(|query| query.strip_prefix("after=")?.parse().ok());
            let mut reply = Response::new(ReplyBody::Lines(face.neighbours.feed.listen(after)));
            let json_lines = HeaderValue::from_static("application/x-ndjson");
            reply.headers_mut().insert(CONTENT_TYPE, json_lines);
            reply
        }
        (&Method::POST, path) => {
            let trajectory = path.strip_prefix("release/").and_then(|name| name.parse::<Trajectory>().ok());
            match trajectory {
                Some(trajectory) => {
                    tokio::spawn(let_go(Arc::clone(&face.neighbours), face.inbox.clone(), trajectory));
                    plain(StatusCode::ACCEPTED, bytes::Bytes::new())
                }
                None => plain(StatusCode::NOT_FOUND, bytes::Bytes::new()),
            }
        }
        _ => plain(StatusCode::NOT_FOUND, bytes::Bytes::new()),
    }
}

/// What waited in the freeze comes first: the end of a stream is work for each of its listeners, here and in the process
/// that they go to.
pub(crate) async fn let_go(neighbours: Arc<Neighbours>, inbox: Inbox, trajectory: Trajectory) {
    drop(timeout(neighbours.times.relays_first, neighbours.posts.none()).await);
    inbox.tell(Told::Fact(Input::Release(trajectory)));
}

/// Waits until a process that handed over is needed no more: its own calls have ended, then relayed ones. What is left
/// is ended so that no client loses anything: a GET stream between two events, its client comes back with the last one;
/// a connection when nothing was sent on it for long. Then the process may end.
pub(crate) async fn over(neighbours: &Neighbours) {
    neighbours.emptied().await;
    let idle_until = Instant::now() + neighbours.times.idle;
    tokio::select! {
        () = neighbours.guests.none() => {}
        () = quiet(neighbours) => {}
    }
    neighbours.hang_up.cancel();
    drop(timeout_at(idle_until, neighbours.guests.none()).await);
    neighbours.parting.cancel();
    neighbours.guests.none().await;
    neighbours.feed.close();
}

/// Waits until no POST was relayed for a while.
async fn quiet(neighbours: &Neighbours) {
    loop {
        neighbours.posts.none().await;
        if timeout(neighbours.times.linger, neighbours.posts.some()).await.is_err() {
            return;
        }
    }
}

/// The sockets of this kind that lie there, and whose they are or were.
pub(crate) fn sockets(socket: &Path) -> Vec<(Generation, PathBuf)> {
    let entries = socket.parent().and_then(|directory| std::fs::read_dir(directory).ok());
    let named = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        Some((Generation(number.parse().ok()?), entry.path()))
    };
    entries.into_iter().flatten().flatten().filter_map(named).collect()
}

/// Removes the sockets of processes that are dead. Call it under the daemon lock.
pub(crate) async fn remove_stale(socket: &Path) {
    for (_, path) in sockets(socket) {
        // A socket is listened to before it has this name, and to its end: refused is dead.
        let knocked = timeout(KNOCK, UnixStream::connect(&path)).await;
        if matches!(knocked, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%error, "the socket of a dead process cannot be removed");
        }
    }
}
