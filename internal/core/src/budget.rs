//! What an upstream in trouble is spared: one attempt for any number of waiters, pauses that grow, and one probe
//! before everybody is let go again (D18). Vendors suspend accounts over retry storms.

use std::time::Duration;

use crate::call::CallId;
use crate::failure::{Failure, Kind as Failed};
use crate::hub::Hub;
use crate::names::Handshake;
use crate::output::{Note, Output};
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

impl Hub {
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
        // A server that takes no more for now is asked by the next call itself, which it may count; after anything
        // else a ping finds out, so that no call pays for it.
        session.trial = if busy { Trial::Due } else { Trial::None };
        session.troubles = 0;
        let then = if then == Rest::Ready && !busy { Rest::Dormant } else { then };
        let kept = session.denied && session.record.is_some();
        let then = if then == Rest::Fresh && kept { Rest::Dormant } else { then };
        session.failures += 1;
        if matches!(session.status, Status::Dormant) {
            session.status = Status::ResumeFailed;
            session.reason = Some("unreachable".to_owned());
        }
        let pause = session.pause();
        session.phase = Phase::Backoff { then, failure: failure.clone() };
        let upstream = session.key.upstream.clone();
        let pause = self.mint.jitter(pause);
        // What the server asks for is the least: one that says the same again and again is asked ever less often.
        let pause = after.map_or(pause, |after| after.clamp(SHORTEST_PAUSE, LONGEST_PAUSE).max(pause));
        let timer = self.timers.arm(self.now.mono, pause, Timer::Backoff(ix));
        self.timers.cancel(session.backoff.replace(timer));
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
            Phase::Backoff { then, .. } => {
                session.phase = Phase::Resting(then);
                session.renewed = false;
            }
            Phase::Renewing { then } => self.on_renewal_late(ix, then),
            Phase::Hesitating => self.first_contact(ix),
            Phase::Resting(Rest::Ready) => {
                if let Trial::Out(call) = session.trial {
                    self.end_trial(ix, call);
                }
            }
            _ => {}
        }
    }

    /// A request got no sign of life from the server: not written, cut before a head, 5xx. Several in a row say that
    /// the next ones will fare no better.
    pub(crate) fn note_trouble(&mut self, ix: SessionIx, handshake: Handshake, what: &str) {
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix).filter(|s| s.handshake == handshake && s.is_ready())
        else {
            return;
        };
        session.troubles += 1;
        let alive = session.last_ok.is_some_and(|at| now.saturating_sub(at) < A_MOMENT);
        if session.troubles >= if alive { MOST_BESIDE_SUCCESS } else { MOST_TROUBLES } {
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
