//! The rules of servers we know, by name.
//!
//! Values and not TOML: a text inside of the binary could be wrong, and whom would its problems be told? That they are
//! what a user can write is held by a test.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Born, Condition, DEFAULT_TTL, HandleRule, Scalar, Used};

/// Makes the rules of a server.
type Preset = fn() -> Vec<HandleRule>;

pub(super) const ALL: [(&str, Preset); 2] = [("executor", executor), ("codex", codex)];

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn status(any_of: &[&str]) -> Vec<Condition> {
    let any_of = any_of.iter().map(|text| Scalar::Text((*text).to_owned())).collect();
    vec![Condition { pointer: "/structuredContent/status".to_owned(), any_of }]
}

/// Executor: a run that needs an approval pauses under an id, which only the engine of its session knows.
fn executor() -> Vec<HandleRule> {
    const PAUSED: &str = "waiting_for_interaction";
    let over = [
        "completed",
        "error",
        "execution_already_settled",
        "execution_expired",
        "execution_not_found",
        // A run that was resumed and pauses again does so under a new id.
        PAUSED,
    ];
    let born = Born {
        tools: names(&["execute", "resume"]),
        pointer: "/structuredContent/executionId".to_owned(),
        when: status(&[PAUSED]),
        expires: Some("/structuredContent/expiresAt".to_owned()),
    };
    let used = Used { tools: names(&["resume"]), argument: "/executionId".to_owned() };
    vec![HandleRule { born, used, settled: Some(status(&over)), ttl: DEFAULT_TTL }]
}

/// Codex (`codex mcp-server`): a thread lives in the process that began it, and is over when that is. The second name
/// of the argument is deprecated, and still taken.
fn codex() -> Vec<HandleRule> {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    let born = Born {
        tools: names(&["codex", "codex-reply"]),
        pointer: "/structuredContent/threadId".to_owned(),
        when: Vec::new(),
        expires: None,
    };
    let by = |argument: &str| HandleRule {
        born: born.clone(),
        used: Used { tools: names(&["codex-reply"]), argument: argument.to_owned() },
        settled: None,
        ttl: WEEK,
    };
    vec![by("/threadId"), by("/conversationId")]
}
