//! Names for values, and whether what was found is what a case expects.

use std::collections::BTreeMap;

use serde_json::Value;

use super::form::{Keep, Subset};

/// What may be asked of a session; a word that is not here is a mistake of the case.
const SESSION_FACTS: [&str; 7] = [
    "status",
    "trajectory",
    "continuation",
    "parent",
    "handshake",
    "unresolved_operations",
    "revalidation_required",
];

/// The values that a case has given a name.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<String, Value>);

impl Names {
    /// `$name` is the value of that name, wherever it stands; everything else is itself.
    #[track_caller]
    pub(super) fn resolve(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => match text.strip_prefix('$') {
                Some(name) => self.0.get(name).unwrap_or_else(|| panic!("nothing is named ${name}")).clone(),
                None => value.clone(),
            },
            Value::Array(items) => items.iter().map(|item| self.resolve(item)).collect(),
            Value::Object(members) => Value::Object(self.resolve_all(members)),
            other => other.clone(),
        }
    }

    #[track_caller]
    pub(super) fn resolve_all(&self, members: &Subset) -> Subset {
        members.iter().map(|(name, value)| (name.clone(), self.resolve(value))).collect()
    }

    #[track_caller]
    pub(super) fn keep(&mut self, keep: &Keep, from: &Value) {
        for (name, pointer) in keep {
            let value = from.pointer(pointer).filter(|value| !value.is_null());
            let value = value.unwrap_or_else(|| panic!("{pointer} is not in {from}")).clone();
            assert_eq!(self.0.insert(name.clone(), value), None, "${name} is named twice");
        }
    }

    #[track_caller]
    pub(super) fn check_distinct(&self, values: &[Value]) {
        assert!(values.len() > 1, "one value is always distinct");
        let values: Vec<Value> = values.iter().map(|value| self.resolve(value)).collect();
        for (at, value) in values.iter().enumerate() {
            assert!(!values[..at].contains(value), "{value} twice in {values:?}");
        }
    }
}

/// Whether each member is there with its value. Also of objects further in; a list is one value.
pub(super) fn fits(found: &Value, expected: &Subset) -> bool {
    expected.iter().all(|(name, value)| match (found.get(name), value) {
        (Some(found), Value::Object(inner)) => fits(found, inner),
        (found, value) => found == Some(value),
    })
}

/// Whether a status, its sessions and what was put aside, is as it is expected; the session that fits.
pub(super) fn session(status: &Value, wanted: &Wanted) -> Result<Value, String> {
    let all = status["sessions"].as_array().cloned().unwrap_or_default();
    let (aside, live): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|session| session["status"] == "needs_manual_recovery");
    if wanted.sessions.is_some_and(|count| count != live.len()) {
        return Err(format!("{} sessions", live.len()));
    }
    let mut reasons: Vec<_> = aside.iter().filter_map(|session| session["reason"].as_str()).collect();
    reasons.sort_unstable();
    if wanted.put_aside.as_ref().is_some_and(|wanted| *wanted != reasons) {
        return Err(format!("put aside: {reasons:?}"));
    }
    let Some(facts) = &wanted.session else { return Ok(Value::Null) };
    let fitting: Vec<_> = live.iter().filter(|session| fits(session, facts)).collect();
    match fitting[..] {
        [one] => Ok(one.clone()),
        _ => Err(format!("{} sessions fit {facts:?}", fitting.len())),
    }
}

/// What a case wants of a status.
pub(super) struct Wanted {
    pub(super) session: Option<Subset>,
    pub(super) sessions: Option<usize>,
    pub(super) put_aside: Option<Vec<String>>,
}

#[track_caller]
pub(super) fn check_words(facts: &Subset) {
    for name in facts.keys() {
        assert!(SESSION_FACTS.contains(&name.as_str()), "`{name}` is no fact of a session");
    }
}
