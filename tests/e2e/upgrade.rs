//! `evermux upgrade` and real daemons: which build runs, and who needs no upgrade.

use evermux_testkit::{HttpClient, Script};
use serde_json::Value;

use crate::support::{PATIENCE, check_processes, other_build, with_upstream};

fn hello(harness: &evermux_testkit::Harness, query: &str) -> Value {
    let path = format!("/control/hello{query}");
    let reply = HttpClient::unix(&harness.socket()).unwrap().exchange("GET", &path, &[], "").unwrap();
    serde_json::from_str(&reply.text()).unwrap()
}

#[test]
fn the_same_build_is_not_replaced() {
    let (harness, _upstream) = with_upstream(Script::default());
    let pid = harness.start_daemon();
    let output = harness.run(&["upgrade"]).success();
    assert!(output.stdout.contains("already runs this build") && output.stderr.is_empty(), "{output:?}");
    let told = harness.run(&["upgrade", "--json"]).success().json();
    assert_eq!((&told["upgraded"], &told["daemon"]["pid"]), (&Value::from(false), &Value::from(pid)));
    assert_eq!(told["daemon"]["build"], hello(&harness, "?build")["build"]);
    // Each shim says hello, and reading the program's file for it would be the dearest part.
    assert_eq!(hello(&harness, "").get("build"), None);
    assert_eq!(harness.daemon_pid(), Some(pid));
}

#[test]
fn two_builds_of_one_version_are_told_apart() {
    let (harness, _upstream) = with_upstream(Script::default());
    let other = other_build(harness.root());
    harness.start_daemon();
    let ours = hello(&harness, "?build");
    let _ = harness.run(&["stop"]).success();
    let pid = harness.start_daemon_of(&other, &[]);
    // What runs is what counts, not what lies under its name by now.
    std::fs::remove_file(&other).unwrap();
    let theirs = hello(&harness, "?build");
    assert_eq!(ours["version"], theirs["version"]);
    assert_ne!(ours["build"], theirs["build"]);
    assert!(theirs["build"].is_string(), "{theirs}");
    let same = harness.finish(harness.command_of(&other_build(harness.root()), &["upgrade"]), PATIENCE);
    assert!(same.success().stdout.contains("already runs this build"));
    assert_eq!(harness.daemon_pid(), Some(pid));
}

#[test]
fn a_takeover_from_nobody_is_a_start() {
    let (harness, _upstream) = with_upstream(Script::default());
    let pid = harness.start_daemon_of(crate::support::binary(), &["--takeover"]);
    assert_eq!(harness.daemon_pid(), Some(pid));
    // Whatever runs is taken over from; only `upgrade` looks at builds.
    let next = harness.start_daemon_of(crate::support::binary(), &["--takeover"]);
    assert_ne!(next, pid);
}

#[test]
fn upgrades_to_one_build_at_once_are_all_done_with_it() {
    let (harness, upstream) = with_upstream(Script::default());
    let other = other_build(harness.root());
    let before = harness.start_daemon();
    let upgrade = || {
        let mut command = harness.command_of(&other, &["upgrade", "--json"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let upgrades = [upgrade(), upgrade(), upgrade()];
    let told = upgrades.map(|running| {
        let output = running.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str::<Value>(&text).unwrap()
    });
    // One that looked before another was done takes over from that one: more work than is needed, and no harm.
    assert!(told.iter().any(|told| told["upgraded"] == true), "{told:?}");
    assert_ne!(harness.daemon_pid(), Some(before));
    let now = hello(&harness, "?build")["build"].clone();
    assert!(now.is_string() && told.iter().all(|told| told["daemon"]["build"] == now), "{now}: {told:?}");
    check_processes(&harness, |pids| pids.len() == 1, "upgrades at once");
    upstream.assert_no_violations();
}
