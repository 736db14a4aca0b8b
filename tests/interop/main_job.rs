//! The main job, each server with every client: use it, kill the daemon, restart the server. All clients of a test share the session, and
//! since the SDKs number their requests and progress tokens alike, everything of theirs collides.

use std::thread;
use std::time::Duration;

use evermux_testkit::Environment;
use evermux_testkit::wait::poll_until;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::peers::{PATIENCE, Sdk, World};
use crate::sdk_client::{Mode, Route, SdkClient, Step, text};
use crate::traffic::{check_replaced, check_traffic, sent};

/// All progress came, in order, none twice. The TypeScript SDK hands progress on a moment later than an answer, and
/// then knows no listener any more: of what comes in one piece with the answer it loses the progress, and nothing can
/// be done about that on this side of it.
#[track_caller]
pub(crate) fn check_progress(client: &SdkClient, step: Step, expected: u32) {
    if client.sdk != Sdk::TypeScript {
        client.wait_all_progress(step, expected as usize);
        assert_eq!(client.progress(step).len(), expected as usize, "all of it, once");
    }
    check_beginning(client, step, expected);
}

/// As far as it came, progress has no gap and nothing twice.
#[track_caller]
pub(crate) fn check_beginning(client: &SdkClient, step: Step, expected: u32) {
    let shown = client.progress(step);
    let expected: Vec<_> = (1..=expected).map(f64::from).collect();
    assert!(expected.starts_with(&shown), "{shown:?} has a gap, or something twice");
    assert!(!shown.is_empty() || expected.is_empty(), "no progress at all");
}

/// Everything a host does with a server, once. `key` tells this client's calls from those of others.
#[track_caller]
pub(crate) fn use_everything(client: &mut SdkClient, fixture: Fixture, key: u32) {
    let tools = client.run("list", json!({}));
    let has_echo = tools["tools"].as_array().is_some_and(|all| all.iter().any(|tool| tool["name"] == "echo"));
    assert!(has_echo, "{tools}");
    client.echo("plain");
    client.echo("\u{2028} \u{1f980} \"quoted\" \\ \n");

    let long = fixture.long(key, 3);
    let step = client.start_call(long.call.tool, long.call.arguments);
    assert_eq!(client.wait(step).as_ref().map(text), Ok(long.text.as_str()));
    check_progress(client, step, long.steps);

    let uris = all_resources(client);
    assert!(uris.len() > 3, "{uris:?}");
    let content = client.run("read", json!({"uri": uris[0]}));
    assert_eq!(content["contents"][0]["uri"], uris[0]);
    assert!(content["contents"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{content}");
    let templates = client.run("templates", json!({}));
    assert!(templates["resourceTemplates"][0]["uriTemplate"].is_string(), "{templates}");

    let prompts = client.run("prompts", json!({}));
    assert!(prompts["prompts"].as_array().is_some_and(|all| all.len() > 1), "{prompts}");
    let (request, expected) = fixture.prompt();
    let prompt = client.run("prompt", request);
    assert!(prompt["messages"][0]["content"]["text"].as_str().is_some_and(|text| text.contains(expected)));
    let (request, expected) = fixture.completion();
    assert_eq!(client.run("complete", request)["completion"]["values"], expected);

    let refused = client.start("prompt", json!({"name": "no-such-prompt", "arguments": {}}));
    let error = client.wait(refused).expect_err("the server's own error");
    assert_eq!(error["code"], -32602, "{error}");
    if fixture.is_ours() {
        hear_a_log(client, fixture, key);
    }
}

/// The URIs of all pages.
#[track_caller]
fn all_resources(client: &mut SdkClient) -> Vec<Value> {
    let (mut uris, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let members = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = client.run("resources", members);
        let resources = page["resources"].as_array().cloned().unwrap_or_default();
        uris.extend(resources.into_iter().map(|resource| resource["uri"].clone()));
        match page.get("nextCursor") {
            Some(next) if !next.is_null() => cursor = next.clone(),
            _ => return uris,
        }
    }
}

/// What a call logs comes to its client, and to no other if the server says whose it is: the Rust SDK does not.
#[track_caller]
fn hear_a_log(client: &mut SdkClient, fixture: Fixture, key: u32) {
    let method = "notifications/message";
    let word = format!("of {key}");
    let mine =
        |client: &SdkClient| client.notices(method).iter().filter(|params| params["data"] == word).count();
    let before = mine(client);
    client.run("level", json!({"level": "debug"}));
    // Again, if need be: on the session's own stream, what is said before everybody listens there is lost.
    let comes = (0..PATIENCE.as_secs()).any(|_| {
        client.run("call", json!({"tool": "log", "arguments": {"level": "info", "message": word}}));
        poll_until(Duration::from_secs(1), || (mine(client) > before).then_some(())).is_some()
    });
    assert!(comes, "{:?} hears no log message", client.sdk);
    let heard = client.notices(method);
    let all_mine = heard.iter().all(|params| params["data"] == word);
    assert!(all_mine || fixture == Fixture::Rust, "another's: {heard:?}");
}

/// Does the same with every client at once.
pub(crate) fn with_all(clients: &mut [SdkClient], act: impl Fn(u32, &mut SdkClient) + Sync) {
    let act = &act;
    thread::scope(|scope| {
        for (key, client) in (1..).zip(clients) {
            scope.spawn(move || act(key, client));
        }
    });
}

/// A call is running for every client when the daemon is killed. Each must come to its own answer and to nothing of another's, or, if the
/// server's events cannot be had again, to be told so; and none is run again.
#[track_caller]
fn kill_in_flight(world: &World, clients: &mut [SdkClient]) {
    let fixture = world.fixture;
    // Long enough for all to be running at the kill; longer where nobody waits for the end.
    let least = if fixture == Fixture::Python { 60 } else { 9 };
    let longs: Vec<_> = (1..=3).map(|key| fixture.long(key, least + key)).collect();
    let steps: Vec<_> = clients
        .iter_mut()
        .zip(&longs)
        .map(|(client, long)| client.start_call(long.call.tool, long.call.arguments.clone()))
        .collect();
    for (client, step) in clients.iter().zip(&steps) {
        client.wait_progress(*step);
    }
    let killed = world.harness.kill_daemon();
    for ((client, step), long) in clients.iter().zip(&steps).zip(&longs) {
        let outcome = client.wait(*step);
        if fixture == Fixture::Python {
            let error = outcome.expect_err("nothing can know the answer");
            assert_eq!(error["code"], -33001, "{error}");
            assert_eq!(error.pointer("/data/evermux/kind"), Some(&json!("outcome_unknown")), "{error}");
            assert_eq!(error.pointer("/data/evermux/outcome"), Some(&json!("unknown")), "{error}");
        } else {
            assert_eq!(outcome.as_ref().map(text), Ok(long.text.as_str()), "{:?}", client.sdk);
        }
        // An answer may come early, by the replay of another call: it does not wait for what is left of its progress.
        check_beginning(client, *step, long.steps);
    }
    for (client, long) in clients.iter_mut().zip(&longs) {
        client.echo("after the kill");
        assert_eq!(sent(&world.recorder, &long.call), 1, "never run twice");
    }
    assert_ne!(world.harness.daemon_pid(), Some(killed));
    if fixture.is_ours() {
        for long in &longs {
            let runs = clients[0]
                .run("call", json!({"tool": "runs_of", "arguments": {"key": long.call.arguments["key"]}}));
            assert_eq!(text(&runs), "1", "never run twice");
        }
    }
    check_traffic(&world.recorder, 1);
}

/// The server forgets the session: one fresh handshake for all, and no call of theirs is lost.
#[track_caller]
fn restart(world: &mut World, clients: &mut [SdkClient]) {
    world.restart_server();
    let start = |client: &mut SdkClient| client.start_call("echo", json!({"message": "after the restart"}));
    let steps: Vec<_> = clients.iter_mut().map(|client| [start(client), start(client)]).collect();
    for (client, steps) in clients.iter().zip(&steps) {
        for step in steps {
            assert_eq!(client.wait(*step).as_ref().map(text), Ok("Echo: after the restart"));
        }
    }
    let refused = |status| world.recorder.count(|seen| seen.status == Some(status));
    assert!(refused(400) + refused(404) > 0, "the server refused the old session");
    check_traffic(&world.recorder, 2);
    check_replaced(&world.recorder);

    // And the new session is as good as the old one was.
    world.harness.kill_daemon();
    with_all(clients, |_, client| client.echo("after another kill"));
    check_traffic(&world.recorder, 2);
    check_replaced(&world.recorder);
}

/// Clients started as hosts start a server: by its command, with six variables.
fn main_job(fixture: Fixture) {
    let Some(mut world) = World::start(fixture, &Sdk::ALL, Environment::Bare) else { return };
    let mut clients: Vec<_> = Sdk::ALL.map(|sdk| SdkClient::spawn(&world, sdk)).map(SdkClient::ready).into();
    for client in &clients {
        assert_eq!(client.ready.pointer("/server/name"), Some(&json!(fixture.name())), "{:?}", client.sdk);
    }
    with_all(&mut clients, |key, client| use_everything(client, fixture, key));
    check_traffic(&world.recorder, 1);
    kill_in_flight(&world, &mut clients);
    restart(&mut world, &mut clients);
    with_all(&mut clients, |key, client| use_everything(client, fixture, key));
    clients.into_iter().for_each(SdkClient::close);
    check_traffic(&world.recorder, 2);
}

#[test]
fn server_everything_with_every_client() {
    main_job(Fixture::Everything);
}

#[test]
fn a_python_server_with_every_client() {
    main_job(Fixture::Python);
}

#[test]
fn a_python_server_with_an_event_store_with_every_client() {
    main_job(Fixture::PythonEvents);
}

#[test]
fn a_rust_server_with_every_client() {
    main_job(Fixture::Rust);
}

/// Newer clients look for a revision without sessions first.
#[test]
fn a_client_that_probes_falls_back_to_a_handshake() {
    let Some(world) = World::start(Fixture::Rust, &[Sdk::Rust], Environment::Bare) else { return };
    let mut client = SdkClient::spawn_as(&world, Sdk::Rust, Mode::Probes, Route::Evermux).ready();
    client.echo("after the probe");
    assert_eq!(world.recorder.count(|seen| seen.is("server/discover")), 0, "evermux answers it");
    client.close();
    check_traffic(&world.recorder, 1);
}

/// One client has the server change its list of tools; all hear of it.
#[test]
fn every_client_hears_of_a_changed_list() {
    for fixture in [Fixture::Python, Fixture::Rust] {
        let Some(world) = World::start(fixture, &Sdk::ALL, Environment::Bare) else { return };
        let mut clients: Vec<_> =
            Sdk::ALL.map(|sdk| SdkClient::spawn(&world, sdk)).map(SdkClient::ready).into();
        // A server drops what it has no stream for.
        let listens = || world.recorder.count(|seen| seen.verb == "GET" && seen.status == Some(200)) > 0;
        assert!(poll_until(PATIENCE, || listens().then_some(())).is_some(), "no GET stream");
        let grown = clients[0].run("call", json!({"tool": "grow", "arguments": {"name": "grown"}}));
        assert_eq!(text(&grown), "grown grown");
        for client in &mut clients {
            client.wait_notice("notifications/tools/list_changed", |_| true);
            let tools = client.run("list", json!({}));
            assert!(tools["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "grown"), "{tools}");
        }
        clients.into_iter().for_each(SdkClient::close);
        check_traffic(&world.recorder, 1);
    }
}
