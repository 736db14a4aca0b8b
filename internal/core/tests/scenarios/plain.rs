//! Clients that are no shims: they number nothing, and come back with the id of the last event they saw.

use evermux_core::input::{Delivery, Fact, Input, Sender};
use evermux_core::seal::EventClaim;

use crate::common::{Answer, NAME, Reply, World, upstream::*};

const NEWEST: &str = "2025-11-25";

fn progress(token: u64, at: u64) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{at}}}}}"#
    )
}

/// A call of a plain client that its server has and does not answer yet.
fn held(revision: &str) -> (World, usize, u64, evermux_core::input::ExchangeId) {
    let mut w = World::new();
    let client = w.plain(revision);
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call_with_token(client, "\"t\"");
    let exchange = w.exchange("tools/call");
    w.fact(exchange, head());
    (w, client, call, exchange)
}

#[test]
fn the_first_event_is_an_id_to_come_back_with() {
    let (w, client, call, _) = held(NEWEST);
    let response = &w.responses[&w.stream_of(client, call)];
    assert_eq!((response.primes, response.ids, response.bodies.len()), (1, 1, 0));
    assert_ne!(w.last_event(client, call).wire.0, 0, "it names the call in every process");
}

#[test]
fn a_call_that_waits_has_an_id_at_once_and_a_better_one_later() {
    let mut w = World::new();
    let client = w.plain(NEWEST);
    w.upstream.rule("ping", Answer::Hold);
    w.kill(9);
    let call = w.call(client);
    assert_eq!((w.sent("tools/call"), w.responses[&w.stream_of(client, call)].primes), (0, 1));
    let early = w.last_event(client, call);
    w.upstream.rule("tools/call", Answer::Hold);
    let ping = w.exchange("ping");
    let text = result_of(&w.open[&ping].clone());
    w.fact(ping, head());
    w.fact(ping, says(&text));
    assert_eq!(w.responses[&w.stream_of(client, call)].primes, 2);
    assert_ne!(w.last_event(client, call).wire, early.wire);
    w.break_off(client, call);
    w.listen_after(client, Some(w.last_event(client, call)));
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn an_answer_lost_on_the_way_comes_again_from_the_store() {
    let (mut w, client, call, exchange) = held(NEWEST);
    let wire = w.wire(exchange);
    w.fact(exchange, says(&progress(wire, 1)));
    let seen = w.last_event(client, call);
    w.break_off(client, call);
    w.fact(exchange, says(&progress(wire, 2)));
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, call), "none");
    let stream = w.listen_after(client, Some(seen));
    assert_eq!(w.outcome(client, call), "ok");
    let progressed = &w.clients[client].sent[&call].progress;
    assert_eq!(progressed.len(), 2, "each once: {progressed:?}");
    assert!(w.responses[&stream].ended);
    assert_eq!(w.sent("GET"), 0, "the server was not needed");
}

/// The TypeScript SDK takes no error for an answer, and comes back after each one.
#[test]
fn who_has_seen_the_end_is_told_to_stay_away() {
    let (mut w, client, call, exchange) = held(NEWEST);
    let wire = w.wire(exchange);
    let error = format!(r#"{{"jsonrpc":"2.0","id":{wire},"error":{{"code":-32602,"message":"no"}}}}"#);
    w.fact(exchange, says(&error));
    let stream = w.listen_on(client, w.last_event(client, call));
    assert_eq!(w.responses[&stream].refused, Some(204));

    // The same where the answer is that nobody knows it.
    let (mut w, client, call, _) = held(NEWEST);
    w.kill(9);
    w.listen_after(client, Some(w.last_event(client, call)));
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
    let stream = w.listen_on(client, w.last_event(client, call));
    assert_eq!(w.responses[&stream].refused, Some(204));
}

#[test]
fn who_has_cancelled_is_told_to_stay_away() {
    let (mut w, client, call, exchange) = held(NEWEST);
    w.fact(exchange, Fact::Cursor("c1".to_owned()));
    w.cancel(client, call);
    w.advance(40_000);
    let gets = w.sent("GET");
    let stream = w.listen_on(client, w.last_event(client, call));
    assert_eq!((w.responses[&stream].refused, w.sent("GET")), (Some(204), gets));
    assert_eq!(w.hub.sizes()["calls"], 0, "nothing is looked for");
}

/// A resumed response that breaks before anything came on it: some clients know no other id than those of that one.
#[test]
fn a_resumed_response_has_an_id_at_once() {
    let (mut w, client, call, _) = held(NEWEST);
    let stream = w.listen_after(client, Some(w.last_event(client, call)));
    assert_eq!(w.responses[&stream].primes, 1);
    let (mut w, client, _, _) = listening();
    let seen = w.clients[client].position.clone().expect("an id");
    let stream = w.listen_on(client, seen);
    assert_eq!(w.responses[&stream].primes, 1);
}

#[test]
fn what_comes_while_a_client_is_away_waits_for_it() {
    let (mut w, client, call, exchange) = held(NEWEST);
    let wire = w.wire(exchange);
    w.hang_up(client, call);
    w.fact(exchange, says(&progress(wire, 1)));
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    w.listen_after(client, Some(w.last_event(client, call)));
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.clients[client].sent[&call].progress.len(), 1);
}

#[test]
fn who_comes_back_early_gets_the_rest_as_it_comes() {
    let (mut w, client, call, exchange) = held(NEWEST);
    let wire = w.wire(exchange);
    let seen = w.last_event(client, call);
    w.break_off(client, call);
    w.fact(exchange, says(&progress(wire, 1)));
    // The daemon does not know that the first response is gone.
    w.listen_after(client, Some(seen));
    w.fact(exchange, says(&progress(wire, 2)));
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.clients[client].sent[&call].progress.len(), 2);
}

#[test]
fn after_a_kill_the_replay_is_the_servers() {
    let (mut w, client, call, exchange) = held(NEWEST);
    let open = w.open[&exchange].clone();
    let wire = w.wire(exchange);
    w.fact(exchange, Fact::Cursor(format!("s1/{wire}/1")));
    let answer = says_at(&result_of(&open), &format!("s1/{wire}/2"));
    w.kill(9);
    w.upstream.rule("GET", Answer::Facts(vec![head(), answer, clean()]));
    w.listen_after(client, Some(w.last_event(client, call)));
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("tools/call"), w.sent("initialize")), (1, 1));
    let first = w.last_event(client, call);
    assert_eq!(first.place.map(|place| place.generation.0), Some(2), "ids go on in the next process");
}

/// The server's first event id was journalled, and lost on its way to the client.
#[test]
fn after_a_kill_a_journalled_position_is_as_good_as_the_clients_own() {
    let (mut w, client, call, exchange) = held(NEWEST);
    let open = w.open[&exchange].clone();
    let wire = w.wire(exchange);
    let seen = w.last_event(client, call);
    w.break_off(client, call);
    w.fact(exchange, Fact::Cursor(format!("s1/{wire}/1")));
    assert_eq!(seen.cursor, None);
    let answer = says_at(&result_of(&open), &format!("s1/{wire}/2"));
    w.kill(9);
    assert_eq!(w.hub.sizes()["journal"], 1);
    w.upstream.rule("GET", Answer::Facts(vec![head(), answer, clean()]));
    w.listen_after(client, Some(seen));
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("tools/call"), w.hub.sizes()["journal"]), (1, 0), "it is open no more");
}

#[test]
fn after_a_kill_nobody_knows_where_the_server_has_no_event_ids() {
    let (mut w, client, call, _) = held(NEWEST);
    w.kill(9);
    let stream = w.listen_after(client, Some(w.last_event(client, call)));
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
    assert!(w.responses[&stream].ended);
    assert_eq!(w.sent("tools/call"), 1);
}

#[test]
fn an_answer_too_large_for_the_store_is_asked_of_the_server_or_unknown() {
    for cursor in [None, Some("s1/2/1")] {
        let (mut w, client, call, exchange) = held(NEWEST);
        let open = w.open[&exchange].clone();
        if let Some(cursor) = cursor {
            w.fact(exchange, Fact::Cursor(cursor.into()));
            w.upstream
                .rule("GET", Answer::Facts(vec![head(), says_at(&result_of(&open), "s1/2/2"), clean()]));
        }
        w.break_off(client, call);
        let wire = w.wire(exchange);
        let tag = w.clients[client].sent[&call].tag.clone().unwrap();
        let pad = "x".repeat(70_000);
        let large = format!(
            r#"{{"jsonrpc":"2.0","id":{wire},"result":{{"content":[],"tag":"{tag}","pad":"{pad}"}}}}"#
        );
        let seen = w.last_event(client, call);
        w.fact(exchange, says(&large));
        w.listen_after(client, Some(seen));
        let expected = if cursor.is_some() { "ok" } else { "outcome_unknown/unknown" };
        assert_eq!(w.outcome(client, call), expected);
    }
}

#[test]
fn an_older_client_gets_ids_and_no_event_without_data() {
    for revision in ["2025-03-26", "2025-06-18"] {
        let (mut w, client, call, exchange) = held(revision);
        let wire = w.wire(exchange);
        w.fact(exchange, Fact::Cursor("s1/2/1".into()));
        let stream = w.stream_of(client, call);
        assert_eq!((w.responses[&stream].primes, w.responses[&stream].ids), (0, 0));
        w.fact(exchange, says(&progress(wire, 1)));
        assert_eq!(w.responses[&stream].ids, 1);
        assert_eq!(
            w.last_event(client, call).cursor.as_deref(),
            Some("s1/2/1"),
            "the server's position came along"
        );
    }
}

#[test]
fn equal_ids_at_once_get_their_own_answers() {
    let mut w = World::new();
    let client = w.plain(NEWEST);
    w.upstream.rule("tools/call", Answer::Hold);
    w.upstream.rule("tools/call", Answer::Hold);
    let calls = [(); 2].map(|()| {
        w.clients[client].next_raw_id = Some("1".into());
        w.call(client)
    });
    let exchanges: Vec<_> = w.open.keys().copied().collect();
    // Nobody can say which of them is meant.
    w.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    for exchange in exchanges.into_iter().rev() {
        let text = result_of(&w.open[&exchange].clone());
        w.fact(exchange, says(&text));
    }
    assert_eq!(calls.map(|call| w.outcome(client, call)), ["ok", "ok"]);
    assert_eq!(w.sent("notifications/cancelled"), 0);
    assert_eq!(w.hub.sizes()["pending"], 0);
    // Alone it is clear.
    w.upstream.rule("tools/call", Answer::Hold);
    w.clients[client].next_raw_id = Some("1".into());
    let call = w.call(client);
    w.fact(w.exchange("tools/call"), head());
    w.cancel(client, call);
    assert_eq!(w.sent("notifications/cancelled"), 1);
}

fn changed(mark: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{{"_meta":{{"mark":"{mark}"}}}}}}"#
    )
}

fn listening() -> (World, usize, evermux_core::input::StreamId, evermux_core::input::ExchangeId) {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.plain(NEWEST);
    let stream = w.listen(client);
    let exchange = w.exchange("GET");
    (w, client, stream, exchange)
}

#[test]
fn news_lost_on_the_way_come_again_and_no_others() {
    let (mut w, client, stream, exchange) = listening();
    assert_eq!(w.responses[&stream].primes, 1);
    w.fact(exchange, says(&changed(1)));
    let seen = w.clients[client].position.clone().expect("an id");
    w.responses.get_mut(&stream).unwrap().closed = true;
    w.fact(exchange, says(&changed(2)));
    w.put(Input::StreamClosed(stream));
    w.fact(exchange, says(&changed(3)));
    w.listen_on(client, seen);
    w.fact(exchange, says(&changed(4)));
    let heard = w.heard(client);
    let marks: Vec<_> =
        heard.iter().map(|text| text.split(r#""mark":""#).nth(1).unwrap().chars().next().unwrap()).collect();
    assert_eq!(marks, ['1', '2', '3', '4']);
}

#[test]
fn news_that_the_store_has_dropped_are_made_up_for() {
    let (mut w, client, stream, exchange) = listening();
    let seen = w.clients[client].position.clone().expect("an id");
    w.responses.get_mut(&stream).unwrap().closed = true;
    for mark in 0..300 {
        w.fact(exchange, says(&changed(mark)));
    }
    w.listen_on(client, seen);
    let heard = w.heard(client);
    assert!(heard.len() > 200, "what is still there comes");
    assert!(!heard.last().unwrap().contains("mark"), "and one word for the rest: {:?}", heard.last());
}

/// One log message to a crowd of listeners costs its size, not that size for each of them.
#[test]
fn news_are_kept_once_for_all_who_hear_them() {
    let (mut w, _, _, exchange) = listening();
    for _ in 0..20 {
        let client = w.plain(NEWEST);
        w.listen(client);
    }
    let text = "x".repeat(60_000);
    let log = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data":"{text}"}}}}"#
    );
    w.fact(exchange, says(&log));
    let kept = w.hub.kept_bytes();
    assert!((60_000..70_000).contains(&kept), "{kept}");
}

#[test]
fn a_get_stream_of_another_process_begins_anew() {
    let (mut w, client, _, _) = listening();
    let seen = w.clients[client].position.clone().expect("an id");
    w.kill(9);
    let stream = w.listen_on(client, seen);
    assert_eq!((w.responses[&stream].refused, w.responses[&stream].primes), (None, 1));
    w.fact(w.exchange("GET"), says(&changed(1)));
    assert!(w.heard(client).iter().any(|text| text.contains("mark")));
}

#[test]
fn delete_ends_the_link_and_is_refused_for_none() {
    let mut w = World::new();
    let client = w.plain(NEWEST);
    let other = w.plain(NEWEST);
    let link = w.clients[client].link.clone().expect("joined");
    let delete = |w: &mut World, upstream: &str, from: Sender| {
        let stream = w.stream(client, 0);
        w.put(Input::LinkEnded { stream, upstream: upstream.into(), from, delivery: Default::default() });
        (w.responses[&stream].taken, w.responses[&stream].refused)
    };
    assert_eq!(delete(&mut w, NAME, Sender::Unknown), (false, Some(400)));
    assert_eq!(delete(&mut w, NAME, Sender::Foreign), (false, Some(404)));
    assert_eq!(delete(&mut w, "elsewhere", Sender::Link(link.clone())), (false, Some(404)));
    assert_eq!(delete(&mut w, NAME, Sender::Link(link.clone())), (true, None));
    assert_eq!(delete(&mut w, NAME, Sender::Link(link)), (false, Some(404)), "it is gone");
    let call = w.call(other);
    assert_eq!(w.outcome(other, call), "ok");
    assert_eq!(w.sent("DELETE"), 0);
    let late = w.call(client);
    assert_eq!(w.outcome(client, late), "session_lost/refused");
}

#[test]
fn a_question_that_was_seen_is_not_shown_again() {
    for cursor in [None, Some("s1/2/5")] {
        let (mut w, client, call, exchange) = held(NEWEST);
        let before = w.last_event(client, call);
        let question = r#"{"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{"message":"?"}}"#;
        w.fact(
            exchange,
            match cursor {
                Some(at) => says_at(question, at),
                None => says(question),
            },
        );
        assert_eq!(w.clients[client].asked.len(), 1);
        let after = w.last_event(client, call);
        w.hang_up(client, call);
        w.listen_after(client, Some(after));
        assert_eq!(w.clients[client].asked.len(), 1, "it has it");
        // Who says that it saw less is shown it again, under the same id.
        let stream = w.stream(client, call);
        let from = Sender::Link(w.clients[client].link.clone().unwrap());
        w.put(Input::Listening {
            stream,
            upstream: NAME.into(),
            from,
            delivery: evermux_core::input::Delivery {
                after: Some(Box::new(before.clone())),
                ..Default::default()
            },
        });
        assert_eq!(w.clients[client].asked.len(), 2);
        assert_eq!(w.clients[client].asked[0], w.clients[client].asked[1]);
        let id = w.clients[client].asked[0].clone();
        w.answer(client, &id);
        // And nobody is shown what is over.
        let stream = w.stream(client, call);
        let from = Sender::Link(w.clients[client].link.clone().unwrap());
        w.put(Input::Listening {
            stream,
            upstream: NAME.into(),
            from,
            delivery: evermux_core::input::Delivery { after: Some(Box::new(before)), ..Default::default() },
        });
        assert_eq!(w.clients[client].asked.len(), 2);
    }
}

#[test]
fn an_event_id_opens_nothing_for_another_link() {
    let (mut w, client, call, _) = held(NEWEST);
    let after = w.last_event(client, call);
    let other = w.plain(NEWEST);
    let stream = w.stream(other, 0);
    let from = Sender::Link(w.clients[other].link.clone().unwrap());
    w.put(Input::Listening {
        stream,
        upstream: NAME.into(),
        from,
        delivery: evermux_core::input::Delivery { after: Some(Box::new(after)), ..Default::default() },
    });
    assert_eq!(w.responses[&stream].refused, Some(404));
}

#[test]
fn the_store_is_bounded_and_ends_with_its_link() {
    let mut w = World::new();
    let client = w.plain(NEWEST);
    let mut ids = Vec::new();
    for _ in 0..100 {
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let exchange = w.exchange("tools/call");
        ids.push((call, w.last_event(client, call)));
        let text = result_of(&w.open[&exchange].clone());
        w.fact(exchange, says(&text));
    }
    assert_eq!(w.hub.sizes()["trails"], 0, "those that have ended do not count");
    let again = |w: &mut World, (_, after): &(u64, EventClaim)| {
        let stream = w.stream(client, 0);
        w.responses.get_mut(&stream).unwrap().listening = true;
        let from = Sender::Link(w.clients[client].link.clone().unwrap());
        w.put(Input::Listening {
            stream,
            upstream: NAME.into(),
            from,
            delivery: evermux_core::input::Delivery {
                after: Some(Box::new(after.clone())),
                ..Default::default()
            },
        });
        w.responses[&stream].bodies.concat()
    };
    assert!(again(&mut w, &ids[99]).contains("\"result\""));
    assert!(again(&mut w, &ids[0]).contains("outcome_unknown"), "pushed out by its own later calls");
    w.advance(3_600_000);
    assert!(!again(&mut w, &ids[98]).contains("\"result\""), "nobody came back for it in time");
}

/// The call that takes long is the one whose connection breaks: what pushes out is what ended before it, not what
/// began after it.
#[test]
fn the_answer_of_a_long_call_is_kept_however_many_short_ones_there_were() {
    let (mut w, client, call, exchange) = held(NEWEST);
    for _ in 0..40 {
        let short = w.call(client);
        assert_eq!(w.outcome(client, short), "ok");
        w.advance(1);
    }
    w.break_off(client, call);
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    w.listen_after(client, Some(w.last_event(client, call)));
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn events_of_a_batch_carry_no_id() {
    let mut w = World::new();
    let client = w.plain("2025-03-26");
    w.clients[client].batched = true;
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let exchange = w.exchange("tools/call");
    w.fact(exchange, head());
    w.fact(exchange, Fact::Cursor("s1/2/1".into()));
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says_at(&text, "s1/2/2"));
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.responses[&w.stream_of(client, call)].ids, 0);
}

#[test]
fn an_answer_that_waits_for_the_disk_finds_its_client_elsewhere() {
    for back_before in [true, false] {
        let mut w = World::new();
        let client = w.plain(NEWEST);
        w.auto = false;
        let call = w.subscribe(client, "x:1");
        w.serve(w.exchange("resources/subscribe"), Answer::Model);
        assert_eq!(w.outcome(client, call), "none", "not on disk yet");
        let seen = w.last_event(client, call);
        w.hang_up(client, call);
        if back_before {
            w.listen_after(client, Some(seen.clone()));
        }
        w.auto = true;
        w.pump();
        if !back_before {
            w.listen_after(client, Some(seen));
        }
        assert_eq!(w.outcome(client, call), "ok");
        assert_eq!(w.hub.sizes()["held"], 0);
    }
}

#[test]
fn a_stop_is_only_seen() {
    let (mut w, client, stream, _) = listening();
    w.put(Input::Drain);
    assert!(w.responses[&stream].ended && !w.responses[&stream].stopping);
    let late = w.listen(client);
    assert!(w.responses[&late].ended && !w.responses[&late].stopping);
}

#[test]
fn a_request_of_a_list_that_changes_hands_keeps_each_clients_ids_apart() {
    let mut w = World::new();
    let clients = [w.plain(NEWEST), w.plain(NEWEST)];
    w.upstream.rule("tools/list", Answer::Hold);
    let lists = clients.map(|client| w.list(client, "tools/list"));
    w.cancel(clients[0], lists[0]);
    w.break_off(clients[1], lists[1]);
    let seen = w.last_event(clients[1], lists[1]);
    let exchange = w.exchange("tools/list");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    w.listen_after(clients[1], Some(seen));
    assert_eq!(w.outcome(clients[1], lists[1]), "ok");
    assert_eq!(w.reply(clients[0], lists[0]), None::<&Reply>);
}

#[test]
fn a_delivery_without_a_number_makes_the_link_plain_for_good() {
    let mut w = World::new();
    let client = w.plain(NEWEST);
    let shim = w.able(r#"{"elicitation":{}}"#);
    w.kill(9);
    let call = w.call(client);
    assert!(w.responses[&w.stream_of(client, call)].primes > 0, "it is sealed in the link id");
    let call = w.call(shim);
    assert_eq!(w.responses[&w.stream_of(shim, call)].primes, 0);
    assert!(!Delivery::default().batched);
}
