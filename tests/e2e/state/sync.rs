//! No synced write on the path of a call (D13), counted where it cannot be argued with: at the kernel's door.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script};
use serde_json::Value;

use super::record_of;
use crate::support::{PATIENCE, binary, with_upstream};

/// A script that is the binary with each synced write of it noted in a file; `None` where there is no tracer.
fn traced(harness: &Harness) -> Option<(PathBuf, PathBuf)> {
    let strace = ["/usr/bin/strace", "/bin/strace"].iter().map(Path::new).find(|path| path.exists())?;
    // Some kernels and containers let nobody trace.
    let works = Command::new(strace).args(["-o", "/dev/null", "-e", "trace=none", "/bin/true"]).status();
    works.is_ok_and(|status| status.success()).then_some(())?;
    let (script, notes) = (harness.root().join("traced"), harness.root().join("syncs"));
    let text = format!(
        "#!/bin/sh\nexec {} -D -f -q -o {} -e trace=fsync,fdatasync,sync_file_range,syncfs,sync,msync {} \"$@\"\n",
        strace.display(),
        notes.display(),
        binary().display(),
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o700)).unwrap();
    Some((script, notes))
}

fn syncs(notes: &Path) -> Vec<String> {
    let text = fs::read_to_string(notes).unwrap();
    text.lines()
        .filter(|line| line.contains("sync") && !line.contains("resumed>"))
        .map(str::to_owned)
        .collect()
}

fn record(harness: &Harness) -> Value {
    serde_json::from_str(&fs::read_to_string(record_of(harness, "up")).unwrap()).unwrap()
}

fn reserved(harness: &Harness) -> u64 {
    record(harness)["ids_reserved_until"].as_u64().unwrap()
}

#[test]
fn a_call_waits_for_no_synced_write() {
    let (harness, upstream) = with_upstream(Script::default());
    let Some((script, notes)) = traced(&harness) else {
        eprintln!("left out: no strace, or tracing is not allowed here");
        return;
    };
    harness.start_daemon_of(&script, &[]);
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    let mut call = |times: usize| {
        (0..times).for_each(|_| assert_eq!(client.call("echo", "{}").error(), None));
    };
    // The record with the session, its block and the learned facts is written in the first moments, on a thread of
    // its own: these are over when the last fact stands in it and a few calls pass without a word of the disk.
    assert!(
        poll_until(PATIENCE, || (record(&harness)["learned"]["get_stream"] == true).then_some(())).is_some()
    );
    let quiet = poll_until(PATIENCE, || {
        let before = syncs(&notes);
        call(5);
        (before == syncs(&notes)).then_some(before)
    });
    let warm = quiet.expect("the disk never came to rest");
    assert!(!warm.is_empty(), "the tracer saw nothing at all");
    let first = reserved(&harness);
    call(400);
    assert_eq!(reserved(&harness), first, "the test meant to stay within one block");
    assert_eq!(syncs(&notes)[warm.len()..], [] as [String; 0]);
    // Past the half of the block the next one is reserved: once, and not by each call.
    call(180);
    let more = poll_until(PATIENCE, || (reserved(&harness) > first).then(|| reserved(&harness)));
    let blocks = usize::try_from((more.unwrap() - first).div_ceil(1024)).unwrap();
    let after = syncs(&notes);
    // A block costs the file, its directory and the witness.
    assert!((1..=3 * blocks).contains(&(after.len() - warm.len())), "{:#?}", &after[warm.len()..]);
    upstream.assert_no_violations();
}
