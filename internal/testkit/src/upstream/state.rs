//! What the scripted upstream remembers, and how its tasks and the test's thread wait on it.
//!
//! One lock over everything: the upstream is a fixture, and an order of events that is easy to reason about is worth more here than speed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::Script;
use super::asks::AskBook;
use super::clock::Clock;
use super::engine::Engines;
use super::era::Visit;
use super::events::StreamLog;
use super::faults::FaultBook;
use super::journal::{Entry, Journal, Violation};
use super::lists::Cursors;
use super::rpc::Message;
use super::threads::Threads;
use crate::wait::Watched;

/// The stream number of a session's GET stream.
pub(super) const GET_STREAM: u64 = 0;

/// What all tasks of one upstream and its handle share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Watched<State>,
    /// Counts changes, for tasks that wait; the value itself means nothing.
    changes: watch::Sender<u64>,
    pub(super) journal: Journal,
}

impl Shared {
    pub(super) fn new(script: Script, journal: Journal) -> Self {
        let mut state = State { script, ..State::default() };
        state.load().expect("the state file can be read");
        Self { state: Watched::new(state), changes: watch::Sender::new(0), journal }
    }

    /// Changes the state and wakes everyone who waits on it.
    pub(super) fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = self.state.update(|state| {
            let result = change(state);
            state.save();
            result
        });
        self.changes.send_modify(|n| *n += 1);
        result
    }

    /// Looks at the state.
    pub(super) fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.state.read(look)
    }

    /// Waits, in a task, until `condition` gives something. Wakes nobody by itself.
    pub(super) async fn when<R>(&self, mut condition: impl FnMut(&State) -> Option<R>) -> R {
        // Subscribed before the first look, so that no change falls between the two.
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(result) = self.state.read(&mut condition) {
                return result;
            }
            // The sender lives in self, so this cannot fail while we are here.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits, in the test's thread, with a deadline.
    pub(super) fn wait<R>(
        &self,
        within: Duration,
        mut condition: impl FnMut(&State) -> Option<R>,
    ) -> Option<R> {
        self.state.wait(within, |state| condition(state))
    }
}

/// Everything that changes.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) script: Script,
    pub(super) sessions: BTreeMap<String, Session>,
    pub(super) n_sessions: u64,
    /// Survives restarts and lost sessions, so that it can prove how often something ran.
    pub(super) side_effects: BTreeMap<String, u64>,
    pub(super) open_gates: BTreeSet<String>,
    pub(super) at_gate: BTreeMap<String, usize>,
    pub(super) stalled: BTreeSet<String>,
    pub(super) faults: FaultBook,
    /// Rises when faults are cleared; a hung request waits for that.
    pub(super) faults_cleared: u64,
    pub(super) refusing: bool,
    pub(super) listening: bool,
    pub(super) n_viewers: u64,
    pub(super) n_connections: u64,
    /// Rises with `list_change`, and shows in the tool list.
    pub(super) tool_revision: u64,
    pub(super) cursors: Cursors,
    pub(super) asks: AskBook,
    pub(super) engines: Engines,
    pub(super) threads: Threads,
    pub(super) clock: Clock,
    /// Requests of the session-less revision in work, each in a session of its own that ends with it.
    pub(super) visits: BTreeMap<String, Session>,
    pub(super) n_visits: u64,
    /// Calls of the session-less revision that wait for input: state given out, and the arguments it is for.
    pub(super) input_required: BTreeMap<String, String>,
    /// Mark of what the state file holds.
    pub(super) saved: Option<u64>,
}

impl State {
    /// A session to work on.
    pub(super) fn session(&mut self, id: &str) -> Option<&mut Session> {
        self.sessions.get_mut(id).or_else(|| self.visits.get_mut(id))
    }

    /// A session to look at.
    pub(super) fn find(&self, id: &str) -> Option<&Session> {
        self.sessions.get(id).or_else(|| self.visits.get(id))
    }

    /// Mints a session for a path and gives its id; empty in a session-less script.
    pub(super) fn mint(&mut self, version: &str, path: &str) -> String {
        self.n_sessions += 1;
        let id = self.script.session_ids.mint(self.n_sessions);
        self.end_session(&id);
        let kept = Kept { version: version.to_owned(), path: path.to_owned(), ..Kept::default() };
        self.restore(id.clone(), kept);
        id
    }

    /// Puts a session in place.
    pub(super) fn restore(&mut self, id: String, kept: Kept) {
        self.sessions.insert(id, Session { last_used: self.clock.now(), ..Session::new(kept) });
    }

    /// Ends one session with all that is only in it.
    pub(super) fn end_session(&mut self, id: &str) {
        self.sessions.remove(id);
        self.engines.drop_session(id);
        self.threads.drop_session(id);
        self.cursors.drop_session(id);
    }

    /// Ends all sessions.
    pub(super) fn end_sessions(&mut self) {
        self.sessions.clear();
        self.engines.drop_sessions();
        self.threads.drop_sessions();
        self.cursors = Cursors::default();
    }

    /// Ends the sessions that nobody has used for too long. A running call or a read GET stream is use.
    pub(super) fn end_idle_sessions(&mut self) {
        let Some(limit) = self.script.idle_ttl else { return };
        let now = self.clock.now();
        let idle = |session: &Session| !session.in_use() && now.saturating_sub(session.last_used) >= limit;
        let idle: Vec<_> =
            self.sessions.iter().filter(|(_, session)| idle(session)).map(|(id, _)| id.clone()).collect();
        for id in idle {
            self.end_session(&id);
        }
    }

    /// Notes that a session is in use now.
    pub(super) fn touch(&mut self, id: &str) {
        let now = self.clock.now();
        if let Some(session) = self.session(id) {
            session.last_used = now;
        }
    }

    /// Appends a message to a stream; lost if the session is gone, as on a real server.
    pub(super) fn push(&mut self, session: &str, stream: u64, message: String) {
        if let Some(log) = self.session(session).and_then(|session| session.streams.get_mut(&stream)) {
            log.messages.push(message);
        }
    }

    /// Appends a notification to the GET stream of each session that `wanted` picks.
    pub(super) fn broadcast(&mut self, raw: &str, wanted: impl Fn(&Session) -> bool) {
        let keep = self.script.replies.has_event_ids();
        let message = Message::parse(&Bytes::copy_from_slice(raw.as_bytes()));
        for (id, session) in self.sessions.iter_mut().filter(|(_, session)| wanted(session)) {
            let log = session.get_stream();
            // Without an event store a message that nobody listens to is lost.
            if keep || log.viewer.is_some() {
                log.messages.push(raw.to_owned());
                self.asks.note_message(id, &message);
            }
        }
        super::listen::broadcast(self, &message);
    }

    /// The rules that a request breaks; remembers its id.
    pub(super) fn check(&mut self, entry: &Entry, is_initialize: bool) -> Vec<Violation> {
        let mut broken = Vec::new();
        if is_initialize && entry.session.is_some() {
            broken.push(Violation::InitializeWithSession);
        }
        let sessionless = self.script.session_ids == super::SessionIds::None;
        let session_id = match &entry.session {
            Some(id) => id.clone(),
            None if sessionless => String::new(),
            None => {
                // A client may find out which revision it meets (2026-07-28, "Era detection").
                if !is_initialize && !entry.is("server/discover") {
                    broken.push(Violation::NoSession);
                }
                return broken;
            }
        };
        let Some(session) = self.sessions.get_mut(&session_id) else { return broken };
        if !is_initialize {
            broken.extend(session.check(entry));
            broken.extend(self.asks.check(entry));
        }
        broken
    }
}

/// What of a session outlives the process if there is a state file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) version: String,
    /// Path it was opened on.
    pub(super) path: String,
    /// `notifications/initialized` was answered.
    pub(super) initialized: bool,
    pub(super) counter: u64,
    /// Event ids have to stay unique over a restart.
    pub(super) n_streams: u64,
    pub(super) subscriptions: BTreeSet<String>,
    pub(super) log_level: Option<String>,
    /// A repeated id is one in the session's whole life.
    pub(super) seen_ids: BTreeSet<String>,
    /// Raw `params` of the last `initialize`.
    pub(super) initialize_params: String,
    /// Hash of the credential that opened it.
    pub(super) owner: Option<String>,
}

/// One session of the upstream.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) kept: Kept,
    pub(super) streams: BTreeMap<u64, StreamLog>,
    /// Requests in work: raw id to cancelled.
    pub(super) running: BTreeMap<String, bool>,
    /// When something last came or went, on the upstream's clock.
    pub(super) last_used: Duration,
    /// Set for a request of the session-less revision.
    pub(super) visit: Option<Visit>,
}

impl Session {
    pub(super) fn new(kept: Kept) -> Self {
        let mut session = Self { kept, ..Self::default() };
        session.streams.insert(GET_STREAM, StreamLog::default());
        session
    }

    fn in_use(&self) -> bool {
        !self.running.is_empty() || self.streams.values().any(|log| log.viewer.is_some())
    }

    /// The log of the GET stream.
    pub(super) fn get_stream(&mut self) -> &mut StreamLog {
        self.streams.entry(GET_STREAM).or_default()
    }

    /// A new stream for the answer of a POST.
    pub(super) fn open_stream(&mut self) -> u64 {
        self.kept.n_streams += 1;
        self.streams.insert(self.kept.n_streams, StreamLog::default());
        self.kept.n_streams
    }

    fn check(&mut self, entry: &Entry) -> Vec<Violation> {
        let mut broken = Vec::new();
        let is_request = entry.rpc_method.is_some() && entry.id.is_some();
        if let (true, Some(id)) = (is_request, &entry.id)
            && !self.kept.seen_ids.insert(id.clone())
        {
            broken.push(Violation::RepeatedId);
        }
        if is_request && !self.kept.initialized && !entry.is("ping") {
            broken.push(Violation::BeforeInitialized);
        }
        // The header exists from 2025-06-18 on; the revisions sort as text.
        if self.kept.version.as_str() >= "2025-06-18"
            && entry.protocol_version.as_deref() != Some(self.kept.version.as_str())
        {
            broken.push(Violation::ProtocolVersionHeader);
        }
        broken
    }
}
