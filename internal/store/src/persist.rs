//! The one thread that writes records, so that no reactor ever waits for a disk (D13: a synced write costs
//! 3–12 ms, 240 ms at worst).

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evermux_core::names::{Trajectory, UpstreamName};
use evermux_core::record::{Record, Sync};

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::key::Key;
use crate::queue::{Job, Queue, Work};

/// One order is done, or was replaced by a newer one that is done.
#[derive(Debug)]
pub struct Persisted {
    /// As given to [`Persist::write`] or [`Persist::delete`].
    pub ticket: u64,
    /// An error means that this value may not be on disk. Nothing is tried again by itself; the next write of the
    /// trajectory starts from a fresh file.
    pub result: Result<(), StoreError>,
}

type Done = Box<dyn Fn(Persisted) + Send>;

/// The persist thread. Dropping it carries out everything that waits, and ends the thread.
pub struct Persist {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    desk: Mutex<Desk>,
    /// Something changed for the thread.
    work: Condvar,
    /// The thread has nothing left to do.
    idle: Condvar,
    /// Belongs to the thread; stays here if there is none.
    done: Mutex<Option<Done>>,
}

#[derive(Default)]
struct Desk {
    queue: Queue,
    busy: bool,
    flushers: u32,
    closing: bool,
    stopped: bool,
}

impl fmt::Debug for Persist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Persist").finish_non_exhaustive()
    }
}

impl Persist {
    /// Starts the thread. `done` is called on it, once for every ticket, in no promised order between
    /// trajectories; it must not block and must not panic.
    pub fn start(state: &StateDir, key: Key, done: Box<dyn Fn(Persisted) + Send>) -> Self {
        let shared = Arc::new(Shared {
            desk: Mutex::default(),
            work: Condvar::new(),
            idle: Condvar::new(),
            done: Mutex::new(Some(done)),
        });
        let (for_thread, state) = (Arc::clone(&shared), state.clone());
        let spawned = std::thread::Builder::new()
            .name("evermux-persist".to_owned())
            .spawn(move || for_thread.run(&state, &key));
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                tracing::warn!(%error, "cannot start the persist thread; nothing is written");
                shared.desk().stopped = true;
                None
            }
        };
        Self { shared, thread }
    }

    /// Orders a write. With [`Sync::None`] it happens within 100 ms and may be replaced by a newer value until
    /// then; with [`Sync::Durable`] at once. The newest value of a trajectory is written as durably as any of the
    /// orders it replaces wanted.
    pub fn write(&self, ticket: u64, record: Record, sync: Sync) {
        self.order(ticket, |queue, now| queue.write(ticket, record, sync, now));
    }

    /// Orders a deletion, durable, for ever: a write of this trajectory that is ordered later fails with
    /// [`StoreError::Deleted`].
    pub fn delete(&self, ticket: u64, upstream: UpstreamName, trajectory: Trajectory) {
        self.order(ticket, |queue, now| queue.delete(ticket, upstream, trajectory, now));
    }

    fn order(&self, ticket: u64, put: impl FnOnce(&mut Queue, Instant)) {
        let mut desk = self.shared.desk();
        if !desk.stopped {
            put(&mut desk.queue, Instant::now());
            drop(desk);
            self.shared.work.notify_one();
            return;
        }
        drop(desk);
        if let Some(done) = &*self.shared.done() {
            done(Persisted { ticket, result: Err(StoreError::Stopped) });
        }
    }

    /// Writes at once what waits, and blocks until nothing waits. `false` if that took longer than `deadline`.
    /// Never call it on a reactor's thread.
    pub fn flush(&self, deadline: Duration) -> bool {
        let mut desk = self.shared.desk();
        desk.flushers += 1;
        self.shared.work.notify_one();
        let pending = |desk: &mut Desk| !desk.stopped && (desk.busy || !desk.queue.is_empty());
        let (mut desk, _) = self
            .shared
            .idle
            .wait_timeout_while(desk, deadline, pending)
            .unwrap_or_else(PoisonError::into_inner);
        desk.flushers -= 1;
        !desk.busy && desk.queue.is_empty()
    }
}

impl Drop for Persist {
    fn drop(&mut self) {
        self.shared.desk().closing = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the persist thread had panicked");
        }
    }
}

/// Lets waiters go when the thread ends, however it ends.
struct StopGuard<'a>(&'a Shared);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.desk().stopped = true;
        self.0.idle.notify_all();
    }
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) -> MutexGuard<'_, Option<Done>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, state: &StateDir, key: &Key) {
        let _guard = StopGuard(self);
        let Some(done) = self.done().take() else { return };
        // What the start put in place, while the first client is on its way.
        settle(state);
        while let Some(job) = self.next_job() {
            carry_out(job, state, key, &done);
            let mut desk = self.desk();
            desk.busy = false;
            if desk.queue.is_empty() {
                self.idle.notify_all();
            }
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut desk = self.desk();
        loop {
            let now = Instant::now();
            let hurry = desk.closing || desk.flushers > 0;
            let job = if hurry { desk.queue.take_any() } else { desk.queue.take_due(now) };
            if job.is_some() {
                desk.busy = true;
                return job;
            }
            if desk.closing {
                return None;
            }
            desk = match desk.queue.next_due() {
                None => self.work.wait(desk).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let wait = due.saturating_duration_since(now);
                    self.work.wait_timeout(desk, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

fn carry_out(job: Job, state: &StateDir, key: &Key, done: &Done) {
    let result = match &job.work {
        Work::Write(record, sync) => state.write_record(key, record, *sync),
        Work::Delete(upstream) => state.delete_record(upstream, job.trajectory),
    };
    if let Err(error) = &result {
        tracing::warn!(trajectory = %job.trajectory, %error, cause = cause_of(error), "a record was not persisted");
    }
    for ticket in job.tickets {
        done(Persisted { ticket, result: result.clone() });
    }
    for ticket in job.too_late {
        done(Persisted { ticket, result: Err(StoreError::Deleted { trajectory: job.trajectory }) });
    }
    settle(state);
}

/// What fails here fails the next durable write, which somebody waits for.
fn settle(state: &StateDir) {
    if let Err(error) = state.settle() {
        tracing::warn!(%error, cause = cause_of(&error), "the disk did not take what was written; it is written again");
    }
}

fn cause_of(error: &StoreError) -> Option<String> {
    let source = std::error::Error::source(error)?;
    let io = source.downcast_ref::<Arc<io::Error>>();
    Some(io.map_or_else(|| source.to_string(), ToString::to_string))
}
