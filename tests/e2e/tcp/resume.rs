//! What a client finds that comes back with the id of the last event it saw: after a cut, and after a kill.

use evermux_testkit::{Replies, SseEvent};

use super::life::{config, free_port};
use super::*;

const GATE: &str =
    r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"gate","arguments":{"name":"g"}}}"#;

/// Upstream, daemon on a port that stays the same, one client of the newest revision.
fn world(replies: Replies) -> (Harness, Upstream, SocketAddr, HttpLink) {
    let (harness, upstream) = with_upstream(Script::replying(replies));
    let address = free_port();
    harness.write_config(&config(&upstream, &address.to_string()));
    harness.start_daemon();
    let link = HttpLink::greeted(&harness, address);
    (harness, upstream, address, link)
}

/// Begins the call and reads the first event; the connection is dropped with the client.
fn begun(upstream: &Upstream, address: SocketAddr, link: &HttpLink) -> SseEvent {
    let mut http = dial(address);
    let mut reply = http.open_mcp(UP, &link.headers(), GATE).unwrap();
    let first = http.next_event(&mut reply).unwrap().expect("a first event");
    upstream.wait_at_gate("g", 1, PATIENCE);
    first
}

fn events_after(address: SocketAddr, link: &HttpLink, id: &str) -> Vec<SseEvent> {
    let mut http = dial(address);
    let headers = [&link.headers()[..], &[("last-event-id", id)]].concat();
    let mut reply = http.open_stream(UP, &headers).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    http.all_events(&mut reply).unwrap()
}

#[track_caller]
fn answer(events: &[SseEvent]) -> Value {
    let answers = events.iter().filter(|event| !event.data.is_empty());
    let answers: Vec<Value> = answers.map(|event| serde_json::from_str(&event.data).unwrap()).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["id"], 9);
    answers[0].clone()
}

#[test]
fn a_cut_costs_nothing_whatever_the_server_numbers() {
    for replies in [Replies::SseWithIds, Replies::Sse, Replies::Json] {
        let (_harness, upstream, address, mut link) = world(replies);
        let first = begun(&upstream, address, &link);
        assert!(first.data.is_empty() && first.retry.is_some(), "{first:?}");
        upstream.open_gate("g");
        upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().all(|session| session.running == 0));
        let id = first.id.expect("an id to come back with");
        for _again in 0..2 {
            let answer = answer(&events_after(address, &link, &id));
            assert_eq!(answer["result"]["structuredContent"]["passed"], true);
        }
        assert_eq!(upstream.count(|entry| entry.calls("gate")), 1);
        assert_eq!(link.count(), 1);
    }
}

#[test]
fn a_kill_costs_nothing_where_the_server_has_event_ids() {
    let (harness, upstream, address, mut link) = world(Replies::SseWithIds);
    let mut http = dial(address);
    let mut reply = http.open_mcp(UP, &link.headers(), GATE).unwrap();
    upstream.wait_at_gate("g", 1, PATIENCE);
    // The server's first id comes on the heels of ours, which alone say when to come back.
    let mut events = std::iter::from_fn(|| http.next_event(&mut reply).unwrap());
    let servers = events.find(|event| event.retry.is_none()).and_then(|event| event.id).expect("an id");
    harness.kill_daemon();
    upstream.open_gate("g");
    harness.start_daemon();
    let answer = answer(&events_after(address, &link, &servers));
    assert_eq!(answer["result"]["structuredContent"]["passed"], true);
    link.http = dial(address);
    assert_eq!(link.count(), 1);
    assert_eq!((upstream.count(|entry| entry.calls("gate")), upstream.initializes()), (1, 1));
    upstream.assert_no_violations();
}

#[test]
fn a_kill_leaves_nobody_waiting_where_it_has_none() {
    let (harness, upstream, address, mut link) = world(Replies::Sse);
    let first = begun(&upstream, address, &link);
    harness.kill_daemon();
    harness.start_daemon();
    let answer = answer(&events_after(address, &link, &first.id.expect("an id")));
    assert_eq!(answer["error"]["data"]["evermux"]["kind"], "outcome_unknown");
    upstream.open_gate("g");
    link.http = dial(address);
    assert_eq!(link.count(), 1);
    assert_eq!((upstream.count(|entry| entry.calls("gate")), upstream.initializes()), (1, 1));
}

/// One big connector numbers all that it asks 1, on one session for everybody (field failure B35).
#[test]
fn equal_ids_at_once_get_their_own_answers() {
    let (_harness, upstream, address, link) = world(Replies::SseWithIds);
    let slow = GATE.replace("\"id\":9", "\"id\":1");
    let fast = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter"}}"#;
    let mut slow_http = dial(address);
    let mut slow_reply = slow_http.open_mcp(UP, &link.headers(), &slow).unwrap();
    upstream.wait_at_gate("g", 1, PATIENCE);
    let fast_reply = dial(address).post_mcp(UP, &link.headers(), fast).unwrap();
    assert_eq!(messages(&fast_reply)[0]["result"]["structuredContent"]["count"], 1, "{}", fast_reply.text());
    upstream.open_gate("g");
    let events = slow_http.all_events(&mut slow_reply).unwrap();
    let last: Value = serde_json::from_str(&events.last().expect("an answer").data).unwrap();
    assert_eq!((&last["id"], &last["result"]["structuredContent"]["passed"]), (&json!(1), &json!(true)));
}

#[test]
fn an_event_id_of_somebody_else_is_refused() {
    let (harness, upstream, address, link) = world(Replies::SseWithIds);
    let first = begun(&upstream, address, &link);
    let other = HttpLink::greeted(&harness, address);
    let id = first.id.expect("an id");
    for (link, id, status) in [(&other, id.as_str(), 404), (&link, "made-up", 400)] {
        let headers =
            [&link.headers()[..], &[("last-event-id", id), ("accept", "text/event-stream")]].concat();
        let reply = dial(address).exchange("GET", UP, &headers, "").unwrap();
        assert_eq!(reply.status, status, "{}", reply.text());
    }
    upstream.open_gate("g");
}
