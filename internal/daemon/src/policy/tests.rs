//! What the core is told of handles, and that a reload tells it without making another session.

use std::time::Duration;

use evermux_config::parse;
use evermux_store::StateDir;

use super::*;
use crate::inbox::{Ask, Inbox, Told};
use crate::keeper::Keeper;

const HEAD: &str = "[upstream.a]\nurl = \"http://127.0.0.1:9/mcp\"\nheaders.X-A = \"a\"\nheaders.Authorization = \"Bearer b\"\n";

const RULE: &str = r#"
[[upstream.a.handle]]
born = { tools = ["make", "again"], pointer = "/made/id", when = { "/n" = 1, "/ok" = [true, "yes"] }, expires = "/until" }
used = { tool = "use", argument = "/id" }
settled = { when = { "/over" = true } }
ttl = "90s"
"#;

fn written(rules: &str) -> String {
    format!("{HEAD}{rules}")
}

fn handles(text: &str) -> Vec<HandleRule> {
    let policies = policies(&parse(text).unwrap());
    policies.into_iter().flat_map(|policy| policy.handles).collect()
}

fn names(all: &[&str]) -> std::collections::BTreeSet<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_part_of_a_rule_comes_to_the_core() {
    let condition = |pointer: &str, any_of: Vec<Scalar>| Condition { pointer: pointer.to_owned(), any_of };
    let expected = HandleRule {
        born_in: names(&["make", "again"]),
        born_at: "/made/id".to_owned(),
        born_when: vec![
            condition("/n", vec![Scalar::Integer(1)]),
            condition("/ok", vec![Scalar::Bool(true), Scalar::Text("yes".to_owned())]),
        ],
        expires_at: Some("/until".to_owned()),
        ttl: Duration::from_secs(90),
        used_in: names(&["use"]),
        used_at: "/id".to_owned(),
        settled_when: Some(vec![condition("/over", vec![Scalar::Bool(true)])]),
    };
    assert_eq!(handles(&written(RULE)), [expected]);
    assert_eq!(handles(&written("")), []);
}

#[test]
fn presets_come_as_rules_in_their_order() {
    let rules =
        handles(&written("handle = [{ preset = \"codex\" }, { preset = \"executor\", ttl = \"1h\" }]"));
    let seen: Vec<_> =
        rules.iter().map(|rule| (rule.used_at.as_str(), rule.settled_when.is_some())).collect();
    assert_eq!(seen, [("/threadId", false), ("/conversationId", false), ("/executionId", true)]);
    assert_eq!(rules[2].ttl, Duration::from_secs(60 * 60));
}

/// Other rules are another config, so that it is told, and the same fingerprint, so that the session stays.
#[tokio::test]
async fn a_reload_brings_other_rules_under_the_same_fingerprint() {
    let directory = tempfile::tempdir().unwrap();
    let key = StateDir::open(directory.path()).unwrap().key().unwrap().into_key();
    let file = directory.path().join("config.toml");
    let (inbox, mut told) = Inbox::new();
    let keeper = Keeper::new(file.clone(), parse(&written("")).unwrap(), key, inbox.clone());
    keeper.resolve_what_is_at_hand().await;
    let Some(Told::Credentials { outcome: Ok(before), .. }) = told.recv().await else { panic!("no values") };
    std::fs::write(&file, written(RULE)).unwrap();
    let reactor = async {
        let Some(Told::Control(Ask::Reload { config, done })) = told.recv().await else {
            panic!("no reload")
        };
        done.send(()).unwrap();
        let Some(Told::Credentials { outcome: Ok(after), .. }) = told.recv().await else {
            panic!("no values")
        };
        (policies(&config), after.fingerprint)
    };
    let (reloaded, (policies, fingerprint)) = tokio::join!(keeper.reload(&inbox), reactor);
    reloaded.unwrap();
    assert_eq!(policies[0].handles, handles(&written(RULE)));
    assert_eq!(policies[0].handles.len(), 1);
    assert_eq!(fingerprint, before.fingerprint);
}
