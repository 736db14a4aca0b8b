//! What the scripted upstream remembers, and how its tasks and the test's thread wait on it.
//!
//! One lock over everything: the upstream is a fixture, and an order of events that is easy to reason about is worth more here than speed.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

use super::Script;
use super::asks::AskBook;
use super::events::StreamLog;
use super::faults::FaultBook;
use super::journal::{Entry, Journal, Violation};
use super::lists::Cursor;
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
        let state = State { script, ..State::default() };
        Self { state: Watched::new(state), changes: watch::Sender::new(0), journal }
    }

    /// Changes the state and wakes everyone who waits on it.
    pub(super) fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = self.state.update(change);
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
        within: std::time::Duration,
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
    /// Cursors given out, over all sessions.
    pub(super) n_cursors: u64,
    pub(super) asks: AskBook,
}

impl State {
    /// A session to work on.
    pub(super) fn session(&mut self, id: &str) -> Option<&mut Session> {
        self.sessions.get_mut(id)
    }

    /// Mints a session and gives its id; empty in a session-less script.
    pub(super) fn mint(&mut self, version: &str) -> String {
        self.n_sessions += 1;
        let id = self.script.session_ids.mint(self.n_sessions);
        self.sessions.insert(id.clone(), Session::new(version));
        id
    }

    /// Appends a message to a stream; lost if the session is gone, as on a real server.
    pub(super) fn push(&mut self, session: &str, stream: u64, message: String) {
        if let Some(log) = self.session(session).and_then(|session| session.streams.get_mut(&stream)) {
            log.messages.push(message);
        }
    }

    /// Appends a notification to the GET stream of each session that `wanted` picks.
    pub(super) fn broadcast(&mut self, message: &str, wanted: impl Fn(&Session) -> bool) {
        let keep = self.script.replies.has_event_ids();
        for session in self.sessions.values_mut().filter(|session| wanted(session)) {
            let log = session.get_stream();
            // Without an event store a message that nobody listens to is lost.
            if keep || log.viewer.is_some() {
                log.messages.push(message.to_owned());
            }
        }
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
                if !is_initialize {
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

/// One session of the upstream.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) version: String,
    /// `notifications/initialized` was answered.
    pub(super) initialized: bool,
    pub(super) counter: u64,
    pub(super) streams: BTreeMap<u64, StreamLog>,
    pub(super) n_streams: u64,
    pub(super) subscriptions: BTreeSet<String>,
    pub(super) log_level: Option<String>,
    seen_ids: BTreeSet<String>,
    /// Requests in work: raw id to cancelled.
    pub(super) running: BTreeMap<String, bool>,
    /// Raw `params` of the last `initialize`.
    pub(super) initialize_params: String,
    /// Hash of the credential that opened it.
    pub(super) owner: Option<String>,
    pub(super) cursors: BTreeMap<String, Cursor>,
}

impl Session {
    fn new(version: &str) -> Self {
        let mut session = Self { version: version.to_owned(), ..Self::default() };
        session.streams.insert(GET_STREAM, StreamLog::default());
        session
    }

    /// The log of the GET stream.
    pub(super) fn get_stream(&mut self) -> &mut StreamLog {
        self.streams.entry(GET_STREAM).or_default()
    }

    /// A new stream for the answer of a POST.
    pub(super) fn open_stream(&mut self) -> u64 {
        self.n_streams += 1;
        self.streams.insert(self.n_streams, StreamLog::default());
        self.n_streams
    }

    fn check(&mut self, entry: &Entry) -> Vec<Violation> {
        let mut broken = Vec::new();
        let is_request = entry.rpc_method.is_some() && entry.id.is_some();
        if let (true, Some(id)) = (is_request, &entry.id)
            && !self.seen_ids.insert(id.clone())
        {
            broken.push(Violation::RepeatedId);
        }
        if is_request && !self.initialized && !entry.is("ping") {
            broken.push(Violation::BeforeInitialized);
        }
        // The header exists from 2025-06-18 on; the revisions sort as text.
        if self.version.as_str() >= "2025-06-18"
            && entry.protocol_version.as_deref() != Some(self.version.as_str())
        {
            broken.push(Violation::ProtocolVersionHeader);
        }
        broken
    }
}
