//! Very many clients at once, for some time: storms against an upstream in trouble, a crowd of clients that do all
//! sorts of things, clients that come for one call each. What is counted is counted at the upstream.
//!
//! The sizes are for CI; `EVERMUX_FULL=1` runs a minute of each.

mod mixed;
mod socket;
mod storms;
mod visits;

use std::fs;
use std::time::Duration;

/// `full` with `EVERMUX_FULL=1`, else `short`.
fn seconds(short: u64, full: u64) -> Duration {
    let is_full = std::env::var_os("EVERMUX_FULL").is_some_and(|value| value == "1");
    Duration::from_secs(if is_full { full } else { short })
}

/// Resident memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Open descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
