//! A socket whose file somebody removed: the daemon that holds the lock is the only one that can make it anew.
//!
//! SIGHUP has it looked at once; by itself the daemon looks every minute.

use std::fs;

use super::*;

/// A daemon with a client that was there before.
fn served() -> (Harness, Upstream, ShimClient, u32) {
    let (harness, upstream) = with_upstream(Script::default());
    let daemon = harness.start_daemon();
    let mut client = harness.connect("up");
    assert!(client.initialize(VERSION).error().is_none());
    assert_eq!(count(&mut client), 1);
    (harness, upstream, client, daemon)
}

/// Takes the socket's file away, and requires the same daemon on a new one.
fn check_made_anew(take_away: impl FnOnce(&Harness)) {
    use std::os::unix::fs::PermissionsExt as _;

    let (harness, upstream, mut client, daemon) = served();
    take_away(&harness);
    assert_eq!(harness.status()["daemon"], serde_json::Value::Null);
    assert!(harness.signal(daemon, Signal::SIGHUP));
    harness.wait_status(PATIENCE, |status| (status["daemon"]["pid"] == daemon).then_some(()));
    for (path, mode) in [(harness.socket(), 0o600), (harness.runtime_dir(), 0o700)] {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    let mut late = harness.connect("up");
    assert!(late.initialize(VERSION).error().is_none());
    assert_eq!((count(&mut client), count(&mut late)), (2, 3));
    check_one_session(&upstream);
    // The new file is this daemon's to take away, as the first one was.
    harness.run(&["stop"]).success();
    assert!(!harness.socket().exists());
}

#[test]
fn a_socket_that_was_removed_is_made_anew() {
    check_made_anew(|harness| fs::remove_file(harness.socket()).unwrap());
}

#[test]
fn a_socket_whose_directory_was_removed_is_made_anew() {
    check_made_anew(|harness| fs::remove_dir_all(harness.runtime_dir()).unwrap());
}

#[test]
fn a_socket_that_nobody_listens_on_takes_no_ones_place() {
    check_made_anew(|harness| {
        fs::remove_file(harness.socket()).unwrap();
        drop(UnixListener::bind(harness.socket()).unwrap());
    });
}

#[test]
fn a_socket_that_another_process_took_is_left_to_it() {
    use std::os::unix::fs::MetadataExt as _;

    let (harness, upstream, mut client, daemon) = served();
    fs::remove_file(harness.socket()).unwrap();
    let other = UnixListener::bind(harness.socket()).unwrap();
    let file = fs::metadata(harness.socket()).unwrap().ino();
    assert!(harness.signal(daemon, Signal::SIGHUP));
    let seen = poll_until(PATIENCE, || harness.logs().contains("another process listens").then_some(()));
    assert!(seen.is_some(), "{}", harness.logs());
    assert_eq!(fs::metadata(harness.socket()).unwrap().ino(), file);
    // Once nobody does any more, it is this daemon's again.
    drop(other);
    assert!(harness.signal(daemon, Signal::SIGHUP));
    harness.wait_status(PATIENCE, |status| (status["daemon"]["pid"] == daemon).then_some(()));
    assert_eq!(count(&mut client), 2);
    check_one_session(&upstream);
}
