//! The state directory as a user, a backup tool or an attacker may leave it: what is not safe is never used and never
//! destroyed, and costs no more than its own session (design §5).

mod sync;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script, ShimClient, Upstream};
use nix::unistd::geteuid;
use serde_json::Value;

use crate::support::{PATIENCE, binary, check_processes, with_upstream};

/// Everything under a directory, without following links.
pub(crate) fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        // A file may go between the listing and the look.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(walk(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

/// A script that is the binary, started under a umask that closes nothing.
fn careless(harness: &Harness) -> PathBuf {
    let script = harness.root().join("careless");
    fs::write(&script, format!("#!/bin/sh\numask 000\nexec {} \"$@\"\n", binary().display())).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o700)).unwrap();
    script
}

/// Without what a write that is under way has beside them.
pub(crate) fn records(harness: &Harness) -> Vec<PathBuf> {
    let listing = fs::read_dir(harness.state_dir().join("records")).unwrap();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    listing.map(|entry| entry.unwrap().path()).filter(is_record).collect()
}

fn record_of(harness: &Harness, name: &str) -> PathBuf {
    let prefix = format!("{name}-");
    let of_name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&prefix);
    records(harness).into_iter().find(of_name).unwrap()
}

fn quarantined(harness: &Harness) -> BTreeSet<String> {
    let listing = fs::read_dir(harness.state_dir().join("quarantine")).unwrap();
    listing.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[track_caller]
fn count(client: &mut ShimClient) -> u64 {
    client.call("counter", "{}").structured()["count"].as_u64().unwrap()
}

/// A client that did one call and left.
#[track_caller]
fn visit(harness: &Harness, name: &str) -> u64 {
    let mut client = harness.connect(name);
    assert_eq!(client.initialize("2025-11-25").error(), None);
    let count = count(&mut client);
    assert_eq!(client.close(PATIENCE), Some(0));
    count
}

#[track_caller]
fn check_closed_to_others(directory: &Path) {
    assert_eq!(fs::metadata(directory).unwrap().mode() & 0o7777, 0o700);
    let open: Vec<String> = walk(directory)
        .into_iter()
        .filter_map(|path| {
            let meta = fs::symlink_metadata(&path).ok()?;
            let wanted = if meta.is_dir() { 0o700 } else { 0o600 };
            (meta.mode() & 0o7777 != wanted).then(|| format!("{:o} {}", meta.mode(), path.display()))
        })
        .collect();
    assert!(open.is_empty(), "{open:#?}");
}

#[test]
fn every_file_is_closed_to_others_under_a_umask_of_nothing() {
    let (harness, upstream) = with_upstream(Script::default());
    let script = careless(&harness);
    let mut client = ShimClient::spawn(harness.command_of(&script, &["connect", "up"]));
    assert_eq!(client.initialize("2025-11-25").error(), None);
    assert_eq!(count(&mut client), 1);
    let present =
        |what: &str| walk(&harness.state_dir()).iter().any(|path| path.to_string_lossy().contains(what));
    for what in [
        "/lock",
        "/key",
        "/http-token",
        "/records/up-",
        "/journal/attach",
        "/journal/calls-",
        "/log/",
        "/run/evermux.sock",
    ] {
        assert!(present(what), "{what}");
    }
    check_closed_to_others(&harness.state_dir());
    // And what a second process adds, with something to put aside.
    assert_eq!(client.close(PATIENCE), Some(0));
    harness.kill_daemon();
    fs::write(harness.state_dir().join("records/stray.json"), "{}").unwrap();
    let pid = harness.start_daemon_of(&script, &[]);
    assert_eq!(visit(&harness, "up"), 2);
    assert_eq!(quarantined(&harness).len(), 1);
    check_closed_to_others(&harness.state_dir());
    assert_eq!(harness.daemon_pid(), Some(pid));
    assert_eq!(upstream.initializes(), 1);
}

/// What is open to others is closed at the next start; a record that others could have changed is not believed.
#[test]
fn directories_open_to_others_are_closed() {
    let (harness, upstream) = with_upstream(Script::default());
    assert_eq!(visit(&harness, "up"), 1);
    harness.kill_daemon();
    for directory in ["", "records", "journal", "quarantine", "log"] {
        fs::set_permissions(harness.state_dir().join(directory), Permissions::from_mode(0o755)).unwrap();
    }
    assert_eq!(visit(&harness, "up"), 2);
    check_closed_to_others(&harness.state_dir());
    assert_eq!(upstream.initializes(), 1);
}

/// Two upstreams with a session each, and no daemon.
struct Two {
    harness: Harness,
    up: Upstream,
    other: Upstream,
}

fn two_sessions() -> Two {
    let (harness, up) = with_upstream(Script::default());
    let other = Upstream::start(Script::default());
    harness.add_upstream("other", &other.url(), "");
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (1, 1));
    harness.kill_daemon();
    Two { harness, up, other }
}

/// The sessions that `status` shows of an upstream, as status and reason.
fn shown(harness: &Harness, name: &str) -> Vec<(String, String)> {
    let status = harness.status();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let sessions =
        status["sessions"].as_array().unwrap().iter().filter(|session| session["upstream"] == name);
    sessions.map(|session| (text(&session["status"]), text(&session["reason"]))).collect()
}

/// Damages the record of `up` and goes on: `up` has a new session, `other` the old one, and the file is where
/// `reason` says (`None`: left alone).
#[track_caller]
fn check_damage(reason: Option<&str>, damage: impl FnOnce(&Path)) {
    let Two { harness, up, other } = two_sessions();
    let record = record_of(&harness, "up");
    let name = record.file_name().unwrap().to_str().unwrap().to_owned();
    damage(&record);
    let before = fs::symlink_metadata(&record).unwrap();
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (1, 2));
    assert_eq!((up.initializes(), other.initializes()), (2, 1));
    up.assert_no_violations();
    other.assert_no_violations();
    let place = match reason {
        Some(reason) => {
            let moved = format!("{name}.{reason}.1");
            assert_eq!(quarantined(&harness), BTreeSet::from([moved.clone()]));
            harness.state_dir().join("quarantine").join(moved)
        }
        None => {
            assert_eq!(quarantined(&harness), BTreeSet::new());
            record
        }
    };
    // Moved, not copied, and not opened up or changed on the way.
    let after = fs::symlink_metadata(&place).unwrap();
    assert_eq!((after.ino(), after.len(), after.uid()), (before.ino(), before.len(), before.uid()));
    let sessions = shown(&harness, "up");
    assert!(sessions.iter().any(|(status, _)| status == "new"), "{sessions:?}");
    let aside: Vec<_> = sessions.iter().filter(|(status, _)| status == "needs_manual_recovery").collect();
    assert_eq!(aside.iter().map(|(_, why)| why.as_str()).collect::<Vec<_>>(), Vec::from_iter(reason));
    assert_eq!(shown(&harness, "other"), [("resumed".to_owned(), String::new())]);
    // The next process finds nothing new to say of it, and both sessions.
    harness.kill_daemon();
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (2, 3));
    assert_eq!((up.initializes(), other.initializes()), (2, 1));
}

/// Changes the text of a record.
fn edit(record: &Path, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(record).unwrap();
    let changed = change(text.clone());
    assert_ne!(text, changed, "the test changed nothing");
    fs::write(record, changed).unwrap();
}

/// The position of the value of a member.
fn value_at(text: &str, member: &str) -> usize {
    let key = format!("\"{member}\": \"");
    text.find(&key).unwrap() + key.len()
}

fn flip_bit_of(record: &Path, member: &str) {
    edit(record, |text| {
        let at = value_at(&text, member);
        let mut bytes = text.into_bytes();
        bytes[at] ^= 1;
        String::from_utf8(bytes).unwrap()
    });
}

#[test]
fn a_symbolic_link_is_not_followed() {
    check_damage(Some("record_unsafe"), |record| {
        let elsewhere = record.parent().unwrap().join("../elsewhere");
        fs::rename(record, &elsewhere).unwrap();
        symlink(&elsewhere, record).unwrap();
    });
}

#[test]
fn a_second_name_of_the_file_is_not_trusted() {
    check_damage(Some("record_unsafe"), |record| {
        fs::hard_link(record, record.parent().unwrap().join("../second")).unwrap();
    });
}

#[test]
fn a_record_of_another_user_is_not_trusted() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can give a file away");
        return;
    }
    check_damage(Some("record_unsafe"), |record| chown(record, Some(65534), None).unwrap());
}

#[test]
fn a_record_open_to_others_is_not_trusted() {
    check_damage(Some("record_unsafe"), |record| {
        fs::set_permissions(record, Permissions::from_mode(0o644)).unwrap();
    });
}

#[test]
fn a_pipe_in_the_place_of_a_record_holds_nothing_up() {
    check_damage(Some("record_unsafe"), |record| {
        fs::remove_file(record).unwrap();
        nix::unistd::mkfifo(record, nix::sys::stat::Mode::S_IRWXU).unwrap();
    });
}

#[test]
fn an_empty_record_costs_its_session() {
    check_damage(Some("record_unreadable"), |record| edit(record, |_| String::new()));
}

#[test]
fn a_record_cut_in_the_middle_costs_its_session() {
    check_damage(Some("record_unreadable"), |record| edit(record, |text| text[..text.len() / 2].to_owned()));
}

#[test]
fn a_record_without_its_last_byte_costs_its_session() {
    check_damage(Some("record_unreadable"), |record| edit(record, |text| text[..text.len() - 1].to_owned()));
}

#[test]
fn one_flipped_bit_in_the_session_id_is_noticed() {
    check_damage(Some("record_digest_mismatch"), |record| flip_bit_of(record, "session_id"));
}

#[test]
fn one_flipped_bit_in_the_digest_is_noticed() {
    check_damage(Some("record_digest_mismatch"), |record| flip_bit_of(record, "digest"));
}

#[test]
fn a_record_of_a_newer_major_is_left_alone() {
    check_damage(None, |record| edit(record, |text| text.replacen(r#""major":1"#, r#""major":2"#, 1)));
}

#[test]
fn a_record_under_another_name_costs_its_session() {
    let Two { harness, up, other } = two_sessions();
    let record = record_of(&harness, "up");
    let text = fs::read(&record).unwrap();
    fs::rename(&record, record.with_file_name("other-0123456789abcdef0123456789abcdef.json")).unwrap();
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (1, 2));
    assert_eq!((up.initializes(), other.initializes()), (2, 1));
    let aside: Vec<_> = quarantined(&harness).into_iter().collect();
    assert_eq!(aside, ["other-0123456789abcdef0123456789abcdef.json.record_unreadable.1"]);
    assert_eq!(fs::read(harness.state_dir().join("quarantine").join(&aside[0])).unwrap(), text);
}

/// Digests and link ids hang on the key: without it everything is new, nothing is destroyed, and a client that lives
/// on is served all the same.
#[test]
fn a_lost_key_costs_the_sessions_and_no_client() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    assert_eq!(count(&mut client), 1);
    let name = record_of(&harness, "up").file_name().unwrap().to_str().unwrap().to_owned();
    // The daemon has it in memory; the shim starts the next one by itself.
    fs::remove_file(harness.state_dir().join("key")).unwrap();
    harness.kill_daemon();
    assert_eq!(count(&mut client), 1);
    assert_eq!(upstream.initializes(), 2);
    assert_eq!(quarantined(&harness), BTreeSet::from([format!("{name}.foreign_key.1")]));
    upstream.assert_no_violations();
    harness.kill_daemon();
    assert_eq!(count(&mut client), 2);
    assert_eq!(upstream.initializes(), 2);
}

#[test]
fn a_damaged_key_is_replaced_and_kept() {
    let Two { harness, up, other } = two_sessions();
    fs::write(harness.state_dir().join("key"), "short").unwrap();
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (1, 1));
    assert_eq!((up.initializes(), other.initializes()), (2, 2));
    let aside = quarantined(&harness);
    assert_eq!(aside.iter().filter(|name| name.contains(".foreign_key.")).count(), 2, "{aside:?}");
    assert!(aside.contains("key.secret_unusable.1"), "{aside:?}");
}

/// A copy that a backup put back: whole, signed, and older than what was written since.
#[test]
fn an_old_copy_of_a_record_is_not_resumed() {
    let Two { harness, up, other } = two_sessions();
    let record = record_of(&harness, "up");
    let copy = fs::read(&record).unwrap();
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (2, 2));
    harness.kill_daemon();
    fs::write(&record, copy).unwrap();
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (1, 3));
    assert_eq!((up.initializes(), other.initializes()), (2, 1));
    let name = record.file_name().unwrap().to_str().unwrap();
    assert_eq!(quarantined(&harness), BTreeSet::from([format!("{name}.stale_epoch.1")]));
    up.assert_no_violations();
}

#[test]
fn a_copy_of_a_purged_record_is_not_resumed() {
    let (harness, upstream) = with_upstream(Script::default());
    assert_eq!(visit(&harness, "up"), 1);
    let record = record_of(&harness, "up");
    let copy = fs::read(&record).unwrap();
    let _ = harness.run(&["purge", "up"]).success();
    assert!(poll_until(PATIENCE, || (!record.exists()).then_some(())).is_some());
    // The DELETE goes its own way, and the kill must not overtake it.
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
    harness.kill_daemon();
    fs::write(&record, copy).unwrap();
    fs::set_permissions(&record, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(visit(&harness, "up"), 1);
    assert_eq!(quarantined(&harness).len(), 1);
    assert_eq!((upstream.initializes(), upstream.deletes()), (2, 1));
}

/// What is not a record by its name is nobody's business; what only looks like one is put aside.
#[test]
fn strange_files_disturb_nothing() {
    let Two { harness, up, other } = two_sessions();
    let records = harness.state_dir().join("records");
    for (name, content) in
        [("README", "notes"), ("up-notes.json", "{}"), (".hidden", "x"), ("weird\u{1f600}.json", "[")]
    {
        fs::write(records.join(name), content).unwrap();
    }
    fs::create_dir(records.join("directory.json")).unwrap();
    assert_eq!((visit(&harness, "up"), visit(&harness, "other")), (2, 2));
    assert_eq!((up.initializes(), other.initializes()), (1, 1));
    assert!(records.join("README").exists());
    assert_eq!(harness.status()["daemon"]["phase"], "serving");
}

// ---- directories that cannot be used ----

#[track_caller]
fn check_refused(harness: &Harness, state_dir: &Path, words: &[&str]) {
    let path = state_dir.to_str().unwrap();
    let output = harness.run(&["daemon", "--state-dir", path]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{output:?}");
    for word in words {
        assert!(output.stderr.contains(word), "`{word}` is not in: {}", output.stderr);
    }
    // A client is told the same, as the answer to its first request.
    let mut client = harness.connect_with("up", &["--state-dir", path]);
    let answer = client.initialize("2025-11-25");
    let message = answer.error().unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(words[0]), "`{}` is not in: {message}", words[0]);
    // The answer comes from what the refused daemon said, and it may still be on its way out.
    check_processes(harness, |pids| *pids == [client.pid()], "a daemon was left behind");
}

#[test]
fn a_state_directory_behind_a_symbolic_link_is_refused() {
    let (harness, _upstream) = with_upstream(Script::default());
    let (real, link) = (harness.root().join("real"), harness.root().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    check_refused(&harness, &link, &[link.to_str().unwrap(), "symbolic link"]);
    assert_eq!(walk(&real), Vec::<PathBuf>::new());
}

#[test]
fn a_file_in_the_place_of_the_state_directory_is_refused() {
    let (harness, _upstream) = with_upstream(Script::default());
    let file = harness.root().join("file");
    fs::write(&file, "mine").unwrap();
    check_refused(&harness, &file, &[file.to_str().unwrap(), "directory"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_state_directory_of_another_user_is_refused() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can give a directory away");
        return;
    }
    let (harness, _upstream) = with_upstream(Script::default());
    let directory = harness.root().join("theirs");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(65534), None).unwrap();
    check_refused(&harness, &directory, &[directory.to_str().unwrap(), "65534"]);
    assert_eq!(walk(&directory), Vec::<PathBuf>::new());
}

#[test]
fn a_place_where_nothing_can_be_made_is_refused() {
    let (harness, _upstream) = with_upstream(Script::default());
    // Nobody, not even root, can make a directory there.
    let place = Path::new("/proc/evermux-test/state");
    check_refused(&harness, place, &["/proc/evermux-test", "cannot create"]);
}

/// The one room that cannot be used is named.
#[test]
fn records_that_are_a_file_are_refused() {
    let (harness, _upstream) = with_upstream(Script::default());
    let state = harness.root().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("records"), "").unwrap();
    check_refused(&harness, &state, &[state.join("records").to_str().unwrap(), "directory"]);
}
