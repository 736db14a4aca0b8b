//! That a look is nothing but a look: by what is on the disk before and after, by what the kernel was asked for, and by
//! what a user without the right to write can do with it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script};
use nix::unistd::geteuid;
use serde_json::Value;

use super::{after_a_session, codes, copy_tree, greeted, lists_locks, public, report};
use crate::state::walk;
use crate::support::{PATIENCE, binary, other_build, with_upstream};

/// Content, mode, owner and times of everything; not when it was read.
type Picture = BTreeMap<PathBuf, (u32, u32, u64, (i64, i64), (i64, i64), Vec<u8>)>;

pub(super) fn picture(root: &Path) -> Picture {
    let all = walk(root).into_iter().chain([root.to_owned()]);
    let look = |path: PathBuf| {
        let meta = fs::symlink_metadata(&path).ok()?;
        let bytes = if meta.is_file() { fs::read(&path).unwrap_or_default() } else { Vec::new() };
        let times = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
        Some((path, (meta.mode(), meta.uid(), meta.ino(), times.0, times.1, bytes)))
    };
    all.filter_map(look).collect()
}

#[test]
fn nothing_changes_while_a_daemon_runs_with_calls_in_flight() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = greeted(&harness);
    let call = client.start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    // The daemon writes when it likes, so a change proves nothing and no change proves all.
    let told = poll_until(PATIENCE, || {
        let before = picture(&harness.state_dir());
        let told = report(&harness, &[]);
        (picture(&harness.state_dir()) == before).then_some(told)
    });
    let (code, report) = told.expect("something changed at every look");
    if lists_locks() {
        assert_eq!((code, codes(&report)), (Some(0), vec!["IN_FLIGHT".to_owned()]), "{report:#}");
        assert_eq!(report["sessions"][0]["in_flight"], 1);
    }
    upstream.open_gate("g");
    assert_eq!(client.wait(&call, PATIENCE).error(), None);
}

/// Sessions come and go, and records and journals with them: none of it is ever taken for damage.
#[test]
fn a_busy_daemon_is_no_damage() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.add_upstream("own", &upstream.url(), "share = \"client\"\ngrace = \"0s\"");
    harness.start_daemon();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for _ in 0..6 {
                let mut client = harness.connect("own");
                assert_eq!(client.initialize("2025-11-25").error(), None);
                (0..20).for_each(|_| assert_eq!(client.call("counter", "{}").error(), None));
                assert_eq!(client.close(PATIENCE), Some(0));
            }
        });
        let mut looks = 0;
        while !worker.is_finished() || looks < 3 {
            let (code, report) = report(&harness, &[]);
            let harmless = |code: &String| !lists_locks() && code == "OUTCOME_UNKNOWN";
            assert!(code == Some(0) || codes(&report).iter().all(harmless), "{report:#}");
            looks += 1;
        }
    });
}

/// What was asked of the kernel, with its words for opening files; `None` where nothing can be traced.
fn traced(harness: &Harness) -> Option<String> {
    let strace = ["/usr/bin/strace", "/bin/strace"].iter().map(Path::new).find(|path| path.exists())?;
    let works = Command::new(strace).args(["-o", "/dev/null", "-e", "trace=none", "/bin/true"]).status();
    works.is_ok_and(|status| status.success()).then_some(())?;
    let notes = harness.root().join("asked");
    let mut command = harness.command_of(strace, &["-f", "-q", "-o"]);
    command.arg(&notes).arg(binary()).args(["doctor", "--json"]);
    let output = harness.finish(command, PATIENCE);
    assert!(matches!(output.code, Some(0 | 1)), "{output:?}");
    Some(fs::read_to_string(notes).unwrap())
}

/// Calls that make, change, lock or send something.
const FORBIDDEN: [&str; 29] = [
    "socket",
    "connect",
    "bind",
    "sendto",
    "sendmsg",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "unlink",
    "unlinkat",
    "rmdir",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchownat",
    "utimensat",
    "truncate",
    "ftruncate",
    "flock",
    "creat",
];

/// The name of the call in a line `1234 openat(AT_FDCWD, …`.
fn call_of(line: &str) -> Option<&str> {
    let (head, _) = line.split_once('(')?;
    head.rsplit(' ').next()
}

#[track_caller]
fn check_asked(asked: &str) {
    let opens = |line: &&str| call_of(line).is_some_and(|call| call.starts_with("open"));
    let writing = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE"];
    let wrong: Vec<&str> = asked
        .lines()
        .filter(|line| {
            let Some(call) = call_of(line) else { return false };
            let locks = call == "fcntl" && (line.contains("SETLK") || line.contains("F_SETLEASE"));
            let elsewhere = call.contains("write") && !line.contains("write(1,");
            FORBIDDEN.contains(&call)
                || locks
                || elsewhere
                || opens(line) && writing.iter().any(|w| line.contains(w))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for needed in [".json\", O_RDONLY", "\"key\", O_RDONLY", "\"attach\", O_RDONLY", "calls-"] {
        assert!(
            asked.lines().filter(opens).any(|line| line.contains(needed)),
            "the trace does not show {needed}"
        );
    }
}

#[test]
fn the_kernel_is_asked_for_nothing_but_reading() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = greeted(&harness);
    let _call = client.start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    let Some(asked) = traced(&harness) else {
        eprintln!("left out: no strace, or tracing is not allowed here");
        return;
    };
    check_asked(&asked);
    client.kill();
    harness.kill_daemon();
    // With something to put aside, and something to sweep.
    fs::write(harness.state_dir().join("records/stray.json"), "{}").unwrap();
    fs::write(harness.state_dir().join("records/.stray.tmp"), "{}").unwrap();
    check_asked(&traced(&harness).unwrap());
}

fn give(root: &Path, uid: u32, directory: u32, file: u32) {
    for path in walk(root).into_iter().chain([root.to_owned()]) {
        let mode = if path.is_dir() { directory } else { file };
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
    }
}

#[test]
fn a_read_only_copy_is_read_by_its_owner_and_by_others() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can give a file away");
        return;
    }
    let (harness, _upstream) = after_a_session();
    let (place, copy) = public();
    copy_tree(&harness.state_dir(), &copy);
    let program = other_build(place.path());
    let look = |uid: u32| -> (Option<i32>, Value) {
        let mut command = harness.command_of(&program, &["doctor", "--json", "--state-dir"]);
        command.arg(&copy).current_dir("/").uid(uid).gid(uid);
        let output = harness.finish(command, PATIENCE);
        (output.code, if output.stdout.is_empty() { Value::Null } else { output.json() })
    };
    give(&copy, 65534, 0o500, 0o400);
    let before = picture(&copy);
    let (code, report) = look(65534);
    assert_eq!((code, codes(&report)), (Some(0), vec![]), "{report:#}");
    assert_eq!(report["sessions"].as_array().unwrap().len(), 1);
    let (code, report) = look(0);
    assert_eq!((code, codes(&report)), (Some(0), vec!["OTHER_OWNER".to_owned()]), "{report:#}");
    let (code, report) = look(65533);
    assert_eq!((code, &report["healthy"]), (Some(2), &Value::Null), "{report:#}");
    assert_eq!(picture(&copy), before);
    // Opened up for others: they can look, and are told that they can.
    give(&copy, 0, 0o555, 0o444);
    let (code, report) = look(65534);
    let told = codes(&report);
    for wanted in ["STATE_OPEN", "RECORD_UNSAFE", "OTHER_OWNER"] {
        assert!(told.iter().any(|code| code == wanted), "{wanted} is not in {report:#}");
    }
    assert_eq!((code, told.iter().any(|code| code == "NOT_READ")), (Some(1), false), "{report:#}");
    give(&copy, 0, 0o700, 0o600);
}
