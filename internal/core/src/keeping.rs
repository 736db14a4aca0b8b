//! What must be on disk before it is used: id blocks, and the record they stand in.

use std::time::Duration;

use mcp_wire::{Message, Segments, method};

use crate::call::Call;
use crate::event_store::TrailId;
use crate::failure::{Failure, Kind};
use crate::hub::{Hub, Pending};
use crate::ids::BLOCK;
use crate::input::{StreamId, Ticket};
use crate::names::{LinkNonce, Seq};
use crate::output::Output;
use crate::record::Sync;
use crate::seal::EventClaim;
use crate::session::{Phase, Rest, SessionIx};
use crate::timers::Timer;

/// A failed reservation is tried again after this.
const RESERVE_AGAIN: Duration = Duration::from_secs(1);
/// Times in the record are refreshed at most this often.
const TIMES: Duration = Duration::from_secs(60);

/// An answer that says no more than what is on disk.
#[derive(Debug)]
pub(crate) struct Held {
    /// Whose it is, by the number of its request: a repeat of that waits for it as well.
    pub(crate) owner: (LinkNonce, Option<Seq>),
    /// `None`: its client is away.
    pub(crate) stream: Option<StreamId>,
    /// Where its client may come back for it by event id.
    pub(crate) trail: Option<TrailId>,
    pub(crate) id: Option<EventClaim>,
    pub(crate) data: Segments,
}

impl Hub {
    /// Writes the session's record as it stands.
    pub(crate) fn write_record(&mut self, ix: SessionIx, sync: Sync, pending: Pending) -> Option<Ticket> {
        // From the decision on the record is the successor's.
        if self.is_handed_over() {
            return None;
        }
        let generation = self.generation;
        let now = self.now;
        let session = self.sessions.get_mut(&ix)?;
        let (continuation, parent) = (session.continuation, session.parent);
        session.times_written = Some(now.mono);
        let record = session.record.as_mut()?;
        record.generation = generation;
        record.continuation = continuation;
        record.parent = parent;
        record.used_ms = now.wall_ms;
        let record = Box::new(record.clone());
        let ticket = Ticket(self.count());
        self.tickets.insert(ticket, pending);
        self.order(Output::WriteRecord { ticket, record, sync });
        Some(ticket)
    }

    /// Writes what a link asked for. Its answer is held until that is done, or a kill right after the answer would
    /// lose what the client was told it has.
    pub(crate) fn write_wish(&mut self, ix: SessionIx) {
        self.wish = self.write_record(ix, Sync::None, Pending::Update).or(self.wish);
    }

    /// The record that the answer to such a request waits for.
    pub(crate) fn wish_of(&self, call: &Call) -> Option<Ticket> {
        let wishes = [method::RESOURCES_SUBSCRIBE, method::RESOURCES_UNSUBSCRIBE, method::LOGGING_SET_LEVEL];
        let name = || call.message.as_ref().and_then(Message::method);
        let bears = call.bearing.is_some() || call.message.is_none();
        self.wish.filter(|_| bears || name().is_some_and(|name| wishes.contains(&name)))
    }

    pub(crate) fn hold(&mut self, ticket: Ticket, held: Held) {
        self.held.entry(ticket).or_default().push(held);
    }

    /// The client comes again for an answer that is held. Says whether it is.
    pub(crate) fn hold_on(&mut self, link: LinkNonce, seq: Seq, stream: StreamId) -> bool {
        let mut all = self.held.values_mut().flatten();
        let Some(held) = all.find(|held| held.owner == (link, Some(seq))) else { return false };
        if let Some(old) = held.stream.replace(stream) {
            self.order(Output::End(old));
        }
        true
    }

    fn let_held_go(&mut self, ticket: Ticket) {
        for Held { stream, trail, id, data, .. } in self.held.remove(&ticket).unwrap_or_default() {
            self.conclude(stream, trail, id, data);
        }
    }

    /// The same by its trail.
    pub(crate) fn hold_trail(&mut self, trail: TrailId, stream: StreamId) -> bool {
        let mut all = self.held.values_mut().flatten();
        let Some(held) = all.find(|held| held.trail == Some(trail)) else { return false };
        if let Some(old) = held.stream.replace(stream) {
            self.store.release(old);
            self.order(Output::End(old));
        }
        true
    }

    /// Reserves the next block of ids: on disk before the first of them is used (D9).
    pub(crate) fn reserve(&mut self, ix: SessionIx) {
        if !self.may_reserve() {
            return;
        }
        let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.reserving.is_none()) else {
            return;
        };
        let own = session.ids.end();
        let Some(record) = session.record.as_mut() else { return };
        // Behind what was granted to a successor, too.
        let start = own.max(record.ids_reserved_until);
        let until = start + BLOCK;
        record.ids_reserved_until = until;
        let ticket = self.write_record(ix, Sync::Durable, Pending::Reservation(ix, start));
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.reserving = ticket;
            self.timers.cancel(session.reserve_again.take());
        }
    }

    pub(crate) fn on_persisted(&mut self, ticket: Ticket, ok: bool) {
        let Some(pending) = self.tickets.remove(&ticket) else { return };
        self.degraded = !ok;
        self.let_held_go(ticket);
        match pending {
            Pending::Creation(ix) => self.acknowledge(ix),
            Pending::Reservation(ix, start) => self.on_reserved(ix, start, ok),
            Pending::Grant(ix, start) => self.on_granted(ix, start, ok),
            Pending::Update => {}
        }
    }

    fn on_reserved(&mut self, ix: SessionIx, start: u64, ok: bool) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.reserving = None;
        if !ok {
            let empty = session.ids.is_empty();
            if session.phase == Phase::Waking {
                session.phase = Phase::Resting(Rest::Dormant);
            }
            self.timers.cancel(session.reserve_again.take());
            let timer = self.timers.arm(self.now.mono, RESERVE_AGAIN, Timer::Reserve(ix));
            session.reserve_again = Some(timer);
            if empty {
                self.fail_waiting(ix, &disk_refuses());
            }
            return;
        }
        session.ids.granted(start, start + BLOCK);
        match session.phase {
            Phase::Waking => self.first_contact(ix),
            Phase::Resting(Rest::Ready) => self.release(ix),
            Phase::Resting(Rest::Fresh) if !session.waiting.is_empty() => self.begin_initialize(ix),
            _ => {}
        }
    }

    /// Something went well: note the time, seldom, so that a record tells how old it is.
    pub(crate) fn touch(&mut self, ix: SessionIx) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let due = session.times_written.is_none_or(|at| now.mono.saturating_sub(at) > TIMES);
        if due && session.record.is_some() {
            self.write_record(ix, Sync::None, Pending::Update);
        }
    }
}

fn disk_refuses() -> Failure {
    let text =
        "evermux cannot write its state directory, and sends nothing it could not account for: see its log";
    Failure::new(Kind::Overloaded, text)
}
