//! Ends: of links nobody hears of, of sessions the user purges, of the process.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::failure::Kind;
use crate::hub::Hub;
use crate::names::{LinkNonce, UpstreamName};
use crate::output::Output;
use crate::session::{Phase, Rest, Session, SessionIx};
use crate::standalone::uses;
use crate::status::{Report, SessionReport, UpstreamReport, UpstreamState};
use crate::timers::Timer;

/// A link that numbers its messages may repeat one: it is remembered this long after it was last heard of.
const NUMBERED: Duration = Duration::from_secs(24 * 3600);
/// However short `idle` is, links are not swept more often.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
/// Where the upstream is not configured any more.
const IDLE: Duration = Duration::from_secs(30 * 60);

impl Hub {
    /// Arms the sweep for the first link that may be forgotten; no link, no wake-up. Never later than the shortest
    /// `idle`: a link that is heard of after this one was looked at may have to go first.
    pub(crate) fn arm_sweep(&mut self) {
        if self.sweep.is_some() {
            return;
        }
        let now = self.now.mono;
        let first =
            self.links.values().filter(|link| link.is_quiet()).map(|link| self.forgotten_at(link)).min();
        let strangers = self.sessions.values().any(|session| session.common.strangers);
        let calls = !self.journal.is_empty() || !self.unclaimed.is_empty();
        let idle = self.upstreams.values().map(|upstream| upstream.policy.idle).min().unwrap_or(IDLE);
        let latest = now + idle.max(SHORTEST_IDLE);
        if strangers || calls || !self.links.is_empty() {
            let at = first.unwrap_or(latest).min(latest);
            self.sweep = Some(self.timers.arm(now, at.saturating_sub(now), Timer::Sweep));
        }
    }

    fn forgotten_at(&self, link: &crate::link::Link) -> Duration {
        let idle = self.upstreams.get(&link.claim.upstream).map_or(IDLE, |upstream| upstream.policy.idle);
        link.heard + if link.numbered.is_empty() { idle } else { NUMBERED.max(idle) }
    }

    pub(crate) fn on_sweep(&mut self) {
        self.sweep = None;
        let now = self.now.mono;
        let old = |link: &&crate::link::Link| link.is_quiet() && self.forgotten_at(link) <= now;
        let forgotten: BTreeSet<LinkNonce> =
            self.links.values().filter(old).map(|link| link.claim.nonce).collect();
        self.forget_quiet(&forgotten);
        if now >= NUMBERED {
            self.drop_strangers();
        }
        self.sweep_asks();
        self.store.sweep(now);
        // Whatever was the last thing that ran in them.
        for ix in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.end_if_over(ix);
        }
        // What no client came back for within a day, none will.
        let (wall, oldest) = (self.now.wall_ms, u64::try_from(NUMBERED.as_millis()).unwrap_or(u64::MAX));
        let young = |call: &crate::record::JournalledCall| wall.saturating_sub(call.at_ms) <= oldest;
        self.journal.retain(|_, call| young(call));
        self.unclaimed.retain(young);
        self.arm_sweep();
    }

    /// Forgets links nobody hears of. Their ids open for as long as the key lives, so no client notices.
    fn forget_quiet(&mut self, forgotten: &BTreeSet<LinkNonce>) {
        for link in forgotten {
            if let Some(gone) = self.links.remove(link) {
                self.note_released(&gone, "quiet");
            }
            self.close_asks_of_link(*link);
            self.start_grace(*link);
        }
        if !forgotten.is_empty() {
            self.store.forget_links(forgotten);
            self.drop_wishes(&|link| forgotten.contains(&link));
        }
    }

    /// Room for one more link, if need be by forgetting the quiet one that was silent longest. Never one whose numbers
    /// are not settled: a repeat of them would run again.
    pub(crate) fn has_room_for_link(&mut self) -> bool {
        if self.links.len() < self.limits.links {
            return true;
        }
        let may_go = |link: &&crate::link::Link| link.is_quiet() && link.numbered.is_empty();
        let silent = self.links.values().filter(may_go).map(|link| (link.heard, link.claim.nonce)).min();
        let Some((_, oldest)) = silent else { return false };
        self.forget_quiet(&BTreeSet::from([oldest]));
        true
    }

    /// The client ended its link: its calls lose their reader; a pooled session stays, its own for a while (D14).
    pub(crate) fn forget_link(&mut self, nonce: LinkNonce) {
        let Some(mut link) = self.links.remove(&nonce) else { return };
        self.note_released(&link, "ended");
        link.take_streams().for_each(|stream| self.drop_stream(stream));
        for (_, call) in link.pending {
            self.settle_silently(call);
        }
        self.store.forget_links(&BTreeSet::from([nonce]));
        self.close_asks_of_link(nonce);
        self.loosen_journalled(nonce, crate::names::Seq(u64::MAX));
        self.forget_answers(nonce, crate::names::Seq(u64::MAX));
        self.forget_journalled(nonce, crate::names::Seq(u64::MAX));
        self.start_grace(nonce);
    }

    /// Ends sessions at the upstream and forgets them. What is in flight cannot be accounted for any more.
    pub(crate) fn on_purge(&mut self, name: Option<&UpstreamName>) {
        // They are the successor's to end.
        if self.is_handed_over() {
            return;
        }
        let doomed: Vec<SessionIx> = self
            .sessions
            .iter()
            .filter(|(_, session)| name.is_none_or(|name| *name == session.key.upstream))
            .map(|(ix, _)| *ix)
            .collect();
        for ix in doomed {
            self.purge(ix);
        }
    }

    /// Takes no more work, lets what runs end. Sessions and their records stay; nothing is deleted upstream.
    pub(crate) fn on_drain(&mut self) {
        if self.draining {
            return;
        }
        // Who stops has no successor.
        self.give_up_preparing();
        self.draining = true;
        let failure = crate::failure::draining();
        let unsent: Vec<_> =
            self.calls.iter().filter(|(_, call)| !call.is_under_way()).map(|(id, _)| *id).collect();
        for call in unsent {
            self.fail(call, &failure);
        }
        let streams = self
            .links
            .values_mut()
            .flat_map(|link| link.take_streams().map(|stream| (link.claim.nonce, stream)));
        for (link, stream) in streams.collect::<Vec<_>>() {
            self.streams.remove(&stream);
            self.stop_listening(link, stream);
        }
        let sessions: Vec<SessionIx> = self.sessions.keys().copied().collect();
        for ix in sessions {
            self.close_standalone(ix);
        }
    }

    /// A shim is told that this end is meant; anybody else's client only sees it.
    pub(crate) fn stop_listening(&mut self, link: LinkNonce, stream: crate::input::StreamId) {
        if self.links.get(&link).is_none_or(|link| !link.is_plain()) {
            self.order(Output::Stopping(stream));
        }
        self.order(Output::End(stream));
    }

    /// A call whose client is away is nobody's to wait for: its client finds it by its number, in the journal.
    pub(crate) fn note_drained(&mut self) {
        let awaited = self.calls.values().any(|call| call.stream.is_some()) || self.has_answers_to_post();
        if self.draining && !self.drained && !awaited && self.held.is_empty() && self.has_let_go() {
            self.drained = true;
            self.order(Output::Drained);
        }
    }

    /// How everything stands, for `status`.
    pub fn report(&self) -> Report {
        let sessions = self.sessions.values().map(|session| self.session_report(session)).collect();
        let upstreams = self.upstreams.keys().map(|name| self.upstream_report(name)).collect();
        let draining = self.drain_reports();
        Report { upstreams, sessions, draining, persistence_degraded: self.degraded }
    }

    fn session_report(&self, session: &Session) -> SessionReport {
        let mine =
            |call: &&crate::record::JournalledCall| call.trajectory == session.trajectory && !call.settled;
        SessionReport {
            upstream: session.key.upstream.clone(),
            trajectory: session.trajectory,
            revalidate: self.to_revalidate(session),
            handshake: session.handshake,
            continuation: session.continuation,
            parent: session.parent,
            status: session.status,
            reason: session.reason.clone(),
            unresolved_operations: self.journal.values().chain(&self.unclaimed).filter(mine).count(),
            handles: session
                .record
                .as_ref()
                .map_or(0, |record| record.live_handles(self.now.wall_ms).count()),
            protocol_version: session.record.as_ref().map(|record| record.protocol_version.clone()),
            links: self.links.values().filter(|link| self.is_current(session) && uses(link, session)).count(),
            in_flight: session.in_flight.len() + session.waiting.len() + session.elsewhere.calls.len(),
            initializes: session.initializes,
            since_ms: session.since_ms,
        }
    }

    fn upstream_report(&self, name: &UpstreamName) -> UpstreamReport {
        let misconfigured = self.upstreams.get(name).and_then(|upstream| upstream.misconfigured.clone());
        let mut state = UpstreamState::Idle;
        let mut detail = None;
        for session in self.sessions.values().filter(|session| session.key.upstream == *name) {
            let (this, words) = state_of(session);
            if rank(this) > rank(state) {
                (state, detail) = (this, words);
            }
        }
        if misconfigured.is_some() {
            (state, detail) = (UpstreamState::Misconfigured, misconfigured);
        }
        UpstreamReport { name: name.clone(), state, detail }
    }
}

fn state_of(session: &Session) -> (UpstreamState, Option<String>) {
    match &session.phase {
        Phase::Resting(Rest::Ready) => {
            (UpstreamState::Ready, session.is_flapping().then(|| crate::loss::NOT_STICKY.to_owned()))
        }
        Phase::Resting(_) | Phase::Lost => (UpstreamState::Idle, None),
        Phase::Waking
        | Phase::Probing
        | Phase::Initializing
        | Phase::Recording
        | Phase::Acknowledging
        | Phase::Hesitating
        | Phase::Renewing { .. } => (UpstreamState::Connecting, None),
        Phase::Backoff { failure, .. } => {
            let state = match failure.kind {
                Kind::NeedsAuth => UpstreamState::NeedsAuth,
                Kind::Misconfigured => UpstreamState::Misconfigured,
                Kind::UpstreamUnreachable => UpstreamState::Unreachable,
                _ => UpstreamState::Backoff,
            };
            (state, Some(failure.message.clone()))
        }
    }
}

/// What is wrong outranks what works: a person looks at status because something does not.
fn rank(state: UpstreamState) -> u8 {
    match state {
        UpstreamState::Idle => 0,
        UpstreamState::Ready => 1,
        UpstreamState::Connecting => 2,
        UpstreamState::Backoff => 3,
        UpstreamState::Unreachable => 4,
        UpstreamState::NeedsAuth => 5,
        UpstreamState::Misconfigured => 6,
    }
}
