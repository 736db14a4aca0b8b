//! What must outlive the process so that another one can continue a session, as plain values.
//!
//! The file format belongs to the store, which converts from and to these types; the core never serialises
//! them. The reasons for each field are in `planning/record-format.md`.

use std::collections::BTreeMap;

use crate::drift::KnownTools;
use crate::handles::Handle;
use crate::names::{
    Continuation, Digest, Generation, Handshake, LinkNonce, Seq, SessionId, Trajectory, UpstreamName, WireId,
};

/// The configuration a session was made under, hashed by class of input so that a mismatch can name the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint {
    /// The full URL with its query.
    pub endpoint: Digest,
    /// Who the credentials stand for (D5), not what they are.
    pub identity: Digest,
    /// Headers that are not credentials.
    pub headers: Digest,
    /// The client-capability class that was declared (D6): its number. Zero where only the configuration is meant.
    pub class: Digest,
}

impl Fingerprint {
    /// The configuration alone: credentials and endpoint are found by it, whatever class of client uses them.
    #[must_use]
    pub fn of_config(self) -> Self {
        Self { class: Digest(0), ..self }
    }
}

/// How far the handshake had come when the record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeState {
    /// `initialize` was sent; no answer is known. Such a record cannot be resumed.
    Sent,
    /// The InitializeResult is here; `notifications/initialized` was not yet answered, and is sent again.
    Answered,
    /// The server has taken `notifications/initialized`.
    Acknowledged,
}

impl Record {
    /// The server is to be told what links want of the session, if it does not know.
    pub(crate) fn is_owed(&self) -> bool {
        !self.subscriptions.is_empty() || !self.log_levels.is_empty()
    }
}

/// Facts about the upstream that were observed rather than configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Learned {
    /// Whether the server offers a GET stream (`None`: not tried).
    pub get_stream: Option<bool>,
    /// Which symptom row told that the session was gone, last time it happened.
    pub gone_signature: Option<String>,
}

/// Everything another process needs to continue one upstream session. Holds no header value, token, URL,
/// argument or result (design §5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The configured upstream this session belongs to.
    pub upstream: UpstreamName,
    /// Stable until purge; names the file.
    pub trajectory: Trajectory,
    /// Counts the initializes of this trajectory, from 1.
    pub handshake: Handshake,
    /// The present attach.
    pub continuation: Continuation,
    /// The attach before it.
    pub parent: Option<Continuation>,
    /// The daemon process that wrote this.
    pub generation: Generation,
    /// The configuration the session was made under.
    pub fingerprint: Fingerprint,
    /// Absent for an upstream that mints no session: then there is only the InitializeResult to reuse.
    pub session_id: Option<SessionId>,
    /// As negotiated; the value of `MCP-Protocol-Version` from the first resumed request on.
    pub protocol_version: String,
    /// The raw JSON of the InitializeResult, as the server wrote it.
    pub initialize_result: String,
    /// The raw JSON of `clientInfo` as declared upstream.
    pub client_info: String,
    /// The raw JSON of the client capabilities as declared upstream.
    pub capabilities: String,
    /// How far the handshake has come.
    pub handshake_state: HandshakeState,
    /// First JSON-RPC id that is *not* reserved: a new process starts here, unused ids below are burned (D9).
    pub ids_reserved_until: u64,
    /// Last event id of the GET stream; trails what every attached link got.
    pub get_cursor: Option<String>,
    /// Subscribed URI to the links that want it.
    pub subscriptions: BTreeMap<String, Vec<LinkNonce>>,
    /// Log level by link.
    pub log_levels: BTreeMap<LinkNonce, String>,
    /// The link that owns a `share = "client"` session.
    pub owner: Option<LinkNonce>,
    /// Values that belong to this session, or to one before it in this trajectory.
    pub handles: Vec<Handle>,
    /// The tools that a client was told of last; `None`: none was, or there are too many.
    pub tools: Option<KnownTools>,
    /// Observed facts.
    pub learned: Learned,
    /// Unix milliseconds: when the session was made.
    pub created_ms: u64,
    /// Unix milliseconds: when a client last used it.
    pub used_ms: u64,
    /// Unix milliseconds: when the server last accepted it.
    pub ok_ms: u64,
    /// Fields of a newer minor version, name to raw JSON: kept and written back.
    pub extra: BTreeMap<String, String>,
}

/// How durable a record write must be before it is reported done (D13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sync {
    /// Replaced by rename only: survives SIGKILL, may be stale after power loss (cursors, times).
    None,
    /// File and directory are on disk: session creation, id block, generation grant, deletion.
    Durable,
}

/// One line of a process's call journal (D17). No arguments, no content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalEntry {
    /// Appended before the POST of a call is started: from here on the call may have reached the server.
    Sent {
        /// The link that asked.
        link: LinkNonce,
        /// The number its shim gave the message; `None` for clients that do not number.
        seq: Option<Seq>,
        /// The session it goes to.
        trajectory: Trajectory,
        /// The handshake of that session.
        handshake: Handshake,
        /// The JSON-RPC id towards the upstream.
        wire: WireId,
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// The first event id seen on the call's stream: where a replay starts when the client saw no event.
    Cursor {
        /// The call's session.
        trajectory: Trajectory,
        /// The call.
        wire: WireId,
        /// The upstream's event id.
        cursor: String,
    },
    /// The call has its answer (or error); it must still be found when its number is repeated.
    Settled {
        /// The call's session.
        trajectory: Trajectory,
        /// The call.
        wire: WireId,
    },
    /// The link has every answer below `seq`: those entries are needed no more.
    Acked {
        /// The link.
        link: LinkNonce,
        /// First number that may still be repeated.
        seq: Seq,
    },
    /// Appended before a client's answer to an ask is posted: it is posted at most once. Says nothing of what was
    /// answered, and no ask that waits is ever written.
    Answered(JournalledAnswer),
    /// The link ended: none of its numbers will come again.
    LinkEnded {
        /// The link.
        link: LinkNonce,
    },
}

/// An answer to an ask that was taken from its client, as the journal tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalledAnswer {
    /// The link that answered.
    pub link: LinkNonce,
    /// The number its shim gave the answer.
    pub seq: Option<Seq>,
    /// The session that asked.
    pub trajectory: Trajectory,
    /// The handshake of that session.
    pub handshake: Handshake,
    /// The call on whose stream it asked; 0 for the GET stream.
    pub wire: WireId,
    /// A hash of the server's own id of the ask.
    pub ask: Digest,
    /// Unix milliseconds.
    pub at_ms: u64,
}

/// A call of a former process, as its journal tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalledCall {
    /// The link that asked.
    pub link: LinkNonce,
    /// The number its shim gave the message.
    pub seq: Option<Seq>,
    /// The session it went to.
    pub trajectory: Trajectory,
    /// The handshake of that session.
    pub handshake: Handshake,
    /// The JSON-RPC id towards the upstream.
    pub wire: WireId,
    /// Where a replay starts when the client saw no event.
    pub cursor: Option<String>,
    /// Whether an answer had come.
    pub settled: bool,
    /// Unix milliseconds of the sending.
    pub at_ms: u64,
}
