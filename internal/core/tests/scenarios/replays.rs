//! A cut answer: read on by its event ids where the server has them, told as unknown where it has not.

use std::time::Duration;

use evermux_core::input::Fact;

use crate::common::{Answer, World, method_of, upstream::*};

fn gets(w: &World) -> Vec<Option<String>> {
    let gets = w.started.iter().filter(|(_, open)| method_of(open) == "GET");
    gets.map(|(_, open)| open.spec.last_event_id.clone()).collect()
}

#[test]
fn a_cut_with_a_cursor_is_read_on() {
    for answer in [Answer::CutAfterCursor, Answer::EndAfterCursor] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("tools/call", answer);
        let call = w.call(client);
        w.advance(1_000);
        assert_eq!(w.outcome(client, call), "ok");
        assert_eq!(gets(&w), [Some("s1/2/1".to_owned())]);
        assert_eq!(w.sent("tools/call"), 1);
    }
}

#[test]
fn a_cut_without_a_cursor_is_unknown_at_once() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutInStream);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
    assert_eq!(w.sent("tools/call"), 1);
}

#[test]
fn a_server_that_kept_nothing_is_asked_twice() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    w.auto = false;
    let call = w.call(client);
    w.auto = true;
    w.pump();
    for session in w.upstream.sessions.values_mut() {
        session.kept.clear();
    }
    w.advance(5_000);
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
    assert_eq!(gets(&w).len(), 2);
}

#[test]
fn a_silent_replay_is_asked_again_and_has_an_end() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    for _ in 0..1000 {
        w.upstream.rule("GET", Answer::Facts(vec![head()]));
    }
    let call = w.call(client);
    w.advance(60_000);
    assert_eq!(w.outcome(client, call), "none");
    assert!((4..=7).contains(&gets(&w).len()), "{}", gets(&w).len());
    assert_eq!(w.open.len(), 1, "one stream at a time");
    w.advance(3_600_000);
    assert_eq!(w.outcome(client, call), "upstream_timeout/unknown");
    assert!(w.open.values().all(|open| method_of(open) != "GET"));
}

/// One server's event store replays the events of every stream behind a cursor.
#[test]
fn progress_of_another_call_in_a_replay_comes_on_its_own_stream_only() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    w.upstream.rule("tools/call", Answer::Hold);
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    let calls = clients.map(|client| w.call_with_token(client, "\"mine\""));
    let posted = w.exchange("tools/call");
    let other = w.wire(posted);
    w.advance(1_000);
    let replay = w.exchange("GET");
    let progress = |wire| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{wire},"progress":1}}}}"#
        )
    };
    w.fact(replay, says_at(&progress(other), "b/1"));
    w.fact(replay, says_at(&progress(other - 1), "a/1"));
    w.fact(posted, says_at(&progress(other), "b/1"));
    let shown = |place: usize| w.clients[clients[place]].sent[&calls[place]].progress.len();
    assert_eq!([shown(0), shown(1)], [1, 1]);
}

/// One server's replay begins with the very event whose successors were asked for.
#[test]
fn what_a_replay_repeats_is_not_told_again() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    let call = w.call_with_token(client, "\"mine\"");
    w.advance(1_000);
    let replay = w.exchange("GET");
    let last = w.spec(replay).last_event_id.clone().unwrap();
    let wire = last.split('/').nth(1).unwrap();
    let progress = |progress| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{wire},"progress":{progress}}}}}"#
        )
    };
    w.fact(replay, says_at(&progress(1), &last));
    let shown = |w: &World| w.clients[client].sent[&call].progress.len();
    assert_eq!(shown(&w), 0);
    w.fact(replay, says_at(&progress(2), "s1/later"));
    assert_eq!(shown(&w), 1);
    for _ in 0..1000 {
        w.upstream.rule("GET", Answer::Facts(vec![head(), says_at(&progress(2), "s1/later"), clean()]));
    }
    w.fact(replay, cut());
    w.advance(60_000);
    assert_eq!(shown(&w), 1);
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown", "it has nothing else");
}

#[test]
fn a_server_that_polls_is_followed() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    for at in 0..6 {
        let facts = vec![
            head(),
            Fact::Retry(Duration::from_millis(500)),
            Fact::Cursor(format!("s1/2/{at}")),
            clean(),
        ];
        w.upstream.rule("GET", Answer::Facts(facts));
    }
    let call = w.call(client);
    w.advance(10_000);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn a_replay_in_the_way_of_an_outage_waits_a_little() {
    for obstacle in [Answer::Status(409, ""), Answer::Status(503, ""), Answer::NeverWritten] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("tools/call", Answer::CutAfterCursor);
        for _ in 0..3 {
            w.upstream.rule("GET", obstacle.clone());
        }
        let call = w.call(client);
        w.advance(40_000);
        assert_eq!(w.outcome(client, call), "ok", "{obstacle:?}");
    }
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    for _ in 0..300 {
        w.upstream.rule("GET", Answer::Status(503, ""));
    }
    let call = w.call(client);
    w.advance(60_000);
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
}

#[test]
fn a_replay_is_not_asked_of_the_session_that_came_after() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    w.auto = false;
    let cut = w.call(client);
    let exchange = w.exchange("tools/call");
    w.serve(exchange, Answer::CutAfterCursor);
    w.auto = true;
    w.upstream.restart();
    let other = w.call(client);
    assert_eq!(w.outcome(client, other), "ok");
    w.advance(60_000);
    assert_eq!(w.outcome(client, cut), "outcome_unknown/unknown");
    assert!(gets(&w).is_empty());
}

#[test]
fn after_a_kill_a_call_is_read_on_from_the_clients_position() {
    for sees_event in [true, false] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        w.auto = false;
        let exchange = w.exchange("tools/call");
        w.fact(exchange, head());
        w.fact(exchange, Fact::Cursor("s1/2/1".into()));
        if sees_event {
            w.fact(exchange, Fact::Cursor("s1/2/7".into()));
        }
        w.kill(9);
        w.auto = true;
        w.come_back();
        assert_eq!(w.outcome(client, call), "ok");
        let from = if sees_event { "s1/2/7" } else { "s1/2/1" };
        assert_eq!(gets(&w), [Some(from.to_owned())]);
        assert_eq!((w.sent("tools/call"), w.sent("initialize")), (1, 1));
    }
}

#[test]
fn after_a_kill_a_call_without_a_position_is_unknown_and_a_read_is_sent_again() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    w.upstream.rule("resources/read", Answer::Hold);
    let (call, read) = (w.call(client), w.read(client));
    w.kill(9);
    assert_eq!(w.session().unresolved_operations, 2);
    w.come_back();
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
    assert_eq!(w.outcome(client, read), "ok");
    assert_eq!((w.sent("tools/call"), w.sent("resources/read")), (1, 2));
}

#[test]
fn after_a_kill_what_was_never_sent_is_sent() {
    let mut w = World::new();
    let client = w.joined();
    w.kill(9);
    w.auto = false;
    let call = w.call(client);
    assert_eq!(w.sent("tools/call"), 0);
    w.kill(9);
    w.auto = true;
    w.come_back();
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn a_replay_after_two_kills_starts_from_the_journal_of_the_first() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    w.fact(exchange, head());
    w.fact(exchange, Fact::Cursor("s1/2/1".into()));
    for _ in 0..3 {
        w.upstream.rule("GET", Answer::Facts(vec![]));
        w.kill(9);
        w.come_back();
    }
    w.kill(9);
    w.come_back();
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn a_client_that_does_not_number_comes_back_by_get() {
    let mut w = World::new();
    let client = w.joined();
    w.clients[client].numbers = false;
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    w.fact(exchange, head());
    w.fact(exchange, Fact::Cursor("s1/2/1".into()));
    w.hang_up(client, call);
    let after = w.clients[client].sent[&call].last_event.clone();
    w.listen_after(client, after.clone());
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says_at(&text, "s1/2/2"));
    assert_eq!(w.outcome(client, call), "ok");

    let other = w.joined();
    let stream = w.stream(other, 0);
    let from = evermux_core::input::Sender::Link(w.clients[other].link.clone().unwrap());
    w.responses.get_mut(&stream).unwrap().listening = true;
    let upstream = crate::common::NAME.into();
    w.put(evermux_core::input::Input::Listening {
        stream,
        upstream,
        from,
        delivery: evermux_core::input::Delivery { after: after.map(Box::new), ..Default::default() },
    });
    assert_eq!(w.responses[&stream].refused, Some(404), "another link's event id");
}

#[test]
fn a_journalled_call_proves_that_initialized_was_answered() {
    let mut w = World::new();
    w.auto = false;
    let client = w.client();
    w.join(client);
    w.serve(w.exchange("initialize"), Answer::Model);
    let (ticket, ok) = w.disk.force().expect("the record");
    w.put(evermux_core::input::Input::Persisted { ticket, ok });
    w.serve(w.exchange("notifications/initialized"), Answer::Model);
    let call = w.call(client);
    w.serve(w.exchange("tools/call"), Answer::CutAfterCursor);
    // The write that says so is lost with the process.
    w.kill(0);
    w.auto = true;
    w.come_back();
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("notifications/initialized"), w.sent("GET")), (1, 1));
}

#[test]
fn a_server_that_wants_no_pause_gets_one() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    for at in 0..1000 {
        let facts = vec![head(), Fact::Retry(Duration::ZERO), Fact::Cursor(format!("s1/2/{at}")), clean()];
        w.upstream.rule("GET", Answer::Facts(facts));
    }
    w.call(client);
    w.advance(2_000);
    assert!((15..=20).contains(&gets(&w).len()), "{} in two seconds", gets(&w).len());
}

/// The stream of a call ends as a polling server ends it (2025-11-25, "Sending Messages to the Server", 6).
fn polled(w: &mut World, client: usize, retry: u64) -> u64 {
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let posted = w.exchange("tools/call");
    let cursor = Fact::Cursor(format!("s1/{}/1", w.wire(posted)));
    for fact in [head(), cursor, Fact::Retry(Duration::from_millis(retry)), clean()] {
        w.fact(posted, fact);
    }
    call
}

#[test]
fn a_server_is_not_asked_before_the_time_it_named() {
    for retry in [150, 500, 5_000, 45_000, 600_000] {
        let mut w = World::new();
        let client = w.joined();
        let call = polled(&mut w, client, retry);
        w.advance(retry - 1);
        assert_eq!(gets(&w).len(), 0, "{retry}");
        w.advance(1);
        assert_eq!((gets(&w).len(), w.outcome(client, call)), (1, "ok".to_owned()), "{retry}");
    }
}

/// An event stream's reconnection time stays until another one is named, over connections (WHATWG, 9.2).
#[test]
fn the_time_that_a_server_named_counts_for_the_next_connections_too() {
    for again in [Answer::Facts(vec![head(), clean()]), Answer::Status(503, ""), Answer::NeverWritten] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("GET", again.clone());
        let call = polled(&mut w, client, 5_000);
        w.advance(9_999);
        assert_eq!((gets(&w).len(), w.outcome(client, call)), (1, "none".to_owned()), "{again:?}");
        w.advance(1);
        assert_eq!((gets(&w).len(), w.outcome(client, call)), (2, "ok".to_owned()), "{again:?}");
    }
}

/// An event may carry several messages (2025-03-26): the second one is no repetition of the first.
#[test]
fn all_messages_of_a_replayed_event_are_told() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::CutAfterCursor);
    w.upstream.rule("GET", Answer::Facts(vec![head()]));
    let call = w.call_with_token(client, "\"mine\"");
    w.advance(1_000);
    let replay = w.exchange("GET");
    let last = w.spec(replay).last_event_id.clone().unwrap();
    let wire = last.split('/').nth(1).unwrap();
    for progress in [1, 2] {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{wire},"progress":{progress}}}}}"#
        );
        w.fact(replay, says_at(&text, "s1/later"));
    }
    assert_eq!(w.clients[client].sent[&call].progress.len(), 2);
}
