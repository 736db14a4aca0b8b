//! The life of a session: woken from its record, made by one handshake, lost at most once at a time.

use std::collections::BTreeSet;

use mcp_wire::{Id, Kind, Message, Segments, method, version};
use serde_json::value::RawValue;

use crate::budget::Passage;
use crate::call::CallId;
use crate::capabilities::without_tasks;
use crate::class::Class;
use crate::failure::{Failure, Kind as Failed, needs_auth, session_lost, version_mismatch};
use crate::flights::Later;
use crate::hub::{Hub, Pending, Purpose};
use crate::ids::Ids;
use crate::input::{ExchangeId, Refusal};
use crate::loss::holds_another;
use crate::names::{Handshake, LinkNonce, SessionId, WireId};
use crate::offers::{is_version, may_be_version};
use crate::output::{Output, Verb};
use crate::record::{HandshakeState, Learned, Record, Sync};
use crate::refusals::wider_scope;
use crate::session::{Phase, Rest, SessionIx};
use crate::status::Status;
use crate::symptom::Meaning;
use crate::words;

/// The part of an InitializeResult that decisions need; the rest stays as the server wrote it.
#[derive(serde::Deserialize)]
struct Initialized<'a> {
    #[serde(borrow, rename = "protocolVersion")]
    protocol_version: &'a RawValue,
}

impl Hub {
    /// Something waits for this session: take the next step towards ready, if none is under way.
    pub(crate) fn wake(&mut self, ix: SessionIx) {
        let resting = self.sessions.get(&ix).map(|session| session.phase.clone());
        if matches!(resting, Some(Phase::Resting(Rest::Fresh | Rest::Dormant)))
            && let Passage::Closed(failure) = self.passage(ix)
        {
            return self.fail_waiting(ix, &failure);
        }
        let may_begin = self.may_begin();
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        match session.phase {
            Phase::Resting(Rest::Fresh | Rest::Dormant) if !may_begin => {}
            Phase::Resting(Rest::Fresh) => self.begin_initialize(ix),
            Phase::Resting(Rest::Dormant) => {
                session.phase = Phase::Waking;
                if session.ids.is_empty() {
                    self.reserve(ix);
                } else {
                    self.first_contact(ix);
                }
            }
            Phase::Resting(Rest::Ready) => self.release(ix),
            _ => {}
        }
    }

    /// First contact with a stored session: finish its handshake, or ask for its tools, or `ping` — never `initialize`, which two SDKs
    /// silently take as a second handshake (design §6).
    pub(crate) fn first_contact(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let answered = session.record.as_ref().map(|record| record.handshake_state);
        if answered == Some(HandshakeState::Answered) {
            self.acknowledge(ix);
        } else if self.is_to_be_compared(ix) {
            self.probe_by_list(ix, None);
        } else {
            self.probe(ix);
        }
    }

    pub(crate) fn probe(&mut self, ix: SessionIx) {
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.comparing.stop();
        }
        self.probe_with(ix, |wire| mcp_wire::request(&Id::number(wire.0), method::PING, None));
    }

    pub(crate) fn probe_with(&mut self, ix: SessionIx, request: impl FnOnce(WireId) -> bytes::Bytes) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let Some(wire) = session.ids.take() else {
            session.phase = Phase::Waking;
            self.reserve(ix);
            return;
        };
        session.phase = Phase::Probing;
        self.take_step(ix, Purpose::Probe(wire), request(wire));
    }

    /// The server answered, or nothing came in time; with its answer, if that could be read.
    pub(crate) fn on_probed(&mut self, ix: SessionIx, message: Option<&Message>, proven: bool) {
        if self.compare(ix, message) {
            self.on_alive(ix, proven);
        }
    }

    /// Starts the one exchange that the session's phase waits for.
    fn take_step(&mut self, ix: SessionIx, purpose: Purpose, body: bytes::Bytes) {
        self.drop_step(ix);
        let step = self.start(ix, purpose, Verb::Post(body), None);
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.step = step;
        }
    }

    /// What the phase waited for is overtaken by events: its facts must not move a later phase on.
    pub(crate) fn drop_step(&mut self, ix: SessionIx) {
        let step = self.sessions.get_mut(&ix).and_then(|session| session.step.take());
        if let Some(exchange) = step {
            self.abort(exchange);
        }
    }

    /// The one `initialize` of a loss or a first use, for any number of waiters (D18).
    pub(crate) fn begin_initialize(&mut self, ix: SessionIx) {
        let may_begin = self.may_begin();
        let is_first = self.sessions.get(&ix).is_some_and(|session| session.handshake.0 == 0);
        // No session exists whose ids could be met again: failed handshakes must not use the block up.
        let first_block = is_first.then(|| Ids::first_block(&self.spans_beside(ix)));
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        // One that is under way already goes on with its next attempt.
        if self.draining || !(may_begin || session.phase == Phase::Initializing) {
            return;
        }
        if let Some(first_block) = first_block {
            session.ids = first_block;
        }
        let Some(wire) = session.ids.take() else {
            // Also after a refused one, of which nothing is under way any more.
            session.phase = Phase::Resting(Rest::Fresh);
            self.reserve(ix);
            return;
        };
        session.phase = Phase::Initializing;
        session.initializes += 1;
        let offer = self.offer_of(ix);
        let Some(session) = self.sessions.get(&ix) else { return };
        let params = session.declared.params(offer.version(&session.declared));
        let body = mcp_wire::request(&Id::number(wire.0), method::INITIALIZE, Some(params.as_bytes()));
        self.take_step(ix, Purpose::Initialize(wire), body);
    }

    /// Where the ids of the upstream's other sessions are.
    fn spans_beside(&self, ix: SessionIx) -> BTreeSet<u64> {
        let Some(upstream) = self.sessions.get(&ix).map(|session| &session.key.upstream) else {
            return BTreeSet::new();
        };
        let others = self
            .sessions
            .iter()
            .filter(|(other, session)| **other != ix && session.key.upstream == *upstream);
        let others = others.filter(|(_, other)| other.handshake.0 > 0 || other.phase == Phase::Initializing);
        let reserved = |record: &Record| record.ids_reserved_until;
        others.flat_map(|(_, other)| other.ids.spans(other.record.as_ref().map_or(0, reserved))).collect()
    }

    pub(crate) fn on_initialize_result(&mut self, exchange: ExchangeId, message: &Message) {
        let Some(state) = self.exchanges.get_mut(&exchange) else { return };
        let (ix, minted) = (state.session, state.minted.take());
        let Some(result) = message.result().filter(|_| message.kind() == Kind::Response) else {
            let words = message.error_message().unwrap_or_default();
            if self.evict(ix, &words.to_ascii_lowercase()) {
                return;
            }
            if is_version(message) && self.offer_otherwise(ix) {
                return;
            }
            let failure = Failure::new(Failed::UpstreamUnreachable, refused_in_words(&words));
            self.back_off(ix, Rest::Fresh, &failure.refused(), None);
            return;
        };
        match negotiated(result) {
            Some(revision) => self.record_session(ix, minted, &revision, result),
            None => self.on_mismatch(ix),
        }
    }

    /// No revision in common. Asked again after the pause, if somebody wants it: a server may be rolled back.
    fn on_mismatch(&mut self, ix: SessionIx) {
        if let Some(session) = self.sessions.get_mut(&ix)
            && std::mem::replace(&mut session.status, Status::VersionMismatch) != Status::VersionMismatch
        {
            self.note_attach(ix);
        }
        self.back_off(ix, Rest::Fresh, &version_mismatch(), None);
    }

    /// Written before `notifications/initialized` is sent: a crash between the two resends the notification,
    /// not the handshake (design §5).
    fn record_session(&mut self, ix: SessionIx, id: Option<SessionId>, revision: &str, result: &[u8]) {
        self.fail_lost_alone(ix, true);
        self.note_taken_offer(ix);
        let now_ms = self.now.wall_ms;
        let continuation = self.mint.continuation();
        let generation = self.generation;
        self.drop_asks_of_session(ix);
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let again = session.handshake.0 > 0;
        session.handshake = Handshake(session.handshake.0 + 1);
        if again {
            session.parent = Some(session.continuation);
            session.continuation = continuation;
        }
        session.status = if again { Status::Reinitialized } else { Status::New };
        session.standalone = crate::session::Standalone::Closed;
        session.standalone_retry = None;
        session.common.on_handshake();
        session.cure = session.denied;
        (session.doubted, session.proven, session.denied) = (false, false, false);
        (session.switched, session.flighty, session.evicted) = (false, false, false);
        (session.astray, session.denials, session.snubs) = (0, 0, 0);
        let old = session.record.take();
        session.forget_offers(old.as_ref(), result);
        // A reservation under way is in the old record already, and may be granted yet.
        let reserved = old.as_ref().map_or(0, |old| old.ids_reserved_until).max(session.ids.end());
        session.record = Some(Record {
            upstream: session.key.upstream.clone(),
            trajectory: session.trajectory,
            handshake: session.handshake,
            continuation: session.continuation,
            parent: session.parent,
            generation,
            fingerprint: session.key.fingerprint,
            session_id: id,
            protocol_version: revision.to_owned(),
            initialize_result: String::from_utf8_lossy(result).into_owned(),
            client_info: session.declared.client_info.clone(),
            capabilities: session.declared.capabilities.clone(),
            handshake_state: HandshakeState::Answered,
            ids_reserved_until: reserved,
            get_cursor: None,
            subscriptions: old.as_ref().map(|old| old.subscriptions.clone()).unwrap_or_default(),
            log_levels: old.as_ref().map(|old| old.log_levels.clone()).unwrap_or_default(),
            owner: session.key.owner,
            handles: old.as_ref().map(|old| old.handles.clone()).unwrap_or_default(),
            tools: old.as_ref().and_then(|old| old.tools.clone()),
            learned: Learned { get_stream: None, gone_signature: session.reason.clone().filter(|_| again) },
            created_ms: now_ms,
            used_ms: now_ms,
            ok_ms: now_ms,
            extra: old.map(|old| old.extra).unwrap_or_default(),
        });
        let inherited = std::mem::take(&mut session.common.inherited);
        if let Some(record) = session.record.as_mut() {
            inherited.enter(record);
        }
        session.phase = Phase::Recording;
        self.note_attach(ix);
        self.fail_orphans(ix);
        self.write_record(ix, Sync::Durable, Pending::Creation(ix));
    }

    /// Its record is written. Without one the session is usable while this process lives; status says that nothing can
    /// be promised beyond.
    pub(crate) fn acknowledge(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.phase = Phase::Acknowledging;
        let body = mcp_wire::notification(method::NOTIFICATIONS_INITIALIZED, None);
        self.take_step(ix, Purpose::Initialized, body);
        self.greet_waiting(ix);
    }

    pub(crate) fn on_acknowledged(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        // A process that takes over before the server was told all that it is to know again has to tell it.
        if let Some(record) = session.record.as_mut().filter(|record| !record.is_owed()) {
            record.handshake_state = HandshakeState::Acknowledged;
        }
        self.write_record(ix, Sync::None, Pending::Update);
        self.on_alive(ix, false);
    }

    /// The server accepts the session. `proven`: it answered in it, which a handshake alone does not show.
    pub(crate) fn on_alive(&mut self, ix: SessionIx, proven: bool) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        if !matches!(session.phase, Phase::Probing | Phase::Acknowledging) {
            return;
        }
        if session.snubs == 1 && session.phase == Phase::Probing {
            return self.acknowledge(ix);
        }
        // Also one that a former process did not live to finish, and a first session that took the place of one
        // under an older config.
        let second = session.handshake.0 > 1 || session.record.as_ref().is_some_and(Record::is_owed);
        let unfinished = second && std::mem::take(&mut session.common.unfinished);
        let again = second || session.reason.is_some();
        let replaced = unfinished || (again && session.phase == Phase::Acknowledging);
        session.step = None;
        session.snubs = 0;
        session.phase = Phase::Resting(Rest::Ready);
        session.forget_trial();
        session.worked = true;
        session.last_ok = Some(now.mono);
        session.answered_at = Some(now.mono);
        if proven {
            session.prove();
        }
        if let Some(record) = session.record.as_mut() {
            record.ok_ms = now.wall_ms;
        }
        let reattached = matches!(session.status, Status::Dormant | Status::ResumeFailed);
        if reattached {
            session.status = Status::Resumed;
            session.reason = None;
            self.note_attach(ix);
        }
        if replaced {
            self.restore_wishes(ix);
        }
        self.go_on(ix);
        self.arm_keepalive(ix);
        self.end_if_over(ix);
    }

    /// A session that is ready again: listens, and then lets go what waited. In that order: what a server without event ids says
    /// on the stream about a call is lost to whoever does not listen yet.
    pub(crate) fn go_on(&mut self, ix: SessionIx) {
        self.open_standalone(ix);
        self.release(ix);
    }

    /// Lets everything that waited go on.
    pub(crate) fn release(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        // Also with none left: the last one may have ended while the session was not ready.
        self.later.push(Later::Chores(ix));
        let waiting = std::mem::take(&mut session.waiting);
        self.tell_roots_change(ix);
        // What was answered before they came is not overtaken by them.
        self.pump_lanes(ix);
        for call in waiting {
            self.dispatch(call);
        }
    }

    fn greet_waiting(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix).filter(|session| session.can_greet()) else { return };
        let greetings: Vec<CallId> = session
            .waiting
            .iter()
            .copied()
            .filter(|call| self.calls.get(call).is_some_and(|state| state.greeting))
            .collect();
        for call in greetings {
            self.greet(call);
        }
    }

    /// Answers a client's `initialize` from the record: byte for byte the server's, but for the revision this
    /// client speaks and the session's identity in `_meta`.
    pub(crate) fn greet(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let (link, stream, ix, id) = (state.link, state.stream, state.session, state.client_id.clone());
        let Some(record) = self.sessions.get(&ix).and_then(|session| session.record.as_ref()) else { return };
        let Some(claim) = self.links.get_mut(&link).map(|state| &mut state.claim) else { return };
        // Never newer than what the server speaks; revisions sort as text.
        if claim.version > record.protocol_version {
            claim.version.clone_from(&record.protocol_version);
        }
        let claim = claim.clone();
        let result = with_revision(&record.initialize_result, &claim.version);
        let pooled = !claim.class.has(Class::OWN);
        let result = if pooled { without_tasks(result) } else { result };
        let message = Message::parse(mcp_wire::result(&id, result.as_bytes()));
        let meta = self.session_meta(ix);
        let data = match (message, meta) {
            (Ok(message), Some(meta)) => {
                message.splice().result_meta("evermux/session", meta.as_bytes()).finish()
            }
            (Ok(message), None) => Segments::from(message),
            (Err(_), _) => return self.fail(call, &session_lost()),
        };
        if let Some(stream) = stream {
            self.order(Output::Accept { stream, link: Some(claim) });
        }
        self.mark_told(call);
        self.settle(call, None, data);
    }

    /// `_meta["evermux/session"]`, if this link has not been told of the present attach yet (contract).
    /// `routed`: another session than its client's own answered, which is always said.
    pub(crate) fn identity_due(&self, link: LinkNonce, ix: SessionIx, routed: bool) -> Option<String> {
        let session = self.sessions.get(&ix)?;
        let told = self.links.get(&link)?.told;
        let news = routed || told != Some((session.continuation, session.status));
        (self.annotates(ix) || news).then(|| self.session_meta(ix)).flatten()
    }

    /// Whether that may go into this result. An empty object only says "done", as to `logging/setLevel`, and there
    /// are clients that take it for nothing else: the note waits for the next result, unless every one is to have it.
    pub(crate) fn takes_note(&self, ix: SessionIx, result: &[u8]) -> bool {
        match result.split_first() {
            Some((b'{', rest)) => rest.trim_ascii_start() != b"}" || self.annotates(ix),
            _ => false,
        }
    }

    fn annotates(&self, ix: SessionIx) -> bool {
        let upstream = self.sessions.get(&ix).and_then(|session| self.upstreams.get(&session.key.upstream));
        upstream.is_some_and(|upstream| upstream.policy.annotate)
    }

    pub(crate) fn mark_told(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let Some(session) = self.sessions.get(&state.session) else { return };
        let told = (session.continuation, session.status);
        if let Some(link) = self.links.get_mut(&state.link) {
            link.told = Some(told);
        }
    }

    fn session_meta(&self, ix: SessionIx) -> Option<String> {
        let session = self.sessions.get(&ix)?;
        let meta = serde_json::json!({
            "trajectory": session.trajectory.to_string(),
            "handshake": session.handshake.0,
            "continuation": session.continuation.to_string(),
            "status": session.status.word(),
            "reason": session.reason,
        });
        Some(meta.to_string())
    }

    /// A handshake, probe or `initialized` could not be carried out: nothing is known about the session.
    pub(crate) fn on_contact_failed(&mut self, ix: SessionIx, purpose: Purpose, why: &str) {
        let failure =
            Failure::new(Failed::UpstreamUnreachable, format!("the upstream cannot be reached: {why}"));
        self.back_off(ix, rest_after(purpose), &failure, None);
    }

    pub(crate) fn on_contact_refused(&mut self, ix: SessionIx, purpose: Purpose, meaning: Meaning) {
        match meaning {
            // Dealt with when the news came.
            Meaning::Gone(_) | Meaning::Denied(_) | Meaning::Astray(_) => {}
            Meaning::Mismatch => self.on_mismatch(ix),
            // Even an error is an answer of a server that knows the session.
            Meaning::Answer if matches!(purpose, Purpose::Probe(_)) => self.on_probed(ix, None, true),
            Meaning::Unusable | Meaning::Doubtful(_) if self.is_spared_its_list(ix, purpose) => {}
            Meaning::Busy(_) | Meaning::Trouble(_) if self.is_only_its_list(ix, purpose) => {
                self.on_probed(ix, None, true);
            }
            Meaning::Answer | Meaning::Unusable | Meaning::Trouble(None)
                if purpose == Purpose::Initialized && self.bear_snub(ix) => {}
            Meaning::Answer | Meaning::Unusable | Meaning::Doubtful(_) => {
                let text = "the upstream refuses the first contact";
                let failure = Failure::new(Failed::UpstreamUnreachable, text);
                self.back_off(ix, rest_after(purpose), &failure, None);
            }
            Meaning::Busy(after) | Meaning::Trouble(after) => {
                let failure = Failure::new(Failed::UpstreamUnreachable, "the upstream is in trouble");
                self.back_off(ix, rest_after(purpose), &failure, after);
            }
        }
    }

    /// Some servers answer `initialized` with an error, whatever its status, and serve the session all the same
    /// (B31). A ping tells them from those in trouble; one that was only a moment in trouble is told again.
    fn bear_snub(&mut self, ix: SessionIx) -> bool {
        let Some(session) = self.sessions.get_mut(&ix).filter(|s| s.phase == Phase::Acknowledging) else {
            return false;
        };
        session.snubs += 1;
        if session.snubs == 1 {
            self.probe(ix);
        } else {
            self.on_alive(ix, false);
        }
        true
    }

    pub(crate) fn on_handshake_refused(
        &mut self,
        ix: SessionIx,
        meaning: Meaning,
        refusal: Option<&Refusal>,
    ) {
        let status = refusal.map_or(0, |refusal| refusal.status);
        if status == 401 && self.may_renew(ix) {
            self.renew(ix, Rest::Fresh);
            return;
        }
        let body = refusal.map(|refusal| String::from_utf8_lossy(&refusal.body).to_ascii_lowercase());
        if body.as_ref().is_some_and(|body| self.evict(ix, body)) {
            return;
        }
        if refusal.is_some_and(may_be_version) && self.offer_otherwise(ix) {
            return;
        }
        let orphan = body.is_some_and(|body| holds_another(&body));
        let (failure, after) = match meaning {
            Meaning::Mismatch => return self.on_mismatch(ix),
            _ if refusal.is_some_and(|refusal| refusal.scope) => {
                (Failure::new(Failed::NeedsAuth, wider_scope(refusal)), None)
            }
            _ if orphan => (
                Failure::new(Failed::UpstreamUnreachable, refused_in_words("already initialized")).refused(),
                None,
            ),
            Meaning::Denied(_) => (needs_auth(), None),
            Meaning::Busy(after) | Meaning::Trouble(after) => {
                let text = format!("the upstream answers initialize with HTTP {status}");
                (Failure::new(Failed::UpstreamUnreachable, text), after)
            }
            _ => {
                let text = refused_with(status, refusal);
                let after = matches!(status, 404 | 405).then(|| self.pause_of_misplaced(ix));
                (Failure::new(Failed::UpstreamUnreachable, text).refused(), after)
            }
        };
        self.back_off(ix, Rest::Fresh, &failure, after);
    }

    /// Nothing speaks MCP at this place: most likely the URL is wrong, and asking does not mend it (B51).
    fn pause_of_misplaced(&self, ix: SessionIx) -> std::time::Duration {
        let failures = self.sessions.get(&ix).map_or(0, |session| session.failures);
        std::time::Duration::from_secs(1) * 2u32.saturating_pow(failures.min(9))
    }

    pub(crate) fn fail_waiting(&mut self, ix: SessionIx, failure: &Failure) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        for call in std::mem::take(&mut session.waiting) {
            self.fail(call, failure);
        }
    }
}

/// Why an `initialize` was refused, for people. A single-session server that holds on to somebody's session, which is
/// not in our hands, takes no other until that one ends (B15).
fn refused_in_words(words: &str) -> String {
    if holds_another(&words.to_ascii_lowercase()) {
        return "the upstream serves one session only and holds on to another (already initialized): end its other \
                client, or restart it"
            .to_owned();
    }
    format!("initialize was refused: {}", words::quoted(words))
}

fn refused_with(status: u16, refusal: Option<&Refusal>) -> String {
    let body = refusal.map(|refusal| refusal.body.clone()).unwrap_or_default();
    let words = Message::parse(body).ok().and_then(|message| message.error_message());
    let hint = match status {
        403 | 421 => "a firewall or a check of Host or Origin stands before the upstream",
        _ => "check the upstream's URL",
    };
    match words {
        Some(words) => format!("{} (HTTP {status})", refused_in_words(&words)),
        None => format!("initialize was refused with HTTP {status}: {hint}"),
    }
}

pub(crate) fn rest_after(purpose: Purpose) -> Rest {
    match purpose {
        Purpose::Initialize(_) | Purpose::Evict => Rest::Fresh,
        _ => Rest::Dormant,
    }
}

fn negotiated(result: &[u8]) -> Option<String> {
    let initialized: Initialized<'_> = serde_json::from_slice(result).ok()?;
    let revision: String = serde_json::from_str(initialized.protocol_version.get()).ok()?;
    version::is_known_session_revision(&revision).then_some(revision)
}

/// The InitializeResult with another revision in place: only those bytes differ.
fn with_revision(result: &str, revision: &str) -> String {
    let Ok(initialized) = serde_json::from_str::<Initialized<'_>>(result) else { return result.to_owned() };
    let old = initialized.protocol_version.get();
    let at = old.as_ptr() as usize - result.as_ptr() as usize;
    let (head, tail) = result.split_at(at);
    format!("{head}\"{revision}\"{}", &tail[old.len()..])
}
