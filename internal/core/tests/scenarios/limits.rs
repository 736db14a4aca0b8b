//! How many links and calls there may be, as the config says.

use evermux_core::input::{ExchangeId, Input, Limits};

use crate::common::{Answer, Open, World, method_of, upstream::*};

fn limited(links: usize, calls_of_link: usize) -> World {
    let mut w = World::new();
    w.put(Input::Limits(Limits { links, calls_of_link }));
    w
}

/// A client without numbers, as others than shims are. Each comes later than the one before.
fn plain(w: &mut World) -> usize {
    let client = w.client();
    w.clients[client].numbers = false;
    w.advance(10);
    w.join(client);
    client
}

fn serves(w: &mut World, client: usize) -> bool {
    w.advance(10);
    let call = w.call(client);
    w.outcome(client, call) == "ok"
}

fn body_of(open: &Open) -> String {
    let bytes = open.message.as_ref().map(|message| message.bytes().to_vec());
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

#[test]
fn the_link_that_was_silent_longest_makes_room() {
    let mut w = limited(3, 10);
    let clients: Vec<usize> = (0..3).map(|_| plain(&mut w)).collect();
    for client in &clients {
        w.subscribe(*client, &format!("x:{client}"));
    }
    // The first one is heard of again: the second is the oldest now.
    assert!(serves(&mut w, clients[0]));
    let stream = w.listen(clients[1]);
    w.close(stream);
    w.advance(10);
    assert!(serves(&mut w, clients[2]) && serves(&mut w, clients[0]));
    let late = plain(&mut w);
    assert_eq!(w.hub.sizes()["links"], 3);
    // What it had subscribed shows which one went.
    let unsubscribed = |(_, open): &&(ExchangeId, Open)| method_of(open) == "resources/unsubscribe";
    let gone: Vec<String> = w.started.iter().filter(unsubscribed).map(|(_, open)| body_of(open)).collect();
    assert!(gone.len() == 1 && gone[0].contains("x:1"), "{gone:?}");
    // Whoever was forgotten comes back without noticing, and makes another go.
    for client in [clients[1], clients[2], late, clients[0]] {
        assert!(serves(&mut w, client));
        assert_eq!(w.hub.sizes()["links"], 3);
    }
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_link_in_use_is_not_forgotten() {
    let mut w = limited(2, 10);
    let (one, two) = (plain(&mut w), plain(&mut w));
    let stream = w.listen(one);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(two);
    let late = w.client();
    w.clients[late].numbers = false;
    w.join(late);
    assert_eq!(w.outcome(late, 1), "overloaded/not_sent");
    assert_eq!(w.hub.sizes()["links"], 2);
    // The one that stopped listening is quiet now.
    w.close(stream);
    let next = plain(&mut w);
    assert!(serves(&mut w, next));
}

/// What a shim has numbered and not acknowledged it may send again: without its link it would run twice.
#[test]
fn a_link_with_open_numbers_is_not_forgotten() {
    let mut w = limited(2, 10);
    let (one, _two) = (w.joined(), w.joined());
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(one);
    w.hang_up(one, call);
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    let late = w.client();
    w.join(late);
    assert_eq!(w.outcome(late, 1), "overloaded/not_sent");
    w.deliver(one, call);
    assert_eq!(w.outcome(one, call), "ok");
    assert_eq!(w.sent("tools/call"), 1);
}

/// A link of a former process is served although there is no room.
#[test]
fn whoever_comes_back_is_served() {
    let mut w = limited(2, 10);
    let clients: Vec<usize> = (0..2).map(|_| w.joined()).collect();
    w.kill(0);
    w.put(Input::Limits(Limits { links: 1, calls_of_link: 10 }));
    for client in clients {
        assert!(serves(&mut w, client));
    }
}

#[test]
fn calls_of_a_link_are_limited_as_the_config_says() {
    let mut w = limited(10, 2);
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let held = w.call(client);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    let third = w.call(client);
    assert_eq!(w.outcome(client, third), "overloaded/not_sent");
    assert!(w.reply(client, held).is_none());
    w.put(Input::Limits(Limits { links: 10, calls_of_link: 3 }));
    assert!(serves(&mut w, client));
}
