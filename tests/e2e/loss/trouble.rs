//! The server is in trouble, slow, or away: the session is kept, a call that may have run is told apart, a read is asked again.

use evermux_testkit::{Fault, LostAs, Replies};

use super::*;

const CALL: &str = r#"{"key":"k"}"#;

/// One fault for one call, and what becomes of it; then the same session goes on.
fn check_call(replies: Replies, fault: &Fault, kind: &str, outcome: &str) {
    let (harness, upstream) = with_upstream(Script::replying(replies));
    let mut clients = clients(&harness, 2);
    count(&mut clients[0]);
    upstream.fail_next_matching(Matching::tool("side_effect"), 1, fault.clone());
    check_error(&clients[0].call("side_effect", CALL), kind, outcome);
    assert!(upstream.side_effects("k") <= 1, "{fault:?}");
    assert_eq!(upstream.count(|entry| entry.calls("side_effect")), 1, "{fault:?}: {}", upstream.summary());
    let again = evermux_testkit::wait::poll_until(PATIENCE, || {
        let answer = clients[1].call("counter", "{}");
        answer.error().is_none().then(|| count_of(&answer))
    });
    assert_eq!(again, Some(2), "{fault:?}");
    check_kept(&upstream);
}

/// One fault for one read, which is asked again.
fn check_read(replies: Replies, fault: &Fault) {
    let (harness, upstream) = with_upstream(Script::replying(replies));
    let mut clients = clients(&harness, 1);
    upstream.fail_next_matching(Matching::method("tools/list"), 1, fault.clone());
    let read = clients[0].request("tools/list", "");
    assert!(clients[0].wait(&read, PATIENCE).result().contains("side_effect"), "{fault:?}");
    let asked: Vec<_> = upstream.journal().into_iter().filter(|entry| entry.is("tools/list")).collect();
    assert_eq!(asked.len(), 2, "{fault:?}: {}", upstream.summary());
    assert_ne!(asked[0].id, asked[1].id);
    check_kept(&upstream);
}

fn status(status: u16) -> Fault {
    Fault::status(status, "trouble")
}

fn retry_after(status: u16) -> Fault {
    let headers = vec![("retry-after".to_owned(), "1".to_owned())];
    Fault::Status { status, headers, body: String::new() }
}

#[test]
fn a_server_error_keeps_the_session() {
    for fault in [status(500), status(502), status(503), status(504), retry_after(503)] {
        check_call(Replies::Json, &fault, "outcome_unknown", "unknown");
    }
}

#[test]
fn a_read_is_asked_again_after_a_server_error() {
    check_read(Replies::Json, &status(500));
    check_read(Replies::Json, &retry_after(503));
}

#[test]
fn a_broken_connection_keeps_the_session() {
    for processed in [false, true] {
        check_call(Replies::Json, &Fault::CloseBeforeHead { processed }, "outcome_unknown", "unknown");
    }
    for replies in [Replies::Json, Replies::Sse] {
        check_call(replies, &Fault::ResetAfterHead, "outcome_unknown", "unknown");
        check_call(replies, &Fault::CutAfterEvents(0), "outcome_unknown", "unknown");
    }
}

#[test]
fn a_read_is_asked_again_after_a_broken_connection() {
    check_read(Replies::Json, &Fault::CloseBeforeHead { processed: true });
    check_read(Replies::Json, &Fault::ResetAfterHead);
    check_read(Replies::Sse, &Fault::CutAfterEvents(0));
}

#[test]
fn a_cut_stream_with_event_ids_is_read_on() {
    for fault in [Fault::CutAfterEvents(0), Fault::EndAfterEvents(0)] {
        let (harness, upstream) = with_upstream(Script::default());
        let mut clients = clients(&harness, 1);
        upstream.fail_next_matching(Matching::tool("side_effect"), 1, fault.clone());
        let answer = clients[0].call("side_effect", CALL);
        assert_eq!(answer.structured()["runs"], 1, "{fault:?}: {}", answer.raw);
        assert_eq!(upstream.count(|entry| entry.calls("side_effect")), 1, "{}", upstream.summary());
        check_kept(&upstream);
    }
}

#[test]
fn too_many_requests_keeps_the_session() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 2);
    count(&mut clients[0]);
    upstream.fail_next_matching(Matching::tool("side_effect"), 1, Fault::TooManyRequests { retry_after: 1 });
    let answer = clients[0].call("side_effect", CALL);
    // 429 is a refusal: the call was not processed, so it may be sent again, or told as not processed.
    match answer.evermux_kind().as_deref() {
        None => assert_eq!(answer.structured()["runs"], 1),
        Some(_) => assert_eq!(upstream.side_effects("k"), 0, "{}", answer.raw),
    }
    let again = evermux_testkit::wait::poll_until(PATIENCE, || {
        let answer = clients[1].call("counter", "{}");
        answer.error().is_none().then(|| count_of(&answer))
    });
    assert_eq!(again, Some(2));
    check_kept(&upstream);
}

#[test]
fn a_call_past_its_time_is_told_apart_and_cancelled() {
    let (harness, upstream) = with_settings(Script::default(), "call_timeout = \"1s\"");
    let mut clients = clients(&harness, 2);
    count(&mut clients[0]);
    check_error(&clients[0].call("gate", r#"{"name":"never"}"#), "upstream_timeout", "unknown");
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.is("notifications/cancelled")));
    assert_eq!(count(&mut clients[1]), 2);
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 1);
    check_kept(&upstream);
}

#[test]
fn an_unavailable_server_is_not_a_lost_session() {
    let (harness, upstream) =
        with_upstream(Script { lost: LostAs::UnavailableRetryAfter, ..Script::default() });
    let mut clients = clients(&harness, 2);
    count(&mut clients[0]);
    upstream.forget_sessions();
    for client in &mut clients {
        let answer = client.call("counter", "{}");
        assert!(answer.evermux_kind().is_some(), "{}", answer.raw);
    }
    check_kept(&upstream);
}

/// An instance that does not know the session is asked again after pauses, and then believed.
#[test]
fn a_server_whose_instances_all_deny_the_session_has_lost_it() {
    let (harness, upstream) = with_upstream(Script { lost: LostAs::Unavailable, ..Script::default() });
    let mut clients = clients(&harness, 2);
    count(&mut clients[0]);
    upstream.forget_sessions();
    assert_eq!((count(&mut clients[0]), count(&mut clients[1])), (1, 2));
    assert_eq!(upstream.count(|entry| entry.is("ping")), 3, "{}", upstream.summary());
    check_handshakes(&upstream, 2);
}

#[test]
fn an_upstream_that_is_away_comes_back_in_the_same_session() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    count(&mut clients[0]);
    upstream.refuse_connections();
    for client in &mut clients {
        check_error(&client.call("side_effect", CALL), "upstream_unreachable", "not_sent");
    }
    assert_eq!(upstream.side_effects("k"), 0);
    upstream.accept_connections();
    let back = evermux_testkit::wait::poll_until(PATIENCE, || {
        let answer = clients[1].call("counter", "{}");
        answer.error().is_none().then(|| count_of(&answer))
    });
    assert_eq!(back, Some(2), "{}", upstream.summary());
    check_kept(&upstream);
}

#[test]
fn an_upstream_that_restarts_with_its_state_keeps_the_session() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    let calls: Vec<_> =
        clients.iter_mut().map(|client| client.start_call("gate", r#"{"name":"g"}"#)).collect();
    upstream.wait_at_gate("g", 3, PATIENCE);
    upstream.restart();
    // Nobody is left at the server to finish them.
    for (client, call) in clients.iter().zip(&calls) {
        check_error(&client.wait(call, PATIENCE), "outcome_unknown", "unknown");
    }
    for (client, expected) in clients.iter_mut().zip(1..) {
        assert_eq!(count(client), expected);
    }
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 3);
    check_kept(&upstream);
}

#[test]
fn a_daemon_that_returns_while_the_upstream_is_away_waits_for_it() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 2);
    count(&mut clients[0]);
    upstream.refuse_connections();
    harness.kill_daemon();
    check_error(&clients[0].call("counter", "{}"), "upstream_unreachable", "not_sent");
    upstream.accept_connections();
    let within = Duration::from_secs(20);
    let back = evermux_testkit::wait::poll_until(within, || {
        let answer = clients[1].call("counter", "{}");
        answer.error().is_none().then(|| count_of(&answer))
    });
    assert_eq!(back, Some(2), "{}", upstream.summary());
    check_kept(&upstream);
}
