//! The closed set of facts the core can be told. Past tense: each one has happened already.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use mcp_wire::Message;

use crate::handles::HandleNews;
use crate::handles::rule::HandleRule;
use crate::handover::{Forwarded, Manifest, ReleasedStream};
use crate::names::{Digest, Generation, Handshake, Seq, SessionId, Trajectory, UpstreamName, WireId};
use crate::record::{Fingerprint, JournalledAnswer, JournalledCall, Record};
use crate::seal::{EventClaim, LinkClaim};

/// Time since the process started; the core's only notion of a clock.
pub type Mono = Duration;

/// The moment a fact is handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Never goes back; all deadlines are in it.
    pub mono: Mono,
    /// Unix milliseconds, for people and records only; may jump.
    pub wall_ms: u64,
}

/// One response body towards a client: the answer to a POST, or a GET stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// One HTTP exchange with an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExchangeId(pub u64);

/// One persist-thread order that reports back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What the config says about one upstream, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: UpstreamName,
    /// `reinitialize = "never"`: a lost session is reported, not replaced.
    pub never_reinitialize: bool,
    /// `share = "client"`: each client has a session of its own, with its own declaration.
    pub own_sessions: bool,
    /// How long such a session outlives the end of its client.
    pub grace: Duration,
    /// `trust_annotations`: a tool that its server calls read-only or idempotent may be called again.
    pub trust_annotations: bool,
    /// Ping after this much silence; `None`: never.
    pub keepalive: Option<Duration>,
    /// Longest life of a `tools/call`; `None`: no limit.
    pub call_timeout: Option<Duration>,
    /// After this without a client the session sleeps.
    pub idle: Duration,
    /// Put `_meta["evermux/session"]` on every result.
    pub annotate: bool,
    /// A header comes from a file or a command: its value may be another one after a 401.
    pub refreshable: bool,
    /// Whose credentials are used is said by the config alone, by no environment: then a client that brought no
    /// identity follows the config, and what an older config said is over.
    pub identity_from_config: bool,
    /// Values in its results that belong to the session that made them.
    pub handles: Vec<HandleRule>,
}

/// What reading header values again has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// Another value is in use from here on.
    Changed,
    /// The same as before.
    Unchanged,
    /// One cannot be had; why, without any value.
    Missing(String),
}

/// How much the core takes before it says `overloaded`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Links remembered. Beyond it the quiet one that was silent longest is forgotten; a new one is refused where
    /// none may be.
    pub links: usize,
    /// Calls in flight of one link.
    pub calls_of_link: usize,
}

impl Default for Limits {
    /// Far more than one machine's agents run at once; an answer of each may wait in memory.
    fn default() -> Self {
        Self { links: 10_000, calls_of_link: 1024 }
    }
}

/// Who sent a message, as the seal on its link id proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sender {
    /// No link id came with it.
    Unknown,
    /// A link id that this state directory's key sealed.
    Link(LinkClaim),
    /// A link id that it did not: another installation's, or made up.
    Foreign,
}

/// How a message came: its number, what its sender has, and where a repeat wants to go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivery {
    /// `Evermux-Seq`: repeated when the message is sent again.
    pub seq: Option<Seq>,
    /// `Evermux-Ack`: every number below is settled for its sender.
    pub ack: Option<Seq>,
    /// `Last-Event-ID`, unsealed.
    pub after: Option<Box<EventClaim>>,
    /// `Evermux-Identity`: whose credentials a new link uses.
    pub identity: Option<Digest>,
    /// Part of a 2025-03-26 batch: its events carry no id.
    pub batched: bool,
    /// It came through the socket of a process that drains: relayed by the active one, and never relayed on.
    pub relayed: bool,
    /// This process, which was believed to have it, has not: it was handed on, or never taken there.
    pub declined_by: Option<Generation>,
}

/// One thing that happened on an exchange with an upstream, in the order it happened.
#[derive(Debug, Clone)]
pub enum Fact {
    /// A 2xx head came.
    Head {
        /// `Mcp-Session-Id` of the response.
        session: Option<SessionId>,
    },
    /// A JSON-RPC message came.
    Message {
        /// The message.
        message: Message,
        /// The id of the event that carried it.
        cursor: Option<String>,
    },
    /// An event without data came: only its id moves on.
    Cursor(String),
    /// The server asked for this much delay before a reconnect (SSE `retry`).
    Retry(Duration),
    /// Nothing more will come.
    Ended(End),
}

/// How an exchange ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The body ended as HTTP says it must.
    Clean,
    /// Provably no byte of the request reached the server.
    NeverWritten(String),
    /// The same, because no file descriptor was left: our own fault, and none of the server's.
    Exhausted(String),
    /// The request was processed, and its answer is larger than is taken; the limit is named.
    TooLarge(String),
    /// The connection broke, the body was cut or made no sense, after the request may have been written.
    Cut(String),
    /// A head came that is not 2xx (or 2xx with a body that is no MCP answer).
    Refused(Refusal),
}

/// A refusal at the head, reduced to what the symptom table looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The body, up to a cap.
    pub body: Bytes,
    /// The content type was JSON.
    pub json: bool,
    /// `WWW-Authenticate` was there.
    pub challenge: bool,
    /// `WWW-Authenticate` says `insufficient_scope`.
    pub scope: bool,
    /// The scope that `WWW-Authenticate` asks for (RFC 6750 section 3), as the server wrote it.
    pub wanted_scope: Option<String>,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// A fact.
#[derive(Debug, Clone)]
pub enum Input {
    /// A configuration is in force (start or reload).
    Configured(Vec<Policy>),
    /// These limits are in force; before the first, the default ones are.
    Limits(Limits),
    /// Credentials for this upstream are at hand; `default`: new links get them.
    IdentityKnown {
        /// The upstream.
        upstream: UpstreamName,
        /// The configuration they make.
        fingerprint: Fingerprint,
        /// New links without an identity of their own use this one.
        default: bool,
    },
    /// Header values were read again, as ordered.
    Refreshed {
        /// The upstream.
        upstream: UpstreamName,
        /// The configuration they belong to.
        fingerprint: Fingerprint,
        /// What came of it.
        what: Renewal,
    },
    /// A header of the upstream cannot be had.
    Misconfigured {
        /// The upstream.
        upstream: UpstreamName,
        /// What is missing, without any value.
        why: String,
    },
    /// What former processes left.
    Loaded {
        /// The records that passed every check of the store.
        records: Vec<Record>,
        /// The calls of former processes.
        journal: Vec<JournalledCall>,
    },
    /// What former processes' journals say of asks.
    Answered {
        /// Answers that were taken and may have been posted.
        answers: Vec<JournalledAnswer>,
        /// Every journal could be read whole: no call of a former process is missing.
        complete: bool,
    },
    /// A POST came from a client.
    Posted {
        /// Its response.
        stream: StreamId,
        /// The upstream named in the path.
        upstream: UpstreamName,
        /// Its link.
        from: Sender,
        /// The message.
        message: Message,
        /// How it came.
        delivery: Delivery,
    },
    /// A GET came from a client.
    Listening {
        /// Its response.
        stream: StreamId,
        /// The upstream named in the path.
        upstream: UpstreamName,
        /// Its link.
        from: Sender,
        /// How it came, and where it wants to go on.
        delivery: Delivery,
    },
    /// A DELETE came from a client.
    LinkEnded {
        /// Its response.
        stream: StreamId,
        /// The upstream named in the path.
        upstream: UpstreamName,
        /// Its link.
        from: Sender,
        /// How it came.
        delivery: Delivery,
    },
    /// A client's response body is gone, or was written to its end.
    StreamClosed(StreamId),
    /// Something happened on an exchange.
    Exchange(ExchangeId, Fact),
    /// The persist thread is done with an order.
    Persisted {
        /// The order.
        ticket: Ticket,
        /// Whether it is on disk.
        ok: bool,
    },
    /// `purge`: end the sessions of one upstream, or of all.
    Purge(Option<UpstreamName>),
    /// The machine slept: the wall clock ran ahead of the monotonic one. Connections from before are not to be
    /// relied on (the shell makes new ones for what starts from here on), and servers may have given up sessions.
    Woke,
    /// Stop taking work, finish what runs.
    Drain,
    /// A successor wants to take over: begin nothing that cannot be handed over, and say
    /// [`Prepared`](crate::output::Output::Prepared) once nothing of that kind is under way and the successor's ids
    /// are on disk. Calls go on.
    Prepare,
    /// Handle nothing any more until the decision; what comes waits. Answered by
    /// [`Handed`](crate::output::Output::Handed). Only after `Prepared`.
    Freeze,
    /// The takeover came to nothing: go on as if nothing had happened.
    Resume,
    /// The successor is active. From here on this process begins nothing, writes no record, ends no session: its calls
    /// end here, everything else is the successor's. (The decision is written before this is told.)
    HandOver,
    /// The successor wants the GET stream of this session.
    Release(Trajectory),
    /// First fact of a successor: what it was handed. `living`: the processes that drain.
    TakenOver {
        /// What was handed over.
        manifest: Box<Manifest>,
        /// The predecessor, and its predecessors that still live.
        living: Vec<Generation>,
    },
    /// To a process that handed over: say what ends here ([`Handed`](crate::output::Output::Handed)), for one that
    /// started without it.
    Describe,
    /// Say what would be handed over now. Only asked of one that is prepared; it goes on.
    Draft,
    /// Records of sessions of these upstreams cannot be used, and the handles in them are known to nobody.
    Doubtful(BTreeSet<UpstreamName>),
    /// Another process still drains as this one starts cold; what it said of itself. After `Loaded`.
    Beside(Box<Manifest>),
    /// A process that drains let go of a GET stream.
    Released {
        /// The process.
        generation: Generation,
        /// What it said.
        stream: Box<ReleasedStream>,
    },
    /// A call that ran in a process that drains is over.
    EndedElsewhere {
        /// That process.
        generation: Generation,
        /// Its session.
        trajectory: Trajectory,
        /// Its handshake.
        handshake: Handshake,
        /// Its id towards the upstream.
        wire: WireId,
        /// As in [`CallOver`](crate::output::Output::CallOver); `false` also where that is not known.
        answered: bool,
    },
    /// An answer that came to a process which drains has changed what handles there are.
    HandlesChanged(Box<HandleNews>),
    /// A process that drains passed on news of a session.
    Forwarded(Box<Forwarded>),
    /// A process that drained is gone, which is proven; what its journal says of it.
    Departed {
        /// The process.
        generation: Generation,
        /// Its calls.
        journal: Vec<JournalledCall>,
        /// Answers it took.
        answers: Vec<JournalledAnswer>,
        /// Its journal could be read whole.
        complete: bool,
    },
    /// A deadline may have passed.
    Tick,
}
