//! Lost sessions, and sessions that may be: one way from the news of a loss to the one fresh handshake.

use std::time::Duration;

use crate::call::CallId;
use crate::drift::Drift;
use crate::failure::{Failure, Kind as Failed, needs_auth, session_lost};
use crate::hub::{Hub, Pending, Purpose};
use crate::input::Now;
use crate::names::{Handshake, SessionId};
use crate::output::{Note, Output, Verb};
use crate::record::Sync;
use crate::session::{Phase, Rest, Session, SessionIx};
use crate::status::Status;
use crate::timers::Timer;

/// A 404 this soon after a success may come from a replica that has not heard of the session (B09).
const STRAY: Duration = Duration::from_secs(5);
/// Handshakes in a row that may be lost unused before the next one waits.
const MOST_FRUITLESS: u32 = 2;
/// A server whose instances do not share their sessions gets one fresh session in this time.
const FLAPPING: Duration = Duration::from_secs(30);
/// Said of such a server, also in status.
pub(crate) const NOT_STICKY: &str = "the upstream denies a session and serves it again: its instances do not share sessions, and requests are spread over them";
/// Instances that may deny a session one after the other before it counts as lost.
const MOST_ASTRAY: u32 = 4;

/// What a server with one session says to the handshake for a second one, in lower case. The last is how the
/// TypeScript SDK's transport refuses to be connected twice.
pub(crate) fn holds_another(words: &str) -> bool {
    ["already initialized", "already been initialized", "already connected to a transport"]
        .iter()
        .any(|refusal| words.contains(refusal))
}

/// With its age and how long nobody had used it: servers that reap sessions show a pattern (B04, B08).
fn lost(session: &Session, symptom: &'static str, now: Now) -> Note {
    let made = session.record.as_ref().map_or(now.wall_ms, |record| record.created_ms);
    Note::Lost {
        upstream: session.key.upstream.clone(),
        trajectory: session.trajectory,
        symptom,
        age: Duration::from_millis(now.wall_ms.saturating_sub(made)),
        silent: session.silent(now.mono),
    }
}

impl Hub {
    /// The server does not know the session any more. News of a loss already being dealt with joins it.
    pub(crate) fn on_gone(&mut self, ix: SessionIx, symptom: &'static str) {
        if self.leaves_to_next(ix) {
            return;
        }
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let present = matches!(
            session.phase,
            Phase::Resting(Rest::Ready | Rest::Dormant)
                | Phase::Probing
                | Phase::Acknowledging
                | Phase::Backoff { then: Rest::Ready | Rest::Dormant, .. }
        );
        if !present {
            return;
        }
        let fresh_success = session.last_ok.is_some_and(|at| now.saturating_sub(at) < STRAY);
        let ready = session.phase == Phase::Resting(Rest::Ready);
        // Each stack has its own status for it, so the stray one may come with any. (A refusal in a 200 is dealt with
        // at once: some servers that say so have put a new session in the old one's place, where a ping is answered.)
        let at_the_head = matches!(symptom, "404" | "400" | "500-wrapped");
        let stray = at_the_head && fresh_success && !session.doubted;
        // The ping that asks another instance is still under way: it decides, for whatever met the first one as well.
        if at_the_head && session.phase == Phase::Probing && session.step.is_some() {
            return;
        }
        // In a pause nothing is asked of the server, not even that: a ping decides when it is over.
        let flapping = session.is_flapping();
        if let Phase::Backoff { then, .. } = &mut session.phase
            && at_the_head
            && (fresh_success || flapping)
        {
            *then = Rest::Dormant;
            session.doubted = true;
            return;
        }
        if flapping && at_the_head {
            return self.on_denial(ix, symptom);
        }
        if stray && ready {
            session.doubted = true;
            self.probe(ix);
            return;
        }
        // The same for the first message of all: the handshake may have met another replica.
        if stray && session.phase == Phase::Acknowledging {
            session.doubted = true;
            self.acknowledge(ix);
            return;
        }
        self.lose(ix, symptom);
    }

    /// The credentials were refused in this session; a fresh handshake shows whether it was the session.
    pub(crate) fn on_denied(&mut self, ix: SessionIx, symptom: &'static str) {
        if self.leaves_to_next(ix) {
            return;
        }
        let Some(session) = self.sessions.get(&ix) else { return };
        let rest = match session.phase {
            Phase::Resting(Rest::Ready) => Rest::Ready,
            Phase::Probing | Phase::Acknowledging => Rest::Dormant,
            _ => return,
        };
        if symptom == "401" && self.may_renew(ix) {
            self.renew(ix, rest);
        } else {
            self.on_still_denied(ix, rest, symptom);
        }
    }

    /// The values at hand are what is refused.
    pub(crate) fn on_still_denied(&mut self, ix: SessionIx, rest: Rest, symptom: &'static str) {
        let Some(session) = self.sessions.get(&ix) else { return };
        // A fresh handshake that cured nothing, or may not be tried: the session is not the trouble, so it stays.
        if (session.cure && !session.proven) || self.keeps_lost(ix) {
            self.back_off(ix, rest, &needs_auth(), None);
        } else {
            self.lose(ix, symptom);
        }
    }

    pub(crate) fn lose(&mut self, ix: SessionIx, symptom: &'static str) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.reason = Some(symptom.to_owned());
        // One that was denied before and is denied again was not made in vain: it is the credentials.
        let denied_again = std::mem::replace(&mut session.denied, matches!(symptom, "401" | "403"));
        if !session.proven && !denied_again {
            session.fruitless += 1;
        }
        session.phase = Phase::Resting(Rest::Fresh);
        let fruitless = session.fruitless >= MOST_FRUITLESS;
        self.timers.cancel(session.backoff.take());
        let since = session.lost_at.replace(now.mono).map(|at| now.mono.saturating_sub(at));
        let hasty = since.filter(|since| session.is_flapping() && *since < FLAPPING);
        let note = lost(session, symptom, now);
        if !matches!(symptom, "401" | "403" | "version_mismatch") {
            session.note_given_up(now.mono);
            self.timers.cancel(session.keepalive.take());
        }
        self.order(Output::Note(note));
        self.close_standalone(ix);
        if !matches!(symptom, "401" | "403") {
            self.drop_asks_of_session(ix);
        }
        self.drop_step(ix);
        if self.keeps_lost(ix) {
            if let Some(session) = self.sessions.get_mut(&ix) {
                session.phase = Phase::Lost;
                session.status = Status::NotFound;
            }
            self.note_attach(ix);
            self.fail_waiting(ix, &session_lost());
            return;
        }
        self.fail_orphans(ix);
        self.fail_lost_alone(ix, false);
        self.fail_twice_lost(ix);
        if let Some(since) = hasty {
            let failure = Failure::new(Failed::UpstreamUnreachable, NOT_STICKY);
            self.back_off(ix, Rest::Fresh, &failure, Some(FLAPPING.saturating_sub(since)));
        } else if fruitless {
            let text = "the upstream does not keep the sessions it makes";
            self.back_off(ix, Rest::Fresh, &Failure::new(Failed::UpstreamUnreachable, text), None);
        } else {
            self.begin_initialize(ix);
        }
    }

    /// `reinitialize = "never"`.
    pub(crate) fn keeps_lost(&self, ix: SessionIx) -> bool {
        let upstream = self.sessions.get(&ix).and_then(|session| self.upstreams.get(&session.key.upstream));
        upstream.is_some_and(|upstream| upstream.policy.never_reinitialize)
    }

    /// A client's own session is replaced for its later calls only. After a 401 that is settled when a fresh
    /// handshake has succeeded: if it is refused as well, the session is there still.
    pub(crate) fn fail_lost_alone(&mut self, ix: SessionIx, replaced: bool) {
        let Some(session) = self.sessions.get(&ix).filter(|session| session.key.owner.is_some()) else {
            return;
        };
        if session.denied != replaced {
            return;
        }
        let is_call = |call: &CallId| self.calls.get(call).is_some_and(|call| !call.greeting);
        let calls: Vec<CallId> = session.waiting.iter().copied().filter(is_call).collect();
        for call in calls {
            self.fail(call, &session_lost());
        }
    }

    /// A call is moved to a fresh session once; one that waits while a second loss is confirmed moves no more.
    fn fail_twice_lost(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let handshake = session.handshake;
        let lost = |call: &CallId| {
            self.calls.get(call).is_some_and(|call| call.losses > 1 && call.refused_in == handshake)
        };
        let calls: Vec<CallId> = session.waiting.iter().copied().filter(lost).collect();
        for call in calls {
            self.fail(call, &session_lost());
        }
    }

    /// Something was refused that may have to do with the session: a ping tells.
    pub(crate) fn doubt(&mut self, ix: SessionIx) {
        if !self.leaves_to_next(ix) && self.sessions.get(&ix).is_some_and(crate::session::Session::is_ready) {
            self.probe(ix);
        }
    }

    /// One instance of the server does not know the session. Another may, so it is asked again after a pause; a
    /// server that only ever says so has lost it.
    pub(crate) fn on_astray(&mut self, ix: SessionIx, symptom: &'static str) {
        if self.leaves_to_next(ix) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let present =
            matches!(session.phase, Phase::Resting(Rest::Ready) | Phase::Probing | Phase::Acknowledging);
        if !present {
            return;
        }
        session.astray += 1;
        let times = session.astray;
        self.hesitate(ix, symptom, times);
    }

    /// The same, said in the words for a lost session, where that was not true before. Pings prove nothing here: some
    /// servers answer them in any session.
    fn on_denial(&mut self, ix: SessionIx, symptom: &'static str) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.denials += 1;
        let times = session.denials;
        self.hesitate(ix, symptom, times);
    }

    fn hesitate(&mut self, ix: SessionIx, symptom: &'static str, times: u32) {
        if times >= MOST_ASTRAY {
            self.lose(ix, symptom);
            return;
        }
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let pause = self.mint.jitter(Duration::from_millis(125) * 2u32.saturating_pow(times));
        let timer = self.timers.arm(self.now.mono, pause, Timer::Backoff(ix));
        session.phase = Phase::Hesitating;
        self.timers.cancel(session.backoff.replace(timer));
        self.drop_step(ix);
    }

    /// A success names another session than the one it was asked in: the server has put a new one in its place, and
    /// what ours held is gone (decision 0010). `named`: what the response says.
    pub(crate) fn follow_switch(&mut self, ix: SessionIx, named: Option<SessionId>) {
        // Its successor is told so as well, and it is the one that follows.
        let handed_over = self.is_handed_over();
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let Some(record) = session.record.as_ref() else { return };
        let Some(named) = named.filter(|named| record.session_id.as_ref() != Some(named)) else {
            session.switched = false;
            return;
        };
        if session.flighty || handed_over {
            return;
        }
        if session.switched {
            // One that makes up an id for each answer has no sessions worth following.
            session.flighty = true;
            self.order(Output::Note(Note::Dropped("another session id with every answer: not followed")));
        } else if self.keeps_lost(ix) {
            self.lose(ix, "switched");
        } else {
            self.switch(ix, named);
        }
    }

    fn switch(&mut self, ix: SessionIx, named: SessionId) {
        let now = self.now;
        let continuation = self.mint.continuation();
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.handshake = Handshake(session.handshake.0 + 1);
        session.parent = Some(std::mem::replace(&mut session.continuation, continuation));
        session.status = Status::Reinitialized;
        session.reason = Some("switched".to_owned());
        session.drift = Drift::default();
        (session.switched, session.proven, session.doubted) = (true, false, false);
        let handshake = session.handshake;
        if let Some(record) = session.record.as_mut() {
            record.handshake = handshake;
            record.session_id = Some(named);
            record.get_cursor = None;
            record.learned.gone_signature = Some("switched".to_owned());
        }
        let note = lost(session, "switched", now);
        self.order(Output::Note(note));
        self.note_attach(ix);
        self.write_record(ix, Sync::Durable, Pending::Update);
        self.close_standalone(ix);
        self.drop_asks_of_session(ix);
        self.restore_wishes(ix);
        self.open_standalone(ix);
    }

    /// A server that keeps one session at a time refuses the handshake while it holds on to the lost one: that is
    /// ended first, once (B15). A session that was only denied may be alive, and is left alone.
    pub(crate) fn evict(&mut self, ix: SessionIx, words: &str) -> bool {
        let refused = holds_another(words);
        let Some(session) = self.sessions.get_mut(&ix).filter(|_| refused && !self.draining) else {
            return false;
        };
        let named = session.record.as_ref().is_some_and(|record| record.session_id.is_some());
        if session.evicted || session.denied || !named {
            return false;
        }
        session.evicted = true;
        session.phase = Phase::Initializing;
        self.drop_step(ix);
        let step = self.start(ix, Purpose::Evict, Verb::Delete, None);
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.step = step;
        }
        true
    }
}
