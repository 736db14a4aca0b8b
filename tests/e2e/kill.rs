//! SIGKILL of the daemon, at every point of its life: the very same clients go on in the very same upstream session.
//!
//! The upstream's journal is the witness for one handshake, one session id, fresh request ids and the right headers; what the clients
//! saw is the witness for calls that are settled, and settled once.

mod hung;
mod in_flight;
mod often;
mod points;

use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, Entry, Harness, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{PATIENCE, with_upstream};

const VERSION: &str = "2025-11-25";
const TOOLS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// So many clients on `up`, past their handshake, which start a daemon whenever none runs.
fn clients(harness: &Harness, count: usize) -> Vec<ShimClient> {
    clients_with(harness, count, &[])
}

/// The same with arguments; `--no-start` leaves the daemon's return to the test.
fn clients_with(harness: &Harness, count: usize, arguments: &[&str]) -> Vec<ShimClient> {
    let mut clients: Vec<_> = (0..count).map(|_| harness.connect_with("up", arguments)).collect();
    for client in &mut clients {
        assert!(client.initialize(VERSION).error().is_none());
    }
    clients
}

/// Waits for a serving daemon that is not this one.
#[track_caller]
fn wait_back(harness: &Harness, killed: u32) -> u32 {
    harness.wait_status(PATIENCE, |status| {
        let serves = status.pointer("/daemon/phase")?.as_str()? == "serving";
        let pid = status.pointer("/daemon/pid")?.as_u64()?.try_into().ok()?;
        (serves && pid != killed).then_some(pid)
    })
}

/// Kills the daemon that comes after this one: not when it serves, but as soon as there is one at all.
#[track_caller]
fn kill_next(harness: &Harness, killed: u32) -> u32 {
    let next = harness.wait_status(PATIENCE, |status| {
        let pid = status.pointer("/daemon/pid")?.as_u64()?.try_into().ok()?;
        (pid != killed).then_some(pid)
    });
    assert!(harness.signal(next, Signal::SIGKILL));
    harness.wait_gone(next, PATIENCE);
    next
}

/// The session's own counter: it goes on only where the session is the same.
#[track_caller]
fn count(client: &mut ShimClient) -> u64 {
    let answer = client.call("counter", "{}");
    answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("no count: {}", answer.raw))
}

/// Whether a call was answered; if not, it has to be the distinct *outcome unknown*.
#[track_caller]
fn is_answered(answer: &Answer) -> bool {
    let Some(error) = answer.error() else { return true };
    let told = json!({"kind": "outcome_unknown", "upstream": "up", "outcome": "unknown"});
    assert_eq!(error["data"]["evermux"], told, "{}", answer.raw);
    assert_eq!(error["code"], -33001);
    false
}

/// One handshake, one session, its id and revision on everything after it, no id twice, nothing ended.
#[track_caller]
fn check_one_session(upstream: &Upstream) {
    upstream.assert_no_violations();
    let minted = upstream.minted_sessions();
    assert_eq!((upstream.initializes(), minted.len()), (1, 1), "{}", upstream.summary());
    assert_eq!(upstream.deletes(), 0, "{}", upstream.summary());
    for entry in upstream.journal() {
        let headers = (entry.session.as_deref(), entry.protocol_version.as_deref());
        if entry.is("initialize") {
            assert_eq!(headers.0, None, "a session header on initialize");
        } else {
            assert_eq!(headers, (Some(minted[0].as_str()), Some(VERSION)), "{}", upstream.summary());
        }
    }
}

/// The numbers of all requests in a part of the journal.
fn ids(journal: &[Entry]) -> Vec<u64> {
    let requests = journal.iter().filter(|entry| entry.rpc_method.is_some());
    requests.filter_map(|entry| entry.id.as_ref()?.parse().ok()).collect()
}

#[test]
fn clients_go_on_in_the_same_session() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    for (client, expected) in clients.iter_mut().zip(1..) {
        assert_eq!(count(client), expected);
    }
    let before = upstream.journal().len();
    let killed = harness.kill_daemon();
    for (client, expected) in clients.iter_mut().zip(4..) {
        assert_eq!(count(client), expected);
    }
    assert_ne!(harness.daemon_pid(), Some(killed));
    check_one_session(&upstream);
    let journal = upstream.journal();
    let (old, new) = journal.split_at(before);
    let newest_old = ids(old).into_iter().max();
    assert!(ids(new).into_iter().min() > newest_old, "an id of before came again: {}", upstream.summary());
}

#[test]
fn an_idle_client_hears_the_server_again() {
    let (harness, upstream) = with_upstream(Script::default());
    let clients = clients(&harness, 2);
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().all(|session| session.get_open));
    let killed = harness.kill_daemon();
    wait_back(&harness, killed);
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().all(|session| session.get_open));
    // A daemon that came back may tell of a possible gap on its own; this one only the server can have sent.
    let own =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"after"}}"#;
    // Not kept for a client that does not listen yet: said until all of them have heard it.
    let heard = |client: &ShimClient| client.notifications().iter().any(|n| n.raw == own);
    let all_heard = poll_until(PATIENCE, || {
        upstream.notify(own);
        poll_until(Duration::from_millis(200), || clients.iter().all(heard).then_some(()))
    });
    assert!(all_heard.is_some(), "{}", harness.logs());
    upstream.notify(TOOLS_CHANGED);
    for client in &clients {
        client.wait_notification(PATIENCE, |notification| notification.raw == TOOLS_CHANGED);
    }
    check_one_session(&upstream);
}

#[test]
fn two_kills_in_quick_succession() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    let calls: Vec<_> =
        clients.iter_mut().map(|client| client.start_call("gate", r#"{"name":"g"}"#)).collect();
    upstream.wait_at_gate("g", 3, PATIENCE);
    let first = harness.kill_daemon();
    kill_next(&harness, first);
    upstream.open_gate("g");
    for (client, call) in clients.iter_mut().zip(&calls) {
        assert!(is_answered(&client.wait(call, PATIENCE)));
        count(client);
    }
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 3, "{}", upstream.summary());
    check_one_session(&upstream);
}

#[test]
fn a_kill_before_initialized_was_answered_repeats_the_notification_only() {
    let (harness, upstream) = with_upstream(Script::default());
    upstream.stall("notifications/initialized");
    let mut client = harness.connect("up");
    assert!(client.initialize(VERSION).error().is_none());
    let call = client.start_call("counter", "{}");
    let told = |journal: &[Entry]| journal.iter().filter(|e| e.is("notifications/initialized")).count();
    upstream.wait_for(PATIENCE, |journal| told(journal) == 1);
    harness.kill_daemon();
    upstream.wait_for(PATIENCE, |journal| told(journal) == 2);
    upstream.release("notifications/initialized");
    assert_eq!(client.wait(&call, PATIENCE).structured()["count"], 1);
    check_one_session(&upstream);
}

#[test]
fn a_kill_while_initialize_hangs_makes_one_session_in_the_end() {
    let (harness, upstream) = with_upstream(Script::default());
    upstream.stall("initialize");
    let mut client = harness.connect("up");
    let params = format!(
        r#"{{"protocolVersion":"{VERSION}","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}"#
    );
    let hello = client.request("initialize", &params);
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.is("initialize")));
    harness.kill_daemon();
    upstream.wait_for(PATIENCE, |journal| journal.iter().filter(|entry| entry.is("initialize")).count() == 2);
    upstream.release("initialize");
    assert!(client.wait(&hello, Duration::from_secs(10)).error().is_none());
    client.notify("notifications/initialized", "");
    assert_eq!(count(&mut client), 1);
    let session = upstream.minted_sessions().pop();
    let others = upstream.count(|entry| !entry.is("initialize") && entry.session != session);
    assert_eq!((upstream.initializes(), others), (2, 0), "{}", upstream.summary());
    upstream.assert_no_violations();
}
