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
