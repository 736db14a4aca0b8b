//! Calls that a kill left open are counted until their answers have come and were taken.

use evermux_testkit::{Pending, Replies, Script};

use super::*;
use crate::support::with_upstream;

/// Waits until `status --json` counts so many; one look is not enough, because a journal is read behind the start.
#[track_caller]
fn wait_unresolved(harness: &Harness, wanted: u64) {
    harness.wait_status(PATIENCE, |status| {
        let session = status["sessions"].get(0).filter(|_| status["daemon"]["phase"] == "serving")?;
        (session["unresolved_operations"] == wanted).then_some(())
    });
}

/// A client in the middle of a call.
#[track_caller]
fn calling(script: Script) -> (Harness, Upstream, ShimClient, Pending) {
    let (harness, upstream) = with_upstream(script);
    let mut client = joined(&harness, "up");
    assert_eq!(count_of(&client.call("counter", "{}")), 1);
    let call = client.start_call("gate", r#"{"name":"g"}"#);
    upstream.wait_at_gate("g", 1, PATIENCE);
    assert_eq!(session(&harness)["unresolved_operations"], 0, "it is in flight, and nothing is in doubt");
    (harness, upstream, client, call)
}

/// Nothing is in doubt any more, here and in the next process, and the call was sent once.
#[track_caller]
fn check_settled(harness: &Harness, upstream: &Upstream, client: &mut ShimClient) {
    // What the client has is acknowledged with its next message.
    assert_eq!(count_of(&client.call("counter", "{}")), 2);
    wait_unresolved(harness, 0);
    harness.kill_daemon();
    // The journal hears of acknowledgements now and then only, so the next process has to hear it from the client.
    assert_eq!(count_of(&client.call("counter", "{}")), 3);
    assert_eq!(session(harness)["unresolved_operations"], 0);
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 1, "{}", upstream.summary());
    assert_eq!(upstream.initializes(), 1);
    upstream.assert_no_violations();
}

#[test]
fn a_call_cut_by_a_kill_counts_until_its_late_answer_was_taken() {
    let (harness, upstream, mut client, call) = calling(Script::default());
    // Nobody claims the call before there was a look.
    while_down(&harness, &client, || {
        harness.start_daemon();
        wait_unresolved(&harness, 1);
        upstream.open_gate("g");
        upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().all(|session| session.running == 0));
        assert_eq!(session(&harness)["unresolved_operations"], 1, "nobody has the answer yet");
    });
    assert_eq!(client.wait(&call, PATIENCE).structured()["passed"], true);
    check_settled(&harness, &upstream, &mut client);
}

/// A server whose answers cannot be had again: the client is told so once.
#[test]
fn a_call_without_a_replay_counts_until_its_client_was_told() {
    let (harness, upstream, mut client, call) = calling(Script::replying(Replies::Json));
    while_down(&harness, &client, || {
        harness.start_daemon();
        wait_unresolved(&harness, 1);
    });
    assert_eq!(client.wait(&call, PATIENCE).evermux_kind().as_deref(), Some("outcome_unknown"));
    upstream.open_gate("g");
    check_settled(&harness, &upstream, &mut client);
}
