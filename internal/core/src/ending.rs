//! Sessions that evermux gives up on purpose: when, in which order, and what the server is told (D14).
//!
//! A DELETE kills what the server keeps for the session, and a session that is never deleted leaks there. So it goes
//! out exactly when nobody can use the session any more, after the last call in it, to the endpoint and with the
//! identity it was made with, and never because a client or this process ends.

use crate::failure::{Failure, Kind};
use crate::hub::{Hub, Purpose};
use crate::input::{End, ExchangeId};
use crate::names::{Trajectory, UpstreamName};
use crate::output::{Note, Output, Verb};
use crate::record::Fingerprint;
use crate::session::{Phase, SessionIx, Trial};

/// How a session is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// DELETE; the record goes with the answer.
    Delete,
    /// DELETE, and the record goes at once: a person asked for it.
    Purge,
    /// Only here: the server has most likely forgotten it long ago.
    Silent,
}

/// A session that is in no table any more, while its DELETE is under way.
#[derive(Debug)]
pub(crate) struct Ending {
    upstream: UpstreamName,
    trajectory: Trajectory,
    fingerprint: Fingerprint,
    why: &'static str,
    /// Its record goes with the answer: a process that is killed before finds it, and ends the session again.
    has_record: bool,
}

impl Hub {
    /// Something of the session is still under way: the server must not be told to drop it.
    pub(crate) fn is_live(&self, ix: SessionIx) -> bool {
        let settling = self.sessions.get(&ix).is_some_and(|session| {
            !session.waiting.is_empty()
                || !session.in_flight.is_empty()
                || !matches!(session.phase, Phase::Resting(_) | Phase::Backoff { .. } | Phase::Lost)
        });
        // A call that pauses between two sendings is in no table of its session.
        settling
            || self.has_open_asks(ix)
            || self.has_answers_for(ix)
            || self.runs_elsewhere(ix)
            || self.has_live_handle(ix)
            || self.calls.values().any(|call| call.session == ix)
    }

    /// Ends a session that no new call can reach, once nothing runs in it. What cannot be told to its server stays.
    pub(crate) fn end_if_over(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let Some(why) = self.superseded(session) else { return };
        if self.may_begin() && self.has_credentials(ix) && !self.is_live(ix) {
            self.end_session(ix, why, Farewell::Delete);
        }
    }

    /// Its endpoint and header values are known.
    pub(crate) fn has_credentials(&self, ix: SessionIx) -> bool {
        let session = self.sessions.get(&ix);
        let key = session.map(|session| (session.key.upstream.clone(), session.key.fingerprint.of_config()));
        key.is_some_and(|key| self.credentials.contains_key(&key))
    }

    /// Ends a session whatever runs in it.
    pub(crate) fn end_session(&mut self, ix: SessionIx, why: &'static str, farewell: Farewell) {
        self.close_standalone(ix);
        self.drop_asks_of_session(ix);
        self.bury_handles(ix);
        let open: Vec<_> =
            self.exchanges.iter().filter(|(_, e)| e.session == ix).map(|(id, _)| *id).collect();
        for exchange in open {
            self.abort(exchange);
        }
        let record = self.sessions.get(&ix).and_then(|session| session.record.as_ref());
        let has_id = record.is_some_and(|record| record.session_id.is_some());
        let told = has_id && farewell != Farewell::Silent;
        let delete = told.then(|| self.start(ix, Purpose::Delete, Verb::Delete, None)).flatten();
        let Some(session) = self.sessions.remove(&ix) else { return };
        let timers = [session.keepalive, session.backoff, session.reserve_again, session.grace];
        for timer in timers.into_iter().chain([session.common.chore_pause]) {
            self.timers.cancel(timer);
        }
        if self.pool.get(&session.key) == Some(&ix) {
            self.pool.remove(&session.key);
        }
        if let Some(upstream) = self.upstreams.get_mut(&session.key.upstream)
            && session.key.owner.is_none()
            && why.starts_with("config_changed")
        {
            upstream.superseded.insert(session.key.fingerprint.class, why);
        }
        let mut ending = Ending {
            upstream: session.key.upstream,
            trajectory: session.trajectory,
            fingerprint: session.key.fingerprint.of_config(),
            why,
            has_record: true,
        };
        if farewell == Farewell::Purge {
            self.drop_record(&mut ending);
        }
        match delete {
            Some(exchange) => drop(self.endings.insert(exchange, ending)),
            None => self.finish(ending, None),
        }
    }

    /// The DELETE was answered, or will not be. 405, a session that is gone already, an outage: it is over anyhow,
    /// and what was said stands in the log.
    pub(crate) fn on_delete_ended(&mut self, exchange: ExchangeId, end: Option<&End>) {
        let Some(ending) = self.endings.remove(&exchange) else { return };
        let said = match end {
            Some(End::Clean) => "taken".to_owned(),
            Some(End::Refused(refusal)) => format!("HTTP {}", refusal.status),
            Some(End::NeverWritten(why) | End::Exhausted(why)) => format!("not sent: {why}"),
            Some(End::Cut(why) | End::TooLarge(why)) => format!("cut: {why}"),
            None => "no answer in time".to_owned(),
        };
        self.finish(ending, Some(said));
    }

    fn finish(&mut self, mut ending: Ending, delete: Option<String>) {
        self.drop_record(&mut ending);
        let Ending { upstream, trajectory, why, .. } = ending;
        self.order(Output::Note(Note::Ended { upstream: upstream.clone(), trajectory, why, delete }));
        self.forget_credentials(&upstream);
    }

    fn drop_record(&mut self, ending: &mut Ending) {
        if std::mem::take(&mut ending.has_record) {
            let (upstream, trajectory) = (ending.upstream.clone(), ending.trajectory);
            self.order(Output::DeleteRecord { upstream, trajectory });
        }
    }

    /// Header values that nothing can use any more: not the config in force, no session, no DELETE under way.
    pub(crate) fn forget_credentials(&mut self, name: &UpstreamName) {
        let current = |fingerprint: &Fingerprint| {
            let upstream = self.upstreams.get(name);
            upstream.is_some_and(|upstream| upstream.identities.values().any(|known| known == fingerprint))
        };
        let used = |fingerprint: &Fingerprint| {
            self.sessions.values().any(|session| {
                session.key.upstream == *name && session.key.fingerprint.of_config() == *fingerprint
            }) || self.endings.values().any(|e| e.upstream == *name && e.fingerprint == *fingerprint)
        };
        let unused: Vec<Fingerprint> = self
            .credentials
            .keys()
            .filter(|(upstream, fingerprint)| upstream == name && !current(fingerprint) && !used(fingerprint))
            .map(|(_, fingerprint)| *fingerprint)
            .collect();
        for fingerprint in unused {
            self.credentials.remove(&(name.clone(), fingerprint));
            self.order(Output::Forget { upstream: name.clone(), fingerprint });
        }
    }

    /// `purge`: whatever runs in it cannot be accounted for any more.
    pub(crate) fn purge(&mut self, ix: SessionIx) {
        let purged = crate::failure::purged();
        // The end of one call must not let another go that is then told it was never sent.
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.trial = Trial::None;
            session.waiting.clear();
        }
        let sent = Failure::new(Kind::OutcomeUnknown, "the session was purged while this call was in flight");
        let calls: Vec<_> =
            self.calls.iter().filter(|(_, c)| c.session == ix).map(|(id, c)| (*id, c.was_sent())).collect();
        for (call, was_sent) in calls {
            self.fail(call, if was_sent { &sent } else { &purged });
        }
        self.end_session(ix, "purged", Farewell::Purge);
    }
}
