//! Taking the names out of a report, so that it may be posted. Equal names stay equal, so that a reader can follow a
//! session through it; the hashes are keyed, because a plain hash of a likely name can be guessed.

use super::{Finding, Operation, Report, SessionSeen};
use crate::format::parse_file_name;
use crate::journal::generation_of;
use crate::key::{KEY_NAME, Key, TOKEN_NAME};
use crate::lock::LOCK_NAME;
use crate::quarantine::{QuarantineReason, parse_aside};
use crate::witness;

/// Enough that two names of one report hardly ever meet.
const DIGITS: usize = 12;

/// Replaces every name and id. Numbers, times and our own words stay.
pub(super) fn hide_names(report: &mut Report, key: &Key) {
    let hide = Hide { key };
    for finding in &mut report.findings {
        let Finding { file, upstream, trajectory, operation, .. } = finding;
        *file = file.take().map(|file| hide.file(&file));
        hide.optional("upstream", upstream);
        hide.optional("trajectory", trajectory);
        if let Some(Operation { link, .. }) = operation {
            *link = hide.name("link", link);
        }
    }
    for session in &mut report.sessions {
        let SessionSeen { file, upstream, trajectory, continuation, parent, owner, .. } = session;
        *file = hide.file(file);
        *upstream = hide.name("upstream", upstream);
        *trajectory = hide.name("trajectory", trajectory);
        *continuation = hide.name("continuation", continuation);
        hide.optional("continuation", parent);
        hide.optional("link", owner);
    }
}

struct Hide<'a> {
    key: &'a Key,
}

impl Hide<'_> {
    fn name(&self, kind: &str, name: &str) -> String {
        let hash = self.key.digest(&format!("store/doctor-{kind}"), name.as_bytes()).to_string();
        hash.chars().take(DIGITS).collect()
    }

    fn optional(&self, kind: &str, name: &mut Option<String>) {
        if let Some(name) = name {
            *name = self.name(kind, name);
        }
    }

    /// What a name tells of the format stays; all else is hidden.
    fn file(&self, file: &str) -> String {
        let Some((place, name)) = file.split_once('/') else {
            return if is_ours(file) { file.to_owned() } else { self.name("file", file) };
        };
        let hidden = match place {
            "records" => self.record(name),
            "quarantine" => self.aside(name),
            "journal" if name == witness::NAME => Some(name.to_owned()),
            "journal" => generation_of(name).map(|generation| format!("calls-{generation}.log")),
            _ => None,
        };
        format!("{place}/{}", hidden.unwrap_or_else(|| self.name("file", name)))
    }

    fn record(&self, name: &str) -> Option<String> {
        let (upstream, trajectory) = parse_file_name(name)?;
        let upstream = self.name("upstream", &upstream.0);
        Some(format!("{upstream}-{}.json", self.name("trajectory", &trajectory.to_string())))
    }

    fn aside(&self, name: &str) -> Option<String> {
        let (old, word) = parse_aside(name)?;
        let reason = QuarantineReason::ALL.into_iter().find(|reason| reason.code() == word)?;
        let number: u64 = name.rsplit_once('.')?.1.parse().ok()?;
        let old = if is_ours(old) { old.to_owned() } else { self.record(old)? };
        Some(format!("{old}.{reason}.{number}"))
    }
}

/// Names that every state directory has.
fn is_ours(name: &str) -> bool {
    let rooms = ["records", "quarantine", "journal", "log", "run"];
    rooms.contains(&name) || [KEY_NAME, TOKEN_NAME, LOCK_NAME, witness::NAME].contains(&name)
}
