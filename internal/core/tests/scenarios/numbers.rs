//! Numbered messages: whatever a client repeats is found, replayed or told as unknown, and never runs twice.

use evermux_core::input::{Delivery, Input, Sender};

use crate::common::{Answer, NAME, Reply, World, upstream::*};

#[test]
fn an_answer_waits_for_an_absent_client() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call_with_token(client, "9");
    w.hang_up(client, call);
    let exchange = w.exchange("tools/call");
    let open = w.open[&exchange].clone();
    let wire = open.message.as_ref().unwrap().id().unwrap().as_number().unwrap();
    w.fact(exchange, head());
    w.fact(
        exchange,
        says(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{wire},"progress":1}}}}"#
        )),
    );
    w.fact(exchange, says(&result_of(&open)));
    assert_eq!(w.outcome(client, call), "none");
    w.deliver(client, call);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("tools/call"), 1);
}

#[test]
fn what_came_meanwhile_comes_before_the_answer() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call_with_token(client, "9");
    w.hang_up(client, call);
    let exchange = w.exchange("tools/call");
    let open = w.open[&exchange].clone();
    let wire = open.message.as_ref().unwrap().id().unwrap().as_number().unwrap();
    w.fact(exchange, head());
    for at in 0..3 {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{wire},"progress":{at}}}}}"#
        );
        w.fact(exchange, says(&text));
    }
    w.deliver(client, call);
    assert_eq!(w.clients[client].sent[&call].progress.len(), 3);
    w.fact(exchange, says(&result_of(&open)));
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn an_answer_whose_response_broke_is_handed_over_again() {
    let mut w = World::new();
    let client = w.joined();
    let call = w.call(client);
    let first = w.text(client, call);
    w.clients[client].sent.get_mut(&call).unwrap().reply = None;
    w.deliver(client, call);
    assert_eq!(w.text(client, call), first, "byte for byte");
    assert_eq!(w.sent("tools/call"), 1);
}

#[test]
fn a_second_response_for_a_running_call_ends_the_first() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let old = w.clients[client].sent[&call].stream.unwrap();
    w.deliver(client, call);
    assert!(w.responses[&old].ended);
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn a_settled_number_is_unknown_and_never_sent() {
    let mut w = World::new();
    let client = w.joined();
    let call = w.call(client);
    w.call(client);
    // The second call acknowledged the first; a repeat of it anyway is a client out of its mind.
    w.clients[client].sent.get_mut(&call).unwrap().reply = None;
    w.clients[client].acks = false;
    w.deliver(client, call);
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
    assert_eq!(w.sent("tools/call"), 2);
}

#[test]
fn a_number_that_a_former_process_settled_is_unknown_and_never_sent() {
    let mut w = World::new();
    let client = w.joined();
    let call = w.call(client);
    w.clients[client].sent.get_mut(&call).unwrap().reply = None;
    w.kill(9);
    w.come_back();
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
    assert_eq!(w.sent("tools/call"), 1);
}

#[test]
fn a_large_answer_is_kept_only_while_nobody_has_it() {
    let mut w = World::new();
    let client = w.joined();
    for absent in [true, false] {
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        if absent {
            w.hang_up(client, call);
        }
        let exchange = w.exchange("tools/call");
        let small = result_of(&w.open[&exchange].clone());
        let large = small.replace("\"content\":[]", &format!("\"content\":[\"{}\"]", "x".repeat(100_000)));
        w.fact(exchange, says(&large));
        w.clients[client].sent.get_mut(&call).unwrap().reply = None;
        w.deliver(client, call);
        assert_eq!(w.outcome(client, call), if absent { "ok" } else { "outcome_unknown/unknown" });
    }
}

#[test]
fn a_large_read_is_read_again() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("resources/read", Answer::Hold);
    let read = w.read(client);
    let exchange = w.exchange("resources/read");
    let small = result_of(&w.open[&exchange].clone());
    let large = small.replace("\"content\":[]", &format!("\"content\":[\"{}\"]", "x".repeat(100_000)));
    w.fact(exchange, says(&large));
    w.clients[client].sent.get_mut(&read).unwrap().reply = None;
    w.deliver(client, read);
    assert_eq!(w.outcome(client, read), "ok");
}

#[test]
fn a_client_that_never_acknowledges_is_not_remembered_without_end() {
    let mut w = World::new();
    let client = w.joined();
    w.clients[client].acks = false;
    let calls: Vec<u64> = (0..3000).map(|_| w.call(client)).collect();
    assert!(w.hub.sizes()["numbered"] <= 1024, "{:?}", w.hub.sizes());
    let sent = w.sent("tools/call");
    w.clients[client].sent.get_mut(&calls[0]).unwrap().reply = None;
    w.deliver(client, calls[0]);
    assert_eq!(w.outcome(client, calls[0]), "outcome_unknown/unknown");
    assert_eq!(w.sent("tools/call"), sent);
}

#[test]
fn a_repeated_notification_passes_once() {
    let mut w = World::new();
    let client = w.joined();
    let body = r#"{"jsonrpc":"2.0","method":"notifications/vendor/thing","params":{"x":1}}"#;
    let seq = w.tell(client, body);
    w.deliver(client, seq);
    assert_eq!(w.sent("notifications/vendor/thing"), 1);
    assert_eq!(w.reply(client, seq), Some(&Reply::Taken));
}

#[test]
fn a_request_id_in_flight_twice_is_refused() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    w.clients[client].next_raw_id = Some("77".into());
    w.call(client);
    w.clients[client].next_raw_id = Some("77".into());
    let second = w.call(client);
    assert_eq!(w.outcome(client, second), "error");
    assert_eq!(w.sent("tools/call"), 1);
}

#[test]
fn a_link_of_a_former_process_is_served() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.session().links, 1);
}

#[test]
fn foreign_and_missing_links_are_refused() {
    let mut w = World::new();
    let client = w.joined();
    for (from, status) in [(Sender::Foreign, 404), (Sender::Unknown, 400)] {
        let seq = w.clients[client].note(r#"{"jsonrpc":"2.0","id":"f","method":"tools/list"}"#);
        let stream = w.stream(client, seq);
        let message = message(r#"{"jsonrpc":"2.0","id":"f","method":"tools/list"}"#);
        let delivery = Delivery::default();
        w.put(Input::Posted { stream, upstream: NAME.into(), from, message, delivery });
        assert_eq!(w.responses[&stream].refused, Some(status));
        assert_eq!(w.sent("tools/list"), 0);
    }
}

#[test]
fn an_ended_link_is_not_served_any_more() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    w.end_link(client);
    assert!(w.open.is_empty(), "nobody reads the call's answer");
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "session_lost/refused");
    assert_eq!(w.upstream.sessions.len(), 1, "a pooled session outlives its links");
    assert_eq!(w.upstream.deleted, 0);
}
