//! Successors that are no good: the daemon serves on as if nothing had happened, and `upgrade` says why.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use evermux_testkit::{Harness, Script, ShimClient, Upstream};

use super::serving;
use crate::support::{PATIENCE, binary, with_upstream};

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
    fn check(mut self, output: &evermux_testkit::Output, reason: &str) {
        assert_eq!(output.code, Some(1), "{}{}", output.stdout, output.stderr);
        assert!(output.stderr.contains("nothing changed"), "{}", output.stderr);
        assert!(output.stderr.contains(reason), "no word of {reason:?}: {}", output.stderr);
        assert_eq!(serving(&self.harness), self.before);
        assert!(self.client.call("counter", "{}").error().is_none());
        assert_eq!((self.upstream.initializes(), self.upstream.deletes()), (1, 0));
        self.upstream.assert_no_violations();
        assert!(!self.harness.logs().contains("panicked"), "{}", self.harness.logs());
    }
}

/// A program under another name that `upgrade` starts as the successor.
fn upgrade_of(harness: &Harness, program: &Path, script: &str) -> evermux_testkit::Output {
    fs::write(program, script).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = harness.command(&["upgrade", "--force"]);
    command.env("EVERMUX_SUCCESSOR", program);
    harness.finish(command, PATIENCE * 3)
}

#[test]
fn a_broken_binary() {
    for (script, reason) in [
        ("#!/bin/sh\nexit 127\n", "ended"),
        ("#!/bin/sh\necho 'no such thing'\n", "no such thing"),
        ("#!/bin/sh\nkill -SEGV $$\n", "ended"),
    ] {
        let scene = scene();
        let program = scene.harness.root().join("successor");
        let output = upgrade_of(&scene.harness, &program, script);
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
    let program = scene.harness.root().join("successor");
    let output = upgrade_of(&scene.harness, &program, &script);
    scene.check(&output, "descriptor");
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
