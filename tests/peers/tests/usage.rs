//! The peer starts. This test also has cargo build the binary whenever it builds the tests of the workspace: the interop tests look for it
//! beside their own.
#![allow(clippy::expect_used, reason = "a failed step of a test is to end it, with its place")]

use std::process::Command;

#[test]
fn it_says_how_it_is_used() {
    let said = Command::new(env!("CARGO_BIN_EXE_evermux-rmcp-peer")).output().expect("it can be started");
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("server SOCKET"), "{said:?}");
}
