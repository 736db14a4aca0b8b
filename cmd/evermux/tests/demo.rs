//! The demo is a test too: of the whole, by what it claims.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is to end it, with its place")]

use std::process::Command;

#[test]
fn the_demo_holds_and_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_evermux"));
    demo.env_clear().env("HOME", home.path()).env("TMPDIR", home.path()).arg("demo");
    let output = demo.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("FAILED") && text.contains("All of it held"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours into a pipe");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}
