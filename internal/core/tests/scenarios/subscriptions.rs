//! Subscriptions are counted by URI and link, and outlive sessions and processes.

use crate::common::{Answer, World, method_of, upstream::*};
use crate::crowd::crowd;

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

fn updated(uri: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#)
}

fn subscribed(w: &World) -> Vec<&str> {
    w.server().subscribed.iter().map(String::as_str).collect()
}

#[test]
fn the_server_sees_the_first_subscriber_and_the_last_leave() {
    let (mut w, [a, b, c]) = crowd();
    for client in [a, b, b] {
        let it = w.subscribe(client, "x:1");
        assert_eq!(w.outcome(client, it), "ok");
    }
    assert_eq!(w.sent(SUBSCRIBE), 1);
    // Not a subscriber: it must not end the others' subscription.
    let it = w.unsubscribe(c, "x:1");
    assert_eq!((w.outcome(c, it), w.sent(UNSUBSCRIBE)), ("ok".into(), 0));
    w.unsubscribe(a, "x:1");
    assert_eq!((w.sent(UNSUBSCRIBE), subscribed(&w)), (0, vec!["x:1"]));
    w.unsubscribe(b, "x:1");
    assert_eq!((w.sent(UNSUBSCRIBE), subscribed(&w)), (1, vec![]));
    w.subscribe(a, "x:1");
    assert_eq!((w.sent(SUBSCRIBE), subscribed(&w)), (2, vec!["x:1"]));
}

#[test]
fn racing_subscribers_share_one_request_and_its_end() {
    let (mut w, [a, b, c]) = crowd();
    w.upstream.rule(SUBSCRIBE, Answer::Hold);
    let all = [a, b, c].map(|client| (client, w.subscribe(client, "x:1")));
    assert_eq!(w.sent(SUBSCRIBE), 1);
    let post = w.exchange(SUBSCRIBE);
    let error =
        format!(r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32002,"message":"none"}}}}"#, w.wire(post));
    w.fact(post, head());
    w.fact(post, says(&error));
    for (client, it) in all {
        assert!(w.text(client, it).contains("-32002"), "errors pass to all");
    }
    // And count nothing.
    let get = w.exchange("GET");
    w.fact(get, says(&updated("x:1")));
    assert!([a, b, c].iter().all(|client| w.heard(*client).is_empty()));
    w.subscribe(a, "x:1");
    assert_eq!(w.sent(SUBSCRIBE), 2);
}

#[test]
fn a_subscribe_never_overtakes_the_unsubscribe_before_it() {
    let (mut w, [a, b, _]) = crowd();
    w.subscribe(a, "x:1");
    w.upstream.rule(UNSUBSCRIBE, Answer::Hold);
    w.unsubscribe(a, "x:1");
    let again = w.subscribe(b, "x:1");
    assert_eq!((w.sent(UNSUBSCRIBE), w.sent(SUBSCRIBE)), (1, 1));
    let post = w.exchange(UNSUBSCRIBE);
    w.serve(post, Answer::Facts(vec![head(), says(&result_of(&w.open[&post].clone())), clean()]));
    assert_eq!((w.sent(SUBSCRIBE), w.outcome(b, again)), (2, "ok".into()));
    assert_eq!(subscribed(&w), ["x:1"]);
}

#[test]
fn an_update_goes_to_those_that_subscribed() {
    let (mut w, [a, b, c]) = crowd();
    w.subscribe(a, "x:dir");
    w.subscribe(b, "x:dir/part");
    let get = w.exchange("GET");
    let heard = |w: &mut World, uri: &str| {
        w.fact(get, says(&updated(uri)));
        [a, b, c].map(|client| w.heard(client).len())
    };
    assert_eq!(heard(&mut w, "x:dir/part"), [0, 1, 0], "the very one");
    assert_eq!(heard(&mut w, "x:dir/other"), [1, 0, 0], "a part of it");
    assert_eq!(heard(&mut w, "y:what"), [1, 1, 0], "nobody knows what it means");
}

#[test]
fn an_update_on_a_calls_stream_reaches_its_link_there_and_the_others_elsewhere() {
    let (mut w, [a, b, c]) = crowd();
    w.subscribe(a, "x:1");
    w.subscribe(b, "x:1");
    w.upstream.rule("tools/call", Answer::Hold);
    w.upstream.rule("tools/call", Answer::Hold);
    let mine = w.call(a);
    let post = w.exchange("tools/call");
    let theirs = w.call(c);
    let other = w.exchange("tools/call");
    w.fact(post, says_at(&updated("x:1"), "p/1"));
    assert_eq!(w.clients[a].sent[&mine].progress.len(), 1);
    assert_eq!([a, b, c].map(|client| w.heard(client).len()), [0, 1, 0]);
    w.fact(other, says_at(&updated("x:1"), "q/1"));
    assert!(w.clients[c].sent[&theirs].progress.is_empty(), "not subscribed");
    assert_eq!([a, b, c].map(|client| w.heard(client).len()), [1, 1, 0]);
    let seen = w.clients[c].sent[&theirs].last_event.clone().and_then(|event| event.cursor);
    assert_eq!(seen.as_deref(), Some("q/1"), "the position is passed all the same");
}

#[test]
fn the_end_of_a_link_ends_what_it_alone_wanted() {
    let (mut w, [a, b, _]) = crowd();
    w.subscribe(a, "x:1");
    w.subscribe(a, "x:2");
    w.subscribe(b, "x:2");
    w.end_link(a);
    assert_eq!(subscribed(&w), ["x:2"]);
    assert_eq!(w.sent(UNSUBSCRIBE), 1);
    w.end_link(b);
    assert!(subscribed(&w).is_empty());
}

#[test]
fn a_link_that_is_forgotten_takes_its_subscriptions_along() {
    let mut w = World::new();
    let client = w.joined();
    w.subscribe(client, "x:1");
    w.advance(25 * 3_600_000);
    assert_eq!((w.hub.sizes()["links"], w.sent(UNSUBSCRIBE)), (0, 1));
}

#[test]
fn links_that_do_not_come_back_after_a_kill_are_forgotten_in_time() {
    let mut w = World::new();
    let (gone, back) = (w.joined(), w.joined());
    w.subscribe(gone, "x:1");
    w.subscribe(back, "x:2");
    w.kill(9);
    for _ in 0..30 {
        w.call(back);
        w.advance(3_600_000);
    }
    assert_eq!(subscribed(&w), ["x:2"]);
    let records = w.disk.records();
    assert_eq!(records[0].subscriptions.keys().collect::<Vec<_>>(), ["x:2"]);
}

#[test]
fn a_kill_forgets_no_subscription() {
    let (mut w, [a, b, _]) = crowd();
    w.subscribe(a, "x:1");
    w.kill(9);
    w.listen(b);
    let it = w.subscribe(b, "x:1");
    assert_eq!((w.outcome(b, it), w.sent(SUBSCRIBE)), ("ok".into(), 1));
    w.listen(a);
    w.heard(a);
    let get = w.exchange("GET");
    w.fact(get, says(&updated("x:1")));
    assert_eq!((w.heard(a).len(), w.sent("initialize")), (1, 1));
}

#[test]
fn a_fresh_session_gets_the_old_ones_subscriptions_and_clients_their_updates() {
    let (mut w, [a, b, c]) = crowd();
    w.subscribe(a, "x:1");
    w.subscribe(b, "x:2");
    w.upstream.restart();
    w.advance(10_000);
    let call = w.call(c);
    assert_eq!((w.outcome(c, call), w.sent("initialize")), ("ok".into(), 2));
    assert_eq!(subscribed(&w), ["x:1", "x:2"]);
    for (client, uri) in [(a, Some("x:1")), (b, Some("x:2")), (c, None)] {
        let heard = w.heard(client);
        let lists = heard.iter().filter(|text| text.contains("tools/list_changed")).count();
        let updates: Vec<_> = heard.iter().filter(|text| text.contains("resources/updated")).collect();
        assert_eq!((lists, updates.len()), (1, usize::from(uri.is_some())), "{heard:?}");
        assert!(updates.iter().all(|text| text.contains(uri.unwrap())), "{heard:?}");
    }
}

#[test]
fn a_crowd_of_subscriptions_is_asked_for_a_few_at_a_time() {
    let mut w = World::new();
    let client = w.joined();
    for at in 0..1500 {
        w.subscribe(client, &format!("x:{at}"));
    }
    w.upstream.restart();
    w.advance(10_000);
    w.auto = false;
    w.call(client);
    for _ in 0..5_000 {
        if let Some(exchange) = w.arrived.front().copied() {
            let open = w.open.values().filter(|open| method_of(open) == SUBSCRIBE).count();
            assert!(open <= 4, "{open} at once");
            w.serve(exchange, Answer::Model);
        } else if let Some((ticket, ok)) = w.disk.force() {
            w.put(evermux_core::input::Input::Persisted { ticket, ok });
        } else {
            break;
        }
    }
    assert_eq!(w.server().subscribed.len(), 1500);
}

#[test]
fn what_a_fresh_session_refuses_is_not_counted_any_more() {
    let (mut w, [a, b, _]) = crowd();
    w.subscribe(a, "x:1");
    w.upstream.restart();
    w.advance(10_000);
    let no = Answer::Status(400, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}"#);
    for _ in 0..3 {
        w.upstream.rule(SUBSCRIBE, no.clone());
    }
    w.call(b);
    w.advance(20_000);
    assert_eq!(w.sent(SUBSCRIBE), 4);
    assert_eq!(w.heard(a).iter().filter(|text| text.contains("updated")).count(), 1);
    w.subscribe(b, "x:1");
    assert_eq!((w.sent(SUBSCRIBE), subscribed(&w)), (5, vec!["x:1"]));
}

#[test]
fn a_kill_between_a_fresh_handshake_and_its_subscriptions_loses_none() {
    for writes in 0..6 {
        let (mut w, [a, b, _]) = crowd();
        w.subscribe(a, "x:1");
        w.pump();
        w.upstream.restart();
        w.advance(10_000);
        w.upstream.rule(SUBSCRIBE, Answer::NeverWritten);
        w.call(b);
        w.kill(writes);
        w.call(b);
        w.advance(20_000);
        assert_eq!(subscribed(&w), ["x:1"], "{writes}");
    }
}

#[test]
fn a_subscriber_that_leaves_early_leaves_the_request_to_the_others() {
    let (mut w, [a, b, c]) = crowd();
    w.upstream.rule(SUBSCRIBE, Answer::Hold);
    let first = w.subscribe(a, "x:1");
    let second = w.subscribe(b, "x:1");
    let post = w.exchange(SUBSCRIBE);
    w.cancel(a, first);
    assert_eq!(w.sent("notifications/cancelled"), 0);
    w.end_link(c);
    w.serve(post, Answer::Facts(vec![head(), says(&result_of(&w.open[&post].clone())), clean()]));
    assert_eq!((w.outcome(b, second), w.reply(a, first)), ("ok".into(), None));
    let get = w.exchange("GET");
    w.fact(get, says(&updated("x:1")));
    assert_eq!((w.heard(a).len(), w.heard(b).len()), (0, 1));
}

#[test]
fn a_subscribe_that_nobody_waits_for_any_more_is_taken_back() {
    let (mut w, [a, ..]) = crowd();
    w.upstream.rule(SUBSCRIBE, Answer::Hold);
    w.subscribe(a, "x:1");
    w.end_link(a);
    assert_eq!(w.sent(UNSUBSCRIBE), 1);
    assert!(subscribed(&w).is_empty());
}

#[test]
fn a_subscription_found_in_the_answers_of_a_former_process_counts() {
    let (mut w, [a, ..]) = crowd();
    w.upstream.rule(SUBSCRIBE, Answer::Hold);
    let it = w.subscribe(a, "x:1");
    let post = w.exchange(SUBSCRIBE);
    let wire = w.wire(post);
    w.fact(post, head());
    w.fact(post, evermux_core::input::Fact::Cursor(format!("s1/{wire}/1")));
    w.kill(9);
    w.deliver(a, it);
    w.advance(5_000);
    assert_eq!(w.outcome(a, it), "ok");
    assert_eq!(w.disk.records()[0].subscriptions.len(), 1);
}

/// Whoever was told that it is subscribed is so in the record: a kill right after the answer must not lose it.
#[test]
fn no_answer_overtakes_the_record_that_makes_it_last() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.rule(SUBSCRIBE, Answer::Hold);
    let first = w.subscribe(a, "x:1");
    let post = w.exchange(SUBSCRIBE);
    w.auto = false;
    w.fact(post, head());
    let result = result_of(&w.open[&post].clone());
    w.fact(post, says(&result));
    let second = w.subscribe(b, "x:1");
    assert_eq!((w.outcome(a, first).as_str(), w.outcome(b, second).as_str()), ("none", "none"));
    w.auto = true;
    w.pump();
    assert_eq!((w.outcome(a, first).as_str(), w.outcome(b, second).as_str()), ("ok", "ok"));
    w.kill(0);
    assert_eq!(w.disk.records()[0].subscriptions["x:1"].len(), 2);
}
