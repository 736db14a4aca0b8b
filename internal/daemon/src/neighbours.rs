//! The other processes of this daemon around an upgrade: the successor on the main socket, and those that drain, each
//! on a socket of its own. What is known about them is shared by the reactor, its relays and every connection.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evermux_core::handover::Peer;
use evermux_core::input::Input;
use evermux_core::names::Generation;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::drain::{self, Feed};
use crate::inbox::Inbox;

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Nobody may listen on the main socket: whoever finds it dead starts a daemon meanwhile.
    pub(crate) patience: Duration,
    /// For POSTs that are relayed, before a GET stream is let go of: news come here meanwhile as they did.
    pub(crate) relays_first: Duration,
    /// After the last call of a process that drains: for clients to send what follows from its answer.
    pub(crate) linger: Duration,
    /// Idle connections may stay. Every client known closes or uses one within this time; closed by us, a request may
    /// just be on its way.
    pub(crate) idle: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(30),
            relays_first: Duration::from_millis(100),
            linger: Duration::from_secs(2),
            idle: Duration::from_secs(100),
        }
    }
}

/// See the module.
pub(crate) struct Neighbours {
    /// The main socket. Those of processes that drain lie beside it.
    socket: PathBuf,
    pub(crate) times: Times,
    handed_over: AtomicBool,
    /// The core of a process that handed over has nothing in flight any more.
    emptied: watch::Sender<bool>,
    /// The processes that drain, of those that this one knows.
    living: watch::Sender<BTreeSet<Generation>>,
    /// Those that are listened to, and the pid that each said, for people.
    followed: Mutex<BTreeMap<Generation, Option<u32>>>,
    /// Relayed POSTs under way.
    pub(crate) posts: Count,
    /// Connections that came by the doors that the successor has now.
    pub(crate) guests: Count,
    /// Relayed GET streams are to end.
    pub(crate) hang_up: CancellationToken,
    /// Connections that came by those doors are to end.
    pub(crate) parting: CancellationToken,
    /// What a process that drains has to tell.
    pub(crate) feed: Arc<Feed>,
}

impl Neighbours {
    /// `socket`: the main one.
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            times: Times::default(),
            handed_over: AtomicBool::new(false),
            emptied: watch::Sender::new(false),
            living: watch::Sender::default(),
            followed: Mutex::default(),
            posts: Count::default(),
            guests: Count::default(),
            hang_up: CancellationToken::new(),
            parting: CancellationToken::new(),
            feed: Arc::default(),
        }
    }

    /// Where a process is reached.
    pub(crate) fn path(&self, peer: Peer) -> PathBuf {
        match peer {
            Peer::Successor => self.socket.clone(),
            Peer::Draining(generation) => drain::path(&self.socket, generation),
        }
    }

    /// Every fact passes here on its way to the core: what it says of other processes is known before an order of the
    /// core builds on it.
    pub(crate) fn note(self: &Arc<Self>, input: &Input, inbox: &Inbox) {
        match input {
            Input::HandOver => self.handed_over.store(true, Ordering::Release),
            Input::TakenOver { living, .. } => self.follow(living, inbox),
            Input::Beside(manifest) => self.follow(&[manifest.generation], inbox),
            Input::Departed { generation, .. } => {
                self.living.send_if_modified(|living| living.remove(generation));
            }
            _ => {}
        }
    }

    /// Listens to these processes until they are gone. Those that are listened to already stay.
    pub(crate) fn follow(self: &Arc<Self>, living: &[Generation], inbox: &Inbox) {
        self.living.send_modify(|known| known.extend(living));
        for generation in living {
            if let Entry::Vacant(entry) = self.followed().entry(*generation) {
                entry.insert(None);
                // In no tracker: it ends with that process, and this one does not wait for it.
                tokio::spawn(drain::follow(Arc::clone(self), inbox.clone(), *generation));
            }
        }
    }

    /// A process that drains said which one it is.
    pub(crate) fn note_pid(&self, generation: Generation, pid: u32) {
        self.followed().insert(generation, Some(pid));
    }

    /// What it said.
    pub(crate) fn pid_of(&self, generation: Generation) -> Option<u32> {
        self.followed().get(&generation).copied().flatten()
    }

    fn followed(&self) -> MutexGuard<'_, BTreeMap<Generation, Option<u32>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another process is the active one.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// The core has nothing in flight any more.
    pub(crate) fn note_emptied(&self) {
        self.emptied.send_replace(true);
    }

    /// Waits for that.
    pub(crate) async fn emptied(&self) {
        drop(self.emptied.subscribe().wait_for(|emptied| *emptied).await);
    }

    /// The end of that process was taken in.
    pub(crate) fn has_departed(&self, generation: Generation) -> bool {
        !self.living.borrow().contains(&generation)
    }

    /// Waits for that.
    pub(crate) async fn departed(&self, generation: Generation) {
        drop(self.living.subscribe().wait_for(|living| !living.contains(&generation)).await);
    }
}

/// How many there are of something, to be waited for.
#[derive(Clone, Default)]
pub(crate) struct Count(watch::Sender<usize>);

impl Count {
    /// One more, until it is dropped.
    pub(crate) fn enter(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.clone())
    }

    /// Waits until there is none.
    pub(crate) async fn none(&self) {
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }

    /// Waits until there is one.
    pub(crate) async fn some(&self) {
        drop(self.0.subscribe().wait_for(|count| *count > 0).await);
    }
}

/// One of a [`Count`].
pub(crate) struct Counted(Count);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
