//! The composition of the core: routes each fact to the machine it concerns, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use crate::asks::Asks;
use crate::call::{Call, CallId};
use crate::downstream::MOST_ENDED;
use crate::ending::Ending;
use crate::event_store::EventStore;
use crate::flights::Later;
use crate::handing::Role;
use crate::handles::lookup::Gone;
use crate::input::{ExchangeId, Input, Limits, Mono, Now, Policy, StreamId, Ticket};
use crate::latest::Latest;
use crate::link::Link;
use crate::mint::Mint;
use crate::names::{Digest, Generation, Handshake, LinkNonce, Seq, UpstreamName, WireId};
use crate::output::{Outbox, Output};
use crate::record::{Fingerprint, JournalledCall};
use crate::renewal::Credentials;
use crate::seal::Sealer;
use crate::session::{PoolKey, Session, SessionIx};
use crate::timers::{Timer, TimerId, Timers};
use crate::wishes::Wishes;

/// A configured upstream and the credentials at hand for it.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) policy: Policy,
    pub(crate) identities: BTreeMap<Digest, Fingerprint>,
    pub(crate) default: Option<Digest>,
    pub(crate) misconfigured: Option<String>,
    /// Why a session of this class was ended whose successor was not made yet.
    pub(crate) superseded: BTreeMap<Digest, &'static str>,
    /// What links wanted of such sessions, until they use the next one.
    pub(crate) left: Wishes,
}

/// What a client's response is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamUse {
    Call(CallId),
    Listening(LinkNonce),
}

/// What an exchange is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Initialize(WireId),
    Initialized,
    Probe(WireId),
    Call(CallId),
    Replay(CallId),
    /// A notification or response passed on, or a keep-alive ping: only a lost session is news.
    Aside(Option<WireId>),
    /// The news that its client's roots have changed.
    Roots,
    /// A client's answer to an ask, or its progress: one at a time for each link.
    Reply(LinkNonce),
    Standalone,
    Delete,
    /// DELETE of a lost session that its server still holds on to, before another handshake.
    Evict,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) purpose: Purpose,
    pub(crate) session: SessionIx,
    /// The handshake it was started in: news about an older one says nothing about the present session.
    pub(crate) handshake: Handshake,
    /// `Mcp-Session-Id` of the response, until the InitializeResult is here.
    pub(crate) minted: Option<crate::names::SessionId>,
    /// It was answered; an end without more is no loss.
    pub(crate) answered: bool,
    pub(crate) carried_session: bool,
    /// Its end is being dealt with: there is nothing left to abort.
    pub(crate) ended: bool,
    /// A result under an id that is nobody's.
    pub(crate) unclaimed: Option<mcp_wire::Message>,
    /// Which value of its header values it was started with.
    pub(crate) epoch: u64,
    pub(crate) retry: Option<std::time::Duration>,
    /// The event it goes on from (`Last-Event-ID`), if that was told.
    pub(crate) after: Option<String>,
    pub(crate) timer: Option<TimerId>,
}

/// What a persisted order was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pending {
    /// The record of a fresh session.
    Creation(SessionIx),
    /// A block of ids from here.
    Reservation(SessionIx, u64),
    /// The successor's first block, from here.
    Grant(SessionIx, u64),
    /// Anything that nobody waits for.
    Update,
}

/// Every decision of the daemon, as one value.
///
/// Contract: hand in each fact with [`Hub::handle`] and carry out the orders it appends, in their order, before
/// the next fact. Call it with [`Input::Tick`] when [`Hub::deadline`] is reached. It never blocks and never
/// fails; after `handle`, `deadline` is strictly later than the `now` that was handed in.
pub struct Hub {
    pub(crate) now: Now,
    pub(crate) out: Outbox,
    pub(crate) mint: Mint,
    pub(crate) generation: Generation,
    pub(crate) timers: Timers,
    pub(crate) upstreams: BTreeMap<UpstreamName, Upstream>,
    pub(crate) credentials: BTreeMap<(UpstreamName, Fingerprint), Credentials>,
    pub(crate) links: BTreeMap<LinkNonce, Link>,
    /// Boxed: the oldest goes first, mostly, and each that goes moves the others of its node.
    pub(crate) calls: BTreeMap<CallId, Box<Call>>,
    pub(crate) sessions: BTreeMap<SessionIx, Session>,
    pub(crate) pool: BTreeMap<PoolKey, SessionIx>,
    /// Boxed, as calls are.
    pub(crate) exchanges: BTreeMap<ExchangeId, Box<Exchange>>,
    pub(crate) streams: BTreeMap<StreamId, StreamUse>,
    /// What plain clients may come back for.
    pub(crate) store: EventStore,
    /// Numbered calls of former processes.
    pub(crate) journal: BTreeMap<(LinkNonce, Seq), JournalledCall>,
    /// Calls of former processes that no number can claim.
    pub(crate) unclaimed: Vec<JournalledCall>,
    /// Sessions whose DELETE is under way.
    pub(crate) endings: BTreeMap<ExchangeId, Ending>,
    /// Handles of sessions that were ended here.
    pub(crate) gone: Vec<Gone>,
    /// Upstreams with handles in records that cannot be used.
    pub(crate) doubtful: BTreeSet<UpstreamName>,
    /// Links that their clients ended, oldest first: their ids open, but are not served any more.
    pub(crate) ended: Latest<LinkNonce, MOST_ENDED>,
    pub(crate) tickets: BTreeMap<Ticket, Pending>,
    /// What a link asked for was written in this fact: the answer that says so waits for it.
    pub(crate) wish: Option<Ticket>,
    pub(crate) held: BTreeMap<Ticket, Vec<crate::keeping::Held>>,
    /// Done at the end of the fact that is being dealt with.
    pub(crate) later: Vec<Later>,
    /// Counts lasting news.
    pub(crate) news: u64,
    pub(crate) degraded: bool,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    pub(crate) sweep: Option<TimerId>,
    pub(crate) asks: Asks,
    pub(crate) sealer: Sealer,
    pub(crate) daily: Option<TimerId>,
    pub(crate) limits: Limits,
    pub(crate) role: Role,
    /// Processes that drain.
    pub(crate) living: BTreeSet<Generation>,
    counter: u64,
}

impl Hub {
    /// An empty hub. `seed` is the only randomness it will ever have; `sealer` makes the ids of asks, which stand
    /// inside of messages.
    pub fn new(seed: [u8; 32], generation: Generation, sealer: Sealer) -> Self {
        Self {
            now: Now { mono: Mono::ZERO, wall_ms: 0 },
            out: Outbox::new(),
            mint: Mint::new(seed),
            generation,
            timers: Timers::default(),
            upstreams: BTreeMap::new(),
            credentials: BTreeMap::new(),
            links: BTreeMap::new(),
            calls: BTreeMap::new(),
            sessions: BTreeMap::new(),
            pool: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            streams: BTreeMap::new(),
            store: EventStore::default(),
            journal: BTreeMap::new(),
            unclaimed: Vec::new(),
            endings: BTreeMap::new(),
            gone: Vec::new(),
            doubtful: BTreeSet::new(),
            ended: Latest::default(),
            tickets: BTreeMap::new(),
            wish: None,
            held: BTreeMap::new(),
            later: Vec::new(),
            news: 0,
            degraded: false,
            draining: false,
            drained: false,
            sweep: None,
            asks: Asks::default(),
            sealer,
            daily: None,
            limits: Limits::default(),
            role: Role::Active,
            living: BTreeSet::new(),
            // Names of exchanges and responses are told apart over processes, in logs and tests.
            counter: generation.0 << 32,
        }
    }

    /// Applies one fact. Appends what must now happen to `out`.
    pub fn handle(&mut self, now: Now, input: Input, out: &mut Outbox) {
        // A clock that steps back would make deadlines due twice.
        self.now = Now { mono: now.mono.max(self.now.mono), wall_ms: now.wall_ms };
        let Some(input) = self.unless_frozen(input) else { return };
        // What fell due in the frozen moment rings in a core that knows whose it is by now.
        let decision = self.is_frozen().then(|| self.take(input.clone()));
        while let Some(timer) = self.timers.due(self.now.mono) {
            self.ring(timer);
        }
        if decision.is_none() {
            self.take(input);
        }
        self.do_later();
        self.wish = None;
        self.note_prepared();
        self.note_drained();
        out.append(&mut self.out);
    }

    pub(crate) fn take(&mut self, input: Input) {
        match input {
            Input::Configured(policies) => self.on_configured(policies),
            Input::Limits(limits) => self.limits = limits,
            Input::IdentityKnown { upstream, fingerprint, default } => {
                self.on_identity(&upstream, fingerprint, default);
            }
            Input::Refreshed { upstream, fingerprint, what } => {
                self.on_refreshed(upstream, fingerprint, &what);
            }
            Input::Misconfigured { upstream, why } => self.on_misconfigured(&upstream, why),
            Input::Loaded { records, journal } => self.on_loaded(records, journal),
            Input::Answered { answers, complete } => self.on_answered_before(&answers, complete),
            Input::Posted { stream, upstream, from, message, delivery } => {
                self.on_posted(stream, &upstream, from, message, &delivery);
            }
            Input::Listening { stream, upstream, from, delivery } => {
                self.on_listening(stream, &upstream, from, delivery);
            }
            Input::LinkEnded { stream, upstream, from, delivery } => {
                self.on_link_ended(stream, &upstream, &from, &delivery);
            }
            Input::StreamClosed(stream) => self.on_stream_closed(stream),
            Input::Exchange(exchange, fact) => self.on_exchange(exchange, fact),
            Input::Persisted { ticket, ok } => self.on_persisted(ticket, ok),
            Input::Purge(upstream) => self.on_purge(upstream.as_ref()),
            Input::Woke => self.on_woke(),
            Input::Drain => self.on_drain(),
            Input::Tick => {}
            takeover => self.on_takeover(takeover),
        }
    }

    /// Bytes of events that are kept for plain clients, for tests.
    #[doc(hidden)]
    pub fn kept_bytes(&self) -> usize {
        self.store.kept_bytes()
    }

    /// How much each table holds, for tests: what has ended must leave all of them.
    #[doc(hidden)]
    pub fn sizes(&self) -> BTreeMap<&'static str, usize> {
        let links = self.links.values();
        let sessions = self.sessions.values();
        let mut sizes = BTreeMap::from([
            ("links", self.links.len()),
            ("numbered", links.clone().map(|link| link.numbered.len()).sum()),
            ("pending", links.map(|link| link.pending.len()).sum()),
            ("calls", self.calls.len()),
            ("sessions", self.sessions.len()),
            ("pool", self.pool.len()),
            ("waiting", sessions.clone().map(|session| session.waiting.len()).sum()),
            ("flights", sessions.clone().map(|session| session.common.flights.len()).sum()),
            ("turns", sessions.clone().map(|session| session.common.turns.len()).sum()),
            ("chores", sessions.clone().map(|session| session.common.chores.len()).sum()),
            ("lists", sessions.clone().map(|session| session.common.lists.len()).sum()),
            ("in_flight", sessions.map(|session| session.in_flight.len()).sum()),
            ("exchanges", self.exchanges.len()),
            ("streams", self.streams.len()),
            ("journal", self.journal.len() + self.unclaimed.len()),
            ("tickets", self.tickets.len()),
            ("held", self.held.len()),
            ("left", self.upstreams.values().filter(|upstream| !upstream.left.is_empty()).count()),
            ("timers", self.timers.len()),
            (
                "handles",
                self.sessions.values().filter_map(|s| s.record.as_ref()).map(|r| r.handles.len()).sum(),
            ),
            ("gone", self.gone.len()),
        ]);
        sizes.extend(self.asks.sizes());
        sizes.extend(self.store.sizes());
        sizes
    }

    /// When [`Input::Tick`] is due next.
    pub fn deadline(&self) -> Option<Mono> {
        self.timers.next().filter(|_| !self.is_frozen())
    }

    pub(crate) fn ring(&mut self, timer: Timer) {
        if self.waits_for_takeover(timer) {
            return;
        }
        match timer {
            Timer::Call(call) => self.on_call_deadline(call),
            Timer::CancelGrace(call) => self.pass_cancel_on(call),
            Timer::CancelEnd(call) => self.settle_silently(call),
            Timer::CallRetry(call) => self.dispatch(call),
            Timer::ReplaySilent(call) => self.on_replay_silent(call),
            Timer::ReplayRetry(call) => self.replay(call),
            Timer::Exchange(exchange) => self.on_exchange_timeout(exchange),
            Timer::Backoff(session) => self.on_backoff_over(session),
            Timer::Keepalive(session) => self.on_quiet(session),
            Timer::Standalone(session) => self.on_standalone_due(session),
            Timer::Chores(session) => self.on_chores_due(session),
            Timer::Reserve(session) => self.reserve(session),
            Timer::Lane(session, link) => self.on_lane_due(session, link),
            Timer::Grace(session) => self.on_grace_over(session),
            Timer::Sweep => self.on_sweep(),
            Timer::Daily => self.on_daily(),
            Timer::Unreleased(session) => self.on_unreleased(session),
            Timer::LetGo => self.let_all_streams_go(),
        }
    }

    pub(crate) fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(crate) fn order(&mut self, output: Output) {
        match output {
            Output::Event { stream, id, data } => self.tell(stream, id, data),
            Output::End(stream) => self.end_stream(stream),
            output => self.out.push(output),
        }
    }
}
