//! One bad file costs one session, and what is put aside is still there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use evermux_core::names::{Generation, Handshake};

use super::*;
use crate::testing::{Home, path_of, sample};

fn reasons(loaded: &LoadedRecords) -> Vec<QuarantineReason> {
    loaded.quarantined.iter().map(|bad| bad.reason).collect()
}

/// Loads as a new process, expecting that only record 2 is left and record 1 is put aside for `reason`.
fn expect_aside(home: &Home, reason: QuarantineReason) -> Quarantined {
    let loaded = home.reopen().load_records(&home.key).unwrap();
    assert_eq!(loaded.records, vec![sample(2)]);
    assert_eq!(reasons(&loaded), vec![reason]);
    let bad = loaded.quarantined.into_iter().next().unwrap();
    assert!(home.root().join("records").join(&bad.file).symlink_metadata().is_err());
    assert!(home.root().join("quarantine").join(bad.moved_to.as_ref().unwrap()).symlink_metadata().is_ok());
    bad
}

fn home_with_two() -> (Home, std::path::PathBuf) {
    let home = Home::new();
    let path = home.write(&sample(1), Sync::Durable);
    home.write(&sample(2), Sync::Durable);
    (home, path)
}

#[test]
fn writes_private_files_and_reads_them_back() {
    let (home, path) = home_with_two();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    let loaded = home.reopen().load_records(&home.key).unwrap();
    assert_eq!(loaded.records, vec![sample(1), sample(2)]);
    assert!(loaded.quarantined.is_empty() && loaded.newer.is_empty() && loaded.unread.is_empty());
}

#[test]
fn a_cut_record_costs_only_itself() {
    let (home, path) = home_with_two();
    let text = fs::read(&path).unwrap();
    for end in 0..text.len() {
        fs::write(&path, &text[..end]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let bad = expect_aside(&home, QuarantineReason::RecordUnreadable);
        // Never written over: each cut has its own number, and its own content.
        let moved = home.root().join("quarantine").join(bad.moved_to.unwrap());
        assert_eq!(fs::read(&moved).unwrap(), &text[..end]);
        fs::remove_file(moved).unwrap();
    }
}

#[test]
fn nothing_in_quarantine_is_written_over() {
    let (home, path) = home_with_two();
    for number in 1..=3 {
        fs::write(&path, format!("{number}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        expect_aside(&home, QuarantineReason::RecordUnreadable);
    }
    let contents: Vec<String> = home
        .state
        .quarantine_names()
        .unwrap()
        .iter()
        .map(|name| fs::read_to_string(home.root().join("quarantine").join(name)).unwrap())
        .collect();
    assert_eq!(contents, ["1", "2", "3"]);
}

#[test]
fn what_was_put_aside_lately_is_told_by_upstream() {
    let (home, path) = home_with_two();
    fs::write(&path, "none").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    expect_aside(&home, QuarantineReason::RecordUnreadable);
    let within = |time| home.state.put_aside_within(time).unwrap();
    assert_eq!(within(Duration::from_secs(3600)), [sample(1).upstream].into());
    assert!(within(Duration::ZERO).is_empty(), "not for ever");
}

#[test]
fn a_changed_record_is_a_digest_mismatch() {
    let (home, path) = home_with_two();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("2025-11-25", "2025-11-26")).unwrap();
    let bad = expect_aside(&home, QuarantineReason::RecordDigestMismatch);
    assert_eq!(bad.session(), Some((sample(1).upstream, Trajectory(1))));
}

#[test]
fn an_open_record_is_put_aside_and_closed() {
    let (home, path) = home_with_two();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let bad = expect_aside(&home, QuarantineReason::RecordUnsafe);
    let moved = home.root().join("quarantine").join(bad.moved_to.unwrap());
    assert_eq!(fs::metadata(moved).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_link_of_either_kind_is_put_aside() {
    let (home, path) = home_with_two();
    let elsewhere = home.temp.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    expect_aside(&home, QuarantineReason::RecordUnsafe);
    fs::hard_link(&elsewhere, &path).unwrap();
    expect_aside(&home, QuarantineReason::RecordUnsafe);
    assert!(elsewhere.exists());
}

#[test]
fn what_is_no_plain_file_is_put_aside_without_hanging() {
    let (home, path) = home_with_two();
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    expect_aside(&home, QuarantineReason::RecordUnsafe);
    fs::create_dir(&path).unwrap();
    expect_aside(&home, QuarantineReason::RecordUnsafe);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    expect_aside(&home, QuarantineReason::RecordUnsafe);
}

#[test]
fn a_record_of_another_user_is_put_aside() {
    let (home, path) = home_with_two();
    // Only root can give a file away; elsewhere the rule is covered by the directory test of the same check.
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        eprintln!("not root: a foreign owner cannot be made here");
        return;
    }
    expect_aside(&home, QuarantineReason::RecordUnsafe);
}

#[test]
fn a_long_file_is_neither_written_nor_read() {
    let (home, path) = home_with_two();
    let long = Record { initialize_result: "x".repeat(RECORD_LIMIT_BYTES), ..sample(3) };
    let error = home.state.write_record(&home.key, &long, Sync::None).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }));
    fs::write(&path, " ".repeat(RECORD_LIMIT_BYTES + 1)).unwrap();
    expect_aside(&home, QuarantineReason::RecordUnreadable);
}

#[test]
fn a_newer_major_is_left_alone() {
    let (home, path) = home_with_two();
    let text = br#"{"format":{"major":2,"minor":0}}"#;
    fs::write(&path, text).unwrap();
    let loaded = home.reopen().load_records(&home.key).unwrap();
    assert_eq!(loaded.newer, vec![path.file_name().unwrap().to_str().unwrap().to_owned()]);
    assert!(loaded.quarantined.is_empty());
    assert_eq!(fs::read(&path).unwrap(), text);
}

#[test]
fn a_lost_key_costs_every_record_and_says_so() {
    for damage in ["lost", "short", "open"] {
        let (home, _) = home_with_two();
        let key = home.root().join("key");
        match damage {
            "lost" => fs::remove_file(&key).unwrap(),
            "short" => fs::write(&key, b"short").unwrap(),
            _ => fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap(),
        }
        let state = home.reopen();
        let fresh = state.key().unwrap();
        assert!(fresh.is_created(), "{damage}");
        let loaded = state.load_records(fresh.key()).unwrap();
        assert_eq!(reasons(&loaded), vec![QuarantineReason::ForeignKey; 2], "{damage}");
        assert!(loaded.records.is_empty());
        let kept = state.quarantine_names().unwrap().iter().filter(|name| name.starts_with("key.")).count();
        assert_eq!(kept, usize::from(damage != "lost"));
        assert!(!state.key().unwrap().is_created());
    }
}

#[test]
fn a_restored_older_copy_is_stale() {
    let newer: [fn(&mut Record); 3] = [
        |record| record.handshake = Handshake(3),
        |record| record.generation = Generation(4),
        |record| record.ids_reserved_until = 4096,
    ];
    for change in newer {
        let (home, path) = home_with_two();
        let backup = fs::read(&path).unwrap();
        let mut record = sample(1);
        change(&mut record);
        home.write(&record, Sync::Durable);
        let loaded = home.reopen().load_records(&home.key).unwrap();
        assert_eq!(loaded.records, vec![record, sample(2)]);
        fs::write(&path, &backup).unwrap();
        expect_aside(&home, QuarantineReason::StaleEpoch);
        // Still so after the witness was compacted.
        let other_process = home.reopen();
        other_process.witness().refresh(&other_process).unwrap();
        other_process.witness().compact(&other_process).unwrap();
        fs::write(&path, &backup).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        expect_aside(&home, QuarantineReason::StaleEpoch);
    }
}

#[test]
fn ids_may_start_afresh_with_a_new_session() {
    let (home, _) = home_with_two();
    let record = Record { handshake: Handshake(3), ids_reserved_until: 1, ..sample(1) };
    home.write(&record, Sync::Durable);
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records, vec![record, sample(2)]);
}

#[test]
fn a_restored_copy_of_a_deleted_record_is_stale() {
    let (home, path) = home_with_two();
    let backup = fs::read(&path).unwrap();
    home.state.delete_record(&sample(1).upstream, Trajectory(1)).unwrap();
    assert!(!path.exists());
    for _ in 0..2 {
        fs::write(&path, &backup).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        expect_aside(&home, QuarantineReason::StaleEpoch);
        let other_process = home.reopen();
        other_process.witness().refresh(&other_process).unwrap();
        other_process.witness().compact(&other_process).unwrap();
    }
    // Nor does this process bring it back.
    for state in [home.state.clone(), home.reopen()] {
        let error = state.write_record(&home.key, &sample(1), Sync::None).unwrap_err();
        assert!(matches!(error, StoreError::Deleted { .. }));
    }
    assert!(!path.exists());
}

#[test]
fn an_old_process_does_not_write_over_a_newer_one() {
    let (home, _) = home_with_two();
    let newer = Record { generation: Generation(4), ..sample(1) };
    let other_process = home.reopen();
    other_process.write_record(&home.key, &newer, Sync::Durable).unwrap();
    let error = home.state.write_record(&home.key, &sample(1), Sync::Durable).unwrap_err();
    assert!(matches!(error, StoreError::Superseded { .. }));
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records, vec![newer, sample(2)]);
}

#[test]
fn a_write_that_is_not_durable_may_be_ahead_of_the_witness() {
    let (home, _) = home_with_two();
    let record = Record { used_ms: 9, get_cursor: Some("later".into()), ..sample(1) };
    home.write(&record, Sync::None);
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records, vec![record, sample(2)]);
}

#[test]
fn a_poisoned_session_is_put_aside_once() {
    let (home, path) = home_with_two();
    let upstream = sample(1).upstream;
    let moved = home.state.quarantine_record(&upstream, Trajectory(1), "poison").unwrap().unwrap();
    assert_eq!(moved, format!("{}.poison.1", path.file_name().unwrap().to_str().unwrap()));
    assert_eq!(
        home.state.quarantine_record(&upstream, Trajectory(1), QuarantineReason::Poison).unwrap(),
        None
    );
    assert!(home.state.quarantine_record(&upstream, Trajectory(2), "../x").is_err());
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records, vec![sample(2)]);
}

#[test]
fn leftovers_of_killed_processes_are_swept_and_other_files_are_not() {
    let (home, path) = home_with_two();
    let records = home.root().join("records");
    let leftover = records.join(".git-hub_2-x.json.AbCdEf.tmp");
    let foreign = records.join("notes.txt");
    fs::write(&leftover, "half").unwrap();
    fs::write(&foreign, "mine").unwrap();
    symlink(&path, records.join(".link.tmp")).unwrap();
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records, vec![sample(1), sample(2)]);
    assert!(!leftover.exists() && foreign.exists() && path.exists());
}

#[test]
fn what_cannot_be_moved_is_ignored_where_it_is() {
    let (home, path) = home_with_two();
    fs::write(&path, "torn").unwrap();
    let state = home.reopen();
    let quarantine = home.root().join("quarantine");
    fs::remove_dir(&quarantine).unwrap();
    let loaded = state.load_records(&home.key).unwrap();
    assert_eq!(loaded.records, vec![sample(2)]);
    assert_eq!(loaded.quarantined[0].moved_to, None);
    assert!(path.exists());
}

#[test]
fn nothing_that_is_printed_tells_a_secret() {
    let (home, path) = home_with_two();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("s3cret-session!", "s3cret-other")).unwrap();
    let loaded = home.reopen().load_records(&home.key).unwrap();
    let bytes: String = home.key.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let printed = format!("{loaded:?} {:?} {:?}", home.state.key().unwrap(), home.state);
    assert!(!printed.contains("s3cret") && !printed.contains(&bytes));
    assert_eq!(path_of(home.root(), &sample(1)), path);
}
