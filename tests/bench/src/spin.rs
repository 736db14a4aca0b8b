//! Keeps every core awake while something is measured.
//!
//! An idle virtual core halts, and waking it costs more than a call does: without this, latencies at one client are
//! mostly the hypervisor's. The spinners run at nice 19, so they yield to everything that is measured.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::output::talk;
use crate::process::OwnedChild;

/// Spins on every core until the process is ended by its owner.
pub(crate) fn run() -> Result<()> {
    for _ in 0..cores() {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    crate::server::run_server(true, std::future::pending())
}

/// Starts the spinners as a child; through `nice`, since a priority can only be set by a system call that has no safe
/// wrapper here.
fn start(bench: &Path, directory: &Path) -> Result<OwnedChild> {
    let words = ["nice", "-n", "19", &bench.display().to_string(), "spin"].map(str::to_owned);
    OwnedChild::spawn(&words, &[], directory).context("cannot run nice")
}

/// The spinners, unless they are not wanted or cannot be started.
pub(crate) fn start_unless(unwanted: bool, bench: &Path, directory: &Path) -> Option<OwnedChild> {
    if unwanted {
        return None;
    }
    let started = start(bench, directory);
    if let Err(error) = &started {
        talk(&format!("no spinners: {error:#}"));
    }
    started.ok()
}

/// Cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
