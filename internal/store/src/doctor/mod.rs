//! Looking at a state directory without touching it: the judgement of a cold start, and nothing moved, made, swept,
//! locked or sent.
//!
//! Three parts: `look` reads and judges nothing, `judge` is a pure function over what was read (with the very checks
//! that a start uses), `share` takes the names out of a report. What a live daemon does meanwhile is met by looking
//! again, not by its locks: a doctor that takes a lock can keep a daemon from starting.

mod calls;
mod code;
mod held;
mod judge;
mod look;
mod share;

use std::path::Path;
use std::time::Duration;

use evermux_core::names::{Trajectory, UpstreamName};
use serde::Serialize;

pub use self::code::{Code, Severity};
use self::judge::judge;
use self::look::look;
use crate::error::StoreError;

/// How often a directory is looked at until two looks agree, and the pause between them. A record that is being deleted
/// is refused for as long as a sync takes; that is no finding.
const LOOKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// Whether a process writes here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    /// At least one lives.
    Running,
    /// None does.
    Ended,
    /// The system does not say.
    Unknown,
}

/// A call, as its journal tells it: enough to join it with what its client and its server remember.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// Random name of the client's link.
    pub link: String,
    /// The number that the client's shim gave it.
    pub seq: Option<u64>,
    /// Which `initialize` of the session.
    pub handshake: u32,
    /// JSON-RPC id towards the server.
    pub request_id: u64,
    /// Unix milliseconds of its sending.
    pub sent_ms: u64,
    /// An event of its stream was seen: the server may still tell the answer to who asks from there.
    pub replayable: bool,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// Where, from the state directory; absent for the directory itself.
    pub file: Option<String>,
    /// Whose session, as far as it is known.
    pub upstream: Option<String>,
    /// Which session.
    pub trajectory: Option<String>,
    /// Why, as a stable word: the reason a start would put a record aside with, or did.
    pub reason: Option<&'static str>,
    /// More about it, in words of our own: never a part of a file's content or name.
    pub detail: Option<String>,
    /// The call, if it is about one.
    pub operation: Option<Operation>,
    /// What it means.
    pub means: &'static str,
    /// What to do.
    pub next: &'static str,
}

impl Finding {
    fn new(code: Code) -> Self {
        Self {
            code,
            severity: code.severity(),
            file: None,
            upstream: None,
            trajectory: None,
            reason: None,
            detail: None,
            operation: None,
            means: code.means(),
            next: code.next(),
        }
    }

    fn at(self, file: impl Into<String>) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    fn because(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }

    fn saying(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    fn of(self, session: Option<(UpstreamName, Trajectory)>) -> Self {
        let Some((upstream, trajectory)) = session else { return self };
        Self { upstream: Some(upstream.to_string()), trajectory: Some(trajectory.to_string()), ..self }
    }
}

/// A session whose record is good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionSeen {
    /// Its record, from the state directory.
    pub file: String,
    /// Whose.
    pub upstream: String,
    /// Its stable name.
    pub trajectory: String,
    /// Which `initialize`.
    pub handshake: u32,
    /// `answered` or `acknowledged`.
    pub handshake_state: &'static str,
    /// The present attach.
    pub continuation: String,
    /// The one before it.
    pub parent: Option<String>,
    /// The process that wrote it.
    pub generation: u64,
    /// The one client of a session that is not shared.
    pub owner: Option<String>,
    /// Whether the next start goes on with it, as long as config and server do not say otherwise.
    pub resumable: bool,
    /// Calls whose outcome is unknown.
    pub unresolved: usize,
    /// Calls of a process that lives.
    pub in_flight: usize,
    /// Unix milliseconds: made, last used by a client, last accepted by the server.
    pub created_ms: u64,
    /// See `created_ms`.
    pub used_ms: u64,
    /// See `created_ms`.
    pub ok_ms: u64,
}

/// What a look at the directory told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether a process writes here.
    pub daemon: Life,
    /// There is no finding. Notes may be there.
    pub healthy: bool,
    /// What was found, most severe kind first.
    pub findings: Vec<Finding>,
    /// The sessions that a start would load.
    pub sessions: Vec<SessionSeen>,
}

impl Report {
    /// How many of this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    fn is_same_as(&self, other: &Self) -> bool {
        let findings = |report: &Self| -> Vec<Finding> {
            let all = report.findings.iter();
            all.filter(|finding| finding.severity == Severity::Finding).cloned().collect()
        };
        findings(self) == findings(other)
    }
}

/// Looks at the directory and changes nothing. With `share`, names and ids in the report are replaced by keyed hashes.
///
/// # Errors
/// The directory is none, a link, or cannot be listed.
pub fn doctor(path: &Path, share: bool) -> Result<Report, StoreError> {
    let mut key = None;
    let once = || {
        let seen = look(path)?;
        key = Some(seen.key_in_force());
        let moving = seen.moving;
        Ok((judge(seen), moving))
    };
    let mut report = agreed(once, || std::thread::sleep(PAUSE))?;
    if let Some(key) = key.filter(|_| share) {
        share::hide_names(&mut report, &key);
    }
    Ok(report)
}

/// Looks until nothing is found or two looks agree, and nothing moves under them.
fn agreed(
    mut look: impl FnMut() -> Result<(Report, bool), StoreError>,
    pause: impl Fn(),
) -> Result<Report, StoreError> {
    let (mut report, mut moving) = look()?;
    for _ in 1..LOOKS {
        if report.healthy && !moving {
            break;
        }
        pause();
        let before = report;
        (report, moving) = look()?;
        if report.is_same_as(&before) && !moving {
            break;
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
