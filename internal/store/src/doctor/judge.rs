//! The judging half: what was read in, findings out. No file, no clock, no randomness, and no check of its own where a
//! start has one.

use std::collections::BTreeMap;
use std::io;

use evermux_core::names::{Trajectory, UpstreamName};
use evermux_core::record::Record;
use evermux_core::resume::{Resume, Source, resume};

use super::calls::{Calls, judge_journals};
use super::look::{Room, Seen};
use super::{Code, Finding, Report, SessionSeen, Severity};
use crate::file::Content;
use crate::format::{parse_file_name, state_word};
use crate::key::{KEY_NAME, Key, Secret, TOKEN_NAME, is_key, is_token, judge_secret};
use crate::lock::LOCK_NAME;
use crate::quarantine::{QuarantineReason, parse_aside};
use crate::records::{self, Verdict};
use crate::witness::{self, Known};

/// What is known to be whose, from the names of record files, good or not.
pub(super) type Names = BTreeMap<Trajectory, UpstreamName>;

pub(super) fn judge(seen: Seen) -> Report {
    let mut findings = Vec::new();
    let key = seen.key_in_force();
    let key_is_read = !matches!(seen.key, Content::Unread(_));
    judge_rooms(&seen, &mut findings);
    let has_records = !seen.records.is_empty();
    judge_secrets(seen.key, seen.token, has_records, &mut findings);
    let mut known = Known::default();
    judge_witness(seen.attach, has_records, &mut known, &mut findings);
    let names = names_in(&seen.records, &seen.quarantine);
    let mut judged = Records { key, key_is_read, known, good: Vec::new() };
    for (name, content) in seen.records {
        findings.extend(judged.judge(&name, content));
    }
    let calls = judge_journals(seen.journals, &names, seen.now_ms);
    findings.extend(calls.findings.iter().cloned());
    findings.extend(seen.quarantine.iter().map(|name| aside(name)));
    findings.extend(seen.temps.into_iter().map(|name| Finding::new(Code::LeftoverTemp).at(name)));
    findings.sort_by_key(|finding| (finding.severity, finding.code));
    Report {
        daemon: calls.life,
        healthy: findings.iter().all(|finding| finding.severity == Severity::Note),
        findings,
        sessions: judged.good.into_iter().map(|(file, record)| session(file, &record, &calls)).collect(),
    }
}

fn judge_rooms(seen: &Seen, findings: &mut Vec<Finding>) {
    let placed = |code: Code, place: &str| {
        let finding = Finding::new(code);
        if place.is_empty() { finding } else { finding.at(place) }
    };
    for (place, room) in &seen.rooms {
        match room {
            Room::There(mode) if mode & 0o077 != 0 => {
                findings.push(placed(Code::StateOpen, place).saying(format!("mode {mode:04o}")));
            }
            Room::Missing | Room::There(_) => {}
            Room::Unsafe(why) => findings.push(placed(Code::StateUnsafe, place).saying(*why)),
            Room::Unread(error) => findings.push(not_read(place, error)),
        }
    }
    if let Some(why) = seen.lock {
        findings.push(Finding::new(Code::StateUnsafe).at(LOCK_NAME).saying(why));
    }
    if let Some(uid) = seen.other_owner {
        findings.push(Finding::new(Code::OtherOwner).saying(format!("uid {uid}")));
    }
}

/// Only the kind of an error: its text may hold a path.
pub(super) fn not_read(file: &str, error: &io::Error) -> Finding {
    Finding::new(Code::NotRead).at(file).saying(error.kind().to_string())
}

fn judge_secrets(key: Content, token: Content, has_records: bool, findings: &mut Vec<Finding>) {
    let mut judge = |name: &'static str, content: Content, is_good: fn(&[u8]) -> bool| {
        match judge_secret(content, is_good) {
            Ok(Secret::Good(_)) => {}
            // A start makes one, and without records nothing hangs on the old one. A token is made at its first use.
            Ok(Secret::Missing) if name == KEY_NAME && has_records => {
                findings.push(Finding::new(Code::KeyMissing).at(name));
            }
            Ok(Secret::Missing) => {}
            Ok(Secret::Damaged(why)) => {
                let reason = QuarantineReason::SecretUnusable.code();
                findings.push(Finding::new(Code::SecretDamaged).at(name).because(reason).saying(why));
            }
            Err(error) => findings.push(not_read(name, &error)),
        }
    };
    judge(KEY_NAME, key, is_key);
    judge(TOKEN_NAME, token, is_token);
}

fn judge_witness(attach: Content, has_records: bool, known: &mut Known, findings: &mut Vec<Finding>) {
    let place = format!("journal/{}", witness::NAME);
    let damaged = Finding::new(Code::WitnessDamaged).at(place.clone());
    match attach {
        Content::Text(text) => {
            // A torn last line was never reported done: it costs nothing, and is told by nobody.
            let unreadable = known.take_in(&text);
            if unreadable.lines > 0 {
                findings.push(damaged.saying(count(u64::from(unreadable.lines), "unreadable line")));
            }
        }
        Content::Missing if has_records => findings.push(Finding::new(Code::WitnessMissing).at(place)),
        Content::Missing => {}
        Content::TooLong => findings.push(damaged.saying("too long")),
        Content::Unsafe(why) => {
            findings.push(damaged.because(QuarantineReason::RecordUnsafe.code()).saying(why));
        }
        Content::Unread(error) => findings.push(not_read(&place, &error)),
    }
}

pub(super) fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn names_in(records: &[(String, Content)], quarantine: &[String]) -> Names {
    let aside = quarantine.iter().filter_map(|name| parse_aside(name)).map(|(old, _)| old);
    let all = records.iter().map(|(name, _)| name.as_str()).chain(aside);
    all.filter_map(parse_file_name).map(|(upstream, trajectory)| (trajectory, upstream)).collect()
}

struct Records {
    key: Key,
    /// Otherwise "another key" says nothing.
    key_is_read: bool,
    known: Known,
    good: Vec<(String, Record)>,
}

impl Records {
    fn judge(&mut self, name: &str, content: Content) -> Option<Finding> {
        let session = parse_file_name(name);
        let file = format!("records/{name}");
        let found = |code: Code| Finding::new(code).at(file.clone()).of(session.clone());
        match records::judge(name, content, &self.key, &self.known) {
            Verdict::Good(record) => {
                let verdict = resume((*record).clone(), Source::Disk, None);
                self.good.push((file.clone(), *record));
                match verdict {
                    Resume::Resumed(_) => None,
                    Resume::Fresh(reason) => Some(found(Code::NotResumable).because(reason)),
                }
            }
            Verdict::Newer => Some(found(Code::RecordNewer)),
            Verdict::Unread(error) => Some(found(Code::NotRead).saying(error.kind().to_string())),
            Verdict::Bad(QuarantineReason::ForeignKey, _) if !self.key_is_read => {
                Some(found(Code::NotRead).saying("its key could not be read"))
            }
            Verdict::Bad(reason, remark) => {
                Some(found(code_of(reason)).because(reason.code()).saying(remark))
            }
        }
    }
}

fn code_of(reason: QuarantineReason) -> Code {
    match reason {
        QuarantineReason::RecordUnsafe => Code::RecordUnsafe,
        QuarantineReason::RecordUnreadable | QuarantineReason::RecordDigestMismatch => Code::RecordDamaged,
        QuarantineReason::ForeignKey => Code::ForeignKey,
        QuarantineReason::StaleEpoch => Code::StaleEpoch,
        // Reasons of a running daemon, and of secrets: no reading of a record gives them.
        QuarantineReason::Poison | QuarantineReason::SecretUnusable => Code::Quarantined,
    }
}

fn aside(name: &str) -> Finding {
    let finding = Finding::new(Code::Quarantined).at(format!("quarantine/{name}"));
    let Some((old, word)) = parse_aside(name) else { return finding };
    let reason = QuarantineReason::ALL.into_iter().find(|reason| reason.code() == word);
    Finding { reason: reason.map(QuarantineReason::code), ..finding.of(parse_file_name(old)) }
}

fn session(file: String, record: &Record, calls: &Calls) -> SessionSeen {
    let (unresolved, in_flight) = calls.of(record.trajectory);
    SessionSeen {
        file,
        upstream: record.upstream.to_string(),
        trajectory: record.trajectory.to_string(),
        handshake: record.handshake.0,
        handshake_state: state_word(record.handshake_state),
        continuation: record.continuation.to_string(),
        parent: record.parent.map(|parent| parent.to_string()),
        generation: record.generation.0,
        owner: record.owner.map(|owner| owner.to_string()),
        resumable: matches!(resume(record.clone(), Source::Disk, None), Resume::Resumed(_)),
        unresolved,
        in_flight,
        created_ms: record.created_ms,
        used_ms: record.used_ms,
        ok_ms: record.ok_ms,
    }
}
