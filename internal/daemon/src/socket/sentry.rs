//! Says when a socket's name should be looked at: at once when something may have happened to it, and otherwise never,
//! so that an idle daemon sleeps.
//!
//! The file itself is watched and not what is in its directory: whatever takes its name away, or puts another file
//! there, changes the file's number of links or moves it. So nothing that others do in the directory wakes anybody.
//! Directories above it, and links on the way to it, are watched for being moved or replaced as a whole. Where the
//! system gives no watch, the name is looked at once a minute; so it is while another process has it, because that
//! one's end changes no file.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Place, Socket};

/// How often, at most and at least.
#[derive(Clone, Copy)]
struct Times {
    /// Between two looks without a watch.
    look: Duration,
    /// Between two alarms of a watch: whoever removes the file again and again costs no more than this.
    pause: Duration,
}

const TIMES: Times = Times { look: Duration::from_secs(60), pause: Duration::from_secs(1) };

/// Stands by one socket.
pub(crate) struct Sentry {
    path: PathBuf,
    times: Times,
    watch: Option<Watch>,
    /// When to look without an alarm.
    next: Option<Instant>,
    /// No alarm is passed on before.
    quiet_until: Instant,
    /// An alarm that was not passed on yet.
    alarm: bool,
    /// Why there is no watch, to be told.
    failed: Option<io::Error>,
    /// That was told.
    told: bool,
}

impl Sentry {
    /// Has it looked at once, for a beginning.
    pub(crate) fn of(socket: &Socket) -> Self {
        let (path, now) = (socket.path.clone(), Instant::now());
        Self {
            path,
            times: TIMES,
            watch: None,
            next: Some(now),
            quiet_until: now,
            alarm: false,
            failed: None,
            told: false,
        }
    }

    /// Waits until the name should be looked at. Loses nothing when dropped while it waits.
    pub(crate) async fn called(&mut self) {
        if !self.alarm {
            tokio::select! {
                () = stirred(self.watch.as_ref()) => self.alarm = true,
                () = until(self.next) => return,
            }
        }
        sleep_until(self.quiet_until).await;
        self.quiet_until = Instant::now() + self.times.pause;
    }

    /// Watches what lies there now. Before a look, so that nothing falls between the two.
    pub(crate) async fn arm(&mut self) {
        self.alarm = false;
        // The old one first: they are counted.
        if let Some(watch) = self.watch.take() {
            watch.close().await;
        }
        match Watch::of(&self.path) {
            Ok(watch) => (self.watch, self.failed) = (Some(watch), None),
            Err(error) => self.failed = Some(error),
        }
    }

    /// After the look: whether an alarm will tell of the next change.
    pub(crate) fn rest(&mut self, place: Place) {
        let watched = place == Place::Ours && self.watch.is_some();
        self.next = (!watched).then(|| Instant::now() + self.times.look);
        if place != Place::Ours {
            self.watch = None;
        } else if let Some(error) = self.failed.take() {
            if !self.told {
                tracing::warn!(%error, "the socket's file cannot be watched; it is looked at once a minute");
            }
            self.told = true;
        }
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next).await,
        None => std::future::pending().await,
    }
}

async fn stirred(watch: Option<&Watch>) {
    match watch {
        Some(watch) => watch.stirred().await,
        None => std::future::pending().await,
    }
}

#[cfg(target_os = "linux")]
use inotify::Watch;

#[cfg(target_os = "linux")]
mod inotify {
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::io::{self, Read as _};
    use std::os::fd::OwnedFd;
    use std::path::{Path, PathBuf};

    use nix::errno::Errno;
    use nix::sys::inotify::{AddWatchFlags as On, InitFlags, Inotify};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;
    use tokio::runtime::Handle;
    use tokio::task::JoinHandle;

    /// Longer than any event.
    const EVENT: usize = 512;

    /// `None` once it is being closed. That is done on a thread of its own: the kernel lets nobody go on who closes one before
    /// all processors have passed a point of rest: up to twenty milliseconds, for which in a takeover every client waited.
    pub(super) struct Watch(pub(super) Option<AsyncFd<File>>);

    impl Watch {
        pub(super) fn of(path: &Path) -> io::Result<Self> {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let added = add(&inotify, path);
            #[expect(
                deprecated,
                reason = "a `File` keeps its descriptor; what replaces this needs unsafe code"
            )]
            let readable = AsyncFd::with_interest(File::from(OwnedFd::from(inotify)), Interest::READABLE)?;
            // One that came to nothing is to be closed like all others.
            let watch = Self(Some(readable));
            added.map(|()| watch)
        }

        /// Waits for an event. What it is does not matter: whoever hears of it looks, with another watch.
        pub(super) async fn stirred(&self) {
            let Some(events) = &self.0 else { return };
            // A descriptor that cannot be waited for: better a look too many.
            while let Ok(mut ready) = events.readable().await {
                if ready.try_io(|events| events.get_ref().read(&mut [0; EVENT])).is_ok() {
                    return;
                }
            }
        }

        /// Waits until it is closed.
        pub(super) async fn close(mut self) {
            if let Some(closing) = self.closing() {
                drop(closing.await);
            }
        }

        fn closing(&mut self) -> Option<JoinHandle<()>> {
            let file = self.0.take()?.into_inner();
            Handle::try_current().ok().map(move |runtime| runtime.spawn_blocking(move || drop(file)))
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            drop(self.closing());
        }
    }

    fn add(inotify: &Inotify, path: &Path) -> io::Result<()> {
        inotify
            .add_watch(path, On::IN_ATTRIB | On::IN_DELETE_SELF | On::IN_MOVE_SELF | On::IN_DONT_FOLLOW)?;
        for place in on_the_way(path)? {
            let added = inotify.add_watch(&place, On::IN_DELETE_SELF | On::IN_MOVE_SELF | On::IN_DONT_FOLLOW);
            match added {
                // Who may not read it is not who moves it.
                Ok(_) | Err(Errno::EACCES) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// The directories that lead there, as the path has them and as they are.
    fn on_the_way(path: &Path) -> io::Result<BTreeSet<PathBuf>> {
        let Some(directory) = path.parent() else { return Ok(BTreeSet::new()) };
        let real = directory.canonicalize()?;
        Ok(directory.ancestors().chain(real.ancestors()).map(Path::to_owned).collect())
    }
}

#[cfg(not(target_os = "linux"))]
struct Watch;

#[cfg(not(target_os = "linux"))]
impl Watch {
    fn of(_path: &std::path::Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn stirred(&self) {
        std::future::pending().await
    }

    async fn close(self) {}
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
