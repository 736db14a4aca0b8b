//! Every code from a state that deserves it, without a file; and that a look tells what a start then does.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use evermux_core::record::{HandshakeState, Record, Sync};

use super::look::{JournalSeen, Room, Seen};
use super::*;
use crate::bare;
use crate::file::Content;
use crate::journal_line::FORGET_AFTER_MS;
use crate::key::Key;
use crate::testing::{Home, sample};

const NOW: u64 = 1_764_000_000_000;
/// When the process of the journal began.
const BEGAN: u64 = NOW - 10_000;
const FILE: &str = "git-hub_2-00000000000000000000000000000005.json";
const TRAJECTORY: &str = "00000000000000000000000000000005";
const LINK: &str = "0000000000000000000000000000001a";

fn key() -> Key {
    Key::from_bytes([7; 32])
}

fn text_of(record: &Record) -> Content {
    Content::Text(bare::write_record(record, &key()).unwrap().into_bytes())
}

fn witness_line(members: &str) -> String {
    let canonical = bare::canonical(format!("{{{members}}}").as_bytes()).unwrap();
    let check = blake3::hash(canonical.as_bytes()).to_hex();
    format!("{{\"check\":\"{}\",{members}}}\n", &check[..8])
}

fn journal(lines: &[String]) -> Content {
    let mut text = Vec::new();
    for line in ["V 1".to_owned(), format!("B {BEGAN}")].iter().chain(lines) {
        bare::write_line(line.as_bytes(), &mut text);
    }
    Content::Text(text)
}

fn sent(seq: &str, id: u64, at_ms: u64) -> String {
    format!("S {LINK} {seq} {TRAJECTORY} 2 {id} {at_ms}")
}

/// One session, nothing open, and no daemon.
fn healthy() -> Seen {
    let written =
        format!(r#""trajectory":"{TRAJECTORY}","handshake":2,"generation":3,"reserved_until":2048"#);
    let room = |name| (name, Room::There(0o700));
    Seen {
        other_owner: None,
        rooms: ["", "journal", "records", "quarantine", "log", "run"].map(room).into(),
        lock: None,
        key: Content::Text(vec![7; 32]),
        token: Content::Missing,
        attach: Content::Text((witness_line(r#""granted":3"#) + &witness_line(&written)).into_bytes()),
        records: vec![(FILE.to_owned(), text_of(&sample(5)))],
        journals: vec![JournalSeen {
            name: "calls-3.log".to_owned(),
            content: journal(&[sent("1", 7, NOW - 1000), format!("D {TRAJECTORY} 7")]),
            held: Some(false),
        }],
        quarantine: Vec::new(),
        temps: Vec::new(),
        moving: false,
        fresh_key: Key::from_bytes([9; 32]),
        now_ms: NOW,
    }
}

fn with(change: impl FnOnce(&mut Seen)) -> Report {
    let mut seen = healthy();
    change(&mut seen);
    judge(seen)
}

fn codes(report: &Report) -> Vec<Code> {
    report.findings.iter().map(|finding| finding.code).collect()
}

fn with_record(change: impl FnOnce(&mut Record)) -> Report {
    let mut record = sample(5);
    change(&mut record);
    with(|seen| seen.records[0].1 = text_of(&record))
}

fn with_record_text(change: impl FnOnce(String) -> String) -> Report {
    let text = bare::write_record(&sample(5), &key()).unwrap();
    with(|seen| seen.records[0].1 = Content::Text(change(text).into_bytes()))
}

fn with_journal(held: Option<bool>, content: Content) -> Report {
    with(|seen| seen.journals[0] = JournalSeen { name: "calls-3.log".to_owned(), content, held })
}

#[test]
fn a_directory_as_it_should_be_is_healthy() {
    let report = judge(healthy());
    assert_eq!((report.healthy, report.daemon, codes(&report)), (true, Life::Ended, vec![]));
    let session = &report.sessions[0];
    assert_eq!((session.upstream.as_str(), session.trajectory.as_str()), ("git-hub_2", TRAJECTORY));
    assert_eq!((session.handshake, session.unresolved, session.resumable), (2, 0, true));
    let text = serde_json::to_string(&report).unwrap();
    for secret in ["s3cret-session!", "file:///a", "cursor", "2025-11-25"] {
        assert!(!text.contains(secret), "{text}");
    }
    let fresh = with(|seen| {
        seen.records.clear();
        (seen.key, seen.attach) = (Content::Missing, Content::Missing);
        seen.journals.clear();
        seen.rooms.truncate(1);
    });
    assert_eq!(codes(&fresh), []);
}

/// What can be wrong with everything but the calls, and the report of it.
fn of_the_state() -> Vec<(Code, Report)> {
    let error = || std::io::Error::from_raw_os_error(5);
    vec![
        (Code::StateUnsafe, with(|seen| seen.rooms[2].1 = Room::Unsafe("a link"))),
        (Code::StateUnsafe, with(|seen| seen.lock = Some("not a plain file"))),
        (Code::StateOpen, with(|seen| seen.rooms[0].1 = Room::There(0o755))),
        (Code::OtherOwner, with(|seen| seen.other_owner = Some(65534))),
        (Code::NotRead, with(|seen| seen.rooms[2].1 = Room::Unread(error()))),
        (Code::NotRead, with(|seen| seen.records[0].1 = Content::Unread(error()))),
        (Code::NotRead, with(|seen| seen.token = Content::Unread(error()))),
        (Code::NotRead, with(|seen| seen.attach = Content::Unread(error()))),
        (Code::NotRead, with_journal(None, Content::Unread(error()))),
        (Code::SecretDamaged, with(|seen| seen.token = Content::Unsafe("open to other users"))),
        (Code::WitnessMissing, with(|seen| seen.attach = Content::Missing)),
        (Code::WitnessDamaged, with(|seen| seen.attach = Content::Text(b"{}\n{".to_vec()))),
        (Code::WitnessDamaged, with(|seen| seen.attach = Content::Unsafe("a symbolic link"))),
        (Code::RecordUnsafe, with(|seen| seen.records[0].1 = Content::Unsafe("a symbolic link"))),
        (Code::RecordDamaged, with(|seen| seen.records[0].1 = Content::TooLong)),
        (Code::RecordDamaged, with_record_text(|text| text.replace("2025-11-25", "2025-11-26"))),
        (Code::RecordDamaged, with_record_text(|text| text[..text.len() - 1].to_owned())),
        (Code::RecordNewer, with_record_text(|text| text.replace(r#""major":1"#, r#""major":2"#))),
        (Code::ForeignKey, with(|seen| seen.key = Content::Text(vec![8; 32]))),
        (Code::StaleEpoch, with_record(|record| record.ids_reserved_until = 1024)),
        (Code::StaleEpoch, with_record(|record| record.generation.0 = 2)),
        (Code::NotResumable, with_record(|record| record.handshake_state = HandshakeState::Sent)),
        (Code::NotResumable, with_record(|record| record.protocol_version = "1999-01-01".to_owned())),
        (Code::Quarantined, with(|seen| seen.quarantine = vec![format!("{FILE}.poison.2")])),
        (Code::LeftoverTemp, with(|seen| seen.temps = vec!["records/.x.tmp".to_owned()])),
    ]
}

fn of_the_journals() -> Vec<(Code, Report)> {
    let call = || journal(&[sent("1", 7, NOW - 1000)]);
    let broken = |text: &str| Content::Text(text.as_bytes().to_vec());
    vec![
        (Code::JournalDamaged, with_journal(Some(true), broken("V 1 b9485460\nS half\n"))),
        (Code::JournalDamaged, with_journal(None, Content::Unsafe("owned by another user"))),
        (Code::JournalVersion, {
            let mut text = Vec::new();
            bare::write_line(b"V 2", &mut text);
            with_journal(Some(false), Content::Text(text))
        }),
        (Code::JournalTorn, with_journal(Some(false), broken("V 1 b9485460\nS ha"))),
        (Code::JournalTorn, with_journal(None, broken("V 1 b9485460\nS ha"))),
        (Code::OutcomeUnknown, with_journal(Some(false), call())),
        (Code::OutcomeUnknown, with_journal(None, call())),
        (Code::InFlight, with_journal(Some(true), call())),
    ]
}

#[test]
fn each_code_is_found_alone_and_weighs_what_it_should() {
    let mut found = BTreeSet::from([Code::KeyMissing]);
    for (code, report) in of_the_state().into_iter().chain(of_the_journals()) {
        assert_eq!(codes(&report), [code], "{report:#?}");
        assert_eq!(report.healthy, code.severity() == Severity::Note, "{code:?}");
        found.insert(code);
    }
    // Without the key each record is refused, as a start would with the key that it makes.
    let keyless = with(|seen| seen.key = Content::Missing);
    assert_eq!(codes(&keyless), [Code::KeyMissing, Code::ForeignKey]);
    let damaged = with(|seen| seen.key = Content::Text(vec![7; 31]));
    assert_eq!(codes(&damaged), [Code::SecretDamaged, Code::ForeignKey]);
    assert_eq!(found, BTreeSet::from(Code::ALL));
}

#[test]
fn a_key_that_cannot_be_read_condemns_no_record() {
    let report = with(|seen| seen.key = Content::Unread(std::io::Error::from_raw_os_error(13)));
    assert_eq!(codes(&report), [Code::NotRead, Code::NotRead]);
    assert_eq!(report.findings[1].detail.as_deref(), Some("its key could not be read"));
}

#[test]
fn a_deleted_session_and_a_torn_witness_are_told_apart() {
    let deleted = witness_line(&format!(r#""trajectory":"{TRAJECTORY}","deleted":true"#));
    // Whole but for its line end: it counts.
    let report = with(|seen| seen.attach = Content::Text(deleted.trim_end().into()));
    assert_eq!(codes(&report), [Code::StaleEpoch]);
    let report = with(|seen| seen.attach = Content::Text(deleted[..20].into()));
    assert_eq!(codes(&report), []);
}

#[test]
fn a_torn_last_line_of_a_live_journal_is_no_damage() {
    let report = with_journal(Some(true), Content::Text(b"V 1 b9485460\nS ha".to_vec()));
    assert_eq!((codes(&report), report.daemon), (vec![], Life::Running));
}

#[test]
fn a_call_without_an_answer_can_be_joined() {
    let cursor = format!("C {TRAJECTORY} 8 \"ev\"");
    let report = with_journal(Some(false), journal(&[sent("4", 8, NOW - 1000), cursor]));
    let finding = &report.findings[0];
    assert_eq!(
        (finding.upstream.as_deref(), finding.trajectory.as_deref()),
        (Some("git-hub_2"), Some(TRAJECTORY))
    );
    let operation = Operation {
        link: LINK.to_owned(),
        seq: Some(4),
        handshake: 2,
        request_id: 8,
        sent_ms: NOW - 1000,
        replayable: true,
    };
    assert_eq!(finding.operation, Some(operation));
    assert_eq!(
        (finding.file.as_deref(), finding.code.word()),
        (Some("journal/calls-3.log"), "OUTCOME_UNKNOWN")
    );
    assert_eq!((report.sessions[0].unresolved, report.sessions[0].in_flight), (1, 0));
}

/// The file of a live process also tells what those before it left.
#[test]
fn what_a_former_process_left_is_unknown_also_in_a_live_one() {
    let lines = [sent("1", 7, BEGAN - 1), sent("2", 8, BEGAN), sent("-", 9, BEGAN - 1)];
    let report = with_journal(Some(true), journal(&lines));
    let ids = |code: Code| -> Vec<u64> {
        let mine = report.findings.iter().filter(|finding| finding.code == code);
        mine.filter_map(|finding| Some(finding.operation.as_ref()?.request_id)).collect()
    };
    assert_eq!((ids(Code::OutcomeUnknown), ids(Code::InFlight)), (vec![7, 9], vec![8]));
    assert_eq!((report.sessions[0].unresolved, report.sessions[0].in_flight), (2, 1));
}

#[test]
fn what_is_settled_in_any_way_is_not_told() {
    let answered = [sent("1", 7, NOW - 9), format!("D {TRAJECTORY} 7")];
    let acknowledged = [sent("1", 7, NOW - 9), format!("A {LINK} 2")];
    let ended = [sent("1", 7, NOW - 9), format!("E {LINK}")];
    for lines in [answered, acknowledged, ended] {
        assert_eq!(codes(&with_journal(Some(false), journal(&lines))), []);
    }
    let old = journal(&[sent("1", 7, NOW - FORGET_AFTER_MS - 1)]);
    assert_eq!(codes(&with_journal(Some(false), old)), []);
    // The same number twice: the first sending was refused.
    let twice = with_journal(Some(false), journal(&[sent("1", 7, NOW - 9), sent("1", 8, NOW - 8)]));
    assert_eq!(
        twice.findings.iter().map(|f| f.operation.as_ref().unwrap().request_id).collect::<Vec<_>>(),
        [8]
    );
}

fn everything() -> Seen {
    let mut seen = healthy();
    seen.records.push(("strange name.json".to_owned(), Content::TooLong));
    seen.quarantine = vec![
        format!("{FILE}.stale_epoch.1"),
        "key.secret_unusable.1".to_owned(),
        format!("{FILE}.git-hub_2.1"),
        "private".to_owned(),
    ];
    seen.temps = vec![format!("records/.{FILE}.AbCdEf.tmp"), ".key.x.tmp".to_owned()];
    seen.journals[0].content = journal(&[sent("1", 7, NOW - 9)]);
    seen
}

#[test]
fn a_shared_report_holds_no_name_and_equal_names_stay_equal() {
    let mut report = judge(everything());
    let open = serde_json::to_string(&report).unwrap();
    share::hide_names(&mut report, &key());
    let text = serde_json::to_string(&report).unwrap();
    for name in ["git-hub_2", TRAJECTORY, LINK, "strange", "private", "AbCdEf", "000000c0", "000000bf"] {
        assert!(open.contains(name) && !text.contains(name), "{name}: {text}");
    }
    let session = report.sessions[0].clone();
    let operation = report.findings.iter().find(|finding| finding.operation.is_some()).unwrap();
    assert_eq!(operation.upstream.as_ref(), Some(&session.upstream));
    assert_eq!(operation.trajectory.as_ref(), Some(&session.trajectory));
    assert_eq!(session.owner.map(|owner| owner.len()), Some(12));
    let record = format!("{}-{}.json", session.upstream, session.trajectory);
    assert_eq!(session.file, format!("records/{record}"));
    let files: Vec<&str> = report.findings.iter().filter_map(|finding| finding.file.as_deref()).collect();
    assert!(files.contains(&format!("quarantine/{record}.stale_epoch.1").as_str()), "{files:?}");
    assert!(files.contains(&"quarantine/key.secret_unusable.1") && files.contains(&"journal/calls-3.log"));
    // Under another key nothing can be compared.
    let mut other = judge(everything());
    share::hide_names(&mut other, &Key::from_bytes([8; 32]));
    assert_ne!(other.sessions[0].upstream, session.upstream);
}

#[test]
fn the_words_are_those_of_the_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planning/doctor.md");
    let page = fs::read_to_string(page).unwrap();
    for code in Code::ALL {
        let severity = if code.severity() == Severity::Note { "note" } else { "finding" };
        let row = format!("| `{}` | {severity} | {} | {} |", code.word(), code.means(), code.next());
        assert!(page.contains(&row), "{row}");
        assert!(!row.contains("not executed") && !row.contains("did not run"), "{row}");
    }
    let is_code = |line: &&str| line.starts_with("| `") && line.as_bytes()[3].is_ascii_uppercase();
    let rows = page.lines().filter(is_code).count();
    assert_eq!(rows, Code::ALL.len(), "the page has a code that does not exist");
}

/// A deletion is in the witness before its record is gone: what a second look does not find was a moment.
#[test]
fn what_a_second_look_does_not_find_is_not_told() {
    let stale = || with_record(|record| record.generation.0 = 2);
    let told = |looks: Vec<(Report, bool)>| {
        let (mut looks, mut taken) = (looks.into_iter(), 0);
        let report = agreed(
            || {
                taken += 1;
                Ok(looks.next().unwrap())
            },
            || (),
        );
        (report.unwrap().healthy, taken)
    };
    let good = || judge(healthy());
    assert_eq!(told(vec![(good(), false)]), (true, 1));
    assert_eq!(told(vec![(stale(), false), (good(), false)]), (true, 2));
    assert_eq!(told(vec![(stale(), false), (stale(), false)]), (false, 2));
    assert_eq!(told(vec![(good(), true), (stale(), true), (good(), false)]), (true, 3));
    // One that never comes to rest is told as it was last seen.
    assert_eq!(told((0..LOOKS).map(|_| (stale(), true)).collect()), (false, LOOKS));
}

/// Path, mode, time of the last change, content.
type Entry = (PathBuf, u32, (i64, i64), Vec<u8>);

fn contents(root: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    for path in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).chain([root.to_owned()]) {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() && path != root {
            found.extend(contents(&path));
        }
        let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        found.push((path, meta.mode(), (meta.mtime(), meta.mtime_nsec()), bytes));
    }
    found.sort();
    found
}

/// A directory with a record of each kind.
fn home_with_all_kinds() -> Home {
    let home = Home::new();
    for trajectory in 1..=6 {
        home.write(&sample(trajectory), Sync::Durable);
    }
    let path = |trajectory: u128| crate::testing::path_of(home.root(), &sample(trajectory));
    fs::write(path(1), "torn").unwrap();
    fs::set_permissions(path(2), Permissions::from_mode(0o644)).unwrap();
    let edit = |trajectory: u128, from: &str, to: &str| {
        let text = fs::read_to_string(path(trajectory)).unwrap();
        fs::write(path(trajectory), text.replace(from, to)).unwrap();
    };
    edit(3, "2025-11-25", "2025-11-26");
    edit(4, r#""major":1"#, r#""major":2"#);
    home.state.witness().note_deleted(&home.state, Trajectory(5)).unwrap();
    fs::write(home.root().join("records/.x.tmp"), "half").unwrap();
    fs::set_permissions(home.root().join("journal"), Permissions::from_mode(0o755)).unwrap();
    home
}

#[test]
fn a_look_changes_nothing_and_tells_what_a_start_does() {
    let home = home_with_all_kinds();
    let before = contents(home.root());
    let report = doctor(home.root(), false).unwrap();
    assert_eq!(contents(home.root()), before);
    let loaded = home.reopen().load_records(&home.key).unwrap();
    let mut told: Vec<(String, &str)> = report
        .findings
        .iter()
        .filter_map(|finding| {
            Some((finding.file.as_ref()?.strip_prefix("records/")?.to_owned(), finding.reason?))
        })
        .collect();
    let mut done: Vec<(String, &str)> =
        loaded.quarantined.iter().map(|aside| (aside.file.clone(), aside.reason.code())).collect();
    assert_eq!(done.len(), 4);
    told.sort();
    done.sort();
    assert_eq!(told, done);
    let newer: Vec<&Finding> = report.findings.iter().filter(|f| f.code == Code::RecordNewer).collect();
    assert_eq!(
        newer[0].file.as_ref().map(|file| file["records/".len()..].to_owned()).as_ref(),
        loaded.newer.first()
    );
    let sessions: Vec<&str> = report.sessions.iter().map(|session| session.trajectory.as_str()).collect();
    assert_eq!(sessions, loaded.records.iter().map(|r| r.trajectory.to_string()).collect::<Vec<_>>());
    assert!(codes(&report).contains(&Code::StateOpen) && codes(&report).contains(&Code::LeftoverTemp));
}

#[test]
fn what_is_no_directory_is_an_error_and_is_not_made() {
    let home = Home::new();
    let none = home.temp.path().join("none");
    assert!(doctor(&none, false).is_err() && !none.exists());
    let link = home.temp.path().join("link");
    std::os::unix::fs::symlink(home.root(), &link).unwrap();
    assert!(doctor(&link, false).is_err());
    assert!(doctor(&home.root().join("key"), false).is_err());
}

/// Read-only, and of a process that lives: its own calls are in flight.
#[test]
fn a_closed_directory_and_a_live_journal_are_read() {
    let home = Home::new();
    home.write(&sample(5), Sync::Durable);
    let mut journal = crate::CallJournal::open(&home.state, evermux_core::names::Generation(3)).unwrap();
    let entry = evermux_core::record::JournalEntry::Sent {
        link: evermux_core::names::LinkNonce(1),
        seq: None,
        trajectory: Trajectory(5),
        handshake: evermux_core::names::Handshake(2),
        wire: evermux_core::names::WireId(7),
        at_ms: crate::journal::unix_ms(),
    };
    journal.append(&[entry]).unwrap();
    let close = |directory: u32, file: u32| {
        for (path, mode, ..) in contents(home.root()) {
            let mode = if mode & 0o040_000 != 0 { directory } else { file };
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
    };
    close(0o500, 0o400);
    let report = doctor(home.root(), false).unwrap();
    drop(journal);
    let after = doctor(home.root(), false).unwrap();
    close(0o700, 0o600);
    assert_eq!((codes(&after), after.healthy), (vec![Code::OutcomeUnknown], false));
    if report.daemon != Life::Unknown {
        assert_eq!(
            (codes(&report), report.healthy, report.daemon),
            (vec![Code::InFlight], true, Life::Running)
        );
    }
}

#[test]
fn a_copy_of_another_user_is_judged_as_by_its_owner() {
    let home = Home::new();
    home.write(&sample(5), Sync::Durable);
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    for (path, ..) in contents(home.root()) {
        std::os::unix::fs::chown(path, Some(65534), None).unwrap();
    }
    let report = doctor(home.root(), false).unwrap();
    assert_eq!((codes(&report), report.sessions.len()), (vec![Code::OtherOwner], 1));
    // One that the owner could not have written is not believed.
    std::os::unix::fs::chown(crate::testing::path_of(home.root(), &sample(5)), Some(0), None).unwrap();
    assert_eq!(codes(&doctor(home.root(), false).unwrap()), [Code::RecordUnsafe, Code::OtherOwner]);
}
