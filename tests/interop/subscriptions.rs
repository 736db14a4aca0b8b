//! Subscriptions of several clients to several resources: updates come to those who subscribed, and to no one else.

use evermux_testkit::Environment;
use evermux_testkit::wait::poll_until;
use serde_json::json;

use crate::fixture::Fixture;
use crate::peers::{PATIENCE, Sdk, World};
use crate::sdk_client::{Mode, Route, SdkClient, text};

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
    let more = poll_until(PATIENCE, || (updates(client, uri) > than).then_some(()));
    assert!(more.is_some(), "{:?} heard no more of {uri}", client.sdk);
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

pub(crate) fn updates_come_to_subscribers(fixture: Fixture, route: Route) {
    let Some(world) = World::start(fixture, &Sdk::ALL, Environment::Bare) else { return };
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
    clients.into_iter().for_each(SdkClient::close);
}

#[test]
fn without_evermux_updates_come_to_subscribers() {
    for fixture in [Fixture::Everything, Fixture::PythonEvents, Fixture::Rust] {
        updates_come_to_subscribers(fixture, Route::Direct);
    }
}
