//! Ends in order: a client that leaves, a daemon that is stopped or told to end.

use evermux_testkit::{Pending, Replies};

use super::*;

#[test]
fn pending_answers_are_written_after_the_end_of_stdin() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = harness.connect("up");
    assert!(client.initialize(VERSION).error().is_none());
    let call = client.start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    client.close_stdin();
    upstream.open_gate("g");
    assert_eq!(client.wait(&call, PATIENCE).structured()["passed"], true);
    assert_eq!(client.wait_exit(PATIENCE), Some(0));
    // The daemon lives on, and so does the session: the next client goes on in it.
    assert!(harness.daemon_pid().is_some());
    let mut next = harness.connect("up");
    assert!(next.initialize(VERSION).error().is_none());
    assert_eq!(count(&mut next), 1);
    check_one_session(&upstream);
}

#[test]
fn an_answer_that_does_not_come_holds_no_client_for_ever() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = harness.connect("up");
    assert!(client.initialize(VERSION).error().is_none());
    let call = client.start_call("gate", r#"{"name":"never"}"#);
    upstream.wait_at_gate("never", 1, PATIENCE);
    client.close_stdin();
    // Ten seconds for the answer, two for the end of the link.
    let answer = client.wait(&call, Duration::from_secs(15));
    assert_eq!(answer.error().unwrap()["data"]["evermux"]["outcome"], "unknown", "{}", answer.raw);
    assert_eq!(client.wait_exit(PATIENCE), Some(0));
    assert!(harness.daemon_pid().is_some());
}

#[test]
fn after_a_stop_nothing_starts_until_a_client_asks() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients: Vec<_> = (0..3).map(|_| harness.connect("up")).collect();
    for client in &mut clients {
        assert!(client.initialize(VERSION).error().is_none());
    }
    assert_eq!(count(&mut clients[0]), 1);
    wait_all_hear(&upstream, &clients);
    let stopped = harness.daemon_pid().unwrap();
    harness.run(&["stop"]).success();
    harness.wait_gone(stopped, PATIENCE);
    // A shim that did not get the news would be back within its first back-off.
    let back = evermux_testkit::wait::poll_until(Duration::from_secs(3), || {
        let daemons = daemons(&harness, &clients);
        (!daemons.is_empty()).then_some(daemons)
    });
    assert_eq!(back, None, "somebody started a daemon");
    assert_eq!(harness.run(&["status"]).code, Some(3));
    assert_eq!(count(&mut clients[1]), 2);
    assert_eq!(count(&mut clients[2]), 3);
    check_daemons(&harness, &clients, |daemons| daemons.len() == 1);
    check_one_session(&upstream);
}

#[test]
fn sigterm_lets_a_call_in_flight_be_answered() {
    let (harness, upstream) = with_upstream(Script::default());
    let daemon = harness.start_daemon();
    let mut clients: Vec<_> = (0..2).map(|_| harness.connect("up")).collect();
    for client in &mut clients {
        assert!(client.initialize(VERSION).error().is_none());
    }
    let call = clients[0].start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    assert!(harness.signal(daemon, Signal::SIGTERM));
    harness.wait_status(PATIENCE, |status| {
        (status.pointer("/daemon/phase")?.as_str()? == "draining").then_some(())
    });
    upstream.open_gate("g");
    assert_eq!(clients[0].wait(&call, PATIENCE).structured()["passed"], true);
    assert_eq!(harness.daemon_exit(daemon, PATIENCE), Some(0));
    // The next request starts the next daemon, in the same session.
    assert_eq!(count(&mut clients[1]), 1);
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 1);
    check_one_session(&upstream);
}

#[test]
fn a_stop_with_nothing_to_stop_says_so() {
    let (harness, _upstream) = with_upstream(Script::default());
    assert_eq!(harness.run(&["stop"]).code, Some(3));
    harness.start_daemon();
    harness.run(&["stop"]).success();
    assert_eq!(harness.run(&["stop"]).code, Some(3));
}

/// A call in flight on a gate that nobody opens.
fn waiting_call(harness: &Harness, upstream: &Upstream) -> (ShimClient, Pending) {
    let mut client = harness.connect("up");
    assert!(client.initialize(VERSION).error().is_none());
    let call = client.start_call("gate", r#"{"name":"never"}"#);
    upstream.wait_at_gate("never", 1, PATIENCE);
    (client, call)
}

fn is_draining(harness: &Harness) {
    harness.wait_status(PATIENCE, |status| {
        (status.pointer("/daemon/phase")?.as_str()? == "draining").then_some(())
    });
}

#[test]
fn whoever_asks_twice_does_not_wait_for_the_drain() {
    let (harness, upstream) = with_upstream(Script::replying(Replies::Json));
    let daemon = harness.start_daemon();
    let (mut client, call) = waiting_call(&harness, &upstream);
    assert!(harness.signal(daemon, Signal::SIGINT));
    is_draining(&harness);
    assert!(harness.signal(daemon, Signal::SIGINT));
    assert_eq!(harness.daemon_exit(daemon, PATIENCE), Some(0));
    // The call was sent, and the next daemon finds it in the journal: told apart, not run again.
    assert_eq!(client.wait(&call, PATIENCE).evermux_kind().as_deref(), Some("outcome_unknown"));
    assert_eq!(count(&mut client), 1);
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 1);
    check_one_session(&upstream);
}

#[test]
fn a_drain_waits_for_no_client_that_is_gone() {
    let (harness, upstream) = with_upstream(Script::default());
    let daemon = harness.start_daemon();
    let (mut client, _call) = waiting_call(&harness, &upstream);
    assert!(harness.signal(daemon, Signal::SIGTERM));
    is_draining(&harness);
    client.kill();
    assert_eq!(harness.daemon_exit(daemon, PATIENCE), Some(0));
}

#[test]
fn a_shim_whose_terminal_is_gone_ends_its_link() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let (mut client, call) = waiting_call(&harness, &upstream);
    assert!(harness.signal(client.pid(), Signal::SIGHUP));
    assert_eq!(client.wait(&call, PATIENCE).evermux_kind().as_deref(), Some("outcome_unknown"));
    assert_eq!(client.wait_exit(PATIENCE), Some(0));
    harness.wait_status(PATIENCE, |status| (status["sessions"][0]["links"] == 0).then_some(()));
}
