//! Every environment variable that evermux itself reads, in one place, so that the list in the manual and the
//! harness that clears the environment of a test cannot miss one.
//!
//! The variables that headers name (`{ env = "VAR" }`) are the user's and are listed by `Upstream::env_vars`.

/// The config file; the same as `--config`.
pub const CONFIG: &str = "EVERMUX_CONFIG";
/// The state directory; the same as `--state-dir`.
pub const STATE_DIR: &str = "EVERMUX_STATE_DIR";
/// The runtime directory; the same as `--runtime-dir`.
pub const RUNTIME_DIR: &str = "EVERMUX_RUNTIME_DIR";
/// A `tracing` filter that takes the place of `daemon.log_level`, such as `info,evermux_daemon=debug`.
pub const LOG: &str = "EVERMUX_LOG";
/// Set and not empty: no colours on stderr (<https://no-color.org>).
pub const NO_COLOR: &str = "NO_COLOR";
/// All of the above.
pub const ALL: [&str; 5] = [CONFIG, STATE_DIR, RUNTIME_DIR, LOG, NO_COLOR];

/// For tests, and no part of the surface: how long a daemon that does not answer is waited for, as three numbers of milliseconds with commas: for
/// the head of an answer, for a control answer, and until the pending requests of `connect` get an error; a fourth says how long an
/// idle connection is kept.
pub const SHIM_LIMITS: &str = "EVERMUX_SHIM_LIMITS_MS";
