//! The first use of an upstream, and the first contact of a later process: one handshake, ids used once.

use evermux_core::BLOCK;
use evermux_core::input::Input;

use crate::common::{Answer, NAME, Reply, World, policy, upstream::*};

#[test]
fn ten_links_share_one_initialize_and_one_session() {
    let mut w = World::new();
    let clients: Vec<usize> = (0..10).map(|_| w.joined()).collect();
    for client in &clients {
        let call = w.call(*client);
        assert_eq!(w.outcome(*client, call), "ok");
        assert_eq!(w.reply(*client, 2), Some(&Reply::Taken));
    }
    assert_eq!((w.sent("initialize"), w.sent("notifications/initialized")), (1, 1));
    let session = w.session();
    assert_eq!((session.status.word(), session.initializes, session.links), ("new", 1, 10));
}

#[test]
fn ten_greetings_wait_for_one_initialize() {
    let mut w = World::new();
    w.auto = false;
    let clients: Vec<usize> = (0..10).map(|_| w.client()).collect();
    for client in &clients {
        w.join(*client);
    }
    assert_eq!(w.sent("initialize"), 1);
    w.auto = true;
    w.pump();
    for client in clients {
        assert_eq!(w.outcome(client, 1), "ok");
    }
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn ids_grow_over_kills_and_no_id_is_used_twice() {
    let mut w = World::new();
    let client = w.joined();
    let mut last = 0;
    for _ in 0..4 {
        for _ in 0..3 {
            let call = w.call(client);
            assert_eq!(w.outcome(client, call), "ok");
            let (_, open) = w.started.iter().rev().find(|(_, o)| o.message.is_some()).expect("sent");
            let id = open.message.as_ref().and_then(mcp_wire::Message::id).and_then(|id| id.as_number());
            assert!(id > Some(last), "{id:?} after {last}");
            last = id.unwrap_or_default();
        }
        w.kill(9);
    }
    assert!(last > 3 * BLOCK, "unused ids of a former process are burned");
    assert_eq!(w.sent("initialize"), 1);
    assert_eq!(w.session().initializes, 0);
}

#[test]
fn a_new_block_is_reserved_before_the_old_one_ends() {
    let mut w = World::new();
    let client = w.joined();
    let mut writes = 0;
    for _ in 0..3 * BLOCK {
        let before = w.disk.writes;
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        writes += w.disk.writes - before;
    }
    assert!((3..=6).contains(&writes), "{writes} writes for three blocks");
}

#[test]
fn calls_wait_for_a_slow_disk_and_none_runs_on_an_unreserved_id() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    w.disk.stuck = true;
    let calls: Vec<(usize, u64)> = (0..BLOCK).flat_map(|_| clients.map(|c| (c, w.call(c)))).collect();
    let answered = calls.iter().filter(|(client, call)| w.reply(*client, *call).is_some()).count();
    assert!(answered < 1024, "{answered} ids out of one block");
    w.disk.stuck = false;
    w.pump();
    for (client, call) in calls {
        assert_eq!(w.outcome(client, call), "ok");
    }
}

#[test]
fn a_disk_that_refuses_ids_makes_calls_fail_unsent() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    w.disk.full = true;
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "overloaded/not_sent");
    assert_eq!((w.sent("ping"), w.sent("tools/call")), (0, 0));
    assert!(w.hub.report().persistence_degraded);
    w.disk.full = false;
    w.advance(2000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert!(!w.hub.report().persistence_degraded);
}

#[test]
fn refused_reservations_do_not_pile_up() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    w.disk.full = true;
    for _ in 0..50 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "overloaded/not_sent");
    }
    assert!(w.hub.sizes()["timers"] < 5, "{:?}", w.hub.sizes());
}

#[test]
fn a_reservation_under_way_survives_a_loss() {
    let mut w = World::new();
    let client = w.joined();
    w.disk.stuck = true;
    while w.disk.pending() == 0 {
        w.call(client);
    }
    w.advance(6000);
    w.upstream.restart();
    w.call(client);
    w.disk.stuck = false;
    w.pump();
    for _ in 0..BLOCK {
        w.call(client);
    }
    // The rule that a record takes nothing back is the disk's own.
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn client_ids_keep_type_and_spelling() {
    let mut w = World::new();
    let client = w.joined();
    for id in ["1000", "\"1000\"", "\"a\\u0062\"", "-7", "\"\""] {
        w.clients[client].next_raw_id = Some(id.to_owned());
        let call = w.call(client);
        let text = w.text(client, call);
        assert!(text.contains(&format!(r#""id":{id}"#)), "{text}");
    }
}

#[test]
fn equal_ids_and_tokens_of_two_clients_do_not_meet() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    w.auto = false;
    let calls = clients.map(|client| {
        w.clients[client].next_raw_id = Some("5".into());
        w.call_with_token(client, "\"t\"")
    });
    let arrived: Vec<_> = w.arrived.iter().copied().collect();
    for exchange in arrived.into_iter().rev() {
        w.serve(exchange, Answer::Sse);
    }
    for (client, call) in clients.into_iter().zip(calls) {
        assert_eq!(w.outcome(client, call), "ok");
        assert_eq!(w.clients[client].sent[&call].progress.len(), 1);
    }
}

#[test]
fn a_greeting_after_a_kill_needs_no_upstream() {
    let mut w = World::new();
    let _ = w.joined();
    w.kill(9);
    let before = w.started.len();
    let client = w.client();
    w.join(client);
    assert_eq!(w.outcome(client, 1), "ok");
    assert!(w.text(client, 1).contains(r#""status":"dormant""#));
    assert_eq!(w.started.len(), before, "no contact");
    assert_eq!(w.session().status.word(), "dormant");
}

#[test]
fn the_first_contact_is_ping_with_the_stored_session() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    let before = w.started.len();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    let methods: Vec<&str> =
        w.started[before..].iter().map(|(_, open)| crate::common::method_of(open)).collect();
    assert_eq!(methods, ["ping", "tools/call"]);
    assert_eq!(w.session().status.word(), "resumed");
    assert!(w.text(client, call).contains(r#""status":"resumed""#), "told once");
    let call = w.call(client);
    assert!(!w.text(client, call).contains("evermux/session"), "and not again");
}

/// The official suite holds a server to it: the answer to `logging/setLevel` is an empty object.
#[test]
fn an_empty_result_stays_empty_and_the_note_waits() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    let level = w.set_level(client, "info");
    assert!(w.text(client, level).ends_with(r#""result":{}}"#), "{}", w.text(client, level));
    let call = w.call(client);
    assert!(w.text(client, call).contains(r#""status":"resumed""#), "told once there is a result");
}

#[test]
fn a_silent_ping_lets_the_calls_try() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    w.upstream.rule("ping", Answer::Hold);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "none");
    w.advance(10_001);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn a_kill_before_initialized_resends_the_notification_only() {
    let mut w = World::new();
    w.auto = false;
    let client = w.client();
    w.join(client);
    let initialize = w.exchange("initialize");
    w.serve(initialize, Answer::Model);
    let (ticket, ok) = w.disk.force().expect("the record");
    w.put(evermux_core::input::Input::Persisted { ticket, ok });
    assert_eq!(w.sent("notifications/initialized"), 1);
    w.kill(0);
    w.auto = true;
    let other = w.client();
    w.join(other);
    let call = w.call(other);
    assert_eq!(w.outcome(other, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("notifications/initialized")), (1, 2));
    assert_eq!(w.sent("ping"), 0);
}

#[test]
fn initialized_waits_for_the_record() {
    let mut w = World::new();
    w.disk.stuck = true;
    let client = w.client();
    w.join(client);
    assert_eq!(w.sent("notifications/initialized"), 0);
    w.kill(0);
    w.disk.stuck = false;
    w.come_back();
    assert_eq!(w.outcome(client, 1), "ok");
    assert_eq!(w.sent("initialize"), 2, "no record, no session");
}

#[test]
fn a_record_that_cannot_be_written_costs_no_client() {
    let mut w = World::new();
    w.disk.full = true;
    let client = w.joined();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert!(w.hub.report().persistence_degraded);
}

#[test]
fn an_initialized_that_stays_open_is_answered_by_its_head() {
    let mut w = World::new();
    w.upstream.rule("notifications/initialized", Answer::Facts(vec![head()]));
    let client = w.joined();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn an_older_server_gets_no_version_header_and_its_client_the_older_revision() {
    let mut w = World::with(policy(NAME));
    w.upstream.revision = Some("2025-03-26");
    let client = w.joined();
    assert!(w.text(client, 1).contains(r#""protocolVersion":"2025-03-26""#));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn a_newer_era_is_said_to_be_unsupported() {
    let mut w = World::new();
    w.upstream.revision = Some("2026-07-28");
    let client = w.client();
    w.join(client);
    assert_eq!(w.outcome(client, 1), "unsupported/not_sent");
    assert_eq!(w.session().status.word(), "version_mismatch");
}

#[test]
fn a_server_without_session_ids_is_served_the_same() {
    let mut w = World::new();
    w.upstream.no_session_ids = true;
    let client = w.joined();
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 1);
    // There is nothing to name in a DELETE.
    w.put(Input::Purge(None));
    assert_eq!((w.sent("DELETE"), w.disk.records().len()), (0, 0));
}

#[test]
fn a_greeting_is_told_after_eight_seconds_and_the_handshake_goes_on() {
    let mut w = World::new();
    w.upstream.rule("initialize", Answer::Facts(vec![]));
    let client = w.client();
    w.join(client);
    w.advance(7_999);
    assert_eq!(w.outcome(client, 1), "none");
    w.advance(2);
    assert_eq!(w.outcome(client, 1), "upstream_unreachable/not_sent");
    let exchange = w.exchange("initialize");
    w.serve(exchange, Answer::Model);
    let other = w.joined();
    assert_eq!(w.outcome(other, 1), "ok");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_question_during_a_second_handshake_is_not_answered_in_the_lost_session() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    w.upstream.restart();
    w.upstream.rule("initialize", Answer::Facts(vec![]));
    let call = w.call(client);
    let exchange = w.exchange("initialize");
    w.fact(exchange, says(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#));
    assert_eq!(w.sent("response"), 0);
    w.serve(exchange, Answer::Model);
    assert_eq!(w.outcome(client, call), "ok");
}
