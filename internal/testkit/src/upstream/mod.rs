//! A scripted MCP upstream: an honest streamable-HTTP server of the session-bearing revisions, and of the session-less one if asked, with
//! every fault on a switch.
//!
//! It runs on its own thread and its own runtime, so that a test is ordinary blocking code and its death is the test's decision. It keeps
//! the port for its whole life (a bound socket that never listens), so that "refused" and "restarted on the same port" are exact and no
//! other test can take the port in between.

mod access;
mod asks;
mod clock;
mod engine;
mod era;
mod events;
mod faults;
mod input;
mod journal;
mod listen;
mod lists;
mod logs;
mod options;
mod persist;
mod rpc;
mod script;
mod server;
mod state;
mod threads;
mod tools;
mod views;

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::sync::watch;

pub use asks::AskAnswer;
pub use engine::Executed;
pub use faults::{Fault, LostAs, Matching};
pub use journal::{Entry, Violation, read_file};
pub use script::{
    AskIds, DeleteSupport, Engine, Era, ExecIds, GetSupport, Replies, Script, SecondInitialize, SessionIds,
};
pub use views::SessionView;

use journal::Journal;
use state::{GET_STREAM, Shared};

use crate::wait::PATIENCE;

/// A running scripted upstream. Dropping it ends it.
#[derive(Debug)]
pub struct Upstream {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Bound, never listening: keeps the port ours while nothing listens on it.
    _port: TcpSocket,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Upstream {
    /// Starts on a free loopback port.
    #[must_use]
    pub fn start(script: Script) -> Self {
        Self::start_on(script, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// Starts on a given address; port 0 takes a free one.
    #[must_use]
    pub fn start_on(script: Script, address: SocketAddr) -> Self {
        let port = TcpSocket::new_v4().expect("a socket can be made");
        port.set_reuseaddr(true).expect("a socket can share its address");
        port.bind(address).expect("the port is free");
        let address = port.local_addr().expect("a bound socket has an address");
        let journal = Journal::open(script.journal_file.as_deref()).expect("the journal file can be made");
        let upstream = Self {
            shared: Arc::new(Shared::new(script, journal)),
            address,
            _port: port,
            running: Mutex::new(None),
        };
        upstream.run();
        upstream
    }

    /// The address it listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The MCP endpoint.
    #[must_use]
    pub fn url(&self) -> String {
        self.shared.read(|state| self.url_of(state.script.resources.first().map_or("/mcp", String::as_str)))
    }

    /// The endpoint of one of several paths, see [`Script::resources`].
    #[must_use]
    pub fn url_of(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn run(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(running.is_none(), "the upstream runs already");
        let listener = server::bind(self.address);
        let (stop, stopped) = watch::channel(false);
        let (shared, address) = (Arc::clone(&self.shared), self.address);
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be built");
            // Leaving block_on drops the runtime, and with it every connection and call: as when a process ends.
            runtime.block_on(server::serve(shared, address, listener, stopped));
        };
        let thread = std::thread::Builder::new().name("scripted-upstream".to_owned()).spawn(body);
        *running = Some(Running { stop, thread: thread.expect("a thread can be started") });
    }

    /// Ends the server as a killed process would: connections break, calls in work are gone. The state stays for [`restart`](Self::restart).
    pub fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { stop, thread }) = running else { return };
        stop.send_replace(true);
        let ended = thread.join();
        assert!(ended.is_ok() || std::thread::panicking(), "the upstream's thread panicked");
        self.shared.update(|state| {
            for session in state.sessions.values_mut() {
                session.running.clear();
                for (number, log) in &mut session.streams {
                    log.viewer = None;
                    // Nobody is left to finish a call; its stream can only be replayed.
                    log.done |= *number != GET_STREAM;
                }
            }
            state.visits.clear();
            state.at_gate.clear();
        });
    }

    /// Starts again on the same port, with the sessions and events of before.
    pub fn restart(&self) {
        self.stop();
        self.run();
    }

    /// Starts again on the same port without any session or pause, and counts executions from 1 again. Side-effect counts, gates and the
    /// journal stay.
    pub fn restart_without_state(&self) {
        self.stop();
        self.forget_sessions();
        self.forget_pauses();
        self.run();
    }

    // ---- switches ----

    /// Changes the script.
    pub fn change(&self, change: impl FnOnce(&mut Script)) {
        self.shared.update(|state| change(&mut state.script));
    }

    /// How an unknown session is refused from now on.
    pub fn lost_as(&self, lost: LostAs) {
        self.change(|script| script.lost = lost);
    }

    /// Forgets every session; their open streams end.
    pub fn forget_sessions(&self) {
        self.shared.update(|state| state.end_sessions());
    }

    /// Forgets one session.
    pub fn forget_session(&self, id: &str) {
        self.shared.update(|state| state.end_session(id));
    }

    /// A fault for the next `times` requests of any kind.
    pub fn fail_next(&self, times: usize, fault: Fault) {
        self.fail_next_matching(Matching::any(), times, fault);
    }

    /// A fault for every request until [`clear_faults`](Self::clear_faults).
    pub fn fail_while(&self, fault: Fault) {
        self.fail_while_matching(Matching::any(), fault);
    }

    /// A fault for the next `times` requests that fit.
    pub fn fail_next_matching(&self, matching: Matching, times: usize, fault: Fault) {
        self.shared.update(|state| state.faults.add(matching, fault, Some(times)));
    }

    /// A fault for every request that fits, until cleared. Of several faults the oldest that fits is taken.
    pub fn fail_while_matching(&self, matching: Matching, fault: Fault) {
        self.shared.update(|state| state.faults.add(matching, fault, None));
    }

    /// Drops all faults and lets hung requests go on.
    pub fn clear_faults(&self) {
        self.shared.update(|state| {
            state.faults.clear();
            state.faults_cleared += 1;
        });
    }

    /// Holds every request of this JSON-RPC method, read but unprocessed, until [`release`](Self::release).
    pub fn stall(&self, rpc_method: &str) {
        self.shared.update(|state| state.stalled.insert(rpc_method.to_owned()));
    }

    /// Lets the held requests of a method go on.
    pub fn release(&self, rpc_method: &str) {
        self.shared.update(|state| state.stalled.remove(rpc_method));
    }

    /// Opens a gate, for those who wait and those who come.
    pub fn open_gate(&self, name: &str) {
        self.shared.update(|state| state.open_gates.insert(name.to_owned()));
    }

    /// Shuts a gate for those who come.
    pub fn close_gate(&self, name: &str) {
        self.shared.update(|state| state.open_gates.remove(name));
    }

    /// Stops listening and breaks all connections; returns when connecting is refused. Sessions and running calls stay.
    pub fn refuse_connections(&self) {
        self.set_refusing(true);
    }

    /// Listens again; returns when connecting works.
    pub fn accept_connections(&self) {
        self.set_refusing(false);
    }

    fn set_refusing(&self, refusing: bool) {
        self.shared.update(|state| state.refusing = refusing);
        let done = self.shared.wait(PATIENCE, |state| (state.listening != refusing).then_some(()));
        assert!(done.is_some(), "the upstream did not change its listening in time; is it stopped?");
    }

    /// Ends the GET streams of all sessions in order; the events stay.
    pub fn end_get_streams(&self) {
        self.shared.update(|state| {
            for session in state.sessions.values_mut() {
                session.get_stream().viewer = None;
            }
        });
    }

    /// Ends every open event stream in order, before its answer if need be; the calls go on (2025-11-25, server-initiated disconnect).
    pub fn end_streams(&self) {
        self.shared.update(|state| {
            for log in state
                .sessions
                .values_mut()
                .chain(state.visits.values_mut())
                .flat_map(|session| session.streams.values_mut())
            {
                log.viewer = None;
            }
        });
    }

    /// Sends a raw message on the GET stream of every session.
    pub fn notify(&self, message: &str) {
        self.shared.update(|state| state.broadcast(message, |_| true));
    }

    /// Sends `notifications/resources/updated` to the sessions that subscribed to this URI.
    pub fn touch_resource(&self, uri: &str) {
        let text = serde_json::Value::from(uri);
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":{text}}}}}"#
        );
        self.shared
            .update(|state| state.broadcast(&message, |session| session.kept.subscriptions.contains(uri)));
    }

    // ---- what it saw ----

    /// Every request so far, in order of arrival.
    #[must_use]
    pub fn journal(&self) -> Vec<Entry> {
        self.shared.journal.all()
    }

    /// How many requests satisfy `wanted`.
    #[must_use]
    pub fn count(&self, mut wanted: impl FnMut(&Entry) -> bool) -> usize {
        self.journal().iter().filter(|entry| wanted(entry)).count()
    }

    /// How many requests or notifications of this JSON-RPC method came.
    #[must_use]
    pub fn count_of(&self, rpc_method: &str) -> usize {
        self.count(|entry| entry.is(rpc_method))
    }

    /// How many `initialize` requests came.
    #[must_use]
    pub fn initializes(&self) -> usize {
        self.count_of("initialize")
    }

    /// How many DELETE requests came.
    #[must_use]
    pub fn deletes(&self) -> usize {
        self.count(|entry| entry.verb == "DELETE")
    }

    /// The raw ids of the requests that came on a session, in order.
    #[must_use]
    pub fn ids_of_session(&self, session: &str) -> Vec<String> {
        let journal = self.journal().into_iter();
        let requests =
            journal.filter(|entry| entry.rpc_method.is_some() && entry.session.as_deref() == Some(session));
        requests.filter_map(|entry| entry.id).collect()
    }

    /// The session ids that were minted, in order.
    #[must_use]
    pub fn minted_sessions(&self) -> Vec<String> {
        self.journal().into_iter().filter_map(|entry| entry.reply_session).collect()
    }

    /// How often the side effect of this key ran.
    #[must_use]
    pub fn side_effects(&self, key: &str) -> u64 {
        self.shared.read(|state| state.side_effects.get(key).copied().unwrap_or_default())
    }

    /// Whether the journal came to satisfy `condition` in time. Looks at what is there first, so nothing can be missed.
    #[must_use]
    pub fn try_wait_for(&self, within: Duration, condition: impl FnMut(&[Entry]) -> bool) -> bool {
        self.shared.journal.wait(within, condition)
    }

    /// As [`try_wait_for`](Self::try_wait_for).
    ///
    /// # Panics
    /// When the time has passed; prints the journal.
    #[track_caller]
    pub fn wait_for(&self, within: Duration, condition: impl FnMut(&[Entry]) -> bool) {
        if !self.try_wait_for(within, condition) {
            panic!("the journal did not come to what was waited for in {within:?}:\n{}", self.summary());
        }
    }

    /// Waits until exactly `count` calls wait at a gate.
    ///
    /// # Panics
    /// When the time has passed.
    #[track_caller]
    pub fn wait_at_gate(&self, name: &str, count: usize, within: Duration) {
        let there = |state: &state::State| {
            (state.at_gate.get(name).copied().unwrap_or_default() == count).then_some(())
        };
        if self.shared.wait(within, there).is_none() {
            panic!("no {count} calls at gate `{name}` in {within:?}:\n{}", self.summary());
        }
    }

    /// Waits until the live sessions satisfy `condition`.
    ///
    /// # Panics
    /// When the time has passed.
    #[track_caller]
    pub fn wait_sessions(&self, within: Duration, mut condition: impl FnMut(&[SessionView]) -> bool) {
        let reached = crate::wait::poll_until(within, || condition(&self.sessions()).then_some(()));
        if reached.is_none() {
            panic!("the sessions did not come to what was waited for: {:?}", self.sessions());
        }
    }

    /// Fails if any request broke a rule of the protocol, repeated ids first of all.
    ///
    /// # Panics
    /// On a violation.
    #[track_caller]
    pub fn assert_no_violations(&self) {
        let broken: Vec<_> =
            self.journal().into_iter().filter(|entry| !entry.violations.is_empty()).collect();
        assert!(broken.is_empty(), "the upstream's rules were broken:\n{}", summary(&broken));
    }

    /// The journal, one request a line, for messages of failed tests.
    #[must_use]
    pub fn summary(&self) -> String {
        summary(&self.journal())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop();
    }
}

fn summary(entries: &[Entry]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for entry in entries {
        let Entry {
            n,
            at_ms,
            verb,
            rpc_method,
            id,
            session,
            connection,
            tool,
            reply_status,
            violations,
            last_event_id,
            ..
        } = entry;
        let short = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        writeln!(
            text,
            "  #{n} {at_ms} ms conn {connection} {verb} {} {} id {} session {:.8} after {} -> {reply_status:?} {violations:?}",
            short(rpc_method),
            short(tool),
            short(id),
            short(session),
            short(last_event_id)
        )
        .ok();
    }
    text
}
