//! A daemon that lives and does not answer: its clients neither hang with it nor have a call run twice.

use super::*;

/// The variable of `evermux_config::env::SHIM_LIMITS`: the head of an answer, a control answer, the end of patience.
const LIMITS: &str = "EVERMUX_SHIM_LIMITS_MS";

/// Clients of a daemon that is stopped in mid-life, with these limits.
fn stopped(limits: &str, count: usize) -> (Harness, Upstream, Vec<ShimClient>, u32) {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    harness.set_variable(LIMITS, limits);
    let clients = clients(&harness, count);
    harness.unset_variable(LIMITS);
    let daemon = harness.signal_daemon(Signal::SIGSTOP);
    (harness, upstream, clients, daemon)
}

/// Waits until the client's shim has said that nobody answers.
#[track_caller]
fn wait_noticed(client: &ShimClient) {
    let noticed = poll_until(PATIENCE, || client.stderr().contains("does not answer").then_some(()));
    assert!(noticed.is_some(), "{}", client.stderr());
}

#[test]
fn a_daemon_that_hangs_for_a_while_runs_each_call_once() {
    let (harness, upstream, mut clients, daemon) = stopped("700,20000,30000", 2);
    let mut start = |client: usize, key: &str| {
        clients[client].start_call("side_effect", &format!(r#"{{"key":"{key}"}}"#))
    };
    // The first is with the daemon, which has not read it; the second waits for its head.
    let calls = [start(0, "a"), start(0, "b"), start(1, "c")];
    clients.iter().for_each(wait_noticed);
    assert!(harness.signal(daemon, Signal::SIGCONT));
    for (client, call, key) in [(0, &calls[0], "a"), (0, &calls[1], "b"), (1, &calls[2], "c")] {
        assert_eq!(clients[client].wait(call, PATIENCE).structured()["runs"], 1, "{key}");
    }
    for (client, expected) in clients.iter_mut().zip(1..) {
        assert_eq!(count(client), expected);
    }
    assert_eq!(upstream.count(|entry| entry.calls("side_effect")), 3, "{}", upstream.summary());
    assert_eq!(harness.daemon_pid(), Some(daemon));
    check_one_session(&upstream);
}

#[test]
fn a_daemon_that_goes_on_hanging_is_told_for_each_request() {
    let limits = "700,300,500";
    let (harness, upstream, mut clients, daemon) = stopped(limits, 1);
    let client = &mut clients[0];
    let sent = client.start_call("side_effect", r#"{"key":"sent"}"#);
    let queued = [client.start_call("counter", "{}"), client.request("tools/list", "")];
    let told = |answer: &Answer| {
        let error = answer.error().unwrap_or_default();
        let message = error["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("the daemon does not answer"), "{}", answer.raw);
        error["data"]["evermux"].clone()
    };
    // It was written, and nobody knows what a daemon that comes to itself makes of it.
    let unknown = json!({"kind": "outcome_unknown", "upstream": "up", "outcome": "unknown"});
    assert_eq!(told(&client.wait(&sent, PATIENCE)), unknown);
    let not_sent = json!({"kind": "draining", "upstream": "up", "outcome": "not_sent"});
    for call in &queued {
        assert_eq!(told(&client.wait(call, PATIENCE)), not_sent);
    }
    // A client that comes meanwhile is told as well, and starts no second daemon.
    harness.set_variable(LIMITS, limits);
    let mut late = harness.connect("up");
    harness.unset_variable(LIMITS);
    assert_eq!(told(&late.initialize(VERSION)), not_sent);
    assert!(harness.signal(daemon, Signal::SIGCONT));
    // Both live on.
    assert_eq!(count(client), 1);
    assert_eq!(late.initialize(VERSION).error(), None);
    assert_eq!(count(&mut late), 2);
    assert!(upstream.side_effects("sent") <= 1, "{}", upstream.summary());
    assert_eq!(harness.daemon_pid(), Some(daemon));
    check_one_session(&upstream);
}
