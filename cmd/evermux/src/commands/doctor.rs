//! `evermux doctor`: prints what the store's look at the state directory told. No daemon is asked, and nothing is
//! written; what is wrong is the store's to judge.

use std::path::Path;

use evermux_config::Paths;
use evermux_store::{Finding, Report, Severity, StoreError, doctor as look};
use serde_json::{Value, json};

use crate::exit;
use crate::report::{Failure, chain, data};

/// Version of the JSON form (planning/doctor.md).
const FORM: u32 = 1;
/// So much of a random name tells it from others, as in `status`.
const SHORT_NAME: usize = 12;

pub(crate) fn doctor(paths: &Paths, as_json: bool, share: bool) -> Result<u8, Failure> {
    let place = (!share).then_some(paths.state_dir.as_path());
    match look(&paths.state_dir, share) {
        Ok(report) => {
            let text = if as_json { format!("{:#}\n", to_json(&report, place)) } else { render(&report) };
            data(&text)?;
            Ok(if report.healthy { exit::DONE } else { exit::FAILED })
        }
        Err(error) => {
            let failure = unreadable(&error, place);
            if as_json {
                data(&format!("{:#}\n", error_json(&failure, place)))?;
            }
            Err(failure)
        }
    }
}

/// Where nothing is to be named, not even the path is.
fn unreadable(error: &StoreError, place: Option<&Path>) -> Failure {
    let what = match place {
        Some(_) => format!("the state directory cannot be read: {}", chain(error)),
        None => "the state directory cannot be read".to_owned(),
    };
    let failure = Failure::new(exit::UNREADABLE, what)
        .next("before the first `evermux connect` there is none; --state-dir names another");
    match place {
        Some(place) => failure.at(place.display().to_string()),
        None => failure,
    }
}

fn head(place: Option<&Path>) -> Value {
    json!({
        "report": FORM,
        "version": env!("CARGO_PKG_VERSION"),
        "state_dir": place.map(|place| place.display().to_string()),
        "shared": place.is_none(),
    })
}

fn to_json(report: &Report, place: Option<&Path>) -> Value {
    let mut whole = head(place);
    if let (Value::Object(whole), Ok(Value::Object(report))) = (&mut whole, serde_json::to_value(report)) {
        whole.extend(report);
    }
    whole
}

fn error_json(failure: &Failure, place: Option<&Path>) -> Value {
    let mut whole = head(place);
    if let Value::Object(whole) = &mut whole {
        let rest = json!({
            "daemon": null, "healthy": null, "error": failure.what, "findings": [], "sessions": [],
        });
        whole.extend(rest.as_object().cloned().unwrap_or_default());
    }
    whole
}

/// The report for people: a line each, and what it comes to.
fn render(report: &Report) -> String {
    let mut text: String = report.findings.iter().map(line).collect();
    if !text.is_empty() {
        text.push('\n');
    }
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let (findings, notes) = (report.count(Severity::Finding), report.count(Severity::Note));
    let verdict = if report.healthy { "healthy".to_owned() } else { count(findings, "finding") };
    let sessions = count(report.sessions.len(), "session");
    let notes = if notes == 0 { String::new() } else { format!(", {}", count(notes, "note")) };
    text.push_str(&format!("{verdict}{notes}; {sessions} to go on with\n"));
    text
}

fn line(finding: &Finding) -> String {
    let Finding { code, severity, means, next, .. } = finding;
    let note = if *severity == Severity::Note { "note " } else { "" };
    format!("{note}{}: {}: {means}. Next: {next}.\n", code.word(), printable(&subject(finding)))
}

fn subject(finding: &Finding) -> String {
    let mut subject = match (&finding.operation, &finding.file) {
        (Some(call), _) => {
            let upstream = finding.upstream.as_deref().unwrap_or("an unknown upstream");
            let trajectory: String =
                finding.trajectory.iter().flat_map(|name| name.chars()).take(SHORT_NAME).collect();
            let when = rfc3339(call.sent_ms).unwrap_or_default();
            format!(
                "{upstream} {trajectory}, handshake {}, request {}, sent {when}",
                call.handshake, call.request_id
            )
        }
        (None, Some(file)) => file.clone(),
        (None, None) => "the state directory".to_owned(),
    };
    let why: Vec<&str> = finding.reason.iter().copied().chain(finding.detail.as_deref()).collect();
    if !why.is_empty() {
        subject.push_str(&format!(" ({})", why.join("; ")));
    }
    subject
}

/// Names of files are anybody's; what is not text stays visible and harmless.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn rfc3339(ms: u64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(format!("{time:.0}"))
}

#[cfg(test)]
mod tests {
    use evermux_store::{Code, Life, Operation};

    use super::*;

    fn finding(code: Code, file: Option<&str>) -> Finding {
        Finding {
            code,
            severity: code.severity(),
            file: file.map(str::to_owned),
            upstream: Some("docs".to_owned()),
            trajectory: Some("0123456789abcdef0123456789abcdef".to_owned()),
            reason: None,
            detail: None,
            operation: None,
            means: code.means(),
            next: code.next(),
        }
    }

    #[test]
    fn says_what_and_what_next_a_line_each() {
        let call = Operation {
            link: "00".to_owned(),
            seq: Some(1),
            handshake: 2,
            request_id: 70,
            sent_ms: 1_764_000_000_000,
            replayable: false,
        };
        let open = Finding { detail: Some("mode 0755".to_owned()), ..finding(Code::StateOpen, None) };
        let damaged = finding(Code::RecordDamaged, Some("records/\u{1b}[2J.json"));
        let damaged =
            Finding { reason: Some("record_unreadable"), detail: Some("digest".to_owned()), ..damaged };
        let unknown =
            Finding { operation: Some(call), ..finding(Code::OutcomeUnknown, Some("journal/calls-3.log")) };
        let temp = finding(Code::LeftoverTemp, Some("records/.x.tmp"));
        let findings = vec![open, damaged, unknown, temp];
        let report = Report { daemon: Life::Ended, healthy: false, findings, sessions: vec![] };
        insta::assert_snapshot!(render(&report));
        let report = Report { daemon: Life::Ended, healthy: true, findings: vec![], sessions: vec![] };
        assert_eq!(render(&report), "healthy; 0 sessions to go on with\n");
    }
}
