//! Our conversation with an upstream: one `Mcp-Session-Id`, from handshake to loss.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::call::CallId;
use crate::class::Declared;
use crate::drift::{Comparing, Drift};
use crate::elsewhere::Elsewhere;
use crate::failure::Failure;
use crate::flights::Common;
use crate::ids::Ids;
use crate::input::{ExchangeId, Mono, Ticket};
use crate::names::{Continuation, Handshake, LinkNonce, Trajectory, UpstreamName, WireId};
use crate::offers::Offer;
use crate::record::{Fingerprint, Record};
use crate::status::Status;
use crate::timers::TimerId;

/// Strays may happen; this many are a habit.
const MOST_FLAPS: u32 = 3;

/// Silence from which on a loss may have to do with it, and up to which pings would help.
const SOME_SILENCE: Duration = Duration::from_secs(10);
const MUCH_SILENCE: Duration = Duration::from_secs(3600);

/// Names one session inside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionIx(pub u64);

/// Links with the same key share one session (D4).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolKey {
    pub(crate) upstream: UpstreamName,
    /// With the capability class.
    pub(crate) fingerprint: Fingerprint,
    /// The one link of a `share = "client"` session.
    pub(crate) owner: Option<LinkNonce>,
}

impl PoolKey {
    pub(crate) fn of(record: &Record) -> Self {
        Self { upstream: record.upstream.clone(), fingerprint: record.fingerprint, owner: record.owner }
    }
}

/// Where a session rests when nothing is wanted of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// No session at the upstream (or a lost one): the next step is `initialize`.
    Fresh,
    /// A stored session this process has not been in contact with.
    Dormant,
    /// A session that works.
    Ready,
}

/// How a session stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Phase {
    /// Nothing is under way.
    Resting(Rest),
    /// A first id block is being reserved before the first contact with a stored session.
    Waking,
    /// `ping` with the stored (or doubted) session id is under way.
    Probing,
    /// `initialize` is under way.
    Initializing,
    /// The record of a fresh session is being written.
    Recording,
    /// `notifications/initialized` is under way.
    Acknowledging,
    /// A 401: the header values are being read again before it is tried once more.
    Renewing { then: Rest },
    /// An instance of the server does not know the session: another one is asked after a pause.
    Hesitating,
    /// The last attempt failed; calls fail with this until the pause is over.
    Backoff { then: Rest, failure: Failure },
    /// Gone, and config forbids to replace it.
    Lost,
}

/// Whether a single call finds out first if the server takes requests again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trial {
    None,
    /// The next call will.
    Due,
    /// This one does; the others wait for it.
    Out(CallId),
}

/// The upstream's GET stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standalone {
    Closed,
    Opening(ExchangeId),
    Open(ExchangeId),
    /// Closed; a timer will open it again.
    Pausing(TimerId),
    /// The server has none.
    Unsupported,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: PoolKey,
    /// What its `initialize` says.
    pub(crate) declared: Declared,
    pub(crate) trajectory: Trajectory,
    pub(crate) continuation: Continuation,
    pub(crate) parent: Option<Continuation>,
    /// 0 before the first InitializeResult.
    pub(crate) handshake: Handshake,
    pub(crate) record: Option<Record>,
    pub(crate) phase: Phase,
    pub(crate) status: Status,
    pub(crate) reason: Option<String>,
    pub(crate) since_ms: u64,
    pub(crate) ids: Ids,
    pub(crate) reserving: Option<Ticket>,
    pub(crate) reserve_again: Option<TimerId>,
    /// The handshake, probe or `initialized` that the phase waits for; nothing else may move it on.
    pub(crate) step: Option<ExchangeId>,
    pub(crate) comparing: Comparing,
    pub(crate) drift: Drift,
    pub(crate) backoff: Option<TimerId>,
    /// What its last `initialize` said of the revision.
    pub(crate) offered: Offer,
    /// Handshakes sent by this process.
    pub(crate) initializes: u32,
    /// Had a success, or came from a record.
    pub(crate) worked: bool,
    pub(crate) last_ok: Option<Mono>,
    /// Something was answered in it; a head is none yet, because a loss may be told behind it.
    pub(crate) answered_at: Option<Mono>,
    /// A stray 404 was doubted since the last success of a call.
    pub(crate) doubted: bool,
    /// Times in a row that an instance of its server did not know it.
    pub(crate) astray: u32,
    /// Times that it was denied and served again a moment later, in this process.
    pub(crate) flaps: u32,
    /// Times in a row that a server which does that denied it again.
    pub(crate) denials: u32,
    /// It was found gone after so much silence, and it was not the first time.
    pub(crate) given_up_after: Option<Duration>,
    /// Times that it was found gone after some silence.
    pub(crate) given_up: u32,
    /// When it was lost last.
    pub(crate) lost_at: Option<Mono>,
    /// Refusals of the present handshake's `initialized` that say nothing about the session.
    pub(crate) snubs: u32,
    /// The server gave it another id, and no answer has confirmed that one yet.
    pub(crate) switched: bool,
    /// Its server names another session with every answer: not followed any more.
    pub(crate) flighty: bool,
    /// Its server was asked to let go of the lost session before it would make a new one.
    pub(crate) evicted: bool,
    /// The present handshake was good for something since it was made.
    pub(crate) proven: bool,
    /// Handshakes in a row that were lost before they were good for anything.
    pub(crate) fruitless: u32,
    /// Lost to 401/403: until a fresh handshake succeeds the stored session may well be there still (design §6).
    pub(crate) denied: bool,
    /// The present handshake was made to cure a 401/403.
    pub(crate) cure: bool,
    /// Its header values were read again since its last success.
    pub(crate) renewed: bool,
    /// Failed attempts in a row.
    pub(crate) failures: u32,
    pub(crate) trial: Trial,
    pub(crate) waiting: VecDeque<CallId>,
    pub(crate) in_flight: BTreeMap<WireId, CallId>,
    /// What its links share of it.
    pub(crate) common: Common,
    pub(crate) standalone: Standalone,
    /// The successor's first ids, if they are on disk.
    pub(crate) granted: Option<(u64, u64)>,
    /// Handed over, and so is whatever came for its listeners.
    pub(crate) released: bool,
    /// What processes that drain have of it.
    pub(crate) elsewhere: Elsewhere,
    /// How long its server wants to be left alone before that stream is asked for again; the last it said (SSE `retry`).
    pub(crate) standalone_retry: Option<Duration>,
    pub(crate) standalone_failures: u32,
    /// What the refusal of a stream that was there may mean was looked into.
    pub(crate) stream_doubted: bool,
    pub(crate) standalone_since: Option<Mono>,
    pub(crate) cursor_written: Option<Mono>,
    pub(crate) keepalive: Option<TimerId>,
    /// The roots of its client are other ones than its server was told of.
    pub(crate) roots_changed: bool,
    /// When a session of one client is looked at again.
    pub(crate) grace: Option<TimerId>,
    /// The last write of times only, so that a busy session does not write its record for each call.
    pub(crate) times_written: Option<Mono>,
}

impl Session {
    pub(crate) fn fresh(
        key: PoolKey,
        declared: Declared,
        trajectory: Trajectory,
        continuation: Continuation,
        now_ms: u64,
    ) -> Self {
        Self {
            key,
            declared,
            trajectory,
            continuation,
            parent: None,
            handshake: Handshake(0),
            record: None,
            phase: Phase::Resting(Rest::Fresh),
            status: Status::New,
            reason: None,
            since_ms: now_ms,
            ids: Ids::first_block(&BTreeSet::new()),
            reserving: None,
            reserve_again: None,
            step: None,
            comparing: Comparing::No,
            drift: Drift::default(),
            backoff: None,
            offered: Offer::default(),
            initializes: 0,
            worked: false,
            last_ok: None,
            answered_at: None,
            doubted: false,
            astray: 0,
            flaps: 0,
            denials: 0,
            given_up_after: None,
            given_up: 0,
            lost_at: None,
            snubs: 0,
            switched: false,
            flighty: false,
            evicted: false,
            proven: false,
            fruitless: 0,
            denied: false,
            cure: false,
            renewed: false,
            failures: 0,
            trial: Trial::None,
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            common: Common::default(),
            standalone: Standalone::Closed,
            granted: None,
            released: false,
            elsewhere: Elsewhere::default(),
            standalone_retry: None,
            standalone_failures: 0,
            stream_doubted: false,
            standalone_since: None,
            cursor_written: None,
            keepalive: None,
            roots_changed: false,
            grace: None,
            times_written: None,
        }
    }

    /// A session of a former process: its name stays, its attach is new, its unused ids are burned.
    pub(crate) fn stored(record: Record, continuation: Continuation, now_ms: u64) -> Self {
        let key = PoolKey::of(&record);
        let declared = Declared {
            version: record.protocol_version.clone(),
            client_info: record.client_info.clone(),
            capabilities: record.capabilities.clone(),
        };
        let mut session = Self::fresh(key, declared, record.trajectory, continuation, now_ms);
        session.parent = Some(record.continuation);
        session.handshake = record.handshake;
        session.ids = Ids::after(record.ids_reserved_until);
        session.phase = Phase::Resting(Rest::Dormant);
        session.status = Status::Dormant;
        session.worked = true;
        session.proven = true;
        if record.learned.get_stream == Some(false) {
            session.standalone = Standalone::Unsupported;
        }
        session.common = Common::stored(&record);
        session.record = Some(record);
        session
    }

    /// Nobody knows whether the upstream answers again: a call finds out, or a ping.
    pub(crate) fn be_careful(&mut self, busy: bool) {
        if busy {
            self.trial = Trial::Due;
        } else {
            self.phase = Phase::Resting(Rest::Dormant);
        }
    }

    /// It was answered otherwise meanwhile, so nobody waits for the call that was to find out.
    pub(crate) fn forget_trial(&mut self) {
        if matches!(self.trial, Trial::Out(_)) {
            self.trial = Trial::None;
        }
    }

    /// The upstream answered in the present session.
    pub(crate) fn prove(&mut self) {
        self.proven = true;
        self.failures = 0;
        self.fruitless = 0;
        self.denied = false;
        self.astray = 0;
    }

    /// Its server's instances do not share sessions, as far as anybody can tell from here.
    pub(crate) fn is_flapping(&self) -> bool {
        self.flaps >= MOST_FLAPS
    }

    /// How long nothing was answered in it.
    pub(crate) fn silent(&self, now: Mono) -> Option<Duration> {
        self.answered_at.map(|at| now.saturating_sub(at))
    }

    /// It is found gone. Twice after some silence may be the server's habit (once may be a restart): what it keeps silent
    /// sessions for is at most that long, and the keep-alive follows (B08).
    pub(crate) fn note_given_up(&mut self, now: Mono) {
        let Some(silent) = self.silent(now).filter(|it| (SOME_SILENCE..=MUCH_SILENCE).contains(it)) else {
            return;
        };
        self.given_up += 1;
        if self.given_up > 1 {
            self.given_up_after = Some(self.given_up_after.map_or(silent, |limit| limit.min(silent)));
        }
    }

    /// It is there, after whatever silence.
    pub(crate) fn note_kept(&mut self, now: Mono) {
        if self.silent(now) > self.given_up_after && self.given_up_after.is_some() {
            (self.given_up, self.given_up_after) = (0, None);
        }
        self.answered_at = Some(now);
    }

    /// It is not settled yet whether it is lost: what it refused waits for that.
    pub(crate) fn is_doubted(&self) -> bool {
        matches!(
            self.phase,
            Phase::Probing | Phase::Hesitating | Phase::Renewing { then: Rest::Ready | Rest::Dormant }
        )
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.phase == Phase::Resting(Rest::Ready)
    }

    /// As far as is known the upstream still has the session that this handshake made. What belongs to an older
    /// one must not be asked of its successor: ids and cursors mean something else there.
    pub(crate) fn holds(&self, handshake: Handshake) -> bool {
        let lost = matches!(
            self.phase,
            Phase::Initializing
                | Phase::Recording
                | Phase::Acknowledging
                | Phase::Lost
                | Phase::Resting(Rest::Fresh)
                | Phase::Backoff { then: Rest::Fresh, .. }
                | Phase::Renewing { then: Rest::Fresh }
        );
        self.handshake == handshake && self.record.is_some() && !lost
    }

    /// The same, or it was refused to us for the credentials' sake and may come back (401/403).
    pub(crate) fn may_hold(&self, handshake: Handshake) -> bool {
        self.holds(handshake) || (self.denied && self.handshake == handshake && self.record.is_some())
    }

    /// The InitializeResult can be handed to a new link.
    pub(crate) fn can_greet(&self) -> bool {
        let settled = match &self.phase {
            Phase::Resting(rest) => *rest != Rest::Fresh,
            Phase::Waking | Phase::Probing | Phase::Acknowledging | Phase::Hesitating => true,
            Phase::Backoff { then, .. } | Phase::Renewing { then } => *then != Rest::Fresh,
            Phase::Initializing | Phase::Recording | Phase::Lost => false,
        };
        settled && self.record.is_some()
    }

    /// The pause after the present number of failures in a row.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_millis(500) * 2u32.saturating_pow(self.failures.min(6))
    }
}
