//! The rows of the symptom table that are more than one step: what they cost session, call and record.

use evermux_core::input::{Fact, Policy};
use evermux_core::names::SessionId;

use crate::common::{Answer, NAME, World, policy, upstream::*};

const ASTRAY: &str = "session unknown on this instance";
const WRAPPED: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"400 Bad Request: No valid session ID provided"}}"#;
const UNREAD: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#;

fn worked() -> (World, usize) {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    (w, client)
}

#[test]
fn a_400_wrapped_in_a_500_is_one_fresh_handshake() {
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", Answer::Status(500, WRAPPED));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.session().reason.as_deref()), (2, Some("500-wrapped")));
}

#[test]
fn an_instance_that_does_not_know_the_session_is_asked_for_another() {
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", Answer::Status(503, ASTRAY));
    w.upstream.rule("ping", Answer::Status(503, ASTRAY));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "none");
    w.advance(2_000);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("ping"), w.sent("tools/call")), (1, 2, 3));
}

#[test]
fn a_server_that_only_ever_says_so_has_lost_it() {
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", Answer::Status(503, ASTRAY));
    for _ in 0..10 {
        w.upstream.rule("ping", Answer::Status(503, ASTRAY));
    }
    let call = w.call(client);
    w.advance(5_000);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("ping")), (2, 3));
    assert_eq!(w.session().reason.as_deref(), Some("503"));
}

#[test]
fn a_request_that_was_not_read_is_settled_by_a_ping() {
    let unread = || Answer::Facts(vec![head(), says(UNREAD), clean()]);
    // The session is gone.
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", unread());
    w.upstream.rule("ping", unread());
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 2);
    // It is there, and the next try goes well.
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", unread());
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("ping")), (1, 1));
    // It is there, and the server cannot read this request: that is the answer.
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", unread());
    w.upstream.rule("tools/call", unread());
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "error");
    assert_eq!((w.sent("initialize"), w.sent("tools/call")), (1, 3));
}

#[test]
fn a_revision_that_is_not_taken_any_more_is_one_fresh_handshake_and_no_loop() {
    let refused = Answer::Status(400, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":""}}"#);
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", refused.clone());
    for _ in 0..20 {
        w.upstream.rule("initialize", refused.clone());
    }
    for _ in 0..100 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "unsupported/not_sent");
        w.advance(100);
    }
    assert_eq!(w.session().status.word(), "version_mismatch");
    assert!(w.sent("initialize") <= 7, "{} in ten seconds", w.sent("initialize"));
    // Rolled back: everything is as it was.
    w.upstream.rules.clear();
    w.advance(40_000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.session().reason.as_deref(), Some("version_mismatch"));
}

/// A 2xx that names this session, with the right answer for what was asked.
fn switching(w: &World, name: &str) -> Vec<Fact> {
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    vec![Fact::Head { session: SessionId::new(name) }, says(&text), clean()]
}

fn switch(w: &mut World, client: usize, name: &str) -> u64 {
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let (exchange, facts) = (w.exchange("tools/call"), switching(w, name));
    for fact in facts {
        w.fact(exchange, fact);
    }
    call
}

#[test]
fn another_session_in_the_answer_is_followed_and_told() {
    let (mut w, client) = worked();
    let stream = w.listen(client);
    w.upstream.sessions.insert("other".into(), ServerSession::default());
    let call = switch(&mut w, client, "other");
    let told = w.text(client, call);
    assert!(told.contains(r#""handshake":2"#) && told.contains(r#""reason":"switched""#), "{told}");
    assert!(w.clients[client].heard.iter().any(|text| text.contains("tools/list_changed")), "{stream:?}");
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    let (last, session) = (w.started.last().unwrap(), w.session());
    assert_eq!(last.1.spec.session.as_ref().unwrap().expose(), "other");
    assert_eq!((session.handshake.0, session.status.word(), session.initializes), (2, "reinitialized", 1));
    // It is what another process goes on with.
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_server_that_names_another_session_each_time_is_not_followed() {
    let (mut w, client) = worked();
    w.upstream.sessions.insert("made-up-0".into(), ServerSession::default());
    w.rules.many = true;
    for round in 0..10 {
        let call = switch(&mut w, client, &format!("made-up-{round}"));
        assert_eq!(w.outcome(client, call), "ok");
    }
    // An answer that names none in between changes nothing about that.
    w.call(client);
    switch(&mut w, client, "made-up-again");
    assert_eq!(w.session().handshake.0, 2);
    assert_eq!(w.started.last().unwrap().1.spec.session.as_ref().unwrap().expose(), "made-up-0");
}

#[test]
fn with_reinitialize_never_another_session_is_a_loss() {
    let mut w = World::with(Policy { never_reinitialize: true, ..policy(NAME) });
    let client = w.joined();
    w.call(client);
    w.upstream.sessions.insert("other".into(), ServerSession::default());
    let call = switch(&mut w, client, "other");
    assert_eq!(w.outcome(client, call), "ok");
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "session_lost/refused");
}

#[test]
fn a_single_session_server_is_told_to_let_go_of_the_lost_one() {
    let orphan =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Server already initialized"}}"#;
    for refused in [Answer::Status(400, orphan), Answer::Facts(vec![head(), says(orphan), clean()])] {
        let (mut w, client) = worked();
        w.upstream.rule("tools/call", Answer::Status(400, LOST));
        w.upstream.rule("initialize", refused.clone());
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok", "{refused:?}");
        assert_eq!((w.sent("initialize"), w.sent("DELETE")), (3, 1));
        // Once only.
        let (mut w, client) = worked();
        w.upstream.rule("tools/call", Answer::Status(400, LOST));
        for _ in 0..5 {
            w.upstream.rule("initialize", refused.clone());
        }
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
        assert_eq!((w.sent("initialize"), w.sent("DELETE")), (3, 1));
    }
}

#[test]
fn a_stream_that_was_there_and_is_refused_is_settled_by_a_ping() {
    for status in [400, 401, 403, 404] {
        let (mut w, client) = worked();
        w.upstream.offers_stream = true;
        w.listen(client);
        let get = w.exchange("GET");
        w.advance(60_000);
        for _ in 0..100 {
            w.upstream.rule("GET", Answer::Status(status, ""));
        }
        w.fact(get, cut());
        w.advance(600_000);
        assert_eq!((w.sent("initialize"), w.sent("ping")), (1, 1), "{status}: the session is there");
        assert!((4..16).contains(&w.sent("GET")), "{status}: {} in ten minutes", w.sent("GET"));
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        // And where it is not:
        let (mut w, client) = worked();
        w.upstream.offers_stream = true;
        w.listen(client);
        let get = w.exchange("GET");
        w.advance(60_000);
        w.upstream.restart();
        w.fact(get, cut());
        w.advance(3_000);
        assert_eq!(w.sent("initialize"), 2, "{status}: found out without a call");
    }
}

#[test]
fn a_missing_scope_is_said_so_and_costs_nothing() {
    let (mut w, client) = worked();
    let refusal =
        evermux_core::input::Refusal { status: 403, scope: true, challenge: true, ..Default::default() };
    for _ in 0..10 {
        let end = Fact::Ended(evermux_core::input::End::Refused(refusal.clone()));
        w.upstream.rule("tools/call", Answer::Facts(vec![end]));
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "upstream_unreachable/refused");
        assert!(w.text(client, call).contains("scope"));
    }
    assert_eq!((w.sent("initialize"), w.sent("tools/call")), (1, 11));
}
