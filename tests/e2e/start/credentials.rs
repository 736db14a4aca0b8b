//! Header variables: who has them hands them over; who has not lives on what is at hand.
//!
//! MCP hosts give a server HOME, LOGNAME, PATH, SHELL, TERM and USER and nothing else, so the place of everything and the
//! credentials of an upstream must not hang on more.

use super::*;

const TOKEN: &str = "UP_TOKEN";
const HEADER: &str = r#"headers.Authorization = { env = "UP_TOKEN", prefix = "Bearer " }"#;

/// A world of bare environments, an upstream that wants the token, and a config that takes it from the environment.
fn world() -> (Harness, Upstream) {
    let upstream = Upstream::start(Script { bearer: Some("s3cret".to_owned()), ..Script::default() });
    let harness = Harness::with_environment(binary(), Environment::Bare);
    harness.add_upstream("up", &upstream.url(), HEADER);
    (harness, upstream)
}

/// A client in a terminal that has more, the token among it.
fn full(harness: &Harness) -> ShimClient {
    let mut command = harness.command(&["connect", "up"]);
    command.env(TOKEN, "s3cret").env("XDG_RUNTIME_DIR", harness.root()).env("TMPDIR", harness.root());
    ShimClient::spawn(command)
}

#[track_caller]
fn initialized(mut client: ShimClient) -> ShimClient {
    let answer = client.initialize(VERSION);
    assert!(answer.error().is_none(), "{}", answer.raw);
    client
}

#[test]
fn a_bare_client_finds_the_daemon_and_the_token_of_a_terminal() {
    let (harness, upstream) = world();
    let mut full = initialized(full(&harness));
    let daemon = harness.daemon_pid().unwrap();
    let mut bare = initialized(harness.connect("up"));
    assert_eq!((count(&mut full), count(&mut bare)), (1, 2));
    assert_eq!(harness.daemon_pid(), Some(daemon));
    check_one_session(&upstream);
}

#[test]
fn a_token_arrives_at_a_daemon_that_was_started_without() {
    let (harness, upstream) = world();
    let daemon = harness.start_daemon();
    let mut full = initialized(full(&harness));
    let mut bare = initialized(harness.connect("up"));
    assert_eq!((count(&mut full), count(&mut bare)), (1, 2));
    assert_eq!(harness.daemon_pid(), Some(daemon));
    check_one_session(&upstream);
}

#[test]
fn a_token_of_the_daemons_own_environment_is_used() {
    let (harness, upstream) = world();
    harness.set_variable(TOKEN, "s3cret");
    harness.start_daemon();
    harness.unset_variable(TOKEN);
    let mut bare = initialized(harness.connect("up"));
    let mut full = initialized(full(&harness));
    assert_eq!((count(&mut bare), count(&mut full)), (1, 2));
    check_one_session(&upstream);
}

#[test]
fn without_the_token_the_client_is_told_which_variable_is_missing() {
    let (harness, upstream) = world();
    let mut bare = harness.connect("up");
    let answer = bare.initialize(VERSION);
    assert_eq!(answer.evermux_kind().as_deref(), Some("misconfigured"), "{}", answer.raw);
    assert!(answer.raw.contains(TOKEN), "{}", answer.raw);
    assert!(upstream.journal().is_empty(), "{}", upstream.summary());
    // Somebody brings it: the next try of the very same client works.
    let mut full = initialized(full(&harness));
    let mut bare = initialized(bare);
    assert_eq!((count(&mut full), count(&mut bare)), (1, 2));
    check_one_session(&upstream);
}

#[test]
fn after_a_kill_the_client_that_has_the_token_brings_it_back() {
    let (harness, upstream) = world();
    let mut full = initialized(full(&harness));
    let mut bare = initialized(harness.connect("up"));
    assert_eq!((count(&mut full), count(&mut bare)), (1, 2));
    harness.kill_daemon();
    assert_eq!(count(&mut full), 3);
    let back = evermux_testkit::wait::poll_until(PATIENCE, || {
        let answer = bare.call("counter", "{}");
        answer.error().is_none().then(|| answer.structured()["count"].as_u64())
    });
    assert_eq!(back, Some(Some(4)));
    check_one_session(&upstream);
}

/// Whichever of them comes first: what the bare one asks is answered once the other has brought the token.
#[test]
fn after_a_kill_a_bare_client_waits_for_the_one_that_has_the_token() {
    let (harness, upstream) = world();
    let mut full = initialized(full(&harness));
    let mut bare = initialized(harness.connect("up"));
    assert_eq!((count(&mut full), count(&mut bare)), (1, 2));
    harness.kill_daemon();
    let calls = [bare.start_call("counter", "{}"), full.start_call("counter", "{}")];
    let answers = [bare.wait(&calls[0], PATIENCE), full.wait(&calls[1], PATIENCE)];
    for answer in answers {
        assert!(answer.error().is_none(), "{}", answer.raw);
    }
    check_one_session(&upstream);
}

#[test]
fn a_token_changed_in_the_config_is_what_new_clients_use() {
    let upstream = Upstream::start(Script { bearer: Some("old".to_owned()), ..Script::default() });
    let harness = Harness::new(binary());
    let config = |token: &str| {
        let url = upstream.url();
        format!("[upstream.up]\nurl = \"{url}\"\nheaders.Authorization = \"Bearer {token}\"\n")
    };
    harness.write_config(&config("old"));
    let daemon = harness.start_daemon();
    assert_eq!(count(&mut initialized(harness.connect("up"))), 1);
    upstream.change(|script| script.bearer = Some("new".to_owned()));
    harness.write_config(&config("new"));
    assert!(harness.signal(daemon, Signal::SIGHUP));
    // The reload is done once a client is let in; a token of somebody else is a session of its own.
    let served = evermux_testkit::wait::poll_until(PATIENCE, || {
        let mut client = harness.connect("up");
        let greeted = client.initialize(VERSION).error().is_none();
        let answer =
            greeted.then(|| client.call("counter", "{}")).filter(|answer| answer.error().is_none())?;
        answer.structured()["count"].as_u64()
    });
    assert_eq!(served, Some(1));
    assert_eq!(harness.daemon_pid(), Some(daemon));
}
