//! How exchanges end: what that means for the call and for the session it went through.

use mcp_wire::Message;

use crate::call::{CallId, Stage};
use crate::failure::{Failure, Kind as Failed};
use crate::hub::{Exchange, Hub, Purpose};
use crate::input::{End, ExchangeId, Refusal};
use crate::life::rest_after;
use crate::output::Output;
use crate::session::{Phase, Rest, Session, SessionIx};
use crate::symptom::{self, Asked, Context, Meaning};
use crate::words;

/// Why no whole answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// Provably never left.
    Unsent,
    /// The same, for want of a descriptor of our own.
    Starved,
    /// Cut, or no sense in it.
    Cut,
    /// Larger than is taken.
    TooLarge,
}

const NO_ANSWER: &str = "the stream ended without an answer";

/// What the upstream's token lacks, in the server's own words (RFC 6750 section 3.1).
pub(crate) fn wider_scope(refusal: Option<&Refusal>) -> String {
    let wanted = refusal.and_then(|refusal| refusal.wanted_scope.as_deref()).map(words::quoted);
    let named =
        wanted.filter(|scope| !scope.is_empty()).map_or_else(String::new, |scope| format!(": {scope}"));
    format!("the upstream wants a wider scope for this than its token has (insufficient_scope){named}")
}

impl Hub {
    pub(crate) fn context(&self, exchange: ExchangeId) -> Context {
        let state = self.exchanges.get(&exchange);
        let session = state.and_then(|state| self.sessions.get(&state.session));
        let wire = state.and_then(|state| self.wire_of(state.purpose));
        let asked = match state.map(|state| state.purpose) {
            Some(Purpose::Initialize(_)) => Asked::Initialize,
            Some(Purpose::Initialized) => Asked::Initialized,
            // What is said to a request for a list may be about the list.
            Some(Purpose::Probe(_)) if session.is_some_and(|session| session.comparing.asks_for_list()) => {
                Asked::Call
            }
            Some(Purpose::Probe(_)) => Asked::Probe,
            Some(Purpose::Call(_)) => Asked::Call,
            _ => Asked::Aside,
        };
        Context {
            asked,
            carried_session: state.is_some_and(|state| state.carried_session),
            worked: session.is_some_and(|session| session.worked),
            wire: wire.map(|wire| wire.0),
        }
    }

    pub(crate) fn on_ended(&mut self, exchange: ExchangeId, end: End) {
        if self.exchanges.get(&exchange).is_some_and(|state| state.purpose == Purpose::Evict) {
            return self.on_evicted(exchange, &end);
        }
        if self.endings.contains_key(&exchange) {
            self.close(exchange);
            self.on_delete_ended(exchange, Some(&end));
            return;
        }
        match end {
            End::Refused(refusal) => {
                let meaning = match self.exchanges.get(&exchange).map(|state| state.purpose) {
                    Some(Purpose::Standalone) => return self.on_standalone_refused(exchange, &refusal),
                    Some(Purpose::Replay(call)) => return self.on_replay_end(exchange, call, &refusal),
                    _ => symptom::refusal(self.context(exchange), &refusal),
                };
                let meaning = self.without_second_doubt(exchange, meaning);
                self.on_meaning(exchange, meaning, Some(&refusal));
            }
            End::NeverWritten(why) => self.on_failed(exchange, &why, Broken::Unsent),
            End::Exhausted(why) => self.on_failed(exchange, &why, Broken::Starved),
            End::TooLarge(why) => self.on_failed(exchange, &why, Broken::TooLarge),
            End::Cut(why) => self.on_failed(exchange, &why, Broken::Cut),
            End::Clean => {
                self.take_unclaimed(exchange);
                self.on_clean_end(exchange);
            }
        }
    }

    /// A ping has shown that the session is there: then it is this request that the server refuses.
    pub(crate) fn without_second_doubt(&self, exchange: ExchangeId, meaning: Meaning) -> Meaning {
        let asked_before = match self.exchanges.get(&exchange).map(|state| state.purpose) {
            Some(Purpose::Call(call)) => self.calls.get(&call).is_some_and(|call| call.refusals > 0),
            _ => false,
        };
        if asked_before && matches!(meaning, Meaning::Doubtful(_)) { Meaning::Answer } else { meaning }
    }

    /// Whatever the server said to it: the handshake is tried once more. If nothing of it left, nothing was asked of
    /// the server yet: it belongs to the next attempt.
    fn on_evicted(&mut self, exchange: ExchangeId, end: &End) {
        let Some(ix) = self.close(exchange).map(|state| state.session) else { return };
        if matches!(end, End::NeverWritten(_) | End::Exhausted(_))
            && let Some(session) = self.sessions.get_mut(&ix)
        {
            session.evicted = false;
        }
        match end {
            End::NeverWritten(why) => self.on_contact_failed(ix, Purpose::Evict, why),
            End::Exhausted(why) => self.on_contact_starved(ix, rest_after(Purpose::Evict), why),
            _ => self.begin_initialize(ix),
        }
    }

    /// A replay that is refused with 401 is asked again with a new value, like any other request.
    fn on_replay_end(&mut self, exchange: ExchangeId, call: CallId, refusal: &Refusal) {
        let Some(state) = self.close(exchange) else { return };
        let outdated = state.epoch != self.epoch_of(state.session);
        if refusal.status == 401 && !outdated && self.may_renew(state.session) {
            self.on_denied(state.session, "401");
        }
        let renewing = self.sessions.get(&state.session).is_some_and(Session::is_doubted);
        if refusal.status == 401 && (renewing || outdated) {
            self.on_replay_obstructed(call, None);
        } else {
            self.on_replay_refused(call, refusal.status, refusal.retry_after);
        }
    }

    fn on_clean_end(&mut self, exchange: ExchangeId) {
        let Some(state) = self.close(exchange) else { return };
        match state.purpose {
            Purpose::Call(call) | Purpose::Replay(call) if !state.answered && self.is_open(call) => {
                self.on_cut(call, NO_ANSWER, state.retry.is_some());
            }
            Purpose::Initialize(_) | Purpose::Probe(_)
                if !state.answered && !self.is_spared_its_list(state.session, state.purpose) =>
            {
                self.on_contact_failed(state.session, state.purpose, NO_ANSWER);
            }
            Purpose::Initialized if !state.answered => self.on_acknowledged(state.session),
            Purpose::Standalone => self.on_standalone_ended(state.session, None),
            Purpose::Reply(link) => self.on_reply_over(state.session, link, exchange),
            _ => {}
        }
    }

    fn on_failed(&mut self, exchange: ExchangeId, why: &str, broken: Broken) {
        let Some(state) = self.close(exchange) else { return };
        let never_written = matches!(broken, Broken::Unsent | Broken::Starved);
        let (ix, handshake, purpose) = (state.session, state.handshake, state.purpose);
        let silent = broken != Broken::Starved
            && matches!(purpose, Purpose::Call(call) if !state.answered
            && self.calls.get(&call).is_some_and(|call| call.stage == Stage::Sent { head: false }));
        match state.purpose {
            Purpose::Call(call) if state.answered || !self.is_open(call) => {}
            Purpose::Call(call) if broken == Broken::Starved => self.on_starved(call, why),
            Purpose::Call(call) if never_written => self.on_never_written(call, why),
            Purpose::Replay(call) if state.answered || !self.is_open(call) => {}
            Purpose::Replay(call) if never_written => self.on_replay_obstructed(call, None),
            Purpose::Call(call) | Purpose::Replay(call) if broken == Broken::TooLarge => {
                self.on_too_large(call, why);
            }
            Purpose::Call(call) | Purpose::Replay(call) => self.on_cut(call, why, state.retry.is_some()),
            Purpose::Initialize(_) | Purpose::Probe(_) | Purpose::Initialized => {
                if never_written && matches!(state.purpose, Purpose::Initialize(_)) {
                    self.uncount_initialize(state.session);
                }
                if !state.answered && broken == Broken::Starved {
                    self.on_contact_starved(state.session, rest_after(state.purpose), why);
                } else if !state.answered && (never_written || !self.is_spared_its_list(ix, purpose)) {
                    self.on_contact_failed(state.session, state.purpose, why);
                }
            }
            Purpose::Standalone if broken == Broken::TooLarge => {
                self.skip_on_standalone(state.session);
                self.on_standalone_ended(state.session, None);
            }
            Purpose::Standalone => self.on_standalone_ended(state.session, None),
            Purpose::Reply(link) if never_written => {
                self.on_reply_failed(state.session, link, exchange, None);
            }
            Purpose::Reply(link) => self.on_reply_over(state.session, link, exchange),
            // The server knows nothing of it: it is told with the next call. (Not after a refusal, which it may meet
            // again and again.)
            Purpose::Roots if never_written => {
                if let Some(session) = self.sessions.get_mut(&ix) {
                    session.roots_changed = true;
                }
            }
            Purpose::Aside(_) | Purpose::Roots | Purpose::Delete | Purpose::Evict => {}
        }
        if silent {
            self.note_trouble(ix, handshake, why);
        }
        if let Purpose::Call(call) = purpose {
            self.end_trial(ix, call);
        }
    }

    /// Status counts handshakes that were sent (contract); this one never left.
    fn uncount_initialize(&mut self, ix: SessionIx) {
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.initializes = session.initializes.saturating_sub(1);
        }
    }

    /// What a refusal means for the call, and for the session it came from.
    pub(crate) fn on_meaning(&mut self, exchange: ExchangeId, meaning: Meaning, refusal: Option<&Refusal>) {
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
                Meaning::Astray(symptom) => self.on_astray(ix, symptom),
                Meaning::Doubtful(_) => self.doubt(ix),
                Meaning::Denied(_) if outdated => self.contact_again(ix, state.purpose),
                Meaning::Denied(symptom) => self.on_denied(ix, symptom),
                _ => {}
            }
        }
        // A firewall's page is no answer of the server either (B23); a missing scope is one.
        let walled = refusal.is_some_and(|refusal| matches!(refusal.status, 403 | 421) && !refusal.scope);
        let lifeless = matches!(meaning, Meaning::Trouble(_)) || (meaning == Meaning::Unusable && walled);
        let troubled = (lifeless && matches!(state.purpose, Purpose::Call(_)))
            .then(|| format!("HTTP {}", refusal.map_or(0, |refusal| refusal.status)));
        match state.purpose {
            Purpose::Call(call) if open => self.on_call_refused(call, meaning, refusal),
            Purpose::Replay(call) if open => self.on_lost_answer(call, None),
            Purpose::Initialize(_) => self.on_handshake_refused(ix, meaning, refusal),
            Purpose::Probe(_) | Purpose::Initialized => self.on_contact_refused(ix, state.purpose, meaning),
            Purpose::Reply(link) => self.on_reply_refused(ix, link, exchange, meaning),
            _ => {}
        }
        if let Some(what) = troubled {
            self.note_trouble(ix, handshake, &what);
        }
        if let Purpose::Call(call) = state.purpose {
            self.end_trial(ix, call);
        }
    }

    /// A first contact was refused with header values that are not in use any more: it goes again with those that are.
    fn contact_again(&mut self, ix: SessionIx, purpose: Purpose) {
        let contact = matches!(purpose, Purpose::Probe(_) | Purpose::Initialized);
        let Some(session) = self.sessions.get_mut(&ix).filter(|_| contact) else { return };
        if matches!(session.phase, Phase::Probing | Phase::Acknowledging) {
            session.phase = Phase::Resting(Rest::Dormant);
            self.wake(ix);
        }
    }

    fn on_call_refused(&mut self, call: CallId, meaning: Meaning, refusal: Option<&Refusal>) {
        match meaning {
            Meaning::Gone(_) | Meaning::Astray(_) | Meaning::Doubtful(_) => {
                self.on_refused_by_session(call, false);
            }
            Meaning::Mismatch => self.fail(call, &crate::failure::version_mismatch().refused()),
            Meaning::Denied(_) => self.on_refused_by_session(call, true),
            Meaning::Answer => self.pass_error_on(call, refusal),
            Meaning::Busy(after) => {
                let text = "the upstream takes no more requests for now (HTTP 429)";
                let failure = Failure::new(Failed::UpstreamUnreachable, text).refused();
                // The pause first: if others wait for this call to find out, they must not go now.
                if let Some(session) = self.calls.get(&call).map(|state| state.session) {
                    self.back_off_busy(session, &failure, after);
                }
                self.fail(call, &failure);
            }
            Meaning::Trouble(after) => {
                if let (Some(state), Some(refusal)) = (self.calls.get_mut(&call), refusal) {
                    state.lost_because = Some(format!("HTTP status {}", refusal.status));
                }
                self.on_lost_answer(call, after);
            }
            Meaning::Unusable => {
                let status = refusal.map_or(0, |refusal| refusal.status);
                let text = if refusal.is_some_and(|refusal| refusal.scope) {
                    wider_scope(refusal)
                } else {
                    format!("the upstream refused the request with HTTP {status} and no MCP error")
                };
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
            Purpose::Evict => self.begin_initialize(state.session),
            // Silence proves nothing: the calls find out for themselves.
            Purpose::Probe(_) if !state.answered => self.on_probed(state.session, None, false),
            Purpose::Initialize(_) | Purpose::Initialized if !state.answered => {
                self.on_contact_failed(state.session, state.purpose, "no answer in time");
            }
            Purpose::Reply(link) => self.on_reply_over(state.session, link, exchange),
            _ => {}
        }
    }

    pub(crate) fn close(&mut self, exchange: ExchangeId) -> Option<Box<Exchange>> {
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
