//! The moment between the decision and the sign that it was taken: `commit` is written and may be acted on, and the
//! predecessor dies or stops before it has read `active`.

use evermux_testkit::{Harness, Script, ShimClient};
use nix::sys::signal::Signal;

use super::{serving, upgrade};
use crate::support::{PATIENCE, check_processes, with_upstream};

/// The variable of `evermux_store::FAILPOINT_ENV`, and the point.
const FAILPOINT: (&str, &str) = ("EVERMUX_FAILPOINT", "takeover.o.committed");

/// A daemon that is hit once it has decided, as `how` says, and a client.
fn doomed(harness: &Harness, how: &str) -> (u32, ShimClient) {
    harness.set_variable(FAILPOINT.0, &format!("{how}{}", FAILPOINT.1));
    let old = harness.start_daemon();
    harness.unset_variable(FAILPOINT.0);
    let mut client = harness.connect("up");
    assert!(client.initialize("2025-11-25").error().is_none());
    (old, client)
}

#[test]
fn a_predecessor_that_dies_once_commit_is_written_has_a_successor() {
    for how in ["", "crash "] {
        let (harness, upstream) = with_upstream(Script::default());
        let (old, mut client) = doomed(&harness, how);
        let held = client.start_call("gate", r#"{"name":"held"}"#);
        upstream.wait_at_gate("held", 1, PATIENCE);
        let output = upgrade(&harness);
        assert_eq!(output.code, Some(0), "{how}: {}\n{}", output.stderr, harness.logs());
        harness.wait_gone(old, PATIENCE);
        assert_ne!(serving(&harness).0, old, "{how}");
        let answer = client.call("counter", "{}");
        assert_eq!(answer.structured()["count"].as_u64(), Some(1), "{how}: {}", answer.raw);
        upstream.open_gate("held");
        let answer = client.wait(&held, PATIENCE);
        let unknown = answer.evermux_kind().as_deref() == Some("outcome_unknown");
        assert!(answer.error().is_none() || unknown, "{how}: {}", answer.raw);
        assert_eq!((upstream.initializes(), upstream.deletes()), (1, 0), "{how}");
        upstream.assert_no_violations();
        assert_eq!(client.close(PATIENCE), Some(0), "{how}");
        check_processes(&harness, |pids| pids.len() == 1, how);
    }
}

#[test]
fn a_predecessor_that_stops_once_commit_is_written_hands_over_when_it_wakes() {
    let (harness, upstream) = with_upstream(Script::default());
    let (old, mut client) = doomed(&harness, "stop ");
    let output = upgrade(&harness);
    assert_eq!(output.code, Some(0), "{}\n{}", output.stderr, harness.logs());
    let new = serving(&harness).0;
    assert_ne!(new, old);
    harness.signal(old, Signal::SIGCONT);
    let answer = client.call("counter", "{}");
    assert_eq!(answer.structured()["count"].as_u64(), Some(1), "{}\n{}", answer.raw, harness.logs());
    harness.wait_gone(old, PATIENCE);
    assert_eq!(serving(&harness).0, new, "its deadline passed while it was stopped, and that ends nobody");
    assert_eq!((upstream.initializes(), upstream.deletes()), (1, 0));
    upstream.assert_no_violations();
    assert_eq!(client.close(PATIENCE), Some(0));
    check_processes(&harness, |pids| *pids == [new], "stopped");
}
