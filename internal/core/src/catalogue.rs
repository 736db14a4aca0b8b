//! What is configured and what former processes left: the facts a session is found or made from.

use crate::class::{Class, Declared};
use crate::failure::Kind;
use crate::hub::{Hub, Upstream};
use crate::input::Policy;
use crate::link::Link;
use crate::names::{Digest, LinkNonce, Seq, UpstreamName};
use crate::output::{Note, Output};
use crate::record::{Fingerprint, HandshakeState, JournalledCall, Record};
use crate::resume::{Resume, Source, changed_class, resume};
use crate::seal::LinkClaim;
use crate::session::{Phase, PoolKey, Rest, Session, SessionIx};

impl Hub {
    /// Upstreams that left the config take no new links; their sessions are ended once nothing runs in them (D14).
    pub(crate) fn on_configured(&mut self, policies: Vec<Policy>) {
        let gone: Vec<UpstreamName> = self
            .upstreams
            .keys()
            .filter(|name| !policies.iter().any(|p| p.name == **name))
            .cloned()
            .collect();
        for name in &gone {
            self.upstreams.remove(name);
        }
        for policy in policies {
            let name = policy.name.clone();
            match self.upstreams.get_mut(&policy.name) {
                Some(upstream) => {
                    upstream.policy = policy;
                    self.unlock_lost(&name);
                }
                None => {
                    let upstream = Upstream {
                        policy,
                        identities: std::collections::BTreeMap::new(),
                        default: None,
                        misconfigured: None,
                        superseded: std::collections::BTreeMap::new(),
                        left: crate::wishes::Wishes::default(),
                    };
                    self.upstreams.insert(name, upstream);
                }
            }
        }
        for name in &gone {
            self.end_superseded(name);
        }
        // Sessions that were loaded before their upstream was configured.
        for ix in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.watch_owner(ix);
        }
    }

    /// Credentials are at hand. Where clients bring their own, an identity seen before stays usable beside a new one.
    pub(crate) fn on_identity(&mut self, name: &UpstreamName, fingerprint: Fingerprint, default: bool) {
        let Some(upstream) = self.upstreams.get_mut(name) else { return };
        let fingerprint = fingerprint.of_config();
        upstream.misconfigured = None;
        if default || upstream.default.is_none() {
            upstream.default = Some(fingerprint.identity);
        }
        if default && upstream.policy.identity_from_config {
            upstream.identities.clear();
        }
        upstream.identities.insert(fingerprint.identity, fingerprint);
        self.note_credentials(name, fingerprint);
        self.follow_default(name);
        self.end_auth_pauses(name, fingerprint.identity);
        self.end_superseded(name);
        // Their credentials may come after their records.
        self.wake_owners(Some(name));
    }

    /// Whose credentials a link uses. One that brought an identity never gets another's.
    pub(crate) fn identity_of(&self, claim: &LinkClaim) -> Digest {
        let upstream = self.upstreams.get(&claim.upstream);
        let follows = |upstream: &&Upstream| {
            claim.class.has(Class::DEFAULT_IDENTITY) && upstream.policy.identity_from_config
        };
        upstream.filter(follows).and_then(|upstream| upstream.default).unwrap_or(claim.identity)
    }

    fn follow_default(&mut self, name: &UpstreamName) {
        let mine = self.links.iter().filter(|(_, link)| link.claim.upstream == *name);
        let now: Vec<(LinkNonce, Digest)> =
            mine.map(|(nonce, link)| (*nonce, self.identity_of(&link.claim))).collect();
        for (nonce, identity) in now {
            if let Some(link) = self.links.get_mut(&nonce) {
                link.identity = identity;
            }
        }
    }

    /// Why no new call goes to a session: the config in force says something else than the one it was made under.
    pub(crate) fn superseded(&self, session: &Session) -> Option<&'static str> {
        let Some(upstream) = self.upstreams.get(&session.key.upstream) else { return Some("config_removed") };
        match upstream.identities.get(&session.key.fingerprint.identity) {
            Some(known) => changed_class(&session.key.fingerprint.of_config(), known),
            None if upstream.policy.identity_from_config && !upstream.identities.is_empty() => {
                Some("config_changed:identity")
            }
            // Whoever has it may still bring it (D5: a missing value supersedes nothing).
            None => None,
        }
    }

    /// Listeners hear of the session their calls go to, not of one that it took the place of; and what nobody can
    /// use any more is ended.
    fn end_superseded(&mut self, name: &UpstreamName) {
        let mine = self.sessions.iter().filter(|(_, session)| session.key.upstream == *name);
        let old: Vec<SessionIx> =
            mine.filter(|(_, session)| !self.is_current(session)).map(|(ix, _)| *ix).collect();
        for ix in old {
            self.close_standalone(ix);
            self.leave_wishes(ix);
            self.end_if_over(ix);
        }
        self.move_listeners(name);
        self.forget_credentials(name);
    }

    /// A missing value supersedes nothing: identities known before stay (D5).
    pub(crate) fn on_misconfigured(&mut self, name: &UpstreamName, why: String) {
        let Some(upstream) = self.upstreams.get_mut(name) else { return };
        if upstream.identities.is_empty() {
            upstream.misconfigured = Some(why);
        }
    }

    pub(crate) fn on_loaded(&mut self, records: Vec<Record>, journal: Vec<JournalledCall>) {
        for record in records {
            self.load(record);
        }
        self.remember_calls(journal);
        self.arm_sweep();
        self.wake_owners(None);
    }

    /// Calls of processes that ended, which a number or an event id may still claim.
    pub(crate) fn remember_calls(&mut self, journal: Vec<JournalledCall>) {
        for call in journal {
            self.acknowledged_by(&call);
            match call.seq {
                Some(seq) => self.remember(seq, call),
                None if !call.settled && !self.unclaimed.contains(&call) => self.unclaimed.push(call),
                None => {}
            }
        }
    }

    /// No call goes out before `initialized` was answered: a journalled one proves it where the record, written
    /// later and without a sync, was overtaken by the kill.
    fn acknowledged_by(&mut self, call: &JournalledCall) {
        let mine = |session: &&mut Session| {
            session.trajectory == call.trajectory && session.handshake == call.handshake
        };
        let Some(session) = self.sessions.values_mut().find(mine) else { return };
        let record = session.record.as_mut();
        if let Some(record) = record.filter(|r| r.handshake_state == HandshakeState::Answered) {
            record.handshake_state = HandshakeState::Acknowledged;
            session.common.unfinished = true;
        }
    }

    /// A number that was sent twice was refused the first time: the later sending counts.
    fn remember(&mut self, seq: Seq, call: JournalledCall) {
        let rank = |call: &JournalledCall| (!call.settled, call.at_ms, call.handshake, call.wire);
        let present = self.journal.get(&(call.link, seq));
        if present.is_none_or(|present| rank(present) < rank(&call)) {
            self.journal.insert((call.link, seq), call);
        }
    }

    /// The config allows again what it forbade when the session was lost.
    fn unlock_lost(&mut self, name: &UpstreamName) {
        if self.upstreams.get(name).is_some_and(|upstream| upstream.policy.never_reinitialize) {
            return;
        }
        for session in self.sessions.values_mut().filter(|session| session.key.upstream == *name) {
            if session.phase == Phase::Lost {
                session.phase = Phase::Resting(Rest::Fresh);
            }
        }
    }

    /// New credentials are tried at the next call, not after the pause that the old ones earned.
    fn end_auth_pauses(&mut self, name: &UpstreamName, identity: Digest) {
        let mine = |session: &&mut Session| {
            session.key.upstream == *name && session.key.fingerprint.identity == identity
        };
        for session in self.sessions.values_mut().filter(mine) {
            if let Phase::Backoff { then, failure } = &session.phase
                && matches!(failure.kind, Kind::NeedsAuth | Kind::Misconfigured)
            {
                session.phase = Phase::Resting(*then);
                session.renewed = false;
                self.timers.cancel(session.backoff.take());
            }
        }
    }

    fn load(&mut self, record: Record) {
        if self.drop_if_unused(&record) {
            return;
        }
        let key = PoolKey::of(&record);
        let known = self
            .upstreams
            .get(&key.upstream)
            .and_then(|upstream| upstream.identities.get(&key.fingerprint.identity))
            .map(|known| Fingerprint { class: key.fingerprint.class, ..*known });
        let (upstream, trajectory, handshake) =
            (record.upstream.clone(), record.trajectory, record.handshake);
        let (continuation, parent) = (record.continuation, record.parent);
        match resume(record, Source::Disk, known.as_ref()) {
            Resume::Resumed(record) => {
                if !self.is_newest(&key, &record) {
                    return;
                }
                let continuation = self.mint.continuation();
                let session = Session::stored(*record, continuation, self.now.wall_ms);
                let ix = self.insert_session(session);
                self.note_attach(ix);
            }
            Resume::Fresh(reason) => self.order(Output::Note(Note::Attached {
                upstream,
                trajectory,
                handshake,
                continuation,
                parent,
                status: crate::status::Status::NotFound,
                reason: Some(reason.to_owned()),
            })),
        }
    }

    /// Two records of one key (an older binary made a second one, say): the newest writer's is used, the other
    /// stays on disk untouched.
    fn is_newest(&mut self, key: &PoolKey, record: &Record) -> bool {
        let Some(ix) = self.pool.get(key).copied() else { return true };
        // The name last, so that the same one is used whatever the order they are read in.
        let rank = |record: &Record| (record.generation, record.handshake, record.used_ms, record.trajectory);
        let present = self.sessions.get(&ix).and_then(|session| session.record.as_ref()).map(rank);
        if present >= Some(rank(record)) {
            return false;
        }
        self.sessions.remove(&ix);
        true
    }

    pub(crate) fn insert_session(&mut self, session: Session) -> SessionIx {
        let ix = SessionIx(self.count());
        self.pool.insert(session.key.clone(), ix);
        self.sessions.insert(ix, session);
        self.watch_owner(ix);
        self.arm_daily();
        ix
    }

    pub(crate) fn key_for(&self, link: &Link) -> Option<PoolKey> {
        let (name, class) = (&link.claim.upstream, link.claim.class);
        let known = *self.upstreams.get(name)?.identities.get(&link.identity)?;
        let fingerprint = Fingerprint { class: class.digest(), ..known };
        let owner = class.has(Class::OWN).then_some(link.claim.nonce);
        Some(PoolKey { upstream: name.clone(), fingerprint, owner })
    }

    /// The session this link uses: the pooled one or its own, or a fresh one. `None`: its credentials are not at
    /// hand, all sessions are in use, or it has to say again who it is.
    pub(crate) fn session_for(&mut self, link: LinkNonce) -> Option<SessionIx> {
        let state = self.links.get(&link)?;
        let key = self.key_for(state)?;
        if let Some(ix) = self.pool.get(&key).copied() {
            self.adopt_wishes(link, ix);
            self.lease(link, ix);
            return Some(ix);
        }
        let declared = match (&state.own, key.owner) {
            (Some(own), Some(_)) => own.clone(),
            // Nothing is known of this client's own words any more: it has to say them again.
            (None, Some(_)) => return None,
            (_, None) => Declared::pooled(state.claim.class),
        };
        let moved = state.identity != state.claim.identity;
        if !self.has_room(&key.upstream) {
            return None;
        }
        let reason = self.why_anew(&key, moved);
        let (trajectory, continuation) = (self.mint.trajectory(), self.mint.continuation());
        let mut session = Session::fresh(key, declared, trajectory, continuation, self.now.wall_ms);
        session.reason = reason.map(str::to_owned);
        let ix = self.insert_session(session);
        self.adopt_wishes(link, ix);
        self.lease(link, ix);
        Some(ix)
    }

    /// The client uses this session from now on, and no other one any more.
    fn lease(&mut self, link: LinkNonce, ix: SessionIx) {
        let Some(trajectory) = self.sessions.get(&ix).map(|session| session.trajectory) else { return };
        let Some(state) = self.links.get_mut(&link).filter(|link| link.leased != Some(trajectory)) else {
            return;
        };
        state.leased = Some(trajectory);
        let upstream = state.claim.upstream.clone();
        let lease = self.lease_of(link);
        self.order(Output::Note(Note::Leased { upstream, trajectory, lease }));
    }

    fn lease_of(&self, link: LinkNonce) -> Digest {
        self.sealer.digest("lease", &link.0.to_be_bytes())
    }

    pub(crate) fn note_released(&mut self, link: &Link, why: &'static str) {
        let Some(trajectory) = link.leased else { return };
        let (upstream, lease) = (link.claim.upstream.clone(), self.lease_of(link.claim.nonce));
        let silent = self.now.mono.saturating_sub(link.heard);
        self.order(Output::Note(Note::Released { upstream, trajectory, lease, why, silent }));
    }

    /// A link that nothing can be done with until its client initializes again: what it said of itself is gone with
    /// its session.
    pub(crate) fn must_greet_again(&self, link: LinkNonce) -> bool {
        let Some(state) = self.links.get(&link) else { return false };
        let key = self.key_for(state).filter(|key| key.owner.is_some() && state.own.is_none());
        key.is_some_and(|key| !self.pool.contains_key(&key))
    }

    /// Which class of the config changed, if this session takes the place of one that was made under another.
    fn why_anew(&mut self, key: &PoolKey, moved: bool) -> Option<&'static str> {
        let PoolKey { upstream: name, fingerprint, owner } = key;
        let ended = match self.upstreams.get_mut(name) {
            Some(upstream) if owner.is_none() => upstream.superseded.remove(&fingerprint.class),
            _ => None,
        };
        let beside = self
            .pool
            .keys()
            .filter(|other| other.upstream == *name && other.owner == *owner)
            .filter(|other| {
                other.fingerprint.identity == fingerprint.identity
                    && other.fingerprint.class == fingerprint.class
            })
            .find_map(|other| changed_class(&other.fingerprint, fingerprint));
        ended.or(beside).or(moved.then_some("config_changed:identity"))
    }

    pub(crate) fn note_attach(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.since_ms = self.now.wall_ms;
        let note = Note::Attached {
            upstream: session.key.upstream.clone(),
            trajectory: session.trajectory,
            handshake: session.handshake,
            continuation: session.continuation,
            parent: session.parent,
            status: session.status,
            reason: session.reason.clone(),
        };
        self.order(Output::Note(note));
    }

    /// The link has every answer below `ack`: those numbers will not come again.
    pub(crate) fn forget_journalled(&mut self, link: LinkNonce, ack: Seq) {
        while let Some((key, _)) = self.journal.range((link, Seq(0))..(link, ack)).next() {
            let key = *key;
            self.journal.remove(&key);
        }
    }

    /// Whether a journalled call of a former process is known under this number.
    pub(crate) fn journalled(&self, link: LinkNonce, seq: Seq) -> Option<&JournalledCall> {
        self.journal.get(&(link, seq))
    }
}
