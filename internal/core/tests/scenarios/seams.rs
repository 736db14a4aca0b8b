//! Where two things meet that each hold on their own: a question on a shared request, a trial that is handed over, a
//! session that is left behind while something else is under way.

use std::time::Duration;

use evermux_core::input::{Input, Policy, Renewal};
use evermux_core::names::Digest;

use crate::common::{Answer, NAME, World, fingerprint, method_of, policy, upstream::*};

const ABLE: &str = r#"{"elicitation":{}}"#;

fn form(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create","params":{{"message":"ok?"}}}}"#)
}

fn updated(uri: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#)
}

/// The config names another endpoint for the same identity.
fn move_on(w: &mut World) {
    let moved = evermux_core::record::Fingerprint { endpoint: Digest(99), ..fingerprint(1) };
    w.identities = vec![(NAME.into(), moved, true)];
    w.rules.lost(NAME);
    w.configure();
}

/// Bytes as the shell hands them in: how many more may come is counted by them.
struct Counted {
    bytes: Vec<u8>,
    _permit: std::sync::Arc<()>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A result under a wrong id waits for the end of its exchange, and the exchange for nothing: if the reader's permit
/// waited as well, a large one would leave none for what comes behind it, and the end would never be read.
#[test]
fn an_answer_that_waits_for_its_exchange_does_not_hold_up_the_reader() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    let permit = std::sync::Arc::new(());
    let id = format!(r#""id":{},"#, w.wire(exchange));
    let text = result_of(&w.open[&exchange].clone()).replace(&id, r#""id":"made-up","#);
    let bytes = bytes::Bytes::from_owner(Counted { bytes: text.into_bytes(), _permit: permit.clone() });
    let message = mcp_wire::Message::parse(bytes).unwrap();
    w.fact(exchange, head());
    w.fact(exchange, evermux_core::input::Fact::Message { message, cursor: None });
    assert_eq!(std::sync::Arc::strong_count(&permit), 1, "the reader has its permit back");
    w.fact(exchange, clean());
    assert_eq!(w.outcome(client, call), "ok");
}

/// A question of the GET stream was shown on the response of its client's only call. That response broke, and the client
/// came back before anybody noticed: it is asked again, there.
#[test]
fn a_question_on_a_response_that_broke_is_shown_on_the_next() {
    for numbers in [true, false] {
        let mut w = World::new();
        w.upstream.offers_stream = true;
        let (other, client) = (w.able(ABLE), if numbers { w.able(ABLE) } else { w.plain("2025-11-25") });
        w.listen(other);
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let post = w.exchange("tools/call");
        w.fact(post, head());
        let seen = w.clients[client].sent[&call].last_event.clone();
        w.break_off(client, call);
        let get = w.exchange("GET");
        w.fact(get, says(&form("1")));
        assert_eq!((w.clients[client].asked.len(), w.clients[other].asked.len()), (0, 0));
        match seen.filter(|_| !numbers) {
            Some(seen) => drop(w.listen_after(client, Some(seen))),
            None => drop(w.deliver(client, call)),
        }
        let asked = w.clients[client].asked.clone();
        assert_eq!(asked.len(), 1, "numbers: {numbers}");
        w.answer(client, &asked[0]);
        assert_eq!(w.replies().len(), 1);
    }
}

/// A server with room for one session keeps the lost one, and the DELETE that was to end it never left: nothing was
/// asked of the server yet, so it is sent with the next attempt.
#[test]
fn a_delete_that_never_left_is_sent_with_the_next_attempt() {
    const HELD: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Server already initialized"}}"#;
    for fact in [never(), exhausted()] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.restart();
        w.advance(6_000);
        w.upstream.rule("initialize", Answer::Status(400, HELD));
        w.upstream.rule("DELETE", Answer::Facts(vec![fact]));
        let call = w.call(client);
        assert!(w.outcome(client, call).ends_with("/not_sent"), "{}", w.outcome(client, call));
        assert_eq!((w.sent("initialize"), w.sent("DELETE")), (2, 1));
        w.advance(2_000);
        w.upstream.rule("initialize", Answer::Status(400, HELD));
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        assert_eq!((w.sent("initialize"), w.sent("DELETE")), (4, 2));
    }
}

/// One instance asks for a pause, another does not know the session: it is not lost for that, and the pause is kept.
#[test]
fn a_stray_refusal_in_a_pause_costs_neither_session_nor_pause() {
    for flapping in [false, true] {
        let mut w = World::new();
        let client = w.joined();
        for _ in 0..if flapping { 4 } else { 0 } {
            w.call(client);
            w.upstream.rule("tools/call", Answer::Status(404, ""));
            w.call(client);
            w.advance(2_000);
        }
        w.call(client);
        w.auto = false;
        w.call(client);
        let busy = w.exchange("tools/call");
        let call = w.call(client);
        let stray = w.exchange("tools/call");
        let before = w.started.len();
        w.serve(busy, Answer::StatusAfter(429, Duration::from_secs(60)));
        w.serve(stray, Answer::Status(404, ""));
        w.auto = true;
        w.pump();
        assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
        w.advance(58_000);
        assert_eq!(w.started.len(), before, "flapping: {flapping}");
        w.advance(3_000);
        let call = w.call(client);
        assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), ("ok", 1));
        // What is gone all the same is found out after the pause.
        w.upstream.restart();
        w.advance(6_000);
        let call = w.call(client);
        w.advance(10_000);
        assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), ("ok", 2));
    }
}

/// Several calls at once meet the instance that does not know the session: the ping that asks another one decides.
#[test]
fn strays_that_come_together_are_one() {
    for refusal in [Answer::Status(404, ""), Answer::Status(400, LOST)] {
        let mut w = World::new();
        let client = w.joined();
        w.call(client);
        w.auto = false;
        let calls = [w.call(client), w.call(client), w.call(client)];
        let posts = w.arrived.clone();
        for post in posts {
            w.serve(post, refusal.clone());
        }
        w.auto = true;
        w.pump();
        for call in calls {
            assert_eq!(w.outcome(client, call), "ok");
        }
        assert_eq!((w.sent("initialize"), w.sent("ping")), (1, 1), "{refusal:?}");
    }
}

/// Its session was superseded meanwhile and ends with it: the exchange is over, and not to be aborted.
#[test]
fn an_answer_that_ends_its_session_ends_an_exchange_once() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    let id = format!(r#""id":{},"#, w.wire(exchange));
    let text = result_of(&w.open[&exchange].clone()).replace(&id, r#""id":"made-up","#);
    w.fact(exchange, head());
    w.fact(exchange, says(&text));
    move_on(&mut w);
    w.fact(exchange, clean());
    assert_eq!(w.outcome(client, call), "ok");
}

// ---- a shared request that changes hands ----

#[test]
fn who_takes_over_a_list_is_not_asked_what_its_first_client_was() {
    for way in 0..2 {
        let mut w = World::new();
        let (a, b) = (w.able(ABLE), w.able(ABLE));
        w.upstream.rule("tools/list", Answer::Hold);
        let first = w.list(a, "tools/list");
        w.advance(1_000);
        let second = w.list(b, "tools/list");
        let post = w.exchange("tools/list");
        w.fact(post, head());
        w.fact(post, says_at(&form("\"q\""), "s1/2/1"));
        assert_eq!((w.clients[a].asked.len(), w.clients[b].asked.len()), (1, 0));
        match way {
            0 => w.cancel(a, first),
            _ => w.advance(59_000),
        }
        w.hang_up(b, second);
        w.deliver(b, second);
        assert!(w.clients[b].asked.is_empty(), "{way}");
        let cancels = w.replies().into_iter().filter(|text| text.contains(r#""action":"cancel""#));
        assert_eq!(cancels.count(), 1, "{way}: nobody answers it any more, and the server hears so");
        let text = result_of(&w.open[&post].clone());
        w.fact(post, says(&text));
        assert_eq!(w.outcome(b, second), "ok");
    }
}

#[test]
fn who_takes_over_a_request_gets_its_progress_under_its_own_token() {
    let mut w = World::new();
    let (a, b) = (w.joined(), w.joined());
    let params = |token: &str| format!(r#"{{"uri":"x:1","_meta":{{"progressToken":{token}}}}}"#);
    w.upstream.rule("resources/subscribe", Answer::Hold);
    let first = w.ask(a, "resources/subscribe", &params("\"a\""));
    let second = w.ask(b, "resources/subscribe", &params("\"b\""));
    let post = w.exchange("resources/subscribe");
    w.cancel(a, first);
    let token = w.wire(post);
    let progress = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    );
    w.fact(post, head());
    w.fact(post, says(&progress));
    assert_eq!(w.clients[b].sent[&second].progress.len(), 1);
}

#[test]
fn what_is_sent_again_for_who_took_it_over_is_its_own_request() {
    let mut w = World::new();
    let (a, b) = (w.joined(), w.joined());
    let params = r#"{"uri":"x:1","_meta":{"progressToken":"a"}}"#;
    w.upstream.rule("resources/subscribe", Answer::Hold);
    let first = w.ask(a, "resources/subscribe", params);
    let second = w.subscribe(b, "x:1");
    let post = w.exchange("resources/subscribe");
    w.cancel(a, first);
    w.fact(post, never());
    w.advance(1_000);
    assert_eq!(w.outcome(b, second), "ok");
    let last = w.started.iter().rev().find(|(_, open)| method_of(open) == "resources/subscribe");
    let text = String::from_utf8_lossy(last.unwrap().1.message.as_ref().unwrap().bytes()).into_owned();
    assert!(!text.contains("progressToken"), "{text}");
}

// ---- the call that finds out for all ----

#[test]
fn a_trial_that_became_another_clients_call_holds_nobody_up() {
    let mut w = World::new();
    let (a, b, c) = (w.joined(), w.joined(), w.joined());
    w.upstream.rule("tools/list", Answer::Hold);
    let list = w.list(a, "tools/list");
    w.upstream.rule("tools/call", Answer::Status(429, ""));
    w.call(c);
    w.advance(2_000);
    // It goes first after the pause, and follows the one that is under way.
    w.list(b, "tools/list");
    w.cancel(a, list);
    let call = w.call(c);
    w.advance(100);
    assert_eq!(w.outcome(c, call), "ok");
}

#[test]
fn a_trial_of_a_lost_session_holds_nobody_up_in_the_next_one() {
    let mut w = World::new();
    let (a, b) = (w.joined(), w.joined());
    w.upstream.rule("tools/call", Answer::Facts(Vec::new()));
    w.call(a);
    let early = w.exchange("tools/call");
    w.upstream.rule("tools/call", Answer::Status(429, ""));
    w.call(b);
    w.advance(8_000);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(b);
    w.upstream.restart();
    w.fact(early, refused(404, ""));
    assert_eq!(w.sent("initialize"), 2);
    let call = w.call(a);
    w.advance(30_000);
    assert_eq!(w.outcome(a, call), "ok");
}

/// The end of one call must not send another that is then told to be unsent.
#[test]
fn a_purge_starts_nothing() {
    let mut w = World::new();
    let (a, b) = (w.joined(), w.joined());
    w.upstream.rule("tools/call", Answer::Status(429, ""));
    w.call(a);
    w.advance(2_000);
    w.upstream.rule("tools/call", Answer::Hold);
    let trial = w.call(a);
    let call = w.call(b);
    let before = w.sent("tools/call");
    w.put(Input::Purge(None));
    assert_eq!(w.sent("tools/call"), before);
    assert_eq!(w.outcome(a, trial), "outcome_unknown/unknown");
    assert!(w.outcome(b, call).ends_with("/refused"), "{}", w.outcome(b, call));
}

// ---- pauses and the GET stream ----

#[test]
fn a_stream_that_broke_in_a_pause_is_opened_after_it() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.upstream.rule("tools/call", Answer::StatusAfter(429, Duration::from_secs(10)));
    w.call(client);
    let get = w.exchange("GET");
    w.fact(get, cut());
    w.advance(12_000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    w.advance(20_000);
    assert_eq!(w.open.values().filter(|open| method_of(open) == "GET").count(), 1);
}

/// Whoever only listens is not forgotten because the calls of others failed.
#[test]
fn a_listener_gets_its_stream_again_after_an_outage_without_a_call() {
    for lost in [false, true] {
        let mut w = World::with(Policy { keepalive: Some(Duration::from_secs(120)), ..policy(NAME) });
        w.upstream.offers_stream = true;
        let (client, other) = (w.joined(), w.joined());
        w.listen(client);
        w.subscribe(client, "x:1");
        w.upstream.always = Some(Answer::NeverWritten);
        let get = w.exchange("GET");
        w.fact(get, cut());
        if lost {
            w.upstream.always = None;
            w.upstream.restart();
            w.upstream.rule("initialize", Answer::NeverWritten);
            w.advance(130_000);
        } else {
            for _ in 0..4 {
                w.call(other);
                w.advance(300);
            }
        }
        w.upstream.always = None;
        w.advance(120_000);
        assert_eq!(w.open.values().filter(|open| method_of(open) == "GET").count(), 1, "{lost}");
        assert_eq!(w.server().subscribed.len(), 1, "{lost}");
        let get = w.exchange("GET");
        w.heard(client);
        w.fact(get, says(&updated("x:1")));
        assert_eq!(w.heard(client).len(), 1, "{lost}");
    }
}

// ---- another config ----

#[test]
fn the_next_session_of_the_same_links_has_what_they_subscribed_and_their_levels() {
    for busy in [false, true] {
        let mut w = World::with(Policy { identity_from_config: true, ..policy(NAME) });
        w.upstream.offers_stream = true;
        let (a, b) = (w.joined(), w.joined());
        w.listen(a);
        w.subscribe(a, "x:1");
        w.set_level(a, "error");
        if busy {
            w.upstream.rule("tools/call", Answer::Hold);
            w.call(b);
        }
        move_on(&mut w);
        let call = w.call(b);
        assert_eq!(w.outcome(b, call), "ok");
        assert_eq!(w.upstream.minted, 2);
        assert!(w.server().subscribed.contains("x:1"), "{busy}");
        assert_eq!(w.server().level.as_deref(), Some("error"), "{busy}");
        w.heard(a);
        let get = w.exchange("GET");
        w.fact(get, says(&updated("x:1")));
        assert_eq!(w.heard(a).len(), 1, "{busy}");
        w.unsubscribe(a, "x:1");
        assert!(w.server().subscribed.is_empty(), "{busy}");
    }
}

#[test]
fn a_listener_hears_of_its_next_session_before_it_calls() {
    let mut w = World::with(Policy { identity_from_config: true, ..policy(NAME) });
    w.upstream.offers_stream = true;
    let a = w.joined();
    w.listen(a);
    w.subscribe(a, "x:1");
    move_on(&mut w);
    assert_eq!((w.upstream.minted, w.sent("initialize")), (2, 2));
    w.heard(a);
    let get = w.exchange("GET");
    w.fact(get, says(&updated("x:1")));
    assert_eq!(w.heard(a).len(), 1);
}

#[test]
fn a_superseded_session_is_ended_also_if_its_values_were_just_read() {
    let mut w = World::with(Policy {
        identity_from_config: true,
        refreshable: true,
        keepalive: Some(Duration::from_secs(60)),
        ..policy(NAME)
    });
    w.renewal = None;
    let a = w.joined();
    w.upstream.rule("ping", Answer::Status(401, ""));
    w.advance(61_000);
    assert!(w.is_refreshing());
    move_on(&mut w);
    w.refreshed(Renewal::Changed);
    w.call(a);
    w.advance(3_600_000);
    assert_eq!(w.upstream.deleted, 1);
}

/// A question that came when no call ran, in a session of the client's own.
#[test]
fn a_superseded_session_is_ended_after_the_last_answer_was_taken() {
    let mut w = World::with(Policy { own_sessions: true, identity_from_config: true, ..policy(NAME) });
    w.rules.many = true;
    w.upstream.offers_stream = true;
    let a = w.able(ABLE);
    w.listen(a);
    w.call(a);
    let get = w.exchange("GET");
    w.fact(get, says(&form("\"q\"")));
    let id = w.clients[a].asked[0].clone();
    move_on(&mut w);
    assert_eq!(w.upstream.deleted, 0, "a person is asked");
    w.auto = false;
    w.answer(a, &id);
    let post = w.exchange("response");
    assert_eq!(w.replies().len(), 1);
    w.advance(10);
    assert!(w.open.contains_key(&post), "the answer is on its way");
    w.auto = true;
    w.serve(post, Answer::Model);
    w.pump();
    assert_eq!(w.upstream.deleted, 1);
}

#[test]
fn each_session_of_one_client_is_ended_a_grace_after_it() {
    let mut w = World::with(Policy { own_sessions: true, identity_from_config: true, ..policy(NAME) });
    w.rules.many = true;
    w.upstream.offers_stream = true;
    let a = w.able(ABLE);
    w.listen(a);
    w.call(a);
    let get = w.exchange("GET");
    w.fact(get, says(&form("\"q\"")));
    move_on(&mut w);
    w.call(a);
    assert_eq!(w.upstream.minted, 2);
    w.end_link(a);
    w.advance(600_001);
    assert_eq!(w.upstream.deleted, 2);
}

#[test]
fn without_idle_and_grace_a_client_that_listens_keeps_its_session() {
    let mut w = World::with(Policy {
        own_sessions: true,
        idle: Duration::ZERO,
        grace: Duration::ZERO,
        keepalive: Some(Duration::ZERO),
        ..policy(NAME)
    });
    w.rules.many = true;
    w.upstream.offers_stream = true;
    w.policies[0].keepalive = None;
    w.configure();
    let a = w.able(ABLE);
    let stream = w.listen(a);
    w.advance(5_000);
    assert_eq!((w.upstream.deleted, w.upstream.minted), (0, 1));
    w.close(stream);
    w.advance(100_000_000);
    assert_eq!(w.upstream.deleted, 1);
}

// ---- chores ----

/// The last chore is done while the session is looked for: the record says so all the same.
#[test]
fn a_handshake_is_finished_in_the_record_whenever_its_last_chore_ends() {
    let mut w = World::new();
    let a = w.joined();
    w.subscribe(a, "x:1");
    w.upstream.restart();
    w.upstream.rule("resources/subscribe", Answer::Hold);
    w.upstream.rule("tools/call", Answer::Status(400, LOST));
    w.call(a);
    assert_eq!(w.sent("initialize"), 2);
    let chore = w.exchange("resources/subscribe");
    w.auto = false;
    w.call(a);
    let post = w.exchange("tools/call");
    w.serve(post, Answer::Status(404, ""));
    let text = result_of(&w.open[&chore].clone());
    w.fact(chore, head());
    w.fact(chore, says(&text));
    w.auto = true;
    w.pump();
    let state = w.disk.records()[0].handshake_state;
    assert_eq!(state, evermux_core::record::HandshakeState::Acknowledged);
}

// ---- answers that wait for the disk ----

#[test]
fn a_repeat_does_not_get_the_answer_before_what_it_says_is_on_disk() {
    let mut w = World::new();
    let a = w.joined();
    w.call(a);
    w.disk.stuck = true;
    let subscribe = w.subscribe(a, "x:1");
    assert_eq!(w.outcome(a, subscribe), "none");
    w.hang_up(a, subscribe);
    w.deliver(a, subscribe);
    assert_eq!(w.outcome(a, subscribe), "none");
    w.deliver(a, subscribe);
    assert_eq!(w.outcome(a, subscribe), "none");
    w.disk.stuck = false;
    w.pump();
    assert_eq!(w.outcome(a, subscribe), "ok");
    assert_eq!((w.sent("resources/subscribe"), w.hub.sizes()["held"]), (1, 0));
}

/// A client that tells of its progress without pause, about a session that cannot be reached.
#[test]
fn progress_of_a_client_is_not_queued_without_end() {
    let mut w = World::new();
    let a = w.able(ABLE);
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(a);
    let post = w.exchange("tools/call");
    w.fact(post, head());
    w.fact(post, says(
        r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?","_meta":{"progressToken":"t"}}}"#,
    ));
    w.auto = false;
    for _ in 0..1_000 {
        let text = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}"#;
        w.tell(a, text);
    }
    assert!(w.hub.sizes()["postings"] <= 64, "{:?}", w.hub.sizes());
    let id = w.clients[a].asked[0].clone();
    w.answer(a, &id);
    w.auto = true;
    w.pump();
    assert_eq!(w.replies().len(), 1);
}
