//! What the call journals leave open. A call that was sent and has no answer noted is *outcome unknown*, whatever seems
//! likely; only while the process that waits for it lives it is in flight.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use evermux_core::names::{Handshake, LinkNonce, Seq, Trajectory, WireId};
use evermux_core::record::{JournalEntry, JournalledCall};

use super::judge::{Names, count, not_read};
use super::look::JournalSeen;
use super::{Code, Finding, Life, Operation};
use crate::file::Content;
use crate::journal::{JournalDamage, began_of, read_lines};
use crate::journal_line::Fold;

pub(super) struct Calls {
    pub(super) findings: Vec<Finding>,
    pub(super) life: Life,
    /// Unresolved and in flight, by session.
    counts: BTreeMap<Trajectory, (usize, usize)>,
}

impl Calls {
    pub(super) fn of(&self, trajectory: Trajectory) -> (usize, usize) {
        self.counts.get(&trajectory).copied().unwrap_or_default()
    }
}

/// A file that tells of calls.
struct File {
    name: String,
    /// Its process lives, and calls sent since then (Unix milliseconds) are its own.
    waits_since: Option<u64>,
}

type CallKey = (Trajectory, Handshake, WireId);

#[derive(Default)]
struct Folded {
    fold: Fold,
    /// The file that told of a call last: of a copy, the copy.
    told_by: HashMap<CallKey, Rc<File>>,
}

pub(super) fn judge_journals(journals: Vec<JournalSeen>, names: &Names, now_ms: u64) -> Calls {
    let life = life_of(&journals);
    let mut folded = Folded::default();
    let mut findings: Vec<Finding> =
        journals.into_iter().flat_map(|journal| folded.take_in(journal)).collect();
    let mut counts: BTreeMap<Trajectory, (usize, usize)> = BTreeMap::new();
    let Folded { fold, told_by } = folded;
    for call in unresolved(fold, now_ms) {
        let file = told_by.get(&(call.trajectory, call.handshake, call.wire));
        let waits = file.is_some_and(|file| file.waits_since.is_some_and(|since| call.at_ms >= since));
        let (unresolved, in_flight) = counts.entry(call.trajectory).or_default();
        *(if waits { in_flight } else { unresolved }) += 1;
        findings.push(finding(&call, waits, file, names));
    }
    Calls { findings, life, counts }
}

fn life_of(journals: &[JournalSeen]) -> Life {
    if journals.iter().any(|journal| journal.held == Some(true)) {
        Life::Running
    } else if journals.iter().any(|journal| journal.held.is_none()) {
        Life::Unknown
    } else {
        Life::Ended
    }
}

/// Of a number that was sent twice only the later sending counts, as for the daemon: the first was refused.
fn unresolved(fold: Fold, now_ms: u64) -> Vec<JournalledCall> {
    let mut latest: HashMap<(LinkNonce, Seq), (u64, Handshake, WireId)> = HashMap::new();
    let open: Vec<JournalledCall> = fold.survivors(now_ms).into_iter().filter(|call| !call.settled).collect();
    let rank = |call: &JournalledCall| (call.at_ms, call.handshake, call.wire);
    for call in &open {
        if let Some(seq) = call.seq {
            let best = latest.entry((call.link, seq)).or_insert_with(|| rank(call));
            *best = rank(call).max(*best);
        }
    }
    let counts = |call: &JournalledCall| match call.seq {
        Some(seq) => latest.get(&(call.link, seq)) == Some(&rank(call)),
        None => true,
    };
    open.into_iter().filter(counts).collect()
}

fn finding(call: &JournalledCall, waits: bool, file: Option<&Rc<File>>, names: &Names) -> Finding {
    let code = if waits { Code::InFlight } else { Code::OutcomeUnknown };
    let operation = Operation {
        link: call.link.to_string(),
        seq: call.seq.map(|seq| seq.0),
        handshake: call.handshake.0,
        request_id: call.wire.0,
        sent_ms: call.at_ms,
        replayable: call.cursor.is_some(),
    };
    Finding {
        file: file.map(|file| file.name.clone()),
        upstream: names.get(&call.trajectory).map(ToString::to_string),
        trajectory: Some(call.trajectory.to_string()),
        operation: Some(operation),
        ..Finding::new(code)
    }
}

impl Folded {
    fn take_in(&mut self, journal: JournalSeen) -> Vec<Finding> {
        let JournalSeen { name, content, held } = journal;
        let name = format!("journal/{name}");
        let text = match content {
            Content::Text(text) => text,
            Content::Missing => return Vec::new(),
            Content::Unread(error) => return vec![not_read(&name, &error)],
            Content::Unsafe(why) => return vec![Finding::new(Code::JournalDamaged).at(name).saying(why)],
            Content::TooLong => return vec![Finding::new(Code::JournalDamaged).at(name).saying("too long")],
        };
        let lives = held == Some(true);
        // A build that does not note its beginning: all that its file holds may be its own.
        let waits_since = lives.then(|| began_of(&text).unwrap_or(0));
        let file = Rc::new(File { name: name.clone(), waits_since });
        let mut damage = JournalDamage::default();
        let Self { fold, told_by } = self;
        let read = read_lines(text.as_slice(), &mut damage, |entry| {
            if let JournalEntry::Sent { trajectory, handshake, wire, .. } = entry {
                told_by.insert((trajectory, handshake, wire), Rc::clone(&file));
            }
            fold.add(entry);
        });
        let mut findings = Vec::new();
        if read.is_err() {
            findings.push(Finding::new(Code::JournalVersion).at(name.clone()));
        }
        if damage.broken_lines > 0 {
            let lines = count(damage.broken_lines, "broken line");
            findings.push(Finding::new(Code::JournalDamaged).at(name.clone()).saying(lines));
        }
        // Of a live process it is a line that is being written.
        if damage.torn_tails > 0 && !lives {
            findings.push(Finding::new(Code::JournalTorn).at(name));
        }
        findings
    }
}
