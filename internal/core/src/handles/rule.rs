//! What the config says of an upstream's handles: where one is born, used and settled.
//!
//! A handle is a value in a tool's result that a later call has to bring back to the session that made it: the id of
//! a paused execution, say, or of an agent's thread.

use std::collections::BTreeSet;
use std::time::Duration;

use mcp_wire::pointer;

/// One kind of handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleRule {
    /// Tools whose results may bear one.
    pub born_in: BTreeSet<String>,
    /// Where it stands in such a result (RFC 6901).
    pub born_at: String,
    /// What else such a result must say; all of it.
    pub born_when: Vec<Condition>,
    /// Where such a result says how long it lives: a time (RFC 3339), or Unix milliseconds.
    pub expires_at: Option<String>,
    /// How long it lives where the result does not say.
    pub ttl: Duration,
    /// Tools that take one.
    pub used_in: BTreeSet<String>,
    /// Where it stands in their arguments.
    pub used_at: String,
    /// What the result of a call that took it says once it is over; `None`: no result ends it.
    pub settled_when: Option<Vec<Condition>>,
}

/// A place in a result, and the values that count there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The place (RFC 6901).
    pub pointer: String,
    /// Any of these.
    pub any_of: Vec<Scalar>,
}

/// A value that a condition compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A truth value.
    Bool(bool),
}

impl Condition {
    pub(crate) fn holds(&self, result: &[u8]) -> bool {
        let value = pointer::at(result, &self.pointer).and_then(|raw| serde_json::from_str(raw).ok());
        value.is_some_and(|value: serde_json::Value| self.any_of.iter().any(|scalar| scalar.is(&value)))
    }
}

impl Scalar {
    fn is(&self, value: &serde_json::Value) -> bool {
        match self {
            Self::Text(text) => value.as_str() == Some(text),
            Self::Integer(number) => value.as_i64() == Some(*number),
            Self::Bool(truth) => value.as_bool() == Some(*truth),
        }
    }
}

impl HandleRule {
    /// `None`: the tool is not known, and may be any.
    pub(crate) fn is_born_in(&self, tool: Option<&str>) -> bool {
        tool.is_none_or(|tool| self.born_in.contains(tool))
    }

    pub(crate) fn is_used_in(&self, tool: Option<&str>) -> bool {
        tool.is_some_and(|tool| self.used_in.contains(tool))
    }

    /// The handle that a result bears, and until when it counts.
    pub(crate) fn born(&self, result: &[u8], wall_ms: u64) -> Option<(String, u64)> {
        if !self.born_when.iter().all(|condition| condition.holds(result)) {
            return None;
        }
        let value = value_of(pointer::at(result, &self.born_at)?)?;
        let said = self.expires_at.as_deref().and_then(|at| moment(pointer::at(result, at)?));
        let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        Some((value, said.unwrap_or_else(|| wall_ms.saturating_add(ttl))))
    }

    /// The value that a call's parameters bring.
    pub(crate) fn used(&self, params: &[u8]) -> Option<String> {
        value_of(pointer::at(params, &format!("/arguments{}", self.used_at))?)
    }

    /// The result says that what was used is over.
    pub(crate) fn settles(&self, result: &[u8]) -> bool {
        let conditions = self.settled_when.as_ref();
        conditions.is_some_and(|all| all.iter().all(|condition| condition.holds(result)))
    }
}

/// A string's content or a whole number's digits: clients are known to turn one into the other.
fn value_of(raw: &str) -> Option<String> {
    match serde_json::from_str(raw).ok()? {
        serde_json::Value::String(text) => Some(text).filter(|text| !text.is_empty()),
        serde_json::Value::Number(number) if number.is_u64() || number.is_i64() => Some(number.to_string()),
        _ => None,
    }
}

/// Unix milliseconds of a time as servers write it.
fn moment(raw: &str) -> Option<u64> {
    match serde_json::from_str(raw).ok()? {
        serde_json::Value::String(text) => {
            let at: jiff::Timestamp = text.parse().ok()?;
            u64::try_from(at.as_millisecond()).ok()
        }
        serde_json::Value::Number(number) => number.as_u64(),
        _ => None,
    }
}
