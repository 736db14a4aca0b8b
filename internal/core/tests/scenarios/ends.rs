//! Ends and boundaries: drain, purge, reload, and identities that must not meet.

use evermux_core::input::Input;

use crate::common::{Answer, NAME, World, fingerprint, policy, upstream::*};

#[test]
fn a_drain_lets_running_calls_end_and_takes_no_more() {
    let mut w = World::new();
    let client = w.joined();
    let stream = w.listen(client);
    w.upstream.rule("tools/call", Answer::Hold);
    let running = w.call(client);
    w.put(Input::Drain);
    assert!(w.responses[&stream].stopping && w.responses[&stream].ended);
    let late = w.call(client);
    assert_eq!(w.outcome(client, late), "draining/not_sent");
    let other = w.client();
    w.join(other);
    assert_eq!(w.outcome(other, 1), "draining/not_sent");
    assert!(!w.drained);
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, running), "ok");
    assert!(w.drained);
    assert_eq!(w.upstream.deleted, 0);
}

#[test]
fn a_drain_fails_what_was_not_sent() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    w.auto = false;
    let waiting = w.call(client);
    w.put(Input::Drain);
    assert_eq!(w.outcome(client, waiting), "draining/not_sent");
    assert!(w.drained);
}

#[test]
fn a_draining_process_makes_no_session() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    w.auto = false;
    let call = w.call(client);
    w.put(Input::Drain);
    w.auto = true;
    let exchange = w.exchange("tools/call");
    w.serve(exchange, Answer::Status(404, ""));
    assert_eq!(w.outcome(client, call), "draining/not_sent");
    assert_eq!(w.sent("initialize"), 1);
    assert!(w.drained);
}

#[test]
fn a_purge_accounts_for_every_call_and_deletes_upstream() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let running = w.call(client);
    w.upstream.rule("resources/read", Answer::Status(503, ""));
    let pausing = w.read(client);
    w.put(Input::Purge(Some(NAME.into())));
    assert_eq!(w.outcome(client, running), "outcome_unknown/unknown");
    assert_eq!(w.outcome(client, pausing), "session_lost/refused");
    assert_eq!((w.upstream.deleted, w.disk.records().len()), (1, 0));
    w.advance(60_000);
    assert_eq!((w.hub.sizes()["calls"], w.hub.sizes()["sessions"], w.open.len()), (0, 0, 0));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 2);
}

#[test]
fn a_purge_during_the_handshake_ends_it() {
    let mut w = World::new();
    w.upstream.rule("initialize", Answer::Facts(vec![]));
    let client = w.client();
    w.join(client);
    w.put(Input::Purge(None));
    assert_eq!(w.outcome(client, 1), "session_lost/refused");
    assert!(w.open.is_empty());
    let other = w.joined();
    assert_eq!(w.outcome(other, 1), "ok");
}

#[test]
fn purging_another_upstream_changes_nothing() {
    let mut w = World::new();
    let client = w.joined();
    w.put(Input::Purge(Some("other".into())));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.upstream.deleted, w.sent("initialize")), (0, 1));
}

#[test]
fn two_identities_never_share_a_session() {
    let mut w = World::new();
    w.identities.push((NAME.into(), fingerprint(2), false));
    w.configure();
    let first = w.client_of(Some(1));
    let second = w.client_of(Some(2));
    for client in [first, second] {
        w.join(client);
        w.call(client);
    }
    assert_eq!((w.sent("initialize"), w.upstream.sessions.len()), (2, 2));
    w.kill(9);
    for client in [first, second] {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
    }
    // The rules see to it that each call carried its own identity's session.
    assert_eq!(w.sent("initialize"), 2);
}

#[test]
fn an_identity_that_is_not_at_hand_is_said_so_and_supersedes_nothing() {
    let mut w = World::new();
    w.identities = vec![(NAME.into(), fingerprint(2), true)];
    w.configure();
    let client = w.client_of(Some(2));
    w.join(client);
    w.call(client);
    w.identities.clear();
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "misconfigured/not_sent");
    let fresh = w.client();
    w.join(fresh);
    assert_eq!(w.outcome(fresh, 1), "misconfigured/not_sent");
    w.identities = vec![(NAME.into(), fingerprint(2), true)];
    w.configure();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_changed_endpoint_gets_a_session_of_its_own_and_listeners_hear_of_that_one_only() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    let old = w.exchange("GET");
    let mut changed = fingerprint(1);
    changed.endpoint = evermux_core::names::Digest(99);
    w.identities = vec![(NAME.into(), changed, true)];
    w.rules.lost(NAME);
    w.configure();
    assert!(w.aborted.contains(&old));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.upstream.minted, w.upstream.deleted), (2, 1), "the old one is ended where it was made");
    let get = w.exchange("GET");
    w.fact(get, says(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#));
    // One of our own, because another endpoint may have other lists, and one of the server's.
    assert_eq!(w.clients[client].heard.len(), 2);
}

#[test]
fn an_upstream_that_left_the_config_ends_its_calls_in_peace() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    w.upstream.rule("resources/read", Answer::Status(503, ""));
    let read = w.read(client);
    w.policies = vec![policy("another")];
    w.configure();
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, call), "ok");
    w.advance(61_000);
    assert_eq!(w.outcome(client, read), "ok");
    let late = w.call(client);
    assert_eq!(w.outcome(client, late), "misconfigured/not_sent");
    assert_eq!(w.hub.sizes()["calls"], 0);
}
