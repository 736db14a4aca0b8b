//! A client's own session with the daemon: what it has asked, by number and by id.

use std::collections::{BTreeMap, BTreeSet};

use mcp_wire::{Id, Segments};

use crate::call::{CallId, copy_of};
use crate::class::{Class, Declared};
use crate::event_store::TrailId;
use crate::input::{Mono, StreamId};
use crate::lists::Pages;
use crate::names::{Continuation, Digest, Generation, Seq, Trajectory};
use crate::seal::{EventClaim, LinkClaim};
use crate::status::Status;

/// What became of a numbered message.
#[derive(Debug, Clone)]
pub(crate) enum Fate {
    /// Under way.
    Live(CallId),
    /// Answered; the answer is kept until the link says it has it.
    Answered(Segments),
    /// Done, and nothing to repeat.
    Done,
    /// A process that drains knows.
    Elsewhere(Generation),
}

/// An answer larger than this is not kept after it was handed to its response: the response is a local socket,
/// and a repeat after it broke gets *outcome unknown*.
pub(crate) const LARGEST_KEPT: usize = 64 * 1024;

/// News kept for a link without a GET stream; what is kept only says that something is to be fetched again.
const MOST_MISSED: usize = 64;

/// The same for one whose stream moves to another process: what it heard there goes on here.
const MOST_AWAITED: usize = 512;

/// Acks are journalled in steps of this many, so that an idle journal is not written for each message.
pub(crate) const ACK_STEP: u64 = 64;

/// Numbers remembered for a link that acknowledges none.
pub(crate) const MOST_NUMBERED: usize = 1024;

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) claim: LinkClaim,
    /// Whose credentials it uses now: its own, or what the config makes the default by now.
    pub(crate) identity: Digest,
    /// What it said in its own `initialize`, for a session of its own.
    pub(crate) own: Option<Declared>,
    /// Its GET stream.
    pub(crate) listening: Option<StreamId>,
    /// A stream that waits for what a process which drains told on the one before, and the event it goes on behind.
    pub(crate) arriving: Option<(StreamId, EventClaim)>,
    /// What changed at the server while it had none: a client opens its stream a moment after its handshake, and
    /// again after a cut.
    pub(crate) missed: Vec<Segments>,
    /// It is a former process's: the number of the last news that came before it was back.
    pub(crate) absent_until: Option<u64>,
    pub(crate) pages: Pages,
    pub(crate) numbered: BTreeMap<Seq, Fate>,
    /// Every number below is settled for the client.
    pub(crate) acked: Seq,
    pub(crate) journalled_ack: Seq,
    /// Numbers below were dropped without an acknowledgement.
    pub(crate) forgotten: Seq,
    /// In flight by the client's own id. A plain client may use one id for several at once: each has its own response.
    pub(crate) pending: BTreeSet<(Id, CallId)>,
    /// The events of its GET stream, if it is a plain client's.
    pub(crate) trail: Option<TrailId>,
    pub(crate) heard: Mono,
    /// Until then everything is kept for it that it would have heard: its GET stream is on its way from one process
    /// to the next.
    pub(crate) awaited_until: Option<Mono>,
    /// The attach and status it was last told in `_meta`.
    pub(crate) told: Option<(Continuation, Status)>,
    /// The attach in which it was told of all tools.
    pub(crate) listed: Option<Continuation>,
    /// The session it uses, by its stable name.
    pub(crate) leased: Option<Trajectory>,
}

impl Link {
    pub(crate) fn new(claim: LinkClaim, heard: Mono) -> Self {
        Self {
            identity: claim.identity,
            claim,
            own: None,
            listening: None,
            arriving: None,
            missed: Vec::new(),
            absent_until: None,
            pages: Pages::default(),
            numbered: BTreeMap::new(),
            acked: Seq(0),
            journalled_ack: Seq(0),
            forgotten: Seq(0),
            pending: BTreeSet::new(),
            trail: None,
            heard,
            awaited_until: None,
            told: None,
            listed: None,
            leased: None,
        }
    }

    /// Notes what became of a numbered message. A client that never acknowledges is not remembered without end:
    /// the oldest numbers then count as settled, so that a repeat of them is told *unknown* and never sent.
    pub(crate) fn decide(&mut self, seq: Seq, fate: Fate) {
        if seq < self.acked {
            return;
        }
        self.numbered.insert(seq, fate);
        while self.numbered.len() > MOST_NUMBERED {
            let settled = self.numbered.iter().find(|(_, fate)| !matches!(fate, Fate::Live(_)));
            let Some(oldest) = settled.map(|(seq, _)| *seq) else { return };
            self.numbered.remove(&oldest);
            self.forgotten = self.forgotten.max(Seq(oldest.0 + 1));
        }
    }

    /// Whether a number that is not remembered was dealt with before.
    pub(crate) fn is_past(&self, seq: Seq) -> bool {
        seq < self.acked || seq < self.forgotten
    }

    /// The client has every answer below `ack`. Says whether the journal should hear of it.
    pub(crate) fn acknowledge(&mut self, ack: Seq) -> bool {
        if ack <= self.acked {
            return false;
        }
        self.acked = ack;
        self.numbered = self.numbered.split_off(&ack);
        let due = ack.0 >= self.journalled_ack.0 + ACK_STEP;
        if due {
            self.journalled_ack = ack;
        }
        due
    }

    /// Keeps news for its next GET stream. The same news twice is one. A copy: what comes on a call's stream carries
    /// its reader's permit, and nobody may come for it.
    pub(crate) fn miss(&mut self, data: &Segments) {
        let awaited = self.awaited_until.is_some();
        let known =
            !awaited && self.missed.iter().any(|other| other.iter().flatten().eq(data.iter().flatten()));
        if !known && self.missed.len() < if awaited { MOST_AWAITED } else { MOST_MISSED } {
            self.missed.push(copy_of(data));
        }
    }

    /// It is no shim's: it numbers nothing and comes back by event id.
    pub(crate) fn is_plain(&self) -> bool {
        self.claim.class.has(Class::PLAIN)
    }

    /// The only call in flight under this id. Of several nobody can say which is meant.
    pub(crate) fn the_call(&self, id: &Id) -> Option<CallId> {
        let mut all = self.pending.range((id.clone(), CallId(0))..).take_while(|(other, _)| other == id);
        let first = all.next().map(|(_, call)| *call);
        first.filter(|_| all.next().is_none())
    }

    pub(crate) fn is_asking(&self, id: &Id) -> bool {
        self.pending.range((id.clone(), CallId(0))..).next().is_some_and(|(other, _)| other == id)
    }

    /// Nothing is under way for it.
    pub(crate) fn is_quiet(&self) -> bool {
        self.listening.is_none() && self.arriving.is_none() && self.pending.is_empty()
    }

    /// Takes its GET stream from it, also one that waits.
    pub(crate) fn take_streams(&mut self) -> impl Iterator<Item = StreamId> + use<> {
        let arriving = self.arriving.take().map(|(stream, _)| stream);
        self.listening.take().into_iter().chain(arriving)
    }
}
