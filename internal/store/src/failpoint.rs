//! Named points at which a test kills the process, to prove that dying there loses nothing it should not.
//!
//! In a build without the feature `failpoints` a call compiles to nothing. The names used by this crate:
//! `record.before_tmp`, `record.half_written`, `record.before_rename`, `record.after_rename`,
//! `witness.before_append`, `journal.before_append`, `journal.after_append`, `journal.before_rename`,
//! `journal.before_unlink`, `key.before_rename`, `generation.before_append`, `delete.before_unlink`. Callers may
//! use names of their own (`block.before_write`).

/// The environment variable that arms one point: `name`, or `name:N` for its N-th passing (from 1).
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

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);

    fn parse(text: &str) -> (String, u64) {
        match text.rsplit_once(':').map(|(name, count)| (name, count.parse())) {
            Some((name, Ok(count))) => (name.to_owned(), count),
            _ => (text.to_owned(), 1),
        }
    }

    pub(super) fn pass(name: &str) {
        let armed = ARMED.get_or_init(|| std::env::var(super::FAILPOINT_ENV).ok().map(|text| parse(&text)));
        let Some((armed_name, count)) = armed else { return };
        if armed_name == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *count {
            // The result does not matter: if the kill is refused the test sees a process that lived.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
            loop {
                std::thread::park();
            }
        }
    }
}
