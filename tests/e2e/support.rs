//! What every test here starts from.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;

/// The binary under test.
pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_evermux"))
}

/// Another build of the same version: the same program, and a byte behind its end, which nothing reads.
pub(crate) fn other_build(directory: &Path) -> PathBuf {
    let other = directory.join("evermux-other");
    // Not written by this process: a child that another test forks meanwhile would hold the file, and it could not be run.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", r#"cp "$1" "$2" && printf '\n' >> "$2""#, "sh"]).arg(binary()).arg(&other);
    assert!(shell.status().unwrap().success());
    other
}

/// Long enough for a loaded two-core machine; a test that needs it has found a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A harness with one upstream called `up`.
pub(crate) fn with_upstream(script: Script) -> (Harness, Upstream) {
    with_settings(script, "")
}

/// The same, with more lines in the upstream's table.
pub(crate) fn with_settings(script: Script, settings: &str) -> (Harness, Upstream) {
    let upstream = Upstream::start(script);
    let harness = Harness::new(binary());
    harness.add_upstream("up", &upstream.url(), settings);
    (harness, upstream)
}

/// Waits until the processes of the test are as they should be. What a test sees first is an answer or an exit code; a
/// process that has said its last word needs a moment more to be gone.
#[track_caller]
pub(crate) fn check_processes(harness: &Harness, wanted: impl Fn(&Vec<u32>) -> bool, what: &str) {
    let reached = poll_until(PATIENCE, || wanted(&harness.processes()).then_some(()));
    assert!(reached.is_some(), "{what}: {:?}", harness.processes());
}

/// Kills the daemon and does this while none runs: a client that is stopped starts no other one meanwhile.
#[track_caller]
pub(crate) fn while_down(harness: &Harness, client: &ShimClient, between: impl FnOnce()) {
    assert!(harness.signal(client.pid(), Signal::SIGSTOP));
    harness.kill_daemon();
    between();
    assert!(harness.signal(client.pid(), Signal::SIGCONT));
}
