//! What upstreams say: each fact of an exchange goes to the machine that started it.

use std::time::Duration;

use mcp_wire::{Kind, Message, method, version};

use crate::call::{CallId, Stage};
use crate::failure::{Failure, Kind as Failed};
use crate::hub::{Exchange, Hub, Purpose};
use crate::input::{End, ExchangeId, Fact, Refusal};
use crate::names::{SessionId, WireId};
use crate::output::{ExchangeSpec, Note, Output, Verb};
use crate::session::SessionIx;
use crate::symptom::{self, Context, Meaning};
use crate::timers::Timer;

/// Handshakes, pings and notifications are answered promptly or count as unanswered.
const PROMPT: Duration = Duration::from_secs(30);
/// A probe that is not answered says nothing about the session; calls then try for themselves.
const PROBE: Duration = Duration::from_secs(10);
/// A stream that stays open after the answer is let go after this.
const LINGER: Duration = Duration::from_secs(5);

impl Hub {
    /// Starts an exchange in the session as it stands.
    pub(crate) fn start(
        &mut self,
        ix: SessionIx,
        purpose: Purpose,
        verb: Verb,
        last_event_id: Option<String>,
    ) -> Option<ExchangeId> {
        let session = self.sessions.get(&ix)?;
        let handshaking = matches!(purpose, Purpose::Initialize(_));
        // An `initialize` with a session header is refused by some servers and taken as a second handshake by
        // others; and a lost session's id has no business in a fresh one.
        let record = session.record.as_ref().filter(|_| !handshaking);
        let session_id = record.and_then(|record| record.session_id.clone());
        let spec = ExchangeSpec {
            upstream: session.key.upstream.clone(),
            fingerprint: session.key.fingerprint.of_config(),
            verb,
            protocol_version: record.map(|record| record.protocol_version.clone()).filter(|v| has_header(v)),
            last_event_id,
            session: session_id.clone(),
        };
        let exchange = ExchangeId(self.count());
        let life = match purpose {
            Purpose::Initialize(_)
            | Purpose::Initialized
            | Purpose::Aside(_)
            | Purpose::Reply(_)
            | Purpose::Delete => Some(PROMPT),
            Purpose::Probe(_) => Some(PROBE),
            Purpose::Call(_) | Purpose::Replay(_) | Purpose::Standalone => None,
        };
        let timer = life.map(|life| self.timers.arm(self.now.mono, life, Timer::Exchange(exchange)));
        let handshake = self.sessions.get(&ix)?.handshake;
        let epoch = self.epoch_of(ix);
        let state = Exchange {
            purpose,
            session: ix,
            handshake,
            minted: None,
            answered: false,
            carried_session: session_id.is_some(),
            epoch,
            retry: None,
            timer,
        };
        self.exchanges.insert(exchange, state);
        self.order(Output::Start { exchange, spec: Box::new(spec) });
        Some(exchange)
    }

    pub(crate) fn abort(&mut self, exchange: ExchangeId) {
        if let Some(state) = self.exchanges.remove(&exchange) {
            self.timers.cancel(state.timer);
            self.order(Output::Abort(exchange));
            if let Purpose::Aside(Some(wire)) = state.purpose {
                self.on_chore_over(state.session, wire, None);
            }
        }
    }

    pub(crate) fn on_exchange(&mut self, exchange: ExchangeId, fact: Fact) {
        if !self.exchanges.contains_key(&exchange) {
            return;
        }
        match fact {
            Fact::Head { session } => self.on_head(exchange, session),
            Fact::Message { message, cursor } => self.on_message(exchange, &message, cursor),
            Fact::Cursor(cursor) => self.on_cursor(exchange, &cursor),
            Fact::Retry(pause) => {
                if let Some(state) = self.exchanges.get_mut(&exchange) {
                    state.retry = Some(pause);
                }
            }
            Fact::Ended(end) => self.on_ended(exchange, end),
        }
    }

    fn on_head(&mut self, exchange: ExchangeId, minted: Option<SessionId>) {
        let now = self.now.mono;
        let Some(state) = self.exchanges.get_mut(&exchange) else { return };
        let (purpose, ix, handshake) = (state.purpose, state.session, state.handshake);
        state.minted = minted;
        if let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.handshake == handshake) {
            session.last_ok = Some(now);
            session.renewed = false;
            if matches!(purpose, Purpose::Call(_)) {
                session.worked = true;
                session.doubted = false;
                session.prove();
            }
        }
        match purpose {
            Purpose::Call(call) => {
                let Some(state) = self.calls.get_mut(&call) else { return };
                state.stage = Stage::Sent { head: true };
                if state.cancel.is_some() {
                    self.pass_cancel_on(call);
                }
            }
            Purpose::Standalone => self.on_standalone_open(exchange),
            Purpose::Replay(call) => self.watch_silence(call),
            // The head is the answer: some servers keep the empty body open.
            Purpose::Initialized => self.on_initialized_taken(exchange),
            Purpose::Reply(link) => self.on_reply_over(ix, link, exchange),
            _ => {}
        }
    }

    fn on_initialized_taken(&mut self, exchange: ExchangeId) {
        let Some(state) = self.exchanges.get_mut(&exchange).filter(|state| !state.answered) else { return };
        state.answered = true;
        let ix = state.session;
        self.on_acknowledged(ix);
    }

    fn on_cursor(&mut self, exchange: ExchangeId, cursor: &str) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        match state.purpose {
            Purpose::Call(call) | Purpose::Replay(call) => {
                self.note_cursor(call, cursor);
                self.heard_replay(call);
                self.deliver(call, Some(cursor.to_owned()), mcp_wire::Segments::default());
            }
            Purpose::Standalone => self.on_standalone_cursor(state.session, cursor),
            _ => {}
        }
    }

    fn on_message(&mut self, exchange: ExchangeId, message: &Message, cursor: Option<String>) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let purpose = state.purpose;
        if let Purpose::Call(call) | Purpose::Replay(call) = purpose {
            if matches!(purpose, Purpose::Replay(_)) && self.is_told_again(call, message, cursor.as_deref()) {
                return;
            }
            if let Some(cursor) = &cursor {
                self.note_cursor(call, cursor);
            }
            self.heard_replay(call);
        }
        match message.kind() {
            Kind::Request => self.on_ask(exchange, message, cursor),
            Kind::Notification => self.on_news(exchange, message, cursor),
            Kind::Response | Kind::ErrorResponse => self.on_response(exchange, message, cursor),
        }
    }

    /// `ping` is for whoever holds the session; anything else is for a client.
    fn on_ask(&mut self, exchange: ExchangeId, message: &Message, cursor: Option<String>) {
        let (Some(id), Some(state)) = (message.id(), self.exchanges.get(&exchange)) else { return };
        let (ix, handshake, purpose) = (state.session, state.handshake, state.purpose);
        // An answer belongs to the session that asked, and during `initialize` there is none to name yet.
        if matches!(purpose, Purpose::Initialize(_)) {
            self.order(Output::Note(Note::Dropped("a question before the session has a name")));
            return;
        }
        if self.sessions.get(&ix).is_none_or(|session| session.handshake != handshake) {
            self.pass_position(exchange, cursor);
            return;
        }
        if message.method() != Some(method::PING) {
            self.take_ask(exchange, &id, message, cursor);
            return;
        }
        self.pass_position(exchange, cursor);
        self.start(ix, Purpose::Aside(None), Verb::Post(mcp_wire::result(&id, b"{}")), None);
    }

    /// A client comes back with the newest event id of its stream, also if the event was not for it.
    pub(crate) fn pass_position(&mut self, exchange: ExchangeId, cursor: Option<String>) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        match (state.purpose, cursor) {
            (Purpose::Call(call) | Purpose::Replay(call), Some(cursor)) if self.is_open(call) => {
                self.deliver(call, Some(cursor), mcp_wire::Segments::default());
            }
            (Purpose::Standalone, Some(cursor)) => {
                let ix = state.session;
                self.on_standalone_cursor(ix, &cursor);
            }
            _ => {}
        }
    }

    fn on_news(&mut self, exchange: ExchangeId, message: &Message, cursor: Option<String>) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (purpose, ix) = (state.purpose, state.session);
        if message.method() == Some(method::NOTIFICATIONS_PROGRESS) {
            let call = self.by_progress_token(ix, message);
            let own = call.is_some_and(
                |call| matches!(purpose, Purpose::Call(other) | Purpose::Replay(other) if other == call),
            );
            // A position is only worth something on the stream it was given on.
            let (here, elsewhere) = if own { (cursor, None) } else { (None, cursor) };
            // Some event stores replay every stream's events: those of another call come on its own stream too.
            let told_again = matches!(purpose, Purpose::Replay(_)) && !own;
            if let Some(call) = call.filter(|_| !told_again) {
                self.progress(call, message, here);
            }
            self.pass_position(exchange, elsewhere);
            return;
        }
        match message.method() {
            Some(method::NOTIFICATIONS_CANCELLED) => self.on_ask_cancelled(exchange, message, cursor),
            Some(method::NOTIFICATIONS_ELICITATION_COMPLETE) => {
                self.on_elicitation_complete(exchange, message, cursor);
            }
            _ => self.on_session_news(exchange, message, cursor),
        }
    }

    fn progress(&mut self, call: CallId, message: &Message, cursor: Option<String>) {
        // A client that asked for none gets none.
        let Some(state) = self.calls.get(&call) else { return };
        let data = match &state.token {
            Some(token) => message.splice().progress_token(token).finish(),
            None if cursor.is_some() => mcp_wire::Segments::default(),
            None => return,
        };
        self.deliver(call, cursor, data);
    }

    /// Some servers name the request in `_meta.requestId` of their own notifications: the client knows it by
    /// its own id.
    pub(crate) fn with_client_ids(&self, ix: SessionIx, message: &Message) -> mcp_wire::Segments {
        let named = message.meta_request_id().and_then(|id| id.as_number());
        let call = named.and_then(|wire| self.sessions.get(&ix)?.in_flight.get(&WireId(wire)));
        match call.and_then(|call| self.calls.get(call)) {
            Some(state) => message.splice().meta_request_id(&state.client_id).finish(),
            None => mcp_wire::Segments::from(message.clone()),
        }
    }

    fn on_response(&mut self, exchange: ExchangeId, message: &Message, cursor: Option<String>) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (purpose, ix, answered, handshake) =
            (state.purpose, state.session, state.answered, state.handshake);
        let wire = self.wire_of(purpose);
        let named = message.id().and_then(|id| id.as_number()).map(WireId);
        if let Some(other) = self.strayed(exchange, wire, named) {
            // The server put it on another stream than its request's: the id says whose it is.
            self.pass_position(exchange, cursor);
            self.answer(other, message, None);
            return;
        }
        // Errors come with a null, absent or made-up id: the exchange says whose they are.
        let ours = named == wire || message.kind() == Kind::ErrorResponse;
        if answered || wire.is_none() || !ours {
            self.order(Output::Note(Note::Dropped("a response to no request of this exchange")));
            return;
        }
        let context = self.context(exchange);
        if let Some(meaning) = symptom::answer(context, message) {
            self.order(Output::Abort(exchange));
            self.on_meaning(exchange, meaning, None);
            return;
        }
        if let Some(state) = self.exchanges.get_mut(&exchange) {
            state.answered = true;
        }
        match purpose {
            Purpose::Call(call) | Purpose::Replay(call) => {
                self.note_elicitations(call, message);
                self.answer(call, message, cursor);
            }
            Purpose::Initialize(_) => self.on_initialize_result(exchange, message),
            Purpose::Probe(_) => self.on_alive(ix, true),
            Purpose::Aside(wire) => {
                if let Some(session) = self.sessions.get_mut(&ix).filter(|s| s.handshake == handshake) {
                    session.prove();
                }
                if let Some(wire) = wire {
                    self.on_chore_over(ix, wire, Some(message.kind() == Kind::Response));
                }
            }
            _ => {}
        }
    }

    fn wire_of(&self, purpose: Purpose) -> Option<WireId> {
        match purpose {
            Purpose::Call(call) | Purpose::Replay(call) => self.calls.get(&call).and_then(|call| call.wire),
            Purpose::Initialize(wire) | Purpose::Probe(wire) | Purpose::Aside(Some(wire)) => Some(wire),
            _ => None,
        }
    }

    /// The call in flight that a response names although it is not the call of its exchange.
    fn strayed(&self, exchange: ExchangeId, own: Option<WireId>, named: Option<WireId>) -> Option<CallId> {
        let named = named.filter(|named| Some(*named) != own)?;
        let state = self.exchanges.get(&exchange)?;
        let call = *self.sessions.get(&state.session)?.in_flight.get(&named)?;
        let theirs = self.calls.get(&call)?;
        (theirs.was_sent() && theirs.handshake == state.handshake).then_some(call)
    }

    /// The answer is here: the server may end the stream by itself, and its connection be used again.
    pub(crate) fn linger(&mut self, exchange: ExchangeId) {
        let now = self.now.mono;
        let Some(state) = self.exchanges.get_mut(&exchange) else { return };
        state.answered = true;
        if matches!(state.purpose, Purpose::Replay(_)) {
            self.abort(exchange);
            return;
        }
        self.timers.cancel(state.timer.take());
        state.timer = Some(self.timers.arm(now, LINGER, Timer::Exchange(exchange)));
    }

    fn context(&self, exchange: ExchangeId) -> Context {
        let state = self.exchanges.get(&exchange);
        let session = state.and_then(|state| self.sessions.get(&state.session));
        let wire = state.and_then(|state| self.wire_of(state.purpose));
        Context {
            carried_session: state.is_some_and(|state| state.carried_session),
            worked: session.is_some_and(|session| session.worked),
            wire: wire.map(|wire| wire.0),
        }
    }

    fn on_ended(&mut self, exchange: ExchangeId, end: End) {
        if self.endings.contains_key(&exchange) {
            self.close(exchange);
            self.on_delete_ended(exchange, Some(&end));
            return;
        }
        match end {
            End::Refused(refusal) => {
                let meaning = match self.exchanges.get(&exchange).map(|state| state.purpose) {
                    Some(Purpose::Standalone) => return self.on_standalone_refused(exchange, &refusal),
                    Some(Purpose::Replay(call)) => {
                        self.close(exchange);
                        return self.on_replay_refused(call, refusal.status, refusal.retry_after);
                    }
                    _ => symptom::refusal(self.context(exchange), &refusal),
                };
                self.on_meaning(exchange, meaning, Some(&refusal));
            }
            End::NeverWritten(why) => self.on_failed(exchange, &why, true),
            End::Cut(why) => self.on_failed(exchange, &why, false),
            End::Clean => self.on_clean_end(exchange),
        }
    }

    fn on_clean_end(&mut self, exchange: ExchangeId) {
        let Some(state) = self.close(exchange) else { return };
        match state.purpose {
            Purpose::Call(call) | Purpose::Replay(call) if !state.answered && self.is_open(call) => {
                self.on_cut(call, NO_ANSWER, state.retry);
            }
            Purpose::Initialize(_) | Purpose::Probe(_) if !state.answered => {
                self.on_contact_failed(state.session, state.purpose, NO_ANSWER);
            }
            Purpose::Initialized if !state.answered => self.on_acknowledged(state.session),
            Purpose::Standalone => self.on_standalone_ended(state.session, state.retry),
            Purpose::Reply(link) => self.on_reply_over(state.session, link, exchange),
            _ => {}
        }
    }

    fn on_failed(&mut self, exchange: ExchangeId, why: &str, never_written: bool) {
        let Some(state) = self.close(exchange) else { return };
        match state.purpose {
            Purpose::Call(call) if state.answered || !self.is_open(call) => {}
            Purpose::Call(call) if never_written => self.on_never_written(call, why),
            Purpose::Replay(call) if state.answered || !self.is_open(call) => {}
            Purpose::Replay(call) if never_written => self.on_replay_obstructed(call, None),
            Purpose::Call(call) | Purpose::Replay(call) => self.on_cut(call, why, state.retry),
            Purpose::Initialize(_) | Purpose::Probe(_) | Purpose::Initialized => {
                if never_written && matches!(state.purpose, Purpose::Initialize(_)) {
                    self.uncount_initialize(state.session);
                }
                if !state.answered {
                    self.on_contact_failed(state.session, state.purpose, why);
                }
            }
            Purpose::Standalone => self.on_standalone_ended(state.session, state.retry),
            Purpose::Reply(link) if never_written => {
                self.on_reply_failed(state.session, link, exchange, None);
            }
            Purpose::Reply(link) => self.on_reply_over(state.session, link, exchange),
            Purpose::Aside(_) | Purpose::Delete => {}
        }
    }

    /// Status counts handshakes that were sent (contract); this one never left.
    fn uncount_initialize(&mut self, ix: SessionIx) {
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.initializes = session.initializes.saturating_sub(1);
        }
    }

    /// What a refusal means for the call, and for the session it came from.
    fn on_meaning(&mut self, exchange: ExchangeId, meaning: Meaning, refusal: Option<&Refusal>) {
        let Some(state) = self.close(exchange) else { return };
        let (ix, handshake) = (state.session, state.handshake);
        // News about an older handshake says nothing about the session that took its place.
        let current = self.sessions.get(&ix).is_some_and(|session| session.handshake == handshake);
        // The values it was refused with are not in use any more: it goes again, and nobody is to blame.
        let outdated = state.epoch != self.epoch_of(ix);
        let open = matches!(state.purpose, Purpose::Call(call) | Purpose::Replay(call) if self.is_open(call));
        if let (true, Purpose::Call(call) | Purpose::Replay(call)) = (open, state.purpose) {
            self.note_refusal(call, meaning);
        }
        if current && !matches!(state.purpose, Purpose::Initialize(_) | Purpose::Delete) {
            match meaning {
                Meaning::Gone(symptom) => self.on_gone(ix, symptom),
                Meaning::Denied(_) if outdated => {}
                Meaning::Denied(symptom) => self.on_denied(ix, symptom),
                _ => {}
            }
        }
        match state.purpose {
            Purpose::Call(call) if open => self.on_call_refused(call, meaning, refusal),
            Purpose::Replay(call) if open => self.on_lost_answer(call, None),
            Purpose::Initialize(_) => self.on_handshake_refused(ix, meaning, refusal),
            Purpose::Probe(_) | Purpose::Initialized => self.on_contact_refused(ix, state.purpose, meaning),
            Purpose::Reply(link) => self.on_reply_refused(ix, link, exchange, meaning),
            _ => {}
        }
    }

    fn on_call_refused(&mut self, call: CallId, meaning: Meaning, refusal: Option<&Refusal>) {
        match meaning {
            Meaning::Gone(_) => self.on_refused_by_session(call, false),
            Meaning::Denied(_) => self.on_refused_by_session(call, true),
            Meaning::Answer => self.pass_error_on(call, refusal),
            Meaning::Busy(after) => {
                let text = "the upstream takes no more requests for now (HTTP 429)";
                let failure = Failure::new(Failed::UpstreamUnreachable, text).refused();
                let session = self.calls.get(&call).map(|state| state.session);
                self.fail(call, &failure);
                if let Some(session) = session {
                    self.back_off(session, crate::session::Rest::Ready, &failure, after);
                }
            }
            Meaning::Trouble(after) => {
                if let (Some(state), Some(refusal)) = (self.calls.get_mut(&call), refusal) {
                    state.lost_because = Some(format!("HTTP status {}", refusal.status));
                }
                self.on_lost_answer(call, after);
            }
            Meaning::Unusable => {
                let status = refusal.map_or(0, |refusal| refusal.status);
                let text = format!("the upstream refused the request with HTTP {status} and no MCP error");
                self.fail(call, &Failure::new(Failed::UpstreamUnreachable, text).refused());
            }
        }
    }

    /// The server's own error body is the answer, whatever id it carries.
    fn pass_error_on(&mut self, call: CallId, refusal: Option<&Refusal>) {
        let message = refusal.and_then(|refusal| Message::parse(refusal.body.clone()).ok());
        let Some(message) = message else { return };
        let followers = self.land_answered(call, &message);
        for call in std::iter::once(call).chain(followers) {
            let Some(state) = self.calls.get(&call) else { continue };
            let data = match message.id() {
                Some(_) => message.splice().id(&state.client_id).finish(),
                None => crate::calls::error_under(&state.client_id, &message),
            };
            self.settle(call, None, data);
        }
    }

    pub(crate) fn on_exchange_timeout(&mut self, exchange: ExchangeId) {
        let Some(state) = self.close(exchange) else { return };
        self.order(Output::Abort(exchange));
        match state.purpose {
            Purpose::Delete => self.on_delete_ended(exchange, None),
            // Silence proves nothing: the calls find out for themselves.
            Purpose::Probe(_) if !state.answered => self.on_alive(state.session, false),
            Purpose::Initialize(_) | Purpose::Initialized if !state.answered => {
                self.on_contact_failed(state.session, state.purpose, "no answer in time");
            }
            Purpose::Reply(link) => self.on_reply_over(state.session, link, exchange),
            _ => {}
        }
    }

    pub(crate) fn close(&mut self, exchange: ExchangeId) -> Option<Exchange> {
        let state = self.exchanges.remove(&exchange)?;
        self.timers.cancel(state.timer);
        if let Purpose::Call(call) | Purpose::Replay(call) = state.purpose
            && let Some(call) = self.calls.get_mut(&call).filter(|call| call.exchange == Some(exchange))
        {
            call.exchange = None;
        }
        if let Some(session) = self.sessions.get_mut(&state.session).filter(|s| s.step == Some(exchange)) {
            session.step = None;
        }
        if let Purpose::Aside(Some(wire)) = state.purpose {
            self.on_chore_over(state.session, wire, None);
        }
        Some(state)
    }
}

const NO_ANSWER: &str = "the stream ended without an answer";

/// `MCP-Protocol-Version` came with 2025-06-18; revisions sort as text.
fn has_header(revision: &str) -> bool {
    revision >= version::V2025_06_18
}
