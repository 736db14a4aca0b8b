//! What people are told about a session: one status per attach, with a stable reason.

use crate::names::{Continuation, Generation, Handshake, Trajectory, UpstreamName};

/// The status of an attach (contract, "status --json").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Made by this process.
    New,
    /// Loaded, not yet in contact.
    Dormant,
    /// The server accepted the stored session.
    Resumed,
    /// The server had lost it; a fresh one took its place.
    Reinitialized,
    /// Gone and not replaced.
    NotFound,
    /// The server and we no longer share a revision.
    VersionMismatch,
    /// Kept, will be tried again.
    ResumeFailed,
}

impl Status {
    /// The word used in status, log and `_meta`.
    pub fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Dormant => "dormant",
            Self::Resumed => "resumed",
            Self::Reinitialized => "reinitialized",
            Self::NotFound => "not_found",
            Self::VersionMismatch => "version_mismatch",
            Self::ResumeFailed => "resume_failed",
        }
    }
}

/// How an upstream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamState {
    /// Nothing is wanted of it.
    Idle,
    /// A session is ready.
    Ready,
    /// A handshake or probe is under way.
    Connecting,
    /// Waiting before the next attempt.
    Backoff,
    /// 401/403 that a fresh handshake did not cure.
    NeedsAuth,
    /// It could not be reached.
    Unreachable,
    /// Its config cannot be used.
    Misconfigured,
}

impl UpstreamState {
    /// The word used in status.
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Ready => "ready",
            Self::Connecting => "connecting",
            Self::Backoff => "backoff",
            Self::NeedsAuth => "needs_auth",
            Self::Unreachable => "unreachable",
            Self::Misconfigured => "misconfigured",
        }
    }
}

/// One upstream, for status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamReport {
    /// Its name.
    pub name: UpstreamName,
    /// How it does.
    pub state: UpstreamState,
    /// More, for people.
    pub detail: Option<String>,
}

/// One session, for status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReport {
    /// Its upstream.
    pub upstream: UpstreamName,
    /// Its stable name.
    pub trajectory: Trajectory,
    /// What changed while nobody listened, and is to be looked at again: `server`, `instructions`, `tools`.
    pub revalidate: Vec<&'static str>,
    /// Its handshake.
    pub handshake: Handshake,
    /// This attach.
    pub continuation: Continuation,
    /// The attach before.
    pub parent: Option<Continuation>,
    /// The status.
    pub status: Status,
    /// Why.
    pub reason: Option<String>,
    /// Calls of former processes whose outcome is not known.
    pub unresolved_operations: usize,
    /// Handles that it still has.
    pub handles: usize,
    /// As negotiated.
    pub protocol_version: Option<String>,
    /// Links that use it.
    pub links: usize,
    /// Calls in flight.
    pub in_flight: usize,
    /// Handshakes sent by this process.
    pub initializes: u32,
    /// Unix milliseconds of the status.
    pub since_ms: u64,
}

/// A process before this one that still runs, for status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// The process.
    pub generation: Generation,
    /// Calls that end there, as far as this process knows.
    pub in_flight: usize,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The upstreams.
    pub upstreams: Vec<UpstreamReport>,
    /// The sessions.
    pub sessions: Vec<SessionReport>,
    /// Processes that drain, the oldest first.
    pub draining: Vec<DrainReport>,
    /// A record could not be written lately.
    pub persistence_degraded: bool,
}
