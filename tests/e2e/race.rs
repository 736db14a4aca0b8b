//! Everybody starts a daemon at once: clients' shims, scripts that start one detached, people who run one in the
//! foreground. Whatever lies there before, there is one daemon after, and nobody fails for being slower.
//!
//! Ten rounds are for CI; `EVERMUX_FULL=1` runs two hundred.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Child;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script, ShimClient, Upstream};
use serde_json::{Value, json};

use crate::support::{PATIENCE, with_upstream};

/// Of all starters, so many speak to the server through it.
const CLIENTS: usize = 24;
/// And so many only want a daemon: every other one in the foreground.
const DAEMONS: usize = 8;

/// What the starters find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ground {
    Empty,
    /// A socket that nobody listens on, as a killed daemon leaves it.
    StaleSocket,
    LiveDaemon,
}

/// One `evermux daemon`, with what it says in files: whoever serves keeps a pipe open for as long as it lives.
struct Starter {
    child: Child,
    detached: bool,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Starter {
    fn start(harness: &Harness, number: usize) -> Self {
        let detached = number.is_multiple_of(2);
        let arguments: &[&str] = if detached { &["daemon", "--detached"] } else { &["daemon"] };
        let file = |end: &str| harness.root().join(format!("starter-{number}.{end}"));
        let (stdout, stderr) = (file("out"), file("err"));
        let mut command = harness.command(arguments);
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        Self { child: command.spawn().unwrap(), detached, stdout, stderr }
    }

    /// It serves, or it says that another does, which for a detached one is as good.
    #[track_caller]
    fn check(&mut self, daemon: u32) {
        if self.detached {
            let line = poll_until(PATIENCE, || {
                fs::read_to_string(&self.stdout).ok().filter(|said| said.ends_with('\n'))
            });
            let line: Value =
                serde_json::from_str(&line.unwrap_or_else(|| panic!("{}", self.said()))).unwrap();
            assert_eq!(line["ready"], true, "{line}");
        }
        if self.child.id() == daemon {
            assert!(self.child.try_wait().unwrap().is_none(), "the daemon ended: {}", self.said());
            return;
        }
        let ended = poll_until(PATIENCE, || self.child.try_wait().unwrap());
        assert_eq!(ended.and_then(|status| status.code()), Some(1), "{}", self.said());
        assert!(self.said().contains("already runs"), "{}", self.said());
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn leave_a_stale_socket(harness: &Harness) {
    DirBuilder::new().recursive(true).mode(0o700).create(harness.runtime_dir()).unwrap();
    drop(UnixListener::bind(harness.socket()).unwrap());
    assert!(harness.socket().exists());
}

/// All start at once; gives the daemons that were started by hand and the clients, in no order that matters.
fn start_all(harness: &Harness) -> (Vec<Starter>, Vec<ShimClient>) {
    let (mut starters, mut clients) = (Vec::new(), Vec::new());
    for number in 0..CLIENTS + DAEMONS {
        if number.is_multiple_of((CLIENTS + DAEMONS) / DAEMONS) {
            starters.push(Starter::start(harness, starters.len()));
        } else {
            clients.push(harness.connect("up"));
        }
    }
    (starters, clients)
}

/// Each client gets its answers, and each call ran once.
#[track_caller]
fn check_clients(clients: &mut [ShimClient]) {
    let params =
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#;
    let hellos: Vec<_> = clients.iter_mut().map(|client| client.request("initialize", params)).collect();
    let mut calls = Vec::new();
    for (client, hello) in clients.iter_mut().zip(&hellos) {
        let answer = client.wait(hello, PATIENCE);
        assert!(answer.error().is_none(), "{}", answer.raw);
        client.notify("notifications/initialized", "");
        calls.push(client.start_call("counter", "{}"));
    }
    let answers = clients.iter().zip(&calls).map(|(client, call)| client.wait(call, PATIENCE));
    let mut counts: Vec<_> = answers.map(|answer| answer.structured()["count"].as_u64().unwrap()).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=clients.len() as u64).collect::<Vec<_>>());
}

#[track_caller]
fn check_one_daemon(harness: &Harness, upstream: &Upstream, clients: &[ShimClient]) -> u32 {
    let status = harness.status();
    // A daemon takes the next generation before it serves: there was never another.
    assert_eq!(status["daemon"]["generation"], json!(1), "{status:#}");
    let daemon = u32::try_from(status["daemon"]["pid"].as_u64().unwrap()).unwrap();
    let others = || {
        let mut pids = harness.processes();
        pids.retain(|pid| *pid != daemon && clients.iter().all(|client| client.pid() != *pid));
        pids
    };
    // Who was slower may still be on the way out.
    assert!(poll_until(PATIENCE, || others().is_empty().then_some(())).is_some(), "{:?}", others());
    let sessions = (upstream.initializes(), upstream.minted_sessions().len(), upstream.deletes());
    assert_eq!(sessions, (1, 1, 0), "{}", upstream.summary());
    upstream.assert_no_violations();
    daemon
}

fn race(ground: Ground) {
    let (harness, upstream) = with_upstream(Script::default());
    let live = match ground {
        Ground::Empty => None,
        Ground::StaleSocket => {
            leave_a_stale_socket(&harness);
            None
        }
        Ground::LiveDaemon => Some(harness.start_daemon()),
    };
    let (mut starters, mut clients) = start_all(&harness);
    check_clients(&mut clients);
    let daemon = check_one_daemon(&harness, &upstream, &clients);
    assert!(live.is_none_or(|live| live == daemon), "{ground:?}: {live:?} was replaced by {daemon}");
    for starter in &mut starters {
        starter.check(daemon);
    }
}

#[test]
fn thirty_two_starters_at_once_make_one_daemon() {
    let is_full = std::env::var_os("EVERMUX_FULL").is_some_and(|value| value == "1");
    let grounds = [Ground::Empty, Ground::StaleSocket, Ground::LiveDaemon];
    for ground in grounds.into_iter().cycle().take(if is_full { 200 } else { 10 }) {
        race(ground);
    }
}
