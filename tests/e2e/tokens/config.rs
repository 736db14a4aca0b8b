//! A token changed in the config: another identity, so another session, and every client that brought none follows.

use evermux_testkit::HttpClient;

use super::*;
use crate::support::while_down;

fn config(upstream: &Upstream, token: &str) -> String {
    let url = upstream.url();
    format!("[upstream.up]\nurl = \"{url}\"\nheaders.Authorization = \"Bearer {token}\"\n")
}

fn reload(harness: &Harness) {
    let mut control = HttpClient::unix(&harness.socket()).unwrap();
    let reply = control.exchange("POST", "/control/reload", &[], "").unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// The session of a client's last answer, if it said something of it.
#[track_caller]
fn call(client: &mut ShimClient) -> (u64, String) {
    let answer = client.call("counter", "{}");
    let count = answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("no count: {}", answer.raw));
    let meta = &answer.result_value()["_meta"]["evermux/session"];
    (count, format!("{}/{}", meta["status"], meta["reason"]).replace('"', ""))
}

#[test]
fn a_client_that_connected_before_a_token_was_changed_goes_on_with_the_new_one() {
    let (harness, upstream) = guarded("old");
    harness.write_config(&config(&upstream, "old"));
    let mut client = client(&harness);
    assert_eq!(count(&mut client), 1);
    upstream.change(|script| script.bearer = Some("new".to_owned()));
    harness.write_config(&config(&upstream, "new"));
    reload(&harness);
    assert_eq!(call(&mut client), (1, "new/config_changed:identity".to_owned()));
    assert_eq!(call(&mut client), (2, "null/null".to_owned()));
    assert_eq!(upstream.minted_sessions().len(), 2);
    // The session of the old token is ended with the old token, which the server refuses by now.
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
    let sent = |entry: &&evermux_testkit::Entry| entry.verb == "DELETE";
    let deletes: Vec<_> = upstream.journal().iter().filter(sent).map(|entry| entry.auth.clone()).collect();
    assert_eq!(deletes.len(), 1, "{}", upstream.summary());
    let first = upstream.journal().first().map(|entry| entry.auth.clone());
    assert_eq!(deletes.first(), first.as_ref(), "the old session's id goes out with its own token");
}

#[test]
fn a_client_goes_on_also_if_the_token_was_changed_while_no_daemon_ran() {
    let (harness, upstream) = guarded("old");
    harness.write_config(&config(&upstream, "old"));
    let mut client = client(&harness);
    assert_eq!(count(&mut client), 1);
    while_down(&harness, &client, || {
        upstream.change(|script| script.bearer = Some("new".to_owned()));
        harness.write_config(&config(&upstream, "new"));
    });
    assert_eq!(call(&mut client), (1, "new/config_changed:identity".to_owned()));
    // Its old token is nowhere any more, so nothing can be said to the server in its name.
    assert_eq!((upstream.minted_sessions().len(), upstream.deletes()), (2, 0));
    upstream.assert_no_violations();
}

/// Whose token it is must not depend on who comes first: a link that brought its own stays with it.
#[test]
fn a_client_with_a_variable_of_its_own_is_never_moved_to_another_identity() {
    let (harness, upstream) = guarded("a");
    harness.add_upstream(
        "up",
        &upstream.url(),
        r#"headers.Authorization = { env = "UP_TOKEN", prefix = "Bearer " }"#,
    );
    let of = |token: &str| {
        let mut command = harness.command(&["connect", "up"]);
        command.env("UP_TOKEN", token);
        ShimClient::spawn(command)
    };
    let mut mine = of("a");
    assert!(mine.initialize(VERSION).error().is_none());
    assert_eq!(count(&mut mine), 1);
    upstream.change(|script| script.bearer = Some("b".to_owned()));
    let mut theirs = of("b");
    assert!(theirs.initialize(VERSION).error().is_none());
    assert_eq!(count(&mut theirs), 1);
    for round in 0..2 {
        let answer = mine.call("counter", "{}");
        assert_eq!(answer.evermux_kind().as_deref(), Some("needs_auth"), "{round}: {}", answer.raw);
        assert_eq!(count(&mut theirs), 2 + round);
        harness.append_config(&format!("# {round}\n"));
        reload(&harness);
    }
    assert_eq!(upstream.deletes(), 0, "{}", upstream.summary());
}
