//! What an upstream in trouble is spared: one attempt for any number of waiters, pauses that grow, and one probe
//! before everybody is let go again (D18). Vendors suspend accounts over retry storms.

use std::time::Duration;

use crate::call::CallId;
use crate::failure::{Failure, Kind as Failed};
use crate::hub::Hub;
use crate::input::Mono;
use crate::names::Handshake;
use crate::output::{Note, Output};
use crate::renewal::Credentials;
use crate::session::{Phase, Rest, SessionIx, Trial};
use crate::status::Status;
use crate::timers::Timer;

/// What a server's `Retry-After` may ask for.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Requests in a row that failed without any sign of life before the others are spared the attempt.
const MOST_TROUBLES: u32 = 3;
/// The same where it answered others a moment ago: then it is not away, and some requests may be at fault themselves.
const MOST_BESIDE_SUCCESS: u32 = 10;
const A_MOMENT: Duration = Duration::from_secs(5);
/// A trial that brings neither an answer nor a refusal says nothing, like a silent ping: the others go.
const LONGEST_TRIAL: Duration = Duration::from_secs(10);

/// A stream that broke while no more requests were taken is opened again this long after.
const BEHIND_A_CALL: Duration = Duration::from_secs(15);

/// How long the session that finds out for the others may take before the next one may try.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);

/// A pause of all sessions with the same endpoint and credentials: what one of them found out holds for each.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Who found out last, or is about to.
    tried_by: SessionIx,
    until: Mono,
    failure: Failure,
    busy: bool,
    /// Attempts in a row that failed, whoever made them.
    failures: u32,
}

/// What a session may do about its upstream now.
pub(crate) enum Passage {
    Free,
    /// It is the first after the pause: with care.
    First {
        busy: bool,
    },
    Closed(Failure),
}

impl Hub {
    /// Whether the pause of another session concerns this one.
    pub(crate) fn passage(&mut self, ix: SessionIx) -> Passage {
        let now = self.now.mono;
        let Some(gate) = self.credentials_of(ix).and_then(|credentials| credentials.gate.as_mut()) else {
            return Passage::Free;
        };
        if gate.tried_by == ix {
            return Passage::Free;
        }
        if now < gate.until {
            return Passage::Closed(gate.failure.unsent());
        }
        (gate.tried_by, gate.until) = (ix, now + LONGEST_ATTEMPT);
        Passage::First { busy: gate.busy }
    }

    /// The upstream answers.
    pub(crate) fn note_life(&mut self, ix: SessionIx) {
        let now = self.now.mono;
        if let Some(credentials) = self.credentials_of(ix) {
            (credentials.gate, credentials.troubles, credentials.alive_at) = (None, 0, Some(now));
        }
    }

    /// Closes it for the others too; how many attempts have failed by now.
    fn close_gate(&mut self, ix: SessionIx, failure: &Failure, busy: bool) -> u32 {
        let now = self.now.mono;
        let Some(credentials) = self.credentials_of(ix) else { return 0 };
        credentials.troubles = 0;
        let failures = credentials.gate.as_ref().map_or(0, |gate| gate.failures) + 1;
        let failure = failure.clone();
        credentials.gate = Some(Gate { tried_by: ix, until: now, failure, busy, failures });
        failures
    }

    pub(crate) fn credentials_of(&mut self, ix: SessionIx) -> Option<&mut Credentials> {
        let key = &self.sessions.get(&ix)?.key;
        self.credentials.get_mut(&(key.upstream.clone(), key.fingerprint.of_config()))
    }

    /// One attempt for all waiters, then a pause in which calls fail at once (D18).
    pub(crate) fn back_off(&mut self, ix: SessionIx, then: Rest, failure: &Failure, after: Option<Duration>) {
        self.hold_off(ix, then, failure, after, false);
    }

    /// The same after a 429.
    pub(crate) fn back_off_busy(&mut self, ix: SessionIx, failure: &Failure, after: Option<Duration>) {
        self.hold_off(ix, Rest::Ready, failure, after, true);
    }

    fn hold_off(
        &mut self,
        ix: SessionIx,
        then: Rest,
        failure: &Failure,
        after: Option<Duration>,
        busy: bool,
    ) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        if matches!(session.phase, Phase::Backoff { .. } | Phase::Lost) {
            return;
        }
        if then == Rest::Ready && !session.is_ready() {
            return;
        }
        // A 401 outside of a handshake may be one tool's.
        let shared = failure.kind == Failed::UpstreamUnreachable
            || (failure.kind == Failed::NeedsAuth && then == Rest::Fresh);
        let others = if shared { self.close_gate(ix, failure, busy) } else { 0 };
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        // A server that takes no more for now is asked by the next call itself, which it may count; after anything
        // else a ping finds out, so that no call pays for it.
        session.trial = if busy { Trial::Due } else { Trial::None };
        let then = if then == Rest::Ready && !busy { Rest::Dormant } else { then };
        let kept = session.denied && session.record.is_some();
        let then = if then == Rest::Fresh && kept { Rest::Dormant } else { then };
        // Our own want says nothing about it.
        let ours = failure.kind == Failed::Overloaded;
        if !ours {
            session.failures = (session.failures + 1).max(others);
            session.snubs = 0;
        }
        if matches!(session.status, Status::Dormant) && !ours {
            session.status = Status::ResumeFailed;
            session.reason = Some("unreachable".to_owned());
            self.note_attach(ix);
        }
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let pause = session.pause();
        session.phase = Phase::Backoff { then, failure: failure.clone() };
        let upstream = session.key.upstream.clone();
        let pause = self.mint.jitter(pause);
        // What the server asks for is the least: one that says the same again and again is asked ever less often.
        let pause = after.map_or(pause, |after| after.clamp(SHORTEST_PAUSE, LONGEST_PAUSE).max(pause));
        let timer = self.timers.arm(self.now.mono, pause, Timer::Backoff(ix));
        self.timers.cancel(session.backoff.replace(timer));
        let until = self.now.mono + pause;
        if let Some(gate) = self.credentials_of(ix).and_then(|credentials| credentials.gate.as_mut())
            && gate.tried_by == ix
        {
            gate.until = until;
        }
        let retry_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.order(Output::Note(Note::Trouble { upstream, what: failure.message.clone(), retry_ms }));
        self.drop_step(ix);
        self.fail_waiting(ix, &failure.unsent());
        self.end_if_over(ix);
    }

    pub(crate) fn on_backoff_over(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.backoff = None;
        match session.phase {
            Phase::Backoff { then, ref failure } => {
                let reachable = matches!(failure.kind, Failed::UpstreamUnreachable | Failed::Overloaded);
                session.phase = Phase::Resting(then);
                session.renewed = false;
                if reachable {
                    self.go_on_for_listeners(ix);
                }
            }
            Phase::Renewing { then } => self.on_renewal_late(ix, then),
            Phase::Hesitating => self.first_contact(ix),
            Phase::Resting(Rest::Dormant | Rest::Fresh) => self.go_on_for_listeners(ix),
            Phase::Resting(Rest::Ready) => {
                if let Trial::Out(call) = session.trial {
                    self.end_trial(ix, call);
                }
            }
            _ => {}
        }
    }

    /// Whoever only listens must not wait for somebody's call to hear again.
    fn go_on_for_listeners(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix) else { return };
        if self.draining || !self.is_listened_to(session) {
            return;
        }
        if session.is_ready() {
            // A server that takes few requests for now is asked by a call first.
            self.reopen_standalone_after(ix, BEHIND_A_CALL);
            return;
        }
        // A server that keeps none of its sessions makes no more of them for that.
        let wanted = session.fruitless == 0
            && session.record.as_ref().is_some_and(|record| record.learned.get_stream != Some(false));
        if !wanted {
            return;
        }
        let again = session.pause();
        self.wake(ix);
        // Another session of the same upstream finds out first.
        if self
            .sessions
            .get(&ix)
            .is_some_and(|s| matches!(s.phase, Phase::Resting(Rest::Dormant | Rest::Fresh)))
        {
            let again = self.mint.jitter(again);
            let timer = self.timers.arm(self.now.mono, again, Timer::Backoff(ix));
            if let Some(session) = self.sessions.get_mut(&ix) {
                self.timers.cancel(session.backoff.replace(timer));
            }
        }
    }

    /// A request got no sign of life from the server: not written, cut before a head, 5xx. Several in a row say that
    /// the next ones will fare no better.
    pub(crate) fn note_trouble(&mut self, ix: SessionIx, handshake: Handshake, what: &str) {
        let now = self.now.mono;
        if !self.sessions.get(&ix).is_some_and(|s| s.handshake == handshake && s.is_ready()) {
            return;
        }
        let Some(credentials) = self.credentials_of(ix) else { return };
        credentials.troubles += 1;
        let alive = credentials.alive_at.is_some_and(|at| now.saturating_sub(at) < A_MOMENT);
        if credentials.troubles >= if alive { MOST_BESIDE_SUCCESS } else { MOST_TROUBLES } {
            let text = format!("the upstream failed several times in a row, last with: {what}");
            self.back_off(ix, Rest::Ready, &Failure::new(Failed::UpstreamUnreachable, text), None);
        }
    }

    // ---- the call that finds out for all ----

    /// Whether a call has to wait for another one to find out whether the server takes requests again.
    pub(crate) fn waits_for_trial(&mut self, ix: SessionIx, call: CallId) -> bool {
        let Some(session) = self.sessions.get_mut(&ix) else { return false };
        match session.trial {
            Trial::None => false,
            Trial::Due => {
                session.trial = Trial::Out(call);
                let timer = self.timers.arm(self.now.mono, LONGEST_TRIAL, Timer::Backoff(ix));
                self.timers.cancel(session.backoff.replace(timer));
                false
            }
            Trial::Out(other) if other == call => false,
            Trial::Out(_) => {
                session.waiting.push_back(call);
                true
            }
        }
    }

    /// That call was taken, or came to its end some other way: the others go.
    pub(crate) fn end_trial(&mut self, ix: SessionIx, call: CallId) {
        let Some(session) = self.sessions.get_mut(&ix).filter(|s| s.trial == Trial::Out(call)) else {
            return;
        };
        session.trial = Trial::None;
        if session.is_ready() {
            self.timers.cancel(session.backoff.take());
            self.release(ix);
        }
    }
}
