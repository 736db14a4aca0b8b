//! Requests of our own to a server: its log level and subscriptions, when no client's request can carry them.
//!
//! They are due after a fresh handshake, which leaves the server with neither, and when a link ended. A few at a
//! time, each in its turn (see `flights`).

use std::time::Duration;

use mcp_wire::{Id, method};

use crate::flights::{Flight, Holder, LEVEL, Later, watch};
use crate::hub::{Hub, Pending, Purpose};
use crate::names::WireId;
use crate::output::Verb;
use crate::record::{HandshakeState, Sync};
use crate::session::SessionIx;
use crate::timers::Timer;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Ask again for what the record says.
    Subscribe(String),
    /// Nobody wants it any more.
    Unsubscribe(String),
    /// Tell the level that is wanted.
    Level,
}

/// A chore that is waiting, and how often it was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) chore: Chore,
    attempts: u32,
}

impl From<Chore> for Due {
    fn from(chore: Chore) -> Self {
        Self { chore, attempts: 0 }
    }
}

/// A chore without an answer is tried again after this, and given up after that many times.
const AGAIN: Duration = Duration::from_secs(2);
const MOST_ATTEMPTS: u32 = 3;
/// A server is not flooded with all that a crowd of links subscribed.
const MOST_AT_ONCE: usize = 4;

impl Hub {
    /// Starts what is due, as far as the session and its ids allow.
    pub(crate) fn do_chores(&mut self, ix: SessionIx) {
        while self.may_begin() {
            let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.is_ready()) else {
                return;
            };
            let common = &session.common;
            let running = common.flights.keys().filter(|holder| matches!(holder, Holder::Chore(_))).count();
            if common.chores.is_empty() && running == 0 {
                self.finish_handshake(ix);
                return;
            }
            if common.chores.is_empty() || running >= MOST_AT_ONCE || common.chore_pause.is_some() {
                return;
            }
            if session.ids.is_empty() {
                self.reserve(ix);
                return;
            }
            let Some(due) = session.common.chores.pop_front() else { return };
            self.do_chore(ix, due);
        }
    }

    pub(crate) fn on_chores_due(&mut self, ix: SessionIx) {
        let Some(common) = self.common(ix) else { return };
        common.chore_pause = None;
        self.later.push(Later::Chores(ix));
    }

    /// The session has all that it is to have: from here on another process need not start anew with it.
    fn finish_handshake(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let Some(record) = session.record.as_mut() else { return };
        if record.handshake_state == HandshakeState::Answered {
            record.handshake_state = HandshakeState::Acknowledged;
            self.write_record(ix, Sync::None, Pending::Update);
        }
    }

    fn do_chore(&mut self, ix: SessionIx, due: Due) {
        let chore = &due.chore;
        let Some(session) = self.sessions.get(&ix) else { return };
        let wanted = |uri: &str| session.record.as_ref().is_some_and(|r| r.subscriptions.contains_key(uri));
        let uri = |uri: &str| serde_json::json!({ "uri": uri }).to_string();
        let level = self.level_to_tell(ix);
        let (topic, name, params) = match chore {
            Chore::Subscribe(it) if wanted(it) => (watch(it), method::RESOURCES_SUBSCRIBE, uri(it)),
            Chore::Unsubscribe(it) if !wanted(it) => (watch(it), method::RESOURCES_UNSUBSCRIBE, uri(it)),
            Chore::Level if level.is_some() => {
                let name = level.map_or("", crate::levels::Level::name);
                (LEVEL.to_owned(), method::LOGGING_SET_LEVEL, format!(r#"{{"level":"{name}"}}"#))
            }
            _ => return,
        };
        if session.common.turns.contains_key(&topic) {
            // Whoever has the turn leaves things as they should be; but a subscriber is owed its news.
            if let Chore::Subscribe(uri) = chore {
                self.announce_update(ix, uri);
            }
            return;
        }
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let Some(wire) = session.ids.take() else { return };
        let holder = Holder::Chore(wire);
        let mut flight = Flight::new(topic.clone(), false, now);
        let told = *chore == Chore::Level;
        flight.chore = Some(due);
        session.common.turns.insert(topic, holder);
        session.common.flights.insert(holder, flight);
        if told {
            session.common.told = level;
        }
        if session.ids.runs_low() {
            self.reserve(ix);
        }
        let body = mcp_wire::request(&Id::number(wire.0), name, Some(params.as_bytes()));
        self.start(ix, Purpose::Aside(Some(wire)), Verb::Post(body), None);
    }

    /// An exchange of ours has its answer (`Some`: whether the server agreed) or ended without one. Pings come
    /// here as well, and are nobody's chore.
    pub(crate) fn on_chore_over(&mut self, ix: SessionIx, wire: WireId, agreed: Option<bool>) {
        let holder = Holder::Chore(wire);
        if !self.sessions.get(&ix).is_some_and(|session| session.common.flights.contains_key(&holder)) {
            return;
        }
        let due = self.land(ix, holder).and_then(|flight| flight.chore);
        if let Some(due) = due {
            self.end_chore(ix, due, agreed);
        }
        self.later.push(Later::Chores(ix));
    }

    fn end_chore(&mut self, ix: SessionIx, mut due: Due, agreed: Option<bool>) {
        due.attempts += 1;
        let again = agreed.is_none() && due.attempts < MOST_ATTEMPTS;
        match &due.chore {
            Chore::Subscribe(uri) if !again => {
                // Only now: what changed between a client's look at it and this would be missed.
                self.announce_update(ix, uri);
                if agreed != Some(true) {
                    self.drop_subscription(ix, uri);
                }
            }
            Chore::Level if again => {
                if let Some(common) = self.common(ix) {
                    common.told = None;
                }
            }
            Chore::Level => self.reconcile_level(ix),
            Chore::Subscribe(_) | Chore::Unsubscribe(_) => {}
        }
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix).filter(|_| again) else { return };
        session.common.chores.push_back(due);
        if session.common.chore_pause.is_none() {
            let pause = self.mint.jitter(AGAIN);
            session.common.chore_pause = Some(self.timers.arm(now, pause, Timer::Chores(ix)));
        }
    }

    /// A fresh handshake took the place of a lost session: the server knows of no level and no subscription, and
    /// every list may differ.
    pub(crate) fn restore_wishes(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.common.on_handshake();
        self.timers.cancel(session.common.chore_pause.take());
        let subscribed = session.record.iter().flat_map(|record| record.subscriptions.keys());
        let chores: Vec<Due> = subscribed.map(|uri| Chore::Subscribe(uri.clone()).into()).collect();
        session.common.chores.extend(chores);
        let running = session.common.flights.keys().filter(|holder| matches!(holder, Holder::Chore(_)));
        let running: Vec<Holder> = running.copied().collect();
        for holder in running {
            self.land(ix, holder);
        }
        self.reconcile_level(ix);
        self.later.push(Later::Chores(ix));
        self.do_chores(ix);
        self.announce_changed_lists(ix);
    }
}
