//! Calls that were under way when the daemon died: answered late or told apart as *outcome unknown*, never run twice, never hanging.

use std::time::{Duration, Instant};

use evermux_testkit::{Pending, Replies};

use super::*;

/// What the contract gives a server without event ids, after the daemon's return.
const UNKNOWN_WITHIN: Duration = Duration::from_secs(5);

fn at_gate(upstream: &Upstream, clients: &mut [ShimClient]) -> Vec<Pending> {
    let start = |client: &mut ShimClient| client.start_call("gate", r#"{"name":"g"}"#);
    let calls = clients.iter_mut().map(start).collect();
    upstream.wait_at_gate("g", clients.len(), PATIENCE);
    calls
}

#[track_caller]
fn check_all_passed(upstream: &Upstream, clients: &mut [ShimClient], calls: &[Pending]) {
    for (client, call) in clients.iter().zip(calls) {
        assert_eq!(client.wait(call, PATIENCE).structured()["passed"], true);
    }
    assert_eq!(upstream.count(|entry| entry.calls("gate")), calls.len(), "{}", upstream.summary());
    for client in clients {
        count(client);
    }
    check_one_session(upstream);
}

#[test]
fn an_answer_comes_late_where_the_server_has_event_ids() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    let calls = at_gate(&upstream, &mut clients);
    let killed = harness.kill_daemon();
    wait_back(&harness, killed);
    // Each of the three streams is taken up again before there is an answer on it.
    let resumed = |entry: &Entry| {
        entry.verb == "GET" && entry.last_event_id.as_deref().is_some_and(|id| id.ends_with("-0"))
    };
    upstream.wait_for(PATIENCE, |journal| journal.iter().filter(|entry| resumed(entry)).count() >= 3);
    upstream.open_gate("g");
    check_all_passed(&upstream, &mut clients, &calls);
}

#[test]
fn an_answer_given_while_nobody_listened_is_replayed() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let mut clients = clients_with(&harness, 3, &["--no-start"]);
    let calls = at_gate(&upstream, &mut clients);
    harness.kill_daemon();
    upstream.open_gate("g");
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().all(|session| session.running == 0));
    assert!(clients.iter().all(|client| client.unanswered() == 1));
    harness.start_daemon();
    check_all_passed(&upstream, &mut clients, &calls);
}

#[test]
fn an_answer_the_client_had_not_read_is_not_lost() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 1);
    let calls = at_gate(&upstream, &mut clients);
    assert!(harness.signal(clients[0].pid(), Signal::SIGSTOP));
    upstream.open_gate("g");
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().all(|session| session.running == 0));
    harness.kill_daemon();
    assert!(harness.signal(clients[0].pid(), Signal::SIGCONT));
    check_all_passed(&upstream, &mut clients, &calls);
}

#[test]
fn progress_goes_on_and_none_comes_twice() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 2);
    let params = r#"{"name":"slow","arguments":{"steps":3,"gate":"g"},"_meta":{"progressToken":"t"}}"#;
    let calls: Vec<_> = clients.iter_mut().map(|client| client.request("tools/call", params)).collect();
    let progress = |client: &ShimClient| {
        let all = client.notifications().into_iter().filter(|n| n.raw.contains("notifications/progress"));
        all.map(|n| n.raw).collect::<Vec<_>>()
    };
    for client in &clients {
        client.wait_notification(PATIENCE, |n| n.raw.contains(r#""progress":3"#));
    }
    harness.kill_daemon();
    upstream.open_gate("g");
    for (client, call) in clients.iter().zip(&calls) {
        assert_eq!(client.wait(call, PATIENCE).structured()["done"], true);
        let expected: Vec<_> = (1..=3)
            .map(|step| {
                let params = format!(r#"{{"progressToken":"t","progress":{step},"total":3}}"#);
                format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
            })
            .collect();
        assert_eq!(progress(client), expected);
    }
    assert_eq!(upstream.count(|entry| entry.calls("slow")), 2);
    check_one_session(&upstream);
}

fn unknown_without_event_ids(replies: Replies) {
    let (harness, upstream) = with_upstream(Script::replying(replies));
    let mut clients = clients(&harness, 3);
    let calls = at_gate(&upstream, &mut clients);
    let killed = harness.kill_daemon();
    wait_back(&harness, killed);
    let back = Instant::now();
    for (client, call) in clients.iter().zip(&calls) {
        assert!(!is_answered(&client.wait(call, UNKNOWN_WITHIN.saturating_sub(back.elapsed()))));
    }
    upstream.open_gate("g");
    for client in &mut clients {
        count(client);
    }
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 3, "{}", upstream.summary());
    check_one_session(&upstream);
}

#[test]
fn a_json_answer_that_was_lost_is_told_apart() {
    unknown_without_event_ids(Replies::Json);
}

#[test]
fn an_event_stream_without_ids_that_was_lost_is_told_apart() {
    unknown_without_event_ids(Replies::Sse);
}

#[test]
fn a_read_is_asked_again() {
    let (harness, upstream) = with_upstream(Script::replying(Replies::Json));
    let mut clients = clients(&harness, 2);
    upstream.stall("tools/list");
    let reads: Vec<_> = clients.iter_mut().map(|client| client.request("tools/list", "")).collect();
    // Both wait for the same answer, before and after.
    upstream.wait_for(PATIENCE, |journal| journal.iter().filter(|entry| entry.is("tools/list")).count() == 1);
    harness.kill_daemon();
    upstream.wait_for(PATIENCE, |journal| journal.iter().filter(|entry| entry.is("tools/list")).count() == 2);
    upstream.release("tools/list");
    for (client, read) in clients.iter().zip(&reads) {
        assert!(client.wait(read, PATIENCE).result().contains("side_effect"));
    }
    check_one_session(&upstream);
}

#[test]
fn what_is_written_while_the_daemon_is_dead_is_sent_once() {
    let (harness, upstream) = with_upstream(Script::replying(Replies::Json));
    harness.start_daemon();
    let mut clients = clients_with(&harness, 3, &["--no-start"]);
    harness.kill_daemon();
    let calls: Vec<Vec<_>> = clients
        .iter_mut()
        .zip(0..)
        .map(|(client, c)| {
            (0..3).map(|n| client.start_call("side_effect", &format!(r#"{{"key":"{c}-{n}"}}"#))).collect()
        })
        .collect();
    harness.start_daemon();
    for (client, calls) in clients.iter().zip(&calls) {
        for call in calls {
            assert_eq!(client.wait(call, PATIENCE).structured()["runs"], 1);
        }
    }
    assert_eq!(upstream.count(|entry| entry.calls("side_effect")), 9);
    check_one_session(&upstream);
}
