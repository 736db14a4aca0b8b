//! Tokens change under running sessions: a rotation costs nothing, a change in the config leads old clients over.

mod config;
mod rotation;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use evermux_testkit::{Harness, Script, ShimClient, Upstream};

use crate::support::{PATIENCE, binary};

const VERSION: &str = "2025-11-25";

/// An upstream that wants this token, and a harness without a config.
fn guarded(token: &str) -> (Harness, Upstream) {
    let upstream = Upstream::start(Script { bearer: Some(token.to_owned()), ..Script::default() });
    (Harness::new(binary()), upstream)
}

#[track_caller]
fn client(harness: &Harness) -> ShimClient {
    let mut client = harness.connect("up");
    let answer = client.initialize(VERSION);
    assert!(answer.error().is_none(), "{}", answer.raw);
    client
}

#[track_caller]
fn count(client: &mut ShimClient) -> u64 {
    let answer = client.call("counter", "{}");
    answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("no count: {}", answer.raw))
}

/// Replaced as a whole, as whoever rotates tokens should.
fn put(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, file).unwrap();
}

/// A program that prints what the file holds, and notes that it ran.
fn program(harness: &Harness, file: &Path) -> (PathBuf, PathBuf) {
    let (script, runs) = (harness.root().join("print-token"), harness.root().join("runs"));
    let text = format!("#!/bin/sh\necho ran >> '{}'\nexec cat '{}'\n", runs.display(), file.display());
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    (script, runs)
}
