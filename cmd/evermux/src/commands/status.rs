//! `evermux status`: the daemon's report, as it came or as tables.
//!
//! The report is read member by member and nothing is required: a daemon of another build may say more or less.

use bytes::Bytes;
use evermux_config::Paths;
use http::Method;
use serde_json::Value;

use super::table::table;
use crate::control::{Answer, call_once};
use crate::exit;
use crate::report::{Failure, data};

pub(crate) fn status(paths: &Paths, json: bool) -> Result<u8, Failure> {
    let answer = match call_once(&paths.socket(), Method::GET, "/control/status", Bytes::new()) {
        Err(failure) if failure.exit == exit::NO_DAEMON && json => {
            data("{\"daemon\": null}\n")?;
            return Ok(exit::NO_DAEMON);
        }
        answer => answer?,
    };
    let report =
        parse(&answer).map_err(|what| Failure::failed(what).at(paths.socket().display().to_string()))?;
    if json {
        data(&format!("{report:#}\n"))?
    } else {
        data(&render(&report))?
    }
    Ok(exit::DONE)
}

fn parse(answer: &Answer) -> Result<Value, String> {
    if !answer.status.is_success() {
        return Err(format!("the daemon gives no status: {}", answer.error()));
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("the daemon's status is not JSON: {error}"))
}

/// The report for people.
pub(crate) fn render(report: &Value) -> String {
    let daemon = report.get("daemon").unwrap_or(&Value::Null);
    let mut text = format!(
        "daemon {} (pid {}, generation {}): {}\n",
        cell(daemon, "version"),
        cell(daemon, "pid"),
        cell(daemon, "generation"),
        cell(daemon, "phase"),
    );
    for old in daemon.get("draining").and_then(Value::as_array).into_iter().flatten() {
        text.push_str(&format!(
            "before it: generation {} (pid {}), ending with its calls: {} in flight\n",
            cell(old, "generation"),
            cell(old, "pid"),
            cell(old, "in_flight"),
        ));
    }
    if let Some(http) = daemon.get("http").and_then(Value::as_str) {
        text.push_str(&format!("http on {http}\n"));
    }
    if daemon.get("http_error").is_some_and(Value::is_string) {
        text.push_str(&format!("no http: {}\n", cell(daemon, "http_error")));
    }
    if daemon.get("persistence").and_then(Value::as_str) == Some("degraded") {
        text.push_str("records cannot be written: sessions would not outlive this process\n");
    }
    let rows = rows(report, "upstreams", &["name", "state", "origin", "detail"]);
    if rows.is_empty() {
        text.push_str("\nno upstreams; add one: evermux add NAME URL\n");
        return text;
    }
    text.push('\n');
    text.push_str(&table(&["UPSTREAM", "STATE", "ORIGIN", "DETAIL"], &rows));
    text.push_str(&sessions(report));
    text
}

fn sessions(report: &Value) -> String {
    let members = [
        "upstream",
        "status",
        "reason",
        "links",
        "in_flight",
        "initializes",
        "unresolved_operations",
        "trajectory",
    ];
    let mut rows = rows(report, "sessions", &members);
    if rows.is_empty() {
        return "\nno sessions\n".to_owned();
    }
    for trajectory in rows.iter_mut().filter_map(|row| row.last_mut()) {
        // Enough to tell them apart, as git does.
        *trajectory = trajectory.chars().take(12).collect();
    }
    let head =
        ["SESSION OF", "STATUS", "REASON", "LINKS", "IN FLIGHT", "INITIALIZES", "UNRESOLVED", "TRAJECTORY"];
    format!("\n{}", table(&head, &rows))
}

fn rows(report: &Value, list: &str, members: &[&str]) -> Vec<Vec<String>> {
    let items = report.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| members.iter().map(|member| cell(item, member)).collect()).collect()
}

fn cell(item: &Value, member: &str) -> String {
    match item.get(member) {
        None | Some(Value::Null) => "-".to_owned(),
        // A daemon's words are shown on a terminal; what is not text stays visible and harmless.
        Some(Value::String(text)) => {
            text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
        }
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_upstreams_and_sessions() {
        let report = json!({
            "daemon": {"pid": 41, "version": "0.1.0", "generation": 3, "phase": "serving", "http": "127.0.0.1:7433"},
            "upstreams": [
                {"name": "github", "origin": "https://api.example.com", "state": "ready", "detail": null},
                {"name": "docs", "origin": "https://docs.example.com", "state": "backoff", "detail": "connection refused"},
            ],
            "sessions": [{
                "upstream": "github", "trajectory": "0123456789abcdef0123456789abcdef", "handshake": 1, "status": "resumed",
                "reason": null, "links": 2, "in_flight": 1, "initializes": 0, "unresolved_operations": 0,
            }],
        });
        insta::assert_snapshot!(render(&report));
    }

    #[test]
    fn shows_processes_that_handed_over_and_still_run() {
        let draining = json!([{"generation": 2, "pid": 40, "in_flight": 3}, {"generation": 3, "pid": 41, "in_flight": 1}]);
        let daemon =
            json!({"pid": 42, "version": "0.2.0", "generation": 4, "phase": "serving", "draining": draining});
        let text = render(&json!({ "daemon": daemon }));
        let told: Vec<&str> = text.lines().take(3).collect();
        assert_eq!(
            told,
            [
                "daemon 0.2.0 (pid 42, generation 4): serving",
                "before it: generation 2 (pid 40), ending with its calls: 3 in flight",
                "before it: generation 3 (pid 41), ending with its calls: 1 in flight",
            ]
        );
    }

    #[test]
    fn shows_a_daemon_without_anything() {
        let report = json!({"daemon": {"pid": 1, "version": "0.1.0", "generation": 1, "phase": "starting"}});
        insta::assert_snapshot!(render(&report));
    }
}
