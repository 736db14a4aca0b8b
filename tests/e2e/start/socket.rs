//! A socket whose file somebody removed: the daemon that holds the lock is the only one that can make it anew.
//!
//! It notices by itself, and at once: nothing here has it look, and all of it takes less than a minute, after which a
//! daemon that is told nothing looks again.

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

fn wait_logged(harness: &Harness, words: &str) {
    let seen = poll_until(PATIENCE, || harness.logs().contains(words).then_some(()));
    assert!(seen.is_some(), "{words}: {}", harness.logs());
}

/// Listens under the socket's name in place of the daemon.
fn take_name(harness: &Harness) -> UnixListener {
    let beside = harness.socket().with_file_name("other.sock");
    let other = UnixListener::bind(&beside).unwrap();
    fs::rename(&beside, harness.socket()).unwrap();
    other
}

/// Takes the socket's file away, and requires the same daemon on a new one.
fn check_made_anew(take_away: impl FnOnce(&Harness)) {
    use std::os::unix::fs::PermissionsExt as _;

    let (harness, upstream, mut client, daemon) = served();
    take_away(&harness);
    wait_logged(&harness, "made anew");
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
fn a_socket_whose_directory_was_moved_is_made_anew() {
    check_made_anew(|harness| {
        fs::rename(harness.runtime_dir(), harness.runtime_dir().with_file_name("moved")).unwrap();
    });
}

#[test]
fn a_socket_that_nobody_listens_on_takes_no_ones_place() {
    check_made_anew(|harness| {
        let beside = harness.socket().with_file_name("other.sock");
        drop(UnixListener::bind(&beside).unwrap());
        fs::rename(&beside, harness.socket()).unwrap();
    });
}

#[test]
fn a_socket_that_another_process_took_is_left_to_it() {
    use std::os::unix::fs::MetadataExt as _;

    let (harness, upstream, mut client, daemon) = served();
    let other = take_name(&harness);
    let file = fs::metadata(harness.socket()).unwrap().ino();
    wait_logged(&harness, "another process listens");
    assert_eq!(fs::metadata(harness.socket()).unwrap().ino(), file);
    // Once nobody does any more, it is this daemon's again. Nothing tells of that, so it is made to look.
    drop(other);
    assert!(harness.signal(daemon, Signal::SIGHUP));
    harness.wait_status(PATIENCE, |status| (status["daemon"]["pid"] == daemon).then_some(()));
    assert_eq!(count(&mut client), 2);
    check_one_session(&upstream);
}
