//! The errors evermux makes itself (contract, "What a client sees"): one place for kind, code, outcome and words.

use bytes::Bytes;
use mcp_wire::Id;
use serde_json::json;

use crate::names::UpstreamName;

/// The kinds, in the contract's order; code −33001 is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Written, and no answer can be had.
    OutcomeUnknown,
    /// The session is gone and this call may not be moved to a new one.
    SessionLost,
    /// No connection, or in back-off.
    UpstreamUnreachable,
    /// `call_timeout` passed.
    UpstreamTimeout,
    /// 401/403 that a fresh handshake did not cure.
    NeedsAuth,
    /// This upstream's config.
    Misconfigured,
    /// A limit of this daemon.
    Overloaded,
    /// Stopping.
    Draining,
    /// A handle whose session is gone.
    OwnerLost,
    /// A handle with several owners.
    AmbiguousOwner,
    /// A handle past its time.
    Expired,
    /// Cannot be translated.
    Unsupported,
    /// The server may not mean the same by it any more: what it offers is to be looked at first.
    RevalidationRequired,
}

/// What became of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It may have run.
    Unknown,
    /// The upstream did not act on it.
    Refused,
    /// It never left.
    NotSent,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Refused => "refused",
            Self::NotSent => "not_sent",
        }
    }
}

impl Kind {
    /// The word in `data.evermux.kind`.
    pub fn word(self) -> &'static str {
        match self {
            Self::OutcomeUnknown => "outcome_unknown",
            Self::SessionLost => "session_lost",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::NeedsAuth => "needs_auth",
            Self::Misconfigured => "misconfigured",
            Self::Overloaded => "overloaded",
            Self::Draining => "draining",
            Self::OwnerLost => "owner_lost",
            Self::AmbiguousOwner => "ambiguous_owner",
            Self::Expired => "expired",
            Self::Unsupported => "unsupported",
            Self::RevalidationRequired => "revalidation_required",
        }
    }

    /// The JSON-RPC code.
    pub fn code(self) -> i64 {
        match self {
            Self::OutcomeUnknown => -33001,
            Self::SessionLost => -33002,
            Self::UpstreamUnreachable => -33003,
            Self::UpstreamTimeout => -33004,
            Self::NeedsAuth => -33005,
            Self::Misconfigured => -33006,
            Self::Overloaded => -33007,
            Self::Draining => -33008,
            Self::OwnerLost => -33009,
            Self::AmbiguousOwner => -33010,
            Self::Expired => -33011,
            Self::Unsupported => -33012,
            Self::RevalidationRequired => -33013,
        }
    }

    /// The outcome the contract's table gives this kind.
    pub fn outcome(self) -> Outcome {
        match self {
            Self::OutcomeUnknown | Self::UpstreamTimeout => Outcome::Unknown,
            Self::SessionLost | Self::NeedsAuth | Self::OwnerLost | Self::AmbiguousOwner | Self::Expired => {
                Outcome::Refused
            }
            Self::UpstreamUnreachable
            | Self::Misconfigured
            | Self::Overloaded
            | Self::Draining
            | Self::Unsupported
            | Self::RevalidationRequired => Outcome::NotSent,
        }
    }
}

/// An error of evermux's own making, ready to be told to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub kind: Kind,
    /// What became of the call.
    pub outcome: Outcome,
    /// What happened and what to do next, for people.
    pub message: String,
}

impl Failure {
    /// A failure with the outcome its kind usually has.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, outcome: kind.outcome(), message: message.into() }
    }

    /// The same, where the upstream refused what it was sent.
    pub fn refused(mut self) -> Self {
        self.outcome = Outcome::Refused;
        self
    }

    /// The same for a call that never left, whatever happened to the one that found out.
    pub(crate) fn unsent(&self) -> Self {
        Self { outcome: self.kind.outcome(), ..self.clone() }
    }

    /// The JSON-RPC error response with the client's own id.
    pub fn to_error(&self, id: Option<&Id>, upstream: &UpstreamName) -> Bytes {
        let facts =
            json!({"kind": self.kind.word(), "upstream": &*upstream.0, "outcome": self.outcome.word()});
        mcp_wire::error(id, self.kind.code(), &self.message, Some(&json!({ "evermux": facts })))
    }
}

pub(crate) fn session_lost() -> Failure {
    let text = "the upstream no longer knows this session, and this call may not be moved to a new one";
    Failure::new(Kind::SessionLost, text)
}

pub(crate) fn draining() -> Failure {
    Failure::new(Kind::Draining, "evermux is stopping; send this again")
}

pub(crate) fn purged() -> Failure {
    Failure::new(Kind::SessionLost, "the session was purged before this call was sent")
}

pub(crate) fn needs_auth() -> Failure {
    let text =
        "the upstream refused these credentials, also for a fresh session: check the upstream's headers";
    Failure::new(Kind::NeedsAuth, text)
}

pub(crate) fn version_mismatch() -> Failure {
    let text = "the upstream speaks no protocol revision with sessions that evermux knows";
    Failure::new(Kind::Unsupported, text)
}

/// Said when a call may have run and its answer is gone for good.
pub(crate) fn lost_answer(why: Option<&str>) -> String {
    let why = why.unwrap_or("the connection is gone");
    format!(
        "this call was sent and its answer was lost ({why}): it may have run. Check its effect before you send it again"
    )
}
