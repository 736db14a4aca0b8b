//! Questions of a server to the people behind its clients: each to the one it belongs to, each answered once and by
//! that one only, whatever dies in between (B39).
//!
//! The upstream is the witness for who answered what, byte for byte; the clients are the witnesses for who was asked.

use std::fs;
use std::path::Path;
use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, AskIds, Harness, Pending, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;

use crate::support::{PATIENCE, with_settings, with_upstream};

const ABLE: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{"context":{}}}"#;

fn join(harness: &Harness, capabilities: &str) -> ShimClient {
    let mut client = harness.connect("up");
    let params = format!(
        r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"clientInfo":{{"name":"t","version":"1"}}}}"#
    );
    assert_eq!(client.initialize_with(&params).error(), None);
    client
}

fn joined(harness: &Harness, count: usize) -> Vec<ShimClient> {
    (0..count).map(|_| join(harness, ABLE)).collect()
}

/// A call that makes the server ask something in which `tag` stands.
fn ask(client: &mut ShimClient, tool: &str, method: &str, tag: &str) -> Pending {
    let arguments = format!(r#"{{"method":"{method}","params":{{"message":"{tag}","n":1.0}}}}"#);
    client.start_call(tool, &arguments)
}

#[track_caller]
fn asked(client: &ShimClient, tag: &str) -> Answer {
    let ask = client.wait_ask(PATIENCE, |ask| ask.raw.contains(tag));
    assert_eq!(ask.params(), format!(r#"{{"message":"{tag}","n":1.0}}"#));
    ask
}

/// No standard shape, as Codex answers.
fn approved(tag: &str) -> String {
    format!(r#"{{"decision":"approved", "by":"{tag}","x":1e400}}"#)
}

/// Each client was asked its own things only, and each of them once.
#[track_caller]
fn check_asked(clients: &[ShimClient], counts: &[usize]) {
    for (at, (client, count)) in clients.iter().zip(counts).enumerate() {
        let asks = client.asks();
        assert_eq!(asks.len(), *count, "client {at}: {asks:?}");
        let strange = asks.iter().find(|ask| !ask.raw.contains(&format!(r#""c{at}"#)));
        assert_eq!(strange, None, "client {at} is asked what is another's");
    }
}

#[track_caller]
fn results(upstream: &Upstream, count: usize) -> Vec<String> {
    let answers = upstream.wait_ask_answers(count, PATIENCE);
    let mut results: Vec<_> =
        answers.into_iter().map(|answer| answer.result().unwrap_or_else(|| answer.answer.clone())).collect();
    results.sort();
    results
}

/// Every session has its GET stream: a question or a piece of news on it is not lost.
#[track_caller]
fn wait_listening(upstream: &Upstream, sessions: usize) {
    upstream.wait_sessions(PATIENCE, |all| all.len() == sessions && all.iter().all(|one| one.get_open));
}

fn wait_back(harness: &Harness, killed: u32) {
    harness.wait_status(PATIENCE, |status| {
        let pid: u32 = status.pointer("/daemon/pid")?.as_u64()?.try_into().ok()?;
        (status.pointer("/daemon/phase")?.as_str()? == "serving" && pid != killed).then_some(())
    });
}

/// Whether any file below holds the text.
fn holds(directory: &Path, text: &str) -> bool {
    fs::read_dir(directory).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return holds(&path, text);
        }
        let bytes = fs::read(&path).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn three_at_once_are_asked_their_own_and_answer_in_their_own_words() {
    for ids in [AskIds::Text, AskIds::NumberPerSession] {
        let (harness, upstream) = with_upstream(Script { ask_ids: ids, ..Script::default() });
        let mut clients = joined(&harness, 3);
        let mut calls = Vec::new();
        for (at, client) in clients.iter_mut().enumerate() {
            for method in ["elicitation/create", "sampling/createMessage", "vendor/ask"] {
                calls.push((at, ask(client, "ask", method, &format!("c{at}-{method}"))));
            }
        }
        for at in [2, 0, 1] {
            for method in ["vendor/ask", "elicitation/create", "sampling/createMessage"] {
                let tag = format!("c{at}-{method}");
                let ask = asked(&clients[at], &tag);
                assert_eq!(ask.method(), method);
                clients[at].respond(&ask, &approved(&tag));
            }
        }
        for (at, call) in &calls {
            let answer = clients[*at].wait(call, PATIENCE);
            assert!(answer.raw.contains(&format!(r#""by":"c{at}-"#)), "{}", answer.raw);
        }
        check_asked(&clients, &[3, 3, 3]);
        assert_eq!(upstream.ask_answers().len(), 9);
        upstream.assert_no_violations();
        assert_eq!(upstream.initializes(), 1);
        assert!(!holds(&harness.state_dir(), "approved"), "an approval is on disk");
    }
}

#[test]
fn a_refusal_is_the_clients_own_and_a_foreign_answer_is_nobodys() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 2);
    let call = ask(&mut clients[0], "ask", "sampling/createMessage", "c0");
    let question = asked(&clients[0], "c0");
    // The other one knows the id, and says yes.
    clients[1].respond(&question, &approved("c1"));
    clients[1].call("counter", "{}");
    assert!(upstream.ask_answers().is_empty());
    let error = r#"{"code":-1,"message":"no", "data":[1.0]}"#;
    clients[0].send_raw(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, question.id()));
    assert!(clients[0].wait(&call, PATIENCE).raw.contains(error));
    // Once more: it is over.
    clients[0].respond(&question, &approved("c0"));
    clients[0].call("counter", "{}");
    assert_eq!(upstream.ask_answers().len(), 1);
    upstream.assert_no_violations();
}

#[test]
fn on_the_get_stream_only_one_who_is_alone_is_asked() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 3);
    wait_listening(&upstream, 1);
    let call = ask(&mut clients[0], "ask_on_get", "elicitation/create", "c0");
    let question = asked(&clients[0], "c0");
    clients[0].respond(&question, &approved("c0"));
    assert!(clients[0].wait(&call, PATIENCE).raw.contains("approved"));
    // Now another one works as well.
    let gate = clients[1].start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    for (method, told) in [
        ("elicitation/create", r#"{"action":"decline"}"#),
        ("sampling/createMessage", r#""code":-1"#),
        ("vendor/ask", r#""code":-32600"#),
    ] {
        let call = ask(&mut clients[0], "ask_on_get", method, "c0-again");
        let answer = clients[0].wait(&call, PATIENCE);
        assert!(answer.raw.contains(told), "{}", answer.raw);
    }
    upstream.open_gate("g");
    clients[1].wait(&gate, PATIENCE);
    let call = ask(&mut clients[2], "ask_on_get", "elicitation/create", "c2");
    let question = asked(&clients[2], "c2");
    clients[2].respond(&question, &approved("c2"));
    assert!(clients[2].wait(&call, PATIENCE).raw.contains("approved"));
    check_asked(&clients, &[1, 0, 1]);
    upstream.assert_no_violations();
}

#[test]
fn what_nobody_declared_is_not_asked() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut plain = join(&harness, "{}");
    let mut able = join(&harness, r#"{"elicitation":{}}"#);
    assert_eq!(upstream.initializes(), 2, "two classes of clients, two sessions");
    let call = plain.start_call("ask", r#"{"method":"elicitation/create","force":true}"#);
    assert!(plain.wait(&call, PATIENCE).raw.contains("-32601"));
    for arguments in [
        r#"{"method":"sampling/createMessage","force":true}"#,
        r#"{"method":"roots/list","force":true}"#,
        r#"{"method":"elicitation/create","mode":"url","force":true}"#,
    ] {
        let call = able.start_call("ask", arguments);
        assert!(able.wait(&call, PATIENCE).raw.contains("-32601"), "{arguments}");
    }
    let call = able.start_call("ask", r#"{"method":"ping"}"#);
    assert!(able.wait(&call, PATIENCE).raw.contains(r#""result":{}"#));
    assert_eq!((plain.asks().len(), able.asks().len()), (0, 0));
    upstream.assert_no_violations();
}

#[test]
fn a_client_of_its_own_session_is_asked_for_its_roots() {
    let (harness, upstream) = with_settings(Script::default(), "share = \"client\"");
    let mut clients: Vec<_> = (0..2).map(|_| join(&harness, r#"{"roots":{}}"#)).collect();
    wait_listening(&upstream, 2);
    for (at, client) in clients.iter_mut().enumerate() {
        let roots = format!(r#"{{"roots":[{{"uri":"file:///c{at}"}}]}}"#);
        for tool in ["ask", "ask_on_get"] {
            client.call("counter", "{}");
            let before = client.asks().len();
            let call = client.start_call(tool, r#"{"method":"roots/list"}"#);
            let question = poll_until(PATIENCE, || client.asks().get(before).cloned()).unwrap();
            assert_eq!(question.method(), "roots/list");
            client.respond(&question, &roots);
            assert!(client.wait(&call, PATIENCE).raw.contains(&roots));
        }
    }
    assert_eq!(upstream.initializes(), 2);
    upstream.assert_no_violations();
}

#[test]
fn a_kill_with_three_questions_open_loses_none_and_crosses_none() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 3);
    let calls: Vec<_> = (0..3)
        .map(|at| {
            let method = if at == 1 { "sampling/createMessage" } else { "elicitation/create" };
            ask(&mut clients[at], "ask", method, &format!("c{at}"))
        })
        .collect();
    let questions: Vec<_> = (0..3).map(|at| asked(&clients[at], &format!("c{at}"))).collect();
    // One is slow: it does not read what comes, and answers only after all is over.
    assert!(harness.signal(clients[2].pid(), Signal::SIGSTOP));
    let killed = harness.kill_daemon();
    wait_back(&harness, killed);
    clients[0].respond(&questions[0], &approved("c0"));
    assert!(clients[0].wait(&calls[0], PATIENCE).raw.contains(r#""by":"c0""#));
    let killed = harness.kill_daemon();
    wait_back(&harness, killed);
    // The first one says it again, and the second one's answer under its own link.
    clients[0].respond(&questions[0], &approved("c0"));
    clients[0].respond(&questions[1], &approved("c0"));
    clients[1].respond(&questions[1], &approved("c1"));
    assert!(clients[1].wait(&calls[1], PATIENCE).raw.contains(r#""by":"c1""#));
    assert!(harness.signal(clients[2].pid(), Signal::SIGCONT));
    clients[2].respond(&questions[2], &approved("c2"));
    assert!(clients[2].wait(&calls[2], PATIENCE).raw.contains(r#""by":"c2""#));
    assert_eq!(results(&upstream, 3), ["c0", "c1", "c2"].map(approved));
    check_asked(&clients, &[1, 1, 1]);
    assert_eq!((upstream.initializes(), upstream.ask_answers().len()), (1, 3), "{}", upstream.summary());
    upstream.assert_no_violations();
}

#[test]
fn a_question_that_came_while_no_daemon_ran_is_asked_by_the_next_one() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let mut clients = joined(&harness, 2);
    let arguments = r#"{"method":"elicitation/create","params":{"message":"c0-1","n":1.0},"gate":"g","then":{"method":"elicitation/create","params":{"message":"c0-2","n":1.0}}}"#;
    let call = clients[0].start_call("ask", arguments);
    let first = asked(&clients[0], "c0-1");
    clients[0].respond(&first, &approved("c0-1"));
    upstream.wait_at_gate("g", 1, PATIENCE);
    harness.kill_daemon();
    upstream.open_gate("g");
    let open = poll_until(PATIENCE, || (upstream.open_asks() == 1).then_some(()));
    assert!(open.is_some(), "{}", upstream.summary());
    let second = asked(&clients[0], "c0-2");
    clients[0].respond(&second, &approved("c0-2"));
    let answer = clients[0].wait(&call, PATIENCE);
    assert!(answer.raw.contains(r#""by":"c0-2""#), "{}", answer.raw);
    check_asked(&clients, &[2, 0]);
    assert_eq!(results(&upstream, 2), [approved("c0-1"), approved("c0-2")]);
    upstream.assert_no_violations();
}

#[test]
fn a_kill_leaves_a_question_on_the_get_stream_with_the_one_it_was_shown_to() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 3);
    wait_listening(&upstream, 1);
    let call = ask(&mut clients[0], "ask_on_get", "elicitation/create", "c0");
    let question = asked(&clients[0], "c0");
    let killed = harness.kill_daemon();
    wait_back(&harness, killed);
    clients[1].respond(&question, &approved("c1"));
    clients[0].respond(&question, &approved("c0"));
    assert_eq!(results(&upstream, 1), [approved("c0")]);
    let answer = clients[0].wait(&call, PATIENCE);
    assert!(answer.raw.contains(r#""by":"c0""#), "{} {}\n{}", answer.raw, upstream.summary(), harness.logs());

    // Two calls run at the kill. What the next process hears on that stream may be either's, so it is nobody's.
    let calls = [0, 1].map(|at: usize| clients[at].start_call("gate", r#"{"name":"g"}"#));
    upstream.wait_at_gate("g", 2, PATIENCE);
    let killed = harness.kill_daemon();
    wait_back(&harness, killed);
    assert!(clients[2].call("counter", "{}").error().is_none());
    wait_listening(&upstream, 1);
    upstream.ask(None, "elicitation/create", r#"{"message":"whose?"}"#);
    let answers = upstream.wait_ask_answers(2, PATIENCE);
    assert_eq!(answers[1].result().as_deref(), Some(r#"{"action":"decline"}"#));
    upstream.open_gate("g");
    for (client, call) in clients.iter().zip(&calls) {
        assert!(client.wait(call, PATIENCE).error().is_none());
    }
    check_asked(&clients, &[1, 0, 0]);
    assert_eq!((upstream.initializes(), upstream.ask_answers().len()), (1, 2), "{}", upstream.summary());
    upstream.assert_no_violations();
}

#[test]
fn a_client_that_goes_approves_nothing_and_harms_nobody() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 3);
    for (at, client) in clients.iter_mut().enumerate() {
        let _call = ask(client, "ask", "elicitation/create", &format!("c{at}"));
    }
    let questions: Vec<_> = (0..3).map(|at| asked(&clients[at], &format!("c{at}"))).collect();
    // One dies: it may come back, so its question stays. One ends: nobody will answer.
    clients[0].kill();
    clients[1].close_stdin();
    assert!(harness.signal(clients[1].pid(), Signal::SIGTERM));
    assert_eq!(results(&upstream, 1), [r#"{"action":"cancel"}"#]);
    assert_eq!(upstream.open_asks(), 2);
    clients[2].respond(&questions[2], &approved("c2"));
    assert_eq!(results(&upstream, 2), [r#"{"action":"cancel"}"#.to_owned(), approved("c2")]);
    assert_eq!(clients[2].asks().len(), 1);
    upstream.assert_no_violations();
}

#[test]
fn a_cancelled_call_and_a_withdrawn_ask_close_the_question() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 2);
    let call = ask(&mut clients[0], "ask", "elicitation/create", "c0");
    let question = asked(&clients[0], "c0");
    clients[0].notify("notifications/cancelled", &format!(r#"{{"requestId":{}}}"#, call.id));
    assert_eq!(results(&upstream, 1), [r#"{"action":"cancel"}"#]);
    clients[0].respond(&question, &approved("c0"));
    clients[0].call("counter", "{}");

    let call = ask(&mut clients[1], "ask", "elicitation/create", "c1");
    let question = asked(&clients[1], "c1");
    upstream.release_asks();
    let told = clients[1].wait_notification(PATIENCE, |n| n.method() == "notifications/cancelled");
    assert!(told.params().contains(question.id()), "{} {}", told.raw, question.raw);
    assert!(clients[1].wait(&call, PATIENCE).error().is_some());
    clients[1].respond(&question, &approved("c1"));
    clients[1].call("counter", "{}");
    assert_eq!(upstream.ask_answers().len(), 1);
}

/// What is read late was asked earlier: the call it belongs to may be over, and another client's run.
#[test]
fn a_question_that_comes_late_is_not_another_clients() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 2);
    wait_listening(&upstream, 1);
    // The stream is read, and has a position: without one, what its server keeps would not be asked for.
    upstream.notify(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    clients[0].wait_notification(PATIENCE, |n| n.method() == "notifications/tools/list_changed");
    let first = clients[0].start_call("gate", r#"{"name":"first"}"#);
    upstream.wait_at_gate("first", 1, PATIENCE);
    upstream.end_get_streams();
    upstream.ask(None, "elicitation/create", r#"{"message":"c0","n":1.0}"#);
    upstream.open_gate("first");
    assert_eq!(clients[0].wait(&first, PATIENCE).error(), None);
    let second = clients[1].start_call("gate", r#"{"name":"second"}"#);
    upstream.wait_at_gate("second", 1, PATIENCE);
    let answers = upstream.wait_ask_answers(1, Duration::from_secs(5));
    assert_eq!(answers[0].result().as_deref(), Some(r#"{"action":"decline"}"#));
    upstream.open_gate("second");
    assert_eq!(clients[1].wait(&second, PATIENCE).error(), None);
    check_asked(&clients, &[0, 0]);
    upstream.assert_no_violations();
}

#[test]
fn an_ask_taken_back_on_the_get_stream_is_closed_for_its_client() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 2);
    wait_listening(&upstream, 1);
    let gate = clients[0].start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    let id = upstream.ask(None, "elicitation/create", r#"{"message":"c0","n":1.0}"#);
    let question = asked(&clients[0], "c0");
    upstream.withdraw_ask(&upstream.minted_sessions()[0], &id);
    let told = clients[0].wait_notification(PATIENCE, |n| n.method() == "notifications/cancelled");
    assert!(told.params().contains(question.id()), "{} {}", told.raw, question.raw);
    clients[0].respond(&question, &approved("c0"));
    clients[0].call("counter", "{}");
    assert!(upstream.ask_answers().is_empty());
    upstream.open_gate("g");
    assert_eq!(clients[0].wait(&gate, PATIENCE).error(), None);
    check_asked(&clients, &[1, 0]);
    upstream.assert_no_violations();
}

#[test]
fn the_completion_of_an_elicitation_is_news_for_one() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = joined(&harness, 2);
    wait_listening(&upstream, 1);
    let call = clients[0].start_call("ask", r#"{"method":"elicitation/create","mode":"url"}"#);
    let question = clients[0].wait_ask(PATIENCE, |ask| ask.params().contains("elicitationId"));
    clients[0].respond(&question, r#"{"action":"accept"}"#);
    clients[0].wait(&call, PATIENCE);
    let id = question.value()["params"]["elicitationId"].as_str().unwrap().to_owned();
    upstream.elicitation_complete(&id);
    let told = clients[0].wait_notification(PATIENCE, |n| n.method() == "notifications/elicitation/complete");
    assert!(told.params().contains(&id));
    upstream.elicitation_complete("another");
    clients[1].call("list_change", "{}");
    for client in &clients {
        client.wait_notification(PATIENCE, |n| n.method().ends_with("list_changed"));
    }
    let heard = |client: &ShimClient| {
        client.notifications().iter().filter(|n| n.method().contains("complete")).count()
    };
    assert_eq!((heard(&clients[0]), heard(&clients[1])), (1, 0));
}

#[test]
fn progress_of_a_question_passes_before_its_answer() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = join(&harness, ABLE);
    let call = client.start_call(
        "ask",
        r#"{"method":"sampling/createMessage","params":{"_meta":{"progressToken":"theirs"}}}"#,
    );
    let question = client.wait_ask(PATIENCE, |_| true);
    for n in 1..=3 {
        client.notify("notifications/progress", &format!(r#"{{"progressToken":"theirs","progress":{n}}}"#));
    }
    client.respond(&question, &approved("c0"));
    client.wait(&call, PATIENCE);
    let steps = |entry: &evermux_testkit::Entry| entry.is("notifications/progress");
    assert_eq!(upstream.count(steps), 3);
    let journal = upstream.journal();
    let last = journal.iter().rposition(steps).unwrap();
    let answer = journal.iter().position(|entry| entry.verb == "POST" && entry.rpc_method.is_none());
    assert!(Some(last) < answer, "{}", upstream.summary());
}
