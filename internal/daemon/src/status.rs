//! `status --json` (contract): the core's report as JSON. Session ids, tokens and full URLs have no way in here.

use evermux_core::names::Generation;
use evermux_core::status::{DrainReport, Report, SessionReport, UpstreamReport};
use serde_json::{Value, json};

/// What the report does not know about the process itself.
pub(crate) struct Process<'a> {
    pub(crate) generation: u64,
    pub(crate) phase: &'static str,
    /// The pid of a process that drains, if it said it.
    pub(crate) pid_of: &'a dyn Fn(Generation) -> Option<u32>,
    /// Scheme, host and port of each upstream by name.
    pub(crate) origins: &'a dyn Fn(&str) -> Option<String>,
}

pub(crate) fn to_json(report: &Report, process: &Process<'_>) -> Value {
    json!({
        "daemon": {
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "generation": process.generation,
            "phase": process.phase,
            // What listens is known where the connections come in: `show_port` says it.
            "http": null,
            "http_error": null,
            "draining": report.draining.iter().map(|one| drain(one, process)).collect::<Vec<_>>(),
            "persistence": if report.persistence_degraded { "degraded" } else { "ok" },
        },
        "upstreams": report.upstreams.iter().map(|one| upstream(one, process)).collect::<Vec<_>>(),
        "sessions": report.sessions.iter().map(session).collect::<Vec<_>>(),
    })
}

/// The TCP listener as it is: the address that was got, or why there is none although one is configured.
pub(crate) fn show_port(report: &mut Value, port: &crate::port::Standing) {
    if let Some(daemon) = report.get_mut("daemon").and_then(Value::as_object_mut) {
        daemon.insert("http".to_owned(), json!(port.address.map(|address| address.to_string())));
        daemon.insert("http_error".to_owned(), json!(port.error));
    }
}

/// A process before this one whose calls still run.
fn drain(report: &DrainReport, process: &Process<'_>) -> Value {
    let DrainReport { generation, in_flight } = *report;
    json!({"pid": (process.pid_of)(generation), "generation": generation.0, "in_flight": in_flight})
}

fn upstream(report: &UpstreamReport, process: &Process<'_>) -> Value {
    json!({
        "name": &*report.name.0,
        "origin": (process.origins)(&report.name.0),
        "state": report.state.word(),
        "detail": report.detail,
    })
}

fn session(report: &SessionReport) -> Value {
    json!({
        "upstream": &*report.upstream.0,
        "trajectory": report.trajectory.to_string(),
        "handshake": report.handshake.0,
        "continuation": report.continuation.to_string(),
        "parent": report.parent.map(|parent| parent.to_string()),
        "status": report.status.word(),
        "reason": report.reason,
        "revalidation_required": report.revalidate,
        "unresolved_operations": report.unresolved_operations,
        "handles": report.handles,
        "protocol_version": report.protocol_version,
        "links": report.links,
        "in_flight": report.in_flight,
        "initializes": report.initializes,
        "since": rfc3339(report.since_ms),
    })
}

/// A record that was put aside: a session that only a person can bring back. What it held is not believed, so nothing
/// but its name is known.
pub(crate) fn put_aside(upstream: &str, trajectory: &str, reason: &str) -> Value {
    json!({
        "upstream": upstream,
        "trajectory": trajectory,
        "handshake": null,
        "continuation": null,
        "parent": null,
        "status": "needs_manual_recovery",
        "reason": reason,
        "revalidation_required": [],
        "unresolved_operations": 0,
        "handles": 0,
        "protocol_version": null,
        "links": 0,
        "in_flight": 0,
        "initializes": 0,
        "since": null,
    })
}

pub(crate) fn rfc3339(ms: u64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(format!("{time:.0}"))
}
