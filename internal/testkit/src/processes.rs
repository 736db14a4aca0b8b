//! Finding and ending the processes of one test, and no others.
//!
//! A daemon detaches itself, so its handle is not ours. A process belongs to a test if the test's own directory is in its environment or
//! command line; that is looked at before every signal, so that a pid which was used again by someone else is never hit.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::poll_until;

/// Whether the process has ended; one that only waits to be reaped has.
pub(crate) fn is_gone(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The command's name stands in parentheses and may hold anything; the state follows the last one.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    match state {
        // The first thread is dead at once, but the process keeps its files and locks until the last one is.
        Some('Z') => fs::read_dir(format!("/proc/{pid}/task")).map_or(true, |threads| threads.count() <= 1),
        Some('X') | None => true,
        Some(_) => false,
    }
}

/// Whether the process was started for the test in this directory.
pub(crate) fn belongs_to(pid: u32, root: &Path) -> bool {
    let needle = root.as_os_str().as_encoded_bytes();
    ["environ", "cmdline"].iter().any(|file| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
    })
}

/// All live processes of the test in this directory.
pub(crate) fn all_of(root: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    pids.filter(|pid| *pid != own && belongs_to(*pid, root) && !is_gone(*pid)).collect()
}

/// Sends a signal to a process of this test; false if there is none.
pub(crate) fn signal(pid: u32, root: &Path, signal: Signal) -> bool {
    let Ok(raw) = i32::try_from(pid) else { return false };
    belongs_to(pid, root) && kill(Pid::from_raw(raw), signal).is_ok()
}

/// Ends every process of the test, and those they start meanwhile; false if some are left.
pub(crate) fn end_all(root: &Path, within: Duration) -> bool {
    let none_left = || {
        let pids = all_of(root);
        for pid in &pids {
            signal(*pid, root, Signal::SIGKILL);
        }
        pids.is_empty().then_some(())
    };
    poll_until(within, none_left).is_some()
}
