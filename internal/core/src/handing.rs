//! Handing over to a successor: nothing begins that cannot be handed over, then nothing is handled at all, and after
//! the decision what runs here ends here while everything else is the successor's.
//!
//! A frozen core keeps what comes, in its order, and looks at none of it. That makes the manifest exact without any
//! rule about what may still happen meanwhile, and costs the few milliseconds until the decision.

use crate::call::{CallId, Stage};
use crate::class::Class;
use crate::flights::{Holder, Want};
use crate::handover::{Peer, Relayed, RelayedVerb};
use crate::hub::{Hub, Pending, Purpose};
use crate::ids::BLOCK;
use crate::input::{Delivery, Input, Sender};
use crate::output::Output;
use crate::record::Sync;
use crate::session::{Phase, Rest, SessionIx};
use crate::timers::Timer;

/// A successor asks for the GET streams at once; one that was killed before never does.
const LET_GO: std::time::Duration = std::time::Duration::from_secs(10);
/// A client whose GET stream ends comes back at once, or after its own second.
pub(crate) const AWAITED: std::time::Duration = std::time::Duration::from_secs(30);

/// What this process is to the sessions.
#[derive(Debug)]
pub(crate) enum Role {
    /// It serves them.
    Active,
    /// A successor asked for them: no handshake, no contact, no change of what links share begins.
    Preparing {
        step: Step,
        /// What became due meanwhile.
        postponed: Vec<Timer>,
    },
    /// Nothing is handled until the decision.
    Frozen { waiting: Vec<Input>, postponed: Vec<Timer> },
    /// They are the successor's.
    HandedOver,
}

/// How far the preparations are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// What cannot be handed over comes to its end.
    Settling,
    /// The successor's ids are written.
    Granting,
    /// All is done.
    Prepared,
}

impl Hub {
    pub(crate) fn on_takeover(&mut self, input: Input) {
        match input {
            Input::Prepare => self.on_prepare(),
            Input::Freeze => self.on_freeze(),
            Input::Resume => self.on_resume(),
            Input::HandOver => self.on_hand_over(),
            Input::Release(trajectory) => self.on_release(trajectory),
            Input::TakenOver { manifest, living } => self.on_taken_over(*manifest, living),
            Input::Describe => self.on_describe(),
            Input::Draft => self.on_draft(),
            Input::Beside(manifest) => self.on_beside(*manifest),
            Input::Doubtful(upstreams) => self.doubtful.extend(upstreams),
            Input::Released { generation, stream } => self.on_released(generation, *stream),
            Input::Forwarded(news) => self.on_forwarded(&news),
            Input::HandlesChanged(news) => self.apply_handles(*news),
            Input::EndedElsewhere { generation, trajectory, handshake, wire, answered } => {
                self.on_ended_elsewhere(generation, (trajectory, handshake, wire), answered);
            }
            Input::Departed { generation, journal, answers, complete } => {
                self.on_departed(generation, journal, &answers, complete);
            }
            _ => {}
        }
    }

    /// Something new may begin: a handshake, a contact, an end, a change of the record that is more than its times.
    pub(crate) fn may_begin(&self) -> bool {
        matches!(self.role, Role::Active) && !self.draining
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        matches!(self.role, Role::HandedOver)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        matches!(self.role, Role::Frozen { .. })
    }

    /// Ids for calls that go on during the preparations; not any more once those of the successor are written.
    pub(crate) fn may_reserve(&self) -> bool {
        matches!(self.role, Role::Active | Role::Preparing { step: Step::Settling, .. })
    }

    /// Keeps what comes while nothing is handled. The decision ends that.
    pub(crate) fn unless_frozen(&mut self, input: Input) -> Option<Input> {
        let Role::Frozen { waiting, .. } = &mut self.role else { return Some(input) };
        match input {
            Input::Resume | Input::HandOver => Some(input),
            Input::Tick => None,
            input => {
                waiting.push(input);
                None
            }
        }
    }

    /// Deadlines of what may not begin now ring when it may again, or never here.
    pub(crate) fn waits_for_takeover(&mut self, timer: Timer) -> bool {
        let begins = matches!(
            timer,
            Timer::Backoff(_)
                | Timer::Keepalive(_)
                | Timer::Standalone(_)
                | Timer::Chores(_)
                | Timer::Reserve(_)
                | Timer::Grace(_)
                | Timer::Sweep
                | Timer::Daily
        );
        match &mut self.role {
            Role::Preparing { postponed, .. } if begins => postponed.push(timer),
            Role::HandedOver if begins => {}
            _ => return false,
        }
        true
    }

    /// News about a session which only the process that goes on with it can follow up. While that is not decided, the
    /// session counts as doubtful: whoever it will be makes contact first.
    pub(crate) fn leaves_to_next(&mut self, ix: SessionIx) -> bool {
        if self.is_handed_over() {
            return true;
        }
        let preparing = matches!(self.role, Role::Preparing { .. });
        let ready = |session: &&mut crate::session::Session| preparing && session.is_ready();
        let Some(session) = self.sessions.get_mut(&ix).filter(ready) else { return false };
        session.phase = Phase::Resting(Rest::Dormant);
        true
    }

    /// It is decided when the takeover is.
    pub(crate) fn put_off(&mut self, call: CallId) {
        let Some(ix) = self.calls.get(&call).map(|state| state.session) else { return };
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.waiting.push_back(call);
        }
    }

    // ---- before the decision ----

    fn on_prepare(&mut self) {
        if self.may_begin() {
            self.role = Role::Preparing { step: Step::Settling, postponed: Vec::new() };
        }
    }

    /// Looks after each fact whether the next step of the preparations can be taken.
    pub(crate) fn note_prepared(&mut self) {
        if let Role::Preparing { step: Step::Settling, .. } = self.role
            && self.is_settled()
        {
            self.grant_ids();
            self.advance(Step::Granting);
        }
        let granting = |pending: &Pending| matches!(pending, Pending::Grant(..));
        if let Role::Preparing { step: Step::Granting, .. } = self.role
            && !self.tickets.values().any(granting)
        {
            self.advance(Step::Prepared);
            self.order(Output::Prepared);
        }
    }

    fn advance(&mut self, to: Step) {
        if let Role::Preparing { step, .. } = &mut self.role {
            *step = to;
        }
    }

    /// Nothing is under way that another process could not go on with: a handshake or first contact, a record or ids
    /// that wait for the disk, a request that changes what links share, an end.
    fn is_settled(&self) -> bool {
        let resting = |phase: &Phase| {
            matches!(phase, Phase::Resting(_) | Phase::Backoff { .. } | Phase::Hesitating | Phase::Lost)
        };
        let shared = |holder: &Holder| match holder {
            Holder::Chore(_) => true,
            Holder::Call(call) => {
                let shared = self.calls.get(call).and_then(|state| state.shared.as_deref());
                shared.is_some_and(|shared| !matches!(shared.want, Want::List(_)))
            }
        };
        let sessions = self.sessions.values();
        self.endings.is_empty()
            && self.held.is_empty()
            && self.tickets.values().all(|pending| matches!(pending, Pending::Update))
            && sessions.clone().all(|session| resting(&session.phase) && session.elsewhere.stream.is_none())
            && !sessions.flat_map(|session| session.common.flights.keys()).any(shared)
    }

    /// The successor's first ids are on disk before it is active, so that its first call waits for no disk (D9).
    fn grant_ids(&mut self) {
        let ready: Vec<SessionIx> =
            self.sessions.iter().filter(|(_, session)| session.is_ready()).map(|(ix, _)| *ix).collect();
        for ix in ready {
            let Some(session) = self.sessions.get_mut(&ix) else { continue };
            let own = session.ids.end();
            session.granted = None;
            let Some(record) = session.record.as_mut() else { continue };
            let start = own.max(record.ids_reserved_until);
            record.ids_reserved_until = start + BLOCK;
            self.write_record(ix, Sync::Durable, Pending::Grant(ix, start));
        }
    }

    /// If the disk refused it, the successor reserves its own.
    pub(crate) fn on_granted(&mut self, ix: SessionIx, start: u64, ok: bool) {
        if let Some(session) = self.sessions.get_mut(&ix).filter(|_| ok) {
            session.granted = Some((start, start + BLOCK));
        }
    }

    fn on_freeze(&mut self) {
        let Role::Preparing { step: Step::Prepared, postponed } = &mut self.role else { return };
        let postponed = std::mem::take(postponed);
        let manifest = self.manifest();
        self.role = Role::Frozen { waiting: Vec::new(), postponed };
        self.order(Output::Handed(Box::new(manifest)));
    }

    /// Most of it is the same in the freeze, and is on its way by then.
    fn on_draft(&mut self) {
        if let Role::Preparing { step: Step::Prepared, .. } = self.role {
            let manifest = self.manifest();
            self.order(Output::Handed(Box::new(manifest)));
        }
    }

    /// Its successor is gone with all it knew, and another process starts.
    fn on_describe(&mut self) {
        if self.is_handed_over() {
            let manifest = self.manifest();
            self.order(Output::Handed(Box::new(manifest)));
        }
    }

    pub(crate) fn give_up_preparing(&mut self) {
        if matches!(self.role, Role::Preparing { .. }) {
            self.on_resume();
        }
    }

    /// The takeover came to nothing. What waited is served, in its order.
    fn on_resume(&mut self) {
        let (rung, waiting) = match std::mem::replace(&mut self.role, Role::Active) {
            Role::Preparing { postponed, .. } => (postponed, Vec::new()),
            Role::Frozen { waiting, postponed } => (postponed, waiting),
            other => {
                self.role = other;
                return;
            }
        };
        for timer in rung {
            self.ring(timer);
        }
        for input in waiting {
            self.take(input);
            self.do_later();
            self.wish = None;
        }
        for ix in self.sessions.keys().copied().collect::<Vec<_>>() {
            let Some(session) = self.sessions.get(&ix) else { continue };
            let wanted = !session.waiting.is_empty() || self.is_listened_to(session);
            if session.is_ready() {
                self.go_on(ix);
            } else if wanted {
                self.wake(ix);
            }
            self.end_if_over(ix);
        }
    }

    // ---- after it ----

    pub(crate) fn on_hand_over(&mut self) {
        let waiting = match std::mem::replace(&mut self.role, Role::HandedOver) {
            Role::Frozen { waiting, .. } => waiting,
            other => {
                self.role = other;
                return;
            }
        };
        self.draining = true;
        // It is in the manifest, and would come twice with what is missed from here on.
        self.links.values_mut().for_each(|link| link.missed.clear());
        self.timers.arm(self.now.mono, LET_GO, Timer::LetGo);
        let unsent = |state: &crate::call::Call| matches!(state.stage, Stage::Waiting | Stage::Pausing);
        let unsent: Vec<CallId> =
            self.calls.iter().filter(|(_, state)| unsent(state)).map(|(call, _)| *call).collect();
        for call in unsent {
            self.relay_call(call);
        }
        self.do_later();
        self.await_listeners();
        for input in waiting {
            self.take(input);
            self.do_later();
            self.wish = None;
        }
    }

    /// A call that was never sent, or provably not processed: the successor sends it. Its client's response carries
    /// what that one says.
    pub(crate) fn relay_call(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let Some(message) = state.message.clone() else {
            return self.on_lost_answer(call, None);
        };
        self.forget_wire(call);
        let Some(mut state) = self.let_go(call) else { return };
        if let (Some(seq), Some(link)) = (state.seq, self.links.get_mut(&state.link)) {
            link.numbered.remove(&seq);
        }
        if let Some(trail) = state.trail.take() {
            self.store.remove(trail);
        }
        // Its client comes for it to the successor, which has not heard of it.
        let Some(stream) = state.stream else { return };
        self.streams.remove(&stream);
        self.store.release(stream);
        let Some(claim) = self.links.get(&state.link).map(|link| link.claim.clone()) else { return };
        let identity = Some(claim.identity).filter(|_| !claim.class.has(Class::DEFAULT_IDENTITY));
        let delivery = Delivery { seq: state.seq, identity, ..Delivery::default() };
        let upstream = claim.upstream.clone();
        let from = if state.greeting { Sender::Unknown } else { Sender::Link(claim) };
        let what = RelayedVerb::Post(message);
        self.relay(Relayed { stream, to: Peer::Successor, upstream, from, what, delivery });
    }

    /// What is relayed to the successor is this process's no more; what is relayed to one that drains may be.
    pub(crate) fn relay(&mut self, mut relayed: Relayed) {
        if relayed.to == Peer::Successor {
            relayed.delivery.declined_by = Some(self.generation);
        }
        self.order(Output::Relay(Box::new(relayed)));
    }

    /// A request that came to a process that drains. Says whether it is dealt with.
    pub(crate) fn goes_on(&mut self, request: Relayed) -> bool {
        if self.is_mine(&request) {
            return false;
        }
        if let (Sender::Link(claim), Some(ack)) = (&request.from, request.delivery.ack)
            && let Some(link) = self.links.get_mut(&claim.nonce)
        {
            link.acknowledge(ack);
        }
        // Until the stream is let go of, what it brings comes here.
        if let (Sender::Link(claim), RelayedVerb::Listen) = (&request.from, &request.what)
            && let Some(link) = self.links.get_mut(&claim.nonce)
        {
            link.awaited_until = Some(self.now.mono + AWAITED);
        }
        if request.delivery.relayed {
            self.order(Output::NotMine(request.stream));
            return true;
        }
        // Named under another upstream it is refused there, and goes on here.
        if let (Sender::Link(claim), RelayedVerb::EndLink) = (&request.from, &request.what)
            && claim.upstream == request.upstream
        {
            let nonce = claim.nonce;
            self.forget_link(nonce);
        }
        self.relay(request);
        true
    }

    /// It is about something that ends here.
    fn is_mine(&self, request: &Relayed) -> bool {
        let Sender::Link(claim) = &request.from else { return false };
        let Some(link) = self.links.get(&claim.nonce) else { return false };
        let delivery = &request.delivery;
        match &request.what {
            RelayedVerb::EndLink => false,
            RelayedVerb::Listen => delivery.after.as_ref().is_some_and(|after| self.has_stream_of(after)),
            RelayedVerb::Post(message) => match message.kind() {
                mcp_wire::Kind::Request => {
                    let repeatable = message.method().is_some_and(mcp_wire::method::is_repeatable);
                    delivery.seq.is_some_and(|seq| self.knows_number(link, seq, repeatable))
                }
                mcp_wire::Kind::Notification => self.concerns_own(link, message),
                _ => self.is_own_answer(message),
            },
        }
    }

    fn knows_number(&self, link: &crate::link::Link, seq: crate::names::Seq, repeatable: bool) -> bool {
        use crate::link::Fate;
        match link.numbered.get(&seq) {
            Some(Fate::Elsewhere(_)) => false,
            Some(Fate::Done) => !repeatable,
            Some(_) => true,
            None => link.is_past(seq),
        }
    }

    /// A cancel of a call that runs here, or progress about a question that was asked here.
    fn concerns_own(&self, link: &crate::link::Link, message: &mcp_wire::Message) -> bool {
        match message.method() {
            Some(mcp_wire::method::NOTIFICATIONS_CANCELLED) => {
                message.cancelled_request_id().is_some_and(|id| link.the_call(&id).is_some())
            }
            Some(mcp_wire::method::NOTIFICATIONS_PROGRESS) => {
                self.asks.has_open_token(link.claim.nonce, message.progress_token().as_ref())
            }
            _ => false,
        }
    }

    fn has_stream_of(&self, after: &crate::seal::EventClaim) -> bool {
        if !after.is_of_call() {
            return false;
        }
        let told_here = after.place.is_some_and(|place| self.keeps_trail(place));
        let running = self.calls.values().any(|call| {
            call.wire == Some(after.wire) && call.handshake == after.handshake && call.link == after.link
        });
        told_here || running
    }

    // ---- GET streams ----

    /// Whoever listens here is on its way to the successor soon: what comes meanwhile is kept. Also for who has just hung
    /// up: it may listen there already, while the stream is here.
    fn await_listeners(&mut self) {
        let now = self.now.mono;
        let until = now + AWAITED;
        let back_soon = |link: &crate::link::Link| {
            let left = link.trail.is_some() && now.saturating_sub(link.heard) < AWAITED;
            link.listening.is_some() || left
        };
        for link in self.links.values_mut().filter(|link| back_soon(link)) {
            link.awaited_until = Some(until);
        }
        // No session of theirs was handed over, so nobody asks for their streams.
        let known: Vec<SessionIx> = self.pool.values().copied().collect();
        let known: Vec<_> = known.iter().filter_map(|ix| self.sessions.get(ix)).collect();
        let served = |link: &crate::link::Link| {
            known.iter().any(|session| session.record.is_some() && crate::standalone::uses(link, session))
        };
        let stray: Vec<_> = self
            .links
            .values()
            .filter(|link| !served(link))
            .filter_map(|link| Some((link.claim.nonce, link.listening?)))
            .collect();
        for (nonce, stream) in stray {
            self.end_listening(nonce, stream);
        }
    }

    fn end_listening(&mut self, nonce: crate::names::LinkNonce, stream: crate::input::StreamId) {
        if let Some(link) = self.links.get_mut(&nonce) {
            link.listening = None;
        }
        self.drop_stream(stream);
    }

    fn on_release(&mut self, trajectory: crate::names::Trajectory) {
        let mine = self.sessions.iter().find(|(_, session)| session.trajectory == trajectory);
        if let (true, Some(ix)) = (self.is_handed_over(), mine.map(|(ix, _)| *ix)) {
            self.let_stream_go(ix);
        }
    }

    pub(crate) fn let_all_streams_go(&mut self) {
        for ix in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.let_stream_go(ix);
        }
    }

    /// Break, then make: this end is closed before the successor opens its own, because many servers keep one such
    /// stream a session. Whoever listened here has everything up to the cursor that is told.
    pub(crate) fn let_stream_go(&mut self, ix: SessionIx) {
        if self.sessions.get(&ix).is_none_or(|session| session.released) {
            return;
        }
        self.close_standalone(ix);
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.released = true;
        let (trajectory, handshake) = (session.trajectory, session.handshake);
        let cursor = session.record.as_ref().and_then(|record| record.get_cursor.clone());
        let Some(session) = self.sessions.get(&ix) else { return };
        let users = self.links.values().filter(|link| crate::standalone::uses(link, session));
        let users: Vec<_> = users.map(|link| (link.claim.nonce, link.listening, link.trail)).collect();
        // Also of those that hung up: what they have not heard is on their trails.
        let trails: Vec<_> = users.iter().filter_map(|(nonce, _, trail)| Some((*nonce, (*trail)?))).collect();
        let (heard, mut missed) = (self.store.hand_rest(&trails), Vec::new());
        for (nonce, listening, _) in users {
            if let Some(stream) = listening {
                self.end_listening(nonce, stream);
            }
            let Some(link) = self.links.get_mut(&nonce) else { continue };
            let news = std::mem::take(&mut link.missed).into_iter();
            missed.extend(news.map(|data| (nonce, data.into_bytes())));
        }
        let stream = crate::handover::ReleasedStream { trajectory, handshake, cursor, heard, missed };
        self.order(Output::Released(Box::new(stream)));
    }

    /// The stream of a session that was handed over brings a question: it is left unread, and is asked again of
    /// whoever goes on from the event before it. Says whether it was.
    pub(crate) fn leaves_question(&mut self, ix: SessionIx, purpose: Purpose, cursor: Option<&str>) -> bool {
        let left = self.is_handed_over() && purpose == Purpose::Standalone && cursor.is_some();
        if left {
            self.let_stream_go(ix);
        }
        left
    }

    /// Nothing is left that only this process can bring to its end.
    pub(crate) fn has_let_go(&self) -> bool {
        !self.is_handed_over()
            || self.sessions.values().all(|session| session.released || session.record.is_none())
    }
}
