//! The one queue into the reactor. Readers push facts and never wait; what they may have in flight is bounded by
//! the permits they hold (D22), or is the one JSON answer that each of them reads, so the queue is bounded without the reactor
//! ever waiting for anybody.

use evermux_core::handover::Manifest;
use evermux_core::input::{ExchangeId, Fact, Input, StreamId};
use evermux_core::names::{Digest, Generation, UpstreamName};
use evermux_core::record::Fingerprint;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::body::Sink;
use crate::credentials::Resolved;

/// What the reactor is told.
pub(crate) enum Told {
    /// A fact for the core.
    Fact(Input),
    /// A client's request with the response it waits for.
    Client { stream: StreamId, sink: Sink, input: Input },
    /// An exchange with an upstream went on. The permit comes back once the core has the facts.
    Exchange(ExchangeId, Vec<Fact>, Option<OwnedSemaphorePermit>),
    /// Credentials of an upstream are at hand, or cannot be had.
    Credentials { upstream: UpstreamName, outcome: Result<Resolved, String>, default: bool },
    /// Header values were read again.
    Refreshed { upstream: UpstreamName, fingerprint: Fingerprint, outcome: Result<Option<Resolved>, String> },
    /// A control request.
    Control(Ask),
}

/// A control request, with where its answer goes.
pub(crate) enum Ask {
    Status(oneshot::Sender<serde_json::Value>),
    Reload { config: Box<evermux_config::Config>, done: oneshot::Sender<()> },
    Purge { upstream: Option<UpstreamName>, done: oneshot::Sender<Purged> },
    Stop,
    Transfer(Transfer),
}

/// A step of a takeover, for the core.
pub(crate) enum Transfer {
    /// Begin nothing that cannot be handed over; told when all is ready.
    Prepare(oneshot::Sender<()>),
    /// Say what would be handed over now, and go on.
    Draft(oneshot::Sender<Box<Manifest>>),
    /// Handle nothing more, and say what is handed over.
    Freeze(oneshot::Sender<Box<Manifest>>),
    /// Say what ends in this process, which handed over.
    Describe(oneshot::Sender<Box<Manifest>>),
    /// It came to nothing.
    Resume,
    /// The successor is active.
    HandOver,
    /// A process that drained is gone.
    Departed(Generation),
}

/// What a purge did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Purged {
    /// Sessions ended.
    pub(crate) ended: usize,
    /// Sessions whose DELETE could not be sent.
    pub(crate) owed: usize,
}

/// The identity that `/control/env` answers with.
pub(crate) type Identity = Option<Digest>;

/// The pushing end; cheap to clone.
#[derive(Clone)]
pub(crate) struct Inbox(mpsc::UnboundedSender<Told>);

impl Inbox {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Told>) {
        let (tx, rx) = mpsc::unbounded_channel();
        (Self(tx), rx)
    }

    /// A reactor that is gone takes nothing more: the process is ending.
    pub(crate) fn tell(&self, told: Told) {
        drop(self.0.send(told));
    }
}
