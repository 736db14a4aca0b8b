//! The closed set of orders the core gives. Imperative: the shell carries them out in the order given.

use std::time::Duration;

use bytes::Bytes;
use mcp_wire::Segments;

use crate::handles::HandleNews;
use crate::handover::{Forwarded, Manifest, Relayed, ReleasedStream};
use crate::input::{ExchangeId, StreamId, Ticket};
use crate::names::{
    Continuation, Digest, Generation, Handshake, SessionId, Trajectory, UpstreamName, WireId,
};
use crate::record::{Fingerprint, JournalEntry, Record, Sync};
use crate::seal::{EventClaim, LinkClaim};
use crate::status::Status;

/// What to send on a new exchange.
#[derive(Debug, Clone)]
pub enum Verb {
    /// POST this message.
    Post(Bytes),
    /// Open a stream.
    Get,
    /// End the session.
    Delete,
}

/// One HTTP exchange to start. Endpoint and credentials are the shell's, found by name and fingerprint.
#[derive(Debug, Clone)]
pub struct ExchangeSpec {
    /// Which upstream.
    pub upstream: UpstreamName,
    /// Under which endpoint and credentials: a session's id never goes to another.
    pub fingerprint: Fingerprint,
    /// What to send.
    pub verb: Verb,
    /// `Mcp-Session-Id`.
    pub session: Option<SessionId>,
    /// `MCP-Protocol-Version`; `None` before the handshake and for 2025-03-26, which has no such header.
    pub protocol_version: Option<String>,
    /// `Last-Event-ID`.
    pub last_event_id: Option<String>,
}

/// Something worth a line in the log. Never holds arguments, content, session ids or tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A session got a status.
    Attached {
        /// The upstream.
        upstream: UpstreamName,
        /// The session's stable name.
        trajectory: Trajectory,
        /// Its handshake.
        handshake: Handshake,
        /// This attach.
        continuation: Continuation,
        /// The attach before.
        parent: Option<Continuation>,
        /// The status.
        status: Status,
        /// Why.
        reason: Option<String>,
    },
    /// A client uses a session from now on.
    Leased {
        /// The upstream.
        upstream: UpstreamName,
        /// The session's stable name.
        trajectory: Trajectory,
        /// A keyed hash that tells clients apart.
        lease: Digest,
    },
    /// A client uses it no more.
    Released {
        /// The upstream.
        upstream: UpstreamName,
        /// The session's stable name.
        trajectory: Trajectory,
        /// As in [`Note::Leased`].
        lease: Digest,
        /// `ended` by the client, or `quiet` for so long that nothing is kept for it.
        why: &'static str,
        /// Since it was last heard of.
        silent: Duration,
    },
    /// An upstream said that a session is gone.
    Lost {
        /// The upstream.
        upstream: UpstreamName,
        /// The session's stable name.
        trajectory: Trajectory,
        /// The row of the symptom table.
        symptom: &'static str,
        /// Since its handshake.
        age: Duration,
        /// Since its last answer, if this process had one.
        silent: Option<Duration>,
    },
    /// A session was given up on purpose.
    Ended {
        /// The upstream.
        upstream: UpstreamName,
        /// The session's stable name.
        trajectory: Trajectory,
        /// Why.
        why: &'static str,
        /// What became of the DELETE; `None`: none was due, or none could be sent.
        delete: Option<String>,
    },
    /// An upstream could not be used; the next attempt comes after the delay.
    Trouble {
        /// The upstream.
        upstream: UpstreamName,
        /// What happened.
        what: String,
        /// Milliseconds until the next attempt.
        retry_ms: u64,
    },
    /// A call with a handle was not passed on, or found none of its own.
    Unrouted {
        /// The upstream.
        upstream: UpstreamName,
        /// Why: the word of the error, or `forbidden`.
        why: &'static str,
    },
    /// Something came that belongs to nobody, and was dropped.
    Dropped(&'static str),
}

/// An order.
#[derive(Debug, Clone)]
pub enum Output {
    /// Answer a POST or GET with an event stream; with the link id, if it is a new link's.
    Accept {
        /// The response.
        stream: StreamId,
        /// The new link.
        link: Option<LinkClaim>,
    },
    /// Answer with 202 and no body.
    Accepted(StreamId),
    /// Answer without events: an HTTP error with a JSON-RPC error body, or 204 with none.
    Refuse {
        /// The response.
        stream: StreamId,
        /// HTTP status.
        status: u16,
        /// The body.
        body: Bytes,
    },
    /// Send one event.
    Event {
        /// The response.
        stream: StreamId,
        /// Becomes the event's sealed id.
        id: Option<EventClaim>,
        /// The message; empty: only the id is news.
        data: Segments,
    },
    /// Send an event that is nothing but an id to come back with, and how long to wait before that (2025-11-25,
    /// "Sending Messages to the Server").
    Prime {
        /// The response.
        stream: StreamId,
        /// Becomes the event's sealed id.
        id: Box<EventClaim>,
    },
    /// Tell a shim that the daemon stops on purpose.
    Stopping(StreamId),
    /// End a response.
    End(StreamId),
    /// Start an exchange.
    Start {
        /// Its name in later facts.
        exchange: ExchangeId,
        /// What it is.
        spec: Box<ExchangeSpec>,
    },
    /// Read the header values of this configuration again; the answer is [`Input::Refreshed`](crate::input::Input).
    Refresh {
        /// The upstream.
        upstream: UpstreamName,
        /// The configuration.
        fingerprint: Fingerprint,
    },
    /// No exchange under this configuration will be started any more: forget its header values.
    Forget {
        /// The upstream.
        upstream: UpstreamName,
        /// The configuration.
        fingerprint: Fingerprint,
    },
    /// Drop an exchange; no fact of it is wanted any more.
    Abort(ExchangeId),
    /// Append to this process's journal before anything that follows is carried out.
    Journal(JournalEntry),
    /// Write a record.
    WriteRecord {
        /// Reported back.
        ticket: Ticket,
        /// The record.
        record: Box<Record>,
        /// How durable.
        sync: Sync,
    },
    /// Delete a record.
    DeleteRecord {
        /// The upstream.
        upstream: UpstreamName,
        /// The session's stable name.
        trajectory: Trajectory,
    },
    /// Log this.
    Note(Note),
    /// Nothing is in flight any more: the process may end.
    Drained,
    /// Everything is ready for [`Freeze`](crate::input::Input::Freeze).
    Prepared,
    /// The core is frozen, and this is what it hands over.
    Handed(Box<Manifest>),
    /// Have another process deal with a request.
    Relay(Box<Relayed>),
    /// Answer a relayed request: it is none of this process's. Nothing was done about it.
    NotMine(StreamId),
    /// Ask a process that drains for the GET stream of a session; the answer is
    /// [`Released`](crate::input::Input::Released).
    Release {
        /// The process.
        generation: Generation,
        /// The session.
        trajectory: Trajectory,
    },
    /// Tell the successor: this stream is closed, here is where it stood.
    Released(Box<ReleasedStream>),
    /// Tell the successor: this news came here, and concerns links that are there by now.
    Forward(Box<Forwarded>),
    /// Tell the successor: an answer that came here has changed what handles there are.
    HandlesChanged(Box<HandleNews>),
    /// Tell the successor: this call is over here.
    CallOver {
        /// Its session.
        trajectory: Trajectory,
        /// Its handshake.
        handshake: Handshake,
        /// Its id towards the upstream.
        wire: WireId,
        /// Nothing of it runs at the server any more, for all that is known: it was answered, not processed, or cancelled.
        answered: bool,
    },
}

/// The orders of one `handle`, oldest first.
pub type Outbox = Vec<Output>;
