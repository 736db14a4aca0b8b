//! Many clients on one upstream session: nothing crosses, nothing is changed on the way, and the upstream sees one
//! client that keeps all its rules.

mod bytes;

use std::collections::BTreeSet;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, Harness, Pending, Replies, Script, ShimClient, Upstream};
use serde_json::{Value, json};

use crate::support::{PATIENCE, with_settings, with_upstream};

/// Calls one client has in flight at a time; more would only measure pipes.
const WINDOW: usize = 16;

fn clients(harness: &Harness, count: usize) -> Vec<ShimClient> {
    let mut clients: Vec<_> = (0..count).map(|_| harness.connect("up")).collect();
    for client in &mut clients {
        assert_eq!(client.initialize("2025-11-25").error(), None);
    }
    clients
}

#[track_caller]
fn took_well(answer: &Answer) {
    assert_eq!(answer.error(), None);
}

/// One handshake, one session, no rule broken: ids that repeat first of all.
#[track_caller]
fn check_one_session(upstream: &Upstream) -> String {
    let minted: BTreeSet<String> = upstream.minted_sessions().into_iter().collect();
    assert_eq!((upstream.initializes(), minted.len()), (1, 1), "\n{}", upstream.summary());
    upstream.assert_no_violations();
    let session = minted.into_iter().next().unwrap();
    let strangers = upstream.count(|entry| entry.session.as_ref().is_some_and(|id| *id != session));
    assert_eq!(strangers, 0);
    session
}

#[test]
fn ten_clients_make_one_initialize_and_one_session() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 10);
    let counts: BTreeSet<u64> = clients
        .iter_mut()
        .map(|client| client.call("counter", "{}").structured()["count"].as_u64().unwrap())
        .collect();
    assert_eq!(counts, (1..=10).collect());
    check_one_session(&upstream);
    let status = harness.status();
    assert_eq!(status["sessions"].as_array().unwrap().len(), 1, "{status:#}");
    assert_eq!(status["sessions"][0]["links"], 10, "{status:#}");
    assert_eq!(status["sessions"][0]["initializes"], 1, "{status:#}");
}

#[test]
fn ten_clients_that_begin_at_once_make_one_session() {
    let (harness, upstream) = with_upstream(Script::default());
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut client = harness.connect("up");
                took_well(&client.initialize("2025-11-25"));
                took_well(&client.call("counter", "{}"));
            });
        }
    });
    check_one_session(&upstream);
    assert_eq!(upstream.count(|entry| entry.calls("counter")), 10);
}

#[test]
fn with_annotate_every_result_names_its_session() {
    let (harness, _upstream) = with_settings(Script::default(), "annotate = true");
    let mut client = clients(&harness, 1).remove(0);
    let session = |answer: &Answer| answer.result_value()["_meta"]["evermux/session"].clone();
    let first = session(&client.call("counter", "{}"));
    assert!(first["trajectory"].is_string() && first["handshake"] == 1, "{first}");
    assert_eq!(session(&client.call("counter", "{}")), first);
}

/// Calls `echo` `count` times with ids that every other client uses too, and looks at each answer.
fn call_with_common_ids(client: &mut ShimClient, name: usize, count: usize) {
    let mut waiting: Vec<(Pending, String)> = Vec::new();
    for n in 0..count {
        // Numbers and strings of the same text: 1 and "1" are two requests.
        let id = if n % 2 == 0 { format!("{}", 1000 + n / 2) } else { format!(r#""{}""#, 1000 + n / 2) };
        let arguments = format!(r#"{{"client":{name},"id":{id}}}"#);
        let params = format!(r#"{{"name":"echo","arguments":{arguments}}}"#);
        waiting.push((client.request_with_id(&id, "tools/call", &params), arguments));
        if waiting.len() == WINDOW {
            waiting.drain(..).for_each(|(pending, arguments)| check_echo(client, &pending, &arguments));
        }
    }
    waiting.drain(..).for_each(|(pending, arguments)| check_echo(client, &pending, &arguments));
    client.check();
    assert_eq!(client.unanswered(), 0);
}

/// The kit matches an answer by the raw text of its id, so a changed type would be no answer at all.
#[track_caller]
fn check_echo(client: &ShimClient, pending: &Pending, arguments: &str) {
    let answer = client.wait(pending, PATIENCE);
    let expected =
        format!(r#"{{"content":[{{"type":"text","text":"ok"}}],"structuredContent":{arguments}}}"#);
    assert_eq!(without_notice(answer.result()), expected);
}

fn check_equal_ids(n_clients: usize, calls_each: usize) {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, n_clients);
    std::thread::scope(|scope| {
        for (name, client) in clients.iter_mut().enumerate() {
            scope.spawn(move || call_with_common_ids(client, name, calls_each));
        }
    });
    let session = check_one_session(&upstream);
    let ids = upstream.ids_of_session(&session);
    assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len());
    assert_eq!(upstream.count(|entry| entry.calls("echo")), n_clients * calls_each);
    for client in &mut clients {
        assert_eq!(client.close(PATIENCE), Some(0));
    }
}

#[test]
fn two_clients_with_equal_ids_get_their_own_answers() {
    check_equal_ids(2, 200);
}

#[test]
fn ten_clients_with_equal_ids_get_their_own_answers() {
    check_equal_ids(10, 1000);
}

/// The tokens of the progress that came for `total` steps, in order, as raw text.
fn tokens(client: &ShimClient, total: usize) -> Vec<String> {
    let of_call = |message: &Answer| {
        let params: Value = serde_json::from_str(message.params()).unwrap();
        (params["total"] == total).then(|| params["progressToken"].to_string())
    };
    client
        .notifications()
        .iter()
        .filter(|n| n.method() == "notifications/progress")
        .filter_map(of_call)
        .collect()
}

/// All clients use the same two tokens at the same time: the number 1 and the string "1". How many steps a call has
/// says whose it is.
#[test]
fn colliding_progress_tokens_come_back_to_their_owners() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 5);
    let mut calls = Vec::new();
    for (place, client) in clients.iter_mut().enumerate() {
        for (token, total) in [("1", 2 + 2 * place), (r#""1""#, 3 + 2 * place)] {
            let params = format!(
                r#"{{"name":"slow","arguments":{{"steps":{total},"gate":"all"}},"_meta":{{"progressToken":{token}}}}}"#
            );
            calls.push((place, token, total, client.request("tools/call", &params)));
        }
    }
    upstream.wait_at_gate("all", calls.len(), PATIENCE);
    upstream.open_gate("all");
    for (place, token, total, pending) in &calls {
        let client = &clients[*place];
        took_well(&client.wait(pending, PATIENCE));
        // A call's progress goes before its answer on the same stream, so nothing can still be under way.
        assert_eq!(tokens(client, *total), vec![(*token).to_owned(); *total], "client {place}");
    }
    for (place, client) in clients.iter().enumerate() {
        let all = client.notifications().iter().filter(|n| n.method() == "notifications/progress").count();
        assert_eq!(all, 5 + 4 * place, "client {place} got progress of others");
    }
    let sent: BTreeSet<String> = upstream
        .journal()
        .iter()
        .filter(|entry| entry.calls("slow"))
        .map(|entry| {
            serde_json::from_str::<Value>(&entry.body).unwrap()["params"]["_meta"]["progressToken"]
                .to_string()
        })
        .collect();
    assert_eq!(sent.len(), calls.len(), "tokens that the upstream cannot tell apart");
    check_one_session(&upstream);
}

#[test]
fn a_cancel_reaches_the_right_call_only() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    let gates = ["a", "b", "c"];
    let mut calls = Vec::new();
    for (client, gate) in clients.iter_mut().zip(gates) {
        let params = format!(r#"{{"name":"gate","arguments":{{"name":"{gate}"}}}}"#);
        calls.push(client.request_with_id("7", "tools/call", &params));
    }
    gates.iter().for_each(|gate| upstream.wait_at_gate(gate, 1, PATIENCE));
    clients[1].notify("notifications/cancelled", r#"{"requestId":7,"reason":"enough"}"#);
    // Of the other type: names no request of this client.
    clients[2].notify("notifications/cancelled", r#"{"requestId":"7"}"#);
    upstream.wait_at_gate("b", 0, PATIENCE);
    // Behind the cancels on the same links: when it is answered, they were taken.
    clients.iter_mut().for_each(|client| took_well(&client.call("echo", "{}")));
    let journal = upstream.journal();
    let call = journal.iter().find(|entry| entry.body.contains(r#""name":"b""#)).unwrap();
    let cancels: Vec<Value> = journal
        .iter()
        .filter(|entry| entry.is("notifications/cancelled"))
        .map(|entry| serde_json::from_str(&entry.body).unwrap())
        .collect();
    assert_eq!(cancels.len(), 1, "{cancels:#?}");
    assert_eq!(cancels[0]["params"]["requestId"].to_string(), *call.id.as_ref().unwrap());
    assert_eq!(cancels[0]["params"]["reason"], "enough");
    upstream.open_gate("a");
    upstream.open_gate("c");
    took_well(&clients[0].wait(&calls[0], PATIENCE));
    took_well(&clients[2].wait(&calls[2], PATIENCE));
    assert_eq!(clients[1].unanswered(), 1, "a cancelled request was answered");
    check_one_session(&upstream);
}

#[test]
fn a_change_of_the_list_is_told_once_to_each_client() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 5);
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    let told = |client: &ShimClient| {
        client.notifications().iter().filter(|n| n.method() == "notifications/tools/list_changed").count()
    };
    for round in 1..=3 {
        took_well(&clients[0].call("list_change", "{}"));
        for client in &clients {
            let reached = poll_until(PATIENCE, || (told(client) >= round).then_some(()));
            assert!(reached.is_some(), "round {round}: {:?}", client.notifications());
        }
    }
    // Whatever came twice in the first rounds stands before the last round's message on the same stream.
    for client in &clients {
        assert_eq!(told(client), 3, "{:?}", client.notifications());
    }
    check_one_session(&upstream);
}

#[test]
fn a_ping_of_the_server_is_answered_once_and_shown_to_nobody() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    for id in [r#""are you there""#, "12345678901234567890"] {
        upstream.notify(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
        upstream.wait_for(PATIENCE, |journal| {
            journal
                .iter()
                .any(|entry| entry.id.as_deref() == Some(id) && entry.body.contains(r#""result":{}"#))
        });
    }
    clients.iter_mut().for_each(|client| took_well(&client.call("echo", "{}")));
    assert_eq!(upstream.count(|entry| entry.rpc_method.is_none() && entry.verb == "POST"), 2);
    assert!(clients.iter().all(|client| client.asks().is_empty()));
    check_one_session(&upstream);
}

#[test]
fn two_upstreams_do_not_mix() {
    let (harness, first) = with_upstream(Script::default());
    let second = Upstream::start(Script::replying(Replies::Json));
    harness.add_upstream("other", &second.url(), "");
    let mut one = harness.connect("up");
    let mut two = harness.connect("other");
    took_well(&one.initialize("2025-11-25"));
    took_well(&two.initialize("2025-11-25"));
    for n in 1..=20 {
        let id = format!("{}", 100 + n);
        let calls: Vec<Pending> = [&mut one, &mut two]
            .into_iter()
            .map(|client| client.request_with_id(&id, "tools/call", r#"{"name":"counter","arguments":{}}"#))
            .collect();
        assert_eq!(one.wait(&calls[0], PATIENCE).structured(), json!({"count": n}));
        assert_eq!(two.wait(&calls[1], PATIENCE).structured(), json!({"count": n}));
    }
    let sessions = [check_one_session(&first), check_one_session(&second)];
    assert_ne!(sessions[0], sessions[1]);
    assert_eq!(harness.status()["sessions"].as_array().unwrap().len(), 2);
}

#[test]
fn every_client_gets_the_revision_it_asked_for() {
    let (harness, upstream) = with_upstream(Script::default());
    let revisions = ["2025-06-18", "2025-03-26", "2025-11-25"];
    let mut clients: Vec<_> = revisions.iter().map(|_| harness.connect("up")).collect();
    for (client, revision) in clients.iter_mut().zip(revisions) {
        assert_eq!(client.initialize(revision).result_value()["protocolVersion"], revision);
    }
    for client in &mut clients {
        took_well(&client.call("counter", "{}"));
    }
    // The kit's upstream holds every request against the revision of its session.
    check_one_session(&upstream);
}

/// A result without the member that evermux adds to the first one after a change, whatever stands around it.
fn without_notice(result: &str) -> String {
    let Some(at) = result.find(r#""evermux/session":"#) else { return result.to_owned() };
    let end = at + result[at..].find('}').unwrap() + 1;
    let member = &result[at..end];
    let alone = [format!(r#","_meta":{{{member}}}"#), format!(r#""_meta":{{{member}}},"#)];
    alone.iter().fold(result.to_owned(), |text, notice| text.replacen(notice, "", 1))
}
