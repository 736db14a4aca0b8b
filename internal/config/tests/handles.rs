//! What `[[upstream.NAME.handle]]` may say, and what people read when it says something else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use evermux_config::{Born, Condition, Config, HandleRule, MOST_HANDLE_RULES, Scalar, Used, parse};

const HEAD: &str = "[upstream.a]\nurl = \"https://example.com/mcp\"\n";

#[track_caller]
fn config(rules: &str) -> Config {
    match parse(&format!("{HEAD}{rules}")) {
        Ok(config) => config,
        Err(problems) => panic!("expected a valid file, got {problems:#?}"),
    }
}

#[track_caller]
fn handles(rules: &str) -> Vec<HandleRule> {
    config(rules).upstreams["a"].handles.clone()
}

/// All problems as people read them.
#[track_caller]
fn problems(rules: &str) -> String {
    let problems = parse(&format!("{HEAD}{rules}")).expect_err("expected problems");
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

fn condition(pointer: &str, any_of: &[Scalar]) -> Condition {
    Condition { pointer: pointer.to_owned(), any_of: any_of.to_vec() }
}

fn text(text: &str) -> Scalar {
    Scalar::Text(text.to_owned())
}

const EXECUTOR: &str = r#"
[[upstream.a.handle]]
born = { tools = ["execute", "resume"], pointer = "/structuredContent/executionId", when = { "/structuredContent/status" = "waiting_for_interaction" }, expires = "/structuredContent/expiresAt" }
used = { tool = "resume", argument = "/executionId" }
settled = { when = { "/structuredContent/status" = ["completed", "error", "execution_already_settled", "execution_expired", "execution_not_found", "waiting_for_interaction"] } }
ttl = "24h"
"#;

const CODEX: &str = r#"
[[upstream.a.handle]]
born = { tools = ["codex", "codex-reply"], pointer = "/structuredContent/threadId" }
used = { tool = "codex-reply", argument = "/threadId" }
ttl = "7d"

[[upstream.a.handle]]
born = { tools = ["codex", "codex-reply"], pointer = "/structuredContent/threadId" }
used = { tool = "codex-reply", argument = "/conversationId" }
ttl = "7d"
"#;

#[test]
fn every_key_of_a_rule_is_read() {
    let rules = handles(
        r#"
[[upstream.a.handle]]
born = { tools = ["b", "a", "b"], pointer = "/x/0/a~1b", when = { "/s" = "", "/n" = [-1, 2], "/t" = [true, "c"] }, expires = "/e" }
used = { tools = ["c"], argument = "/y" }
settled = { when = { "/s" = ["d", "e"] } }
ttl = "1h 30m"
"#,
    );
    let expected = HandleRule {
        born: Born {
            tools: names(&["a", "b"]),
            pointer: "/x/0/a~1b".to_owned(),
            when: vec![
                condition("/s", &[text("")]),
                condition("/n", &[Scalar::Integer(-1), Scalar::Integer(2)]),
                condition("/t", &[Scalar::Bool(true), text("c")]),
            ],
            expires: Some("/e".to_owned()),
        },
        used: Used { tools: names(&["c"]), argument: "/y".to_owned() },
        settled: Some(vec![condition("/s", &[text("d"), text("e")])]),
        ttl: Duration::from_secs(5400),
    };
    assert_eq!(rules, [expected]);
}

#[test]
fn what_is_left_out_has_its_default() {
    assert!(handles("").is_empty());
    assert!(handles("handle = []").is_empty());
    let rules = handles(
        "handle = [{ born = { tool = \"a\", pointer = \"/x\" }, used = { tool = \"b\", argument = \"/y\" } }]",
    );
    let expected = HandleRule {
        born: Born { tools: names(&["a"]), pointer: "/x".to_owned(), when: Vec::new(), expires: None },
        used: Used { tools: names(&["b"]), argument: "/y".to_owned() },
        settled: None,
        ttl: Duration::from_secs(24 * 60 * 60),
    };
    assert_eq!(rules, [expected]);
}

#[test]
fn every_way_of_writing_a_rule_is_read() {
    let plain = handles(
        "handle = [{ born = { tool = \"a\", pointer = \"/x\", when = { \"/s\" = 1 } }, used = { tool = \"b\", argument = \"/y\" } }]",
    );
    let others = [
        "[[upstream.a.handle]]\nborn.tool = \"a\"\nborn.pointer = \"/x\"\nborn.when.\"/s\" = [1]\nused = { tools = [\"b\"], argument = \"/y\" }",
        "[[upstream.a.handle]]\n[upstream.a.handle.born]\ntool = \"a\"\npointer = \"/x\"\n[upstream.a.handle.born.when]\n\"/s\" = 1\n[upstream.a.handle.used]\ntool = \"b\"\nargument = \"/y\"",
    ];
    for other in others {
        assert_eq!(handles(other), plain, "{other}");
    }
}

#[test]
fn presets_are_what_can_be_written_out() {
    let preset = |name: &str| handles(&format!("[[upstream.a.handle]]\npreset = \"{name}\""));
    assert_eq!(preset("executor"), handles(EXECUTOR));
    assert_eq!(preset("codex"), handles(CODEX));
    let both = handles("handle = [{ preset = \"executor\" }, { preset = \"codex\" }]");
    assert_eq!(both, [preset("executor"), preset("codex")].concat());
}

#[test]
fn a_preset_takes_another_ttl() {
    for name in ["executor", "codex"] {
        let preset = |more: &str| handles(&format!("handle = [{{ preset = \"{name}\"{more} }}]"));
        let mut plain = preset("");
        plain.iter_mut().for_each(|rule| rule.ttl = Duration::from_secs(60));
        assert_eq!(preset(", ttl = \"1m\""), plain);
    }
}

/// A reload compares: other rules are another config, the same ones in other words are not.
#[test]
fn a_config_is_as_its_rules_are() {
    assert_eq!(config(CODEX), config("[[upstream.a.handle]]\npreset = \"codex\""));
    assert_ne!(config(CODEX), config(""));
    let changes = [
        ("\"resume\"], pointer", "\"again\"], pointer"),
        ("/structuredContent/executionId", "/structuredContent/id"),
        ("= \"waiting", "= \"w"),
        ("expiresAt", "until"),
        ("tool = \"resume\"", "tool = \"again\""),
        ("\"/executionId\"", "\"/id\""),
        ("\"completed\", ", ""),
        ("24h", "23h"),
    ];
    for (old, new) in changes {
        let changed = EXECUTOR.replacen(old, new, 1);
        assert_ne!(changed, EXECUTOR, "{old}");
        assert_ne!(config(&changed), config(EXECUTOR), "{old}");
    }
    let order = config("handle = [{ preset = \"executor\" }, { preset = \"codex\" }]");
    assert_eq!(order, config(&format!("{EXECUTOR}{CODEX}")));
}

#[test]
fn all_problems_of_all_rules_come_at_once_in_the_order_of_the_file() {
    insta::assert_snapshot!(problems(
        r#"idle = "soon"

[[upstream.a.handle]]
born = { tools = [], pointer = "structuredContent/id", wen = {}, when = { "status" = 1.5, "/n" = [1, {}], "/e" = [] }, expires = "" }
used = { tool = "a", tools = ["b"], argumnet = "/id" }
setled = 1
settled = { when = {} }
ttl = "0"

[[upstream.a.handle]]
used = "resume"
settled = {}
ttl = "soon"

[[upstream.a.handle]]
preset = "claude"
born = { tool = "a", pointer = "/x" }
settled = 1
ttl = 24

[[upstream.a.handle]]
born = { tools = ["a", ""], pointer = 1, when = "waiting" }
used = { argument = "$.id" }

[upstream.b]
url = "https://example.com/b"
handle = [{ preset = "codex" }, 7, { preset = "executor", used = {} }]
"#
    ));
}

#[test]
fn each_rule_has_its_message() {
    let rules = [
        "handle = 1",
        "handle = { preset = \"codex\" }",
        "[upstream.a.handle]\npreset = \"codex\"",
        "handle = [[]]",
        "handle = [{}]",
        "handle = [{ presett = \"codex\" }]",
        "handle = [{ preset = 1 }]",
        "handle = [{ preset = \"codex\", ttl = \"0s\" }]",
        "handle = [{ preset = \"codex\", ttl = \"20y\" }]",
    ];
    let parts = [
        "born = []",
        "born = { tool = \"\", pointer = \"/x\" }",
        "born = { tool = 1, pointer = \"/x\" }",
        "born = { tools = \"a\", pointer = \"/x\" }",
        "born = { tools = [1], pointer = \"/x\" }",
        "born = { tool = \"a\" }",
        "born = { tool = \"a\", pointer = \"/x~2\" }",
        "born = { tool = \"a\", pointer = \"/x\", expires = 5 }",
        "born = { tool = \"a\", pointer = \"/x\", when = { } }",
        "born = { tool = \"a\", pointer = \"/x\", when = { \"\" = 1 } }",
        "born = { tool = \"a\", pointer = \"/x\", when = { \"/s\" = 1979-05-27 } }",
        "born = { tool = \"a\", pointer = \"/x\", when = { \"/s\" = [[1]] } }",
        "born = { tool = \"a\", pointer = \"/x\", when = { s.t = 1 } }",
    ];
    let used = "used = { tool = \"b\", argument = \"/y\" }";
    let wholes = parts.map(|part| (part, format!("handle = [{{ {part}, {used} }}]")));
    let all = rules.map(|rule| (rule, rule.to_owned())).into_iter().chain(wholes);
    let report: String = all
        .map(|(shown, rule)| format!("{shown}\n{}", problems(&rule).replace("line", "    line")))
        .collect();
    insta::assert_snapshot!(report);
}

#[test]
fn one_rule_more_than_allowed_is_told_once_where_it_is() {
    let many = |count: usize| "[[upstream.a.handle]]\npreset = \"executor\"\n".repeat(count);
    assert_eq!(handles(&many(MOST_HANDLE_RULES)).len(), MOST_HANDLE_RULES);
    let codex = "[[upstream.a.handle]]\npreset = \"codex\"\n";
    let found = [
        problems(&many(MOST_HANDLE_RULES + 3)),
        // A preset counts as the rules that it is.
        problems(&format!("{}{codex}", many(MOST_HANDLE_RULES - 1))),
        // One that is refused counts too.
        problems(&format!("[[upstream.a.handle]]\npreset = 1\n{}", many(MOST_HANDLE_RULES))),
    ];
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn the_example_of_the_documentation_is_valid() {
    let page = include_str!("../../../planning/handles.md");
    let blocks: Vec<_> =
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 1);
    assert_eq!(handles(&blocks[0].replace("upstream.executor", "upstream.a")).len(), 1);
}
