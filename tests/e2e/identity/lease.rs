//! An approval whose time passed while no daemon ran: nothing is approved, and the server is not even asked.

use std::time::{Duration, SystemTime};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Engine, Script};

use super::*;
use crate::support::with_settings;

#[test]
fn a_lease_that_ends_while_no_daemon_runs_is_over_after_it() {
    // Long enough that a pause is not over before it was told.
    let script = Script { engine: Some(Engine::PerSession), lease_ms: Some(2_000), ..Script::default() };
    let (harness, upstream) = with_settings(script, "[[upstream.up.handle]]\npreset = \"executor\"");
    let mut client = joined(&harness, "up");
    let paused = client.call("execute", r#"{"code":"transfer"}"#).structured();
    let began = SystemTime::now();
    let execution = paused["executionId"].as_str().unwrap().to_owned();
    let lease = Duration::from_millis(paused["ttlMs"].as_u64().unwrap());
    let is_over = || began.elapsed().is_ok_and(|passed| passed > lease).then_some(());
    while_down(&harness, &client, || assert!(poll_until(PATIENCE, is_over).is_some()));
    let arguments = format!(r#"{{"executionId":"{execution}","action":"accept"}}"#);
    for _ in 0..2 {
        let answer = client.call("resume", &arguments);
        assert_eq!(answer.evermux_kind().as_deref(), Some("expired"), "{}", answer.raw);
    }
    assert_eq!(upstream.count(|entry| entry.calls("resume")), 0, "{}", upstream.summary());
    assert_eq!((upstream.side_effects("transfer"), upstream.executed().len()), (0, 0));
    // The session is there all the same.
    assert_eq!((count_of(&client.call("counter", "{}")), upstream.initializes()), (1, 1));
    upstream.assert_no_violations();
}
