//! How a daemon comes to be, who finds it, and how it goes: twenty starters at once, bare environments, refusals, stops.

mod credentials;
mod ends;
mod socket;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, Environment, Harness, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;

use crate::support::{PATIENCE, binary, with_upstream};

const VERSION: &str = "2025-11-25";

#[track_caller]
fn count(client: &mut ShimClient) -> u64 {
    let answer = client.call("counter", "{}");
    answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("no count: {}", answer.raw))
}

#[track_caller]
fn check_one_session(upstream: &Upstream) {
    let sessions = (upstream.initializes(), upstream.minted_sessions().len(), upstream.deletes());
    assert_eq!(sessions, (1, 1, 0), "{}", upstream.summary());
    upstream.assert_no_violations();
}

/// Processes of the test that are no clients of it: the daemons.
fn daemons(harness: &Harness, clients: &[ShimClient]) -> Vec<u32> {
    let mut pids = harness.processes();
    pids.retain(|pid| clients.iter().all(|client| client.pid() != *pid));
    pids
}

/// Waits until the daemons are as they should be: one that another was quicker than may still be on its way out.
#[track_caller]
fn check_daemons(harness: &Harness, clients: &[ShimClient], wanted: impl Fn(&[u32]) -> bool) {
    let reached = poll_until(PATIENCE, || wanted(&daemons(harness, clients)).then_some(()));
    assert!(reached.is_some(), "{:?}", daemons(harness, clients));
}

/// Waits until each client hears the server by itself: then its stream is open, and what the daemon says to all reaches it.
#[track_caller]
fn wait_all_hear(upstream: &Upstream, clients: &[ShimClient]) {
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    // Kept for a client whose stream is not open yet.
    upstream.notify(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    for client in clients {
        client.wait_notification(PATIENCE, |n| n.method() == "notifications/tools/list_changed");
    }
}

#[test]
fn twenty_at_once_start_one_daemon() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients: Vec<_> = (0..20).map(|_| harness.connect("up")).collect();
    let params = format!(
        r#"{{"protocolVersion":"{VERSION}","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}"#
    );
    let hellos: Vec<_> = clients.iter_mut().map(|client| client.request("initialize", &params)).collect();
    for (client, hello) in clients.iter_mut().zip(&hellos) {
        let answer = client.wait(hello, PATIENCE);
        assert!(answer.error().is_none(), "{}", answer.raw);
        client.notify("notifications/initialized", "");
    }
    let mut counts: Vec<_> = clients.iter_mut().map(count).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=20).collect::<Vec<_>>());
    let daemon = harness.daemon_pid().unwrap();
    check_daemons(&harness, &clients, |daemons| daemons == [daemon]);
    check_one_session(&upstream);
}

#[test]
fn twenty_at_once_bring_a_killed_daemon_back() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients: Vec<_> = (0..20).map(|_| harness.connect("up")).collect();
    for client in &mut clients {
        assert!(client.initialize(VERSION).error().is_none());
    }
    let killed = harness.kill_daemon();
    let calls: Vec<_> = clients.iter_mut().map(|client| client.start_call("counter", "{}")).collect();
    let answers = clients.iter().zip(&calls).map(|(client, call)| client.wait(call, PATIENCE));
    let mut counts: Vec<_> = answers.map(|answer| answer.structured()["count"].as_u64().unwrap()).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=20).collect::<Vec<_>>());
    let daemon = harness.daemon_pid().unwrap();
    assert_ne!(daemon, killed);
    check_daemons(&harness, &clients, |daemons| daemons == [daemon]);
    check_one_session(&upstream);
}

#[test]
fn a_socket_that_nobody_listens_on_is_no_hindrance() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = harness.connect("up");
    assert!(client.initialize(VERSION).error().is_none());
    assert_eq!(client.close(PATIENCE), Some(0));
    harness.kill_daemon();
    // What a killed daemon leaves; and the same made by hand, should it ever clean up better.
    std::fs::remove_file(harness.socket()).ok();
    drop(UnixListener::bind(harness.socket()).unwrap());
    assert!(harness.socket().exists());
    let mut client = harness.connect("up");
    assert!(client.initialize(VERSION).error().is_none());
    assert_eq!(count(&mut client), 1);
    check_one_session(&upstream);
}

#[test]
fn a_second_daemon_says_that_one_runs() {
    let (harness, _upstream) = with_upstream(Script::default());
    let first = harness.start_daemon();
    let second = harness.run(&["daemon"]);
    assert_ne!(second.code, None);
    assert!(second.stderr.contains("already"), "{second:?}");
    assert_eq!(second.stdout, "");
    assert_eq!(harness.daemon_pid(), Some(first));
}

#[test]
fn no_start_refuses_where_nobody_serves() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = harness.connect_with("up", &["--no-start"]);
    let params = format!(
        r#"{{"protocolVersion":"{VERSION}","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}"#
    );
    let hello = client.request("initialize", &params);
    let answer = client.wait(&hello, PATIENCE);
    assert_eq!(answer.evermux_kind().as_deref(), Some("draining"), "{}", answer.raw);
    assert_eq!(client.wait_exit(PATIENCE), Some(3));
    assert!(client.stderr().contains("--no-start"), "{}", client.stderr());
    assert_eq!(harness.daemon_pid(), None);
    assert!(upstream.journal().is_empty());
}

#[track_caller]
fn check_refused(harness: &Harness, name: &str, words: &[&str]) -> Answer {
    let mut client = harness.connect(name);
    let params = format!(
        r#"{{"protocolVersion":"{VERSION}","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}"#
    );
    let hello = client.request("initialize", &params);
    let answer = client.wait(&hello, PATIENCE);
    assert_eq!(answer.evermux_kind().as_deref(), Some("misconfigured"), "{}", answer.raw);
    assert_eq!(client.wait_exit(PATIENCE), Some(2));
    for word in words {
        assert!(client.stderr().contains(word), "no `{word}` on stderr: {}", client.stderr());
        let told = answer.error().unwrap()["message"].as_str().unwrap().to_owned();
        assert!(told.contains(word), "no `{word}` in the answer: {told}");
    }
    answer
}

#[test]
fn an_unknown_name_is_told_to_the_client_and_to_people() {
    let (harness, upstream) = with_upstream(Script::default());
    check_refused(&harness, "nope", &["nope"]);
    // The same while a daemon runs.
    harness.start_daemon();
    check_refused(&harness, "nope", &["nope"]);
    assert!(upstream.journal().is_empty());
}

#[test]
fn a_bad_config_is_told_to_the_client_and_to_people() {
    let harness = Harness::new(binary());
    harness.write_config("[upstream.up]\nurll = \"http://127.0.0.1:1/mcp\"\n");
    check_refused(&harness, "up", &["urll"]);
    assert_eq!(harness.daemon_pid(), None);
    assert_eq!(harness.run(&["daemon"]).code, Some(2));
}

/// The model client wants answers in lines while its stdin is open; this one wants nothing but an end.
#[test]
fn a_client_that_says_nothing_and_goes_ends_with_zero() {
    let (harness, _upstream) = with_upstream(Script::default());
    let output = harness.run(&["connect", "up"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""), "{output:?}");
}

#[test]
fn a_name_that_was_added_while_the_daemon_runs_is_served() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    harness.add_upstream("later", &upstream.url(), "");
    let mut client = harness.connect("later");
    assert!(client.initialize(VERSION).error().is_none());
    assert_eq!(count(&mut client), 1);
}

#[test]
fn a_pipe_of_lines_is_answered_whole() {
    let (harness, _upstream) = with_upstream(Script::default());
    let mut child =
        harness.command(&["connect", "up"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let hello = format!(
        r#"{{"jsonrpc":"2.0","id":"a","method":"initialize","params":{{"protocolVersion":"{VERSION}","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}}}"#
    );
    let rest = [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter"}}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"counter"}}"#,
    ];
    // All at once, and the end right behind, without a last line feed: as `printf … | evermux connect up` does.
    write!(stdin, "{hello}\n{}", rest.join("\n")).unwrap();
    drop(stdin);
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(lines.iter().filter(|line| line.contains("\"result\"")).count(), 3, "{lines:#?}");
}
