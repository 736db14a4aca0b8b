//! `evermux doctor` through the binary: what it says of a healthy directory and of each kind of damage, and that it
//! changes nothing, whoever looks and whatever runs meanwhile.

mod untouched;

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Output, Script, ShimClient, Upstream};
use serde_json::Value;

use crate::state::records;
use crate::support::{PATIENCE, with_upstream};

fn report(harness: &Harness, arguments: &[&str]) -> (Option<i32>, Value) {
    let all: Vec<&str> = ["doctor", "--json"].iter().chain(arguments).copied().collect();
    let output = harness.run(&all);
    assert_eq!(output.stderr, "");
    (output.code, output.json())
}

/// Whether the system tells who lives; elsewhere a running call cannot be told from one that was cut.
fn lists_locks() -> bool {
    fs::read("/proc/locks").is_ok()
}

fn codes(report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn greeted(harness: &Harness) -> ShimClient {
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    assert_eq!(client.call("counter", "{}").error(), None);
    client
}

/// A directory after a session, whose daemon ended.
#[track_caller]
fn after_a_session() -> (Harness, Upstream) {
    let (harness, upstream) = with_upstream(Script::default());
    assert_eq!(greeted(&harness).close(PATIENCE), Some(0));
    let _ = harness.run(&["stop"]).success();
    (harness, upstream)
}

/// Without sockets, which nobody copies.
fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy_tree(&entry.path(), &target);
        } else if !kind.is_socket() {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
}

#[test]
fn a_healthy_directory_is_said_to_be_healthy() {
    let (harness, _upstream) = with_upstream(Script::default());
    let mut client = greeted(&harness);
    let (code, report_live) = report(&harness, &[]);
    assert_eq!((code, &report_live["healthy"]), (Some(0), &Value::Bool(true)), "{report_live:#}");
    assert_eq!(report_live["daemon"], if lists_locks() { "running" } else { "unknown" }, "{report_live:#}");
    assert_eq!(client.close(PATIENCE), Some(0));
    let _ = harness.run(&["stop"]).success();
    let (code, report) = report(&harness, &[]);
    assert_eq!((code, codes(&report)), (Some(0), vec![]), "{report:#}");
    assert_eq!(report["state_dir"].as_str(), harness.state_dir().to_str());
    let session = &report["sessions"][0];
    assert_eq!((&session["upstream"], &session["handshake"]), (&Value::from("up"), &Value::from(1)));
    assert_eq!(harness.run(&["doctor"]).success().stdout, "healthy; 1 session to go on with\n");
}

#[test]
fn a_directory_that_is_none_is_told_by_the_exit_code() {
    let (harness, _upstream) = with_upstream(Script::default());
    for arguments in [&["doctor"][..], &["doctor", "--json"], &["doctor", "--share"]] {
        let output = harness.run(arguments);
        assert_eq!(output.code, Some(2), "{output:?}");
        assert!(output.stderr.contains("cannot be read"), "{output:?}");
        let names_it = output.stderr.contains(harness.state_dir().to_str().unwrap());
        assert_eq!(names_it, !arguments.contains(&"--share"), "{output:?}");
    }
    let told = harness.run(&["doctor", "--json"]).json();
    assert_eq!((&told["healthy"], told["error"].is_string()), (&Value::Null, true));
    assert!(!harness.state_dir().exists(), "it was made");
}

type Damage = fn(&Path, &Path);

fn edit(record: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(record).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(record, text.replace(from, to)).unwrap();
}

/// What is done to the directory and its one record, and the codes that are said of it.
const DAMAGES: [(&str, Damage); 14] = [
    ("RECORD_DAMAGED", |_, record| edit(record, "2025-11-25", "2025-11-26")),
    ("RECORD_DAMAGED", |_, record| fs::write(record, "").unwrap()),
    ("RECORD_UNSAFE", |_, record| fs::set_permissions(record, Permissions::from_mode(0o644)).unwrap()),
    ("RECORD_NEWER", |_, record| edit(record, r#""major":1"#, r#""major":2"#)),
    ("FOREIGN_KEY", |state, _| fs::write(state.join("key"), [1; 32]).unwrap()),
    ("KEY_MISSING FOREIGN_KEY", |state, _| fs::remove_file(state.join("key")).unwrap()),
    ("SECRET_DAMAGED FOREIGN_KEY", |state, _| fs::write(state.join("key"), [1; 31]).unwrap()),
    ("STATE_OPEN", |state, _| {
        fs::set_permissions(state.join("records"), Permissions::from_mode(0o750)).unwrap();
    }),
    ("STATE_UNSAFE", |state, _| {
        fs::remove_dir_all(state.join("quarantine")).unwrap();
        symlink("/", state.join("quarantine")).unwrap();
    }),
    ("QUARANTINED", |state, record| {
        let name = format!("{}.stale_epoch.1", record.file_name().unwrap().to_str().unwrap());
        fs::rename(record, state.join("quarantine").join(name)).unwrap();
    }),
    ("WITNESS_DAMAGED", |state, _| {
        let attach = state.join("journal/attach");
        let text = fs::read_to_string(&attach).unwrap();
        fs::write(attach, format!("rot\n{text}")).unwrap();
    }),
    ("WITNESS_MISSING", |state, _| fs::remove_file(state.join("journal/attach")).unwrap()),
    ("JOURNAL_TORN", |state, _| {
        fs::write(state.join("journal/calls-9.log"), "V 1 b9485460\nS 00").unwrap();
    }),
    ("JOURNAL_DAMAGED LEFTOVER_TEMP", |state, _| {
        fs::write(state.join("journal/calls-9.log"), "V 1 b9485460\nS 00\n").unwrap();
        fs::write(state.join("records/.x.json.abc.tmp"), "half").unwrap();
    }),
];

/// By the same name, and in the file system's own order of damage: each on a copy of its own.
#[test]
fn each_kind_of_damage_is_told_by_its_code() {
    let (harness, _upstream) = after_a_session();
    let record = records(&harness).pop().unwrap().strip_prefix(harness.state_dir()).unwrap().to_owned();
    let notes = ["WITNESS_MISSING", "JOURNAL_TORN"];
    for (number, (wanted, damage)) in DAMAGES.iter().enumerate() {
        let copy = harness.root().join(format!("copy-{number}"));
        copy_tree(&harness.state_dir(), &copy);
        damage(&copy, &copy.join(&record));
        let before = untouched::picture(&copy);
        let place = copy.to_str().unwrap();
        let (code, report) = report(&harness, &["--state-dir", place]);
        assert_eq!(codes(&report).join(" "), *wanted, "{report:#}");
        assert_eq!(code, Some(if notes.contains(wanted) { 0 } else { 1 }), "{report:#}");
        let words = harness.run(&["doctor", "--state-dir", place]).stdout;
        assert!(wanted.split(' ').all(|code| words.contains(code)), "{words}");
        assert_eq!(untouched::picture(&copy), before, "{wanted}");
    }
}

/// A copy that was put back, of a record that was written again since.
#[test]
fn an_old_copy_is_told_from_the_record() {
    let (harness, _upstream) = after_a_session();
    let record = records(&harness).pop().unwrap();
    let old = fs::read(&record).unwrap();
    let mut client = greeted(&harness);
    assert_eq!(client.close(PATIENCE), Some(0));
    harness.kill_daemon();
    fs::write(&record, old).unwrap();
    let (code, report) = report(&harness, &[]);
    assert_eq!((code, codes(&report)), (Some(1), vec!["STALE_EPOCH".to_owned()]), "{report:#}");
}

/// A call that hangs in the server when its daemon is killed and its client is gone; nobody will ask again.
#[track_caller]
fn killed_in_a_call() -> (Harness, Upstream) {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = greeted(&harness);
    let _lost = client.start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    client.kill();
    harness.kill_daemon();
    (harness, upstream)
}

#[test]
fn a_call_cut_by_a_kill_is_outcome_unknown_before_and_after_a_restart() {
    let (harness, upstream) = killed_in_a_call();
    let call = upstream.journal().into_iter().find(|entry| entry.calls("gate")).unwrap();
    for restarted in [false, true] {
        if restarted {
            harness.start_daemon();
        }
        let (code, report) = report(&harness, &[]);
        assert_eq!((code, codes(&report)), (Some(1), vec!["OUTCOME_UNKNOWN".to_owned()]), "{report:#}");
        let finding = &report["findings"][0];
        assert_eq!(finding["operation"]["request_id"].to_string(), call.id.clone().unwrap());
        assert_eq!((&finding["upstream"], &report["sessions"][0]["unresolved"]), (&"up".into(), &1.into()));
        assert_eq!(finding["trajectory"], report["sessions"][0]["trajectory"]);
        let words = harness.run(&["doctor"]).stdout;
        assert!(words.contains("OUTCOME_UNKNOWN: up ") && words.contains("outcome unknown"), "{words}");
        assert!(!words.contains("not executed"), "{words}");
    }
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 1, "{}", upstream.summary());
}

/// The call ends in the process where it began; its answer was taken, which the client says with its next call.
#[test]
fn a_call_answered_over_an_upgrade_is_none_of_them() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = greeted(&harness);
    for round in ["one", "two"] {
        let call = client.start_call("gate", &format!(r#"{{"name":"{round}"}}"#));
        upstream.wait_at_gate(round, 1, PATIENCE);
        crate::takeover::upgraded(&harness);
        upstream.open_gate(round);
        assert_eq!(client.wait(&call, PATIENCE).error(), None);
        client.call("counter", "{}");
        client.call("counter", "{}");
        let healthy = || (report(&harness, &[]).1["healthy"] == true).then_some(());
        assert!(poll_until(PATIENCE, healthy).is_some(), "{}", report(&harness, &[]).1);
    }
}

#[test]
fn a_shared_report_names_nothing() {
    let (harness, upstream) = killed_in_a_call();
    let record = records(&harness).pop().unwrap();
    let aside = format!("quarantine/{}.foreign_key.1", record.file_name().unwrap().to_str().unwrap());
    fs::copy(&record, harness.state_dir().join(aside)).unwrap();
    let (_, open) = report(&harness, &[]);
    let session = &open["sessions"][0];
    let mut names = upstream.minted_sessions();
    names.extend([
        upstream.url(),
        "http".to_owned(),
        "\"up\"".to_owned(),
        "/up-".to_owned(),
        "up ".to_owned(),
    ]);
    names.push(harness.root().to_str().unwrap().to_owned());
    names.extend(
        ["trajectory", "continuation"].map(|member| session[member].as_str().unwrap()[..12].to_owned()),
    );
    names.push(open["findings"][0]["operation"]["link"].as_str().unwrap()[..12].to_owned());
    for arguments in [&["doctor", "--share"][..], &["doctor", "--share", "--json"]] {
        let output: Output = harness.run(arguments);
        assert_eq!(output.code, Some(1));
        let told: Vec<&String> = names.iter().filter(|name| output.stdout.contains(name.as_str())).collect();
        assert!(told.is_empty() && output.stderr.is_empty(), "{told:?} in {output:?}");
    }
    let (_, shared) = report(&harness, &["--share"]);
    assert_eq!(codes(&shared), codes(&open));
    let (finding, session) = (&shared["findings"][0], &shared["sessions"][0]);
    assert_eq!(
        (&finding["trajectory"], &finding["upstream"]),
        (&session["trajectory"], &session["upstream"])
    );
    assert_eq!(shared["findings"][1]["trajectory"], session["trajectory"], "{shared:#}");
    assert_eq!(shared["state_dir"], Value::Null);
}

/// Where copies for other users go: a place that they can enter.
fn public() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = place.path().join("copy");
    (place, copy)
}
