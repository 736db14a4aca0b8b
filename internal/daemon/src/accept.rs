//! Takes connections of both listeners, one task each, and sees to it that there is a door to come in by: a socket
//! whose file was removed is made anew, an address that was taken is tried again.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evermux_config::Config;
use evermux_store::{DaemonLock, StateDir};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{self, Admission, Admitted};
use crate::downstream::{Face, Via};
use crate::reactor::Phase;
use crate::socket::{self, Place, Sentry, Socket};

/// Before the next attempt to accept, if one failed.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// The lock, until a successor has it.
#[derive(Clone)]
pub(crate) struct LockBox(Arc<Mutex<Option<Arc<DaemonLock>>>>);

impl LockBox {
    pub(crate) fn new(lock: DaemonLock) -> Self {
        Self(Arc::new(Mutex::new(Some(Arc::new(lock)))))
    }

    /// `None`: it was handed over.
    pub(crate) fn get(&self) -> Option<Arc<DaemonLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Closes this process's copy; never an unlock, which would take it from the successor.
    pub(crate) fn leave(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// What the task that holds the doors is told in a takeover.
pub(crate) enum Notice {
    /// Copy the socket for a successor.
    Copy(oneshot::Sender<std::io::Result<OwnedFd>>),
    /// The successor has the doors.
    Leave(oneshot::Sender<()>),
}

/// The socket and what it takes to make it anew.
pub(crate) struct Door {
    pub(crate) socket: Socket,
    pub(crate) lock: LockBox,
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
    pub(crate) state: StateDir,
    /// Look at once.
    pub(crate) look: Arc<Notify>,
}

impl Door {
    async fn see_to(&mut self, sentry: &mut Sentry) {
        // Who lost the lock has a successor, and the name is that one's.
        let is_own = || self.lock.get().is_some_and(|lock| lock.is_in_place(&self.state));
        see_to(&mut self.socket, sentry, is_own).await;
    }
}

/// Looks at the socket's name, makes it anew if nobody can find it any more, and has the sentry watch it. `is_own`: nobody
/// else may listen under its name.
async fn see_to(socket: &mut Socket, sentry: &mut Sentry, is_own: impl FnOnce() -> bool) {
    sentry.arm().await;
    let place = socket.place().await;
    if place == Place::Lost && is_made_anew(socket, is_own) {
        sentry.arm().await;
        return sentry.rest(socket.place().await);
    }
    if place == Place::Taken {
        tracing::warn!("another process listens on this daemon's socket; it is left to it");
    }
    sentry.rest(place);
}

fn is_made_anew(socket: &mut Socket, is_own: impl FnOnce() -> bool) -> bool {
    if !is_own() {
        tracing::warn!("the state directory is another one; the socket is not made anew");
        return false;
    }
    let listens = socket.listen_again();
    match &listens {
        Ok(()) => tracing::warn!("the socket's file was gone; it was made anew"),
        Err(error) => tracing::error!(%error, "the socket's file is gone and cannot be made anew"),
    }
    listens.is_ok()
}

/// What every connection needs.
struct Hall {
    face: Arc<Face>,
    tracker: TaskTracker,
    /// The last call has ended, or guests are to part. No `watch`: that would wake every connection at each change of the
    /// phase, also in the moment of a takeover, in which calls wait. And one for all reasons: a connection looks at it
    /// whenever it is woken.
    over: CancellationToken,
    admission: Admission,
}

/// Takes connections until it is aborted.
pub(crate) async fn accept(
    mut door: Door,
    face: Arc<Face>,
    tracker: TaskTracker,
    phases: watch::Receiver<Phase>,
) {
    let mut sentry = Sentry::of(&door.socket);
    let look = Arc::clone(&door.look);
    let over = once_drained(phases, face.neighbours.parting.child_token());
    let hall = Hall { face: Arc::clone(&face), tracker, over, admission: Admission::default() };
    loop {
        let accepted = tokio::select! {
            accepted = door.socket.accept() => accepted.map(|stream| hall.take_local(stream)),
            accepted = face.port.accept() => accepted.map(|(stream, closed)| hall.take_tcp(stream, closed)),
            () = sentry.called() => {
                door.see_to(&mut sentry).await;
                continue;
            }
            () = look.notified() => {
                door.see_to(&mut sentry).await;
                continue;
            }
            Some(notice) = door.notices.recv() => match notice {
                Notice::Copy(done) => {
                    drop(done.send(door.socket.as_fd().try_clone_to_owned()));
                    continue;
                }
                Notice::Leave(done) => {
                    face.port.leave();
                    door.lock.leave();
                    door.socket.leave();
                    done.send(()).unwrap_or_default();
                    return;
                }
            },
        };
        if let Err(error) = accepted {
            // Out of descriptors, most likely: the next accept fails at once too.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
        }
    }
}

/// Takes connections of other processes of this daemon until it is aborted. They have places of their own: clients are
/// not to keep them out.
pub(crate) async fn accept_relays(
    socket: &mut Socket,
    face: Arc<Face>,
    tracker: TaskTracker,
    phases: watch::Receiver<Phase>,
    look: &Notify,
) {
    let mut sentry = Sentry::of(socket);
    let over = once_drained(phases, CancellationToken::new());
    let hall = Hall { face, tracker, over, admission: Admission::default() };
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            // Its generation is in the name: it is nobody else's.
            () = sentry.called() => {
                see_to(socket, &mut sentry, || true).await;
                continue;
            }
            () = look.notified() => {
                see_to(socket, &mut sentry, || true).await;
                continue;
            }
        };
        match accepted {
            Ok(stream) => hall.take_owners(stream, Via::Drain),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
            }
        }
    }
}

/// Cancelled also once the last call has ended, or nobody can say so any more.
fn once_drained(mut phases: watch::Receiver<Phase>, over: CancellationToken) -> CancellationToken {
    let drained = over.clone();
    tokio::spawn(async move {
        drop(phases.wait_for(|phase| *phase == Phase::Drained).await);
        drained.cancel();
    });
    over
}

impl Hall {
    fn take_local(&self, stream: tokio::net::UnixStream) {
        self.take_owners(stream, Via::Socket);
    }

    fn take_owners(&self, stream: tokio::net::UnixStream, via: Via) {
        if socket::is_ours(&stream) {
            // Nothing closes the socket before the process ends.
            self.take(stream, via, None);
        } else {
            tracing::warn!("refused a connection of another user");
        }
    }

    /// Whose it is cannot be told from the connection: every request says it with its token.
    fn take_tcp(&self, stream: tokio::net::TcpStream, closed: CancellationToken) {
        // Events are small and each is waited for.
        drop(stream.set_nodelay(true));
        self.take(stream, Via::Tcp, Some(closed));
    }

    /// `closed`: its listener is.
    fn take<S>(&self, stream: S, via: Via, closed: Option<CancellationToken>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (face, over) = (Arc::clone(&self.face), self.over.clone());
        let most = admission::most_connections(face.keeper.config().limits.connections);
        match self.admission.admit(via, most) {
            Admitted::Served(places) => drop(self.tracker.spawn(async move {
                let guest = (via != Via::Drain).then(|| face.neighbours.guests.enter());
                let over = async {
                    let Some(closed) = closed else { return over.cancelled().await };
                    tokio::select! {
                        () = over.cancelled() => {}
                        () = closed.cancelled() => {}
                    }
                };
                converse(stream, via, face, over).await;
                drop((places, guest));
            })),
            Admitted::Told(place) => drop(self.tracker.spawn(admission::turn_away(stream, place))),
            Admitted::Closed => tracing::warn!("closed a connection: too many are open"),
        }
    }
}

/// Serves a connection; from `over` on, only to the end of the response it is at.
async fn converse<S>(stream: S, via: Via, face: Arc<Face>, over: impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = builder(via, &face.keeper.config());
    // Boxed: hyper keeps the room of a request's future for as long as the connection is open, 3.5 KiB of an idle one.
    let service = hyper::service::service_fn(move |request| Box::pin(Arc::clone(&face).serve(via, request)));
    // A successor's conversation begins as a request.
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        () = over => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// The limits that hyper holds itself: it answers them with a bare 431 and closes.
fn builder(via: Via, config: &Config) -> Builder {
    const ITS_OWN_HEADER_COUNT: usize = 100;
    let (limits, mut builder) = (&config.limits, Builder::new());
    builder.max_header_size(limits.headers);
    if limits.header_count != ITS_OWN_HEADER_COUNT {
        // Costs an allocation for each request, so only where it is wanted.
        builder.max_headers(limits.header_count);
    }
    if let Some(http) = config.http.filter(|_| via == Via::Tcp) {
        builder.timer(TokioTimer::new()).header_read_timeout(http.request_timeout);
    }
    builder
}
