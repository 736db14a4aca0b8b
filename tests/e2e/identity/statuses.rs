//! Each word of the closed list of statuses, by the fault that brings it: in `status --json`, and in what clients are told.

use evermux_testkit::{LostAs, Script};

use super::*;
use crate::support::with_settings;

/// A session with one call, under these settings.
fn begun(settings: &str) -> (Harness, Upstream, ShimClient) {
    let (harness, upstream) = with_settings(Script::default(), settings);
    let mut client = joined(&harness, "up");
    assert_eq!(count_of(&client.call("counter", "{}")), 1);
    (harness, upstream, client)
}

/// What a new client is told with its greeting.
#[track_caller]
fn greeted(harness: &Harness) -> String {
    words(&told(&harness.connect("up").initialize(VERSION)))
}

/// Waits until the only session stands so.
#[track_caller]
fn wait_shown(harness: &Harness, wanted: &str) {
    let mut last = Value::Null;
    harness.wait_status(PATIENCE, |status| {
        last = status["sessions"].clone();
        let sessions = last.as_array().filter(|_| status["daemon"]["phase"] == "serving")?;
        (sessions.iter().map(words).collect::<Vec<_>>() == [wanted]).then_some(())
    });
}

#[test]
fn new_dormant_and_resumed() {
    let (harness, upstream, mut client) = begun("");
    wait_shown(&harness, "new/-");
    assert_eq!(greeted(&harness), "new/-");
    assert_eq!(client.close(PATIENCE), Some(0));
    harness.kill_daemon();
    harness.start_daemon();
    wait_shown(&harness, "dormant/-");
    // A greeting needs no contact.
    let mut client = harness.connect("up");
    assert_eq!(words(&told(&client.initialize(VERSION))), "dormant/-");
    let answer = client.call("counter", "{}");
    assert_eq!((count_of(&answer), words(&told(&answer))), (2, "resumed/-".to_owned()));
    wait_shown(&harness, "resumed/-");
    assert_eq!(greeted(&harness), "resumed/-");
    assert_eq!(upstream.initializes(), 1);
}

#[test]
fn reinitialized_says_how_the_loss_was_told() {
    let ways = [
        (LostAs::NotFoundJson, "404"),
        (LostAs::NotFoundText, "404"),
        (LostAs::NoValidSession, "400"),
        (LostAs::NotInitialized, "400"),
        (LostAs::UnauthorizedChallenge, "401"),
        (LostAs::UnauthorizedText, "401"),
        (LostAs::Forbidden, "403"),
        (LostAs::OkErrorBody, "200-error"),
    ];
    let stored = ways.iter().map(|way| (*way, true));
    for ((lost, reason), stored) in ways.iter().map(|way| (*way, false)).chain(stored) {
        let (harness, upstream, mut client) = begun("");
        upstream.lost_as(lost);
        if stored {
            while_down(&harness, &client, || upstream.forget_sessions());
        } else {
            upstream.forget_sessions();
        }
        let answer = client.call("counter", "{}");
        let wanted = format!("reinitialized/{reason}");
        assert_eq!((count_of(&answer), words(&told(&answer))), (1, wanted.clone()), "{}", lost.name());
        wait_shown(&harness, &wanted);
        assert_eq!(greeted(&harness), wanted);
        assert_eq!(upstream.initializes(), 2);
    }
}

#[test]
fn not_found_where_the_config_forbids_another() {
    for stored in [false, true] {
        let (harness, upstream, mut client) = begun("reinitialize = \"never\"");
        if stored {
            while_down(&harness, &client, || upstream.forget_sessions());
        } else {
            upstream.forget_sessions();
        }
        assert_eq!(client.call("counter", "{}").evermux_kind().as_deref(), Some("session_lost"));
        wait_shown(&harness, "not_found/404");
        // There is nothing to greet a new client with, and it is told so.
        assert_eq!(harness.connect("up").initialize(VERSION).evermux_kind().as_deref(), Some("session_lost"));
        assert_eq!(upstream.initializes(), 1);
    }
}

#[test]
fn version_mismatch_at_the_first_handshake_and_after_a_loss() {
    let old = || vec!["2024-10-07".to_owned()];
    let (harness, upstream) = with_settings(Script { versions: old(), ..Script::default() }, "");
    let mut client = harness.connect("up");
    assert_eq!(client.initialize(VERSION).evermux_kind().as_deref(), Some("unsupported"));
    wait_shown(&harness, "version_mismatch/-");
    assert_eq!(upstream.minted_sessions().len(), upstream.initializes());
    let (harness, upstream, mut client) = begun("");
    upstream.change(|script| script.versions = old());
    upstream.forget_sessions();
    assert_eq!(client.call("counter", "{}").evermux_kind().as_deref(), Some("unsupported"));
    wait_shown(&harness, "version_mismatch/404");
}

#[test]
fn resume_failed_as_long_as_the_server_is_not_there() {
    let (harness, upstream, mut client) = begun("");
    while_down(&harness, &client, || upstream.refuse_connections());
    assert_eq!(client.call("counter", "{}").evermux_kind().as_deref(), Some("upstream_unreachable"));
    wait_shown(&harness, "resume_failed/unreachable");
    assert_eq!(greeted(&harness), "resume_failed/unreachable");
    upstream.accept_connections();
    let back = evermux_testkit::wait::poll_until(PATIENCE, || {
        let answer = client.call("counter", "{}");
        answer.error().is_none().then_some(answer)
    });
    let answer = back.unwrap();
    assert_eq!((count_of(&answer), words(&told(&answer))), (2, "resumed/-".to_owned()));
    wait_shown(&harness, "resumed/-");
    assert_eq!(upstream.initializes(), 1);
}

#[test]
fn needs_manual_recovery_for_a_record_that_is_not_believed() {
    let (harness, upstream, mut client) = begun("");
    let trajectory = session(&harness)["trajectory"].clone();
    while_down(&harness, &client, || {
        let record = crate::state::records(&harness).pop().unwrap();
        let text = std::fs::read_to_string(&record).unwrap();
        let id = upstream.minted_sessions().pop().unwrap();
        let other = format!("{}{}", if id.starts_with('0') { '1' } else { '0' }, &id[1..]);
        std::fs::write(&record, text.replace(&id, &other)).unwrap();
    });
    let answer = client.call("counter", "{}");
    assert_eq!((count_of(&answer), words(&told(&answer))), (1, "new/-".to_owned()));
    let status = harness.status();
    let sessions = status["sessions"].as_array().unwrap();
    let aside = sessions.iter().find(|session| session["trajectory"] == trajectory).map(words);
    assert_eq!(aside.as_deref(), Some("needs_manual_recovery/record_digest_mismatch"), "{status:#}");
    let mut all: Vec<_> = sessions.iter().map(words).collect();
    all.sort_unstable();
    assert_eq!(all, ["needs_manual_recovery/record_digest_mismatch", "new/-"]);
}
