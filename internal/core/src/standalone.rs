//! The upstream's GET stream: one per session, fanned out to the links that listen; and the keep-alive.
//!
//! Nothing that happens on it says anything about the session: a server without one answers 405, others 404 or
//! 400, a former process's stream may still be registered (409).

use std::time::Duration;

use mcp_wire::{Id, method};

use crate::class::Class;
use crate::hub::{Hub, Pending, Purpose};
use crate::input::{ExchangeId, Refusal};
use crate::link::Link;
use crate::output::Verb;
use crate::record::Sync;
use crate::session::{Phase, Rest, Session, SessionIx, Standalone};
use crate::symptom;
use crate::timers::Timer;

const REOPEN: Duration = Duration::from_secs(1);
/// A stream that lived this long failed for a reason of its own; one that ends at once is asked for less often.
const LASTING: Duration = Duration::from_secs(30);
/// The cursor in the record may trail this much.
const CURSOR_EVERY: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// No server is pinged more often for what was learned about it.
const SHORTEST_KEEPALIVE: Duration = Duration::from_secs(10);

impl Hub {
    /// Opens the stream if the session is ready, someone listens and the server has one. One that was there is kept up
    /// while the session is in use, whoever listens: some servers ping on it, and give up a session that does not
    /// answer at once (B10).
    pub(crate) fn open_standalone(&mut self, ix: SessionIx) {
        let wanted = self.sessions.get(&ix).is_some_and(|session| {
            let closed = session.is_ready()
                && session.standalone == Standalone::Closed
                && session.elsewhere.stream.is_none();
            let there = session.record.as_ref().is_some_and(|record| record.learned.get_stream == Some(true));
            let kept_up = there && self.is_current(session) && self.is_awake(ix);
            closed && (self.is_listened_to(session) || kept_up)
        });
        if !wanted || self.draining {
            return;
        }
        let record = self.sessions.get(&ix).and_then(|session| session.record.as_ref());
        let cursor = record.and_then(|record| record.get_cursor.clone());
        let resumes = cursor.is_some();
        let exchange = self.start(ix, Purpose::Standalone, Verb::Get, cursor);
        // The position of a former process may be of an event that nobody had yet when it was killed.
        let heard_here = self.sessions.get(&ix).is_some_and(|session| session.cursor_written.is_some());
        if let Some(state) = exchange.and_then(|exchange| self.exchanges.get_mut(&exchange))
            && !heard_here
        {
            state.after = None;
        }
        if let (Some(session), Some(exchange)) = (self.sessions.get_mut(&ix), exchange) {
            session.standalone = Standalone::Opening(exchange);
            session.common.resumes = resumes;
        }
    }

    /// A stored session is woken for a listener, unless its server is known to have no stream: else nobody would
    /// hear of a changed list until the next call (design §6). A kill may have come before the record could say.
    pub(crate) fn wake_for_stream(&mut self, ix: SessionIx) {
        let dormant = self.sessions.get(&ix).filter(|session| session.phase == Phase::Resting(Rest::Dormant));
        let record = dormant.and_then(|session| session.record.as_ref());
        if record.is_some_and(|record| record.learned.get_stream != Some(false)) && !self.draining {
            self.wake(ix);
        }
    }

    pub(crate) fn on_standalone_open(&mut self, exchange: ExchangeId) {
        let now = self.now.mono;
        let Some(ix) = self.exchanges.get(&exchange).map(|state| state.session) else { return };
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        if session.standalone != Standalone::Opening(exchange) {
            return;
        }
        session.standalone = Standalone::Open(exchange);
        session.stream_doubted = false;
        session.standalone_since = Some(now);
        let gap = session.common.listened && !session.common.resumes;
        session.common.reopened = session.common.listened;
        session.common.listened = true;
        self.learn_get_stream(ix, true);
        if gap {
            self.announce_changes(ix);
        }
    }

    fn learn_get_stream(&mut self, ix: SessionIx, offered: bool) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        let Some(record) = record.filter(|record| record.learned.get_stream != Some(offered)) else { return };
        record.learned.get_stream = Some(offered);
        self.write_record(ix, Sync::None, Pending::Update);
    }

    pub(crate) fn on_standalone_cursor(&mut self, ix: SessionIx, cursor: &str) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        let Some(record) = record else { return };
        record.get_cursor = Some(cursor.to_owned());
        // A chatty server must not cost a file for each event: after a kill some notifications come twice.
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        if session.cursor_written.is_none_or(|at| now.saturating_sub(at) >= CURSOR_EVERY) {
            session.cursor_written = Some(now);
            self.write_record(ix, Sync::None, Pending::Update);
        }
    }

    pub(crate) fn on_standalone_refused(&mut self, exchange: ExchangeId, refusal: &Refusal) {
        let Some(state) = self.close(exchange) else { return };
        let (ix, handshake) = (state.session, state.handshake);
        if matches!(refusal.status, 400 | 404) && self.drop_position(ix) {
            self.on_standalone_ended(ix, refusal.retry_after);
            return;
        }
        let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.handshake == handshake)
        else {
            return self.on_standalone_ended(ix, None);
        };
        let learned = session.record.as_ref().and_then(|record| record.learned.get_stream);
        match symptom::stream(learned == Some(true), refusal) {
            symptom::Stream::NotOffered { lasting } => {
                session.standalone = Standalone::Unsupported;
                if lasting {
                    self.learn_get_stream(ix, false);
                }
            }
            symptom::Stream::Later(after) => self.on_standalone_ended(ix, after),
            symptom::Stream::Doubtful(after) => {
                // Once for each stream that was there; what pings find later, they find without it.
                let first = !std::mem::replace(&mut session.stream_doubted, true);
                self.on_standalone_ended(ix, after);
                if first {
                    self.doubt(ix);
                }
            }
        }
    }

    /// The server may have forgotten the position rather than have no stream: it is asked once more without.
    fn drop_position(&mut self, ix: SessionIx) -> bool {
        let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.common.resumes) else {
            return false;
        };
        let Some(record) = session.record.as_mut() else { return false };
        record.get_cursor = None;
        self.write_record(ix, Sync::None, Pending::Update);
        true
    }

    /// The stream is gone, or was refused with a time to wait (`Retry-After`).
    pub(crate) fn on_standalone_ended(&mut self, ix: SessionIx, after: Option<Duration>) {
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        if matches!(session.standalone, Standalone::Closed | Standalone::Pausing(_)) {
            return;
        }
        session.forget_heard(now);
        session.common.forget_lists();
        let lasted = session.standalone_since.take().map(|since| now.saturating_sub(since));
        if lasted.is_some_and(|lasted| lasted >= LASTING) {
            session.standalone_failures = 0;
        }
        session.standalone_failures += 1;
        let grown = REOPEN * 2u32.saturating_pow((session.standalone_failures - 1).min(7));
        let retry = session.standalone_retry;
        let pause = after.or(retry).unwrap_or(grown).max(REOPEN.min(grown)).min(LONGEST_PAUSE);
        // "The client MUST respect the `retry` field" (2025-11-25): neither a limit nor the jitter takes from it.
        let pause = self.mint.jitter(pause).max(retry.unwrap_or_default());
        let timer = self.timers.arm(self.now.mono, pause, Timer::Standalone(ix));
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.standalone = Standalone::Pausing(timer);
        }
    }

    /// It is closed and wanted, but not at once.
    pub(crate) fn reopen_standalone_after(&mut self, ix: SessionIx, pause: Duration) {
        if self.sessions.get(&ix).is_some_and(|session| session.standalone == Standalone::Closed) {
            let timer = self.timers.arm(self.now.mono, pause, Timer::Standalone(ix));
            if let Some(session) = self.sessions.get_mut(&ix) {
                session.standalone = Standalone::Pausing(timer);
            }
        }
    }

    pub(crate) fn on_standalone_due(&mut self, ix: SessionIx) {
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.standalone = Standalone::Closed;
        }
        self.open_standalone(ix);
    }

    pub(crate) fn close_standalone(&mut self, ix: SessionIx) {
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.forget_heard(now);
        session.common.forget_lists();
        match std::mem::replace(&mut session.standalone, Standalone::Closed) {
            Standalone::Opening(exchange) | Standalone::Open(exchange) => self.abort(exchange),
            Standalone::Pausing(timer) => self.timers.cancel(Some(timer)),
            Standalone::Unsupported => session.standalone = Standalone::Unsupported,
            Standalone::Closed => {}
        }
    }

    pub(crate) fn is_listened_to(&self, session: &Session) -> bool {
        self.is_current(session)
            && self.links.values().any(|link| link.listening.is_some() && uses(link, session))
    }

    /// Not superseded by a session of a changed configuration.
    pub(crate) fn is_current(&self, session: &Session) -> bool {
        self.superseded(session).is_none()
    }

    /// Due after so much silence, counted from the last success: timers that only look every so often let twice as much
    /// pass.
    pub(crate) fn arm_keepalive(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix).filter(|session| session.keepalive.is_none()) else {
            return;
        };
        let Some(every) = self.keepalive_of(session) else { return };
        let now = self.now.mono;
        let silent = session.last_ok.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        // After a ping, whether or not it was answered, a whole one.
        let pause = if silent < every { every - silent } else { every };
        let timer = self.timers.arm(now, pause, Timer::Keepalive(ix));
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.keepalive = Some(timer);
        }
    }

    /// As configured, or more often where the server was found to give up its sessions sooner.
    fn keepalive_of(&self, session: &Session) -> Option<Duration> {
        let policy = self.upstreams.get(&session.key.upstream).map(|upstream| &upstream.policy);
        let every = policy.and_then(|policy| policy.keepalive)?;
        let learned = session.given_up_after.map(|limit| (limit / 2).max(SHORTEST_KEEPALIVE));
        Some(learned.map_or(every, |learned| learned.min(every)))
    }

    /// Servers reap sessions that are silent; evermux reaps its own interest in those nobody uses (D15).
    pub(crate) fn on_quiet(&mut self, ix: SessionIx) {
        let awake = self.is_awake(ix) && !self.draining;
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.keepalive = None;
        if !awake {
            self.close_standalone(ix);
            return;
        }
        if self.has_live_handle(ix) {
            self.wake(ix);
        }
        let every = self.sessions.get(&ix).and_then(|session| self.keepalive_of(session)).unwrap_or_default();
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let quiet = session.last_ok.is_none_or(|at| now.saturating_sub(at) >= every);
        if session.is_ready() && quiet {
            if let Some(wire) = session.ids.take() {
                let body = mcp_wire::request(&Id::number(wire.0), method::PING, None);
                self.start(ix, Purpose::Aside(Some(wire)), Verb::Post(body), None);
            } else {
                self.reserve(ix);
            }
        }
        self.arm_keepalive(ix);
    }

    pub(crate) fn is_awake(&self, ix: SessionIx) -> bool {
        let Some(session) = self.sessions.get(&ix) else { return false };
        let policy = self.upstreams.get(&session.key.upstream).map(|upstream| &upstream.policy);
        let Some(idle) = policy.map(|policy| policy.idle) else { return false };
        let recent = |link: &&Link| {
            link.listening.is_some()
                || self.now.mono.saturating_sub(link.heard) < idle
                || !link.pending.is_empty()
        };
        let used = self.is_current(session)
            && self.links.values().filter(|link| uses(link, session)).any(|link| recent(&link));
        used || self.has_live_handle(ix)
            || !session.in_flight.is_empty()
            || self.has_open_asks(ix)
            || self.runs_elsewhere(ix)
    }
}

/// Whether this link's calls go to this session, or to one of the same identity that took its place.
pub(crate) fn uses(link: &Link, session: &Session) -> bool {
    let key = &session.key;
    let company = match key.owner {
        Some(owner) => owner == link.claim.nonce,
        None => !link.claim.class.has(Class::OWN) && link.claim.class.digest() == key.fingerprint.class,
    };
    company && link.claim.upstream == key.upstream && link.identity == key.fingerprint.identity
}
