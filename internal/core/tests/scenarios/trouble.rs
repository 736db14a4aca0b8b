//! Trouble that is no loss: the session is kept, nothing runs twice, nothing waits without end.

use std::time::Duration;

use evermux_core::output::Note;

use crate::common::{Answer, NAME, World, policy, upstream::*};

/// What becomes of a `tools/call` and of a read that meet this once, and of one that meets it always.
fn check(answer: &Answer, call_says: &str, read_says: &str, always: (&str, usize)) {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.upstream.rule("tools/call", answer.clone());
    let call = w.call(client);
    w.advance(31_000);
    assert_eq!(w.outcome(client, call), call_says, "{answer:?}");
    let before = w.sent("resources/read");
    w.upstream.rule("resources/read", answer.clone());
    let read = w.read(client);
    w.advance(31_000);
    assert_eq!(w.outcome(client, read), read_says, "{answer:?}");
    assert!(w.sent("resources/read") - before <= 2);
    let before = w.sent("resources/read");
    for _ in 0..20 {
        w.upstream.rule("resources/read", answer.clone());
    }
    let read = w.read(client);
    w.advance(61_000);
    assert_eq!((w.outcome(client, read).as_str(), w.sent("resources/read") - before), always, "{answer:?}");
    assert_eq!((w.sent("initialize"), w.upstream.sessions.len()), (1, 1), "{answer:?}");
}

#[test]
fn trouble_keeps_the_session() {
    let unknown = "outcome_unknown/unknown";
    for (status, body) in [(500, "trouble"), (502, LOST), (503, "trouble"), (504, LOST)] {
        check(&Answer::Status(status, body), unknown, "ok", (unknown, 3));
    }
    check(&Answer::CutBefore, unknown, "ok", (unknown, 3));
    check(&Answer::CutAfter, unknown, "ok", (unknown, 3));
    check(&Answer::CutInStream, unknown, "ok", (unknown, 3));
    check(&Answer::Status(200, "<html>"), unknown, "ok", (unknown, 3));
    check(&Answer::Facts(vec![head(), clean()]), unknown, "ok", (unknown, 3));
    let busy = "upstream_unreachable/refused";
    check(&Answer::Status(429, ""), busy, busy, (busy, 1));
    check(&Answer::Status(403, "<html>"), busy, busy, (busy, 1));
    check(&Answer::Status(302, ""), busy, busy, (busy, 1));
    check(&Answer::NeverWritten, "ok", "ok", ("upstream_unreachable/not_sent", 2));
}

#[test]
fn an_unwritten_call_goes_once_more_with_the_same_id() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::NeverWritten);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "none");
    w.advance(100);
    assert_eq!(w.outcome(client, call), "ok");
    let ids: Vec<_> = w
        .started
        .iter()
        .filter(|(_, open)| crate::common::method_of(open) == "tools/call")
        .map(|(_, open)| open.message.as_ref().and_then(mcp_wire::Message::id))
        .collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn an_unreachable_upstream_makes_calls_fail_at_once_for_a_while() {
    let mut w = World::new();
    let client = w.joined();
    for _ in 0..2 {
        w.upstream.rule("tools/call", Answer::NeverWritten);
    }
    let call = w.call(client);
    w.advance(100);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
    let before = w.started.len();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
    assert_eq!(w.started.len(), before);
    assert_eq!(w.hub.report().upstreams[0].state.word(), "unreachable");
    w.advance(2_000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_429_pause_is_the_servers_and_calls_in_it_were_not_sent() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::StatusAfter(429, Duration::from_secs(10)));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/refused");
    w.advance(9_900);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
    w.advance(200);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn no_retry_after_silences_an_upstream_for_a_day() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::StatusAfter(429, Duration::from_secs(86_400)));
    w.call(client);
    w.advance(301_000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn an_unreachable_handshake_is_not_stormed() {
    let mut w = World::new();
    for _ in 0..200 {
        w.upstream.rule("initialize", Answer::NeverWritten);
    }
    let mut said = Vec::new();
    for _ in 0..100 {
        let client = w.client();
        w.ask(client, "initialize", r#"{"protocolVersion":"2025-11-25"}"#);
        said.push(w.outcome(client, 1));
        w.advance(100);
    }
    assert!(said.iter().all(|text| text == "upstream_unreachable/not_sent"), "{said:?}");
    assert!(w.sent("initialize") <= 8, "{} in ten seconds", w.sent("initialize"));
    w.upstream.rules.clear();
    w.advance(60_000);
    let client = w.joined();
    assert_eq!(w.outcome(client, 1), "ok");
}

#[test]
fn an_outage_after_a_kill_keeps_record_and_session() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    for answer in [Answer::NeverWritten, Answer::Status(503, ""), Answer::CutBefore, Answer::Status(429, "")]
    {
        w.upstream.rule("ping", answer);
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
        assert_eq!(w.session().status.word(), "resume_failed");
        w.advance(40_000);
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.session().status.word(), w.sent("initialize")), ("resumed", 1));
    let word =
        |note: &Note| if let Note::Attached { status, .. } = note { Some(status.word()) } else { None };
    let told: Vec<_> = w.notes.iter().filter_map(word).collect();
    assert_eq!(told, ["new", "dormant", "resume_failed", "resumed"], "each once");
}

#[test]
fn calls_have_their_longest_lives() {
    let mut w = World::with(evermux_core::input::Policy {
        call_timeout: Some(Duration::from_secs(300)),
        ..policy(NAME)
    });
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    w.upstream.rule("resources/read", Answer::Hold);
    let (call, read) = (w.call(client), w.read(client));
    w.advance(59_999);
    assert_eq!(w.outcome(client, read), "none");
    w.advance(2);
    assert_eq!(w.outcome(client, read), "upstream_timeout/unknown");
    w.advance(239_900);
    assert_eq!(w.outcome(client, call), "none");
    w.advance(200);
    assert_eq!(w.outcome(client, call), "upstream_timeout/unknown");
    assert_eq!(w.sent("notifications/cancelled"), 2, "the server hears of it");
    assert!(w.open.is_empty(), "and its exchange is let go: {:?}", w.open.len());
}

#[test]
fn a_call_without_a_limit_may_take_a_day() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    w.advance(86_400_000);
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn an_error_without_an_id_answers_its_exchange() {
    for id in ["\"id\":null,", "", "\"id\":\"made-up\","] {
        let mut w = World::new();
        let client = w.joined();
        let error = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32602,"message":"no"}}}}"#);
        w.upstream.rule("tools/call", Answer::Facts(vec![head(), says(&error), clean()]));
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "error");
        w.upstream.rule("tools/call", Answer::Facts(vec![refused(400, &error)]));
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "error");
    }
}

#[test]
fn an_answer_on_another_calls_stream_goes_where_its_id_says() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    w.auto = false;
    let calls = clients.map(|client| w.call(client));
    let posts = [w.arrived[0], w.arrived[1]];
    let second = result_of(&w.open[&posts[1]].clone());
    w.fact(posts[0], head());
    w.fact(posts[0], says(&second));
    assert_eq!(w.outcome(clients[1], calls[1]), "ok");
    assert_eq!(w.outcome(clients[0], calls[0]), "none");
    w.serve(posts[0], Answer::Model);
    assert_eq!(w.outcome(clients[0], calls[0]), "ok");
}
