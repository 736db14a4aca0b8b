//! Taking over from a predecessor: what it handed over goes through the same `resume` as what lies on disk, and is used
//! at once; what still runs there is known here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mcp_wire::{Message, Segments};

use crate::elsewhere::Elsewhere;
use crate::flights::Later;
use crate::handing::AWAITED;
use crate::handover::{
    Forwarded, HandedAsk, HandedCall, HandedLink, HandedSession, HandedTrail, Manifest, ReleasedStream,
    Standing,
};
use crate::hub::Hub;
use crate::ids::Ids;
use crate::link::{Fate, Link};
use crate::names::{Generation, LinkNonce, Trajectory};
use crate::output::{Note, Output};
use crate::record::{JournalledAnswer, JournalledCall};
use crate::resume::{Resume, Source, resume};
use crate::session::{Phase, PoolKey, Rest, Session, SessionIx, Standalone};
use crate::status::Status;
use crate::timers::Timer;

/// A predecessor that does not let go of a GET stream for so long is stuck; another is opened beside its.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

impl Hub {
    // ---- what the predecessor says of itself ----

    /// Everything that a successor cannot know otherwise, as it stands.
    pub(crate) fn manifest(&mut self) -> Manifest {
        self.gather_news();
        let sessions = self.sessions.iter().filter_map(|(ix, session)| self.hand_session(*ix, session));
        let mut sessions: Vec<HandedSession> = sessions.collect();
        // By trajectory: the successor's order must not hang on ours.
        sessions.sort_by_key(|session| session.record.trajectory);
        let mut trails: BTreeMap<_, _> = self.hand_trails().into_iter().collect();
        let links = self.links.values();
        let links = links.map(|link| self.hand_link(link, trails.remove(&link.claim.nonce))).collect();
        Manifest {
            generation: self.generation,
            sessions,
            links,
            ended: self.ended.iter().copied().collect(),
            journal: self.journal.values().chain(&self.unclaimed).cloned().collect(),
            closed: self.asks.closed_asks(),
            replies: self.asks.reply_numbers(),
            doubt: self.asks.doubt(self.now.mono),
        }
    }

    /// Links that did not come back yet since this process started: what they missed goes with them.
    fn gather_news(&mut self) {
        let absent = self.links.values().filter(|link| link.absent_until.is_some());
        for link in absent.map(|link| link.claim.nonce).collect::<Vec<_>>() {
            let key = self.links.get(&link).and_then(|state| self.key_for(state));
            if let Some(ix) = key.and_then(|key| self.pool.get(&key).copied()) {
                self.catch_up(link, ix);
            }
        }
    }

    fn hand_session(&self, ix: SessionIx, session: &Session) -> Option<HandedSession> {
        let record = session.record.clone()?;
        let rest = match &session.phase {
            Phase::Resting(rest) => *rest,
            Phase::Backoff { then, .. } | Phase::Renewing { then } => *then,
            _ => Rest::Dormant,
        };
        let standing = match rest {
            _ if session.phase == Phase::Lost => Standing::LostForGood,
            Rest::Ready => Standing::Ready,
            // Until a fresh handshake succeeds the stored session is what is tried next.
            Rest::Fresh if session.denied => Standing::Dormant,
            Rest::Fresh => Standing::Lost,
            Rest::Dormant => Standing::Dormant,
        };
        let here = matches!(session.standalone, Standalone::Opening(_) | Standalone::Open(_));
        let own = (here || self.is_listened_to(session)).then_some(self.generation);
        let generation = self.generation;
        let running = self.calls.values().filter(|call| call.session == ix && call.was_sent());
        let running = running.filter_map(|call| {
            let (link, client_id, handshake) = (call.link, call.client_id.clone(), call.handshake);
            Some(HandedCall {
                generation,
                link,
                client_id,
                wire: call.wire?,
                handshake,
                cancelled: call.cancelled || call.ended_before,
            })
        });
        let asks = self.asks.open_in(ix).map(|(handshake, wire, ask)| HandedAsk {
            generation,
            handshake,
            wire,
            ask,
        });
        Some(HandedSession {
            standing,
            reason: session.reason.clone(),
            ids: session.granted.unwrap_or((record.ids_reserved_until, record.ids_reserved_until)),
            record,
            stream: session.elsewhere.stream.or(own),
            calls: running.chain(session.elsewhere.calls.values().cloned()).collect(),
            asks: asks.chain(session.elsewhere.asks.iter().copied()).collect(),
            loose: self.asks.loose_in(ix, self.now.mono),
            elicitations: self.asks.elicitations_in(ix),
            news: session.common.missed.told(),
            drift: session.drift,
            listed: self.listed_in(session),
        })
    }

    fn hand_link(&self, link: &Link, trail: Option<HandedTrail>) -> HandedLink {
        let place = |fate: &Fate| match fate {
            Fate::Elsewhere(place) => Some(*place),
            // Never sent: it is relayed, and new to whoever gets it.
            Fate::Live(call) => {
                let state = self.calls.get(call);
                state.filter(|state| state.is_under_way()).map(|_| self.generation)
            }
            Fate::Answered(_) | Fate::Done => Some(self.generation),
        };
        HandedLink {
            claim: link.claim.clone(),
            own: link.own.clone(),
            acked: link.acked,
            forgotten: link.forgotten,
            numbers: link.numbered.iter().filter_map(|(seq, fate)| Some((*seq, place(fate)?))).collect(),
            listening: link.listening.is_some() || link.awaited_until.is_some(),
            missed: link.missed.iter().map(|data| data.clone().into_bytes()).collect(),
            trail,
            leased: link.leased,
        }
    }

    // ---- what the successor makes of it ----

    pub(crate) fn on_taken_over(&mut self, manifest: Manifest, living: Vec<Generation>) {
        self.living = living.into_iter().collect();
        self.ended = manifest.ended.into_iter().collect();
        for link in manifest.links {
            self.take_link(link);
        }
        let held = manifest.sessions.into_iter().map(|session| self.take_session(session));
        let held: Vec<SessionIx> = held.collect::<Vec<_>>().into_iter().flatten().collect();
        self.remember_calls(manifest.journal);
        self.asks.close_all(&manifest.closed, &manifest.replies);
        self.asks.doubt_for(self.now.mono, manifest.doubt);
        for ix in held {
            self.begin_with(ix);
        }
        self.arm_sweep();
    }

    fn take_link(&mut self, handed: HandedLink) {
        let now = self.now.mono;
        let mut link = Link::new(handed.claim, now);
        link.identity = self.identity_of(&link.claim);
        link.own = handed.own;
        link.leased = handed.leased;
        (link.acked, link.journalled_ack, link.forgotten) = (handed.acked, handed.acked, handed.forgotten);
        link.numbered =
            handed.numbers.into_iter().map(|(seq, place)| (seq, Fate::Elsewhere(place))).collect();
        link.awaited_until = handed.listening.then(|| now + AWAITED);
        link.missed = handed.missed.into_iter().map(Segments::from).collect();
        let nonce = link.claim.nonce;
        self.links.insert(nonce, link);
        if let Some(trail) = handed.trail {
            self.take_trail(nonce, trail);
        }
    }

    fn take_session(&mut self, handed: HandedSession) -> Option<SessionIx> {
        let (upstream, trajectory, handshake) =
            (handed.record.upstream.clone(), handed.record.trajectory, handed.record.handshake);
        let (continuation, parent) = (handed.record.continuation, handed.record.parent);
        // A config that changed meanwhile supersedes it like one that changes later.
        let record = match resume(handed.record, Source::Takeover, None) {
            Resume::Resumed(record) => *record,
            Resume::Fresh(reason) => {
                let (status, reason) = (Status::NotFound, Some(reason.to_owned()));
                self.order(Output::Note(Note::Attached {
                    upstream,
                    trajectory,
                    handshake,
                    continuation,
                    parent,
                    status,
                    reason,
                }));
                return None;
            }
        };
        let key = PoolKey::of(&record);
        let continuation = self.mint.continuation();
        let mut session = Session::stored(record, continuation, self.now.wall_ms);
        session.ids = Ids::block(handed.ids.0, handed.ids.1);
        session.elsewhere = Elsewhere {
            calls: handed.calls.into_iter().map(|call| (call.wire, call)).collect(),
            over: BTreeMap::new(),
            asks: handed.asks,
            stream: handed.stream.filter(|place| self.living.contains(place)),
        };
        stand(&mut session, handed.standing, handed.reason);
        session.drift = handed.drift;
        for link in handed.listed {
            if let Some(link) = self.links.get_mut(&link) {
                link.listed = Some(continuation);
            }
        }
        for message in handed.news {
            self.news += 1;
            session.common.missed.take_up(self.news, message);
        }
        let kept = self.pool.get(&key).copied();
        let ix = self.insert_session(session);
        debug_assert!(kept.is_none(), "one session of a key");
        self.asks.take_loose(ix, &handed.loose, self.now.mono);
        for (id, link) in handed.elicitations {
            self.remember_elicitation(ix, link, id);
        }
        self.note_attach(ix);
        Some(ix)
    }

    /// The GET stream is asked for, and whatever else a session in use has.
    fn begin_with(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let trajectory = session.trajectory;
        match session.elsewhere.stream {
            Some(generation) => {
                self.order(Output::Release { generation, trajectory });
                self.timers.arm(self.now.mono, RELEASED_WITHIN, Timer::Unreleased(ix));
            }
            None => self.open_standalone(ix),
        }
        self.arm_keepalive(ix);
    }

    // ---- what a cold start makes of one that still drains ----

    /// What ends there is known from here on. All the rest of what it says is older than the disk, and what it knows of
    /// others they say themselves.
    pub(crate) fn on_beside(&mut self, manifest: Manifest) {
        let Manifest { generation, sessions, links, .. } = manifest;
        self.living.insert(generation);
        let callers: BTreeSet<LinkNonce> = sessions
            .iter()
            .flat_map(|session| &session.calls)
            .filter(|call| call.generation == generation)
            .map(|call| call.link)
            .collect();
        for mut handed in links {
            handed.numbers.retain(|(_, place)| *place == generation);
            if !handed.numbers.is_empty() || callers.contains(&handed.claim.nonce) {
                self.know_numbers(handed);
            }
        }
        for handed in sessions {
            self.know_calls(handed, generation);
        }
    }

    /// A number that was read from its journal is not looked for while its process has it.
    fn know_numbers(&mut self, handed: HandedLink) {
        let nonce = self.revive(handed.claim);
        let Some(link) = self.links.get_mut(&nonce) else { return };
        link.acknowledge(handed.acked);
        link.forgotten = link.forgotten.max(handed.forgotten);
        for (seq, place) in handed.numbers {
            link.numbered.insert(seq, Fate::Elsewhere(place));
            self.journal.remove(&(nonce, seq));
        }
    }

    fn know_calls(&mut self, handed: HandedSession, generation: Generation) {
        let trajectory = handed.record.trajectory;
        let Some(ix) = self.session_named(trajectory) else { return };
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        for call in handed.calls.into_iter().filter(|call| call.generation == generation) {
            let is_it = |left: &JournalledCall| {
                (left.trajectory, left.handshake, left.wire) == (trajectory, call.handshake, call.wire)
            };
            self.unclaimed.retain(|left| !is_it(left));
            session.elsewhere.calls.insert(call.wire, call);
        }
        session.elsewhere.asks.extend(handed.asks.iter().filter(|ask| ask.generation == generation));
        if handed.stream == Some(generation) {
            session.elsewhere.stream = handed.stream;
            self.begin_with(ix);
        }
    }

    // ---- what processes that drain say later ----

    /// The stream that a predecessor held is to be had now.
    pub(crate) fn on_released(&mut self, generation: Generation, stream: ReleasedStream) {
        let ReleasedStream { trajectory, handshake, cursor, heard, missed } = stream;
        for (link, rest) in heard.into_iter().filter(|(_, rest)| rest.place.generation == generation) {
            self.end_of_trail(link, rest);
        }
        for (link, data) in missed {
            self.hear_late(link, Segments::from(data));
        }
        let Some(ix) = self.session_named(trajectory) else { return };
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        if session.elsewhere.stream.is_none_or(|place| place != generation) {
            return;
        }
        session.elsewhere.stream = None;
        if session.handshake == handshake
            && let Some(record) = session.record.as_mut()
        {
            record.get_cursor = cursor;
            // It is of an event that everybody had.
            session.cursor_written = Some(now);
        }
        self.welcome_arrivals();
        self.open_standalone(ix);
    }

    /// What a link would have heard in the process that drains, had it still been there.
    fn hear_late(&mut self, link: LinkNonce, data: Segments) {
        let Some(state) = self.links.get_mut(&link) else { return };
        match state.listening {
            Some(stream) => self.order(Output::Event { stream, id: None, data }),
            None => state.miss(&data),
        }
    }

    /// A predecessor did not let go of a GET stream.
    pub(crate) fn on_unreleased(&mut self, ix: SessionIx) {
        let stuck = self.sessions.get(&ix).and_then(|session| session.elsewhere.stream);
        if stuck.is_some() {
            self.give_up_release(ix);
            self.open_standalone(ix);
        }
        self.welcome_arrivals();
    }

    /// What was told on the stream since the manifest is not known, and will not be.
    fn give_up_release(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.elsewhere.stream = None;
        let Some(session) = self.sessions.get(&ix) else { return };
        let users = self.links.values().filter(|link| crate::standalone::uses(link, session));
        let users: Vec<_> = users.map(|link| link.claim.nonce).collect();
        self.doubt_trails(&users);
    }

    pub(crate) fn on_forwarded(&mut self, news: &Forwarded) {
        let Some(ix) = self.session_named(news.trajectory) else { return };
        let current = self.sessions.get(&ix).is_some_and(|session| session.handshake == news.handshake);
        if let (true, Ok(message)) = (current, Message::parse(news.message.clone())) {
            self.fan_out_news(ix, &message, news.told);
        }
    }

    fn session_named(&self, trajectory: Trajectory) -> Option<SessionIx> {
        self.sessions.iter().find(|(_, session)| session.trajectory == trajectory).map(|(ix, _)| *ix)
    }

    /// It is gone, which is proven: what it left is what any process leaves that was killed.
    pub(crate) fn on_departed(
        &mut self,
        generation: Generation,
        journal: Vec<JournalledCall>,
        answers: &[JournalledAnswer],
        complete: bool,
    ) {
        self.living.remove(&generation);
        for link in self.links.values_mut() {
            let is_its = |fate: &Fate| matches!(fate, Fate::Elsewhere(place) if *place == generation);
            if complete {
                // What was sent is in its journal; what is not in there was not.
                link.numbered.retain(|_, fate| !is_its(fate));
            } else {
                // It may have been: never again.
                link.numbered.values_mut().filter(|fate| is_its(fate)).for_each(|fate| *fate = Fate::Done);
            }
        }
        let mut freed = BTreeSet::new();
        let mut left = Vec::new();
        for (ix, session) in &mut self.sessions {
            let its = session.elsewhere.calls.extract_if(.., |_, call| call.generation == generation);
            left.extend(its.map(|(_, call)| (*ix, session.trajectory, call)));
            session.elsewhere.over.retain(|_, place| *place != generation);
            session.elsewhere.asks.retain(|ask| ask.generation != generation);
            freed.insert(*ix);
        }
        let held = |session: &Session| session.elsewhere.stream == Some(generation);
        let held: Vec<_> = self.sessions.iter().filter(|(_, s)| held(s)).map(|(ix, _)| *ix).collect();
        held.into_iter().for_each(|ix| self.give_up_release(ix));
        self.on_answered_before(answers, complete);
        self.remember_calls(journal);
        self.loosen_unheard(left);
        self.welcome_arrivals();
        for ix in freed {
            self.open_standalone(ix);
            self.end_if_over(ix);
            self.later.push(Later::Chores(ix));
        }
    }
}

impl Hub {
    /// Calls that a process had as it went. One that its journal has as open is in there; any other has ended, and the line that
    /// would say how was not read.
    fn loosen_unheard(&mut self, left: Vec<(SessionIx, Trajectory, HandedCall)>) {
        for (ix, trajectory, call) in left.into_iter().filter(|(.., call)| !call.cancelled) {
            let HandedCall { handshake, wire, link, .. } = call;
            let is_it = |other: &JournalledCall| {
                !other.settled
                    && (other.trajectory, other.handshake, other.wire) == (trajectory, handshake, wire)
            };
            if !self.journal.values().chain(&self.unclaimed).any(is_it) {
                self.note_loose(ix, handshake, link);
            }
        }
    }
}

fn stand(session: &mut Session, standing: Standing, reason: Option<String>) {
    match standing {
        Standing::Dormant => {}
        Standing::Ready => {
            session.phase = Phase::Resting(Rest::Ready);
            session.status = Status::Resumed;
        }
        Standing::Lost => {
            session.phase = Phase::Resting(Rest::Fresh);
            (session.status, session.reason) = (Status::NotFound, reason);
        }
        Standing::LostForGood => {
            session.phase = Phase::Lost;
            (session.status, session.reason) = (Status::NotFound, reason);
        }
    }
}
