//! SIGKILL at every named point: what was reported done is there, nothing is torn, and nothing is refused that
//! should not be. The child is this same test binary.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evermux_core::names::{Generation, Handshake, LinkNonce, Seq, Trajectory, WireId};
use evermux_core::record::{JournalEntry, Record, Sync};
use evermux_store::{CallJournal, FAILPOINT_ENV, Persist, QuarantineReason, StateDir, failpoint};

mod common;
use common::sample;

const CHILD_DIR: &str = "EVERMUX_STORE_CHILD_DIR";
const LAST_STEP: u64 = 4;
/// Trajectories from here on are made and deleted again, one a life.
const DELETED: u128 = 1000;

fn say(line: &str) {
    // Straight to the descriptor: what was said before a SIGKILL must have been heard.
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").unwrap();
    out.flush().unwrap();
}

fn call(wire: u64) -> JournalEntry {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    JournalEntry::Sent {
        link: LinkNonce(1),
        seq: Some(Seq(wire)),
        trajectory: Trajectory(1),
        handshake: Handshake(2),
        wire: WireId(wire),
        at_ms: u64::try_from(since.as_millis()).unwrap(),
    }
}

/// A daemon's life in short. Runs only as a child, where the environment names its directory.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let state = StateDir::open(Path::new(&dir)).unwrap();
    let key = state.key().unwrap().into_key();
    let lock = state.try_lock().unwrap();
    let records = state.load_records(&key).unwrap().records;
    let generation = state.grant_generation(&lock, &records).unwrap();
    say(&format!("generation {}", generation.0));
    let base = records.iter().map(|record| record.ids_reserved_until).max().unwrap_or(2048);
    say(&format!("base {base}"));
    let mut journal = CallJournal::open(&state, generation).unwrap();
    let persist = Persist::start(
        &state,
        key,
        Box::new(|done| {
            done.result.unwrap();
            say(&format!("done {}", done.ticket));
        }),
    );
    for step in 1..=LAST_STEP {
        failpoint("block.before_write");
        let record = Record { ids_reserved_until: base + step, generation, ..sample(1) };
        persist.write(step, record.clone(), Sync::Durable);
        assert!(persist.flush(Duration::from_secs(60)));
        persist.write(100 + step, Record { used_ms: step, ..record }, Sync::None);
        assert!(persist.flush(Duration::from_secs(60)));
        let wire = generation.0 * 10 + step;
        journal.append(&[call(wire)]).unwrap();
        say(&format!("sent {wire}"));
    }
    let passing = sample(DELETED + u128::from(generation.0));
    persist.write(50, Record { generation, ..passing.clone() }, Sync::Durable);
    assert!(persist.flush(Duration::from_secs(60)));
    persist.delete(51, passing.upstream, passing.trajectory);
    assert!(persist.flush(Duration::from_secs(60)));
}

struct Heard {
    generation: Option<u64>,
    base: u64,
    done: Vec<u64>,
    sent: Vec<u64>,
    killed: bool,
}

fn run_child(dir: &Path, point: Option<&str>) -> Heard {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env_clear().env(CHILD_DIR, dir);
    command.envs(point.map(|point| (FAILPOINT_ENV, point)));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let said = |word: &str| -> Vec<u64> {
        text.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
    };
    let base = said("base ").pop().unwrap_or(0);
    Heard { generation: said("generation ").pop(), base, done: said("done "), sent: said("sent "), killed }
}

/// What must hold after any death.
fn check(dir: &Path, heard: &Heard, sent_before: &[u64], point: &str) {
    let state = StateDir::open(dir).unwrap();
    let lock = state.try_lock().unwrap();
    let key = state.key().unwrap();
    let loaded = state.load_records(key.key()).unwrap();
    // Only a deletion that was not finished leaves something to put aside.
    let half_deleted = point.starts_with("delete.");
    for bad in &loaded.quarantined {
        assert!(half_deleted && bad.reason == QuarantineReason::StaleEpoch, "{point}: {bad:?}");
    }
    let records: BTreeMap<Trajectory, Record> =
        loaded.records.iter().map(|record| (record.trajectory, record.clone())).collect();
    let last_durable = heard.done.iter().filter(|ticket| **ticket <= LAST_STEP).max();
    if let Some(step) = last_durable {
        let record = &records[&Trajectory(1)];
        assert!(record.ids_reserved_until >= heard.base + step, "{point}");
        assert_eq!(Some(record.generation.0), heard.generation, "{point}");
    }
    if heard.done.contains(&51) {
        assert!(records.keys().all(|trajectory| trajectory.0 < DELETED), "{point}");
    }
    let wires: Vec<u64> =
        CallJournal::load_previous(&state).unwrap().into_iter().map(|call| call.wire.0).collect();
    for wire in sent_before.iter().chain(&heard.sent) {
        assert!(wires.contains(wire), "{point}: call {wire} is forgotten");
    }
    let next = state.grant_generation(&lock, &loaded.records).unwrap();
    assert!(next > Generation(heard.generation.unwrap_or(0)), "{point}");
    let names: Vec<_> =
        std::fs::read_dir(dir.join("records")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_str().unwrap().ends_with(".tmp")), "{point}: {names:?}");
}

#[test]
fn dying_at_any_point_loses_nothing_that_was_promised() {
    let record_points =
        ["record.before_tmp", "record.half_written", "record.before_rename", "record.after_rename"];
    let mut points: Vec<String> = record_points
        .iter()
        .flat_map(|point| [1, 2, 3, 8, 9].map(|count| format!("{point}:{count}")))
        .collect();
    for counted in [
        "witness.before_append",
        "settle.before_sync",
        "journal.before_append",
        "journal.after_append",
        "block.before_write",
    ] {
        points.extend([1, 3].map(|count| format!("{counted}:{count}")));
    }
    for once in [
        "key.before_rename",
        "generation.before_append",
        "journal.before_rename",
        "journal.before_unlink",
        "delete.before_unlink",
    ] {
        points.push(once.to_owned());
    }
    for point in &points {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("state");
        let killed = run_child(&dir, Some(point));
        assert!(killed.killed, "{point} was not reached");
        check(&dir, &killed, &[], point);
        // And once more over a directory that was in use: a full life, a death, the check.
        let full = run_child(&dir, None);
        assert!(!full.killed && full.done.len() as u64 == 2 * LAST_STEP + 2, "{point}");
        if point != "key.before_rename" {
            let killed = run_child(&dir, Some(point));
            assert!(killed.killed, "{point} was not reached the second time");
            check(&dir, &killed, &full.sent, point);
        }
    }
}
