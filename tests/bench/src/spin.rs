//! Keeps every core awake while something is measured.
//!
//! An idle virtual core halts, and waking it costs more than a call does: without this, latencies at one client are
//! mostly the hypervisor's. The spinners yield to everything that is measured, which takes two things. They run in the scheduler's idle
//! class: else a core that spins counts as a busy one, and tasks are placed by chance. And they ask the kernel every microsecond whether
//! somebody waits: where they never call it, it was seen to take the core from them at the tick only, so that whoever is woken from
//! another core or by the disk waits up to four milliseconds, and most who has most hops.

use std::path::Path;

use anyhow::{Result, bail};

use crate::output::{say, talk};
use crate::process::OwnedChild;

/// Between two questions whether somebody waits: about a microsecond, so that they do not hold up who wakes somebody.
const TURNS: u32 = 20;

/// Spins on every core until the process is ended by its owner.
pub(crate) fn run() -> Result<()> {
    for _ in 0..cores() {
        std::thread::spawn(|| {
            loop {
                for _ in 0..TURNS {
                    std::hint::spin_loop();
                }
                std::thread::yield_now();
            }
        });
    }
    say("spinning")?;
    crate::server::run_server(true, std::future::pending())
}

/// The spinners' process.
pub(crate) struct Spinners {
    child: OwnedChild,
    /// What makes them yield, for people.
    pub(crate) class: &'static str,
}

impl Spinners {
    /// By a program, since neither can be set here without unsafe code.
    async fn start(bench: &Path, directory: &Path) -> Result<Self> {
        const WAYS: [(&str, &[&str]); 2] =
            [("idle-class", &["chrt", "--idle", "0"]), ("nice-19", &["nice", "-n", "19"])];
        let bench = bench.display().to_string();
        let mut failed = Vec::new();
        for (class, way) in WAYS {
            let words: Vec<String> =
                way.iter().copied().chain([&*bench, "spin"]).map(str::to_owned).collect();
            let spawned = OwnedChild::spawn(&words, &[], directory);
            let spins = async {
                let mut child = spawned?;
                // It may be there and not be let.
                child.first_line().await?;
                Ok::<_, anyhow::Error>(Self { child, class })
            };
            match spins.await {
                Ok(spinners) => return Ok(spinners),
                Err(error) => failed.push(format!("{}: {error:#}", way.join(" "))),
            }
        }
        bail!("{}", failed.join("; "))
    }

    pub(crate) async fn end(self) -> Result<()> {
        self.child.end().await
    }
}

/// The spinners, unless they are not wanted or cannot be started.
pub(crate) async fn start_unless(unwanted: bool, bench: &Path, directory: &Path) -> Option<Spinners> {
    if unwanted {
        return None;
    }
    let started = Spinners::start(bench, directory).await;
    if let Err(error) = &started {
        talk(&format!("no spinners: {error:#}"));
    }
    started.ok()
}

/// Cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
