//! Official SDK clients and servers on both sides of evermux, pinned, as processes of their own.
//!
//! Our own model peers share our reading of the protocol; these do not. `tests/run` installs them. What went upstream is judged by a
//! recording proxy, what came back by what the clients' own SDKs made of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed step of a test is to end it, with its place"
)]

mod peers;
mod recorder;
mod sdk_client;

use std::collections::HashSet;

use evermux_testkit::Environment;
use serde_json::{Value, json};

use peers::{Sdk, World};
use recorder::Recorder;
use sdk_client::{SdkClient, Step, text};

/// The tool of server-everything that takes its time and shows progress.
const LONG: &str = "trigger-long-running-operation";

/// The revision that all pinned peers speak.
const REVISION: &str = "2025-11-25";

/// What holds for every traffic of evermux with an upstream: so many handshakes and no more, none with a session; every other request
/// in a session that a handshake gave, with the version it agreed on; no id twice in a session; no DELETE.
#[track_caller]
fn check_traffic(recorder: &Recorder, handshakes: usize) {
    let journal = recorder.journal();
    let initializes: Vec<_> = journal.iter().filter(|seen| seen.is("initialize")).collect();
    assert_eq!(initializes.len(), handshakes, "handshakes:\n{}", recorder.summary());
    assert!(initializes.iter().all(|seen| seen.session.is_none()), "a handshake in an old session");
    let minted: HashSet<_> = initializes.iter().filter_map(|seen| seen.reply_session.as_ref()).collect();
    assert_eq!(minted.len(), handshakes, "each handshake gave a session");
    let mut used = HashSet::new();
    for seen in journal.iter().filter(|seen| !seen.is("initialize")) {
        assert_ne!(seen.verb, "DELETE", "a session was ended:\n{}", recorder.summary());
        assert!(seen.session.as_ref().is_some_and(|session| minted.contains(session)), "{seen:?}");
        assert_eq!(seen.version.as_deref(), Some(REVISION), "{seen:?}");
        if let (Some(_), Some(id)) = (&seen.rpc_method, &seen.id) {
            assert!(used.insert((&seen.session, id)), "an id came twice: {seen:?}");
        }
    }
}

/// How often a call with this argument went out.
fn sent(recorder: &Recorder, tool: &str, argument: &str, value: &Value) -> usize {
    recorder.count(|seen| seen.calls(tool) && seen.argument(argument) == Some(value))
}

/// All progress came, in order, none twice. The TypeScript SDK hands progress on a moment later than an answer, and
/// then knows no listener any more: of what comes in one piece with the answer it loses the progress, and nothing can
/// be done about that on this side of it.
#[track_caller]
fn check_progress(client: &SdkClient, step: Step, expected: u32) {
    check_beginning(client, step, expected);
    if client.sdk == Sdk::Python {
        assert_eq!(client.progress(step).len(), expected as usize, "all of it");
    }
}

/// As far as it came, progress has no gap and nothing twice.
#[track_caller]
fn check_beginning(client: &SdkClient, step: Step, expected: u32) {
    let shown = client.progress(step);
    let expected: Vec<_> = (1..=expected).map(f64::from).collect();
    assert!(expected.starts_with(&shown), "{shown:?} has a gap, or something twice");
    assert!(!shown.is_empty() || expected.is_empty(), "no progress at all");
}

/// The long tool's result, for these arguments.
fn long_result(duration: f64, steps: u32) -> String {
    format!("Long running operation completed. Duration: {duration} seconds, Steps: {steps}.")
}

/// Everything a host does with a server, once.
#[track_caller]
fn use_everything(client: &mut SdkClient) {
    let tools = client.run("list", json!({}));
    let has_echo = tools["tools"].as_array().is_some_and(|all| all.iter().any(|tool| tool["name"] == "echo"));
    assert!(has_echo, "{tools}");
    client.echo("plain");
    client.echo("\u{2028} \u{1f980} \"quoted\" \\ \n");

    let long = client.start_call(LONG, json!({"duration": 0.6, "steps": 4}));
    assert_eq!(client.wait(long).as_ref().map(text), Ok(long_result(0.6, 4).as_str()));
    check_progress(client, long, 4);

    let resources = client.run("resources", json!({}));
    let uri = &resources["resources"][0]["uri"];
    let content = client.run("read", json!({"uri": uri}));
    assert_eq!(&content["contents"][0]["uri"], uri);
    assert!(content["contents"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{content}");

    let prompts = client.run("prompts", json!({}));
    assert!(prompts["prompts"].as_array().is_some_and(|all| all.len() > 1), "{prompts}");
    let prompt =
        client.run("prompt", json!({"name": "args-prompt", "arguments": {"city": "Ulm", "state": "BW"}}));
    assert!(prompt["messages"][0]["content"]["text"].as_str().is_some_and(|text| text.contains("Ulm")));

    let refused = client.start("prompt", json!({"name": "no-such-prompt", "arguments": {}}));
    let error = client.wait(refused).expect_err("the server's own error");
    assert_eq!(error["code"], -32602, "{error}");
}

/// The main job, for one SDK, started as hosts start a server: by its command, with six variables.
fn main_job(sdk: Sdk) {
    let Some(world) = World::start(Sdk::TypeScript, &[sdk], Environment::Bare) else { return };
    let mut client = SdkClient::connect(&world, sdk);
    assert_eq!(client.ready.pointer("/server/name"), Some(&json!("mcp-servers/everything")));
    use_everything(&mut client);
    check_traffic(&world.recorder, 1);

    let killed = world.harness.kill_daemon();
    client.echo("after the kill");
    assert_ne!(world.harness.daemon_pid(), Some(killed));
    use_everything(&mut client);
    assert_eq!(sent(&world.recorder, "echo", "message", &json!("after the kill")), 1);
    check_traffic(&world.recorder, 1);

    client.close();
    check_traffic(&world.recorder, 1);
}

#[test]
fn a_typescript_client_goes_on_after_a_kill() {
    main_job(Sdk::TypeScript);
}

#[test]
fn a_python_client_goes_on_after_a_kill() {
    main_job(Sdk::Python);
}

/// Both clients have a call running, and the server's event store replays the events of *every* stream behind a cursor: each must come
/// to its own answer and to nothing of the other's.
#[test]
fn calls_in_work_at_a_kill_are_answered_from_the_servers_event_store() {
    let both = [Sdk::TypeScript, Sdk::Python];
    let Some(world) = World::start(Sdk::TypeScript, &both, Environment::Bare) else { return };
    let mut clients = both.map(|sdk| SdkClient::spawn(&world, sdk)).map(SdkClient::ready);
    let arguments = [json!({"duration": 3, "steps": 6}), json!({"duration": 3.2, "steps": 8})];
    let results = [long_result(3.0, 6), long_result(3.2, 8)];
    let mut start = |place: usize| clients[place].start_call(LONG, arguments[place].clone());
    let steps = [start(0), start(1)];
    for (client, step) in clients.iter().zip(steps) {
        client.wait_progress(step);
    }

    world.harness.kill_daemon();
    for ((client, step), result) in clients.iter().zip(steps).zip(&results) {
        assert_eq!(client.wait(step).as_ref().map(text), Ok(result.as_str()));
    }
    // An answer may come early, by the replay of the other call: it does not wait for what is left of its progress.
    check_beginning(&clients[0], steps[0], 6);
    check_beginning(&clients[1], steps[1], 8);
    for (client, duration) in clients.iter_mut().zip([json!(3), json!(3.2)]) {
        assert_eq!(sent(&world.recorder, LONG, "duration", &duration), 1, "never run twice");
        client.echo("afterwards");
    }
    assert!(world.recorder.count(|seen| seen.verb == "GET" && seen.last_event_id.is_some()) >= 2);
    check_traffic(&world.recorder, 1);
    clients.into_iter().for_each(SdkClient::close);
}

#[test]
fn a_server_that_forgot_the_session_gets_one_fresh_handshake() {
    let both = [Sdk::TypeScript, Sdk::Python];
    let Some(mut world) = World::start(Sdk::TypeScript, &both, Environment::Bare) else { return };
    let mut clients = both.map(|sdk| SdkClient::spawn(&world, sdk)).map(SdkClient::ready);
    for client in &mut clients {
        client.echo("before");
    }
    check_traffic(&world.recorder, 1);

    world.restart_server();
    let start = |client: &mut SdkClient| client.start_call("echo", json!({"message": "after the restart"}));
    let steps: Vec<_> = clients.iter_mut().map(|client| [start(client), start(client)]).collect();
    for (client, step) in
        clients.iter().zip(&steps).flat_map(|(client, steps)| steps.map(|step| (client, step)))
    {
        assert_eq!(client.wait(step).as_ref().map(text), Ok("Echo: after the restart"));
    }
    assert!(world.recorder.count(|seen| seen.status == Some(400)) > 0, "the server refused the old session");
    check_traffic(&world.recorder, 2);

    // And the new session is as good as the old one was.
    world.harness.kill_daemon();
    for client in &mut clients {
        client.echo("after the kill");
    }
    check_traffic(&world.recorder, 2);
    clients.into_iter().for_each(SdkClient::close);
}

/// The SDKs number their requests and progress tokens alike, so that everything here collides.
#[test]
fn both_sdks_share_one_session() {
    let both = [Sdk::TypeScript, Sdk::Python];
    let Some(world) = World::start(Sdk::TypeScript, &both, Environment::Explicit) else { return };
    // Started from a full terminal; the clients' shims must find it with nothing but HOME.
    let daemon = world.harness.start_daemon();
    let mut clients = both.map(|sdk| SdkClient::spawn(&world, sdk)).map(SdkClient::ready);
    assert_eq!(world.harness.daemon_pid(), Some(daemon));

    let lengths = [(0.6, 3), (0.8, 4)];
    let mut started = Vec::new();
    for (place, client) in clients.iter_mut().enumerate() {
        let (duration, steps) = lengths[place];
        started.push((place, client.start_call(LONG, json!({"duration": duration, "steps": steps})), None));
    }
    for number in 0..25 {
        for (place, client) in clients.iter_mut().enumerate() {
            let word = format!("{number} of {place}");
            let step = client.start_call("echo", json!({"message": &word}));
            started.push((place, step, Some(format!("Echo: {word}"))));
        }
    }
    for (place, step, expected) in started {
        let (duration, steps) = lengths[place];
        let is_long = expected.is_none();
        let expected = expected.unwrap_or_else(|| long_result(duration, steps));
        assert_eq!(clients[place].wait(step).as_ref().map(text), Ok(expected.as_str()));
        check_progress(&clients[place], step, if is_long { steps } else { 0 });
    }
    assert_eq!(world.recorder.count(|seen| seen.calls("echo")), 50);
    check_traffic(&world.recorder, 1);
    clients.into_iter().for_each(SdkClient::close);
}

/// FastMCP numbers no events: what was in work at a kill cannot be had again, and must not be run again either.
#[test]
fn without_event_ids_the_outcome_is_unknown() {
    let Some(world) = World::start(Sdk::Python, &[Sdk::Python], Environment::Bare) else { return };
    let mut client = SdkClient::connect(&world, Sdk::Python);
    let quick = client.start_call("slow", json!({"key": "quick", "steps": 2}));
    assert_eq!(client.wait(quick).as_ref().map(text), Ok("slow quick done"));
    check_progress(&client, quick, 2);

    let cut = client.start_call("slow", json!({"key": "cut", "steps": 8}));
    client.wait_progress(cut);
    world.harness.kill_daemon();
    let error = client.wait(cut).expect_err("nothing can know the answer");
    assert_eq!(error["code"], -33001, "{error}");
    assert_eq!(error.pointer("/data/evermux/kind"), Some(&json!("outcome_unknown")), "{error}");
    assert_eq!(error.pointer("/data/evermux/outcome"), Some(&json!("unknown")), "{error}");

    client.echo("afterwards");
    let runs = client.run("call", json!({"tool": "runs_of", "arguments": {"key": "cut"}}));
    assert_eq!(text(&runs), "1", "never run twice");
    check_traffic(&world.recorder, 1);
    client.close();
}
