//! After a cut: the answer may still be had on the upstream's own stream, by its event ids.
//!
//! Measured servers differ: some replay at once, some stay silent until asked again, some end the stream with
//! nothing, many have no event ids at all. So a replay is best effort with an end: two streams that end without
//! the answer make the call *outcome unknown*, silence is asked again with growing pauses.

use std::time::Duration;

use mcp_wire::Message;

use crate::call::{Call, CallId, Stage};
use crate::failure::{Failure, Kind};
use crate::hub::{Hub, Purpose, StreamUse};
use crate::input::{Delivery, StreamId};
use crate::link::Fate;
use crate::names::{Handshake, LinkNonce, Seq, WireId};
use crate::output::{Output, Verb};
use crate::record::JournalledCall;
use crate::seal::EventClaim;
use crate::session::SessionIx;
use crate::timers::Timer;

const MOST_ENDS: u32 = 2;
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
        let seen = delivery.after.as_ref().filter(|after| after.link == link && after.wire == entry.wire);
        let cursor = seen.and_then(|after| after.cursor.clone()).or_else(|| entry.cursor.clone());
        let sent = self.still_there(&entry, cursor);
        let (Some(sent), Some(id)) = (sent, message.id()) else {
            self.set_done(link, seq);
            self.answer_unknown(stream, link, message);
            return;
        };
        self.order(Output::Accept { stream, link: None });
        let call = CallId(self.count());
        let mut state = replayed(link, &sent, id.clone(), message.progress_token(), stream);
        state.seq = Some(seq);
        self.adopt(call, state, stream);
        if let Some(link) = self.links.get_mut(&link) {
            link.numbered.insert(seq, Fate::Live(call));
        }
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
        all.find(|(_, session)| session.trajectory == trajectory && session.handshake == handshake)
            .map(|(ix, _)| *ix)
    }

    /// A client came back by GET with the last event id it saw on a call's stream.
    pub(crate) fn resume_stream(&mut self, stream: StreamId, link: LinkNonce, after: EventClaim) {
        let live = self
            .session_by_trajectory(after.trajectory, after.handshake)
            .filter(|_| after.link == link)
            .map(|ix| (ix, self.sessions.get(&ix).and_then(|s| s.in_flight.get(&after.wire).copied())));
        match (live, after.client_id, after.cursor) {
            (Some((_, Some(call))), _, _) => self.attach(call, stream),
            (Some((session, None)), Some(client_id), Some(cursor)) => {
                let sent = Sent { session, handshake: after.handshake, wire: after.wire, cursor };
                self.order(Output::Accept { stream, link: None });
                let call = CallId(self.count());
                let state = replayed(link, &sent, client_id, after.token, stream);
                self.adopt(call, state, stream);
                self.replay(call);
            }
            _ => {
                let text = "nothing can be replayed after this event id";
                self.refuse(stream, 404, mcp_wire::error(None, -32001, text, None));
            }
        }
    }

    fn adopt(&mut self, call: CallId, state: Call, stream: StreamId) {
        self.streams.insert(stream, StreamUse::Call(call));
        if let (Some(session), Some(wire)) = (self.sessions.get_mut(&state.session), state.wire) {
            session.in_flight.insert(wire, call);
        }
        if let Some(link) = self.links.get_mut(&state.link) {
            link.pending.insert(state.client_id.clone(), call);
        }
        self.calls.insert(call, state);
        let limit = self.replay_limit(call);
        let timer = self.timers.arm(self.now.mono, limit, Timer::Call(call));
        if let Some(state) = self.calls.get_mut(&call) {
            state.deadline = Some(timer);
        }
    }

    /// A server that lost the answer may stay silent for ever; a call is never left hanging.
    fn replay_limit(&self, call: CallId) -> Duration {
        let session = self.calls.get(&call).and_then(|state| self.sessions.get(&state.session));
        let policy = session.and_then(|session| self.upstreams.get(&session.key.upstream));
        policy.and_then(|upstream| upstream.policy.call_timeout).unwrap_or(LONGEST_REPLAY)
    }

    /// The stream of a sent call ended or was cut without its answer.
    pub(crate) fn on_cut(&mut self, call: CallId, retry: Option<Duration>) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        if state.cursor.is_none() {
            self.on_lost_answer(call, None);
            return;
        }
        let ends = match state.stage {
            Stage::Replaying { ends, .. } => ends + 1,
            _ => 0,
        };
        if ends >= MOST_ENDS {
            self.on_lost_answer(call, None);
            return;
        }
        state.stage = Stage::Replaying { ends, silences: 0 };
        self.timers.cancel(state.pause.take());
        let pause = retry.unwrap_or(Duration::from_millis(200) * (1 + 4 * ends)).min(LONGEST_SILENCE);
        let timer = self.timers.arm(self.now.mono, pause, Timer::ReplayRetry(call));
        if let Some(state) = self.calls.get_mut(&call) {
            state.pause = Some(timer);
        }
    }

    /// Opens the stream again, after the newest event that is known.
    pub(crate) fn replay(&mut self, call: CallId) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let (ix, cursor) = (state.session, state.cursor.clone());
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

    /// Something came: the silence starts anew.
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
    pub(crate) fn on_replay_refused(&mut self, call: CallId, status: u16) {
        if matches!(status, 409 | 429 | 500..=599) {
            self.on_cut(call, Some(Duration::from_secs(1)));
        } else {
            self.fail(call, &Failure::new(Kind::OutcomeUnknown, crate::downstream::LOST_ANSWER));
        }
    }

    fn set_done(&mut self, link: LinkNonce, seq: Seq) {
        if let Some(state) = self.links.get_mut(&link) {
            state.numbered.insert(seq, Fate::Done);
        }
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
        link,
        session: sent.session,
        client_id,
        token,
        seq: None,
        greeting: false,
        repeatable: false,
        message: None,
        stage: Stage::Replaying { ends: 0, silences: 0 },
        wire: Some(sent.wire),
        handshake: sent.handshake,
        exchange: None,
        stream: Some(stream),
        cursor: Some(sent.cursor.clone()),
        attempts: 0,
        refusals: 0,
        cancel: None,
        cancelled: false,
        kept: Vec::new(),
        deadline: None,
        pause: None,
    }
}
