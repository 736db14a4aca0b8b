//! `[[upstream.NAME.handle]]`: which values in results belong to the session that made them.
//!
//! What a handle is, no protocol says: each server has its own names for it. The rules are the user's therefore, and
//! those of the servers we know ship as presets, which are nothing but rules: what comes out of here does not say
//! whether it was written out.

mod presets;

use std::collections::BTreeSet;
use std::time::Duration;

use toml_edit::Value;

use crate::problem::Problems;
use crate::raw::{Element, Entry, Section};
use crate::resolve::{DURATION, accept, checked, choice};
use crate::rules;

/// As many rules an upstream may have: each of them is looked at with every call of a tool.
pub const MOST_HANDLE_RULES: usize = 16;

/// How long a handle lives where neither its result nor the config says.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 60 * 60);

const KEYS: [&str; 5] = ["born", "used", "settled", "ttl", "preset"];
const BORN_KEYS: [&str; 5] = ["tool", "tools", "pointer", "when", "expires"];
const USED_KEYS: [&str; 3] = ["tool", "tools", "argument"];
const SETTLED_KEYS: [&str; 1] = ["when"];

const BORN_EXAMPLE: &str = "born = { tool = \"execute\", pointer = \"/structuredContent/executionId\" }";
const USED_EXAMPLE: &str = "used = { tool = \"resume\", argument = \"/executionId\" }";
const SETTLED_EXAMPLE: &str = "settled = { when = { \"/structuredContent/status\" = \"completed\" } }";

/// One kind of handle. Pointers are those of RFC 6901, and never empty; tool names are not empty, and at least one is
/// there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleRule {
    /// Where one comes from.
    pub born: Born,
    /// Where it is brought back.
    pub used: Used,
    /// What the result of a call that used it says once it is over, all of it and never empty; none: no result ends
    /// it.
    pub settled: Option<Vec<Condition>>,
    /// How long it lives where the result does not say; more than zero.
    pub ttl: Duration,
}

/// `born`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Born {
    /// Tools whose results may bear one.
    pub tools: BTreeSet<String>,
    /// Where it stands in such a result.
    pub pointer: String,
    /// What else such a result must say; all of it.
    pub when: Vec<Condition>,
    /// Where such a result says how long it lives.
    pub expires: Option<String>,
}

/// `used`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Tools that take one.
    pub tools: BTreeSet<String>,
    /// Where it stands in their arguments.
    pub argument: String,
}

/// An entry of `when`: a place in a result, and the values that count there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The place.
    pub pointer: String,
    /// Any of these; never empty.
    pub any_of: Vec<Scalar>,
}

/// A value that a condition names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A truth value.
    Bool(bool),
}

/// Reads all of an upstream.
pub(crate) fn handles(upstream: &Section<'_>, problems: &mut Problems<'_>) -> Vec<HandleRule> {
    let Some(entry) = upstream.get("handle") else { return Vec::new() };
    let mut rules = Vec::new();
    let mut count = 0;
    for section in entry.sections("tables such as [[upstream.github.handle]]", problems) {
        let found = preset_or_rule(&section, problems);
        let before = count;
        // A refused one counts too, or the next run would bring a problem that could be told now.
        count += found.as_ref().map_or(1, Vec::len);
        if before <= MOST_HANDLE_RULES && count > MOST_HANDLE_RULES {
            let message = format!("more than {MOST_HANDLE_RULES} rules for one upstream");
            problems.push(section.at, &section.path, message, Some("a preset may be several".to_owned()));
        }
        rules.extend(found.unwrap_or_default());
    }
    rules
}

fn preset_or_rule(section: &Section<'_>, problems: &mut Problems<'_>) -> Option<Vec<HandleRule>> {
    section.refuse_unknown(&KEYS, problems);
    let ttl = checked(section, "ttl", DURATION, rules::ttl, problems);
    if section.get("preset").is_none() {
        return rule(section, ttl, problems).map(|rule| vec![rule]);
    }
    for stray in ["born", "used", "settled"].into_iter().filter_map(|key| section.get(key)) {
        let message = format!("`{}` is given besides `preset`", stray.key);
        stray.problem(problems, message, Some("a preset says it all; only `ttl` goes with it"));
    }
    let preset = choice(section, "preset", &presets::ALL, problems)?;
    let mut rules = preset();
    for rule in &mut rules {
        rule.ttl = ttl.unwrap_or(rule.ttl);
    }
    Some(rules)
}

fn rule(section: &Section<'_>, ttl: Option<Duration>, problems: &mut Problems<'_>) -> Option<HandleRule> {
    let born = required(section, "born", BORN_EXAMPLE, problems).and_then(|entry| born(&entry, problems));
    let used = required(section, "used", USED_EXAMPLE, problems).and_then(|entry| used(&entry, problems));
    let settled = section.get("settled").and_then(|entry| settled(&entry, problems));
    Some(HandleRule { born: born?, used: used?, settled, ttl: ttl.unwrap_or(DEFAULT_TTL) })
}

fn required<'d>(
    section: &Section<'d>,
    key: &'d str,
    example: &str,
    problems: &mut Problems<'_>,
) -> Option<Entry<'d>> {
    let entry = section.get(key);
    if entry.is_none() {
        problems.push(section.at, &section.path, format!("`{key}` is missing"), Some(example.to_owned()));
    }
    entry
}

fn born(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<Born> {
    let section = entry.section(&format!("a table: {BORN_EXAMPLE}"), problems)?;
    section.refuse_unknown(&BORN_KEYS, problems);
    let tools = tools(&section, problems);
    let pointer = required(&section, "pointer", "pointer = \"/structuredContent/executionId\"", problems)
        .and_then(|entry| pointer(&entry, problems));
    let when = section.get("when").map_or_else(|| Some(Vec::new()), |entry| conditions(&entry, problems));
    let expires = section.get("expires").and_then(|entry| self::pointer(&entry, problems));
    Some(Born { tools: tools?, pointer: pointer?, when: when?, expires })
}

fn used(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<Used> {
    let section = entry.section(&format!("a table: {USED_EXAMPLE}"), problems)?;
    section.refuse_unknown(&USED_KEYS, problems);
    let tools = tools(&section, problems);
    let argument = required(&section, "argument", "argument = \"/executionId\"", problems)
        .and_then(|entry| pointer(&entry, problems));
    Some(Used { tools: tools?, argument: argument? })
}

fn settled(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<Vec<Condition>> {
    let section = entry.section(&format!("a table: {SETTLED_EXAMPLE}"), problems)?;
    section.refuse_unknown(&SETTLED_KEYS, problems);
    let when = required(&section, "when", SETTLED_EXAMPLE, problems)?;
    conditions(&when, problems)
}

fn tools(section: &Section<'_>, problems: &mut Problems<'_>) -> Option<BTreeSet<String>> {
    match (section.get("tool"), section.get("tools")) {
        (Some(_), None) => {
            let name = checked(section, "tool", "the name of a tool in quotes", rules::tool, problems)?;
            Some(BTreeSet::from([name]))
        }
        (None, Some(entry)) => {
            let names = entry.strings("an array of names of tools", problems)?;
            if names.is_empty() {
                entry.problem(problems, "no tool is named", None);
                return None;
            }
            names.iter().map(|name| accept(&entry, rules::tool(name), problems)).collect()
        }
        (Some(_), Some(entry)) => {
            entry.problem(problems, "`tools` is given besides `tool`", Some("one of the two"));
            None
        }
        (None, None) => {
            problems.push(
                section.at,
                &section.path,
                "no tool is named",
                Some("`tool` or `tools`".to_owned()),
            );
            None
        }
    }
}

fn pointer(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<String> {
    let text = entry.string("a JSON pointer in quotes", problems)?;
    accept(entry, rules::pointer(text), problems)
}

/// An empty table is refused: below `born` it says nothing, and below `settled` it could be read as always or as never.
fn conditions(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<Vec<Condition>> {
    let section =
        entry.section("a table: when = { \"/structuredContent/status\" = \"waiting\" }", problems)?;
    let mut conditions = Vec::new();
    let mut all_good = true;
    for entry in section.entries() {
        let pointer = accept(&entry, rules::pointer(entry.key), problems);
        let any_of = scalars(&entry, problems);
        match pointer.zip(any_of) {
            Some((pointer, any_of)) => conditions.push(Condition { pointer, any_of }),
            None => all_good = false,
        }
    }
    if all_good && conditions.is_empty() {
        entry.problem(
            problems,
            "no condition is in it",
            Some("a place and its value, such as \"/structuredContent/status\" = \"waiting\""),
        );
    }
    (all_good && !conditions.is_empty()).then_some(conditions)
}

const SCALAR: &str = "a string, an integer, `true`, `false`, or an array of these";

fn scalars(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<Vec<Scalar>> {
    let elements = entry.one_or_more(SCALAR, problems);
    let scalars: Vec<Scalar> = elements.iter().filter_map(|element| scalar(element, problems)).collect();
    (!scalars.is_empty() && scalars.len() == elements.len()).then_some(scalars)
}

fn scalar(element: &Element<'_>, problems: &mut Problems<'_>) -> Option<Scalar> {
    match element.value {
        Value::String(text) => Some(Scalar::Text(text.value().clone())),
        Value::Integer(number) => Some(Scalar::Integer(*number.value())),
        Value::Boolean(truth) => Some(Scalar::Bool(*truth.value())),
        _ => {
            element.wrong_type(SCALAR, problems);
            None
        }
    }
}
