//! `share = "client"`: each client's `initialize` goes through, and its session ends some time after it.

use evermux_testkit::{Harness, Script, ShimClient};
use nix::sys::signal::Signal;

use crate::support::{PATIENCE, with_settings};

const OWN: &str = "share = \"client\"\ngrace = \"1s\"";

#[track_caller]
fn count_of(client: &mut ShimClient) -> u64 {
    let answer = client.call("counter", "{}");
    answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("no count: {}", answer.raw))
}

fn joined(harness: &Harness) -> ShimClient {
    let mut client = harness.connect("up");
    assert_eq!(client.initialize("2025-11-25").error(), None);
    client
}

#[test]
fn clients_with_sessions_of_their_own_do_not_meet_and_go_on_after_a_kill() {
    let (harness, upstream) = with_settings(Script::default(), OWN);
    let mut clients = [joined(&harness), joined(&harness)];
    assert_eq!(clients.each_mut().map(count_of), [1, 1]);
    harness.kill_daemon();
    assert_eq!(clients.each_mut().map(count_of), [2, 2]);
    assert_eq!((upstream.initializes(), upstream.deletes()), (2, 0));
    upstream.assert_no_violations();
}

#[test]
fn a_session_of_ones_own_ends_after_its_client() {
    let (harness, upstream) = with_settings(Script::default(), OWN);
    let (mut client, mut other) = (joined(&harness), joined(&harness));
    assert_eq!((count_of(&mut client), count_of(&mut other)), (1, 1));
    assert_eq!(client.close(PATIENCE), Some(0));
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
    assert_eq!(count_of(&mut other), 2);
    harness.wait_status(PATIENCE, |status| (status["sessions"].as_array()?.len() == 1).then_some(()));
    assert_eq!(upstream.deletes(), 1);
    upstream.assert_no_violations();
}

/// The record is gone, and with it what the client had said: its shim has it say so again.
#[test]
fn a_client_whose_session_and_words_are_gone_goes_on_in_a_new_one() {
    let (harness, upstream) = with_settings(Script::default(), OWN);
    let mut client = joined(&harness);
    assert_eq!(count_of(&mut client), 1);
    // It stands still meanwhile: its client starts another one as soon as it is gone, which must not find them.
    let daemon = harness.signal_daemon(Signal::SIGSTOP);
    for entry in std::fs::read_dir(harness.state_dir().join("records")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert!(harness.signal(daemon, Signal::SIGKILL));
    assert_eq!((count_of(&mut client), count_of(&mut client)), (1, 2));
    assert_eq!((upstream.initializes(), upstream.deletes()), (2, 0));
    upstream.assert_no_violations();
}
