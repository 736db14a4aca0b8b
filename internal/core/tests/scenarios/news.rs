//! Whom news concerns, and what is told where something may have been missed.

use evermux_core::input::{Fact, Policy};

use crate::common::{Answer, NAME, World, policy, upstream::*};
use crate::crowd::crowd;

fn changed(mark: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{{"_meta":{{"mark":"{mark}"}}}}}}"#
    )
}

fn count(heard: &[String], what: &str) -> usize {
    heard.iter().filter(|text| text.contains(what)).count()
}

#[test]
fn a_change_told_on_a_calls_stream_concerns_everybody_once() {
    let (mut w, [a, b, c]) = crowd();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(a);
    let post = w.exchange("tools/call");
    w.fact(post, says(&changed("n1")));
    assert_eq!(w.clients[a].sent[&call].progress.len(), 1);
    assert_eq!([a, b, c].map(|client| w.heard(client).len()), [0, 1, 1]);
    // After the answer the stream is nobody's, and its link hears it like the others.
    w.fact(post, says(&result_of(&w.open[&post].clone())));
    w.fact(post, says(&changed("n2")));
    assert_eq!([a, b, c].map(|client| w.heard(client).len()), [1, 1, 1]);
}

#[test]
fn news_of_an_older_handshake_is_no_news() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(a);
    let post = w.exchange("tools/call");
    w.upstream.restart();
    w.advance(10_000);
    w.call(b);
    w.heard(b);
    w.fact(post, says(&changed("n1")));
    assert_eq!((w.clients[a].sent[&call].progress.len(), w.heard(b).len()), (1, 0));
}

#[test]
fn what_is_not_known_goes_to_whoever_hears_that_stream() {
    let (mut w, [a, b, c]) = crowd();
    let vendor = r#"{"jsonrpc":"2.0","method":"notifications/vendor/x"}"#;
    let get = w.exchange("GET");
    w.fact(get, says(vendor));
    assert_eq!([a, b, c].map(|client| w.heard(client).len()), [1, 1, 1]);
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(a);
    let post = w.exchange("tools/call");
    w.fact(post, says(vendor));
    assert_eq!(w.clients[a].sent[&call].progress.len(), 1);
    assert_eq!([a, b, c].map(|client| w.heard(client).len()), [0, 0, 0]);
}

#[test]
fn a_stream_that_goes_on_from_its_position_leaves_no_gap() {
    let (mut w, [a, b, _]) = crowd();
    w.subscribe(a, "x:1");
    let get = w.exchange("GET");
    w.fact(get, Fact::Cursor("s1/0/1".into()));
    for kill in [false, true] {
        w.upstream.rule("GET", Answer::Facts(vec![head()]));
        if kill {
            w.advance(2_000);
            let get = w.exchange("GET");
            w.fact(get, Fact::Cursor("s1/0/2".into()));
            w.kill(9);
            w.listen(a);
            w.listen(b);
        } else {
            w.fact(get, cut());
            w.advance(2_000);
        }
        let get = w.exchange("GET");
        assert!(w.spec(get).last_event_id.is_some());
        assert_eq!([a, b].map(|client| w.heard(client).len()), [0, 0], "{kill}");
    }
}

#[test]
fn a_stream_without_a_position_may_have_missed_everything() {
    for kill in [false, true] {
        let (mut w, [a, b, c]) = crowd();
        w.subscribe(a, "x:1");
        if kill {
            w.kill(9);
            for client in [a, b, c] {
                w.listen(client);
            }
        } else {
            let get = w.exchange("GET");
            w.fact(get, cut());
            w.advance(2_000);
        }
        assert_eq!(w.sent("GET"), 2);
        for (client, updates) in [(a, 1), (b, 0), (c, 0)] {
            let heard = w.heard(client);
            assert_eq!(
                (count(&heard, "tools/list_changed"), count(&heard, "updated"), heard.len()),
                (1, updates, 1 + updates),
                "{kill}: {heard:?}"
            );
        }
    }
}

#[test]
fn a_position_that_the_server_forgot_is_a_gap() {
    let (mut w, [a, ..]) = crowd();
    let get = w.exchange("GET");
    w.fact(get, Fact::Cursor("s1/0/1".into()));
    w.upstream.rule("GET", Answer::Status(400, ""));
    w.fact(get, cut());
    w.advance(10_000);
    assert_eq!(w.sent("GET"), 3);
    assert_eq!(w.spec(w.exchange("GET")).last_event_id, None);
    assert_eq!(count(&w.heard(a), "list_changed"), 1);
}

#[test]
fn a_fresh_session_is_announced_once() {
    let (mut w, [a, b, _]) = crowd();
    w.upstream.restart();
    w.advance(10_000);
    w.call(b);
    assert_eq!(w.sent("GET"), 2);
    assert_eq!([a, b].map(|client| count(&w.heard(client), "list_changed")), [1, 1]);
}

#[test]
fn a_link_that_is_back_late_hears_what_came_meanwhile_and_no_more() {
    let (mut w, [a, b, c]) = crowd();
    let get = w.exchange("GET");
    w.fact(get, Fact::Cursor("s1/0/1".into()));
    w.kill(9);
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    w.listen(a);
    let get = w.exchange("GET");
    w.fact(get, says(&changed("n1")));
    // Here again, but without a stream of its own yet: the next comes with its call.
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(b);
    let post = w.exchange("tools/call");
    w.fact(post, says(&changed("n2")));
    assert_eq!(w.clients[b].sent[&call].progress.len(), 1);
    w.listen(b);
    w.listen(c);
    let marks = |heard: Vec<String>| ["n1", "n2"].map(|mark| count(&heard, mark));
    assert_eq!(marks(w.heard(a)), [1, 1]);
    assert_eq!(marks(w.heard(b)), [1, 0]);
    assert_eq!(marks(w.heard(c)), [1, 1]);
    w.listen(c);
    assert!(w.heard(c).is_empty());
}

const TASKS: &str = r#"{"tools":{},"tasks":{"list":{},"cancel":{}}}"#;

#[test]
fn tasks_are_hidden_in_a_pool() {
    let mut w = World::new();
    w.upstream.capabilities = Some(TASKS);
    w.upstream.offers_stream = true;
    let client = w.joined();
    assert!(w.text(client, 1).contains(r#""capabilities":{"tools":{}},"#), "{}", w.text(client, 1));
    let it = w.ask(client, "tasks/list", "{}");
    assert!(w.text(client, it).contains("-32601"));
    assert_eq!(w.sent("tasks/list"), 0);
    w.listen(client);
    w.call(client);
    let get = w.exchange("GET");
    w.fact(get, says(r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"1"}}"#));
    assert!(w.heard(client).is_empty());
}

#[test]
fn a_client_of_its_own_has_its_tasks() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    w.upstream.capabilities = Some(TASKS);
    w.upstream.offers_stream = true;
    let client = w.joined();
    assert!(w.text(client, 1).contains(TASKS), "{}", w.text(client, 1));
    w.ask(client, "tasks/list", "{}");
    assert_eq!(w.sent("tasks/list"), 1);
    w.listen(client);
    w.call(client);
    let get = w.exchange("GET");
    w.fact(get, says(r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"1"}}"#));
    assert_eq!(w.heard(client).len(), 1);
}
