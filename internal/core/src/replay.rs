//! After a cut: the answer may still be had on the upstream's own stream, by its event ids.
//!
//! Measured servers differ: some replay at once, some stay silent until asked again, some end the stream with
//! nothing, many have no event ids at all. So a replay is best effort with an end: two streams that end without
//! the answer make the call *outcome unknown*, silence is asked again with growing pauses.

use std::time::Duration;

use mcp_wire::{Kind, Message};

use crate::asks::Left;
use crate::call::{Call, CallId, Stage};
use crate::flights::Shared;
use crate::hub::{Exchange, Hub, Purpose, StreamUse};
use crate::input::{Delivery, StreamId};
use crate::link::Fate;
use crate::names::{Handshake, LinkNonce, Seq, WireId};
use crate::output::{Output, Verb};
use crate::record::JournalledCall;
use crate::seal::EventClaim;
use crate::session::SessionIx;
use crate::timers::Timer;

const MOST_ENDS: u32 = 2;
const MOST_OBSTRUCTED: u32 = 5;
/// Whatever a server's `retry` says: a stream that ends at once must not become a loop. It may ask for any longer time
/// ("the client MUST respect the `retry` field", 2025-11-25): the call's own limit ends the search.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
/// How long an answer is looked for where the config sets no `call_timeout`.
const LONGEST_REPLAY: Duration = Duration::from_secs(3600);

/// A call of another process (or of an event id) as far as it can be told again.
struct Sent {
    session: SessionIx,
    handshake: Handshake,
    wire: WireId,
    cursor: String,
}

impl Hub {
    /// A numbered call that a former process sent: its stream is read on, or its outcome is unknown.
    pub(crate) fn revive_call(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        seq: Seq,
        message: &Message,
        delivery: &Delivery,
    ) {
        let Some(entry) = self.journal.remove(&(link, seq)) else { return };
        // The client's own position is the better one: what it has seen must not come twice.
        let seen = delivery.after.as_ref().filter(|after| {
            after.link == link && after.trajectory == entry.trajectory && after.wire == entry.wire
        });
        let cursor = seen.and_then(|after| after.cursor.clone()).or_else(|| entry.cursor.clone());
        let sent = self.still_there(&entry, cursor);
        let (Some(sent), Some(id)) = (sent, message.id()) else {
            self.set_fate(link, Some(seq), Fate::Done);
            self.answer_unknown(stream, link, message);
            let session = self.session_by_trajectory(entry.trajectory, entry.handshake);
            if let Some(session) = session.filter(|_| !entry.settled) {
                self.note_loose(session, entry.handshake, link);
            }
            return;
        };
        self.order(Output::Accept { stream, link: None });
        let call = CallId(self.count());
        let mut state = replayed(link, &sent, id.clone(), message.progress_token(), stream);
        (state.seq, state.ended_before) = (Some(seq), entry.settled);
        // What the answer means for the session is in the request alone.
        state.shared = Shared::of(message);
        state.bearing = self.bearing_of_sent(state.session, message);
        self.adopt(call, state, stream);
        self.set_fate(link, Some(seq), Fate::Live(call));
        self.replay(call);
    }

    fn still_there(&self, entry: &JournalledCall, cursor: Option<String>) -> Option<Sent> {
        let session = self.session_by_trajectory(entry.trajectory, entry.handshake)?;
        Some(Sent { session, handshake: entry.handshake, wire: entry.wire, cursor: cursor? })
    }

    fn session_by_trajectory(
        &self,
        trajectory: crate::names::Trajectory,
        handshake: Handshake,
    ) -> Option<SessionIx> {
        let mut all = self.sessions.iter();
        all.find(|(_, session)| session.trajectory == trajectory && session.holds(handshake))
            .map(|(ix, _)| *ix)
    }

    /// A client came back by GET with the last event id it saw on a call's stream: what followed is in the event store,
    /// or with the server, or nobody knows.
    pub(crate) fn resume_stream(&mut self, stream: StreamId, link: LinkNonce, after: EventClaim) {
        if self.resume_from_store(stream, link, &after) {
            return;
        }
        let live = self
            .session_by_trajectory(after.trajectory, after.handshake)
            .filter(|_| after.link == link)
            .map(|ix| (ix, self.sessions.get(&ix).and_then(|s| s.in_flight.get(&after.wire).copied())));
        // Where its own id has no position yet: the first one was journalled before it could reach the client.
        let sent = live.and_then(|_| self.claim_sent(&after));
        let is_open = sent.is_some();
        let cursor = after.cursor.clone().or_else(|| sent?.cursor);
        // Its client is done with it, and others wait for it by now.
        let strange = live.and_then(|(_, call)| self.calls.get(&call?)).is_some_and(|call| call.link != link);
        match (live.filter(|_| !strange), after.client_id, cursor) {
            (Some((_, Some(call))), _, cursor) => {
                self.attach(call, stream);
                let after = EventClaim { cursor, client_id: None, ..after };
                self.reshow_asks(call, stream, Some(&after));
            }
            (Some((session, None)), Some(client_id), Some(cursor)) => {
                let sent = Sent { session, handshake: after.handshake, wire: after.wire, cursor };
                self.order(Output::Accept { stream, link: None });
                let call = CallId(self.count());
                let mut state = replayed(link, &sent, client_id, after.token, stream);
                state.ended_before = !is_open;
                self.adopt(call, state, stream);
                self.replay(call);
            }
            (_, Some(client_id), _) if after.link == link => {
                if let Some((session, _)) = live.filter(|_| is_open) {
                    self.note_loose(session, after.handshake, link);
                }
                self.tell_unknown(stream, link, &client_id, after.token);
            }
            _ => {
                let text = "nothing can be replayed after this event id";
                self.refuse(stream, 404, mcp_wire::error(None, -32001, text, None));
            }
        }
    }

    /// A call of a former process, journalled without a number: its client has come for it, and nobody else will.
    fn claim_sent(&mut self, after: &EventClaim) -> Option<JournalledCall> {
        let is_it = |call: &JournalledCall| {
            let (told, sent) = ((after.link, after.trajectory), (call.link, call.trajectory));
            told == sent && (after.handshake, after.wire) == (call.handshake, call.wire)
        };
        let at = self.unclaimed.iter().position(is_it)?;
        Some(self.unclaimed.swap_remove(at))
    }

    fn adopt(&mut self, call: CallId, state: Call, stream: StreamId) {
        self.streams.insert(stream, StreamUse::Call(call));
        if let (Some(session), Some(wire)) = (self.sessions.get_mut(&state.session), state.wire) {
            session.in_flight.insert(wire, call);
        }
        if let Some(link) = self.links.get_mut(&state.link) {
            link.pending.insert((state.client_id.clone(), call));
        }
        let asked = (call, state.client_id.clone(), state.token.clone());
        let trail = self.open_trail(stream, state.link, Some(asked));
        self.calls.insert(call, Box::new(Call { trail, ..state }));
        self.prime(call);
        self.reshow_asks(call, stream, None);
        self.limit_replay(call);
    }

    /// A server that lost the answer may stay silent for ever; a call is never left hanging.
    fn limit_replay(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call).filter(|state| state.deadline.is_none()) else { return };
        let session = self.sessions.get(&state.session);
        let policy = session.and_then(|session| self.upstreams.get(&session.key.upstream));
        let limit = policy.and_then(|upstream| upstream.policy.call_timeout).unwrap_or(LONGEST_REPLAY);
        state.deadline = Some(self.timers.arm(self.now.mono, limit, Timer::Call(call)));
    }

    /// The stream of a sent call ended or was cut without its answer; `polls`: it said when to come back.
    pub(crate) fn on_cut(&mut self, call: CallId, why: &str, polls: bool) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        // The first reason is the one that counts: the later ones are about looking for the answer.
        state.lost_because.get_or_insert_with(|| why.to_owned());
        let ends = match state.stage {
            // A server that says when to come back polls on purpose (2025-11-25, "Sending Messages").
            Stage::Replaying { ends, .. } => ends + u32::from(!polls),
            _ => 0,
        };
        if state.cancelled || state.cursor.is_none() || ends >= MOST_ENDS {
            self.on_lost_answer(call, None);
            return;
        }
        state.stage = Stage::Replaying { ends, silences: 0 };
        let pause = state.retry.unwrap_or(Duration::from_millis(200) * (1 + 4 * ends));
        self.replay_after(call, pause);
        self.limit_replay(call);
    }

    fn replay_after(&mut self, call: CallId, pause: Duration) {
        let pause = pause.max(SHORTEST_PAUSE);
        let Some(state) = self.calls.get_mut(&call) else { return };
        self.timers.cancel(state.pause.take());
        state.pause = Some(self.timers.arm(self.now.mono, pause, Timer::ReplayRetry(call)));
    }

    /// What came last cannot be dealt with yet: it comes again, with all that is behind it.
    pub(crate) fn read_again(&mut self, call: CallId, behind: Option<String>) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        state.cursor = behind;
        let pause = state.left.map_or(SHORTEST_PAUSE, Left::pause).max(state.retry.unwrap_or_default());
        if let Some(exchange) = state.exchange.take() {
            self.abort(exchange);
        }
        self.replay_after(call, pause);
    }

    /// Opens the stream again, after the newest event that is known.
    pub(crate) fn replay(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let (ix, cursor) = (state.session, state.cursor.clone());
        if !self.sessions.get(&ix).is_some_and(|session| session.holds(state.handshake)) {
            self.on_lost_answer(call, None);
            return;
        }
        if !matches!(state.stage, Stage::Replaying { .. }) {
            state.stage = Stage::Replaying { ends: 0, silences: 0 };
        }
        if let Some(old) = state.exchange.take() {
            self.abort(old);
        }
        let exchange = self.start(ix, Purpose::Replay(call), Verb::Get, cursor);
        if let Some(state) = self.calls.get_mut(&call) {
            state.exchange = exchange;
        }
        self.watch_silence(call);
    }

    /// Something came on the stream: it is good for more, and the silence starts anew.
    pub(crate) fn heard_replay(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        if let Stage::Replaying { ends, silences } = &mut state.stage {
            (*ends, *silences) = (0, 0);
            self.watch_silence(call);
        }
    }

    /// A replay gives what comes *after* a cursor (basic/transports, resumability), but that of one known SDK begins with the cursor's
    /// own event. That is no sign of life either, or a server that has nothing else would be asked for ever. An answer is taken all the same:
    /// with one, there is nothing after it.
    pub(crate) fn is_told_again(on: &Exchange, message: &Message, cursor: Option<&str>) -> bool {
        cursor.is_some() && cursor == on.after.as_deref() && message.kind() == Kind::Notification
    }

    pub(crate) fn watch_silence(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let Stage::Replaying { silences, .. } = state.stage else { return };
        self.timers.cancel(state.pause.take());
        let wait = (Duration::from_secs(2) * 2u32.saturating_pow(silences.min(4))).min(LONGEST_SILENCE);
        state.pause = Some(self.timers.arm(self.now.mono, wait, Timer::ReplaySilent(call)));
    }

    /// One server sends what it kept only to the *next* GET: ask again.
    pub(crate) fn on_replay_silent(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        if let Stage::Replaying { silences, .. } = &mut state.stage {
            *silences += 1;
        }
        self.replay(call);
    }

    /// The GET was refused: a second stream still registered or an outage is waited for, anything else is final.
    pub(crate) fn on_replay_refused(&mut self, call: CallId, status: u16, after: Option<Duration>) {
        if !self.is_open(call) {
            return;
        }
        if matches!(status, 409 | 429 | 500..=599) {
            self.on_replay_obstructed(call, after);
        } else {
            self.on_lost_answer(call, None);
        }
    }

    /// The GET could not be had for now: asked again with growing pauses, about half a minute long.
    pub(crate) fn on_replay_obstructed(&mut self, call: CallId, after: Option<Duration>) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let Stage::Replaying { silences, .. } = &mut state.stage else { return };
        *silences += 1;
        if *silences > MOST_OBSTRUCTED || state.cancelled {
            self.on_lost_answer(call, None);
            return;
        }
        let pause = Duration::from_millis(500) * 2u32.saturating_pow(*silences);
        let pause = after.unwrap_or(pause).clamp(Duration::from_millis(200), LONGEST_SILENCE);
        let pause = pause.max(state.retry.unwrap_or_default());
        self.replay_after(call, pause);
    }
}

fn replayed(
    link: LinkNonce,
    sent: &Sent,
    client_id: mcp_wire::Id,
    token: Option<mcp_wire::Id>,
    stream: StreamId,
) -> Call {
    Call {
        token,
        stage: Stage::Replaying { ends: 0, silences: 0 },
        wire: Some(sent.wire),
        handshake: sent.handshake,
        cursor: Some(sent.cursor.clone()),
        revived_after: Some(sent.cursor.clone()),
        ..Call::new(link, sent.session, client_id, stream)
    }
}
