//! The machine slept.

use evermux_core::input::{Fact, Input};

use crate::common::{Answer, World, upstream::*};

/// A session with an open GET stream at position `s1/0/1`, and the client that listens.
fn listening() -> (World, usize) {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    let get = w.exchange("GET");
    w.fact(get, Fact::Cursor("s1/0/1".into()));
    (w, client)
}

#[test]
fn the_stream_is_opened_anew_from_its_position_and_the_session_is_looked_for() {
    let (mut w, client) = listening();
    let (old, pings) = (w.exchange("GET"), w.sent("ping"));
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    w.put(Input::Woke);
    assert!(w.aborted.contains(&old));
    let new = w.exchange("GET");
    assert_ne!(new, old);
    assert_eq!(w.spec(new).last_event_id.as_deref(), Some("s1/0/1"));
    assert_eq!(w.sent("ping"), pings + 1);
    assert_eq!(w.sent("initialize"), 1);
    w.fact(new, says(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#));
    assert_eq!(w.clients[client].heard.len(), 1);
}

#[test]
fn a_session_that_was_given_up_meanwhile_is_replaced_once() {
    let (mut w, client) = listening();
    // Long enough ago that the 404 is no replica's stray one.
    w.advance(10_000);
    w.upstream.restart();
    w.put(Input::Woke);
    w.call(client);
    assert_eq!(w.sent("initialize"), 2);
}

#[test]
fn a_network_that_comes_back_late_puts_nothing_into_back_off() {
    let (mut w, client) = listening();
    w.upstream.rule("ping", Answer::NeverWritten);
    w.upstream.rule("GET", Answer::NeverWritten);
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    w.put(Input::Woke);
    let (gets, calls) = (w.sent("GET"), w.sent("tools/call"));
    w.call(client);
    assert_eq!(w.sent("tools/call"), calls + 1, "the call goes out at once");
    w.advance(5_000);
    assert_eq!(w.sent("GET"), gets + 1);
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_call_in_flight_is_left_alone() {
    let (mut w, client) = listening();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    w.put(Input::Woke);
    assert!(!w.aborted.contains(&exchange));
    let answer = result_of(&w.open[&exchange]);
    w.fact(exchange, says(&answer));
    assert!(w.clients[client].sent[&call].reply.is_some());
}

#[test]
fn a_session_that_nobody_uses_sleeps_on() {
    let (mut w, client) = listening();
    let stream = *w.responses.iter().find(|(_, response)| response.listening).unwrap().0;
    w.close(stream);
    w.advance(2 * 3_600_000);
    let before = (w.sent("GET"), w.sent("ping"));
    w.put(Input::Woke);
    assert_eq!((w.sent("GET"), w.sent("ping")), before);
    w.put(Input::Drain);
    w.put(Input::Woke);
    assert_eq!((w.sent("GET"), w.sent("ping")), before);
    assert_eq!(w.clients[client].heard.len(), 0);
}
