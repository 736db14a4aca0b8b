//! A lost session: one fresh handshake, each call moved once, and nothing but a refusal at the head moves one.

use crate::common::{Answer, NAME, World, policy, upstream::*};

const ERROR_200: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}"#;

/// Every way a server says "I do not know this session", with `callers` calls at once.
fn check_loss(answer: &Answer, callers: usize, symptom: &str) {
    let mut w = World::new();
    let clients: Vec<usize> = (0..callers).map(|_| w.joined()).collect();
    let first = w.call(clients[0]);
    assert_eq!(w.outcome(clients[0], first), "ok");
    w.advance(6_000);
    w.auto = false;
    let calls: Vec<u64> = clients.iter().map(|client| w.call(*client)).collect();
    w.upstream.restart();
    for exchange in w.arrived.clone() {
        w.serve(exchange, answer.clone());
    }
    w.auto = true;
    w.pump();
    for (client, call) in clients.iter().zip(&calls) {
        assert_eq!(w.outcome(*client, *call), "ok", "{answer:?}");
        assert!(w.text(*client, *call).contains(r#""status":"reinitialized""#));
    }
    assert_eq!(w.sent("initialize"), 2, "{answer:?} with {callers} callers");
    assert_eq!(w.sent("tools/call"), 1 + 2 * callers, "each call is sent once more");
    let session = w.session();
    assert_eq!((session.handshake.0, session.status.word()), (2, "reinitialized"));
    assert_eq!(session.reason.as_deref(), Some(symptom));
}

#[test]
fn every_lost_session_costs_one_initialize() {
    for callers in [1, 50] {
        check_loss(&Answer::Status(404, ""), callers, "404");
        check_loss(&Answer::Status(400, LOST), callers, "400");
        check_loss(&Answer::Status(401, "unknown session"), callers, "401");
        check_loss(&Answer::Status(403, ERROR_200), callers, "403");
        check_loss(&Answer::Facts(vec![head(), says(ERROR_200), clean()]), callers, "200-error");
    }
}

#[test]
fn the_second_loss_of_a_call_is_told() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    for _ in 0..4 {
        w.upstream.rule("tools/call", Answer::Status(404, ""));
        w.upstream.rule("ping", Answer::Status(404, ""));
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "session_lost/refused");
    assert_eq!(w.sent("tools/call"), 3);
}

#[test]
fn a_stray_404_is_tried_again_on_the_same_session() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.upstream.rule("tools/call", Answer::Status(404, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("ping"), w.sent("tools/call")), (1, 1, 3));
}

#[test]
fn a_stray_404_that_the_ping_confirms_is_a_loss() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.upstream.restart();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("ping"), w.sent("tools/call")), (2, 1, 3));
}

#[test]
fn a_stray_404_does_not_announce_changed_lists() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    w.upstream.restart();
    w.listen(client);
    w.call(client);
    let heard = w.clients[client].heard.len();
    w.upstream.rule("tools/call", Answer::Status(404, ""));
    w.call(client);
    assert_eq!(w.clients[client].heard.len(), heard);
}

#[test]
fn a_server_that_keeps_no_session_is_not_stormed() {
    let mut w = World::new();
    let client = w.joined();
    for _ in 0..40 {
        w.upstream.restart();
        w.call(client);
        w.upstream.restart();
        w.advance(100);
    }
    assert!(w.sent("initialize") <= 45, "{}", w.sent("initialize"));

    let mut w = World::new();
    for _ in 0..1000 {
        w.upstream.rule("notifications/initialized", Answer::Status(404, ""));
        w.upstream.rule("tools/call", Answer::Status(404, ""));
    }
    let client = w.joined();
    for _ in 0..100 {
        w.call(client);
        w.advance(100);
    }
    assert!(w.sent("initialize") <= 12, "{} in ten seconds", w.sent("initialize"));
}

#[test]
fn a_stray_404_to_initialized_is_tried_again() {
    let mut w = World::new();
    w.upstream.rule("notifications/initialized", Answer::Status(404, ""));
    let client = w.joined();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("notifications/initialized")), (1, 2));
}

#[test]
fn never_reinitialize_reports_and_a_reload_lets_go_on() {
    let mut w = World::with(evermux_core::input::Policy { never_reinitialize: true, ..policy(NAME) });
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    w.upstream.restart();
    for _ in 0..3 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "session_lost/refused");
    }
    let other = w.client();
    w.join(other);
    assert_eq!(w.outcome(other, 1), "session_lost/refused");
    assert_eq!((w.sent("initialize"), w.session().status.word()), (1, "not_found"));
    w.policies[0].never_reinitialize = false;
    w.configure();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn never_reinitialize_keeps_a_session_whose_token_is_refused() {
    let mut w = World::with(evermux_core::input::Policy { never_reinitialize: true, ..policy(NAME) });
    let client = w.joined();
    w.call(client);
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "needs_auth/refused");
    w.configure();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_401_that_a_fresh_handshake_does_not_cure_costs_no_session() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    w.upstream.rule("initialize", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "needs_auth/refused");
    assert_eq!(w.sent("initialize"), 2);
    assert_eq!(w.hub.report().upstreams[0].state.word(), "needs_auth");
    // The token was renewed: the stored session is still there, and no handshake is due.
    w.configure();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.upstream.sessions.len()), (2, 1));
}

#[test]
fn a_401_for_one_tool_does_not_cost_session_after_session() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    for _ in 0..20 {
        w.upstream.rule("tools/call", Answer::Status(401, ""));
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "needs_auth/refused");
    assert_eq!((w.sent("initialize"), w.sent("tools/call")), (2, 3));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "needs_auth/refused", "in the pause, at once");
    assert_eq!(w.sent("tools/call"), 3);
}

#[test]
fn news_of_an_older_loss_is_no_news() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    w.auto = false;
    let late = w.call(client);
    let early = w.call(client);
    let [slow, quick] = [w.arrived[0], w.arrived[1]];
    w.arrived.clear();
    w.upstream.restart();
    w.auto = true;
    w.serve(quick, Answer::Model);
    assert_eq!(w.outcome(client, early), "ok");
    w.serve(slow, Answer::Status(404, ""));
    assert_eq!(w.outcome(client, late), "ok");
    assert_eq!((w.sent("initialize"), w.sent("ping")), (2, 0), "the new session is not even doubted");
}

#[test]
fn an_overtaken_ping_moves_no_later_handshake_on() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.auto = false;
    let calls = [w.call(client), w.call(client)];
    let posts = [w.arrived[0], w.arrived[1]];
    w.arrived.clear();
    w.upstream.restart();
    // The first 404 is doubted, the second is believed while the ping is under way.
    w.serve(posts[0], Answer::Status(404, ""));
    let ping = w.exchange("ping");
    w.serve(posts[1], Answer::Status(404, ""));
    assert!(w.aborted.contains(&ping) || w.open.contains_key(&ping));
    w.auto = true;
    w.pump();
    for call in calls {
        assert_eq!(w.outcome(client, call), "ok");
    }
    assert_eq!(w.sent("initialize"), 2);
}

#[test]
fn a_tool_that_speaks_of_a_session_of_its_own_is_passed_on() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.auto = false;
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    let id = w.open[&exchange].message.as_ref().and_then(mcp_wire::Message::id).unwrap().as_number().unwrap();
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"browser session not found"}}}}"#
    );
    w.serve(exchange, Answer::Facts(vec![head(), says(&text), clean()]));
    assert_eq!(w.outcome(client, call), "error");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn lost_lists_are_announced_once_to_each_listening_link() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    let silent = w.joined();
    for client in clients {
        w.listen(client);
    }
    w.call(clients[0]);
    w.advance(6_000);
    w.upstream.restart();
    w.call(silent);
    for client in clients {
        let changed = w.clients[client].heard.iter().filter(|text| text.contains("tools/list_changed"));
        assert_eq!(changed.count(), 1);
    }
    assert!(w.clients[silent].heard.is_empty());
}

#[test]
fn a_keepalive_that_meets_a_lost_session_renews_it() {
    let mut w = World::with(evermux_core::input::Policy {
        keepalive: Some(std::time::Duration::from_secs(120)),
        ..policy(NAME)
    });
    let client = w.joined();
    w.call(client);
    w.upstream.restart();
    w.advance(300_000);
    assert_eq!(w.sent("initialize"), 2);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}
