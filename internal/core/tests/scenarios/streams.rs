//! What comes without being asked for: progress, changed lists, questions, and the GET stream itself.

use std::time::Duration;

use evermux_core::input::{Fact, Policy};

use crate::common::{Answer, NAME, World, method_of, policy, upstream::*};

fn progress(token: u64) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

#[test]
fn progress_goes_to_its_owner_and_only_if_asked_for() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    w.auto = false;
    let asked = w.call_with_token(clients[0], "\"mine\"");
    let silent = w.call(clients[1]);
    let posts = [w.arrived[0], w.arrived[1]];
    let wires = posts.map(|post| w.wire(post));
    // On the other call's stream, with that stream's position: the position is worth nothing to the first.
    w.fact(posts[1], Fact::Message { message: message(&progress(wires[0])), cursor: Some("b/1".into()) });
    w.fact(posts[1], says(&progress(wires[1])));
    assert_eq!(w.clients[clients[0]].sent[&asked].progress.len(), 1);
    assert_eq!(w.clients[clients[0]].sent[&asked].last_event, None);
    assert!(w.clients[clients[1]].sent[&silent].progress.is_empty());
    let seen = w.clients[clients[1]].sent[&silent].last_event.clone().and_then(|event| event.cursor);
    assert_eq!(seen.as_deref(), Some("b/1"));
    for post in posts {
        w.serve(post, Answer::Model);
    }
    w.fact(posts[0], says(&progress(wires[0])));
    assert_eq!(w.clients[clients[0]].sent[&asked].progress.len(), 1, "none after the end");
}

#[test]
fn a_ping_of_the_server_is_answered_and_other_questions_are_declined() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    let exchange = w.exchange("tools/call");
    w.auto = false;
    w.fact(exchange, says(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#));
    w.fact(exchange, says(r#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}"#));
    let bodies: Vec<String> = w
        .open
        .values()
        .filter(|open| method_of(open) == "response")
        .map(|open| String::from_utf8(open.message.as_ref().unwrap().bytes().to_vec()).unwrap())
        .collect();
    assert!(bodies[0].contains(r#""id":"p""#) && bodies[0].contains(r#""result":{}"#), "{bodies:?}");
    assert!(bodies[1].contains("-32601") && bodies[1].contains(r#""id":7"#), "{bodies:?}");
}

/// A server without event ids says on the stream what belongs to a call, and says it to nobody while the stream is not there.
#[test]
fn a_session_that_wakes_listens_before_its_calls_go_out() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.kill(usize::MAX);
    w.upstream.rule("ping", Answer::Hold);
    w.call(client);
    w.listen(client);
    let ping = w.exchange("ping");
    w.auto = false;
    w.fact(ping, says(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, w.wire(ping))));
    let order: Vec<_> = w.arrived.iter().map(|exchange| method_of(&w.open[exchange]).to_owned()).collect();
    assert_eq!(order, ["GET", "tools/call"]);
}

#[test]
fn one_get_stream_serves_all_listeners_once_each() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let clients = [w.joined(), w.joined()];
    let streams = clients.map(|client| w.listen(client));
    w.call(clients[0]);
    assert_eq!(w.sent("GET"), 1);
    let get = w.exchange("GET");
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    w.fact(get, says_at(changed, "g/1"));
    w.close(streams[1]);
    w.fact(get, says_at(changed, "g/2"));
    assert_eq!(w.clients[clients[0]].heard.len(), 2);
    assert_eq!(w.clients[clients[1]].heard.len(), 1);
}

#[test]
fn what_changed_while_a_client_had_no_stream_comes_with_its_next_one_once() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let (listener, late) = (w.joined(), w.joined());
    w.listen(listener);
    w.call(listener);
    let get = w.exchange("GET");
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    w.fact(get, says_at(changed, "g/1"));
    w.fact(get, says_at(changed, "g/2"));
    w.fact(get, says(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}"#));
    assert_eq!(w.clients[listener].heard.len(), 3);
    let stream = w.listen(late);
    assert_eq!(w.clients[late].heard.len(), 1, "the change once, and no old log line");
    w.close(stream);
    w.listen(late);
    assert_eq!(w.clients[late].heard.len(), 1);
}

#[test]
fn a_cut_get_stream_is_opened_again_from_its_position() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    let get = w.exchange("GET");
    w.fact(get, Fact::Cursor("s1/0/1".into()));
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    w.fact(get, cut());
    w.advance(2_000);
    assert_eq!(w.sent("GET"), 2);
    assert_eq!(w.spec(w.exchange("GET")).last_event_id.as_deref(), Some("s1/0/1"));
}

/// With "the client MUST respect the `retry` field" (2025-11-25, "Sending Messages to the Server", 6) a jitter may only
/// add; and the field counts until another one comes.
#[test]
fn a_get_stream_is_not_opened_before_the_time_its_server_named() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    for (round, named) in [10_000, 10_000, 10_000, 10_000, 10_000, 600_000].into_iter().enumerate() {
        for named_now in [true, false] {
            let get = w.exchange("GET");
            let retry = named_now.then_some(Fact::Retry(Duration::from_millis(named)));
            w.upstream.rule("GET", Answer::Facts(vec![head()]));
            for fact in retry.into_iter().chain([Fact::Cursor("s1/0/1".into()), clean()]) {
                w.fact(get, fact);
            }
            let before = w.sent("GET");
            w.advance(named - 1);
            assert_eq!(w.sent("GET"), before, "{round}, {named_now}");
            w.advance(named / 4 + 2);
            assert_eq!(w.sent("GET"), before + 1, "{round}, {named_now}");
        }
    }
}

/// One server's replay begins with the very event whose successors were asked for.
#[test]
fn what_a_get_stream_repeats_is_not_told_again() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    let said = |level: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}"}}}}"#)
    };
    let get = w.exchange("GET");
    w.fact(get, says_at(&said("info"), "s1/0/1"));
    // The two of one event (a 2025-03-26 batch) have one position, and are no repetition.
    w.fact(get, says_at(&said("error"), "s1/0/2"));
    w.fact(get, says_at(&said("alert"), "s1/0/2"));
    assert_eq!(w.heard(client).len(), 3);
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    w.fact(get, cut());
    w.advance(2_000);
    let get = w.exchange("GET");
    assert_eq!(w.spec(get).last_event_id.as_deref(), Some("s1/0/2"));
    for (level, at) in [("error", "s1/0/2"), ("alert", "s1/0/2"), ("debug", "s1/0/3")] {
        w.fact(get, says_at(&said(level), at));
    }
    assert_eq!(w.heard(client), [said("debug")]);
    // The one that has the position from the record cannot know who heard it.
    w.kill(9);
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    w.listen(client);
    let get = w.exchange("GET");
    let at = w.spec(get).last_event_id.clone().unwrap();
    for level in ["error", "alert"] {
        w.fact(get, says_at(&said(level), &at));
    }
    assert_eq!(w.heard(client).len(), 2);
}

#[test]
fn a_get_stream_that_ends_at_once_is_asked_for_less_and_less() {
    let mut w = World::new();
    for _ in 0..1000 {
        w.upstream.rule("GET", Answer::Facts(vec![head(), clean()]));
    }
    let client = w.joined();
    w.listen(client);
    w.call(client);
    w.advance(600_000);
    assert!(w.sent("GET") <= 16, "{} in ten minutes", w.sent("GET"));
}

#[test]
fn a_server_without_a_get_stream_is_not_asked_again_and_nothing_else_suffers() {
    for (status, remembered) in [(405, true), (404, false), (400, false)] {
        let mut w = World::new();
        w.upstream.rule("GET", Answer::Status(status, LOST));
        let client = w.joined();
        w.listen(client);
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        w.advance(600_000);
        assert_eq!((w.sent("GET"), w.sent("initialize")), (1, 1));
        w.upstream.rule("GET", Answer::Status(status, LOST));
        w.kill(9);
        w.listen(client);
        w.call(client);
        assert_eq!(w.sent("GET") == 1, remembered, "{status}");
    }
}

#[test]
fn a_stream_still_booked_is_waited_for() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    w.upstream.rule("GET", Answer::Status(409, ""));
    let client = w.joined();
    w.listen(client);
    w.call(client);
    w.advance(5_000);
    assert_eq!(w.sent("GET"), 2);
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_listener_wakes_a_stored_session_that_has_a_stream() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    w.kill(9);
    w.listen(client);
    assert_eq!(w.session().status.word(), "resumed");
    assert_eq!((w.sent("initialize"), w.sent("GET")), (1, 2));
}

/// The kill came before the record could say so.
#[test]
fn a_listener_wakes_a_stored_session_that_may_have_a_stream() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.call(client);
    w.disk.stuck = true;
    w.listen(client);
    w.kill(0);
    w.disk.stuck = false;
    w.listen(client);
    assert_eq!(w.session().status.word(), "resumed");
    assert_eq!((w.sent("initialize"), w.sent("GET")), (1, 2));
}

#[test]
fn a_chatty_stream_does_not_write_a_record_for_each_event() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    let (get, before) = (w.exchange("GET"), w.disk.writes);
    for at in 0..500 {
        w.fact(get, Fact::Cursor(format!("s1/0/{at}")));
        w.advance(10);
    }
    assert!(w.disk.writes - before <= 7, "{}", w.disk.writes - before);
}

fn kept_alive() -> Policy {
    Policy { keepalive: Some(Duration::from_secs(120)), idle: Duration::from_secs(1800), ..policy(NAME) }
}

#[test]
fn a_quiet_session_is_pinged_while_somebody_was_here_lately() {
    let mut w = World::with(kept_alive());
    let client = w.joined();
    w.call(client);
    w.advance(1_700_000);
    let pings = w.sent("ping");
    assert!((12..=15).contains(&pings), "{pings}");
    w.advance(7_200_000);
    assert!(w.sent("ping") <= pings + 2, "abandoned sessions sleep");
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn an_unanswered_keepalive_costs_nothing() {
    let mut w = World::with(kept_alive());
    let client = w.joined();
    w.upstream.rule("ping", Answer::Hold);
    w.upstream.rule("ping", Answer::Status(503, ""));
    w.upstream.rule("ping", Answer::CutBefore);
    w.advance(600_000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_link_is_not_remembered_for_the_sake_of_an_older_one() {
    let mut w = World::new();
    // A shim's link is remembered for a day, and the sweep must not wait for that.
    let shim = w.joined();
    w.call(shim);
    w.advance(3600 * 1000);
    let visitor = w.client();
    w.clients[visitor].numbers = false;
    w.join(visitor);
    w.call(visitor);
    assert_eq!(w.hub.sizes()["links"], 2);
    w.advance(2 * 1800 * 1000 + 1000);
    assert_eq!(w.hub.sizes()["links"], 1);
}

#[test]
fn links_that_nobody_hears_of_are_forgotten() {
    let mut w = World::new();
    for _ in 0..20 {
        let client = w.joined();
        w.clients[client].numbers = false;
        w.call(client);
    }
    assert_eq!(w.hub.sizes()["links"], 20);
    let listening = w.joined();
    w.listen(listening);
    // Those that numbered a message may repeat it for a day.
    w.advance(90_000_000);
    assert_eq!(w.hub.sizes()["links"], 1);
}
