//! What upstreams say: each fact of an exchange goes to the machine that started it.

use std::time::Duration;

use bytes::Bytes;
use mcp_wire::{Kind, Message, method};

use crate::call::{CallId, Stage};
use crate::hub::{Exchange, Hub, Purpose};
use crate::input::{ExchangeId, Fact, Refusal};
use crate::names::{SessionId, WireId};
use crate::offers::has_header;
use crate::output::{ExchangeSpec, Note, Output, Verb};
use crate::session::SessionIx;
use crate::symptom::{self, Meaning};
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
        let protocol_version = match record {
            Some(record) => Some(record.protocol_version.clone()).filter(|version| has_header(version)),
            None => session.offered.header(&session.declared).filter(|_| handshaking),
        };
        let session_id = record.and_then(|record| record.session_id.clone());
        let spec = ExchangeSpec {
            upstream: session.key.upstream.clone(),
            fingerprint: session.key.fingerprint.of_config(),
            verb,
            protocol_version,
            last_event_id: last_event_id.clone(),
            session: session_id.clone(),
        };
        let exchange = ExchangeId(self.count());
        let life = match purpose {
            Purpose::Initialize(_)
            | Purpose::Initialized
            | Purpose::Aside(_)
            | Purpose::Roots
            | Purpose::Reply(_)
            | Purpose::Delete
            | Purpose::Evict => Some(PROMPT),
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
            ended: false,
            unclaimed: None,
            epoch,
            retry: None,
            after: last_event_id,
            timer,
        };
        self.exchanges.insert(exchange, Box::new(state));
        self.order(Output::Start { exchange, spec: Box::new(spec) });
        Some(exchange)
    }

    /// Has the shell drop an exchange, unless its end is what is being dealt with.
    fn stop(&mut self, exchange: ExchangeId) {
        if self.exchanges.get(&exchange).is_some_and(|state| !state.ended) {
            self.order(Output::Abort(exchange));
        }
    }

    pub(crate) fn abort(&mut self, exchange: ExchangeId) {
        self.stop(exchange);
        if let Some(state) = self.exchanges.remove(&exchange) {
            self.timers.cancel(state.timer);
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
            Fact::Retry(pause) => self.on_retry(exchange, pause),
            Fact::Ended(end) => {
                if let Some(state) = self.exchanges.get_mut(&exchange) {
                    state.ended = true;
                }
                self.on_ended(exchange, end);
            }
        }
    }

    fn on_head(&mut self, exchange: ExchangeId, minted: Option<SessionId>) {
        let now = self.now.mono;
        let Some(state) = self.exchanges.get_mut(&exchange) else { return };
        let (purpose, ix, handshake) = (state.purpose, state.session, state.handshake);
        state.minted.clone_from(&minted);
        let carried = state.carried_session;
        let current = self.sessions.get(&ix).is_some_and(|session| session.handshake == handshake);
        let in_session = matches!(
            purpose,
            Purpose::Call(_) | Purpose::Probe(_) | Purpose::Initialized | Purpose::Aside(_) | Purpose::Roots
        );
        self.note_life(ix);
        if current && carried && in_session {
            self.follow_switch(ix, minted);
        }
        if let Some(session) = self.sessions.get_mut(&ix).filter(|_| current) {
            session.last_ok = Some(now);
            session.renewed = false;
        }
        match purpose {
            Purpose::Call(call) => {
                let Some(state) = self.calls.get_mut(&call) else { return };
                state.stage = Stage::Sent { head: true };
                if state.cancel.is_some() {
                    self.pass_cancel_on(call);
                }
                self.end_trial(ix, call);
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

    /// It counts for the connections after this one too, until another comes (WHATWG HTML, 9.2 "Server-sent events").
    fn on_retry(&mut self, exchange: ExchangeId, pause: Duration) {
        let Some(state) = self.exchanges.get_mut(&exchange) else { return };
        state.retry = Some(pause);
        match state.purpose {
            Purpose::Call(call) | Purpose::Replay(call) => {
                if let Some(call) = self.calls.get_mut(&call) {
                    call.retry = Some(pause);
                }
            }
            Purpose::Standalone => {
                if let Some(session) = self.sessions.get_mut(&state.session) {
                    session.standalone_retry = Some(pause);
                }
            }
            _ => {}
        }
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
        if Self::is_told_again(state, message, cursor.as_deref()) {
            return;
        }
        let mut former = None;
        if let Purpose::Call(call) | Purpose::Replay(call) = purpose {
            former = cursor.as_deref().and_then(|cursor| self.note_cursor(call, cursor));
            self.heard_replay(call);
        }
        if matches!(message.kind(), Kind::Request | Kind::Notification) {
            self.prove_by_call(exchange);
        }
        match message.kind() {
            Kind::Request => self.on_ask(exchange, message, (former, cursor)),
            Kind::Notification => self.on_news(exchange, message, cursor),
            Kind::Response | Kind::ErrorResponse => self.on_response(exchange, message, cursor),
        }
    }

    /// The server works on a call in this session. Its head alone is no proof: a lost session may be told in a 200.
    fn prove_by_call(&mut self, exchange: ExchangeId) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (ix, handshake) = (state.session, state.handshake);
        if !matches!(state.purpose, Purpose::Call(_)) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.handshake == handshake) {
            session.worked = true;
            session.flaps += u32::from(std::mem::take(&mut session.doubted));
            session.denials = 0;
            session.prove();
        }
    }

    /// `ping` is for whoever holds the session; anything else is for a client.
    /// `positions`: before it, and its own.
    fn on_ask(
        &mut self,
        exchange: ExchangeId,
        message: &Message,
        positions: (Option<String>, Option<String>),
    ) {
        let (former, cursor) = positions;
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
            let left = self.take_ask(exchange, &id, message, former.as_deref(), cursor);
            if let (true, Purpose::Replay(call)) = (left, purpose) {
                self.read_again(call, former);
            }
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
        let Some(ix) = self.exchanges.get(&exchange).map(|state| state.session) else { return };
        match message.method() {
            Some(method::NOTIFICATIONS_PROGRESS) => {
                let call = self.by_progress_token(ix, message);
                self.tell_its_call(exchange, call, cursor, |hub, call, here| {
                    hub.progress(call, message, here)
                });
            }
            Some(method::NOTIFICATIONS_CANCELLED) => self.on_ask_cancelled(exchange, message, cursor),
            Some(method::NOTIFICATIONS_ELICITATION_COMPLETE) => {
                self.on_elicitation_complete(exchange, message, cursor);
            }
            _ => self.on_session_news(exchange, message, cursor),
        }
    }

    /// What is about one call goes to that call's client, whatever stream it came on; `tell` does it, with the position
    /// if that is worth something there: it is on the stream only on which it was given.
    pub(crate) fn tell_its_call(
        &mut self,
        exchange: ExchangeId,
        call: Option<CallId>,
        cursor: Option<String>,
        tell: impl FnOnce(&mut Self, CallId, Option<String>),
    ) {
        let Some(purpose) = self.exchanges.get(&exchange).map(|state| state.purpose) else { return };
        let own = call.is_some_and(
            |call| matches!(purpose, Purpose::Call(other) | Purpose::Replay(other) if other == call),
        );
        let (here, elsewhere) = if own { (cursor, None) } else { (None, cursor) };
        // Some event stores replay every stream's events: those of another call come on its own stream too.
        let told_again = matches!(purpose, Purpose::Replay(_)) && !own;
        if let Some(call) = call.filter(|_| !told_again) {
            tell(self, call, here);
        }
        self.pass_position(exchange, elsewhere);
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

    /// The call that is named in `_meta.requestId`, as some servers do in notifications of their own.
    pub(crate) fn named_call(&self, ix: SessionIx, message: &Message) -> Option<CallId> {
        let named = message.meta_request_id().and_then(|id| id.as_number_loosely())?;
        self.sessions.get(&ix)?.in_flight.get(&WireId(named)).copied()
    }

    /// The client knows that call by its own id.
    pub(crate) fn with_client_ids(&self, ix: SessionIx, message: &Message) -> mcp_wire::Segments {
        match self.named_call(ix, message).and_then(|call| self.calls.get(&call)) {
            Some(state) => message.splice().meta_request_id(&state.client_id).finish(),
            None => mcp_wire::Segments::from(message.clone()),
        }
    }

    fn on_response(&mut self, exchange: ExchangeId, message: &Message, cursor: Option<String>) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (purpose, ix, answered) = (state.purpose, state.session, state.answered);
        let wire = self.wire_of(purpose);
        // Some servers change the type of an id (B36). Which call of several is meant, only its own spelling may say.
        let exact = message.id().and_then(|id| id.as_number()).map(WireId);
        let named = message.id().and_then(|id| id.as_number_loosely()).map(WireId);
        let elsewhere = if wire.is_some() { exact } else { named };
        if let Some(other) = self.strayed(exchange, wire, elsewhere) {
            // The server put it on another stream than its request's: the id says whose it is.
            self.pass_position(exchange, cursor);
            self.answer(other, message, None);
            return;
        }
        // Errors come with a null, absent or made-up id: the exchange says whose they are.
        let ours = named == wire || message.kind() == Kind::ErrorResponse;
        if answered || wire.is_none() || !ours {
            if !answered && wire.is_some() && !self.is_an_id_of_ours(ix, named) {
                self.keep_unclaimed(exchange, message);
                return;
            }
            self.order(Output::Note(Note::Dropped("a response to no request of this exchange")));
            return;
        }
        self.take_response(exchange, message, cursor);
    }

    /// A result under an id that nobody gave out. If nothing better comes on this exchange, it is the answer (B06).
    fn keep_unclaimed(&mut self, exchange: ExchangeId, message: &Message) {
        let Some(state) = self.exchanges.get_mut(&exchange) else { return };
        // What a replay has between the messages that are looked for may be anybody's.
        if matches!(state.purpose, Purpose::Replay(_)) || state.unclaimed.is_some() {
            return;
        }
        // A copy: the message carries its reader's permit, which the end of the exchange may have to wait for.
        state.unclaimed = Message::parse(Bytes::copy_from_slice(message.bytes())).ok();
    }

    /// The server has ended the exchange properly: nothing else can come.
    pub(crate) fn take_unclaimed(&mut self, exchange: ExchangeId) {
        let state = self.exchanges.get_mut(&exchange).filter(|state| !state.answered);
        if let Some(message) = state.and_then(|state| state.unclaimed.take()) {
            self.order(Output::Note(Note::Dropped("the wrong id of an answer: it is its exchange's")));
            self.take_response(exchange, &message, None);
        }
    }

    /// Also one that was answered long ago: what comes under it now is not for another request.
    fn is_an_id_of_ours(&self, ix: SessionIx, named: Option<WireId>) -> bool {
        let ids = self.sessions.get(&ix).map(|session| session.ids);
        ids.zip(named).is_some_and(|(ids, named)| ids.gave_out(named))
    }

    fn take_response(&mut self, exchange: ExchangeId, message: &Message, cursor: Option<String>) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (purpose, ix, handshake) = (state.purpose, state.session, state.handshake);
        let context = self.context(exchange);
        let meaning =
            symptom::answer(context, message).map(|meaning| self.without_second_doubt(exchange, meaning));
        if let Some(meaning) = meaning.filter(|meaning| *meaning != Meaning::Answer) {
            self.stop(exchange);
            // What a server speaks instead stands in the error.
            let refusal = (meaning == Meaning::Mismatch).then(|| Refusal {
                status: 400,
                json: true,
                body: message.bytes().clone(),
                ..Refusal::default()
            });
            self.on_meaning(exchange, meaning, refusal.as_ref());
            return;
        }
        self.prove_by_call(exchange);
        if !matches!(purpose, Purpose::Initialize(_)) {
            let now = self.now.mono;
            let session = self.sessions.get_mut(&ix).filter(|session| session.handshake == handshake);
            session.into_iter().for_each(|session| session.note_kept(now));
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
            Purpose::Probe(_) => self.on_probed(ix, Some(message), true),
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

    pub(crate) fn wire_of(&self, purpose: Purpose) -> Option<WireId> {
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
}
