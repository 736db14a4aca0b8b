//! One message of the client that is not settled yet, and what is known of its way.

use bytes::Bytes;
use mcp_wire::Id;

use super::facts::Now;

/// What a message is to the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The client's `initialize`.
    Initialize(Id),
    /// The client's `initialize` sent again because the link was lost: its answer is not the client's.
    Reinitialize(Id),
    /// `notifications/initialized` of the client.
    Initialized,
    /// The same, sent again for a new link.
    Reinitialized,
    /// Any other request.
    Request(Id),
    /// `notifications/cancelled` for this request.
    Cancel(Id),
    /// Any other notification, or an answer to the server.
    Notice,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// To be sent, or sent again.
    Queued,
    /// Sent; the head is awaited, and nothing else is sent meanwhile.
    Posting,
    /// The head came; the stream will bring the answer.
    Streaming,
}

/// A message that is not settled.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// The client's line.
    pub(crate) body: Bytes,
    pub(crate) state: State,
    /// It was handed to a connection at least once: a daemon may have it.
    pub(crate) sent: bool,
    /// A head came at least once: a daemon had it, in its order.
    pub(crate) taken: bool,
    /// Tries without progress.
    pub(crate) attempts: u32,
    /// Not to be sent again before.
    pub(crate) not_before: Now,
    /// The last event id seen on its stream.
    pub(crate) last_event: Option<String>,
    /// The link it was last sent on.
    pub(crate) link_number: u32,
    /// How often it met an unknown link.
    pub(crate) lost: u8,
    /// A reload was asked for on its behalf.
    pub(crate) reloaded: bool,
    /// The client wants no answer any more, and the daemon knows.
    pub(crate) cancelled: bool,
}

impl Entry {
    pub(crate) fn new(kind: Kind, body: Bytes) -> Self {
        Self {
            kind,
            body,
            state: State::Queued,
            sent: false,
            taken: false,
            attempts: 0,
            not_before: Now::ZERO,
            last_event: None,
            link_number: 0,
            lost: 0,
            reloaded: false,
            cancelled: false,
        }
    }

    /// What it takes of the limit on unsent messages, in bytes: its body, and a flood of tiny ones is not free.
    pub(crate) fn cost(&self) -> usize {
        self.body.len() + 256
    }

    /// The id under which the *client* awaits an answer.
    pub(crate) fn client_id(&self) -> Option<&Id> {
        match &self.kind {
            Kind::Initialize(id) | Kind::Request(id) => Some(id),
            Kind::Reinitialize(_)
            | Kind::Initialized
            | Kind::Reinitialized
            | Kind::Cancel(_)
            | Kind::Notice => None,
        }
    }

    /// The id under which the daemon will answer.
    pub(crate) fn any_id(&self) -> Option<&Id> {
        match &self.kind {
            Kind::Initialize(id) | Kind::Request(id) | Kind::Reinitialize(id) => Some(id),
            Kind::Initialized | Kind::Reinitialized | Kind::Cancel(_) | Kind::Notice => None,
        }
    }

    /// Whether it makes a link rather than needs one.
    pub(crate) fn begins_link(&self) -> bool {
        matches!(self.kind, Kind::Initialize(_) | Kind::Reinitialize(_))
    }

    /// Whether it may be sent on another link after its own was unknown.
    pub(crate) fn may_be_moved(&self, limit: u8) -> bool {
        !self.begins_link() && self.lost < limit
    }
}
