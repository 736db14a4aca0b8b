//! A successor takes over while clients work: nothing is lost, nothing runs twice, no second handshake. The rules of
//! `common` hold over all processes: no id twice, no call sent again that may have run, no record written by two.

use evermux_core::input::{ExchangeId, Fact, Input};

use crate::common::{Answer, Reply, World, method_of, upstream::*};

fn progress(token: u64) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

fn form(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create","params":{{"message":"ok?","requestedSchema":{{}}}}}}"#
    )
}

const LISTS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

fn log(text: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data":"{text}"}}}}"#
    )
}

fn resource(uri: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#)
}

/// The server has done what it was asked.
fn finish(w: &mut World, post: ExchangeId) {
    let answer = result_of(&w.open[&post]);
    w.fact(post, says(&answer));
    w.fact(post, clean());
}

#[test]
fn calls_go_on_before_during_and_after() {
    let mut w = World::new();
    let client = w.joined();
    let before = w.call(client);
    w.prepare();
    let while_preparing = w.call(client);
    w.freeze();
    let while_frozen = w.call(client);
    assert_eq!(w.outcome(client, while_frozen), "none");
    w.commit();
    let after = w.call(client);
    for call in [before, while_preparing, while_frozen, after] {
        assert_eq!(w.outcome(client, call), "ok");
    }
    assert_eq!((w.sent("initialize"), w.sent("ping"), w.sent("tools/call")), (1, 0, 4));
    let session = w.session();
    assert_eq!((session.status.word(), session.handshake.0, session.initializes), ("resumed", 1, 0));
    assert!(session.parent.is_some(), "{session:?}");
}

#[test]
fn a_call_ends_where_it_began() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call_with_token(client, "7");
    let post = w.exchange("tools/call");
    w.fact(post, head());
    w.take_over();
    assert_eq!(w.session().in_flight, 1, "it is known to run elsewhere");
    let wire = w.wire(post);
    w.fact(post, says(&progress(wire)));
    finish(&mut w, post);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.clients[client].sent[&call].progress.len(), 1);
    assert_eq!((w.session().in_flight, w.sent("tools/call")), (0, 1));
}

#[test]
fn a_successor_that_is_given_up_leaves_no_trace() {
    for frozen in [false, true] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("tools/call", Answer::Hold);
        let running = w.call(client);
        let post = w.exchange("tools/call");
        w.prepare();
        if frozen {
            w.freeze();
        }
        let meanwhile = w.call(client);
        finish(&mut w, post);
        w.put(Input::Resume);
        w.pump();
        assert_eq!((w.outcome(client, running), w.outcome(client, meanwhile)), ("ok".into(), "ok".into()));
        // Ids that were granted are burned, and the next block is one of its own.
        for _ in 0..2000 {
            w.call(client);
        }
        w.take_over();
        let last = w.call(client);
        assert_eq!(w.outcome(client, last), "ok");
        assert_eq!(w.sent("initialize"), 1);
    }
}

#[test]
fn a_handshake_is_waited_for_and_none_begins() {
    let mut w = World::new();
    let client = w.client();
    w.auto = false;
    w.join_slowly(client);
    w.prepare();
    assert!(!w.prepared, "a handshake is under way");
    w.auto = true;
    w.pump();
    assert!(w.prepared);
    w.freeze();
    w.commit();
    let call = w.call(client);
    assert_eq!((w.outcome(client, call), w.sent("initialize")), ("ok".into(), 1));

    let mut w = World::new();
    w.prepare();
    let client = w.client();
    w.join_slowly(client);
    assert_eq!(w.sent("initialize"), 0, "it waits for the successor");
    w.freeze();
    w.commit();
    w.pump();
    assert_eq!(w.sent("initialize"), 1);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn late_requests_on_old_connections_are_the_successors() {
    let mut w = World::new();
    let client = w.joined();
    w.take_over();
    w.via = Some(1);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    let newcomer = w.joined();
    let other = w.call(newcomer);
    assert_eq!(w.outcome(newcomer, other), "ok");
    assert_eq!(w.sent("initialize"), 1);
    let (exchange, _) = w.started.last().unwrap();
    assert_eq!(exchange.0 >> 32, 2, "sent by the successor");
    // A link that ends there is gone in both.
    w.end_link(client);
    w.via = None;
    let gone = w.call(client);
    assert_eq!(w.outcome(client, gone), "session_lost/refused");
}

#[test]
fn a_call_that_is_not_processed_is_sent_by_the_successor_with_one_recovery() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined(), w.joined()];
    let mut posts = Vec::new();
    let calls = clients.map(|client| {
        w.upstream.rule("tools/call", Answer::Facts(Vec::new()));
        let call = w.call(client);
        posts.push(w.exchange("tools/call"));
        call
    });
    w.take_over();
    // The upstream forgets the session in the middle of the drain.
    w.upstream.sessions.clear();
    for post in posts {
        w.fact(post, refused(404, LOST));
    }
    w.pump();
    for (client, call) in clients.into_iter().zip(calls) {
        assert_eq!(w.outcome(client, call), "ok");
    }
    assert_eq!(w.sent("initialize"), 2);
    assert_eq!(w.upstream.effects.values().sum::<u32>(), 3, "each ran once");
}

#[test]
fn a_call_that_never_left_is_sent_by_the_successor() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Facts(Vec::new()));
    let call = w.call(client);
    let post = w.exchange("tools/call");
    w.take_over();
    w.fact(post, never());
    w.advance(1_000);
    assert_eq!(w.outcome(client, call), "ok");
    let (exchange, _) = w.started.last().unwrap();
    assert_eq!(exchange.0 >> 32, 2);
}

#[test]
fn a_repeated_number_finds_its_call_in_the_process_that_has_it() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let post = w.exchange("tools/call");
    w.take_over();
    w.hang_up(client, call);
    w.again(client, call);
    finish(&mut w, post);
    assert_eq!((w.outcome(client, call), w.sent("tools/call")), ("ok".into(), 1));
    // And its answer, when the first one was lost.
    w.clients[client].sent.get_mut(&call).unwrap().reply = None;
    w.again(client, call);
    assert_eq!((w.outcome(client, call), w.sent("tools/call")), ("ok".into(), 1));
}

#[test]
fn a_process_that_dies_while_it_drains_leaves_its_calls_as_after_a_kill() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let lost = w.call(client);
    w.upstream.rule("tools/call", Answer::Hold);
    let kept = w.call(client);
    let post = w.exchange("tools/call");
    w.take_over();
    w.fact(post, head());
    w.fact(post, Fact::Cursor("s1/9/1".into()));
    w.depart(1);
    w.again(client, lost);
    assert_eq!(w.outcome(client, lost), "outcome_unknown/unknown");
    w.again(client, kept);
    let gets = w.started.iter().filter(|(_, open)| method_of(open) == "GET").count();
    assert_eq!((gets, w.sent("tools/call")), (1, 2), "looked for, not sent again");
}

#[test]
fn a_cancel_goes_to_the_process_that_has_the_call() {
    for old_connection in [false, true] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let post = w.exchange("tools/call");
        w.fact(post, head());
        w.take_over();
        w.via = old_connection.then_some(1);
        w.cancel(client, call);
        assert_eq!(w.sent("notifications/cancelled"), 1, "once");
    }
}

#[test]
fn a_question_is_answered_through_whichever_process() {
    for old_connection in [false, true] {
        let mut w = World::new();
        let client = w.able(r#"{"elicitation":{}}"#);
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let post = w.exchange("tools/call");
        w.fact(post, head());
        w.fact(post, says(&form(70)));
        w.take_over();
        w.fact(post, says(&form(71)));
        w.via = old_connection.then_some(1);
        for at in 0..2 {
            let id = w.clients[client].asked[at].clone();
            w.answer(client, &id);
        }
        let replies = w.replies();
        assert_eq!(replies.len(), 2, "{replies:?}");
        assert!(replies[0].contains(r#""id":70"#) && replies[1].contains(r#""id":71"#), "{replies:?}");
        finish(&mut w, post);
        assert_eq!(w.outcome(client, call), "ok");
    }
}

#[test]
fn a_question_on_the_get_stream_counts_the_calls_of_all_processes() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let clients = [w.able(r#"{"elicitation":{}}"#), w.able(r#"{"elicitation":{}}"#)];
    w.listen(clients[0]);
    w.listen(clients[1]);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[0]);
    let old = w.exchange("tools/call");
    w.fact(old, head());
    w.take_over();
    for client in clients {
        w.listen(client);
    }
    w.advance(6_000);
    let stream = w.exchange("GET");
    assert_eq!(stream.0 >> 32, 2);
    w.fact(stream, says(&form(80)));
    assert_eq!(w.clients[clients[0]].asked.len(), 1, "the only call is its");
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[1]);
    w.fact(stream, says(&form(81)));
    assert_eq!((w.clients[clients[0]].asked.len(), w.clients[clients[1]].asked.len()), (1, 0), "unclear");
}

/// The successor's stream is behind when the old process tells of the end of a call: its question may come yet.
#[test]
fn a_question_of_a_call_that_ended_in_the_old_process_is_not_anothers() {
    let mut w = World::new();
    let (clients, old) = apart(&mut w);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[1]);
    let answer = result_of(&w.open[&old].clone());
    w.fact(old, says(&answer));
    let stream = w.exchange("GET");
    assert_eq!(stream.0 >> 32, 2);
    w.fact(stream, says(&form(90)));
    assert!(w.clients[clients[1]].asked.is_empty(), "it may be of the other's call");
    // What is asked once the stream has caught up is of a call that runs.
    w.advance(6_000);
    w.fact(stream, says(&form(91)));
    assert_eq!(w.clients[clients[1]].asked.len(), 1);
}

/// Two clients: a call of the first one in the old process, and the second one's stream in the new one.
fn apart(w: &mut World) -> ([usize; 2], ExchangeId) {
    w.upstream.offers_stream = true;
    let clients = [w.able(r#"{"elicitation":{}}"#), w.able(r#"{"elicitation":{}}"#)];
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[0]);
    let old = w.exchange("tools/call");
    w.fact(old, head());
    w.listen(clients[1]);
    w.take_over();
    w.listen(clients[1]);
    (clients, old)
}

/// Two clients, the first one's call in the old process, the second one's in the new one, whose GET stream is live; what
/// becomes of the first call, and who is asked then.
fn asked_after(w: &mut World, end: impl FnOnce(&mut World, ExchangeId)) -> [usize; 2] {
    let (clients, old) = apart(w);
    w.advance(6_000);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[1]);
    end(w, old);
    w.run_errands();
    let stream = w.exchange("GET");
    assert_eq!(stream.0 >> 32, 2);
    w.fact(stream, says(&form(95)));
    clients.map(|client| w.clients[client].asked.len())
}

/// As for calls of the own process whose clients were told that nobody knows.
#[test]
fn a_call_that_ended_without_an_answer_in_the_old_process_may_still_ask() {
    assert_eq!(asked_after(&mut World::new(), finish), [0, 1], "it has its answer");
    let unheard = |w: &mut World, old| w.fact(old, cut());
    assert_eq!(asked_after(&mut World::new(), unheard), [0, 0], "cut");
    let gone = |w: &mut World, _| w.end_link(0);
    assert_eq!(asked_after(&mut World::new(), gone), [0, 0], "its client has left");
    let cancelled = |w: &mut World, old| {
        w.cancel(0, *w.clients[0].sent.keys().last().unwrap());
        w.fact(old, clean());
    };
    assert_eq!(asked_after(&mut World::new(), cancelled), [0, 1], "its client wants no more of it");
    // For an hour.
    let mut w = World::new();
    assert_eq!(asked_after(&mut w, unheard), [0, 0]);
    w.advance(3_600_000);
    let stream = w.exchange("GET");
    w.fact(stream, says(&form(96)));
    assert_eq!(w.clients[1].asked.len(), 1);
}

/// Its last word was lost with it.
#[test]
fn a_call_of_which_its_process_said_nothing_any_more_may_still_ask() {
    let end = |w: &mut World, old| {
        w.cut_off = true;
        w.fact(old, cut());
        w.depart(1);
        w.cut_off = false;
    };
    assert_eq!(asked_after(&mut World::new(), end), [0, 0]);
}

/// It does not know which calls its successor has sent meanwhile.
#[test]
fn a_process_that_drains_asks_nobody_what_came_on_no_calls_stream() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.able(r#"{"elicitation":{}}"#);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    let call = w.exchange("tools/call");
    w.fact(call, head());
    w.listen(client);
    let stream = w.exchange("GET");
    w.cut_off = true;
    w.take_over();
    w.fact(stream, says(&form(97)));
    assert!(w.clients[client].asked.is_empty());
    // On its call's stream it is the client's for sure.
    w.fact(call, says(&form(98)));
    assert_eq!(w.clients[client].asked.len(), 1);
    w.cut_off = false;
    w.run_errands();
}

#[test]
fn news_is_heard_once_whichever_process_reads_it() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    let stream = w.exchange("GET");
    w.fact(stream, says_at(&log("1"), "s1/g/1"));
    w.prepare();
    w.freeze();
    w.fact(stream, says_at(&log("2"), "s1/g/2"));
    w.cut_off = true;
    w.commit();
    w.fact(stream, says_at(&log("3"), "s1/g/3"));
    (w.cut_off, w.auto) = (false, false);
    w.run_errands();
    // The successor's own stream goes on behind the last event that was heard, before its client is back.
    let next = w.exchange("GET");
    assert_eq!((next.0 >> 32, w.spec(next).last_event_id.as_deref()), (2, Some("s1/g/3")));
    assert!(!w.open.contains_key(&stream), "break, then make");
    w.fact(next, head());
    w.fact(next, says_at(&log("4"), "s1/g/4"));
    w.fact(next, says_at(&log("4"), "s1/g/5"));
    w.listen(client);
    w.fact(next, says_at(&log("5"), "s1/g/6"));
    let heard = w.heard(client);
    let expected = ["1", "2", "3", "4", "4", "5"].map(log);
    assert_eq!(heard, expected, "all, once, in their order, and nothing made up");
}

#[test]
fn news_on_a_call_that_ends_elsewhere_reaches_who_listens_here() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let clients = [w.joined(), w.joined()];
    for client in clients {
        w.listen(client);
    }
    w.subscribe(clients[0], "x:1");
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[1]);
    let post = w.exchange("tools/call");
    w.fact(post, head());
    w.take_over();
    for client in clients {
        w.listen(client);
        w.heard(client);
    }
    w.fact(post, says(&resource("x:1")));
    w.fact(post, says(LISTS_CHANGED));
    assert_eq!(w.heard(clients[0]), [resource("x:1"), LISTS_CHANGED.to_owned()]);
    assert!(w.heard(clients[1]).is_empty(), "it has heard it on its call");
}

#[test]
fn a_client_that_moved_early_misses_nothing() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    let old = w.listen(client);
    let stream = w.exchange("GET");
    w.cut_off = true;
    w.take_over();
    w.close(old);
    w.listen(client);
    w.fact(stream, says_at(LISTS_CHANGED, "s1/g/1"));
    w.fact(stream, says_at(&log("late"), "s1/g/2"));
    w.cut_off = false;
    w.run_errands();
    assert_eq!(w.heard(client), [LISTS_CHANGED.to_owned(), log("late")]);
}

#[test]
fn a_plain_client_comes_back_to_either_process_by_event_id() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.plain("2025-11-25");
    w.listen(client);
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let post = w.exchange("tools/call");
    w.fact(post, head());
    w.take_over();
    let after = w.last_event(client, call);
    w.hang_up(client, call);
    finish(&mut w, post);
    w.listen_after(client, Some(after));
    assert_eq!(w.outcome(client, call), "ok");
    let next = w.call(client);
    assert_eq!(w.outcome(client, next), "ok");
    assert_eq!(w.sent("tools/call"), 2);
}

#[test]
fn a_plain_listener_that_has_all_is_told_nothing_twice() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.plain("2025-11-25");
    w.listen(client);
    let stream = w.exchange("GET");
    w.fact(stream, says_at(&log("1"), "s1/g/1"));
    let early = w.clients[client].position.clone().unwrap();
    w.fact(stream, says_at(&log("2"), "s1/g/2"));
    w.take_over();
    w.pump();
    let seen = w.clients[client].position.clone().unwrap();
    w.heard(client);
    w.listen_on(client, seen);
    assert!(w.heard(client).is_empty());
    // One that lost the end of its stream is told that there may have been more.
    w.take_over();
    w.pump();
    w.listen_on(client, early);
    let _ = w.heard(client);
}

#[test]
fn chains_of_takeovers_reach_every_process() {
    let mut w = World::new();
    let client = w.joined();
    let mut calls = Vec::new();
    for _ in 0..4 {
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let post = w.exchange("tools/call");
        w.fact(post, head());
        calls.push((call, post));
        w.take_over();
    }
    assert_eq!(w.session().in_flight, 4);
    let (first, _) = calls[0];
    w.cancel(client, first);
    assert_eq!(w.sent("notifications/cancelled"), 1);
    let (second, post) = calls[1];
    w.hang_up(client, second);
    w.again(client, second);
    finish(&mut w, post);
    assert_eq!(w.outcome(client, second), "ok");
    // On a connection of the very first process.
    w.via = Some(1);
    let (third, post) = calls[2];
    w.hang_up(client, third);
    w.again(client, third);
    finish(&mut w, post);
    assert_eq!(w.outcome(client, third), "ok");
    let new = w.call(client);
    assert_eq!(w.outcome(client, new), "ok");
    assert_eq!((w.sent("initialize"), w.sent("tools/call")), (1, 5));
}

#[test]
fn what_former_processes_left_is_handed_on() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let lost = w.call(client);
    w.kill(0);
    w.take_over();
    w.again(client, lost);
    assert_eq!((w.outcome(client, lost), w.sent("tools/call")), ("outcome_unknown/unknown".into(), 1));
}

#[test]
fn a_lost_session_and_one_in_back_off_are_handed_over_as_they_stand() {
    let mut w = World::with(evermux_core::input::Policy {
        never_reinitialize: true,
        ..crate::common::policy(crate::common::NAME)
    });
    let client = w.joined();
    w.upstream.sessions.clear();
    for _ in 0..2 {
        w.call(client);
    }
    w.take_over();
    let call = w.call(client);
    assert_eq!((w.outcome(client, call), w.sent("initialize")), ("session_lost/refused".into(), 1));
}

#[test]
fn what_begins_before_the_decision_begins_after_it() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.prepare();
    let subscribed = w.subscribe(client, "x:1");
    assert_eq!(w.outcome(client, subscribed), "none", "it would change the record");
    w.freeze();
    w.commit();
    w.pump();
    assert_eq!(w.reply(client, subscribed).map(|reply| matches!(reply, Reply::Message(_))), Some(true));
    assert_eq!(w.sent("resources/subscribe"), 1);
    w.take_over();
    let other = w.joined();
    let again = w.subscribe(other, "x:1");
    assert_eq!(w.outcome(other, again), "ok");
    assert_eq!(w.sent("resources/subscribe"), 1, "the successor knows of it");
}
