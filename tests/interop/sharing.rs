//! A crowd of calls from every SDK at once, in one session.

use evermux_testkit::Environment;
use serde_json::json;

use crate::fixture::Fixture;
use crate::main_job::check_progress;
use crate::peers::{Sdk, World};
use crate::sdk_client::{SdkClient, text};
use crate::traffic::check_traffic;

/// The SDKs number their requests and progress tokens alike, so that everything here collides.
#[test]
fn all_sdks_share_one_session() {
    let fixture = Fixture::Everything;
    let Some(world) = World::start(fixture, &Sdk::ALL, Environment::Explicit) else { return };
    // Started from a full terminal; the clients' shims must find it with nothing but HOME.
    let daemon = world.harness.start_daemon();
    let mut clients = Sdk::ALL.map(|sdk| SdkClient::spawn(&world, sdk)).map(SdkClient::ready);
    assert_eq!(world.harness.daemon_pid(), Some(daemon));

    let longs = [fixture.long(1, 3), fixture.long(2, 4), fixture.long(3, 5)];
    let mut started = Vec::new();
    for (place, client) in clients.iter_mut().enumerate() {
        let call = longs[place].call.clone();
        started.push((place, client.start_call(call.tool, call.arguments), None));
    }
    for number in 0..25 {
        for (place, client) in clients.iter_mut().enumerate() {
            let word = format!("{number} of {place}");
            let step = client.start_call("echo", json!({"message": &word}));
            started.push((place, step, Some(format!("Echo: {word}"))));
        }
    }
    for (place, step, expected) in started {
        let long = &longs[place];
        let steps = if expected.is_none() { long.steps } else { 0 };
        let expected = expected.unwrap_or_else(|| long.text.clone());
        assert_eq!(clients[place].wait(step).as_ref().map(text), Ok(expected.as_str()));
        check_progress(&clients[place], step, steps);
    }
    assert_eq!(world.recorder.count(|seen| seen.calls("echo")), 75);
    check_traffic(&world.recorder, 1);
    clients.into_iter().for_each(SdkClient::close);
}
