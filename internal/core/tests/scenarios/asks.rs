//! Questions of servers to clients: each to the one it belongs to, answered once, by that one only.
//!
//! The rules of `common/asks.rs` hold on every step here: nobody sees or answers another's question.

use evermux_core::input::{Input, Policy};

use crate::common::asks::answer_of;
use crate::common::{Answer, NAME, World, policy, upstream::*};

pub(crate) const ABLE: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{}}"#;

pub(crate) fn form(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create","params":{{"message":"ok?","requestedSchema":{{"x":1.0}}}}}}"#
    )
}

fn sampling(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"sampling/createMessage","params":{{"maxTokens":1}}}}"#)
}

/// One client with one call under way, and the exchange of that call.
pub(crate) struct Setting {
    pub(crate) w: World,
    pub(crate) clients: Vec<usize>,
    pub(crate) calls: Vec<u64>,
    pub(crate) posts: Vec<evermux_core::input::ExchangeId>,
}

pub(crate) fn setting(clients: usize) -> Setting {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let clients: Vec<usize> = (0..clients).map(|_| w.able(ABLE)).collect();
    let (mut calls, mut posts) = (Vec::new(), Vec::new());
    for client in &clients {
        w.upstream.rule("tools/call", Answer::Hold);
        calls.push(w.call(*client));
        let post = w.exchange("tools/call");
        posts.push(post);
        w.fact(post, head());
    }
    Setting { w, clients, calls, posts }
}

pub(crate) fn last_of(w: &World, client: usize) -> String {
    w.clients[client].asked.last().cloned().unwrap_or_default()
}

/// The result that evermux gave on nobody's behalf, or the client's own.
pub(crate) fn reply_to(w: &World, id: &str) -> Vec<String> {
    let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"#);
    w.replies().into_iter().filter(|text| text.starts_with(&start)).collect()
}

#[test]
fn an_ask_on_a_calls_stream_goes_to_its_client_and_the_answer_comes_back_as_it_is() {
    let Setting { mut w, clients, calls, posts } = setting(3);
    for (at, post) in posts.iter().enumerate() {
        w.fact(*post, says_at(&form(&format!("\"s{at}\"")), &format!("s1/{}/1", at + 2)));
    }
    for (at, client) in clients.iter().enumerate() {
        assert_eq!(w.clients[*client].asked.len(), 1, "c{at}");
        let seen = w.clients[*client].sent[&calls[at]].last_event.clone().unwrap();
        assert_eq!(seen.cursor, Some(format!("s1/{}/1", at + 2)), "its position is passed down");
        let shown = w.clients[*client].sent[&calls[at]].progress[0].clone();
        assert!(shown.contains(r#""params":{"message":"ok?","requestedSchema":{"x":1.0}}"#), "{shown}");
    }
    // In another order than they were asked.
    for at in [2, 0, 1] {
        let id = last_of(&w, clients[at]);
        let seq = w.answer(clients[at], &id);
        assert_eq!(w.outcome(clients[at], seq), "taken");
        let expected = answer_of(clients[at], &format!("\"s{at}\""));
        assert_eq!(reply_to(&w, &format!("\"s{at}\"")), [expected]);
    }
    assert_eq!(w.hub.sizes()["asks"], 0);
}

#[test]
fn equal_ids_of_the_server_are_told_apart_by_type_and_by_stream() {
    let Setting { mut w, clients, posts, .. } = setting(2);
    w.fact(posts[0], says(&form("1")));
    w.fact(posts[0], says(&sampling("\"1\"")));
    w.fact(posts[1], says(&form("7")));
    let asked = w.clients[clients[0]].asked.clone();
    assert_eq!(asked.len(), 2);
    assert_ne!(asked[0], asked[1]);
    w.answer(clients[0], &asked[1]);
    assert_eq!(w.replies(), [answer_of(clients[0], "\"1\"")]);
    w.answer(clients[0], &asked[0]);
    assert_eq!(reply_to(&w, "1"), [answer_of(clients[0], "1")]);
    let id = last_of(&w, clients[1]);
    w.answer(clients[1], &id);
    assert_eq!(reply_to(&w, "7"), [answer_of(clients[1], "7")]);
}

#[test]
fn an_error_is_an_answer_too_and_any_spelling_of_the_id() {
    let Setting { mut w, clients, posts, .. } = setting(1);
    w.fact(posts[0], says(&sampling("5")));
    let id = last_of(&w, clients[0]);
    let spelled = id.replacen('A', "\\u0041", 1);
    w.say(
        clients[0],
        &format!(r#"{{"error":{{"code":-1,"message":"no","data":[1.0]}},"id":{spelled},"jsonrpc":"2.0"}}"#),
    );
    assert_eq!(w.replies(), [r#"{"error":{"code":-1,"message":"no","data":[1.0]},"id":5,"jsonrpc":"2.0"}"#]);
}

#[test]
fn nobody_answers_anothers_ask_nor_one_that_was_never_made() {
    let Setting { mut w, clients, posts, .. } = setting(2);
    w.fact(posts[0], says(&form("\"a\"")));
    let id = last_of(&w, clients[0]);
    let forged = id.replace(&id[20..24], "AAAA");
    for bad in [id.as_str(), &forged, "\"a\"", "1"] {
        let seq = w.answer(clients[1], bad);
        assert_eq!(w.outcome(clients[1], seq), "taken");
    }
    assert_eq!(w.replies(), [""; 0]);
    w.answer(clients[0], &id);
    w.answer(clients[0], &id);
    assert_eq!(w.replies().len(), 1);
    let dropped =
        w.notes.iter().filter(|note| matches!(note, evermux_core::output::Note::Dropped(_))).count();
    assert_eq!(dropped, 5, "{:?}", w.notes);
}

#[test]
fn what_the_class_did_not_declare_is_refused_and_a_ping_is_ours() {
    let mut w = World::new();
    let client = w.able(r#"{"elicitation":{}}"#);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    let post = w.exchange("tools/call");
    w.fact(post, says(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#));
    for (id, method) in [("1", "sampling/createMessage"), ("2", "roots/list"), ("3", "tasks/get")] {
        w.fact(post, says(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#)));
        assert!(reply_to(&w, id)[0].contains("-32601"), "{method}");
    }
    let url = r#"{"jsonrpc":"2.0","id":4,"method":"elicitation/create","params":{"mode":"url","url":"u","elicitationId":"e"}}"#;
    w.fact(post, says(url));
    assert!(reply_to(&w, "4")[0].contains("-32601"));
    assert!(reply_to(&w, "\"p\"")[0].contains(r#""result":{}"#));
    assert!(w.clients[client].asked.is_empty());
    w.fact(post, says(r#"{"jsonrpc":"2.0","id":5,"method":"vendor/ask"}"#));
    assert_eq!(w.clients[client].asked.len(), 1, "what evermux does not know is not its to refuse");
}

#[test]
fn on_the_get_stream_the_only_callers_link_is_asked_where_it_listens() {
    let Setting { mut w, clients, calls, posts } = setting(1);
    let idle = w.able(ABLE);
    w.listen(idle);
    w.advance(10);
    let get = w.exchange("GET");
    // It does not listen: on its call's stream.
    w.fact(get, says_at(&form("\"g1\""), "g/1"));
    assert_eq!(w.clients[clients[0]].sent[&calls[0]].progress.len(), 1);
    w.listen(clients[0]);
    w.fact(get, says(&sampling("\"g2\"")));
    assert_eq!(w.clients[clients[0]].heard.len(), 1);
    assert!(w.clients[idle].asked.is_empty());
    for id in w.clients[clients[0]].asked.clone() {
        w.answer(clients[0], &id);
    }
    assert_eq!(w.rules.asks.answers, 2);
    // The call is over: nobody is left.
    w.fact(posts[0], says(&result_of(&w.open[&posts[0]].clone())));
    w.fact(get, says(&form("\"g3\"")));
    assert_eq!(reply_to(&w, "\"g3\""), [r#"{"jsonrpc":"2.0","id":"g3","result":{"action":"cancel"}}"#]);
}

#[test]
fn on_the_get_stream_two_callers_mean_nobody() {
    let Setting { mut w, clients, calls, .. } = setting(2);
    w.listen(clients[0]);
    let get = w.exchange("GET");
    w.fact(get, says(&form("1")));
    w.fact(get, says(&sampling("2")));
    w.fact(get, says(r#"{"jsonrpc":"2.0","id":3,"method":"vendor/ask"}"#));
    assert_eq!(reply_to(&w, "1"), [r#"{"jsonrpc":"2.0","id":1,"result":{"action":"decline"}}"#]);
    assert!(reply_to(&w, "2")[0].contains(r#""code":-1,"#));
    assert!(reply_to(&w, "3")[0].contains("-32600"));
    assert!(clients.iter().all(|client| w.clients[*client].asked.is_empty()));
    // Told again when one is alone: it was answered.
    w.cancel(clients[1], calls[1]);
    w.advance(31_000);
    w.fact(get, says(&form("1")));
    assert_eq!(w.replies().len(), 3);
    w.fact(get, says(&form("4")));
    assert_eq!(w.clients[clients[0]].asked.len(), 1);
}

/// The stream and the answer of a call come on two connections: which is heard first says nothing.
#[test]
fn a_question_kept_for_a_stream_that_ended_may_be_of_a_call_that_ended() {
    for (answer_first, pause, whose) in [(true, 10, 0), (false, 10, 0), (true, 6_000, 1)] {
        let Setting { mut w, clients, posts, .. } = setting(2);
        w.listen(clients[1]);
        w.advance(10);
        let get = w.exchange("GET");
        w.fact(get, says_at(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#, "g/1"));
        let answer = says(&result_of(&w.open[&posts[0]].clone()));
        w.upstream.rule("GET", Answer::Facts(vec![head()]));
        if answer_first {
            w.fact(posts[0], answer);
            w.advance(pause);
            w.fact(get, cut());
        } else {
            w.fact(get, cut());
            w.fact(posts[0], answer);
        }
        w.advance(2_000);
        let again = w.exchange("GET");
        w.fact(again, says_at(&form("1"), "g/2"));
        assert_eq!(w.clients[clients[1]].asked.len(), whose, "{answer_first} {pause}");
    }
}

#[test]
fn a_call_that_may_still_run_counts_although_its_client_was_told() {
    let Setting { mut w, clients, posts, calls } = setting(2);
    w.listen(clients[0]);
    let get = w.exchange("GET");
    w.fact(posts[1], cut());
    assert_eq!(w.outcome(clients[1], calls[1]), "outcome_unknown/unknown");
    w.fact(get, says(&form("1")));
    assert!(reply_to(&w, "1")[0].contains("decline"));
    w.advance(3_600_000);
    w.fact(get, says(&form("2")));
    assert_eq!(w.clients[clients[0]].asked.len(), 1);
}

#[test]
fn calls_of_former_processes_count_for_an_hour() {
    let Setting { mut w, clients, .. } = setting(2);
    w.kill(9);
    w.auto = true;
    w.listen(clients[0]);
    w.advance(10);
    let get = w.exchange("GET");
    w.fact(get, says(&form("1")));
    assert!(reply_to(&w, "1")[0].contains("decline"), "{:?}", w.replies());
    w.advance(3_601_000);
    let get = w.exchange("GET");
    // Nobody's call is young enough.
    w.fact(get, says(&form("2")));
    assert!(reply_to(&w, "2")[0].contains("cancel"));
}

#[test]
fn a_call_that_its_client_has_given_up_counts_after_two_kills() {
    let Setting { mut w, clients, .. } = setting(2);
    w.kill(9);
    w.auto = true;
    w.come_back();
    w.kill(9);
    w.auto = true;
    // It says that it has its answer, which was "unknown".
    w.read(clients[1]);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[0]);
    w.listen(clients[0]);
    w.advance(10);
    w.fact(w.exchange("GET"), says(&form("1")));
    assert!(w.clients[clients[0]].asked.is_empty());
    assert!(reply_to(&w, "1")[0].contains("decline"));
}

#[test]
fn an_unreadable_journal_means_that_nobody_is_certain() {
    let Setting { mut w, clients, .. } = setting(1);
    w.listen(clients[0]);
    let get = w.exchange("GET");
    w.put(Input::Answered { answers: Vec::new(), complete: false });
    w.fact(get, says(&form("1")));
    assert!(reply_to(&w, "1")[0].contains("decline"));
}

#[test]
fn a_session_of_ones_own_asks_its_owner_whatever_it_declared() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    w.upstream.offers_stream = true;
    let client = w.able(r#"{"roots":{"listChanged":true}}"#);
    let stream = w.listen(client);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    let get = w.exchange("GET");
    let roots = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
    w.fact(get, says(&roots(1)));
    assert_eq!(w.clients[client].heard.len(), 1);
    // Away: kept until it comes back; what it saw does not come twice to who can say so.
    w.close(stream);
    w.listen(client);
    assert_eq!(w.clients[client].asked.len(), 2, "it may not have come through");
    assert_eq!(w.clients[client].asked[0], w.clients[client].asked[1]);
}

#[test]
fn a_client_that_is_away_is_asked_when_it_comes_back() {
    let Setting { mut w, clients, calls, posts } = setting(1);
    w.hang_up(clients[0], calls[0]);
    w.fact(posts[0], says_at(&form("1"), "s1/2/1"));
    assert!(w.clients[clients[0]].asked.is_empty());
    // More than a call keeps: the ask is not what is dropped.
    for n in 0..100 {
        w.fact(
            posts[0],
            says_at(
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#,
                &format!("s1/2/n{n}"),
            ),
        );
    }
    w.deliver(clients[0], calls[0]);
    assert_eq!(w.clients[clients[0]].asked.len(), 1);
    // The connection breaks again, after it was seen: its position says so.
    w.hang_up(clients[0], calls[0]);
    w.clients[clients[0]].sent.get_mut(&calls[0]).unwrap().last_event.as_mut().unwrap().cursor =
        Some("s1/2/1".into());
    w.deliver(clients[0], calls[0]);
    assert_eq!(w.clients[clients[0]].asked.len(), 1);
    // Without a position it comes again, under the same id.
    w.hang_up(clients[0], calls[0]);
    w.clients[clients[0]].sent.get_mut(&calls[0]).unwrap().last_event = None;
    w.deliver(clients[0], calls[0]);
    let asked = w.clients[clients[0]].asked.clone();
    assert_eq!((asked.len(), &asked[0]), (2, &asked[1]));
    w.answer(clients[0], &asked[0]);
    assert_eq!(w.rules.asks.answers, 1);
}

#[test]
fn a_server_that_takes_its_ask_back_is_heard_by_who_was_asked() {
    let Setting { mut w, clients, calls, posts } = setting(2);
    w.fact(posts[0], says(&form("\"s\"")));
    let id = last_of(&w, clients[0]);
    w.fact(posts[0], says_at(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s","reason":"late"}}"#, "s1/2/9"));
    let told = w.clients[clients[0]].sent[&calls[0]].progress.last().unwrap().clone();
    assert_eq!(
        told,
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"late"}}}}"#
        )
    );
    assert!(w.clients[clients[1]].sent[&calls[1]].progress.is_empty());
    w.answer(clients[0], &id);
    assert_eq!(w.replies(), [""; 0], "it is over");
}

#[test]
fn a_cancelled_call_leaves_no_question_open() {
    let Setting { mut w, clients, calls, posts } = setting(1);
    w.fact(posts[0], says(&form("1")));
    let id = last_of(&w, clients[0]);
    w.cancel(clients[0], calls[0]);
    assert_eq!(reply_to(&w, "1"), [r#"{"jsonrpc":"2.0","id":1,"result":{"action":"cancel"}}"#]);
    w.answer(clients[0], &id);
    w.fact(posts[0], says(&sampling("2")));
    assert!(reply_to(&w, "2")[0].contains(r#""code":-1,"#));
    assert_eq!(w.clients[clients[0]].asked.len(), 1);
    assert_eq!(w.rules.asks.answers, 0);
}

#[test]
fn a_link_that_ended_approves_nothing() {
    let Setting { mut w, clients, posts, .. } = setting(2);
    w.fact(posts[0], says(&form("1")));
    w.fact(posts[0], says(&sampling("2")));
    w.fact(posts[1], says(&form("3")));
    w.end_link(clients[0]);
    assert_eq!(reply_to(&w, "1"), [r#"{"jsonrpc":"2.0","id":1,"result":{"action":"cancel"}}"#]);
    assert!(reply_to(&w, "2")[0].contains(r#""code":-1,"#));
    assert!(reply_to(&w, "3").is_empty(), "the other one's stays");
    let id = last_of(&w, clients[1]);
    w.answer(clients[1], &id);
    assert_eq!(w.rules.asks.answers, 1);
}

#[test]
fn a_link_that_is_forgotten_approves_nothing_either() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    w.upstream.offers_stream = true;
    let client = w.able(ABLE);
    w.clients[client].numbers = false;
    let stream = w.listen(client);
    w.call(client);
    w.fact(w.exchange("GET"), says(&form("1")));
    w.close(stream);
    w.advance(40_000_000);
    assert!(w.hub.sizes()["links"] == 1, "it numbered its first messages");
    w.advance(60_000_000);
    assert_eq!(w.hub.sizes()["asks"], 0);
}

#[test]
fn a_lost_session_takes_its_asks_along() {
    let Setting { mut w, clients, calls, posts } = setting(1);
    w.fact(posts[0], says_at(&form("1"), "s1/2/1"));
    let id = last_of(&w, clients[0]);
    w.upstream.restart();
    w.advance(10_000);
    w.read(clients[0]);
    assert_eq!(w.hub.sizes()["asks"], 0);
    assert!(
        w.clients[clients[0]].sent[&calls[0]]
            .progress
            .iter()
            .any(|text| text.contains("notifications/cancelled") && text.contains(&id))
    );
    w.answer(clients[0], &id);
    assert_eq!(w.replies(), [""; 0], "the fresh session never asked");
}

#[test]
fn a_session_that_is_not_replaced_takes_its_asks_along_too() {
    let mut w = World::with(Policy { never_reinitialize: true, ..policy(NAME) });
    let client = w.able(ABLE);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    w.fact(w.exchange("tools/call"), says(&form("1")));
    w.upstream.restart();
    w.advance(10_000);
    w.read(client);
    assert_eq!((w.hub.sizes()["asks"], w.sent("initialize")), (0, 1));
    let id = last_of(&w, client);
    w.answer(client, &id);
    assert_eq!(w.replies(), [""; 0]);
}

#[test]
fn a_purge_ends_asks_and_a_stop_waits_for_the_answer() {
    let Setting { mut w, clients, calls, posts } = setting(1);
    w.fact(posts[0], says(&form("1")));
    let id = last_of(&w, clients[0]);
    w.put(Input::Drain);
    assert!(!w.drained, "the call runs");
    w.answer(clients[0], &id);
    assert_eq!(w.rules.asks.answers, 1);
    w.fact(posts[0], says(&result_of(&w.open[&posts[0]].clone())));
    assert_eq!(w.outcome(clients[0], calls[0]), "ok");
    assert!(w.drained);

    let Setting { mut w, clients, posts, .. } = setting(1);
    w.fact(posts[0], says(&form("1")));
    let id = last_of(&w, clients[0]);
    w.put(Input::Purge(None));
    w.answer(clients[0], &id);
    assert_eq!((w.hub.sizes()["asks"], w.rules.asks.answers), (0, 0));
}

#[test]
fn too_many_asks_are_refused_but_those_of_ended_calls_make_room() {
    let Setting { mut w, clients, posts, .. } = setting(1);
    for n in 0..65 {
        w.fact(posts[0], says(&form(&n.to_string())));
    }
    assert_eq!(w.clients[clients[0]].asked.len(), 64);
    assert!(reply_to(&w, "64")[0].contains("-32603"));
    w.fact(posts[0], says(&result_of(&w.open[&posts[0]].clone())));
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(clients[0]);
    w.fact(w.exchange("tools/call"), says(&form("100")));
    assert_eq!(w.clients[clients[0]].asked.len(), 65);
    assert!(reply_to(&w, "0")[0].contains("cancel"), "the oldest was given up");
    let long = format!("\"{}\"", "x".repeat(600));
    w.fact(w.exchange("tools/call"), says(&form(&long)));
    assert!(reply_to(&w, &long)[0].contains("-32600"));
}

#[test]
fn answers_and_progress_of_one_client_keep_their_order_and_a_cancel_waits() {
    let Setting { mut w, clients, calls, posts } = setting(1);
    w.fact(posts[0], says(r#"{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"_meta":{"progressToken":"T"}}}"#));
    w.fact(posts[0], says(&form("2")));
    let asked = w.clients[clients[0]].asked.clone();
    w.auto = false;
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"T","progress":1}}"#;
    w.tell(clients[0], progress);
    w.tell(clients[0], &progress.replace("\"T\"", "\"other\""));
    w.answer(clients[0], &asked[0]);
    w.answer(clients[0], &asked[1]);
    w.cancel(clients[0], calls[0]);
    w.advance(300);
    let sent =
        |w: &World| (w.sent("notifications/progress"), w.sent("response"), w.sent("notifications/cancelled"));
    assert_eq!(sent(&w), (1, 0, 0));
    w.serve(w.exchange("notifications/progress"), Answer::Model);
    assert_eq!(sent(&w), (1, 1, 0));
    w.serve(w.exchange("response"), Answer::Model);
    w.advance(300);
    assert_eq!(sent(&w), (1, 2, 0));
    w.serve(w.exchange("response"), Answer::Model);
    w.advance(300);
    assert_eq!(sent(&w), (1, 2, 1));
    assert_eq!(w.rules.asks.answers, 2);
    assert_eq!(w.hub.sizes()["lanes"], 0);
}

#[test]
fn an_answer_that_never_left_is_tried_again_and_one_that_may_have_is_not() {
    for (answer, posts_made) in [
        (Answer::NeverWritten, 2),
        (Answer::CutBefore, 1),
        (Answer::Status(503, ""), 1),
        (Answer::Status(429, ""), 2),
    ] {
        let Setting { mut w, clients, posts, .. } = setting(1);
        w.fact(posts[0], says(&form("1")));
        w.upstream.rule("response", answer);
        let id = last_of(&w, clients[0]);
        w.answer(clients[0], &id);
        w.advance(10_000);
        assert_eq!(w.sent("response"), posts_made);
        assert_eq!(w.hub.sizes()["lanes"], 0);
    }
    let Setting { mut w, clients, posts, .. } = setting(1);
    w.fact(posts[0], says(&form("1")));
    for _ in 0..100 {
        w.upstream.rule("response", Answer::NeverWritten);
    }
    let id = last_of(&w, clients[0]);
    w.answer(clients[0], &id);
    w.advance(600_000);
    assert_eq!((w.sent("response"), w.hub.sizes()["lanes"]), (5, 0), "but not for ever");
}

#[test]
fn an_answer_survives_a_doubted_session() {
    let Setting { mut w, clients, posts, .. } = setting(1);
    w.fact(posts[0], says(&form("1")));
    w.upstream.rule("response", Answer::Status(404, ""));
    let id = last_of(&w, clients[0]);
    w.answer(clients[0], &id);
    w.advance(5_000);
    assert_eq!((w.sent("response"), w.rules.asks.answers), (2, 2));
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn after_a_kill_the_seal_is_enough_for_one_answer() {
    let Setting { mut w, clients, posts, .. } = setting(3);
    for (at, post) in posts.iter().enumerate() {
        w.fact(*post, says(&form(&at.to_string())));
    }
    let ids: Vec<String> = clients.iter().map(|client| last_of(&w, *client)).collect();
    w.kill(9);
    w.auto = true;
    // Another's, and then its own, twice; the session is dormant until then.
    w.answer(clients[1], &ids[0]);
    for at in [0, 1, 2] {
        let seq = w.answer(clients[at], &ids[at]);
        assert_eq!(w.outcome(clients[at], seq), "taken");
        w.answer(clients[at], &ids[at]);
    }
    assert_eq!(w.rules.asks.answers, 3);
    assert_eq!(w.sent("initialize"), 1);
    for (at, client) in clients.iter().enumerate() {
        assert_eq!(reply_to(&w, &at.to_string()), [answer_of(*client, &at.to_string())]);
    }
}

#[test]
fn a_repeated_number_is_no_second_answer_after_a_kill() {
    let Setting { mut w, clients, posts, .. } = setting(1);
    w.fact(posts[0], says(&form("1")));
    let id = last_of(&w, clients[0]);
    w.auto = false;
    let seq = w.answer(clients[0], &id);
    assert_eq!(w.sent("response"), 1);
    // The 202 was lost on its way; the client neither knows.
    w.clients[clients[0]].sent.get_mut(&seq).unwrap().reply = None;
    w.kill(9);
    w.auto = true;
    w.deliver(clients[0], seq);
    assert_eq!(w.outcome(clients[0], seq), "taken");
    // Nor under a new number.
    w.answer(clients[0], &id);
    w.advance(5_000);
    assert_eq!((w.sent("response"), w.rules.asks.answers), (1, 1));
}

#[test]
fn an_answer_that_was_not_posted_before_a_kill_is_not_taken_either() {
    let Setting { mut w, clients, posts, .. } = setting(1);
    w.fact(posts[0], says(&form("1")));
    let id = last_of(&w, clients[0]);
    w.auto = false;
    w.kill(9);
    // The session is still asleep: nothing is posted, and the client hears nothing.
    let seq = w.answer(clients[0], &id);
    assert_eq!((w.sent("response"), w.outcome(clients[0], seq).as_str()), (0, "none"));
    w.kill(9);
    w.auto = true;
    w.deliver(clients[0], seq);
    assert_eq!((w.rules.asks.answers, w.outcome(clients[0], seq).as_str()), (1, "taken"));
}

#[test]
fn a_replayed_ask_has_the_same_id_and_an_answered_one_does_not_come_again() {
    let Setting { mut w, clients, calls, posts } = setting(2);
    w.fact(posts[0], says_at(&form("1"), "s1/2/1"));
    w.fact(posts[1], says_at(&form("2"), "s1/3/1"));
    let ids: Vec<String> = clients.iter().map(|client| last_of(&w, *client)).collect();
    w.answer(clients[1], &ids[1]);
    w.kill(9);
    w.auto = true;
    w.upstream.rule("GET", Answer::Hold);
    w.upstream.rule("GET", Answer::Hold);
    for (client, call) in clients.iter().zip(&calls) {
        w.deliver(*client, *call);
    }
    w.advance(1);
    for (exchange, open) in w.open.clone() {
        let Some(last) = open.spec.last_event_id else { continue };
        let n = if last.starts_with("s1/2") { "1" } else { "2" };
        w.fact(exchange, head());
        w.fact(exchange, says_at(&form(n), &last));
        // What a server keeps comes again and again.
        w.fact(exchange, says_at(&form(n), &last));
    }
    assert_eq!(w.clients[clients[0]].asked, [ids[0].clone(), ids[0].clone()]);
    assert_eq!(w.clients[clients[1]].asked, [ids[1].clone()]);
    w.answer(clients[0], &ids[0]);
    assert_eq!(w.rules.asks.answers, 2);
}

#[test]
fn an_elicitation_is_complete_for_who_was_sent_to_its_url() {
    let Setting { mut w, clients, calls, posts } = setting(3);
    for client in &clients {
        w.listen(*client);
    }
    let get = w.exchange("GET");
    w.fact(posts[0], says(r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e1","url":"https://x.example/","message":"m"}}"#));
    let wire = w.wire(posts[1]);
    w.fact(posts[1], says(&format!(r#"{{"jsonrpc":"2.0","id":{wire},"error":{{"code":-32042,"message":"go","data":{{"elicitations":[{{"mode":"url","elicitationId":"e2","url":"u"}}]}}}}}}"#)));
    assert!(w.text(clients[1], calls[1]).contains("-32042"));
    for id in ["e2", "e1", "e3", "e2"] {
        w.fact(get, says(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{{"elicitationId":"{id}"}}}}"#)));
    }
    let heard: Vec<usize> = clients.iter().map(|client| w.clients[*client].heard.len()).collect();
    assert_eq!(heard, [1, 1, 0]);
    assert!(w.clients[clients[0]].heard[0].contains("e1") && w.clients[clients[1]].heard[0].contains("e2"));
}

#[test]
fn one_id_on_two_streams_is_one_question() {
    let Setting { mut w, clients, posts, .. } = setting(2);
    w.fact(posts[0], says(&form("1")));
    w.fact(posts[1], says(&form("1")));
    assert!(w.clients[clients[1]].asked.is_empty());
    assert_eq!(w.replies(), [""; 0], "a refusal would be taken for the first one's");
    let id = last_of(&w, clients[0]);
    w.answer(clients[0], &id);
    assert_eq!(w.rules.asks.answers, 1);
}

#[test]
fn an_open_question_keeps_its_session_awake() {
    let mut w = World::with(Policy {
        own_sessions: true,
        keepalive: Some(std::time::Duration::from_secs(120)),
        ..policy(NAME)
    });
    w.upstream.offers_stream = true;
    let client = w.able(ABLE);
    let stream = w.listen(client);
    w.call(client);
    w.fact(w.exchange("GET"), says(&form("1")));
    w.close(stream);
    w.advance(3_500_000);
    assert!(w.sent("ping") > 20, "{}", w.sent("ping"));
    let before = w.sent("ping");
    w.advance(3_500_000);
    assert!(w.sent("ping") < before + 5, "but not for ever");
}
