//! The server forgot the session: it says so in one of its ways, and there is exactly one fresh handshake.

use std::time::Instant;

use evermux_testkit::LostAs;
use evermux_testkit::wait::poll_until;

use super::*;

/// Every way to say it that means it.
const GONE: [LostAs; 8] = [
    LostAs::NotFoundJson,
    LostAs::NotFoundText,
    LostAs::NoValidSession,
    LostAs::NotInitialized,
    LostAs::UnauthorizedChallenge,
    LostAs::UnauthorizedText,
    LostAs::Forbidden,
    LostAs::OkErrorBody,
];

/// Where the server is when it has forgotten: nothing of the old session may be said after it but what found out.
#[track_caller]
fn check_moved(upstream: &Upstream) {
    check_handshakes(upstream, 2);
    let minted = upstream.minted_sessions();
    let journal = upstream.journal();
    let fresh = journal.iter().rposition(|entry| entry.is("initialize")).unwrap();
    let late = journal[fresh..].iter().filter(|entry| entry.session.as_deref() == Some(&minted[0]));
    let processed: Vec<_> = late.filter(|entry| matches!(entry.reply_status, Some(200..=299))).collect();
    assert!(processed.is_empty(), "{}", upstream.summary());
}

#[test]
fn the_call_is_answered_from_one_fresh_session() {
    for lost in GONE {
        let (harness, upstream) = with_upstream(Script { lost, ..Script::default() });
        let mut clients = clients(&harness, 2);
        assert_eq!((count(&mut clients[0]), count(&mut clients[1])), (1, 2));
        upstream.forget_sessions();
        let answer = clients[0].call("counter", "{}");
        assert_eq!(count_of(&answer), 1, "{}", lost.name());
        let meta = session_meta(&answer);
        assert_eq!(
            (&meta["status"], &meta["handshake"]),
            (&json!("reinitialized"), &json!(2)),
            "{}",
            answer.raw
        );
        // The other client is told once too, and then no more.
        assert_eq!(session_meta(&clients[1].call("counter", "{}")), meta, "{}", lost.name());
        assert_eq!(session_meta(&clients[1].call("counter", "{}")), Value::Null);
        check_moved(&upstream);
    }
}

#[test]
fn fifty_callers_at_once_cost_one_handshake() {
    for lost in
        [LostAs::NotFoundJson, LostAs::NoValidSession, LostAs::UnauthorizedChallenge, LostAs::Forbidden]
    {
        let (harness, upstream) = with_upstream(Script { lost, ..Script::default() });
        let mut clients = clients(&harness, 5);
        for client in &mut clients {
            count(client);
        }
        upstream.forget_sessions();
        let mut calls: Vec<(usize, Pending)> = Vec::new();
        for _ in 0..10 {
            calls.extend(clients.iter_mut().map(|client| client.start_call("counter", "{}")).enumerate());
        }
        let answers = calls.iter().map(|(client, call)| clients[*client].wait(call, PATIENCE));
        let mut counts: Vec<_> = answers.map(|answer| count_of(&answer)).collect();
        counts.sort_unstable();
        assert_eq!(counts, (1..=50).collect::<Vec<_>>(), "{}", lost.name());
        check_moved(&upstream);
    }
}

#[test]
fn a_session_forgotten_while_the_daemon_was_dead_costs_one_handshake() {
    for lost in GONE {
        let (harness, upstream) = with_upstream(Script { lost, ..Script::default() });
        let mut clients = clients(&harness, 3);
        let call = clients[0].start_call("gate", r#"{"name":"g"}"#);
        upstream.wait_at_gate("g", 1, PATIENCE);
        // At once: the clients bring the daemon back by themselves, and it must not find the session.
        upstream.refuse_connections();
        harness.kill_daemon();
        upstream.forget_sessions();
        upstream.accept_connections();
        let calls: Vec<_> = clients.iter_mut().map(|client| client.start_call("counter", "{}")).collect();
        let mut counts = Vec::new();
        for (client, call) in clients.iter_mut().zip(&calls) {
            let mut answer = client.wait(call, PATIENCE);
            // Whoever came while the upstream was away, or right after, was told so.
            while answer.evermux_kind().as_deref() == Some("upstream_unreachable") {
                answer = client.call("counter", "{}");
            }
            counts.push(count_of(&answer));
            assert_eq!(session_meta(&answer)["handshake"], 2, "{}: {}", lost.name(), answer.raw);
        }
        counts.sort_unstable();
        assert_eq!(counts, [1, 2, 3], "{}", lost.name());
        check_error(&clients[0].wait(&call, PATIENCE), "outcome_unknown", "unknown");
        assert_eq!(upstream.count(|entry| entry.calls("gate")), 1);
        check_moved(&upstream);
    }
}

#[test]
fn a_restart_without_state_under_load_runs_nothing_twice() {
    const CALLS: usize = 200;
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 4);
    let mut calls: Vec<(usize, Pending)> = Vec::new();
    for n in 0..CALLS {
        let client = n % clients.len();
        let call = clients[client].start_call("side_effect", &format!(r#"{{"key":"{n}"}}"#));
        calls.push((client, call));
        if n == CALLS / 2 {
            upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.calls("side_effect")));
            upstream.restart_without_state();
        }
    }
    for (n, (client, call)) in calls.iter().enumerate() {
        let answer = clients[*client].wait(call, PATIENCE);
        let runs = upstream.side_effects(&n.to_string());
        match answer.evermux_kind().as_deref() {
            None => assert_eq!(runs, 1, "call {n}: {}", answer.raw),
            Some("outcome_unknown") => assert!(runs <= 1, "call {n} ran {runs} times"),
            Some("upstream_unreachable") => assert_eq!(runs, 0, "call {n}: {}", answer.raw),
            Some(other) => panic!("call {n}: {other}"),
        }
    }
    let back = poll_until(PATIENCE, || {
        clients.iter_mut().all(|client| client.call("counter", "{}").error().is_none()).then_some(())
    });
    assert!(back.is_some(), "{}", upstream.summary());
    check_handshakes(&upstream, 2);
}

#[test]
fn never_means_that_a_lost_session_is_reported() {
    for lost in GONE {
        let (harness, upstream) =
            with_settings(Script { lost, ..Script::default() }, "reinitialize = \"never\"");
        let mut clients = clients(&harness, 2);
        count(&mut clients[0]);
        upstream.forget_sessions();
        let denied =
            matches!(lost, LostAs::UnauthorizedChallenge | LostAs::UnauthorizedText | LostAs::Forbidden);
        // Whether these three speak of the session or of the credentials only a fresh handshake could show.
        let kind = if denied { "needs_auth" } else { "session_lost" };
        for client in &mut clients {
            check_error(&client.call("counter", "{}"), kind, "refused");
        }
        check_kept(&upstream);
        if !denied {
            let status = harness.status();
            assert_eq!(status["sessions"][0]["status"], "not_found", "{status:#}");
        }
    }
}

#[test]
fn credentials_refused_for_good_are_told_and_not_tried_without_end() {
    let token = r#"headers.Authorization = "Bearer one""#;
    let script = Script { bearer: Some("one".to_owned()), ..Script::default() };
    let (harness, upstream) = with_settings(script, token);
    let mut clients = clients(&harness, 3);
    count(&mut clients[0]);
    upstream.change(|script| script.bearer = Some("two".to_owned()));
    let began = Instant::now();
    for _ in 0..10 {
        for client in &mut clients {
            check_error(&client.call("counter", "{}"), "needs_auth", "refused");
        }
    }
    // The pauses between tries grow from a second; on a machine that takes longer for the calls there are more of them.
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    let seen = upstream.initializes();
    assert!((2..=4 + seconds).contains(&seen), "{seen} handshakes: {}", upstream.summary());
    let refused = upstream.count(|entry| entry.reply_status == Some(401));
    assert!(refused <= 12 + 3 * seconds, "{refused} refused requests: {}", upstream.summary());
    // Shown as long as the pause after a refusal lasts, so a call goes before each look.
    let mut status = Value::Null;
    let shown = poll_until(PATIENCE, || {
        check_error(&clients[2].call("counter", "{}"), "needs_auth", "refused");
        status = harness.status();
        (status["upstreams"][0]["state"] == "needs_auth").then_some(())
    });
    assert!(shown.is_some(), "{status:#}");
    // The server changes its mind: the session was never replaced, so it goes on.
    upstream.change(|script| script.bearer = Some("one".to_owned()));
    let back = poll_until(PATIENCE, || {
        let answer = clients[1].call("counter", "{}");
        answer.error().is_none().then(|| count_of(&answer))
    });
    assert_eq!(back, Some(2), "{}", upstream.summary());
    assert_eq!(upstream.minted_sessions().len(), 1, "{}", upstream.summary());
    upstream.assert_no_violations();
}
