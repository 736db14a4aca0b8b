//! The file of events: what happened to a session over kills, an upgrade, a loss and a purge, in order, and nothing of
//! what was said in it.

use std::collections::BTreeSet;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script, ShimClient};
use serde_json::Value;

use crate::support::{PATIENCE, with_upstream};

fn joined(harness: &Harness) -> ShimClient {
    let mut client = harness.connect("up");
    client.initialize("2025-11-25");
    client
}

fn text(harness: &Harness) -> String {
    std::fs::read_to_string(harness.state_dir().join("log/events.jsonl")).unwrap_or_default()
}

fn events(harness: &Harness) -> Vec<Value> {
    text(harness).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Event and what it says, in order, without the leases, which several clients take and leave at once.
fn story(events: &[Value]) -> Vec<String> {
    let word = |event: &Value, name: &str| event[name].as_str().unwrap_or("-").to_owned();
    let of_session =
        events.iter().filter(|event| !matches!(event["event"].as_str(), Some("leased" | "released")));
    of_session
        .map(|event| {
            let detail =
                if event["event"] == "attached" { word(event, "status") } else { word(event, "reason") };
            format!("{} {} {}", event["generation"], word(event, "event"), detail)
        })
        .collect()
}

#[test]
fn a_sessions_story_is_told() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = joined(&harness);
    client.call("counter", r#"{"x":"private-argument"}"#);
    harness.kill_daemon();
    client.call("counter", "{}");
    crate::takeover::upgraded(&harness);
    client.call("counter", "{}");
    upstream.restart_without_state();
    client.call("counter", "{}");
    assert_eq!(client.close(PATIENCE), Some(0));
    let told = |word: &str| events(&harness).iter().any(|event| event["event"] == word).then_some(());
    poll_until(PATIENCE, || told("released")).unwrap();
    harness.run(&["purge", "up"]).success();
    poll_until(PATIENCE, || told("ended")).unwrap();
    let all = events(&harness);
    let expected = [
        "1 attached new",
        "2 attached dormant",
        "2 attached resumed",
        "3 attached resumed",
        "3 lost -",
        "3 attached reinitialized",
        "3 ended purged",
    ];
    assert_eq!(story(&all), expected);
    check_chain(&all);
    check_counted(&all);
    assert_eq!(all.iter().filter(|event| event["event"] == "leased").count(), 2, "an upgrade is no news");
    let leases: BTreeSet<_> = all.iter().filter_map(|event| event["lease"].as_str()).collect();
    assert_eq!(leases.len(), 1, "one client by one name");
    let said = text(&harness);
    for secret in upstream.minted_sessions().iter().map(String::as_str).chain(["private-argument", "counter"])
    {
        assert!(!said.contains(secret), "{said}");
    }
}

/// Each attach names the one before, over processes and the loss.
#[track_caller]
fn check_chain(all: &[Value]) {
    let attached: Vec<&Value> = all.iter().filter(|event| event["event"] == "attached").collect();
    let mut chain: Vec<(&Value, &Value)> =
        attached.iter().map(|e| (&e["continuation"], &e["parent"])).collect();
    // One attach may be told of several times, as its status changes.
    chain.dedup();
    for pair in chain.windows(2) {
        assert_eq!(pair[1].1, pair[0].0, "{chain:?}");
    }
    assert_eq!(chain.len(), 4, "{chain:?}");
    let names: BTreeSet<_> = attached.iter().map(|event| event["trajectory"].as_str()).collect();
    assert_eq!(names.len(), 1);
}

/// Every process counts its lines from one, without a gap.
#[track_caller]
fn check_counted(all: &[Value]) {
    for generation in 1..=3 {
        let counted: Vec<u64> = all
            .iter()
            .filter(|event| event["generation"] == generation)
            .map(|event| event["n"].as_u64().unwrap())
            .collect();
        let expected: Vec<u64> = (1..).take(counted.len()).collect();
        assert_eq!(counted, expected);
    }
}
