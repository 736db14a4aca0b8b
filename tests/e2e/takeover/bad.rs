//! Successors that are no good: the daemon serves on as if nothing had happened, and `upgrade` says why.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script, ShimClient, Upstream};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::serving;
use crate::support::{PATIENCE, binary, other_build, with_upstream};

struct Scene {
    harness: Harness,
    upstream: Upstream,
    client: ShimClient,
    before: (u32, u64),
}

fn scene() -> Scene {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let mut client = harness.connect("up");
    assert!(client.initialize("2025-11-25").error().is_none());
    let before = serving(&harness);
    Scene { harness, upstream, client, before }
}

impl Scene {
    #[track_caller]
    fn check(self, output: &evermux_testkit::Output, reason: &str) {
        assert!(output.stderr.contains("nothing changed"), "{}", output.stderr);
        check_refused(output, reason);
        self.serves_on();
    }

    #[track_caller]
    fn serves_on(mut self) {
        assert_eq!(serving(&self.harness), self.before);
        assert!(self.client.call("counter", "{}").error().is_none());
        assert_eq!((self.upstream.initializes(), self.upstream.deletes()), (1, 0));
        self.upstream.assert_no_violations();
        assert!(!self.harness.logs().contains("panicked"), "{}", self.harness.logs());
    }
}

#[track_caller]
fn check_refused(output: &evermux_testkit::Output, reason: &str) {
    assert_eq!(output.code, Some(1), "{}{}", output.stdout, output.stderr);
    assert!(output.stderr.contains(reason), "no word of {reason:?}: {}", output.stderr);
}

/// `upgrade` starts the program that lies where it was started from, and that is another one by then: the file was
/// replaced while it asked the daemon, which is kept from answering until that is done.
fn upgrade_to(scene: &Scene, script: &str) -> evermux_testkit::Output {
    let harness = &scene.harness;
    let program = other_build(harness.root());
    let broken = harness.root().join("broken");
    fs::write(&broken, script).unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    harness.signal(scene.before.0, Signal::SIGSTOP);
    let mut command = harness.command_of(&program, &["upgrade", "--force"]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let exe = format!("/proc/{}/exe", running.id());
    let runs = || fs::read_link(&exe).is_ok_and(|path| path == program).then_some(());
    assert!(poll_until(PATIENCE, runs).is_some(), "it does not start");
    fs::rename(&broken, &program).unwrap();
    harness.signal(scene.before.0, Signal::SIGCONT);
    let output = running.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    evermux_testkit::Output {
        stdout: text(output.stdout),
        stderr: text(output.stderr),
        code: output.status.code(),
    }
}

#[test]
fn a_broken_binary() {
    for (script, reason) in [
        ("#!/bin/sh\nexit 127\n", "ended"),
        ("#!/bin/sh\necho 'no such thing'\n", "not understood"),
        ("#!/bin/sh\nkill -SEGV $$\n", "ended"),
    ] {
        let scene = scene();
        let output = upgrade_to(&scene, script);
        scene.check(&output, reason);
    }
}

#[test]
fn one_that_knows_only_older_records() {
    let scene = scene();
    let mut command = scene.harness.command(&["upgrade", "--force"]);
    command.env("EVERMUX_FAILPOINT", "takeover.n.old_records");
    let output = scene.harness.finish(command, PATIENCE * 3);
    scene.check(&output, "record");
}

#[test]
fn one_that_runs_out_of_descriptors() {
    let scene = scene();
    let script = format!("#!/bin/sh\nulimit -n 16\nexec {} \"$@\"\n", binary().display());
    let output = upgrade_to(&scene, &script);
    scene.check(&output, "open files");
}

#[test]
fn one_that_may_not_read_the_config() {
    let scene = scene();
    let config = scene.harness.config_file();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, "this is no config").unwrap();
    let output = scene.harness.run_within(&["upgrade", "--force"], PATIENCE * 3);
    fs::write(&config, text).unwrap();
    scene.check(&output, "config");
}

#[test]
fn one_of_another_user() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can run a successor as somebody else");
        return;
    }
    let scene = scene();
    let harness = &scene.harness;
    // Somewhere where it can be run, with a config that can be read; all the rest is its owner's.
    let program = other_build(harness.root());
    open(harness.root(), 0o755);
    open(&program, 0o755);
    open(&harness.config_file(), 0o644);
    let as_nobody = |arguments: &[&str]| -> Command {
        let mut command = harness.command_of(&program, arguments);
        command.uid(65534).gid(65534);
        command
    };
    let upgrade = || harness.finish(as_nobody(&["upgrade", "--force"]), PATIENCE);
    check_refused(&upgrade(), "Permission denied");
    let output = harness.finish(as_nobody(&["daemon", "--takeover", "--detached"]), PATIENCE);
    let said = &output.stdout;
    assert!(
        said.contains(r#""ready":false"#) && said.contains("Permission denied"),
        "{said}{}",
        output.stderr
    );
    // A directory that stands open by mistake does not help: the daemon looks who it is.
    for directory in harness.runtime_dir().ancestors().take_while(|path| *path != harness.root()) {
        open(directory, 0o711);
    }
    open(&harness.socket(), 0o666);
    check_refused(&upgrade(), "did not answer");
    assert!(harness.logs().contains("refused a connection of another user"), "{}", harness.logs());
    scene.serves_on();
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
