//! Subscriptions of several clients to several resources: updates come to those who subscribed, and to no one else.

use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Environment, Seen};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::peers::{PATIENCE, Sdk, World};
use crate::sdk_client::{Mode, Route, SdkClient, text};
use crate::traffic::check_traffic;

const UPDATED: &str = "notifications/resources/updated";

fn updates(client: &SdkClient, uri: &str) -> usize {
    client.notices(UPDATED).iter().filter(|params| params["uri"] == uri).count()
}

#[track_caller]
fn wait_update(client: &SdkClient, uri: &str) {
    client.wait_notice(UPDATED, |params| params["uri"] == uri);
}

/// Waits until a client has heard more than so often of a resource.
#[track_caller]
fn wait_more(client: &SdkClient, uri: &str, than: usize) {
    assert!(hears_more(client, uri, than, PATIENCE), "{:?} heard no more of {uri}", client.sdk);
}

fn hears_more(client: &SdkClient, uri: &str, than: usize, within: Duration) -> bool {
    poll_until(within, || (updates(client, uri) > than).then_some(())).is_some()
}

/// Changes a resource. Server-everything changes all at once, then again every five seconds, and does so for each session by itself.
#[track_caller]
fn touch(clients: &mut [SdkClient], fixture: Fixture, route: Route, uri: &str) {
    if fixture.is_ours() {
        let touched = clients[0].run("call", json!({"tool": "touch", "arguments": {"uri": uri}}));
        assert_eq!(text(&touched), format!("touched {uri}"));
        return;
    }
    let sessions = if route == Route::Direct { clients.len() } else { 1 };
    for client in &mut clients[..sessions] {
        client.run("call", json!({"tool": "toggle-subscriber-updates", "arguments": {}}));
    }
}

/// Two clients for the first resource, one for the second, one more for the third. A server drops what it has no stream for.
#[track_caller]
pub(crate) fn subscribe(world: &World, clients: &mut [SdkClient], route: Route) {
    let [first, second, third] = world.fixture.resources();
    let sessions = if route == Route::Direct { clients.len() } else { 1 };
    let listening =
        || world.recorder.count(|seen| seen.verb == "GET" && seen.status == Some(200)) >= sessions;
    assert!(poll_until(PATIENCE, || listening().then_some(())).is_some(), "no GET stream");
    for (client, uri) in [(0, first), (1, first), (2, second), (0, third)] {
        clients[client].run("subscribe", json!({"uri": uri}));
    }
}

/// The daemon is killed, then the server is started anew: who subscribed goes on hearing, and no one else begins to.
#[track_caller]
fn outlive(world: &mut World, clients: &mut [SdkClient]) {
    let fixture = world.fixture;
    let [first, second, _] = fixture.resources();
    world.harness.kill_daemon();
    let before = updates(&clients[2], second);
    // Not at once: what comes before a client listens again is not for this test to judge.
    let heard = (0..PATIENCE.as_secs()).any(|_| {
        touch(clients, fixture, Route::Evermux, second);
        hears_more(&clients[2], second, before, Duration::from_secs(1))
    });
    assert!(heard, "no longer subscribed:\n{}", world.recorder.summary());
    check_traffic(&world.recorder, 1);

    world.restart_server();
    clients[1].echo("after the restart");
    let anew = || {
        let journal = world.recorder.journal();
        let fresh = journal.iter().rposition(|seen| seen.is("initialize"))?;
        let good = |seen: &Seen| seen.status == Some(200);
        let subscribed = |uri: &str| {
            let to = Some(uri);
            let mut later =
                journal[fresh..].iter().filter(|seen| good(seen) && seen.is("resources/subscribe"));
            later.any(|seen| seen.body.pointer("/params/uri").and_then(Value::as_str) == to)
        };
        let listens = journal[fresh..].iter().any(|seen| seen.verb == "GET" && good(seen));
        (listens && subscribed(first) && subscribed(second)).then_some(())
    };
    assert!(poll_until(PATIENCE, anew).is_some(), "not subscribed anew:\n{}", world.recorder.summary());
    let before = updates(&clients[2], second);
    touch(clients, fixture, Route::Evermux, second);
    wait_more(&clients[2], second, before);
    assert_eq!(updates(&clients[2], first), 0, "never subscribed to that");
    assert_eq!(updates(&clients[1], second), 0, "never subscribed to that");
    check_traffic(&world.recorder, 2);
}

pub(crate) fn updates_come_to_subscribers(fixture: Fixture, route: Route) {
    let Some(mut world) = World::start(fixture, &Sdk::ALL, Environment::Bare) else { return };
    let spawn = |sdk| SdkClient::spawn_as(&world, sdk, Mode::Plain, route);
    let mut clients: Vec<_> = Sdk::ALL.map(spawn).map(SdkClient::ready).into();
    let [first, second, third] = fixture.resources();
    subscribe(&world, &mut clients, route);

    touch(&mut clients, fixture, route, first);
    wait_update(&clients[0], first);
    wait_update(&clients[1], first);
    if fixture.is_ours() {
        touch(&mut clients, fixture, route, second);
    }
    wait_update(&clients[2], second);
    assert_eq!(updates(&clients[2], first), 0, "not subscribed to that");
    assert_eq!(updates(&clients[1], second), 0, "not subscribed to that");

    if fixture.is_ours() {
        clients[0].run("unsubscribe", json!({"uri": first}));
        let before = updates(&clients[0], first);
        touch(&mut clients, fixture, route, first);
        touch(&mut clients, fixture, route, third);
        wait_more(&clients[1], first, 1);
        wait_update(&clients[0], third);
        assert_eq!(updates(&clients[0], first), before, "no longer subscribed");
    }
    if route == Route::Evermux {
        check_traffic(&world.recorder, 1);
        let given_up = world.recorder.count(|seen| seen.is("resources/unsubscribe"));
        assert_eq!(given_up, 0, "another client is still subscribed");
    }
    if route == Route::Evermux && fixture.is_ours() {
        outlive(&mut world, &mut clients);
    }
    clients.into_iter().for_each(SdkClient::close);
}

#[test]
fn without_evermux_updates_come_to_subscribers() {
    for fixture in [Fixture::Everything, Fixture::PythonEvents, Fixture::Rust] {
        updates_come_to_subscribers(fixture, Route::Direct);
    }
}

#[test]
fn updates_of_server_everything_come_to_subscribers() {
    updates_come_to_subscribers(Fixture::Everything, Route::Evermux);
}

#[test]
fn updates_of_a_python_server_come_to_subscribers() {
    updates_come_to_subscribers(Fixture::PythonEvents, Route::Evermux);
}

#[test]
fn updates_of_a_rust_server_come_to_subscribers() {
    updates_come_to_subscribers(Fixture::Rust, Route::Evermux);
}
