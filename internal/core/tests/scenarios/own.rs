//! `share = "client"`: a session of the client's own, that is lost under its calls and ended after its client.

use std::time::Duration;

use evermux_core::input::{Input, Policy};
use evermux_core::output::Note;

use crate::common::{Answer, NAME, World, method_of, policy, upstream::*};

const MINUTE: u64 = 60_000;
const WORDS: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"roots":{"listChanged":true},"elicitation":{}},"clientInfo":{"name":"me","version":"7"}}"#;

fn own() -> Policy {
    Policy { own_sessions: true, ..policy(NAME) }
}

fn world(policy: Policy) -> World {
    let mut w = World::with(policy);
    w.rules.many = true;
    w
}

fn joined(w: &mut World) -> usize {
    let client = w.client();
    w.ask(client, "initialize", WORDS);
    w.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    client
}

fn ended(w: &World) -> Vec<&'static str> {
    w.notes
        .iter()
        .filter_map(|note| if let Note::Ended { why, .. } = note { Some(*why) } else { None })
        .collect()
}

/// The params of every `initialize` that went upstream.
fn said(w: &World) -> Vec<String> {
    let greetings = w.started.iter().filter(|(_, open)| method_of(open) == "initialize");
    let params = |(_, open): &(_, crate::common::Open)| {
        let params = open.message.as_ref().and_then(mcp_wire::Message::params);
        String::from_utf8_lossy(params.unwrap_or_default()).into_owned()
    };
    greetings.map(params).collect()
}

/// A server that numbers its answers itself, in each session from 1.
#[test]
fn an_id_of_another_session_is_nobodys_here() {
    let mut w = world(own());
    let clients = [joined(&mut w), joined(&mut w)];
    for client in clients {
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let post = w.exchange("tools/call");
        let id = if client == clients[0] { 1_048_578 } else { 2 };
        let right = (result_of(&w.open[&post].clone()), format!(r#""id":{}"#, w.wire(post)));
        let text = right.0.replace(&right.1, &format!(r#""id":{id}"#)).replace("[]", r#"[],"theirs":1"#);
        w.fact(post, head());
        w.fact(post, says(&text));
        w.fact(post, clean());
        assert!(w.text(client, call).contains("theirs"), "{}", w.text(client, call));
    }
}

/// A server with one event store for all sessions keeps events by the id of the request: replayed, another session's answer
/// would be taken for this one's. Also what a former process left counts.
#[test]
fn no_id_is_used_in_two_sessions_of_an_upstream() {
    let mut w = world(own());
    let mut clients = vec![joined(&mut w), joined(&mut w)];
    let mut used = Vec::new();
    for round in 0..2 {
        for client in &clients {
            w.upstream.rule("tools/call", Answer::Hold);
            w.call(*client);
            used.push(w.wire(w.exchange("tools/call")));
        }
        if round == 0 {
            w.kill(9);
            w.auto = true;
            clients.push(joined(&mut w));
        }
    }
    let all: std::collections::BTreeSet<u64> = used.iter().copied().collect();
    assert_eq!((used.len(), all.len()), (5, 5), "{used:?}");
}

#[test]
fn each_client_has_its_own_session_with_its_own_words() {
    let mut w = world(own());
    let clients = [joined(&mut w), joined(&mut w)];
    for client in clients {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
    }
    assert_eq!(said(&w), [WORDS, WORDS]);
    assert_eq!(w.upstream.sessions.len(), 2);
    w.kill(9);
    for client in clients {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        assert!(w.text(client, call).contains(r#""status":"resumed""#));
    }
    assert_eq!((w.sent("initialize"), w.upstream.deleted), (2, 0));
}

/// What a lost session costs: the calls that met it and those that waited, and no later one.
#[test]
fn a_lost_session_of_ones_own_is_replaced_for_later_calls_only() {
    for answer in [Answer::Status(404, ""), Answer::Status(400, LOST), Answer::Status(401, "")] {
        let mut w = world(own());
        let client = joined(&mut w);
        w.call(client);
        w.advance(6_000);
        w.auto = false;
        let met = [w.call(client), w.call(client)];
        w.upstream.restart();
        let posts = w.arrived.clone();
        w.serve(posts[0], answer.clone());
        w.auto = true;
        w.pump();
        for call in met {
            assert_eq!(w.outcome(client, call), "session_lost/refused", "{answer:?}");
        }
        let later = w.call(client);
        assert_eq!(w.outcome(client, later), "ok");
        assert!(w.text(client, later).contains(r#""status":"reinitialized""#));
        assert_eq!((said(&w), w.sent("tools/call")), (vec![WORDS.to_owned(); 2], 4), "{answer:?}");
    }
}

#[test]
fn a_stored_session_of_ones_own_that_is_gone_is_said_so_in_its_own_words_again() {
    let mut w = world(own());
    let client = joined(&mut w);
    w.call(client);
    w.kill(9);
    w.upstream.restart();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "session_lost/refused");
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    let again = said(&w).pop().unwrap();
    assert!(again.contains(r#""name":"me""#) && again.contains("listChanged"), "{again}");
}

#[test]
fn refused_credentials_cost_no_session_of_ones_own() {
    let mut w = world(own());
    let client = joined(&mut w);
    w.call(client);
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    w.upstream.rule("initialize", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "needs_auth/refused");
    w.advance(3_000);
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.upstream.minted), ("ok", 1));
}

#[test]
fn with_reinitialize_never_nothing_takes_its_place() {
    let mut w = world(Policy { never_reinitialize: true, ..own() });
    let client = joined(&mut w);
    w.call(client);
    w.advance(6_000);
    w.upstream.restart();
    for _ in 0..2 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "session_lost/refused");
    }
    assert_eq!(w.sent("initialize"), 1);
    // A client that begins anew has a session of its own.
    let other = joined(&mut w);
    let call = w.call(other);
    assert_eq!(w.outcome(other, call), "ok");
}

#[test]
fn it_ends_a_while_after_its_client_ended() {
    let mut w = world(own());
    let client = joined(&mut w);
    w.call(client);
    w.end_link(client);
    w.advance(10 * MINUTE - 1);
    assert_eq!((w.upstream.deleted, w.disk.records().len()), (0, 1));
    w.advance(2);
    assert_eq!((w.upstream.deleted, w.disk.records().len(), w.hub.sizes()["sessions"]), (1, 0, 0));
    assert_eq!(ended(&w), ["client_ended"]);
}

#[test]
fn a_client_that_is_heard_of_keeps_it() {
    let mut w = world(own());
    let client = joined(&mut w);
    for _ in 0..20 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        w.advance(39 * MINUTE);
    }
    assert_eq!((w.upstream.minted, w.upstream.deleted), (1, 0));
    let stream = w.listen(client);
    w.advance(1_000 * MINUTE);
    assert_eq!(w.upstream.deleted, 0, "a held stream counts");
    w.close(stream);
    w.advance(42 * MINUTE);
    assert_eq!(w.upstream.deleted, 1, "idle and grace after it was heard of last");
}

#[test]
fn a_call_keeps_it_whatever_its_clients_silence() {
    let mut w = world(own());
    let client = joined(&mut w);
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    w.hang_up(client, call);
    w.advance(600 * MINUTE);
    assert_eq!(w.upstream.deleted, 0);
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    w.advance(42 * MINUTE);
    assert_eq!(w.upstream.deleted, 1);
}

#[test]
fn after_a_restart_nobody_is_waited_for_longer_than_idle_and_grace() {
    let mut w = world(own());
    let clients = [joined(&mut w), joined(&mut w)];
    w.kill(9);
    w.advance(39 * MINUTE);
    let call = w.call(clients[0]);
    assert_eq!(w.outcome(clients[0], call), "ok");
    assert_eq!(w.upstream.deleted, 0);
    w.advance(2 * MINUTE);
    assert_eq!(w.upstream.deleted, 1, "the other's");
    let call = w.call(clients[0]);
    assert_eq!((w.outcome(clients[0], call).as_str(), w.upstream.minted), ("ok", 2));
}

/// Its own words went with the record: the shim is told to have its client's `initialize` again.
#[test]
fn a_link_whose_session_and_words_are_gone_has_to_begin_anew() {
    let mut w = world(own());
    let client = joined(&mut w);
    w.call(client);
    w.put(Input::Purge(None));
    w.kill(9);
    let call = w.call(client);
    let stream = w.clients[client].sent[&call].stream.unwrap();
    assert_eq!(w.responses[&stream].refused, Some(404));
    assert_eq!(w.sent("initialize"), 1);
    // While this process knows them, it uses them.
    let other = joined(&mut w);
    w.put(Input::Purge(None));
    let call = w.call(other);
    assert_eq!((w.outcome(other, call).as_str(), said(&w).len()), ("ok", 3));
}

#[test]
fn grace_is_the_configs() {
    let mut w = world(Policy { grace: Duration::from_secs(5), ..own() });
    let client = joined(&mut w);
    w.end_link(client);
    w.advance(5_001);
    assert_eq!(w.upstream.deleted, 1);
}

#[test]
fn a_drain_ends_none() {
    let mut w = world(own());
    let client = joined(&mut w);
    w.call(client);
    w.end_link(client);
    w.put(Input::Drain);
    w.advance(100 * MINUTE);
    assert_eq!((w.upstream.deleted, w.disk.records().len()), (0, 1));
}

const ROOTS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;

/// A session of one's own has declared its client's roots, so its server hears when they change; also when it could
/// not be told at once, and without other words being sent for that.
#[test]
fn a_change_of_roots_reaches_the_clients_own_server() {
    let changes = |w: &World| w.sent("notifications/roots/list_changed");
    let mut w = world(own());
    let (client, other) = (joined(&mut w), joined(&mut w));
    w.call(client);
    w.call(other);
    w.tell(client, ROOTS_CHANGED);
    assert_eq!(changes(&w), 1);
    let (_, open) = w.started.last().unwrap();
    assert_eq!(open.spec.session.as_ref().unwrap().expose(), "s1", "in the session of its client");
    // In a pause of the server: when it is over.
    w.upstream.rule("tools/call", Answer::Status(429, ""));
    w.call(client);
    w.tell(client, ROOTS_CHANGED);
    w.tell(client, ROOTS_CHANGED);
    w.advance(3_000);
    w.call(client);
    assert_eq!(changes(&w), 2, "both at once");
    w.upstream.rule("tools/call", Answer::NeverWritten);
    w.upstream.rule("tools/call", Answer::NeverWritten);
    w.call(client);
    w.advance(100);
    w.tell(client, ROOTS_CHANGED);
    let before = changes(&w);
    w.advance(30_000);
    w.call(client);
    assert_eq!(changes(&w), before + 1, "told once it is reached again");
    // In the next process: with the next call.
    w.kill(9);
    w.tell(client, ROOTS_CHANGED);
    let before = changes(&w);
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), changes(&w)), ("ok", before + 1));
    assert_eq!(w.upstream.minted, 2);
}

/// It is the notification itself that never leaves: the server knows nothing of it, and is told before it is asked
/// anything else.
#[test]
fn a_change_of_roots_that_never_left_is_told_with_the_next_call() {
    for fact in [never(), exhausted()] {
        let mut w = world(own());
        let client = joined(&mut w);
        w.call(client);
        w.upstream.rule("notifications/roots/list_changed", Answer::Facts(vec![fact]));
        w.tell(client, ROOTS_CHANGED);
        let before = w.started.len();
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        let after: Vec<&str> = w.started[before..].iter().map(|(_, open)| method_of(open)).collect();
        assert_eq!(after, ["notifications/roots/list_changed", "tools/call"]);
        w.call(client);
        assert_eq!(w.sent("notifications/roots/list_changed"), 2, "once it was told");
    }
}

#[test]
fn a_shared_session_says_nothing_of_roots() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.tell(client, ROOTS_CHANGED);
    w.call(client);
    assert_eq!(w.sent("notifications/roots/list_changed"), 0);
}

/// A kill came before the DELETE was answered: the next process makes up for it, once, and nothing resumes the session.
#[test]
fn an_end_that_a_kill_cut_off_is_made_up_for() {
    let mut w = world(own());
    let client = joined(&mut w);
    w.call(client);
    w.end_link(client);
    w.upstream.rule("DELETE", Answer::Facts(vec![]));
    w.advance(10 * MINUTE + 1_000);
    assert_eq!((w.sent("DELETE"), w.upstream.deleted), (1, 0));
    w.kill(9);
    w.advance(60 * MINUTE);
    assert_eq!((w.sent("DELETE"), w.upstream.deleted, w.sent("initialize")), (2, 1, 1));
    assert!(w.disk.records().is_empty());
    w.kill(9);
    w.advance(60 * MINUTE);
    assert_eq!(w.sent("DELETE"), 2);
}
