//! Cancelling: never before the call, never another's, never `initialize`, and it always ends.

use crate::common::{Answer, World, upstream::*};

fn waiting() -> (World, usize, u64) {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    w.auto = false;
    let call = w.call(client);
    (w, client, call)
}

#[test]
fn a_waiting_call_is_dropped_and_never_sent() {
    let (mut w, client, call) = waiting();
    w.cancel(client, call);
    w.auto = true;
    w.pump();
    w.advance(60_000);
    assert_eq!((w.sent("tools/call"), w.sent("notifications/cancelled")), (0, 0));
    assert_eq!(w.hub.sizes()["calls"], 0);
    assert!(w.responses.values().all(|response| response.ended));
}

fn sent() -> (World, usize, u64) {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    w.auto = false;
    (w, client, call)
}

#[test]
fn a_cancel_waits_for_the_head() {
    let (mut w, client, call) = sent();
    w.cancel(client, call);
    assert_eq!(w.sent("notifications/cancelled"), 0);
    let exchange = w.exchange("tools/call");
    w.fact(exchange, head());
    assert_eq!(w.sent("notifications/cancelled"), 1);
    let text = String::from_utf8(
        w.open[&w.exchange("notifications/cancelled")].message.as_ref().unwrap().bytes().to_vec(),
    )
    .unwrap();
    let wire = w.open[&exchange].message.as_ref().unwrap().id().unwrap().as_number().unwrap();
    assert!(text.contains(&format!(r#""requestId":{wire}"#)), "{text}");
}

#[test]
fn a_cancel_goes_after_a_tenth_of_a_second_without_a_head() {
    let (mut w, client, call) = sent();
    w.cancel(client, call);
    w.advance(99);
    assert_eq!(w.sent("notifications/cancelled"), 0);
    w.advance(2);
    assert_eq!(w.sent("notifications/cancelled"), 1);
    w.advance(31_000);
    assert_eq!(w.hub.sizes()["calls"], 0);
    assert!(!w.open.values().any(|open| crate::common::method_of(open) == "tools/call"));
}

#[test]
fn only_the_owner_cancels_and_only_its_own() {
    let (mut w, client, call) = sent();
    let other = w.client();
    w.auto = true;
    w.join(other);
    let id = w.clients[client].sent[&call].id.clone().unwrap();
    w.tell(
        other,
        &format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#),
    );
    w.tell(
        client,
        &format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":"{id}"}}}}"#),
    );
    w.advance(1000);
    assert_eq!(w.sent("notifications/cancelled"), 0);
}

#[test]
fn initialize_is_not_cancelled() {
    let mut w = World::new();
    w.auto = false;
    let client = w.client();
    let first = w.ask(client, "initialize", r#"{"protocolVersion":"2025-11-25"}"#);
    let id = w.clients[client].sent[&first].id.clone().unwrap();
    w.tell(
        client,
        &format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#),
    );
    w.auto = true;
    w.pump();
    assert_eq!(w.outcome(client, first), "ok");
}

#[test]
fn a_cancelled_call_that_is_cut_is_not_replayed_for_ever() {
    for answer in [Answer::CutAfterCursor, Answer::CutInStream, Answer::NeverWritten] {
        let mut w = World::new();
        let client = w.joined();
        w.auto = false;
        let call = w.call(client);
        w.cancel(client, call);
        let exchange = w.exchange("tools/call");
        w.serve(exchange, answer);
        for _ in 0..200 {
            w.advance(1_000);
        }
        assert_eq!(w.hub.sizes()["calls"], 0);
        assert_eq!((w.sent("tools/call"), w.sent("GET")), (1, 0), "nobody wants the answer");
    }
}

#[test]
fn a_cancel_while_replaying_ends_too() {
    let mut w = World::new();
    let client = w.joined();
    w.auto = false;
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    w.serve(exchange, Answer::CutAfterCursor);
    w.advance(500);
    w.cancel(client, call);
    for at in 0..40 {
        if at % 3 == 0 && w.open.values().any(|open| crate::common::method_of(open) == "GET") {
            let get = w.exchange("GET");
            w.fact(get, Fact::Cursor(format!("x/{at}")));
        }
        w.advance(1_000);
    }
    assert_eq!(w.hub.sizes()["calls"], 0);
    assert_eq!(w.sent("notifications/cancelled"), 1);
}

#[test]
fn a_cancel_of_a_lost_sessions_call_is_not_sent_to_its_successor() {
    let (mut w, client, call) = sent();
    w.advance(6_000);
    w.upstream.restart();
    w.auto = true;
    let other = w.call(client);
    assert_eq!(w.outcome(client, other), "ok");
    w.cancel(client, call);
    w.advance(60_000);
    assert_eq!(w.sent("notifications/cancelled"), 0);
    assert_eq!(w.hub.sizes()["calls"], 0);
}

use evermux_core::input::Fact;
