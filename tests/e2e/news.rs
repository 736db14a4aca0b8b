//! What servers say unasked reaches whom it is for, once; what clients asked for together is asked for once.

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, GetSupport, Harness, Script, ShimClient, Upstream};
use serde_json::{Value, json};

use crate::support::{PATIENCE, with_upstream};

const URI: &str = "test://counter";

fn client(harness: &Harness) -> ShimClient {
    let mut client = harness.connect("up");
    assert!(client.initialize("2025-11-25").error().is_none());
    client
}

fn ask(client: &mut ShimClient, method: &str, params: &Value) -> Answer {
    let pending = client.request(method, &params.to_string());
    client.wait(&pending, PATIENCE)
}

#[track_caller]
fn accepted(client: &mut ShimClient, method: &str, params: &Value) {
    let answer = ask(client, method, params);
    assert!(answer.error().is_none(), "{}", answer.raw);
}

/// The session's GET stream is there: what the server says now reaches evermux.
fn wait_listening(upstream: &Upstream) {
    upstream.wait_sessions(PATIENCE, |sessions| sessions.len() == 1 && sessions[0].get_open);
}

/// A notification that everybody gets, so that what came before it on the same stream has come too. It is said until
/// all have heard it: it is not kept for a client whose own stream is not open yet.
#[track_caller]
fn mark(upstream: &Upstream, clients: &[&ShimClient], name: &str) {
    let method = format!("notifications/mark-{name}");
    let message = json!({"jsonrpc": "2.0", "method": method}).to_string();
    let all = poll_until(PATIENCE, || {
        upstream.notify(&message);
        clients.iter().all(|client| heard(client, &method) > 0).then_some(())
    });
    assert!(all.is_some(), "not everybody heard {method}");
}

fn heard(client: &ShimClient, method: &str) -> usize {
    client.notifications().iter().filter(|news| news.method() == method).count()
}

const UPDATED: &str = "notifications/resources/updated";
const TOOLS: &str = "notifications/tools/list_changed";

#[test]
fn updates_go_to_subscribers_and_subscriptions_are_counted() {
    let (harness, upstream) = with_upstream(Script::default());
    let (mut one, mut two, other) = (client(&harness), client(&harness), client(&harness));
    wait_listening(&upstream);
    accepted(&mut one, "resources/subscribe", &json!({"uri": URI}));
    accepted(&mut two, "resources/subscribe", &json!({"uri": URI}));
    assert_eq!(upstream.count_of("resources/subscribe"), 1);
    upstream.touch_resource(URI);
    mark(&upstream, &[&one, &two, &other], "a");
    assert_eq!([&one, &two, &other].map(|client| heard(client, UPDATED)), [1, 1, 0]);
    accepted(&mut one, "resources/unsubscribe", &json!({"uri": URI}));
    assert_eq!(upstream.count_of("resources/unsubscribe"), 0);
    upstream.touch_resource(URI);
    mark(&upstream, &[&one, &two, &other], "b");
    assert_eq!([&one, &two, &other].map(|client| heard(client, UPDATED)), [1, 2, 0]);
    accepted(&mut two, "resources/unsubscribe", &json!({"uri": URI}));
    assert_eq!(upstream.count_of("resources/unsubscribe"), 1);
    upstream.assert_no_violations();
}

#[test]
fn a_client_that_ends_takes_its_subscription_along() {
    let (harness, upstream) = with_upstream(Script::default());
    let (mut one, two) = (client(&harness), client(&harness));
    accepted(&mut one, "resources/subscribe", &json!({"uri": URI}));
    upstream.wait_sessions(PATIENCE, |sessions| sessions[0].subscriptions == [URI]);
    assert_eq!(one.close(PATIENCE), Some(0));
    upstream.wait_sessions(PATIENCE, |sessions| sessions[0].subscriptions.is_empty());
    assert_eq!(upstream.count_of("resources/unsubscribe"), 1);
    upstream.assert_no_violations();
    drop(two);
}

/// The running clients subscribed and set levels once; what the session lost is asked for again by evermux.
#[test]
fn a_fresh_session_gets_back_what_clients_had_asked_for() {
    let (harness, upstream) = with_upstream(Script::default());
    let (mut one, mut two) = (client(&harness), client(&harness));
    wait_listening(&upstream);
    accepted(&mut one, "resources/subscribe", &json!({"uri": URI}));
    accepted(&mut two, "logging/setLevel", &json!({"level": "warning"}));
    upstream.forget_sessions();
    assert_eq!(two.call("counter", "{}").structured()["count"], 1);
    upstream.wait_sessions(PATIENCE, |sessions| {
        let fresh = &sessions[0];
        fresh.subscriptions == [URI] && fresh.log_level.as_deref() == Some("warning")
    });
    one.wait_notification(PATIENCE, |news| news.method() == UPDATED);
    for client in [&one, &two] {
        client.wait_notification(PATIENCE, |news| news.method() == TOOLS);
    }
    wait_listening(&upstream);
    mark(&upstream, &[&one, &two], "a");
    assert_eq!([&one, &two].map(|client| heard(client, UPDATED)), [1, 0]);
    assert_eq!([&one, &two].map(|client| heard(client, TOOLS)), [1, 1]);
    assert_eq!(upstream.initializes(), 2);
    upstream.assert_no_violations();
}

#[test]
fn subscriptions_and_levels_outlive_the_daemon() {
    let (harness, upstream) = with_upstream(Script::default());
    let (mut one, mut two) = (client(&harness), client(&harness));
    wait_listening(&upstream);
    accepted(&mut one, "resources/subscribe", &json!({"uri": URI}));
    accepted(&mut two, "logging/setLevel", &json!({"level": "error"}));
    accepted(&mut one, "logging/setLevel", &json!({"level": "debug"}));
    harness.kill_daemon();
    for client in [&mut one, &mut two] {
        assert!(client.call("counter", "{}").error().is_none());
    }
    wait_listening(&upstream);
    mark(&upstream, &[&one, &two], "a");
    let before = heard(&one, UPDATED);
    upstream.touch_resource(URI);
    upstream.log("info", "for one");
    upstream.log("error", "for both");
    mark(&upstream, &[&one, &two], "b");
    assert_eq!((heard(&one, UPDATED), heard(&two, UPDATED)), (before + 1, 0));
    let logs = |client: &ShimClient| heard(client, "notifications/message");
    assert_eq!((logs(&one), logs(&two)), (2, 1));
    assert_eq!((upstream.count_of("resources/subscribe"), upstream.initializes()), (1, 1));
    upstream.assert_no_violations();
}

#[test]
fn each_client_gets_the_log_level_it_asked_for() {
    let (harness, upstream) = with_upstream(Script::default());
    let (mut quiet, mut chatty) = (client(&harness), client(&harness));
    wait_listening(&upstream);
    accepted(&mut quiet, "logging/setLevel", &json!({"level": "error"}));
    accepted(&mut chatty, "logging/setLevel", &json!({"level": "debug"}));
    upstream.wait_sessions(PATIENCE, |sessions| sessions[0].log_level.as_deref() == Some("debug"));
    mark(&upstream, &[&quiet, &chatty], "listening");
    upstream.log("info", "small talk");
    upstream.log("alert", "fire");
    mark(&upstream, &[&quiet, &chatty], "a");
    let logs = |client: &ShimClient| heard(client, "notifications/message");
    assert_eq!((logs(&quiet), logs(&chatty)), (1, 2));
    // What one call logs is its caller's only.
    let answer = quiet.call("log", r#"{"level":"info","text":"mine","times":2}"#);
    assert!(answer.error().is_none(), "{}", answer.raw);
    let answer = chatty.call("log", r#"{"level":"info","text":"mine","times":2}"#);
    assert!(answer.error().is_none(), "{}", answer.raw);
    mark(&upstream, &[&quiet, &chatty], "b");
    assert_eq!((logs(&quiet), logs(&chatty)), (1, 4));
    // The most verbose client leaves: the upstream is asked for less.
    assert_eq!(chatty.close(PATIENCE), Some(0));
    upstream.wait_sessions(PATIENCE, |sessions| sessions[0].log_level.as_deref() == Some("error"));
    upstream.assert_no_violations();
}

#[test]
fn ten_clients_that_list_at_once_cost_one_request_until_the_list_changes() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients: Vec<_> = (0..10).map(|_| client(&harness)).collect();
    wait_listening(&upstream);
    upstream.stall("tools/list");
    let asked: Vec<_> = clients.iter_mut().map(|client| client.request("tools/list", "{}")).collect();
    // All of them are in, and one went on: the last one's ping is answered behind its list.
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.is("tools/list")));
    for client in &mut clients {
        assert!(ask(client, "ping", &json!({})).error().is_none());
    }
    upstream.release("tools/list");
    let lists: Vec<_> =
        clients.iter().zip(&asked).map(|(client, pending)| client.wait(pending, PATIENCE)).collect();
    assert!(lists.iter().all(|list| list.result_value()["tools"] == lists[0].result_value()["tools"]));
    for client in &mut clients {
        accepted(client, "tools/list", &json!({}));
    }
    assert_eq!(upstream.count_of("tools/list"), 1);
    upstream.add_tool("new-one");
    upstream.list_changed("tools");
    for client in &mut clients {
        client.wait_notification(PATIENCE, |news| news.method() == TOOLS);
        let list = ask(client, "tools/list", &json!({}));
        assert!(list.raw.contains("new-one"), "{}", list.raw);
    }
    mark(&upstream, &clients.iter().collect::<Vec<_>>(), "a");
    assert!(clients.iter().all(|client| heard(client, TOOLS) == 1));
    assert_eq!(upstream.count_of("tools/list"), 2);
    upstream.assert_no_violations();
}

/// Without a stream that would tell of changes nothing is kept.
#[test]
fn nothing_is_cached_where_nobody_would_hear_of_a_change() {
    let script = Script { get_stream: GetSupport::MethodNotAllowed, ..Script::default() };
    let (harness, upstream) = with_upstream(script);
    let mut one = client(&harness);
    accepted(&mut one, "tools/list", &json!({}));
    upstream.add_tool("new-one");
    assert!(ask(&mut one, "tools/list", &json!({})).raw.contains("new-one"));
    assert_eq!(upstream.count_of("tools/list"), 2);
}

#[test]
fn cursors_end_with_their_session() {
    let (harness, upstream) = with_upstream(Script { page_size: Some(2), ..Script::default() });
    let mut one = client(&harness);
    let first = ask(&mut one, "tools/list", &json!({})).result_value();
    let cursor = first["nextCursor"].clone();
    assert!(cursor.is_string(), "{first}");
    let second = ask(&mut one, "tools/list", &json!({"cursor": cursor})).result_value();
    assert_ne!(second["tools"], first["tools"]);
    upstream.forget_sessions();
    assert_eq!(one.call("counter", "{}").structured()["count"], 1);
    let lists = upstream.count_of("tools/list");
    let answer = ask(&mut one, "tools/list", &json!({"cursor": cursor}));
    assert_eq!(answer.error_code(), Some(-32602), "{}", answer.raw);
    assert_eq!(upstream.count_of("tools/list"), lists, "the old cursor went out");
    let again = ask(&mut one, "tools/list", &json!({})).result_value();
    assert_eq!(again["tools"], first["tools"]);
}

/// A server may end its streams at any time; those with event ids are read on, and nothing is missed or told twice.
#[test]
fn what_is_said_and_answered_on_streams_that_were_ended_comes_once() {
    let (harness, upstream) = with_upstream(Script::default());
    let (mut one, two) = (client(&harness), client(&harness));
    wait_listening(&upstream);
    mark(&upstream, &[&one, &two], "listening");
    let call = one.start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    upstream.end_streams();
    upstream.open_gate("g");
    assert_eq!(one.wait(&call, PATIENCE).error(), None);
    wait_listening(&upstream);
    upstream.end_get_streams();
    upstream.list_changed("tools");
    mark(&upstream, &[&one, &two], "a");
    assert_eq!([&one, &two].map(|client| heard(client, TOOLS)), [1, 1]);
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 1);
    assert_eq!(upstream.initializes(), 1);
    upstream.assert_no_violations();
}

#[test]
fn tasks_of_a_server_are_not_offered_to_clients_that_share_it() {
    let (harness, _upstream) = with_upstream(Script { tasks: true, ..Script::default() });
    let mut one = harness.connect("up");
    let greeting = one.initialize("2025-11-25").result_value();
    assert_eq!(greeting["capabilities"].get("tasks"), None, "{greeting}");
    assert!(greeting["capabilities"]["tools"].is_object(), "{greeting}");
    assert_eq!(ask(&mut one, "tasks/list", &json!({})).error_code(), Some(-32601));
}
