//! What a process hands to its successor: everything that the successor cannot read from the state directory or
//! from the names that clients present, as plain values (design §8).
//!
//! It is exact, because a frozen core handles nothing: between [`Output::Handed`](crate::output::Output) and the
//! decision nothing in it can change. The frame format belongs to the shell.

use std::time::Duration;

use bytes::Bytes;
use mcp_wire::Id;

use crate::class::Declared;
use crate::drift::Drift;
use crate::input::{Delivery, Sender, StreamId};
use crate::names::{Digest, Generation, Handshake, LinkNonce, Seq, Trajectory, UpstreamName, WireId};
use crate::record::{JournalledCall, Record};
use crate::seal::{LinkClaim, Place};

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The process that hands over.
    pub generation: Generation,
    /// Its sessions that have a record.
    pub sessions: Vec<HandedSession>,
    /// Its links.
    pub links: Vec<HandedLink>,
    /// Links that their clients ended, oldest first: their ids open, but are not served any more.
    pub ended: Vec<LinkNonce>,
    /// Calls of processes that ended before, which a number or an event id may still claim.
    pub journal: Vec<JournalledCall>,
    /// Questions that are over, oldest first: nothing is asked or answered twice.
    pub closed: Vec<ClosedAsk>,
    /// Numbers under which former processes took answers to questions.
    pub replies: Vec<(LinkNonce, Seq)>,
    /// It is not known for so long which calls of former processes run.
    pub doubt: Duration,
}

/// A question that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedAsk {
    /// The session that asked.
    pub trajectory: Trajectory,
    /// Its handshake.
    pub handshake: Handshake,
    /// The call on whose stream it came; 0 elsewhere.
    pub wire: WireId,
    /// A hash of the server's own id.
    pub ask: Digest,
}

/// How a session stands as it is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It works: no contact is needed before it is used.
    Ready,
    /// It was not in contact, or its last contact left a doubt: first contact is due, as after a cold start.
    Dormant,
    /// Its server lost it; the next step is a fresh handshake in the same trajectory.
    Lost,
    /// The same, and the config forbids to replace it.
    LostForGood,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedSession {
    /// As it stands in memory, which may be newer than the file in times and cursor. Its `ids_reserved_until` is on
    /// disk.
    pub record: Record,
    /// How it stands.
    pub standing: Standing,
    /// Why it was lost, if it was.
    pub reason: Option<String>,
    /// The successor's first block of ids, `start..end`, reserved on disk; empty if none was needed.
    pub ids: (u64, u64),
    /// The process that holds its GET stream, if one was open or about to be. It is to be asked to let go of it
    /// before another is opened.
    pub stream: Option<Generation>,
    /// Calls that run in processes that drain, the predecessor's own among them.
    pub calls: Vec<HandedCall>,
    /// Questions that wait for an answer there.
    pub asks: Vec<HandedAsk>,
    /// Calls that are over for their clients and may still run at the server: handshake, link, and for how long.
    pub loose: Vec<(Handshake, LinkNonce, Duration)>,
    /// Elicitations whose completion is still to be told, and to whom.
    pub elicitations: Vec<(String, LinkNonce)>,
    /// Lasting news of this session that links of former processes have not heard, oldest first.
    pub news: Vec<Bytes>,
    /// What changed while nobody listened.
    pub drift: Drift,
    /// Links that were told of all tools since.
    pub listed: Vec<LinkNonce>,
}

/// A call that ends in the process where it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedCall {
    /// Where that is.
    pub generation: Generation,
    /// Whose it is.
    pub link: LinkNonce,
    /// The client's own id of it.
    pub client_id: Id,
    /// Its id towards the upstream.
    pub wire: WireId,
    /// The handshake it was sent in.
    pub handshake: Handshake,
    /// Its client has cancelled it, or only its answer is looked for: nothing is asked for it any more.
    pub cancelled: bool,
}

/// A question that waits for its client's answer in the process that showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedAsk {
    /// Which process.
    pub generation: Generation,
    /// The handshake that asked.
    pub handshake: Handshake,
    /// The call on whose stream it came; 0 for the GET stream.
    pub wire: WireId,
    /// A hash of the server's own id.
    pub ask: Digest,
}

/// One link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedLink {
    /// What its id says.
    pub claim: LinkClaim,
    /// What its client said of itself, for a session of its own.
    pub own: Option<Declared>,
    /// Every number below is settled for the client.
    pub acked: Seq,
    /// Numbers below were dropped without an acknowledgement.
    pub forgotten: Seq,
    /// Numbers that were taken, and the process that knows what became of them.
    pub numbers: Vec<(Seq, Generation)>,
    /// It had a GET stream, and is waited for with everything that comes meanwhile.
    pub listening: bool,
    /// What its next GET stream begins with.
    pub missed: Vec<Bytes>,
    /// What was told on its GET stream, if its client comes back by event id.
    pub trail: Option<HandedTrail>,
    /// The session it uses.
    pub leased: Option<Trajectory>,
}

/// What was told on the GET stream of a client that comes back by event id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedTrail {
    /// Of its last event.
    pub place: Place,
    /// Events up to this number are not here, or not all of them.
    pub lost: u64,
    /// Events with their numbers, oldest first.
    pub told: Vec<(u64, Bytes)>,
    /// Where it ended in processes before, oldest first: a client may still name an event of theirs.
    pub former: Vec<Place>,
}

impl HandedTrail {
    /// Nothing of it is known but its last event.
    pub fn ending_at(place: Place) -> Self {
        Self { place, lost: place.number, told: Vec::new(), former: Vec::new() }
    }
}

/// A session's GET stream was let go of by the process that held it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasedStream {
    /// Which session.
    pub trajectory: Trajectory,
    /// Of which handshake.
    pub handshake: Handshake,
    /// The last event that was passed on; the next stream goes on from there.
    pub cursor: Option<String>,
    /// What was told since the manifest to those that come back by event id; each misses nothing that it has the last
    /// event of.
    pub heard: Vec<(LinkNonce, HandedTrail)>,
    /// What came for links that had no stream there.
    pub missed: Vec<(LinkNonce, Bytes)>,
}

/// News of the session that came on the stream of a call which ends elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// Which session.
    pub trajectory: Trajectory,
    /// Of which handshake.
    pub handshake: Handshake,
    /// The notification.
    pub message: Bytes,
    /// Whoever has heard it already.
    pub told: Option<LinkNonce>,
}

/// Which process a request is relayed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The active one, on the main socket.
    Successor,
    /// One that drains, on its own socket.
    Draining(Generation),
}

/// A request that another process deals with. What that one answers is this one's answer, as it comes; nothing of it
/// is looked at. If its response was begun (an event stream without events), the events follow.
///
/// A peer that says it knows nothing of it ([`Output::NotMine`](crate::output::Output)) gives it back: the same input
/// again, with that peer in [`Delivery::declined_by`]. A draining peer that is gone does so once its end was taken
/// (`Input::Departed`).
#[derive(Debug, Clone)]
pub struct Relayed {
    /// The client's response.
    pub stream: StreamId,
    /// To whom.
    pub to: Peer,
    /// The upstream named in the path.
    pub upstream: UpstreamName,
    /// Its link.
    pub from: Sender,
    /// What it is.
    pub what: RelayedVerb,
    /// How it came; `declined_by` says to the peer whose it is no more.
    pub delivery: Delivery,
}

/// The request itself.
#[derive(Debug, Clone)]
pub enum RelayedVerb {
    /// POST of this message.
    Post(mcp_wire::Message),
    /// GET.
    Listen,
    /// DELETE.
    EndLink,
}
