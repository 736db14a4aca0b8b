//! The goals, in one place: what is held to what.

use clap::ValueEnum;
use serde::Serialize;

use self::Bound::{AtLeast, AtMost};

/// A part of the measurement that can be asked for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// Latency, throughput and CPU of calls, as ratios to the limits
    Calls,
    /// Results of 1 MiB: throughput, and what the daemon needs meanwhile
    Large,
    /// From the spawn of a shim to its first result
    Start,
    /// Memory of idle links and of shims, and whether load lets it grow
    Memory,
    /// Wake-ups of a daemon whose clients say nothing
    Idle,
    /// Connections to the upstream
    Connections,
    /// Start with many recorded sessions
    Cold,
    /// Throughput with more and more links on one session
    Growth,
}

/// What a figure must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    pub(crate) fn is_kept_by(self, figure: f64) -> bool {
        match self {
            AtMost(most) => figure <= most,
            AtLeast(least) => figure >= least,
        }
    }
}

/// A line of the table. Without a bound it is there to explain another.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) part: Part,
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    /// Stands behind the number.
    pub(crate) unit: &'static str,
    pub(crate) bound: Option<Bound>,
}

const fn goal(
    part: Part,
    id: &'static str,
    what: &'static str,
    unit: &'static str,
    bound: Option<Bound>,
) -> Goal {
    Goal { part, id, what, unit, bound }
}

/// `×` is a ratio to the limit of the same round, `MB` and `kB` are powers of ten (the stricter reading), `KiB` is
/// 1 024 bytes.
pub(crate) const GOALS: &[Goal] = &[
    goal(Part::Calls, "calls.p50", "p50 of calls", "×", Some(AtMost(1.6))),
    goal(Part::Calls, "calls.p99", "p99 of calls", "×", Some(AtMost(2.0))),
    goal(Part::Calls, "calls.rate", "calls per second", "×", Some(AtLeast(0.6))),
    goal(Part::Calls, "calls.cpu", "CPU per call", "×", Some(AtMost(2.0))),
    goal(Part::Calls, "calls.shim_p50", "p50 of calls", "×", Some(AtMost(1.8))),
    goal(Part::Calls, "calls.shim_p99", "p99 of calls", "×", Some(AtMost(2.2))),
    goal(Part::Calls, "calls.shim_rate", "calls per second", "×", Some(AtLeast(0.55))),
    goal(Part::Calls, "calls.shim_cpu", "CPU per call", "×", None),
    goal(Part::Large, "large.rate", "1 MiB results per second", "×", Some(AtLeast(0.8))),
    goal(Part::Large, "large.memory", "extra memory, one at a time", "results", Some(AtMost(4.0))),
    goal(Part::Large, "large.memory_each", "extra memory per client", "results", None),
    goal(Part::Start, "start.running", "spawn to first result, daemon running", "×", Some(AtMost(1.5))),
    goal(Part::Start, "start.cold", "spawn to first result, no daemon", "×", Some(AtMost(3.0))),
    goal(Part::Start, "start.ms", "spawn to first result", "ms", None),
    goal(Part::Memory, "memory.shim", "each shim beyond the first (Pss)", "MB", Some(AtMost(1.0))),
    goal(Part::Memory, "memory.few", "daemon with few idle links (Pss)", "MB", Some(AtMost(15.0))),
    goal(Part::Memory, "memory.many", "daemon with many idle links (Pss)", "MB", Some(AtMost(40.0))),
    goal(
        Part::Memory,
        "memory.flat",
        "under load: last quarter ÷ second quarter (Pss)",
        "×",
        Some(AtMost(1.05)),
    ),
    goal(Part::Memory, "memory.slope", "under load: growth in the second half", "kB/min", None),
    goal(
        Part::Idle,
        "idle.wakeups",
        "wake-ups with silent links, keep-alives taken off",
        "",
        Some(AtMost(0.0)),
    ),
    goal(Part::Idle, "idle.shim", "wake-ups of a silent shim", "", None),
    goal(
        Part::Connections,
        "connections.turns",
        "most upstream connections at once, clients call in turn",
        "",
        Some(AtMost(4.0)),
    ),
    goal(
        Part::Connections,
        "connections.busy",
        "most upstream connections at once, clients call at once",
        "",
        // Fewer than clients; HTTP/1.1 has no call share a connection with one that waits.
        Some(AtMost(49.0)),
    ),
    goal(Part::Connections, "connections.made", "upstream connections made meanwhile", "", None),
    goal(Part::Connections, "connections.relay", "most at once through the relay", "", None),
    goal(
        Part::Connections,
        "connections.http2",
        "most upstream connections at once over HTTP/2, clients call at once",
        "",
        Some(AtMost(1.0)),
    ),
    goal(Part::Cold, "cold.serving", "from the start to a result, with records", "ms", Some(AtMost(300.0))),
    goal(Part::Cold, "cold.session", "resident per dormant session (Pss)", "KiB", Some(AtMost(8.0))),
    goal(Part::Cold, "cold.empty", "from the start to a result, no record", "ms", None),
    goal(Part::Growth, "growth.idle", "calls/s, few of the links call", "×", Some(AtLeast(0.8))),
    goal(Part::Growth, "growth.all", "calls/s, all links call", "×", Some(AtLeast(0.8))),
    goal(Part::Growth, "growth.relay", "the same through the relay", "×", None),
    goal(Part::Growth, "growth.rate", "calls/s", "/s", None),
];

/// The line with this name.
pub(crate) fn find(id: &str) -> Option<&'static Goal> {
    GOALS.iter().find(|goal| goal.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_bound_and_every_name_is_its_own() {
        for part in Part::value_variants() {
            assert!(GOALS.iter().any(|goal| goal.part == *part && goal.bound.is_some()), "{part:?}");
        }
        for goal in GOALS {
            assert_eq!(GOALS.iter().filter(|other| other.id == goal.id).count(), 1, "{}", goal.id);
        }
    }

    #[test]
    fn a_bound_is_kept_by_its_own_value() {
        assert!(AtMost(2.0).is_kept_by(2.0) && !AtMost(2.0).is_kept_by(2.1));
        assert!(AtLeast(0.6).is_kept_by(0.6) && !AtLeast(0.6).is_kept_by(0.5));
        assert!(!AtMost(2.0).is_kept_by(f64::NAN) && !AtLeast(0.0).is_kept_by(f64::NAN));
    }
}
