//! A daemon that runs out of file descriptors between its clients and its upstream.

use evermux_testkit::Script;
use evermux_testkit::wait::poll_until;

use super::VERSION;
use crate::support::{PATIENCE, binary, with_upstream};

/// One for the client and one for the upstream: more than there are.
const CALLS: usize = 60;

#[test]
fn calls_without_a_descriptor_are_overloaded_and_the_upstream_is_not_blamed() {
    let (harness, upstream) = with_upstream(Script::default());
    let few = harness.root().join("few.sh");
    let text = format!("#!/bin/sh\nulimit -n 128\nexec {} \"$@\"\n", binary().display());
    std::fs::write(&few, text).unwrap();
    std::fs::set_permissions(&few, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    harness.start_daemon_of(&few, &[]);
    let mut client = harness.connect("up");
    assert_eq!(client.initialize(VERSION).error(), None);
    let calls: Vec<_> = (0..CALLS).map(|_| client.start_call("gate", r#"{"name":"g"}"#)).collect();
    // Each has come to the gate or to its end.
    let at_gate = || upstream.count(|entry| entry.calls("gate"));
    let settled = poll_until(PATIENCE, || (at_gate() == client.unanswered()).then_some(()));
    assert!(settled.is_some(), "{} at the gate, {} without an answer", at_gate(), client.unanswered());
    upstream.open_gate("g");
    let mut refused = 0;
    for call in &calls {
        let answer = client.wait(call, PATIENCE);
        let Some(error) = answer.error() else {
            assert_eq!(answer.structured()["passed"], true, "{}", answer.raw);
            continue;
        };
        let facts = &error["data"]["evermux"];
        assert_eq!(
            (&facts["kind"], &facts["outcome"]),
            (&"overloaded".into(), &"not_sent".into()),
            "{error}"
        );
        refused += 1;
    }
    assert!(refused > 0, "there were descriptors enough");
    assert_eq!(at_gate(), CALLS - refused, "a refused call was sent");
    // At once, and without a pause of the upstream.
    assert_eq!(client.call("counter", "{}").structured()["count"], 1);
    harness.wait_status(PATIENCE, |status| (status["upstreams"][0]["state"] == "ready").then_some(()));
    assert_eq!((upstream.initializes(), upstream.deletes()), (1, 0));
    assert!(!harness.logs().contains("unreachable"), "{}", harness.logs());
}
