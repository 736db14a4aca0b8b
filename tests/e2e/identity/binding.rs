//! What a session is bound to, class by class: an edit of the config makes another session that says which class it was,
//! and the old session id never goes out under the new values.

use evermux_testkit::Script;

use super::*;
use crate::support::binary;

/// What the config says of `up`.
#[derive(Debug, Clone, Copy)]
struct Config {
    path: &'static str,
    team: &'static str,
    token: &'static str,
}

const BEFORE: Config = Config { path: "/mcp?team=a", team: "one", token: "old" };

/// One edit a class, and the class that has to be named.
const EDITS: [(Config, &str); 4] = [
    (Config { path: "/other?team=a", ..BEFORE }, "config_changed:endpoint"),
    (Config { path: "/mcp?team=b", ..BEFORE }, "config_changed:endpoint"),
    (Config { team: "two", ..BEFORE }, "config_changed:headers"),
    (Config { token: "new", ..BEFORE }, "config_changed:identity"),
];

fn write(harness: &Harness, upstream: &Upstream, config: Config) {
    let Config { path, team, token } = config;
    let url = upstream.url_of(path);
    let headers = format!("headers.Authorization = \"Bearer {token}\"\nheaders.X-Team = \"{team}\"\n");
    harness.write_config(&format!("[upstream.up]\nurl = \"{url}\"\n{headers}"));
}

/// A client with a session under the config as it was. Both tokens are good, so that the server would not notice.
fn before() -> (Harness, Upstream, ShimClient) {
    let upstream = Upstream::start(Script {
        resources: vec!["/mcp".to_owned(), "/other".to_owned()],
        bearer: Some("old".to_owned()),
        other_bearers: vec!["new".to_owned()],
        ..Script::default()
    });
    let harness = Harness::new(binary());
    write(&harness, &upstream, BEFORE);
    let mut client = joined(&harness, "up");
    assert_eq!(count_of(&client.call("counter", "{}")), 1);
    (harness, upstream, client)
}

/// The next call is in a fresh session under the new values, and both client and status are told why.
#[track_caller]
fn check_fresh(harness: &Harness, upstream: &Upstream, client: &mut ShimClient, edit: (Config, &str)) {
    let (config, reason) = edit;
    let answer = client.call("counter", "{}");
    assert_eq!((count_of(&answer), words(&told(&answer))), (1, format!("new/{reason}")), "{config:?}");
    assert_eq!(count_of(&client.call("counter", "{}")), 2);
    let new = told(&answer)["trajectory"].clone();
    let status = harness.status();
    let sessions = status["sessions"].as_array().unwrap();
    let shown = sessions.iter().find(|session| session["trajectory"] == new).map(words);
    assert_eq!(shown, Some(format!("new/{reason}")), "{status:#}");
    let journal = upstream.journal();
    let last = journal.iter().rfind(|entry| entry.calls("counter")).unwrap();
    assert_eq!((last.path.as_str(), last.header("x-team")), (config.path, Some(config.team)));
    assert!(last.sent_bearer(config.token));
    assert_eq!(upstream.minted_sessions().len(), 2, "{}", upstream.summary());
    check_bound(upstream);
    upstream.assert_no_violations();
}

#[test]
fn an_edit_and_a_reload_are_in_the_next_call_and_in_a_fresh_session() {
    for edit in EDITS {
        let (harness, upstream, mut client) = before();
        write(&harness, &upstream, edit.0);
        reload(&harness);
        check_fresh(&harness, &upstream, &mut client, edit);
        // What nobody can use any more is ended, under the values it was made with.
        upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
        check_bound(&upstream);
        let old = upstream.minted_sessions().first().cloned();
        let ended: Vec<_> = upstream.journal().into_iter().filter(|entry| entry.verb == "DELETE").collect();
        assert_eq!((ended.len(), &ended[0].session), (1, &old), "{}", upstream.summary());
    }
}

#[test]
fn an_edit_while_no_daemon_runs_is_another_session_too() {
    for edit in EDITS {
        let (harness, upstream, mut client) = before();
        while_down(&harness, &client, || write(&harness, &upstream, edit.0));
        check_fresh(&harness, &upstream, &mut client, edit);
        // The old values are nowhere any more, so nothing can be said in their name.
        let old = upstream.minted_sessions().first().cloned();
        let journal = upstream.journal();
        let second = journal.iter().rposition(|entry| entry.is("initialize")).unwrap();
        assert!(journal[second..].iter().all(|entry| entry.session != old), "{}", upstream.summary());
        assert_eq!(upstream.deletes(), 0);
    }
}

/// What is handed over is judged as what lies on disk: the process that takes over reads the config as it is by then.
#[test]
fn an_edit_before_an_upgrade_is_another_session_too() {
    for edit in EDITS {
        let (harness, upstream, mut client) = before();
        write(&harness, &upstream, edit.0);
        crate::takeover::upgraded(&harness);
        check_fresh(&harness, &upstream, &mut client, edit);
    }
}
