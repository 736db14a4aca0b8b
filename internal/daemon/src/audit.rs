//! What happened to sessions, for tools and audits: one JSON object a line in `log/events.jsonl`, append-only and bounded
//! (`events.jsonl.1`, an older file beside it). Names, states and times only: no argument, no content, no header, no session id.
//!
//! The log is for people and changes its words; these lines keep theirs (`planning/events.md`).

use std::path::Path;

use evermux_core::names::Generation;
use evermux_core::output::Note;
use evermux_core::status::Status;
use serde_json::{Value, json};

use crate::log::Rolling;
use crate::status::rfc3339;

/// The version of the lines' form; members are only ever added within one.
const VERSION: u32 = 1;

/// The file's name, in the directory of the logs.
const FILE: &str = "events.jsonl";

/// Where events are written.
pub(crate) struct Audit {
    /// `None`: the file cannot be had. The log says so once, and sessions go on.
    file: Option<Rolling>,
    generation: Generation,
    /// Lines that this process has written.
    count: u64,
}

impl Audit {
    pub(crate) fn open(dir: &Path, generation: Generation) -> Self {
        let file = Rolling::open(dir.join(FILE))
            .map_err(|error| tracing::warn!(%error, "events are not written"))
            .ok();
        Self { file, generation, count: 0 }
    }

    pub(crate) fn tell(&mut self, note: &Note, wall_ms: u64) {
        let Some(file) = &mut self.file else { return };
        let Some(mut event) = event_of(note) else { return };
        self.count += 1;
        if let Value::Object(members) = &mut event {
            members.insert("v".to_owned(), VERSION.into());
            members.insert("time".to_owned(), rfc3339(wall_ms).into());
            members.insert("generation".to_owned(), self.generation.0.into());
            members.insert("n".to_owned(), self.count.into());
        }
        // One write a line: two processes around an upgrade append to the same file.
        if let Err(error) = file.write(format!("{event}\n").as_bytes()) {
            tracing::warn!(%error, "an event was not written");
        }
    }
}

fn event_of(note: &Note) -> Option<Value> {
    Some(match note {
        Note::Attached { upstream, trajectory, handshake, continuation, parent, status, reason } => json!({
            "event": "attached",
            "upstream": &*upstream.0,
            "trajectory": trajectory.to_string(),
            "handshake": handshake.0,
            "continuation": continuation.to_string(),
            "parent": parent.map(|parent| parent.to_string()),
            "status": status.word(),
            "resume_mode": mode_of(*status),
            "reason": reason,
        }),
        Note::Lost { upstream, trajectory, symptom, age, silent } => json!({
            "event": "lost",
            "upstream": &*upstream.0,
            "trajectory": trajectory.to_string(),
            "symptom": symptom,
            "age_s": age.as_secs(),
            "silent_s": silent.map(|silent| silent.as_secs()),
        }),
        Note::Ended { upstream, trajectory, why, delete } => json!({
            "event": "ended",
            "upstream": &*upstream.0,
            "trajectory": trajectory.to_string(),
            "reason": why,
            "delete": delete.is_some(),
        }),
        Note::Leased { upstream, trajectory, lease } => json!({
            "event": "leased",
            "upstream": &*upstream.0,
            "trajectory": trajectory.to_string(),
            "lease": lease.to_string(),
        }),
        Note::Released { upstream, trajectory, lease, why, silent } => json!({
            "event": "released",
            "upstream": &*upstream.0,
            "trajectory": trajectory.to_string(),
            "lease": lease.to_string(),
            "reason": why,
            "silent_s": silent.as_secs(),
        }),
        Note::Unrouted { upstream, why } => {
            json!({ "event": "unrouted", "upstream": &*upstream.0, "reason": why })
        }
        Note::Trouble { .. } | Note::Dropped(_) => return None,
    })
}

/// Whether the upstream's session is the one from before.
fn mode_of(status: Status) -> Option<&'static str> {
    match status {
        Status::Resumed => Some("same_session"),
        Status::New | Status::Reinitialized => Some("new_session"),
        Status::Dormant | Status::NotFound | Status::VersionMismatch | Status::ResumeFailed => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evermux_core::names::{Continuation, Digest, Handshake, Trajectory};

    use super::*;

    fn notes() -> Vec<Note> {
        let (upstream, trajectory) = ("up".into(), Trajectory(0xab));
        let attached = |status, parent| Note::Attached {
            upstream: "up".into(),
            trajectory,
            handshake: Handshake(2),
            continuation: Continuation(0xcd),
            parent,
            status,
            reason: Some("404".to_owned()),
        };
        vec![
            attached(Status::New, None),
            attached(Status::Resumed, Some(Continuation(0xce))),
            attached(Status::NotFound, None),
            Note::Lost { upstream, trajectory, symptom: "404", age: Duration::from_secs(7), silent: None },
            Note::Ended { upstream: "up".into(), trajectory, why: "purged", delete: Some("taken".into()) },
            Note::Leased { upstream: "up".into(), trajectory, lease: Digest(0xef) },
            Note::Released {
                upstream: "up".into(),
                trajectory,
                lease: Digest(0xef),
                why: "ended",
                silent: Duration::from_millis(1_900),
            },
            Note::Unrouted { upstream: "up".into(), why: "owner_lost" },
            Note::Dropped("nothing of it"),
        ]
    }

    #[test]
    fn lines_are_as_the_golden_file_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut audit = Audit::open(dir.path(), Generation(3));
        for note in notes() {
            audit.tell(&note, 1_764_000_000_000);
        }
        let written = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(written, include_str!("golden/events.jsonl"));
    }

    #[test]
    fn a_file_that_cannot_be_had_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut audit = Audit::open(&dir.path().join("none"), Generation(3));
        notes().iter().for_each(|note| audit.tell(note, 0));
    }
}
