//! What a server asks its clients, elicitation and sampling: everybody gets what their own call asked, and nobody anything else.

use evermux_testkit::Environment;
use serde_json::{Value, json};

use crate::fixture::{Call, Fixture};
use crate::peers::{Sdk, World};
use crate::sdk_client::{Ask, Mode, Route, SdkClient, Step};
use crate::traffic::{check_traffic, sent};

/// The TypeScript and the Rust client can show a form; the Python client says that it can open a URL as well. A session declares the one
/// or the other.
const SESSIONS: usize = 2;

/// All clients of a test, each ready to answer.
fn connect(world: &World, route: Route) -> Vec<SdkClient> {
    let spawn = |sdk| SdkClient::spawn_as(world, sdk, Mode::Asks, route);
    Sdk::ALL.map(spawn).map(SdkClient::ready).into()
}

fn who(client: &SdkClient) -> String {
    format!("{:?} \u{2028} \u{1f980}", client.sdk)
}

#[track_caller]
fn start(client: &mut SdkClient, call: Call) -> Step {
    client.start_call(call.tool, call.arguments)
}

/// All text of a tool's result.
#[track_caller]
fn outcome(client: &SdkClient, step: Step) -> String {
    let result = client.wait(step).unwrap_or_else(|error| panic!("{:?}: {error}", client.sdk));
    let content = result["content"].as_array().cloned().unwrap_or_default();
    content.iter().filter_map(|block| block["text"].as_str()).collect()
}

/// The client's own ask, the `number`th that it got.
#[track_caller]
fn own_ask(client: &SdkClient, fixture: Fixture, number: u64, method: &str) -> Ask {
    let ask = client.wait_ask(number);
    assert_eq!(ask.method, method, "{ask:?}");
    let said = if method == "elicitation/create" {
        &ask.params["message"]
    } else {
        // One block or a list of blocks.
        let content = &ask.params["messages"][0]["content"];
        content.get(0).unwrap_or(content).get("text").unwrap_or(content)
    };
    let named = said.as_str().is_some_and(|said| said.contains(&who(client)));
    assert!(named || (method == "elicitation/create" && !fixture.is_ours()), "another's: {ask:?}");
    ask
}

/// All clients call at once and are asked at once; they answer in the opposite order.
#[track_caller]
fn all_at_once(
    clients: &mut [SdkClient],
    fixture: Fixture,
    number: u64,
    method: &str,
    call: impl Fn(&str) -> Call,
    answer: impl Fn(&str) -> Value,
    expected: impl Fn(&str) -> String,
) {
    let steps: Vec<_> = clients.iter_mut().map(|client| start(client, call(&who(client)))).collect();
    let asks: Vec<_> = clients.iter().map(|client| own_ask(client, fixture, number, method)).collect();
    for (client, ask) in clients.iter_mut().zip(&asks).rev() {
        client.answer(ask, &answer(&who(client)));
    }
    for (client, step) in clients.iter().zip(steps) {
        let (text, expected) = (outcome(client, step), expected(&who(client)));
        assert!(text.contains(&expected), "{:?} wanted {expected}: {text}", client.sdk);
        assert_eq!(client.asks().len() as u64, number, "{:?}", client.asks());
    }
}

/// Elicitation accepted, elicitation declined, sampling.
pub(crate) fn asks_come_to_the_caller(fixture: Fixture, route: Route) {
    let Some(world) = World::start(fixture, &Sdk::ALL, Environment::Bare) else { return };
    let mut clients = connect(&world, route);
    let ask = |who: &str| fixture.ask(who);
    let accept = |who: &str| fixture.accept(who);
    all_at_once(&mut clients, fixture, 1, "elicitation/create", ask, accept, str::to_owned);
    let (decline, declined) = (|_: &str| json!({"action": "decline"}), |_: &str| "decline".to_owned());
    all_at_once(&mut clients, fixture, 2, "elicitation/create", ask, decline, declined);
    let sampled = |who: &str| json!({"role": "assistant", "model": "none", "content": {"type": "text", "text": format!("for {who}")}});
    let sample = |who: &str| fixture.sample(who);
    all_at_once(&mut clients, fixture, 3, "sampling/createMessage", sample, sampled, |who| {
        format!("for {who}")
    });
    if route == Route::Evermux {
        check_traffic(&world.recorder, SESSIONS);
    }
    clients.into_iter().for_each(SdkClient::close);
}

#[test]
fn without_evermux_asks_come_to_the_caller() {
    for fixture in [Fixture::Everything, Fixture::Python, Fixture::Rust] {
        asks_come_to_the_caller(fixture, Route::Direct);
    }
}

#[test]
fn server_everything_asks_the_caller() {
    asks_come_to_the_caller(Fixture::Everything, Route::Evermux);
}

#[test]
fn a_python_server_asks_the_caller() {
    asks_come_to_the_caller(Fixture::Python, Route::Evermux);
}

#[test]
fn a_rust_server_asks_the_caller() {
    asks_come_to_the_caller(Fixture::Rust, Route::Evermux);
}

/// The daemon is killed while everybody has a question open. It is not asked again, and the answer still comes to the server.
fn an_open_ask_outlives_the_daemon(fixture: Fixture) {
    let Some(world) = World::start(fixture, &Sdk::ALL, Environment::Bare) else { return };
    let mut clients = connect(&world, Route::Evermux);
    let calls: Vec<_> = clients.iter().map(|client| fixture.ask(&who(client))).collect();
    let steps: Vec<_> =
        clients.iter_mut().zip(&calls).map(|(client, call)| start(client, call.clone())).collect();
    let asks: Vec<_> =
        clients.iter().map(|client| own_ask(client, fixture, 1, "elicitation/create")).collect();
    world.harness.kill_daemon();
    for (client, ask) in clients.iter_mut().zip(&asks) {
        client.answer(ask, &fixture.accept(&who(client)));
    }
    for (client, step) in clients.iter_mut().zip(steps) {
        let text = outcome(client, step);
        assert!(text.contains(&who(client)), "{:?}: {text}", client.sdk);
        assert_eq!(client.asks().len(), 1, "asked again: {:?}", client.asks());
        client.echo("afterwards");
    }
    let once = if fixture.is_ours() { 1 } else { clients.len() };
    assert!(calls.iter().all(|call| sent(&world.recorder, call) == once), "never run twice");
    check_traffic(&world.recorder, SESSIONS);
    clients.into_iter().for_each(SdkClient::close);
}

#[test]
fn an_open_ask_of_server_everything_outlives_the_daemon() {
    an_open_ask_outlives_the_daemon(Fixture::Everything);
}

#[test]
fn an_open_ask_of_a_python_server_outlives_the_daemon() {
    an_open_ask_outlives_the_daemon(Fixture::PythonEvents);
}

#[test]
fn an_open_ask_of_a_rust_server_outlives_the_daemon() {
    an_open_ask_outlives_the_daemon(Fixture::Rust);
}
