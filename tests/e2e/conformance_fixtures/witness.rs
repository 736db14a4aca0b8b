//! What the upstream saw, as the facts that a case may ask for. The whole journal or its part behind a mark.

use std::collections::{BTreeMap, BTreeSet};

use evermux_testkit::{Entry, Upstream, Violation};

use super::form::Facts;

/// The facts that are asked for, as they are.
pub(super) fn facts(upstream: &Upstream, from: usize, asked: &Facts) -> Facts {
    let journal = upstream.journal();
    let (before, part) = journal.split_at(from);
    let count = |wanted: &dyn Fn(&Entry) -> bool| part.iter().filter(|entry| wanted(entry)).count();
    let broken = |wanted: &dyn Fn(Violation) -> bool| {
        part.iter().flat_map(|entry| &entry.violations).filter(|broken| wanted(**broken)).count()
    };
    let minted: BTreeSet<&String> = before.iter().filter_map(|entry| entry.reply_session.as_ref()).collect();
    let spoken: BTreeSet<&String> = part.iter().filter_map(|entry| entry.session.as_ref()).collect();
    let calls = |wanted: &BTreeMap<String, usize>| {
        wanted.keys().map(|tool| (tool.clone(), count(&|entry| entry.calls(tool)))).collect()
    };
    let ran = |key: &String| usize::try_from(upstream.side_effects(key)).unwrap();
    let effects =
        |wanted: &BTreeMap<String, usize>| wanted.keys().map(|key| (key.clone(), ran(key))).collect();
    Facts {
        initialize: asked.initialize.map(|_| count(&|entry| entry.is("initialize"))),
        delete: asked.delete.map(|_| count(&|entry| entry.verb == "DELETE")),
        sessions: asked.sessions.map(|_| spoken.len()),
        former_sessions: asked.former_sessions.map(|_| spoken.intersection(&minted).count()),
        credentials: asked.credentials.map(|_| credentials(&journal)),
        repeated_ids: asked.repeated_ids.map(|_| broken(&|rule| rule == Violation::RepeatedId)),
        rule_breaks: asked.rule_breaks.map(|_| broken(&|_| true)),
        calls: asked.calls.as_ref().map(calls),
        effects: asked.effects.as_ref().map(effects),
    }
}

/// How many credentials the session had that met most of them.
fn credentials(journal: &[Entry]) -> usize {
    let mut met: BTreeMap<&String, BTreeSet<&Option<String>>> = BTreeMap::new();
    for entry in journal {
        if let Some(session) = entry.session.as_ref().or(entry.reply_session.as_ref()) {
            met.entry(session).or_default().insert(&entry.auth);
        }
    }
    met.values().map(BTreeSet::len).max().unwrap_or_default()
}
