//! How long a session is kept that nobody uses, and how many there may be (D14, D15).
//!
//! A pooled session outlives its links: the next client goes on in it, and after 30 days nobody will. A session of
//! one client (`share = "client"`) is worth nothing to others, so it ends `grace` after its client did.

use std::time::Duration;

use crate::ending::Farewell;
use crate::failure::{Failure, Kind};
use crate::hub::Hub;
use crate::names::{LinkNonce, UpstreamName};
use crate::output::{Note, Output};
use crate::record::Record;
use crate::session::SessionIx;
use crate::timers::Timer;

/// Records that were not used for so long are dropped: no server known keeps a session for a month.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
/// However short the config's times are, a session is looked at no more often.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Sessions of one upstream. Each may be a browser at the server, and a file and a GET stream here.
pub(crate) const MOST_SESSIONS: usize = 256;
/// Calls in flight of all links: about two descriptors each, which is what a raised limit allows.
pub(crate) const MOST_CALLS: usize = 10_000;

impl Hub {
    // ---- a session of one client ----

    /// A session of one client is looked after from the moment it is known: its client may never be heard of again.
    pub(crate) fn watch_owner(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let policy = self.upstreams.get(&session.key.upstream).map(|upstream| &upstream.policy);
        let (Some(_), Some(policy), None) = (session.key.owner, policy, session.grace) else { return };
        let after = policy.idle + policy.grace;
        self.arm_grace(ix, after);
    }

    fn arm_grace(&mut self, ix: SessionIx, after: Duration) {
        let timer = self.timers.arm(self.now.mono, after, Timer::Grace(ix));
        if let Some(session) = self.sessions.get_mut(&ix) {
            self.timers.cancel(session.grace.replace(timer));
        }
    }

    /// The client is gone, by its own word or because nobody hears of it. It may come back, but not for ever.
    pub(crate) fn start_grace(&mut self, owner: LinkNonce) {
        // More than one where the config was changed under it.
        let own = self.sessions.iter().filter(|(_, session)| session.key.owner == Some(owner));
        let own: Vec<(SessionIx, Duration)> = own
            .filter_map(|(ix, session)| Some((*ix, self.upstreams.get(&session.key.upstream)?.policy.grace)))
            .collect();
        for (ix, grace) in own {
            self.arm_grace(ix, grace);
        }
    }

    pub(crate) fn on_grace_over(&mut self, ix: SessionIx) {
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.grace = None;
        let (owner, upstream) = (session.key.owner, session.key.upstream.clone());
        let Some(policy) = self.upstreams.get(&upstream).map(|upstream| &upstream.policy) else { return };
        let (idle, grace) = (policy.idle, policy.grace);
        let due = match owner.and_then(|owner| self.links.get(&owner)) {
            Some(link) if !link.is_quiet() => now + (idle + grace).max(SHORTEST_LOOK),
            Some(link) => link.heard + idle + grace,
            None => now,
        };
        if due > now {
            self.arm_grace(ix, due - now);
        } else if !self.may_begin() || self.is_live(ix) || !self.has_credentials(ix) {
            self.arm_grace(ix, grace.max(SHORTEST_LOOK));
        } else {
            self.end_session(ix, "client_ended", Farewell::Delete);
        }
    }

    // ---- sessions and records that nobody uses ----

    /// Whether this record is not worth keeping. Says so, and drops it.
    pub(crate) fn drop_if_unused(&mut self, record: &Record) -> bool {
        let unused =
            self.is_long_ago(record.used_ms) && record.live_handles(self.now.wall_ms).next().is_none();
        if unused {
            let (upstream, trajectory) = (record.upstream.clone(), record.trajectory);
            self.order(Output::DeleteRecord { upstream: upstream.clone(), trajectory });
            self.order(Output::Note(Note::Ended { upstream, trajectory, why: "unused", delete: None }));
        }
        unused
    }

    fn is_long_ago(&self, wall_ms: u64) -> bool {
        let limit = u64::try_from(UNUSED.as_millis()).unwrap_or(u64::MAX);
        self.now.wall_ms.saturating_sub(wall_ms) >= limit
    }

    pub(crate) fn arm_daily(&mut self) {
        if self.daily.is_none() && !self.sessions.is_empty() {
            self.daily = Some(self.timers.arm(self.now.mono, DAY, Timer::Daily));
        }
    }

    pub(crate) fn on_daily(&mut self) {
        self.daily = None;
        let old = |ix: &SessionIx| {
            let record = self.sessions.get(ix).and_then(|session| session.record.as_ref());
            record.is_some_and(|record| self.is_long_ago(record.used_ms)) && self.is_spare(*ix)
        };
        let unused: Vec<SessionIx> = self.sessions.keys().copied().filter(old).collect();
        for ix in unused {
            self.end_session(ix, "unused", Farewell::Silent);
        }
        self.arm_daily();
    }

    /// Nobody was here lately, and nothing runs.
    fn is_spare(&self, ix: SessionIx) -> bool {
        !self.is_awake(ix) && !self.is_live(ix)
    }

    /// Room for one more session, if need be by ending the one that was used longest ago and that nobody needs now.
    pub(crate) fn has_room(&mut self, name: &UpstreamName) -> bool {
        let mine = || self.sessions.iter().filter(|(_, session)| session.key.upstream == *name);
        if mine().count() < MOST_SESSIONS {
            return true;
        }
        if !self.may_begin() {
            return false;
        }
        let used = |(ix, session): (&SessionIx, &crate::session::Session)| {
            (session.record.as_ref().map_or(0, |record| record.used_ms), *ix)
        };
        let spare = mine().filter(|(ix, _)| self.is_spare(**ix)).map(used).min();
        let Some((_, ix)) = spare else { return false };
        self.end_session(ix, "too_many", Farewell::Delete);
        true
    }

    /// Why no session could be made: all are in use.
    pub(crate) fn is_full(&self, name: &UpstreamName) -> Option<Failure> {
        let count = self.sessions.values().filter(|session| session.key.upstream == *name).count();
        let text = format!("upstream `{name}` has {MOST_SESSIONS} sessions in use, which is the limit");
        (count >= MOST_SESSIONS).then(|| Failure::new(Kind::Overloaded, text))
    }

    /// Whether this link may have one more call in flight.
    pub(crate) fn is_overloaded(&self, link: LinkNonce) -> Option<Failure> {
        let mine = self.links.get(&link).map_or(0, |link| link.pending.len());
        let most = self.limits.calls_of_link;
        let text = if mine >= most {
            format!("this client has {most} calls in flight, which is the limit")
        } else if self.calls.len() >= MOST_CALLS {
            format!("evermux has {MOST_CALLS} calls in flight, which is the limit")
        } else {
            return None;
        };
        Some(Failure::new(Kind::Overloaded, text))
    }
}
