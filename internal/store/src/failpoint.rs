//! Named points at which a test kills the process, to prove that dying there loses nothing it should not.
//!
//! In a build without the feature `failpoints` a call compiles to nothing. The names used by this crate:
//! `record.before_tmp`, `record.half_written`, `record.before_rename`, `record.after_rename`,
//! `witness.before_append`, `journal.before_append`, `journal.after_append`, `journal.before_rename`,
//! `journal.before_unlink`, `key.before_rename`, `generation.before_append`, `settle.before_sync`, `delete.before_unlink`. Callers may
//! use names of their own (`block.before_write`).

/// The environment variable that arms one point: `name`, or `name:N` for its N-th passing (from 1). The process dies
/// there by SIGKILL; with `stop name` it stops (SIGSTOP) and may be continued, with `crash name` it aborts, with `stall name` the thread goes no further.
pub const FAILPOINT_ENV: &str = "EVERMUX_FAILPOINT";

/// Whether this build has failpoints at all.
pub(crate) const ENABLED: bool = cfg!(feature = "failpoints");

/// Kills this process with SIGKILL if [`FAILPOINT_ENV`] names this point.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn failpoint(_name: &str) {}

/// Kills this process with SIGKILL if [`FAILPOINT_ENV`] names this point.
#[cfg(feature = "failpoints")]
pub fn failpoint(name: &str) {
    armed::pass(name);
}

/// Whether this point is armed, for faults that are no deaths.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn is_armed(_name: &str) -> bool {
    false
}

/// Whether this point is armed, for faults that are no deaths.
#[cfg(feature = "failpoints")]
pub fn is_armed(name: &str) -> bool {
    armed::is_armed(name)
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// How the process ends at its point.
    #[derive(Clone, Copy)]
    enum How {
        Kill,
        Stop,
        Crash,
        Stall,
    }

    static ARMED: OnceLock<Option<(How, String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);

    fn parse(text: &str) -> (How, String, u64) {
        let (how, text) = match text.split_once(' ') {
            Some(("stop", name)) => (How::Stop, name),
            Some(("crash", name)) => (How::Crash, name),
            Some(("stall", name)) => (How::Stall, name),
            _ => (How::Kill, text),
        };
        match text.rsplit_once(':').map(|(name, count)| (name, count.parse())) {
            Some((name, Ok(count))) => (how, name.to_owned(), count),
            _ => (how, text.to_owned(), 1),
        }
    }

    fn armed() -> Option<&'static (How, String, u64)> {
        ARMED.get_or_init(|| std::env::var(super::FAILPOINT_ENV).ok().map(|text| parse(&text))).as_ref()
    }

    pub(super) fn is_armed(name: &str) -> bool {
        armed().is_some_and(|(_, armed, _)| armed == name)
    }

    pub(super) fn pass(name: &str) {
        let Some((how, armed_name, count)) = armed() else { return };
        if armed_name == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *count {
            let signal = match how {
                How::Crash => std::process::abort(),
                How::Stall => rest(),
                How::Stop => nix::sys::signal::Signal::SIGSTOP,
                How::Kill => nix::sys::signal::Signal::SIGKILL,
            };
            // The result does not matter: if the signal is refused the test sees a process that lived.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), signal);
            if matches!(how, How::Kill) {
                rest();
            }
        }
    }

    fn rest() -> ! {
        loop {
            std::thread::park();
        }
    }
}
