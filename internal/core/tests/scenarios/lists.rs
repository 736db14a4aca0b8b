//! Lists: one request for all that ask at once, kept only while a change would be told.

use crate::common::{Answer, World, upstream::*};

const LIST: &str = "tools/list";
const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

fn crowd() -> (World, [usize; 3]) {
    let mut w = World::new();
    w.upstream.list_result = Some(r#"{"tools": [{}] , "x":1.50}"#);
    let clients = [w.joined(), w.joined(), w.joined()];
    (w, clients)
}

/// The same, and a GET stream is open.
fn listening() -> (World, [usize; 3]) {
    let (mut w, clients) = crowd();
    w.upstream.offers_stream = true;
    for client in clients {
        w.listen(client);
    }
    w.call(clients[0]);
    assert_eq!(w.sent("GET"), 1);
    (w, clients)
}

fn answer(w: &mut World) {
    let post = w.exchange(LIST);
    w.serve(post, Answer::Facts(vec![head(), says(&result_of(&w.open[&post].clone())), clean()]));
}

#[test]
fn equal_requests_at_the_same_time_are_one() {
    let (mut w, [a, b, c]) = crowd();
    w.auto = false;
    let plain = w.list(a, LIST);
    let with_meta = w.ask(b, LIST, r#"{"_meta":{"x":1}}"#);
    let page = w.ask(c, LIST, r#"{"cursor":"p"}"#);
    let token = w.ask(c, LIST, r#"{"_meta":{"progressToken":"t"}}"#);
    let other = w.list(c, "prompts/list");
    assert_eq!((w.sent(LIST), w.sent("prompts/list")), (3, 1));
    w.pump();
    for (client, it) in [(a, plain), (b, with_meta), (c, page), (c, token), (c, other)] {
        assert_eq!(w.outcome(client, it), "ok");
    }
    let result = |client, it| w.text(client, it).split_once(r#""result":"#).unwrap().1.to_owned();
    assert_eq!(result(a, plain), r#"{"tools": [1] , "x":1.50}}"#);
    assert_eq!(result(b, with_meta), result(a, plain));
}

#[test]
fn nothing_is_kept_that_could_be_old() {
    // No stream, or no `listChanged` of this kind: asked for each time.
    let (mut w, [a, b, _]) = crowd();
    w.list(a, LIST);
    w.list(b, LIST);
    assert_eq!(w.sent(LIST), 2);
    let (mut w, [a, b, _]) = listening();
    w.list(a, "prompts/list");
    w.list(b, "prompts/list");
    assert_eq!(w.sent("prompts/list"), 2);
}

#[test]
fn a_list_is_kept_until_something_may_have_changed() {
    let (mut w, [a, b, c]) = listening();
    let first = w.list(a, LIST);
    let kept = w.list(b, LIST);
    assert_eq!((w.sent(LIST), w.outcome(b, kept)), (1, "ok".into()));
    assert_eq!(
        w.text(a, first).split_once("result").unwrap().1,
        w.text(b, kept).split_once("result").unwrap().1,
        "P13"
    );
    let get = w.exchange("GET");
    w.fact(get, says(r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#));
    w.list(c, LIST);
    assert_eq!(w.sent(LIST), 1, "another kind");
    w.fact(get, says(CHANGED));
    w.list(c, LIST);
    assert_eq!(w.sent(LIST), 2);
    // On a call's stream as well.
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(a);
    let post = w.exchange("tools/call");
    w.fact(post, says(CHANGED));
    w.list(b, LIST);
    assert_eq!(w.sent(LIST), 3);
    // The stream is gone: nobody would tell.
    w.upstream.rule("GET", Answer::Hold);
    w.fact(get, cut());
    w.list(a, LIST);
    w.list(b, LIST);
    assert_eq!(w.sent(LIST), 5);
}

#[test]
fn both_lists_of_resources_change_with_one_word() {
    let (mut w, [a, ..]) = crowd();
    w.upstream.offers_stream = true;
    w.upstream.capabilities = Some(r#"{"resources":{"listChanged":true}}"#);
    w.listen(a);
    w.call(a);
    w.upstream.restart();
    w.advance(10_000);
    w.call(a);
    let lists = ["resources/list", "resources/templates/list"];
    for _ in 0..2 {
        for method in lists {
            w.list(a, method);
        }
    }
    assert_eq!(lists.map(|method| w.sent(method)), [1, 1]);
    let get = w.exchange("GET");
    w.fact(get, says(r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#));
    for method in lists {
        w.list(a, method);
    }
    assert_eq!(lists.map(|method| w.sent(method)), [2, 2]);
}

#[test]
fn who_asks_after_a_change_gets_nothing_from_before() {
    let (mut w, [a, b, c]) = listening();
    w.upstream.rule(LIST, Answer::Hold);
    let old = w.list(a, LIST);
    let early = w.exchange(LIST);
    let get = w.exchange("GET");
    w.fact(get, says(CHANGED));
    let new = w.list(b, LIST);
    assert_eq!((w.sent(LIST), w.outcome(b, new)), (2, "ok".into()));
    w.serve(early, Answer::Facts(vec![head(), says(&result_of(&w.open[&early].clone())), clean()]));
    assert_eq!(w.outcome(a, old), "ok");
    w.list(c, LIST);
    assert_eq!(w.sent(LIST), 2, "the new one is kept, not the one under way");
    assert!(w.text(b, new).contains("[2]"));
}

#[test]
fn a_loss_drops_what_was_kept() {
    let (mut w, [a, b, _]) = listening();
    w.list(a, LIST);
    w.upstream.restart();
    w.advance(10_000);
    w.call(b);
    assert_eq!(w.sent("initialize"), 2);
    w.list(b, LIST);
    assert_eq!(w.sent(LIST), 2);
}

#[test]
fn one_waiter_that_cancels_costs_the_others_nothing() {
    let (mut w, [a, b, c]) = crowd();
    w.upstream.rule(LIST, Answer::Hold);
    let waits = [a, b, c].map(|client| (client, w.list(client, LIST)));
    let post = w.exchange(LIST);
    w.fact(post, head());
    w.cancel(a, waits[0].1);
    w.cancel(c, waits[2].1);
    w.advance(1_000);
    assert_eq!(w.sent("notifications/cancelled"), 0);
    answer(&mut w);
    assert_eq!(w.outcome(b, waits[1].1), "ok");
    assert_eq!((w.reply(a, waits[0].1), w.reply(c, waits[2].1)), (None, None));
}

#[test]
fn the_last_waiter_to_go_takes_the_request_along() {
    let (mut w, [a, b, c]) = crowd();
    w.upstream.rule(LIST, Answer::Hold);
    let (first, second) = (w.list(a, LIST), w.list(b, LIST));
    let post = w.exchange(LIST);
    let wire = w.wire(post);
    w.fact(post, head());
    w.cancel(a, first);
    w.cancel(b, second);
    let cancels: Vec<String> = w
        .started
        .iter()
        .filter_map(|(_, open)| open.message.as_ref())
        .filter(|message| message.method() == Some("notifications/cancelled"))
        .map(|message| String::from_utf8_lossy(message.params().unwrap()).into_owned())
        .collect();
    assert_eq!(cancels, [format!(r#"{{"requestId":{wire}}}"#)]);
    let new = w.list(c, LIST);
    assert_eq!((w.sent(LIST), w.outcome(c, new)), (2, "ok".into()), "nobody joins a cancelled one");
}

#[test]
fn a_leader_whose_link_ends_leaves_its_request_to_the_next() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.rule(LIST, Answer::Hold);
    w.list(a, LIST);
    let it = w.list(b, LIST);
    w.end_link(a);
    answer(&mut w);
    assert_eq!((w.outcome(b, it), w.sent(LIST)), ("ok".into(), 1));
}

#[test]
fn a_link_that_ends_takes_all_its_waiters_along() {
    let (mut w, [a, b, _]) = crowd();
    for heir in [None, Some(b)] {
        w.upstream.rule(LIST, Answer::Hold);
        w.list(a, LIST);
        w.list(a, LIST);
        let it = heir.map(|heir| w.list(heir, LIST));
        w.end_link(a);
        assert_eq!(w.hub.sizes()["calls"], usize::from(heir.is_some()));
        if let Some(it) = it {
            answer(&mut w);
            assert_eq!(w.outcome(b, it), "ok");
        }
        w.clients[a].link = None;
        w.clients[a].gone = false;
        w.join(a);
    }
}

#[test]
fn a_request_that_changed_hands_is_not_read_by_its_first_client() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.rule(LIST, Answer::Hold);
    let first = w.list(a, LIST);
    w.list(b, LIST);
    let post = w.exchange(LIST);
    let wire = w.wire(post);
    w.fact(post, head());
    w.fact(post, evermux_core::input::Fact::Cursor(format!("s1/{wire}/1")));
    let event = w.clients[a].sent[&first].last_event.clone().expect("an event id");
    w.cancel(a, first);
    let stream = w.listen_after(a, Some(event));
    let told = w.responses[&stream].bodies.clone();
    assert!(told.len() == 1 && told[0].contains("outcome_unknown"), "{told:?}");
    answer(&mut w);
    assert_eq!(w.responses[&stream].bodies, told);
    assert!(w.reply(b, 3).is_some());
}

#[test]
fn a_failure_that_a_read_survives_is_retried_once_for_all() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.rule(LIST, Answer::Hold);
    let (first, second) = (w.list(a, LIST), w.list(b, LIST));
    let post = w.exchange(LIST);
    w.fact(post, cut());
    let late = w.list(a, LIST);
    w.advance(5_000);
    for (client, it) in [(a, first), (b, second), (a, late)] {
        assert_eq!(w.outcome(client, it), "ok");
    }
    assert_eq!(w.sent(LIST), 2);
}

#[test]
fn an_error_passes_to_all_that_waited() {
    let (mut w, [a, b, _]) = crowd();
    for status in [Answer::Status(403, "<html>"), Answer::Status(429, "")] {
        w.upstream.rule(LIST, Answer::Hold);
        let (first, second) = (w.list(a, LIST), w.list(b, LIST));
        let post = w.exchange(LIST);
        w.serve(post, status);
        assert_eq!(w.outcome(a, first), "upstream_unreachable/refused");
        assert_eq!(w.outcome(b, second), "upstream_unreachable/refused");
        w.advance(10_000);
    }
}

#[test]
fn a_method_that_is_never_answered_costs_only_its_callers() {
    let (mut w, [a, b, c]) = crowd();
    w.upstream.rule(LIST, Answer::Hold);
    let stuck = w.list(a, LIST);
    let call = w.call(b);
    assert_eq!(w.outcome(b, call), "ok");
    w.advance(11_000);
    let other = w.list(c, LIST);
    assert_eq!((w.outcome(c, other), w.sent(LIST)), ("ok".into(), 2), "it does not wait for the stuck one");
    w.upstream.rule("vendor/hangs", Answer::Hold);
    let never = w.list(a, "vendor/hangs");
    w.advance(50_000);
    assert_eq!(w.outcome(a, stuck), "upstream_timeout/unknown");
    w.advance(3_600_000);
    assert_eq!(w.outcome(a, never), "none");
    let call = w.call(a);
    assert_eq!((w.outcome(a, call), w.sent("initialize")), ("ok".into(), 1));
}

#[test]
fn a_leader_out_of_time_leaves_the_request_to_those_with_time_left() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.rule(LIST, Answer::Hold);
    let first = w.list(a, LIST);
    w.advance(9_000);
    let second = w.list(b, LIST);
    w.advance(52_000);
    assert_eq!(w.outcome(a, first), "upstream_timeout/unknown");
    assert_eq!((w.outcome(b, second), w.sent("notifications/cancelled")), ("none".into(), 0));
    answer(&mut w);
    assert_eq!((w.outcome(b, second), w.sent(LIST)), ("ok".into(), 1));
}

#[test]
fn waiting_for_a_session_is_shared_as_well() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.restart();
    w.advance(10_000);
    w.auto = false;
    let waits = [a, b].map(|client| (client, w.list(client, LIST)));
    w.pump();
    for (client, it) in waits {
        assert_eq!(w.outcome(client, it), "ok");
    }
    assert_eq!((w.sent("initialize"), w.sent(LIST)), (2, 2));
}

#[test]
fn each_gets_its_own_identity_note() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.restart();
    w.advance(10_000);
    w.call(a);
    w.upstream.rule(LIST, Answer::Hold);
    let (told, due) = (w.list(a, LIST), w.list(b, LIST));
    answer(&mut w);
    assert!(!w.text(a, told).contains("evermux/session"));
    assert!(w.text(b, due).contains("evermux/session"));
}

const PAGED: &str = r#"{"tools":[],"nextCursor":"n{}"}"#;

#[test]
fn a_cursor_is_good_for_its_handshake_only() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.list_result = Some(PAGED);
    w.list(a, LIST);
    let next = w.ask(a, LIST, r#"{"cursor":"n1"}"#);
    assert_eq!(w.outcome(a, next), "ok");
    w.upstream.restart();
    w.advance(10_000);
    w.call(b);
    let sent = w.sent(LIST);
    for cursor in ["n1", "n2"] {
        let old = w.ask(a, LIST, &format!(r#"{{"cursor":"{cursor}"}}"#));
        assert!(w.text(a, old).contains("-32602"), "{}", w.text(a, old));
    }
    assert_eq!(w.sent(LIST), sent);
    let unknown = w.ask(a, LIST, r#"{"cursor":"other"}"#);
    let another = w.ask(b, LIST, r#"{"cursor":"n1"}"#);
    assert_eq!((w.outcome(a, unknown), w.outcome(b, another)), ("ok".into(), "ok".into()));
    assert_eq!(w.sent(LIST), sent + 2, "what it was not given by us is the server's to judge");
}

#[test]
fn a_cursor_is_looked_at_when_it_would_be_sent() {
    let (mut w, [a, ..]) = crowd();
    w.upstream.list_result = Some(PAGED);
    w.list(a, LIST);
    w.upstream.restart();
    w.advance(10_000);
    // It finds out about the loss by itself, and waits for the new session.
    let old = w.ask(a, LIST, r#"{"cursor":"n1"}"#);
    assert!(w.text(a, old).contains("-32602"));
    assert_eq!((w.sent("initialize"), w.sent(LIST)), (2, 2));
    let token = w.ask(a, LIST, r#"{"cursor":"n1","_meta":{"progressToken":1}}"#);
    assert!(w.text(a, token).contains("-32602"));
}

#[test]
fn pages_out_of_what_is_kept_are_remembered_too() {
    let (mut w, [a, b, _]) = listening();
    w.upstream.list_result = Some(PAGED);
    w.list(a, LIST);
    w.list(b, LIST);
    assert_eq!(w.sent(LIST), 1);
    w.upstream.restart();
    w.advance(10_000);
    w.call(a);
    let old = w.ask(b, LIST, r#"{"cursor":"n1"}"#);
    assert!(w.text(b, old).contains("-32602"));
}

/// A server whose cursor never moves on is its client's affair: each page is asked for when a client wants it, and
/// nobody here follows cursors (B44).
#[test]
fn a_cursor_that_does_not_move_on_makes_no_loop() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.list_result = Some(r#"{"tools":[],"nextCursor":"0"}"#);
    w.list(client, "tools/list");
    for asked in 2..=4 {
        let page = w.ask(client, "tools/list", r#"{"cursor":"0"}"#);
        assert!(w.text(client, page).contains(r#""nextCursor":"0""#));
        assert!(w.sent("tools/list") <= asked);
        w.advance(60_000);
        assert!(w.sent("tools/list") <= asked, "asked without a client");
    }
}
