//! The harness and the model client against a stand-in that misbehaves on request.

#![allow(clippy::expect_used, reason = "helpers of tests fail their test")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evermux_testkit::wait::PATIENCE;
use evermux_testkit::{Environment, Harness, ShimClient};

fn stand_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-evermux.sh")
}

fn harness() -> Harness {
    Harness::new(&stand_in())
}

/// What a step of the test complains about.
fn complaint(step: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(step)).expect_err("the step had to fail");
    panic.downcast_ref::<String>().cloned().expect("the message is text")
}

#[test]
fn commands_see_only_the_environment_that_a_host_gives() {
    let names = |environment| {
        let harness = Harness::with_environment(&stand_in(), environment);
        let output = harness.run(&["env"]).success();
        // The shell itself adds these.
        let names =
            output.stdout.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned());
        names
            .filter(|name| !["PWD", "_", "OLDPWD", "SHLVL"].contains(&name.as_str()))
            .collect::<BTreeSet<_>>()
    };
    let bare = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"].map(str::to_owned);
    assert_eq!(names(Environment::Bare), BTreeSet::from(bare.clone()));
    let own = ["EVERMUX_CONFIG", "EVERMUX_STATE_DIR", "EVERMUX_RUNTIME_DIR"].map(str::to_owned);
    assert_eq!(names(Environment::Explicit), bare.into_iter().chain(own).collect());
}

#[test]
fn a_killed_daemon_is_really_gone() {
    let harness = harness();
    assert_eq!(harness.daemon_pid(), None);
    let pid = harness.start_daemon();
    assert_eq!(harness.daemon_pid(), Some(pid));
    assert_eq!(harness.kill_daemon(), pid);
    assert!(harness.processes().is_empty());
    assert_eq!(harness.daemon_pid(), None);
    let second = harness.start_daemon();
    assert_ne!(second, pid);
}

#[test]
fn nothing_outlives_the_harness() {
    let harness = harness();
    let root = harness.root().to_owned();
    harness.run(&["leave"]).success();
    harness.start_daemon();
    let pids = harness.processes();
    assert_eq!(pids.len(), 2);
    drop(harness);
    assert!(!root.exists());
    for pid in pids {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains(&*root.to_string_lossy()));
    }
}

#[test]
fn a_command_that_leaves_its_pipes_to_a_daemon_is_found_out() {
    let harness = harness();
    let text = complaint(|| drop(harness.run_within(&["hold"], Duration::from_millis(500))));
    assert!(text.contains("keeps its stdout or stderr open"), "{text}");
}

#[test]
fn a_client_sees_raw_answers_notifications_and_asks() {
    let harness = harness();
    let mut client = harness.connect("docs");
    let answer = client.request("ping", "");
    let answer = client.wait(&answer, PATIENCE);
    assert_eq!((answer.result(), answer.error_code()), (r#"{"big":1e400}"#, None));
    client.notify("notify", "");
    let notification = client.wait_notification(PATIENCE, |message| message.method() == "notifications/x");
    assert_eq!(notification.params(), r#"{"a":1}"#);
    client.notify("ask", "");
    let ask = client.wait_ask(PATIENCE, |_| true);
    client.respond(&ask, "{}");
    client.wait_notification(PATIENCE, |message| message.method() == "notifications/answered");
    assert_eq!(client.close(PATIENCE), Some(4));
    assert_eq!(client.stderr(), "hello from docs\n");
}

#[test]
fn a_shim_that_breaks_the_transport_is_found_out() {
    let cases = [
        ("1", "wrong-id", "id text that no request has"),
        (r#""t""#, "twice", "second answer"),
        ("9", "noise", "not a JSON-RPC message"),
        ("9", "torn", "a line without its end"),
    ];
    for (id, method, expected) in cases {
        let harness = harness();
        let mut client = harness.connect("docs");
        let text = complaint(|| {
            // The id itself must not match the stand-in's good case.
            let id = if id == "1" { "1000" } else { id };
            let pending = client.request_with_id(id, method, "");
            client.wait(&pending, PATIENCE);
            client.close(PATIENCE);
        });
        assert!(text.contains(expected), "{method}: {text}");
        forget(client);
    }
}

/// Its drop would complain again.
fn forget(mut client: ShimClient) {
    client.kill();
    complaint(|| drop(client));
}

#[test]
fn a_silent_shim_is_a_complaint_with_its_stderr() {
    let harness = harness();
    let mut client = harness.connect("docs");
    let pending = client.request_with_id("77", "silence", "");
    client.close_stdin();
    let text = complaint(|| drop(client.wait(&pending, PATIENCE)));
    assert!(text.contains("no answer to silence") && text.contains("hello from docs"), "{text}");
}
