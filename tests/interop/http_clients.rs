//! Official SDK clients without a shim: their own streamable HTTP transports on the TCP face. They number nothing and start no daemon,
//! so what carries them over a kill is their `Mcp-Session-Id` and `Last-Event-ID` alone.

use std::net::{SocketAddr, TcpListener};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Environment, Recorder};
use serde_json::json;

use crate::fixture::Fixture;
use crate::main_job::{check_beginning, use_everything, with_all};
use crate::peers::{NAME, PATIENCE, Sdk, World};
use crate::sdk_client::{Mode, Route, SdkClient, text};
use crate::traffic::{check_replaced, check_traffic, sent};

/// Those whose scripts take a token.
const CLIENTS: [Sdk; 2] = [Sdk::TypeScript, Sdk::Python];

/// Nobody has it now. It stays the same over kills, because HTTP clients have nowhere else to look.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("a bound listener has an address")
}

fn world(fixture: Fixture, mode: Mode) -> Option<(World, Vec<SdkClient>)> {
    let world = World::start(fixture, &CLIENTS, Environment::Bare)?;
    world.harness.append_config(&format!("[http]\nlisten = \"{}\"\n", free_port()));
    world.harness.start_daemon();
    let spawn = |sdk| SdkClient::spawn_as(&world, sdk, mode, Route::Http);
    let clients = CLIENTS.map(spawn).map(SdkClient::ready).into();
    Some((world, clients))
}

fn kill_and_start(world: &World) {
    world.harness.kill_daemon();
    world.harness.start_daemon();
}

/// Both come back by themselves with the id of the last event they saw: to their answer, or, where the server's events cannot be had
/// again, to the truth.
#[track_caller]
fn kill_in_flight(world: &World, clients: &mut [SdkClient]) {
    let fixture = world.fixture;
    let least = if fixture == Fixture::Python { 60 } else { 12 };
    let longs: Vec<_> = (1..).take(clients.len()).map(|key| fixture.long(key, least + key)).collect();
    let start = |(client, long): (&mut SdkClient, &crate::fixture::Long)| {
        client.start_call(long.call.tool, long.call.arguments.clone())
    };
    let steps: Vec<_> = clients.iter_mut().zip(&longs).map(start).collect();
    for (client, step) in clients.iter().zip(&steps) {
        client.wait_progress(*step);
    }
    kill_and_start(world);
    for ((client, step), long) in clients.iter().zip(&steps).zip(&longs) {
        let outcome = client.wait(*step);
        if fixture == Fixture::Python {
            let error = outcome.expect_err("nothing can know the answer");
            assert_eq!(error.pointer("/data/evermux/kind"), Some(&json!("outcome_unknown")), "{error}");
        } else {
            assert_eq!(outcome.as_ref().map(text), Ok(long.text.as_str()), "{:?}", client.sdk);
        }
        check_beginning(client, *step, long.steps);
    }
    for (client, long) in clients.iter_mut().zip(&longs) {
        client.echo("after the kill");
        assert_eq!(sent(&world.recorder, &long.call), 1, "never run twice");
    }
}

fn main_job(fixture: Fixture) {
    let Some((mut world, mut clients)) = world(fixture, Mode::Plain) else { return };
    for client in &clients {
        assert_eq!(client.ready.pointer("/server/name"), Some(&json!(fixture.name())), "{:?}", client.sdk);
    }
    with_all(&mut clients, |key, client| use_everything(client, fixture, key));
    for _kill in 0..2 {
        kill_and_start(&world);
        with_all(&mut clients, |_, client| client.echo("between two calls"));
    }
    check_traffic(&world.recorder, 1);
    kill_in_flight(&world, &mut clients);
    check_traffic(&world.recorder, 1);
    world.restart_server();
    with_all(&mut clients, |_, client| client.echo("after the restart"));
    check_traffic(&world.recorder, 2);
    check_replaced(&world.recorder);
    with_all(&mut clients, |key, client| use_everything(client, fixture, key));
    clients.into_iter().for_each(SdkClient::close);
    check_traffic(&world.recorder, 2);
}

#[test]
fn server_everything_over_http() {
    main_job(Fixture::Everything);
}

#[test]
fn a_python_server_over_http() {
    main_job(Fixture::Python);
}

#[test]
fn a_python_server_with_an_event_store_over_http() {
    main_job(Fixture::PythonEvents);
}

/// A question comes on the stream of the call that asks, and its answer by a POST of its own.
#[test]
fn http_clients_are_asked() {
    for fixture in [Fixture::Everything, Fixture::Python] {
        let Some((_world, mut clients)) = world(fixture, Mode::Asks) else { return };
        for client in &mut clients {
            let call = fixture.ask("who?");
            let step = client.start_call(call.tool, call.arguments);
            let ask = client.wait_ask(1);
            assert_eq!(ask.method, "elicitation/create", "{ask:?}");
            client.answer(&ask, &fixture.accept("Ulm"));
            let result = client.wait(step).unwrap_or_else(|error| panic!("{:?}: {error}", client.sdk));
            assert!(result.to_string().contains("Ulm"), "{result}");
        }
        clients.into_iter().for_each(SdkClient::close);
    }
}

/// The TypeScript SDK takes no error for an answer: it comes back for one, a second later. It must hear that there is nothing more, or it
/// comes again for ever, and in the place of its own GET stream.
#[test]
fn a_client_comes_back_after_an_error_once() {
    let Some(world) = World::start(Fixture::Python, &CLIENTS, Environment::Bare) else { return };
    world.harness.start_daemon();
    // Their side of the daemon, by way of its socket.
    let face = Recorder::start(&world.harness.socket());
    let url = face.url_of(&format!("/mcp/{NAME}"));
    let gets = |status| face.count(|seen| seen.verb == "GET" && seen.status == Some(status));
    for (sdk, streams) in CLIENTS.into_iter().zip(1..) {
        let mut client = SdkClient::spawn_to(&world, sdk, Mode::Plain, &[&url]).ready();
        let listens = poll_until(PATIENCE, || (gets(200) == streams).then_some(()));
        assert!(listens.is_some(), "{}", face.summary());
        for round in 1..=4 {
            let refused = client.start("prompt", json!({"name": "no-such-prompt", "arguments": {}}));
            assert_eq!(client.wait(refused).expect_err("the server's own error")["code"], -32602);
            if sdk == Sdk::TypeScript {
                let told = poll_until(PATIENCE, || (gets(204) == round).then_some(()));
                assert!(told.is_some(), "{}", face.summary());
            }
        }
        assert_eq!(gets(200), streams, "no stream but its own: {}", face.summary());
        client.echo("after the errors");
        client.close();
    }
    check_traffic(&world.recorder, 1);
}
