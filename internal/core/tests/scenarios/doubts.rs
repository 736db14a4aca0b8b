//! Questions that a replay brings, of servers that replay one stream and of those that replay all: nobody is shown another's, and
//! nothing on a screen is declined.

use evermux_core::input::{ExchangeId, Fact, Input, Policy};

use crate::asks::{ABLE, Setting, form, last_of, reply_to, setting};
use crate::common::{Answer, NAME, World, policy, upstream::*};

/// Longer than all pauses together for which a question is left.
const LONG: u64 = 4000;

/// Calls of `clients` that a former process sent, each after the first event of its stream; nobody is back.
fn killed(clients: usize) -> Setting {
    let mut setting = setting(clients);
    for (at, post) in setting.posts.iter().enumerate() {
        setting.w.fact(*post, Fact::Cursor(first(at)));
    }
    setting
}

/// The position of the client's call before anything was asked.
fn first(client: usize) -> String {
    format!("s1/{}/1", client + 2)
}

fn kill(w: &mut World) {
    w.kill(9);
    w.auto = true;
    hold(w);
}

/// Whatever is read is answered by hand.
fn hold(w: &mut World) {
    (0..100).for_each(|_| w.upstream.rule("GET", Answer::Hold));
}

/// The replay that is open behind this position.
fn read_behind(w: &World, after: &str) -> Option<ExchangeId> {
    let is_it = |last: &Option<String>| last.as_deref() == Some(after);
    w.open.iter().find(|(_, open)| is_it(&open.spec.last_event_id)).map(|(exchange, _)| *exchange)
}

/// For so long (ms) each replay behind `after` brings this question at `cursor`, whenever it is opened.
fn brings(w: &mut World, ms: u64, after: &[String], question: &str, cursor: &str) {
    let mut served = Vec::new();
    for _ in 0..ms / 50 {
        w.advance(50);
        for (exchange, open) in w.open.clone() {
            let behind = open.spec.last_event_id.as_ref().is_some_and(|last| after.contains(last));
            if behind && !served.contains(&exchange) {
                served.push(exchange);
                w.fact(exchange, head());
                w.fact(exchange, says_at(question, cursor));
            }
        }
    }
}

#[test]
fn a_server_that_replays_every_stream_does_not_show_one_clients_question_to_another() {
    let Setting { mut w, clients, posts, .. } = setting(2);
    w.fact(posts[1], says_at(&form("\"mine\""), "s1/3/1"));
    w.fact(posts[0], Fact::Cursor("s1/2/1".into()));
    w.upstream.rule("GET", Answer::Hold);
    w.fact(posts[0], cut());
    w.advance(300);
    let get = w.exchange("GET");
    w.fact(get, head());
    w.fact(get, says_at(&form("\"mine\""), "s1/2/2"));
    assert!(w.clients[clients[0]].asked.is_empty());
    assert_eq!(w.replies(), [""; 0]);
}

#[test]
fn what_stands_on_a_screen_is_not_shown_on_another_after_a_kill() {
    let Setting { mut w, clients, calls, posts } = killed(2);
    w.fact(posts[1], says_at(&form("1"), "s1/3/2"));
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    brings(&mut w, 1000, &[first(0)], &form("1"), "s1/3/2");
    // Its client comes later than the other, and has seen it.
    w.deliver(clients[1], calls[1]);
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/3/2");
    let asked: Vec<usize> = clients.iter().map(|client| w.clients[*client].asked.len()).collect();
    assert_eq!((asked.as_slice(), w.replies()), ([0, 1].as_slice(), vec![]));
    let id = last_of(&w, clients[1]);
    w.answer(clients[1], &id);
    assert_eq!(w.rules.asks.answers, 1);
}

#[test]
fn an_answer_that_came_meanwhile_tells_whose_the_question_was() {
    let Setting { mut w, clients, calls, posts } = killed(2);
    w.fact(posts[1], says_at(&form("1"), "s1/3/2"));
    let id = last_of(&w, clients[1]);
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    brings(&mut w, 1000, &[first(0)], &form("1"), "s1/3/2");
    w.answer(clients[1], &id);
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/3/2");
    assert!(w.clients[clients[0]].asked.is_empty());
    assert_eq!((w.rules.asks.answers, w.replies().len()), (1, 1));
}

#[test]
fn one_client_is_not_asked_again_for_another_call_of_its_own() {
    let Setting { mut w, clients, calls, posts } = killed(1);
    w.upstream.rule("tools/call", Answer::Hold);
    let second = w.call(clients[0]);
    let post = w.exchange("tools/call");
    w.fact(post, head());
    w.fact(post, says_at(&form("1"), "s1/3/2"));
    assert_ne!(post, posts[0]);
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    brings(&mut w, 200, &[first(0)], &form("1"), "s1/3/2");
    w.deliver(clients[0], second);
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/3/2");
    assert_eq!((w.clients[clients[0]].asked.len(), w.replies()), (1, vec![]));
}

/// Its client is asked at worst what it was asked before; declined it would be lost for sure.
#[test]
fn a_call_that_its_client_did_not_come_back_for_costs_it_no_question() {
    let Setting { mut w, clients, calls, .. } = killed(1);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[0]);
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/2/2");
    assert_eq!((w.clients[clients[0]].asked.len(), w.replies()), (1, vec![]));
}

#[test]
fn with_an_unreadable_journal_nobody_can_tell_whose_it_is() {
    let Setting { mut w, clients, calls, .. } = killed(1);
    kill(&mut w);
    w.put(Input::Answered { answers: Vec::new(), complete: false });
    w.deliver(clients[0], calls[0]);
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/2/2");
    assert!(w.clients[clients[0]].asked.is_empty());
    assert!(reply_to(&w, "1")[0].contains("decline"), "{:?}", w.replies());
}

/// Whatever runs in a session of one's own is for its owner.
#[test]
fn an_unreadable_journal_says_nothing_against_an_owner() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    let client = w.able(ABLE);
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let post = w.exchange("tools/call");
    w.fact(post, head());
    w.fact(post, Fact::Cursor(first(0)));
    kill(&mut w);
    w.put(Input::Answered { answers: Vec::new(), complete: false });
    w.deliver(client, call);
    brings(&mut w, 50, &[first(0)], &form("1"), "s1/2/2");
    assert_eq!(w.clients[client].asked.len(), 1);
}

#[test]
fn a_question_from_the_time_without_a_daemon_is_asked_once_all_are_back() {
    let Setting { mut w, clients, calls, .. } = killed(2);
    kill(&mut w);
    for (client, call) in clients.iter().zip(&calls) {
        w.deliver(*client, *call);
    }
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/2/2");
    let id = last_of(&w, clients[0]);
    assert!(w.clients[clients[1]].asked.is_empty());
    w.answer(clients[0], &id);
    assert_eq!(w.rules.asks.answers, 1);
}

#[test]
fn nobody_waits_who_is_alone() {
    let Setting { mut w, clients, calls, .. } = killed(1);
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    brings(&mut w, 50, &[first(0)], &form("1"), "s1/2/2");
    assert_eq!(w.clients[clients[0]].asked.len(), 1);
}

#[test]
fn while_somebody_stays_away_nobody_can_tell_whose_it_is() {
    let Setting { mut w, clients, calls, .. } = killed(2);
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    brings(&mut w, 3500, &[first(0)], &form("1"), "s1/2/2");
    assert_eq!(w.replies(), [""; 0]);
    brings(&mut w, 500, &[first(0)], &form("1"), "s1/2/2");
    assert!(w.clients[clients[0]].asked.is_empty());
    assert!(reply_to(&w, "1")[0].contains("decline"), "{:?}", w.replies());
}

/// Its stream never broke: what is asked there comes there.
#[test]
fn beside_a_live_call_a_replay_is_read_again_once() {
    let Setting { mut w, clients, posts, .. } = setting(2);
    w.fact(posts[0], Fact::Cursor(first(0)));
    hold(&mut w);
    w.fact(posts[0], cut());
    brings(&mut w, 300, &[first(0)], &form("1"), "s1/2/2");
    assert!(w.clients[clients[0]].asked.is_empty());
    brings(&mut w, 300, &[first(0)], &form("1"), "s1/2/2");
    assert_eq!(w.clients[clients[0]].asked.len(), 1);
}

#[test]
fn a_question_that_came_on_two_replays_is_nobodys() {
    let Setting { mut w, clients, calls, .. } = killed(2);
    kill(&mut w);
    for (client, call) in clients.iter().zip(&calls) {
        w.deliver(*client, *call);
    }
    brings(&mut w, LONG, &[first(0), first(1)], &form("1"), "s1/9/1");
    let asked: usize = clients.iter().map(|client| w.clients[*client].asked.len()).sum();
    assert_eq!(asked, 0);
    assert_eq!(reply_to(&w, "1"), [r#"{"jsonrpc":"2.0","id":1,"result":{"action":"decline"}}"#]);
    assert_eq!(w.rules.asks.answers, 0);
}

const NEWS: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;

/// In an event with several messages all have the position of the event: read again, it would not come again. Without a position
/// a server may have kept nothing of it.
#[test]
fn what_would_not_come_again_is_judged_at_once() {
    for (place, back, answered) in
        [(Some("s1/2/2"), true, None), (Some("s1/2/2"), false, Some("decline")), (None, true, None)]
    {
        let Setting { mut w, clients, calls, .. } = killed(2);
        kill(&mut w);
        for (client, call) in clients.iter().zip(&calls).take(if back { 2 } else { 1 }) {
            w.deliver(*client, *call);
        }
        w.advance(1);
        let get = read_behind(&w, &first(0)).unwrap();
        w.fact(get, head());
        match place {
            Some(place) => {
                w.fact(get, says_at(NEWS, place));
                w.fact(get, says_at(&form("1"), place));
            }
            None => w.fact(get, says(&form("1"))),
        }
        assert_eq!(w.clients[clients[0]].asked.len(), usize::from(answered.is_none()), "{place:?} {back}");
        let refused = reply_to(&w, "1").iter().any(|reply| reply.contains("decline"));
        assert_eq!(refused, answered.is_some(), "{place:?} {back}");
    }
}

#[test]
fn a_server_that_asks_anew_each_time_is_not_read_for_ever() {
    let Setting { mut w, clients, calls, .. } = killed(2);
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    let mut served = Vec::new();
    for _ in 0..80 {
        w.advance(50);
        for (exchange, open) in w.open.clone() {
            if open.spec.last_event_id == Some(first(0)) && !served.contains(&exchange) {
                served.push(exchange);
                let n = served.len();
                w.fact(exchange, head());
                w.fact(exchange, says_at(&form(&n.to_string()), &format!("s1/2/{}", n + 1)));
            }
        }
    }
    assert_eq!((served.len(), w.replies().len()), (5, 1));
}

/// Its client wants no answer any more: that is nothing against whoever has the question on the screen.
#[test]
fn a_cancel_declines_nothing_that_may_be_anothers() {
    let Setting { mut w, clients, calls, posts } = killed(2);
    w.fact(posts[1], says_at(&form("1"), "s1/3/2"));
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    brings(&mut w, 500, &[first(0)], &form("1"), "s1/3/2");
    w.cancel(clients[0], calls[0]);
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/3/2");
    assert!(w.replies().is_empty(), "{:?}", w.replies());
    assert!(w.clients[clients[0]].asked.is_empty());
}

/// A server that begins with the cursor's own event: the question is open on its own call's replay when the other's brings it.
#[test]
fn a_position_counts_before_a_twin() {
    let Setting { mut w, clients, calls, posts } = killed(2);
    w.fact(posts[1], says_at(&form("1"), "s1/3/2"));
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    w.deliver(clients[1], calls[1]);
    brings(&mut w, 50, &["s1/3/2".to_owned()], &form("1"), "s1/3/2");
    brings(&mut w, LONG, &[first(0)], &form("1"), "s1/3/2");
    assert!(w.replies().is_empty(), "{:?}", w.replies());
    let id = last_of(&w, clients[1]);
    w.answer(clients[1], &id);
    assert_eq!(w.rules.asks.answers, 1);
}

/// "The client MUST respect the `retry` field" (2025-11-25, "Sending Messages to the Server").
#[test]
fn a_server_that_wants_to_be_left_alone_is() {
    let Setting { mut w, clients, calls, .. } = killed(2);
    kill(&mut w);
    w.deliver(clients[0], calls[0]);
    w.advance(1);
    let get = read_behind(&w, &first(0)).unwrap();
    w.fact(get, head());
    w.fact(get, Fact::Retry(std::time::Duration::from_secs(3)));
    w.fact(get, says_at(&form("1"), "s1/2/2"));
    w.advance(2900);
    assert_eq!(read_behind(&w, &first(0)), None);
    w.advance(200);
    assert!(read_behind(&w, &first(0)).is_some());
}
