//! What an upstream in trouble is spared: two hundred clients that call without pause cost it a handful of attempts.

use std::time::Duration;

use evermux_core::input::Policy;

use crate::common::{Answer, NAME, World, policy};

const LINKS: usize = 200;

/// Every client calls again as soon as it was told, for a minute.
fn storm(w: &mut World, clients: &[usize], answer: &Answer) -> usize {
    w.upstream.always = Some(answer.clone());
    let before = w.started.len();
    let mut calls: Vec<Option<u64>> = vec![None; clients.len()];
    for _ in 0..30 {
        for (client, call) in clients.iter().zip(&mut calls) {
            let waits = call.is_some_and(|call| w.outcome(*client, call) == "none");
            if !waits {
                *call = Some(w.call(*client));
            }
        }
        w.advance(2_000);
    }
    w.upstream.always = None;
    w.started.len() - before
}

fn check(answer: &Answer, most: usize) {
    check_with(policy(NAME), answer, most, 1);
}

/// `sessions`: that many there are, and none is lost.
fn check_with(policy: Policy, answer: &Answer, most: usize, sessions: u32) {
    let mut w = World::with(policy);
    w.rules.many = sessions > 1;
    let clients: Vec<usize> = (0..LINKS).map(|_| w.joined()).collect();
    for client in &clients {
        w.call(*client);
    }
    w.advance(6_000);
    let attempts = storm(&mut w, &clients, answer);
    assert!(attempts <= most, "{answer:?}: {attempts} attempts in a minute");
    // It heals: within one pause everybody is served again, in the same session.
    w.advance(41_000);
    for client in clients {
        let call = w.call(client);
        w.advance(100);
        assert_eq!(w.outcome(client, call), "ok", "{answer:?}");
    }
    assert_eq!(w.upstream.minted, sessions, "{answer:?}: and no session was lost");
}

/// A session for each client: what one of them found out holds for all.
#[test]
fn a_crowd_with_sessions_of_their_own_costs_no_more() {
    let own = || Policy { own_sessions: true, ..policy(NAME) };
    check_with(own(), &Answer::NeverWritten, 30, 200);
    check_with(own(), &Answer::CutBefore, 30, 200);
    check_with(own(), &Answer::Status(401, ""), 40, 200);
    check_with(own(), &Answer::Status(429, ""), 30, 200);
    check_with(own(), &Answer::Status(503, ""), 30, 200);
}

#[test]
fn clients_that_come_during_an_outage_are_told_at_once_and_cost_nothing() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    w.rules.many = true;
    w.upstream.always = Some(Answer::NeverWritten);
    for _ in 0..50 {
        let client = w.client();
        w.join(client);
        assert_eq!(w.outcome(client, 1), "upstream_unreachable/not_sent");
        w.advance(100);
    }
    assert!(w.sent("initialize") <= 5, "{} in five seconds", w.sent("initialize"));
    w.upstream.always = None;
    w.advance(9_000);
    let client = w.joined();
    assert_eq!(w.outcome(client, 1), "ok");
}

#[test]
fn an_unreachable_upstream_costs_a_handful_of_attempts() {
    check(&Answer::NeverWritten, 20);
}

#[test]
fn cuts_cost_a_handful_of_attempts() {
    check(&Answer::CutBefore, 20);
}

#[test]
fn a_401_costs_a_handful_of_attempts() {
    check(&Answer::Status(401, ""), 30);
}

#[test]
fn a_429_costs_a_handful_of_attempts() {
    check(&Answer::Status(429, ""), 20);
}

#[test]
fn a_503_costs_a_handful_of_attempts() {
    check(&Answer::Status(503, ""), 20);
}

#[test]
fn a_firewall_costs_a_handful_of_attempts() {
    check(&Answer::Status(403, "<html>blocked</html>"), 20);
}

#[test]
fn a_429_that_names_a_pause_costs_a_handful_of_attempts() {
    check(&Answer::StatusAfter(429, Duration::from_secs(10)), 10);
}

/// Calls that are under way together are refused together; after that, one finds out for all.
#[test]
fn after_a_429_one_call_finds_out_for_all() {
    let mut w = World::new();
    let clients: Vec<usize> = (0..LINKS).map(|_| w.joined()).collect();
    w.upstream.rule("tools/call", Answer::StatusAfter(429, Duration::from_secs(10)));
    w.call(clients[0]);
    w.advance(10_001);
    w.auto = false;
    let calls: Vec<u64> = clients.iter().map(|client| w.call(*client)).collect();
    assert_eq!(w.arrived.len(), 1, "the others wait");
    let trial = w.arrived[0];
    w.serve(trial, Answer::StatusAfter(429, Duration::from_secs(10)));
    assert_eq!(w.outcome(clients[0], calls[0]), "upstream_unreachable/refused");
    for (client, call) in clients.iter().zip(&calls).skip(1) {
        assert_eq!(w.outcome(*client, *call), "upstream_unreachable/not_sent");
    }
    w.advance(10_001);
    let calls: Vec<u64> = clients.iter().map(|client| w.call(*client)).collect();
    w.auto = true;
    w.pump();
    for (client, call) in clients.iter().zip(&calls) {
        assert_eq!(w.outcome(*client, *call), "ok");
    }
}

/// The call that finds out ends some other way: nobody waits for it for ever.
#[test]
fn a_trial_that_is_cancelled_or_never_answered_holds_nobody_up() {
    for way in 0..3 {
        let mut w = World::with(Policy { call_timeout: Some(Duration::from_secs(20)), ..policy(NAME) });
        let (client, other) = (w.joined(), w.joined());
        w.upstream.rule("tools/call", Answer::Status(429, ""));
        w.call(client);
        w.advance(3_000);
        w.upstream.rule("tools/call", if way == 2 { Answer::NeverWritten } else { Answer::Hold });
        let trial = w.call(client);
        let call = w.call(other);
        if way == 0 {
            w.cancel(client, trial);
        }
        w.advance(40_000);
        assert_eq!(w.outcome(other, call), "ok", "{way}");
    }
}

#[test]
fn three_failures_in_a_row_are_enough_and_a_success_in_between_is_none() {
    let mut w = World::new();
    let client = w.joined();
    for answer in [Answer::CutBefore, Answer::Status(500, ""), Answer::Model, Answer::CutBefore] {
        w.upstream.rule("tools/call", answer);
        w.call(client);
    }
    assert_eq!(w.sent("tools/call"), 4, "every one of them was tried");
    w.advance(6_000);
    for _ in 0..2 {
        w.upstream.rule("tools/call", Answer::CutBefore);
        w.call(client);
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
    assert_eq!(w.sent("tools/call"), 6);
    w.advance(3_000);
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.sent("ping")), ("ok", 1), "a ping went before it");
}

/// A session that nobody has used yet is no worse for credentials that are refused again and again.
#[test]
fn refused_credentials_are_called_that_however_often() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.always = Some(Answer::Status(401, ""));
    for _ in 0..5 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "needs_auth/refused");
        w.advance(120_000);
    }
    w.upstream.always = None;
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.upstream.minted, 1);
}

/// Some requests are at fault themselves: where others are answered, more of them are needed.
#[test]
fn failures_beside_successes_are_not_an_outage() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    for _ in 0..9 {
        w.upstream.rule("tools/call", Answer::CutBefore);
        w.call(client);
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    for _ in 0..10 {
        w.upstream.rule("tools/call", Answer::CutBefore);
        w.call(client);
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
}
