//! The tool itself, with few calls: are all answers checked, are ratios there, does a wrong answer fail the run?
//! No time is asserted.

#![allow(clippy::unwrap_used, reason = "a failed helper of a test is a failed test")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const ROUNDS: u64 = 2;
const CALLS: u64 = 60;
/// First call, warm-up of a tenth, and the measured calls.
const CHECKED_BY_ONE: u64 = 1 + CALLS / 10 + CALLS;

fn bench(directory: &Path, arguments: &[&str]) -> (Output, Option<Value>) {
    let json = directory.join("out.json");
    let output = Command::new(env!("CARGO_BIN_EXE_evermux-bench"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("TMPDIR", directory)
        .args(["run", "--no-spin", "--rounds", &ROUNDS.to_string(), "--calls", &CALLS.to_string()])
        .arg("--json")
        .arg(&json)
        .args(arguments)
        .output()
        .unwrap();
    let report = std::fs::read(json).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap());
    (output, report)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_measured(scenario: &Value, names: &[&str], checked: u64) {
    let targets = scenario["targets"].as_array().unwrap();
    assert_eq!(targets.iter().map(|target| target["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    for target in targets {
        let rounds = target["rounds"].as_array().unwrap();
        assert_eq!(rounds.len() as u64, ROUNDS);
        for round in rounds {
            assert_eq!(round["checked"], checked, "{target}");
        }
        if target["reference"].is_string() {
            for figure in ["p50_us", "p99_us", "calls_per_second"] {
                assert!(target["ratios"][figure]["median"].as_f64().unwrap() > 0.0, "{figure} of {target}");
            }
        }
    }
}

#[test]
fn direct_and_relay_are_checked_and_compared() {
    for reply in ["json", "sse"] {
        let directory = tempfile::tempdir().unwrap();
        let arguments = ["--targets", "relay", "--clients", "1,4", "--reply", reply, "--strict"];
        let (output, report) = bench(directory.path(), &arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        let report = report.unwrap();
        let scenarios = report["scenarios"].as_array().unwrap();
        assert_eq!(scenarios.len(), 2);
        assert_measured(&scenarios[0], &["direct", "relay"], CHECKED_BY_ONE);
        // 15 calls and a warm-up of 2 for each of 4 clients.
        assert_measured(&scenarios[1], &["direct", "relay"], 4 * (1 + 2 + 15));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(table.contains("| relay ÷ direct | "), "{table}");
        assert_eq!(leftovers(directory.path()), ["out.json"], "the run leaves nothing behind");
    }
}

#[test]
fn the_byte_shim_carries_large_results() {
    for reply in ["json", "sse"] {
        let directory = tempfile::tempdir().unwrap();
        let arguments = ["--targets", "byte-shim", "--clients", "2", "--size", "100k", "--reply", reply];
        let (output, report) = bench(directory.path(), &arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_measured(&report.unwrap()["scenarios"][0], &["direct", "byte-shim"], 2 * (1 + 3 + 30));
    }
}

#[test]
fn one_wrong_answer_fails_the_run() {
    for (what, said) in [
        ("nonce", "another caller's nonce"),
        ("id", "the request had"),
        ("size", "asked for were"),
        ("fill", "filling of the result was changed"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        // In the measured calls of `relay`, which come after all of `direct`'s.
        let call = (CHECKED_BY_ONE + 20).to_string();
        let arguments =
            ["--targets", "relay", "--clients", "1", "--corrupt-call", &call, "--corrupt-what", what];
        let (output, report) = bench(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{what}: {}", stderr(&output));
        let failure = report.unwrap()["failed"]["relay"].as_str().unwrap().to_owned();
        assert!(failure.contains(said), "{what}: {failure}");
    }
}

#[test]
fn what_cannot_start_is_skipped_with_a_word() {
    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("own.toml");
    std::fs::write(
        &table,
        "[[target]]\nname = 'absent'\nkind = 'stdio'\ncommand = ['evermux-bench-no-such-program']\nreference = 'direct'\n",
    )
    .unwrap();
    let arguments = ["--table", table.to_str().unwrap(), "--targets", "absent", "--clients", "1"];
    let (output, report) = bench(directory.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(report.unwrap()["skipped"]["absent"].is_string());
    let (output, _) = bench(directory.path(), &[&arguments[..], &["--strict"]].concat());
    assert_eq!(output.status.code(), Some(1));
}

fn leftovers(directory: &Path) -> Vec<String> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// The evermux beside this program, which a build of the workspace puts there.
fn evermux() -> Option<std::path::PathBuf> {
    let evermux = Path::new(env!("CARGO_BIN_EXE_evermux-bench")).with_file_name("evermux");
    if evermux.exists() {
        return Some(evermux);
    }
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "evermux must be built: nothing is skipped in CI");
    let word = b"skipped: no evermux beside evermux-bench (cargo build -p evermux)\n";
    std::io::Write::write_all(&mut std::io::stderr(), word).unwrap();
    None
}

fn goals(directory: &Path, arguments: &[&str]) -> Option<(Output, Value)> {
    let evermux = evermux()?;
    let json = directory.join("goals.json");
    let output = Command::new(env!("CARGO_BIN_EXE_evermux-bench"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("TMPDIR", directory)
        .args(["goals", "--quick", "--no-spin", "--evermux"])
        .arg(evermux)
        .arg("--json")
        .arg(&json)
        .args(arguments)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    Some((output, report))
}

/// Exit 0 says that each goal of the part has a figure; here it is looked at from outside.
fn assert_goals(part: &str, figures: &[&str]) {
    let directory = tempfile::Builder::new().prefix("g").tempdir_in("/tmp").unwrap();
    let Some((output, report)) = goals(directory.path(), &["--only", part]) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("| what | goal | figure | met |"), "{table}");
    let rows = report["rows"].as_array().unwrap();
    for id in figures {
        let row = rows.iter().find(|row| row["id"] == *id).unwrap();
        assert!(row["figure"]["median"].is_number(), "{row}");
        assert!(row["met"].is_boolean() && row["bound"].is_object(), "{row}");
    }
    assert!(rows.iter().all(|row| row["part"] == part));
    assert_eq!(leftovers(directory.path()), ["goals.json"], "it leaves nothing behind");
}

#[test]
fn calls_are_held_against_the_limits() {
    let http = ["calls.p50", "calls.p99", "calls.rate", "calls.cpu"];
    assert_goals("calls", &[&http[..], &["calls.shim_p50", "calls.shim_p99", "calls.shim_rate"]].concat());
}

#[test]
fn large_results_are_weighed() {
    assert_goals("large", &["large.rate", "large.memory"]);
}

#[test]
fn upstream_connections_are_counted() {
    assert_goals("connections", &["connections.turns", "connections.busy", "connections.http2"]);
}

#[test]
fn starts_are_timed() {
    assert_goals("start", &["start.running", "start.cold"]);
}

#[test]
fn memory_is_weighed() {
    assert_goals("memory", &["memory.shim", "memory.few", "memory.many", "memory.flat"]);
}

#[test]
fn wake_ups_are_counted() {
    assert_goals("idle", &["idle.wakeups"]);
}

#[test]
fn recorded_sessions_are_weighed() {
    assert_goals("cold", &["cold.serving", "cold.session"]);
}

#[test]
fn growth_is_held_against_few_links() {
    assert_goals("growth", &["growth.idle", "growth.all"]);
}

#[test]
fn one_wrong_answer_fails_its_part_and_no_other() {
    let directory = tempfile::Builder::new().prefix("g").tempdir_in("/tmp").unwrap();
    // `idle` makes too few calls to come to it.
    let arguments = ["--only", "idle,growth", "--corrupt-call", "20"];
    let Some((output, report)) = goals(directory.path(), &arguments) else { return };
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let failed = report["failed"].as_object().unwrap();
    assert!(failed["growth"].as_str().unwrap().contains("another caller's nonce"), "{failed:?}");
    assert_eq!(failed.len(), 1);
    let rows = report["rows"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["part"] == "idle"), "nothing of what failed");
    assert!(String::from_utf8_lossy(&output.stdout).contains("NO FIGURE for growth.idle"));
}
