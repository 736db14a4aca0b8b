//! A newer process takes over while clients work, and nobody notices: told by the upstream's journal and by what the
//! clients saw.

mod bad;
mod beside;
mod decided;
mod load;
mod plain;
mod points;
mod shim;
mod skew;

use std::time::Duration;

use evermux_testkit::{Harness, Output};
use serde_json::Value;

use crate::support::PATIENCE;

/// `evermux upgrade --force`: the same binary takes over from itself.
#[track_caller]
fn upgrade(harness: &Harness) -> Output {
    harness.run_within(&["upgrade", "--force"], PATIENCE + Duration::from_secs(40))
}

/// Upgrades, and gives the new daemon's pid. The old one may still drain.
#[track_caller]
pub(crate) fn upgraded(harness: &Harness) -> u32 {
    let before = serving(harness);
    let output = upgrade(harness);
    assert_eq!(output.code, Some(0), "{}\n{}\n{}", output.stdout, output.stderr, harness.logs());
    let after = serving(harness);
    assert_ne!(before.0, after.0, "another process");
    assert!(after.1 > before.1, "generations {} and {}", before.1, after.1);
    after.0
}

/// Pid and generation of the daemon that serves.
#[track_caller]
fn serving(harness: &Harness) -> (u32, u64) {
    let find = |status: &Value| {
        let daemon = &status["daemon"];
        let pid = u32::try_from(daemon["pid"].as_u64()?).ok()?;
        (daemon["phase"] == "serving").then(|| Some((pid, daemon["generation"].as_u64()?)))?
    };
    harness.wait_status(PATIENCE, find)
}

/// Whether a process is stopped by a signal, or no more.
fn is_stopped_or_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next().map(str::to_owned));
    state.is_none_or(|state| matches!(state.as_str(), "T" | "Z" | "X"))
}
