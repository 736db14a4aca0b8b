//! The way of a call: sent once, answered once, repeated only if it provably did not count.

use std::time::Duration;

use mcp_wire::{Id, Message, Segments, method};

use crate::budget::Passage;
use crate::call::{CallId, Kept, Stage};
use crate::drift::held_back;
use crate::failure::{Failure, Kind, Outcome, draining, lost_answer, needs_auth, purged, session_lost};
use crate::handles::owner_lost;
use crate::hub::{Hub, Purpose, StreamUse};
use crate::keeping::Held;
use crate::link::{Fate, LARGEST_KEPT};
use crate::names::{LinkNonce, WireId};
use crate::output::{Note, Output, Verb};
use crate::record::JournalEntry;
use crate::seal::EventClaim;
use crate::session::{Phase, SessionIx};
use crate::symptom::Meaning;
use crate::timers::Timer;

/// A cancel goes out after a sign that the call reached the server, or after this (design §2).
const CANCEL_GRACE: Duration = Duration::from_millis(100);
/// A cancelled call whose server says nothing more is dropped after this.
const CANCEL_END: Duration = Duration::from_secs(30);
/// A call that provably did not count is sent at most this often again.
const MOST_ATTEMPTS: u32 = 3;
/// Refusals a call may meet: two doubted, one lost.
const MOST_REFUSALS: u32 = 3;

impl Hub {
    /// Sends a call, or has it wait for its session.
    pub(crate) fn dispatch(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        state.stage = Stage::Waiting;
        state.pause = None;
        let (ix, greeting) = (state.session, state.greeting);
        if self.is_handed_over() {
            return self.relay_call(call);
        }
        if self.draining {
            self.fail(call, &draining());
            return;
        }
        if self.is_orphaned(call) {
            self.fail(call, &owner_lost());
            return;
        }
        let Some(session) = self.sessions.get_mut(&ix) else {
            self.fail(call, &purged());
            return;
        };
        if greeting && session.can_greet() {
            self.greet(call);
            return;
        }
        match &session.phase {
            Phase::Backoff { failure, .. } => {
                let failure = failure.unsent();
                self.fail(call, &failure);
            }
            Phase::Lost => self.fail(call, &session_lost()),
            _ if session.is_ready() && !greeting => {
                if self.is_held_back(call) {
                    self.fail(call, &held_back());
                } else {
                    self.send_if_let(ix, call);
                }
            }
            _ => {
                session.waiting.push_back(call);
                self.wake(ix);
            }
        }
    }

    /// Sends a call unless another session with these credentials has found the upstream in trouble.
    fn send_if_let(&mut self, ix: SessionIx, call: CallId) {
        match self.passage(ix) {
            Passage::Closed(failure) => return self.fail(call, &failure),
            Passage::First { busy } => {
                if let Some(session) = self.sessions.get_mut(&ix) {
                    session.be_careful(busy);
                }
                return self.dispatch(call);
            }
            Passage::Free => {}
        }
        if !self.waits_for_trial(ix, call) {
            self.send_shared(call);
        }
    }

    pub(crate) fn send(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let (ix, link, seq, wire) = (state.session, state.link, state.seq, state.wire);
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        // A call that provably never left keeps its id; one that was refused gets a new one.
        let Some(wire) = wire.or_else(|| session.ids.take()) else {
            session.waiting.push_back(call);
            self.reserve(ix);
            return;
        };
        session.in_flight.insert(wire, call);
        let (trajectory, handshake) = (session.trajectory, session.handshake);
        if session.ids.runs_low() {
            self.reserve(ix);
        }
        self.tell_roots_change(ix);
        self.arm_keepalive(ix);
        self.touch(ix);
        let at_ms = self.now.wall_ms;
        self.order(Output::Journal(JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms }));
        let Some(body) = self.calls.get(&call).and_then(|state| state.body(wire)) else { return };
        let exchange = self.start(ix, Purpose::Call(call), Verb::Post(body), None);
        if let Some(state) = self.calls.get_mut(&call) {
            state.wire = Some(wire);
            state.handshake = handshake;
            state.exchange = exchange;
            state.stage = Stage::Sent { head: false };
        }
        self.prime(call);
    }

    /// The upstream answered: this call, and those that asked the same meanwhile.
    pub(crate) fn answer(&mut self, call: CallId, message: &Message, cursor: Option<String>) {
        self.note_handles(call, message);
        let followers = self.land_answered(call, message);
        self.answer_one(call, message, cursor);
        for follower in followers {
            self.answer_one(follower, message, None);
        }
    }

    /// Its bytes, with the client's own id.
    pub(crate) fn answer_one(&mut self, call: CallId, message: &Message, cursor: Option<String>) {
        let Some(state) = self.calls.get(&call) else { return };
        let (id, session) = (state.client_id.clone(), state.session);
        let routed = state.bearing.as_ref().is_some_and(|bearing| bearing.routed);
        let due = self.identity_due(state.link, session, routed);
        if message.id().is_none() {
            let data = error_under(&id, message);
            self.settle(call, None, data);
            return;
        }
        let mut splice = message.splice().id(&id);
        let takes_note = message.result().is_some_and(|result| self.takes_note(session, result));
        if let Some(meta) = due.as_ref().filter(|_| takes_note) {
            splice = splice.result_meta("evermux/session", meta.as_bytes());
            if !routed {
                self.mark_told(call);
            }
        }
        let data = splice.finish();
        let claim = cursor.and_then(|cursor| self.event_claim(call, Some(cursor)));
        self.settle(call, claim, data);
    }

    /// The call ends with an error of our own, and with it those that asked the same meanwhile.
    pub(crate) fn fail(&mut self, call: CallId, failure: &Failure) {
        let followers = self.land_failed(call, failure.outcome);
        self.fail_one(call, failure);
        for follower in followers {
            self.fail_one(follower, failure);
        }
    }

    fn fail_one(&mut self, call: CallId, failure: &Failure) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let (stream, greeting, exchange) = (state.stream, state.greeting, state.exchange.take());
        state.may_run = failure.outcome == Outcome::Unknown && state.was_sent();
        let Some(link) = self.links.get(&state.link) else { return };
        let data = Segments::from(failure.to_error(Some(&state.client_id), &link.claim.upstream));
        // Nobody would read what still comes.
        if let Some(exchange) = exchange {
            self.abort(exchange);
        }
        if let (Some(stream), true) = (stream, greeting) {
            self.order(Output::Accept { stream, link: None });
        }
        self.settle(call, None, data);
    }

    /// The one end of every call: its answer goes out, its number is settled, its exchange is let go.
    pub(crate) fn settle(&mut self, call: CallId, id: Option<EventClaim>, data: Segments) {
        let Some(mut state) = self.let_go(call) else { return };
        self.store_kept(state.trail, std::mem::take(&mut state.kept));
        if state.was_sent() {
            self.note_unheard(state.session, state.handshake, state.link);
        }
        let wish = self.wish_of(&state);
        let fate = if data.len() <= LARGEST_KEPT || state.stream.is_none() {
            Fate::Answered(data.clone())
        } else {
            Fate::Done
        };
        if let Some(exchange) = state.exchange {
            self.linger(exchange);
        }
        if let Some(stream) = state.stream {
            self.streams.remove(&stream);
        }
        match (wish, state.stream) {
            (Some(ticket), stream) => {
                let (owner, trail) = ((state.link, state.seq), state.trail);
                self.hold(ticket, Held { owner, stream, trail, id, data });
            }
            (None, stream) => self.conclude(stream, state.trail, id, data),
        }
        self.set_fate(state.link, state.seq, fate);
    }

    /// A cancelled call ends without an answer.
    pub(crate) fn settle_silently(&mut self, call: CallId) {
        if self.hand_over(call, None) {
            return;
        }
        for follower in self.land_failed(call, crate::failure::Outcome::Unknown) {
            self.decide_again(follower);
        }
        if let Some(state) = self.calls.get_mut(&call) {
            state.may_run = state.was_sent() && !state.cancelled;
        }
        let Some(state) = self.let_go(call) else { return };
        if let Some(exchange) = state.exchange {
            self.abort(exchange);
        }
        if let Some(stream) = state.stream {
            self.streams.remove(&stream);
            self.hang_up(stream, state.greeting);
        }
        if let Some(trail) = state.trail {
            self.store.give_up(trail, self.now.mono);
        }
        self.set_fate(state.link, state.seq, Fate::Done);
    }

    /// Ends a response without an answer; a greeting's has no head yet.
    pub(crate) fn hang_up(&mut self, stream: crate::input::StreamId, greeting: bool) {
        if greeting {
            self.order(Output::Accept { stream, link: None });
        }
        self.order(Output::End(stream));
    }

    pub(crate) fn set_fate(&mut self, link: LinkNonce, seq: Option<crate::names::Seq>, fate: Fate) {
        if let (Some(seq), Some(state)) = (seq, self.links.get_mut(&link)) {
            state.decide(seq, fate);
        }
    }

    /// Takes a call out of every table.
    pub(crate) fn let_go(&mut self, call: CallId) -> Option<Box<crate::call::Call>> {
        let state = self.calls.remove(&call)?;
        self.timers.cancel(state.deadline);
        self.timers.cancel(state.pause);
        self.timers.cancel(state.cancel_timer);
        if let Some(session) = self.sessions.get_mut(&state.session) {
            session.waiting.retain(|other| *other != call);
            if let Some(wire) = state.wire {
                session.in_flight.remove(&wire);
                let trajectory = session.trajectory;
                self.order(Output::Journal(JournalEntry::Settled { trajectory, wire }));
                self.note_over(trajectory, state.handshake, wire, !state.may_run);
            }
        }
        if state.may_run {
            self.note_loose(state.session, state.handshake, state.link);
        }
        if let Some(link) = self.links.get_mut(&state.link) {
            link.pending.remove(&(state.client_id.clone(), call));
            link.heard = self.now.mono;
        }
        if let Some(shared) = state.shared.as_deref() {
            self.leave_flight(call, state.session, shared.place);
        }
        self.arm_sweep();
        self.end_trial(state.session, call);
        self.end_if_over(state.session);
        Some(state)
    }

    /// Something for the client that is not its answer.
    pub(crate) fn deliver(&mut self, call: CallId, cursor: Option<String>, data: Segments) {
        let id = cursor.and_then(|cursor| self.event_claim(call, Some(cursor)));
        let Some(state) = self.calls.get_mut(&call) else { return };
        match state.stream {
            Some(stream) => self.order(Output::Event { stream, id, data }),
            None => state.keep(Kept { id, data, ask: None }),
        }
    }

    pub(crate) fn event_claim(&self, call: CallId, cursor: Option<String>) -> Option<EventClaim> {
        let state = self.calls.get(&call)?;
        let session = self.sessions.get(&state.session)?;
        Some(EventClaim {
            link: state.link,
            trajectory: session.trajectory,
            handshake: state.handshake,
            wire: state.wire?,
            client_id: Some(state.client_id.clone()),
            token: state.token.clone(),
            cursor,
            place: None,
        })
    }

    /// The server's position on the call's stream moved on. Returns where it was.
    pub(crate) fn note_cursor(&mut self, call: CallId, cursor: &str) -> Option<String> {
        let state = self.calls.get_mut(&call)?;
        let former = state.cursor.replace(cursor.to_owned());
        let (Some(wire), None) = (state.wire, &former) else { return former };
        let trajectory = self.sessions.get(&state.session).map(|session| session.trajectory)?;
        self.order(Output::Journal(JournalEntry::Cursor { trajectory, wire, cursor: cursor.to_owned() }));
        None
    }

    /// Provably no byte of it left: once more after a short pause, then the upstream counts as unreachable.
    pub(crate) fn on_never_written(&mut self, call: CallId, why: &str) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        state.attempts += 1;
        if state.cancelled {
            self.settle_silently(call);
            return;
        }
        if state.attempts < 2 {
            if state.borrowed {
                self.forget_wire(call);
            }
            self.pause(call, Duration::from_millis(50));
            return;
        }
        let session = state.session;
        let failure =
            Failure::new(Kind::UpstreamUnreachable, format!("the upstream cannot be reached: {why}"));
        self.fail(call, &failure);
        self.back_off(session, crate::session::Rest::Ready, &failure, None);
    }

    /// It may have run: a read is sent again, anything else is told apart as unknown (D16).
    pub(crate) fn on_lost_answer(&mut self, call: CallId, retry_after: Option<Duration>) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        state.attempts += 1;
        if state.cancelled {
            self.settle_silently(call);
        } else if (state.repeatable || state.harmless)
            && state.message.is_some()
            && state.attempts < MOST_ATTEMPTS
        {
            let pause = Duration::from_millis(250) * 2u32.saturating_pow(state.attempts);
            self.drop_wire(call, true);
            self.pause(call, retry_after.unwrap_or(pause).min(Duration::from_secs(30)));
        } else {
            let text = lost_answer(state.lost_because.as_deref());
            self.fail(call, &Failure::new(Kind::OutcomeUnknown, text));
        }
    }

    /// Counts a refusal for which the session is to blame.
    pub(crate) fn note_refusal(&mut self, call: CallId, meaning: Meaning) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        if matches!(
            meaning,
            Meaning::Gone(_) | Meaning::Denied(_) | Meaning::Astray(_) | Meaning::Doubtful(_)
        ) {
            state.refusals += 1;
            state.losses += u32::from(state.refused_in != state.handshake);
            state.refused_in = state.handshake;
        }
    }

    /// A lost or doubted session refused it at the head, so it was not processed: it waits for the next one.
    pub(crate) fn on_refused_by_session(&mut self, call: CallId, denied: bool) {
        let Some(state) = self.calls.get(&call) else { return };
        let session = self.sessions.get(&state.session);
        let doubted = session.is_some_and(|s| s.is_doubted() && s.handshake == state.handshake);
        // A client's own session is not replaced under a call: what the call builds on is gone with it (D14, D16).
        let alone = session.is_some_and(|s| {
            let trying = denied && s.handshake == state.handshake;
            s.key.owner.is_some() && !s.holds(state.handshake) && !trying
        });
        let moved = alone || (state.losses > 1 && !doubted);
        if state.cancelled {
            self.settle_silently(call);
        } else if self.is_orphaned(call) {
            self.fail(call, &owner_lost());
        } else if moved || state.refusals > MOST_REFUSALS || state.message.is_none() {
            let failure = if denied && !alone { needs_auth() } else { session_lost() };
            self.fail(call, &failure);
        } else {
            self.forget_wire(call);
            self.dispatch(call);
        }
    }

    /// A new sending is a new request: it gets a new id (never reused in a session's life).
    pub(crate) fn forget_wire(&mut self, call: CallId) {
        self.drop_wire(call, false);
    }

    /// `lost`: the sending may have been processed, so it may still run and ask beside the next one.
    fn drop_wire(&mut self, call: CallId, lost: bool) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let may_run = lost && state.was_sent();
        let Some(wire) = state.wire.take() else { return };
        let (ix, handshake, link) = (state.session, state.handshake, state.link);
        (state.cursor, state.borrowed) = (None, false);
        if may_run {
            self.note_loose(ix, handshake, link);
        }
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.in_flight.remove(&wire);
            let trajectory = session.trajectory;
            self.order(Output::Journal(JournalEntry::Settled { trajectory, wire }));
            self.note_over(trajectory, handshake, wire, !may_run);
        }
    }

    pub(crate) fn pause(&mut self, call: CallId, pause: Duration) {
        let pause = self.mint.jitter(pause);
        let timer = self.timers.arm(self.now.mono, pause, Timer::CallRetry(call));
        if let Some(state) = self.calls.get_mut(&call) {
            state.stage = Stage::Pausing;
            state.pause = Some(timer);
        }
    }

    pub(crate) fn on_call_deadline(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let sent = state.was_sent();
        let under_way = state.is_under_way();
        let failure = if state.greeting {
            let text = "the upstream did not answer the handshake in time; it goes on, try again";
            Failure::new(Kind::UpstreamUnreachable, text)
        } else if under_way {
            Failure::new(Kind::UpstreamTimeout, "no answer within this call's time: it may still run")
        } else {
            Failure::new(Kind::UpstreamUnreachable, "no session with the upstream within this call's time")
        };
        let link = self.links.get(&state.link);
        let last = link.map(|link| failure.to_error(Some(&state.client_id), &link.claim.upstream));
        if self.hand_over(call, last.map(Segments::from)) {
            return;
        }
        if sent {
            self.cancel_upstream(call, None);
        }
        self.fail(call, &failure);
    }

    /// `notifications/cancelled` from a client: only its own calls, and never `initialize` (lifecycle).
    pub(crate) fn on_cancelled(&mut self, link: LinkNonce, message: &Message) {
        let wanted = message.cancelled_request_id();
        let Some(call) = wanted.and_then(|id| self.links.get(&link)?.the_call(&id)) else {
            return;
        };
        if self.hand_over(call, None) {
            return;
        }
        self.close_flight(call);
        let Some(state) = self.calls.get_mut(&call) else { return };
        if state.greeting || state.cancelled {
            return;
        }
        state.cancelled = true;
        state.cancel = Some(message.clone());
        let stage = state.stage;
        self.close_asks_of_call(call);
        match stage {
            Stage::Waiting | Stage::Following | Stage::Pausing => self.settle_silently(call),
            Stage::Sent { head: false } => {
                let timer = self.timers.arm(self.now.mono, CANCEL_GRACE, Timer::CancelGrace(call));
                if let Some(state) = self.calls.get_mut(&call) {
                    state.cancel_timer = Some(timer);
                }
            }
            Stage::Sent { head: true } | Stage::Replaying { .. } => self.pass_cancel_on(call),
        }
    }

    /// The server is known to have the call, or had time enough: it may hear of the cancel now.
    pub(crate) fn pass_cancel_on(&mut self, call: CallId) {
        let answering = self.is_answering(call);
        let Some(state) = self.calls.get_mut(&call) else { return };
        let Some(message) = state.cancel.take() else { return };
        self.timers.cancel(state.cancel_timer);
        // What its client answered before must not be overtaken.
        if answering {
            state.cancel = Some(message);
            state.cancel_timer = Some(self.timers.arm(self.now.mono, CANCEL_GRACE, Timer::CancelGrace(call)));
            return;
        }
        let timer = self.timers.arm(self.now.mono, CANCEL_END, Timer::CancelEnd(call));
        state.cancel_timer = Some(timer);
        self.cancel_upstream(call, Some(&message));
    }

    fn cancel_upstream(&mut self, call: CallId, message: Option<&Message>) {
        let known =
            self.calls.get(&call).and_then(|state| Some((state.wire?, state.session, state.handshake)));
        let Some((wire, ix, handshake)) = known else { return };
        if !self.sessions.get(&ix).is_some_and(|session| session.holds(handshake)) {
            return;
        }
        let id = Id::number(wire.0);
        let body = match message {
            Some(message) => message.splice().cancelled_request_id(&id).finish().into_bytes(),
            None => {
                let params = format!(r#"{{"requestId":{},"reason":"timeout"}}"#, wire.0);
                let name = mcp_wire::method::NOTIFICATIONS_CANCELLED;
                mcp_wire::notification(name, Some(params.as_bytes()))
            }
        };
        self.start(ix, Purpose::Aside(None), Verb::Post(body), None);
    }

    /// A notification that evermux does not know is none of its business: it passes (design §2).
    pub(crate) fn pass_aside(&mut self, link: LinkNonce, message: &Message) {
        let ix = self.session_for(link);
        match ix.filter(|ix| self.sessions.get(ix).is_some_and(crate::session::Session::is_ready)) {
            Some(ix) => {
                self.start(ix, Purpose::Aside(None), Verb::Post(message.bytes().clone()), None);
            }
            None => self.order(Output::Note(Note::Dropped("a notification while no session was ready"))),
        }
    }

    /// A client's roots are other ones (2025-11-25, "Roots"). A pool declares none. A session that cannot be told now
    /// is told when it is there again, or it would go on with the old ones.
    pub(crate) fn pass_roots_change(&mut self, link: LinkNonce) {
        let Some(ix) = self.session_for(link) else { return };
        let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.key.owner == Some(link))
        else {
            return;
        };
        session.roots_changed = true;
        self.tell_roots_change(ix);
    }

    pub(crate) fn tell_roots_change(&mut self, ix: SessionIx) {
        let ready = |session: &&mut crate::session::Session| session.is_ready() && session.roots_changed;
        let Some(session) = self.sessions.get_mut(&ix).filter(ready) else { return };
        session.roots_changed = false;
        let body = mcp_wire::notification(method::NOTIFICATIONS_ROOTS_LIST_CHANGED, None);
        self.start(ix, Purpose::Roots, Verb::Post(body), None);
    }

    /// The message of the session goes to whom it belongs: the call whose progress it is, or the stream's.
    pub(crate) fn by_progress_token(&self, ix: SessionIx, message: &Message) -> Option<CallId> {
        let wire = message.progress_token()?.as_number_loosely()?;
        self.sessions.get(&ix)?.in_flight.get(&WireId(wire)).copied()
    }

    pub(crate) fn is_open(&self, call: CallId) -> bool {
        self.calls.contains_key(&call)
    }

    /// Ends every stream a call or link still holds open in `streams`.
    pub(crate) fn drop_stream(&mut self, stream: crate::input::StreamId) {
        if let Some(StreamUse::Listening(_) | StreamUse::Call(_)) = self.streams.remove(&stream) {
            self.order(Output::End(stream));
        }
    }
}

/// An error that came without an id (its server could not read the request, or does not care): the same error,
/// byte for byte, under the client's id.
pub(crate) fn error_under(id: &Id, message: &Message) -> Segments {
    let raw = message.error().unwrap_or(b"null");
    let parts = [b"{\"jsonrpc\":\"2.0\",\"id\":", id.as_raw(), b",\"error\":", raw, b"}"];
    Segments::from(bytes::Bytes::from(parts.concat()))
}
