//! Where evermux's own limits end an exchange: no descriptor for a connection, an answer larger than is taken.

use evermux_core::input::{End, Fact};
use evermux_core::output::Note;

use crate::common::{Answer, World, upstream::*};

const LIMIT: &str = "an event is larger than the limit of 33554432 bytes";

fn too_large() -> Fact {
    Fact::Ended(End::TooLarge(LIMIT.into()))
}

fn starved() -> Answer {
    Answer::Facts(vec![Fact::Ended(End::Exhausted("no file descriptor is left".into()))])
}

/// Every kind of request, and every shape of an answer that is too large: its caller is told the limit, it is not
/// asked again, not looked for by a position, and neither session nor upstream is to blame.
#[test]
fn an_answer_that_is_too_large_is_told_and_never_asked_for_again() {
    let shapes = [
        vec![head(), too_large()],
        vec![head(), Fact::Cursor("s1/1/1".into()), too_large()],
        vec![head(), Fact::Retry(std::time::Duration::from_millis(10)), too_large()],
    ];
    for shape in shapes {
        for method in ["tools/call", "resources/read", "tools/list", "resources/subscribe"] {
            let mut w = World::new();
            let client = w.joined();
            w.call(client);
            w.upstream.rule(method, Answer::Facts(shape.clone()));
            let before = w.started.len();
            let call = match method {
                "tools/call" => w.call(client),
                "resources/read" => w.read(client),
                "tools/list" => w.list(client, method),
                _ => w.subscribe(client, "x:1"),
            };
            w.advance(120_000);
            assert_eq!(w.outcome(client, call), "outcome_unknown/unknown", "{method}");
            let text = w.text(client, call);
            assert!(text.contains(LIMIT), "{text}");
            assert_eq!(
                (w.sent(method) - usize::from(method == "tools/call"), w.sent("GET")),
                (1, 0),
                "{method}"
            );
            // A subscription that may have been made is taken back; nothing else goes out.
            let most = before + 1 + usize::from(method == "resources/subscribe");
            assert!(w.started.len() <= most, "{method}: {:?}", w.started.len() - before);
            let call = w.call(client);
            assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), ("ok", 1), "{method}");
        }
    }
}

#[test]
fn whoever_waits_for_the_same_list_is_told_too() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined(), w.joined()];
    w.auto = false;
    let calls = clients.map(|client| w.list(client, "tools/list"));
    assert_eq!(w.sent("tools/list"), 1);
    let post = w.exchange("tools/list");
    w.serve(post, Answer::Facts(vec![head(), too_large()]));
    w.auto = true;
    w.advance(60_000);
    for (client, call) in clients.iter().zip(calls) {
        assert_eq!(w.outcome(*client, call), "outcome_unknown/unknown");
    }
    assert_eq!(w.sent("tools/list"), 1);
}

#[test]
fn many_answers_that_are_too_large_are_no_outage() {
    let mut w = World::new();
    let client = w.joined();
    for _ in 0..20 {
        w.upstream.rule("tools/call", Answer::Facts(vec![head(), too_large()]));
        w.call(client);
    }
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.sent("tools/call"), w.sent("ping")), ("ok", 21, 0));
}

/// It comes only when the lost stream is read on.
#[test]
fn a_replay_that_is_too_large_ends_the_search() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    w.upstream.rule("GET", Answer::Facts(vec![head(), too_large()]));
    let call = w.call(client);
    w.advance(60_000);
    assert_eq!((w.outcome(client, call).as_str(), w.sent("GET")), ("outcome_unknown/unknown", 1));
    assert!(w.text(client, call).contains(LIMIT));
}

/// A cancelled call has no reader any more.
#[test]
fn a_cancelled_calls_large_answer_is_nobodys() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let post = w.exchange("tools/call");
    w.fact(post, head());
    w.cancel(client, call);
    w.fact(post, too_large());
    assert_eq!(w.outcome(client, call), "none");
    assert!(w.open.is_empty());
}

/// Opened from its position the stream would begin with the same event for ever: that is a gap, and said so.
#[test]
fn a_large_event_on_the_get_stream_is_skipped() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    let get = w.exchange("GET");
    w.fact(get, Fact::Cursor("s1/0/1".into()));
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    w.fact(get, too_large());
    w.advance(3_000);
    assert_eq!((w.sent("GET"), w.sent("initialize"), w.sent("ping")), (2, 1, 0));
    assert_eq!(w.spec(w.exchange("GET")).last_event_id, None);
    let heard = w.heard(client);
    assert!(heard.iter().any(|text| text.contains("list_changed")), "{heard:?}");
    w.kill(9);
    w.listen(client);
    assert_eq!(w.spec(w.exchange("GET")).last_event_id, None, "also in the next process");
}

#[test]
fn a_greeting_that_is_too_large_is_told_and_not_stormed() {
    let mut w = World::new();
    w.upstream.always = Some(Answer::Facts(vec![head(), too_large()]));
    for _ in 0..50 {
        let client = w.client();
        w.join_slowly(client);
        assert_eq!(w.outcome(client, 1), "upstream_unreachable/not_sent");
        assert!(w.sent("initialize") > 1 || w.text(client, 1).contains(LIMIT));
        w.advance(100);
    }
    assert!(w.sent("initialize") <= 5, "{} in five seconds", w.sent("initialize"));
}

#[test]
fn a_call_that_found_no_descriptor_goes_once_more_with_the_same_id() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", starved());
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "none");
    w.advance(1_000);
    assert_eq!((w.outcome(client, call).as_str(), w.sent("tools/call")), ("ok", 2));
    let ids: Vec<_> =
        w.started.iter().rev().take(2).filter_map(|(_, open)| open.message.as_ref()?.id()).collect();
    assert_eq!(ids[0], ids[1]);
}

/// However many calls find none: whose limit it is is said, and the upstream gets no pause for it.
#[test]
fn no_descriptors_are_our_own_fault() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.upstream.always = Some(starved());
    for _ in 0..30 {
        for call in [w.call(client), w.read(client), w.list(client, "tools/list")] {
            w.advance(1_000);
            assert_eq!(w.outcome(client, call), "overloaded/not_sent");
        }
    }
    assert_eq!(w.hub.report().upstreams[0].state.word(), "ready");
    assert!(!w.notes.iter().any(|note| matches!(note, Note::Trouble { .. })));
    w.upstream.always = None;
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.sent("ping")), ("ok", 0));
    assert_eq!((w.sent("initialize"), w.upstream.sessions.len()), (1, 1));
}

/// Nor does the lack of one say anything about a session that was not made yet, or was stored.
#[test]
fn a_handshake_without_a_descriptor_was_not_sent() {
    let mut w = World::new();
    w.upstream.always = Some(starved());
    for _ in 0..20 {
        let client = w.client();
        w.join_slowly(client);
        assert_eq!(w.outcome(client, 1), "overloaded/not_sent");
        w.advance(5_000);
    }
    assert_eq!(w.session().initializes, 0);
    w.upstream.always = None;
    let client = w.joined();
    assert_eq!((w.outcome(client, 1).as_str(), w.upstream.minted), ("ok", 1));
    w.call(client);
    w.kill(9);
    w.upstream.rule("ping", starved());
    let call = w.call(client);
    assert_eq!(
        (w.outcome(client, call).as_str(), w.session().status.word()),
        ("overloaded/not_sent", "dormant")
    );
    w.advance(1_000);
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.session().status.word()), ("ok", "resumed"));
    assert_eq!(w.upstream.minted, 1);
}

/// Searching for a lost answer goes on when there are descriptors again.
#[test]
fn a_replay_without_a_descriptor_waits_a_little() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    w.upstream.rule("GET", starved());
    let call = w.call(client);
    w.advance(10_000);
    assert_eq!((w.outcome(client, call).as_str(), w.sent("GET")), ("ok", 2));
}
