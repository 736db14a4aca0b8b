//! What `--help` says, kept as snapshots so that a change of words is a decision, and colours.

use evermux_testkit::{Environment, Harness};

use crate::support::binary;

/// Without `EVERMUX_*`, whose values the help would show.
fn help_of(arguments: &[&str]) -> String {
    let harness = Harness::with_environment(binary(), Environment::Bare);
    let all: Vec<&str> = arguments.iter().chain(&["--help"]).copied().collect();
    let output = harness.run(&all).success();
    assert_eq!(output.stderr, "");
    assert!(output.stdout.lines().all(|line| line.chars().count() <= 110), "{}", output.stdout);
    output.stdout
}

#[test]
fn every_command_says_what_it_does() {
    insta::assert_snapshot!("evermux", help_of(&[]));
    for command in
        ["connect", "daemon", "upgrade", "status", "stop", "add", "list", "remove", "purge", "doctor", "demo"]
    {
        insta::assert_snapshot!(format!("evermux-{command}"), help_of(&[command]));
    }
}

#[test]
fn no_color_is_honoured() {
    let harness = Harness::new(binary());
    assert!(!harness.run(&["status"]).stderr.contains('\x1b'), "colours in a pipe");
    harness.set_variable("CLICOLOR_FORCE", "1");
    assert!(harness.run(&["status"]).stderr.contains('\x1b'), "no colours at all: the test shows nothing");
    harness.set_variable("NO_COLOR", "1");
    for arguments in [&["status"][..], &["list"], &["nonsense"], &["--help"]] {
        let output = harness.run(arguments);
        assert!(!output.stderr.contains('\x1b') && !output.stdout.contains('\x1b'), "{output:?}");
    }
}
