//! A call that was sent is never forgotten while its number may be repeated; the file stays small all the same.

use std::collections::BTreeMap;
use std::fs;
use std::fs::OpenOptions;

use evermux_core::names::{Digest, Handshake, LinkNonce, Seq, Trajectory, WireId};
use proptest::prelude::*;

use super::*;
use crate::journal_line::FORGET_AFTER_MS;
use crate::testing::Home;

const NOW: u64 = 1_764_000_000_000;
/// Lines before the first entry of a file: its version, and when its process began.
const HEAD: usize = 2;

fn sent(link: u128, seq: Option<u64>, wire: u64) -> JournalEntry {
    JournalEntry::Sent {
        link: LinkNonce(link),
        seq: seq.map(Seq),
        trajectory: Trajectory(7),
        handshake: Handshake(1),
        wire: WireId(wire),
        at_ms: NOW,
    }
}

fn cursor(wire: u64, text: &str) -> JournalEntry {
    JournalEntry::Cursor { trajectory: Trajectory(7), wire: WireId(wire), cursor: text.to_owned() }
}

fn settled(wire: u64) -> JournalEntry {
    JournalEntry::Settled { trajectory: Trajectory(7), wire: WireId(wire) }
}

fn acked(link: u128, seq: u64) -> JournalEntry {
    JournalEntry::Acked { link: LinkNonce(link), seq: Seq(seq) }
}

fn load(home: &Home) -> (Vec<JournalledCall>, JournalDamage) {
    CallJournal::load_previous_at(&home.reopen(), NOW).unwrap()
}

fn open(home: &Home, generation: u64) -> CallJournal {
    CallJournal::open_at(&home.reopen(), Generation(generation), NOW).unwrap()
}

fn wires(calls: &[JournalledCall]) -> Vec<u64> {
    calls.iter().map(|call| call.wire.0).collect()
}

fn log_names(home: &Home) -> Vec<String> {
    let mut names = home.state.journal().names().unwrap();
    names.retain(|name| name.starts_with("calls-"));
    names
}

#[test]
fn tells_what_was_sent_to_the_next_process() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    journal.append(&[sent(1, Some(10), 100), sent(1, Some(11), 101), sent(2, None, 102)]).unwrap();
    journal.append(&[cursor(100, "a \"b\"\n\u{e9}"), cursor(100, "later"), settled(101)]).unwrap();
    drop(journal);
    let (calls, damage) = load(&home);
    assert_eq!(damage, JournalDamage::default());
    assert_eq!(wires(&calls), [100, 101, 102]);
    assert_eq!(calls[0].cursor.as_deref(), Some("a \"b\"\n\u{e9}"));
    assert_eq!((calls[0].settled, calls[1].settled), (false, true));
    assert_eq!((calls[0].seq, calls[2].seq), (Some(Seq(10)), None));
    // The same through the next process's own file, and the old file is gone.
    let journal = open(&home, 2);
    assert_eq!(log_names(&home), ["calls-2.log"]);
    assert_eq!(load(&home).0, calls);
    drop(journal);
    assert_eq!(load(&home).0, calls);
}

#[test]
fn forgets_what_cannot_be_repeated() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    let old = JournalEntry::Sent {
        link: LinkNonce(4),
        seq: Some(Seq(1)),
        trajectory: Trajectory(7),
        handshake: Handshake(1),
        wire: WireId(5),
        at_ms: NOW - FORGET_AFTER_MS - 1,
    };
    journal
        .append(&[old, sent(1, Some(1), 1), sent(1, Some(2), 2), sent(1, None, 3), sent(2, Some(1), 4)])
        .unwrap();
    journal.append(&[acked(1, 2)]).unwrap();
    assert_eq!(wires(&load(&home).0), [2, 3, 4]);
    journal.append(&[JournalEntry::LinkEnded { link: LinkNonce(2) }, settled(3)]).unwrap();
    assert_eq!(wires(&load(&home).0), [2]);
    journal.append(&[settled(2)]).unwrap();
    assert_eq!(wires(&load(&home).0), [2], "settled, but its number may be repeated");
}

#[test]
fn when_its_process_began_stays_over_a_rotation() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    journal.append(&[sent(1, Some(1), 1)]).unwrap();
    journal.rotate(NOW + 5);
    let began = |name: &str| began_of(&fs::read(home.root().join("journal").join(name)).unwrap());
    assert_eq!(began("calls-1.log"), Some(NOW));
    drop(journal);
    drop(CallJournal::open_at(&home.reopen(), Generation(2), NOW + 9).unwrap());
    assert_eq!(began("calls-2.log"), Some(NOW + 9));
    assert_eq!(began_of(b"V 1 b9485460\n"), None);
}

/// A file that grows while it is read: what comes behind its end as it was is half a line, and no damage.
#[test]
fn a_line_that_is_being_written_is_no_damage() {
    struct Growing(Vec<&'static [u8]>);
    impl io::Read for Growing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(part) = self.0.pop() else { return Ok(0) };
            buffer[..part.len()].copy_from_slice(part);
            Ok(part.len())
        }
    }
    let mut damage = JournalDamage::default();
    let growing = Growing(vec![b"lf a line\n", b"", b"V 1 b9485460\nS ha"]);
    read_lines(BufReader::new(growing), &mut damage, |_| ()).unwrap();
    assert_eq!(damage, JournalDamage { torn_tails: 1, ..JournalDamage::default() });
}

fn answer(link: u128, seq: Option<u64>, ask: u128) -> JournalledAnswer {
    JournalledAnswer {
        link: LinkNonce(link),
        seq: seq.map(Seq),
        trajectory: Trajectory(7),
        handshake: Handshake(1),
        wire: WireId(3),
        ask: Digest(ask),
        at_ms: NOW,
    }
}

#[test]
fn an_answer_that_was_taken_is_remembered_over_kill_and_rotation() {
    let home = Home::new();
    let answers = |home: &Home| {
        let mut found = Found::default();
        found.read_all(home.reopen().journal()).unwrap();
        assert_eq!(found.damage, JournalDamage::default());
        found.fold.answers(NOW)
    };
    let (first, second, other) = (answer(1, Some(4), 1), answer(1, None, 2), answer(2, Some(1), 3));
    let old = JournalledAnswer { at_ms: NOW - FORGET_AFTER_MS - 1, ..answer(1, Some(5), 9) };
    let mut journal = open(&home, 1);
    journal.append(&[first, second, other, old].map(JournalEntry::Answered)).unwrap();
    // An acknowledged number: the ask itself may come again.
    journal.append(&[acked(1, 99), JournalEntry::Answered(first)]).unwrap();
    let mut kept = answers(&home);
    kept.sort_unstable();
    let mut expected = vec![first, second, other];
    expected.sort_unstable();
    assert_eq!(kept, expected);
    journal.rotate(NOW);
    drop(journal);
    let mut journal = open(&home, 2);
    assert_eq!(answers(&home), kept);
    journal.append(&[JournalEntry::LinkEnded { link: LinkNonce(1) }]).unwrap();
    assert_eq!(answers(&home), [other]);
}

#[test]
fn a_cut_anywhere_leaves_a_prefix() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    let entries: Vec<JournalEntry> =
        (1..=6).flat_map(|wire| [sent(1, Some(wire), wire), cursor(wire, "c"), acked(1, wire / 2)]).collect();
    journal.append(&entries).unwrap();
    drop(journal);
    let path = home.root().join("journal/calls-1.log");
    let whole = fs::read(&path).unwrap();
    for end in 0..=whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        let lines = whole[..end].iter().filter(|byte| **byte == b'\n').count();
        let mut naive = Naive::default();
        entries[..lines.saturating_sub(HEAD)].iter().for_each(|entry| naive.add(entry));
        let (calls, damage) = load(&home);
        assert_eq!(calls, naive.survivors(), "cut at {end}");
        assert_eq!(damage.broken_lines + damage.unusable_files, 0);
        assert_eq!(damage.torn_tails, u64::from(end > 0 && whole[end - 1] != b'\n'));
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    journal.append(&[sent(1, Some(1), 1)]).unwrap();
    drop(journal);
    let path = home.root().join("journal/calls-1.log");
    let whole = fs::read(&path).unwrap();
    let good = load(&home).0;
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, damaged).unwrap();
        let (calls, damage) = load(&home);
        assert!(damage != JournalDamage::default(), "bit {bit}");
        assert!(calls.is_empty() || calls == good, "bit {bit}");
    }
}

#[test]
fn goes_on_after_a_write_that_came_back_short() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    journal.append(&[sent(1, Some(1), 1)]).unwrap();
    let path = home.root().join("journal/calls-1.log");
    let mut line = Vec::new();
    write_entry(&sent(1, Some(2), 2), &mut line);
    // What a full disk leaves: a line whose last number is shorter, and reads as a number still.
    let mut other = OpenOptions::new().append(true).open(&path).unwrap();
    other.write_all(&line[..line.len() - 12]).unwrap();
    journal.torn = true;
    journal.append(&[sent(1, Some(3), 3)]).unwrap();
    let (calls, damage) = load(&home);
    assert_eq!(wires(&calls), [1, 3]);
    assert_eq!(damage, JournalDamage { broken_lines: 1, ..JournalDamage::default() });
}

#[test]
fn leaves_the_file_of_a_living_predecessor() {
    let home = Home::new();
    let mut old = open(&home, 1);
    old.append(&[sent(1, Some(1), 1)]).unwrap();
    let mut new = open(&home, 2);
    assert_eq!(log_names(&home), ["calls-1.log", "calls-2.log"]);
    old.append(&[settled(1)]).unwrap();
    assert_eq!(load(&home).0.len(), 1);
    assert!(load(&home).0[0].settled);
    // The predecessor's rotation must not lose its lock.
    old.rotate(NOW);
    new.append(&[acked(1, 2)]).unwrap();
    assert!(load(&home).0.is_empty());
    drop(new);
    let third = open(&home, 3);
    assert_eq!(log_names(&home), ["calls-1.log", "calls-3.log"]);
    drop((old, third));
    open(&home, 4);
    assert_eq!(log_names(&home), ["calls-4.log"]);
}

#[test]
fn stays_short_as_clients_acknowledge() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    journal.rotate_at = 2000;
    for wire in 1..=100 {
        journal.append(&[sent(1, Some(wire), wire), settled(wire), acked(1, wire)]).unwrap();
        if journal.rotate_at != 2000 {
            journal.rotate_at = 2000;
        }
    }
    assert!(journal.length < 2300, "{}", journal.length);
    assert_eq!(fs::metadata(home.root().join("journal/calls-1.log")).unwrap().len(), journal.length);
    assert_eq!(wires(&load(&home).0), [100]);
}

#[test]
fn a_rotation_that_fails_loses_nothing() {
    let home = Home::new();
    let mut journal = open(&home, 1);
    let path = home.root().join("journal/calls-1.log");
    journal.append(&[sent(1, Some(1), 1)]).unwrap();
    // Somebody took the name away: the rotation cannot read its own file back.
    fs::rename(&path, home.root().join("journal/aside")).unwrap();
    journal.rotate(NOW);
    fs::rename(home.root().join("journal/aside"), &path).unwrap();
    journal.append(&[sent(1, Some(2), 2)]).unwrap();
    assert_eq!(wires(&load(&home).0), [1, 2]);
}

#[test]
fn another_version_is_left_alone_and_said() {
    let home = Home::new();
    let mut text = b"V 2".to_vec();
    let check = blake3::hash(&text).to_hex();
    text.extend_from_slice(format!(" {}\n", &check[..8]).as_bytes());
    let path = home.root().join("journal/calls-9.log");
    fs::write(&path, &text).unwrap();
    let journal = open(&home, 10);
    assert_eq!(journal.damage(), JournalDamage { unusable_files: 1, ..JournalDamage::default() });
    assert_eq!(fs::read(&path).unwrap(), text);
}

#[test]
fn one_append_is_one_write() {
    // A reader between two appends sees whole lines only; with more than one write it could see half an append.
    let home = Home::new();
    let mut journal = open(&home, 1);
    let before = journal.length;
    journal.append(&[sent(1, Some(1), 1), sent(1, Some(2), 2)]).unwrap();
    let mut expected = Vec::new();
    write_entry(&sent(1, Some(1), 1), &mut expected);
    write_entry(&sent(1, Some(2), 2), &mut expected);
    assert_eq!(journal.buffer, expected);
    assert_eq!(journal.length, before + expected.len() as u64);
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&journal.file.metadata().unwrap()) & 0o7777, 0o600);
}

/// What a journal means, without files, versions and rotations.
#[derive(Default)]
struct Naive {
    calls: Vec<JournalledCall>,
}

impl Naive {
    fn add(&mut self, entry: &JournalEntry) {
        match entry.clone() {
            JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms } => {
                let (cursor, settled) = (None, false);
                self.calls.push(JournalledCall {
                    link,
                    seq,
                    trajectory,
                    handshake,
                    wire,
                    cursor,
                    settled,
                    at_ms,
                });
            }
            JournalEntry::Cursor { trajectory, wire, cursor } => {
                for call in
                    self.calls.iter_mut().filter(|call| (call.trajectory, call.wire) == (trajectory, wire))
                {
                    call.cursor = Some(call.cursor.take().unwrap_or(cursor.clone()));
                }
            }
            JournalEntry::Settled { trajectory, wire } => {
                for call in
                    self.calls.iter_mut().filter(|call| (call.trajectory, call.wire) == (trajectory, wire))
                {
                    call.settled = true;
                }
            }
            JournalEntry::Acked { link, seq } => {
                self.calls.retain(|call| call.link != link || call.seq.is_none_or(|own| own >= seq));
            }
            JournalEntry::LinkEnded { link } => self.calls.retain(|call| call.link != link),
            JournalEntry::Answered(_) => {}
        }
    }

    fn survivors(&self) -> Vec<JournalledCall> {
        let mut kept: BTreeMap<_, _> = BTreeMap::new();
        for call in &self.calls {
            let fresh = call.at_ms + FORGET_AFTER_MS >= NOW;
            if fresh && !(call.settled && call.seq.is_none()) {
                kept.insert((call.trajectory, call.handshake, call.wire), call.clone());
            }
        }
        kept.into_values().collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send {
        link: u128,
        numbered: bool,
        age_hours: u64,
    },
    Cursor {
        back: u64,
    },
    Settle {
        back: u64,
    },
    Ack {
        link: u128,
        behind: u64,
    },
    End {
        link: u128,
    },
    Rotate,
    /// The process is killed, perhaps in the middle of a line; the next one opens its own journal.
    Kill {
        torn: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u128..3, any::<bool>(), 0u64..30).prop_map(|(link, numbered, age_hours)| Step::Send { link, numbered, age_hours }),
        2 => (0u64..6).prop_map(|back| Step::Cursor { back }),
        3 => (0u64..6).prop_map(|back| Step::Settle { back }),
        2 => (0u128..3, 0u64..4).prop_map(|(link, behind)| Step::Ack { link, behind }),
        1 => (0u128..3).prop_map(|link| Step::End { link }),
        1 => Just(Step::Rotate),
        1 => (0usize..60).prop_map(|torn| Step::Kill { torn }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn folds_as_the_naive_model_under_rotation_and_kill(steps in proptest::collection::vec(step(), 1..60)) {
        let home = Home::new();
        let (mut naive, mut generation, mut wire, mut seqs) = (Naive::default(), 1, 0u64, [0u64; 3]);
        let mut journal = open(&home, generation);
        for step in steps {
            let entry = match step {
                Step::Send { link, numbered, age_hours } => {
                    wire += 1;
                    let next = &mut seqs[usize::try_from(link).unwrap()];
                    *next += 1;
                    let JournalEntry::Sent { link, seq, trajectory, handshake, wire, .. } =
                        sent(link, numbered.then_some(*next), wire) else { unreachable!() };
                    JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms: NOW - age_hours * 3_600_000 }
                }
                Step::Cursor { back } => cursor(wire.saturating_sub(back), &format!("at {back}")),
                Step::Settle { back } => settled(wire.saturating_sub(back)),
                Step::Ack { link, behind } => {
                    acked(link, (seqs[usize::try_from(link).unwrap()] + 1).saturating_sub(behind))
                }
                Step::End { link } => JournalEntry::LinkEnded { link: LinkNonce(link) },
                Step::Rotate => {
                    journal.rotate(NOW);
                    continue;
                }
                Step::Kill { torn } => {
                    drop(journal);
                    let mut line = Vec::new();
                    write_entry(&sent(0, Some(99), 999), &mut line);
                    let path = home.root().join(format!("journal/calls-{generation}.log"));
                    let mut file = OpenOptions::new().append(true).open(path).unwrap();
                    file.write_all(&line[..torn.min(line.len() - 1)]).unwrap();
                    generation += 1;
                    journal = open(&home, generation);
                    continue;
                }
            };
            journal.append(std::slice::from_ref(&entry)).unwrap();
            naive.add(&entry);
        }
        let (calls, damage) = load(&home);
        prop_assert_eq!(calls, naive.survivors());
        prop_assert_eq!(damage, JournalDamage::default());
    }
}

/// The page is what another tool is written from.
#[test]
fn worked_example_of_the_format_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planning/record-format.md");
    let page = fs::read_to_string(page).unwrap();
    let mut text = Vec::new();
    crate::journal_line::write_version(&mut text);
    write_began(NOW, &mut text);
    let end = JournalEntry::LinkEnded { link: LinkNonce(1) };
    for entry in
        [sent(1, Some(10), 100), sent(1, None, 101), cursor(100, "ev 1"), settled(100), acked(1, 11), end]
    {
        write_entry(&entry, &mut text);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(page.contains(&text), "{text}");
}

#[test]
fn what_a_process_left_becomes_its_successors() {
    let home = Home::new();
    let state = home.reopen();
    let now = |entry: JournalEntry| match entry {
        JournalEntry::Sent { link, seq, trajectory, handshake, wire, .. } => {
            JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms: unix_ms() }
        }
        other => other,
    };
    let mut old = CallJournal::open(&state, Generation(1)).unwrap();
    old.append(&[now(sent(1, Some(1), 10)), now(sent(2, Some(1), 11)), settled(10)]).unwrap();
    let mut new = CallJournal::open_beside(&state, Generation(2)).unwrap();
    // What it writes while the other one lives is its own.
    new.append(&[now(sent(3, Some(1), 12))]).unwrap();
    old.append(&[settled(11)]).unwrap();
    drop(old);
    let left = new.absorb(Generation(1));
    let seen: Vec<_> = left.calls.iter().map(|call| (call.wire.0, call.settled)).collect();
    assert_eq!((seen, left.complete), (vec![(10, true), (11, true)], true));
    assert!(!state.journal().join("calls-1.log").exists());
    drop(new);
    let all = CallJournal::load_previous(&state).unwrap();
    let seen: Vec<_> = all.iter().map(|call| (call.wire.0, call.settled)).collect();
    assert_eq!(seen, [(10, true), (11, true), (12, false)]);
    // A file that is not there proves nothing.
    let mut next = CallJournal::open_beside(&state, Generation(3)).unwrap();
    assert!(!next.absorb(Generation(9)).complete);
}

/// Calls that their own process settles or forgets must not come back from what another process copied of them.
#[test]
fn a_cold_start_beside_a_living_process_copies_nothing_of_it() {
    let home = Home::new();
    let mut old = open(&home, 1);
    old.append(&[sent(1, Some(1), 1), sent(2, Some(1), 2), sent(3, None, 3)]).unwrap();
    let new = open(&home, 2);
    assert_eq!(wires(&load(&home).0), [1, 2, 3], "they are known all the same");
    old.append(&[settled(1), acked(1, 2), settled(2), settled(3)]).unwrap();
    old.rotate(NOW);
    let (calls, _) = load(&home);
    assert_eq!(calls.iter().map(|call| (call.wire.0, call.settled)).collect::<Vec<_>>(), [(2, true)]);
    drop((old, new));
    open(&home, 3);
    let (calls, _) = load(&home);
    assert_eq!(calls.iter().map(|call| (call.wire.0, call.settled)).collect::<Vec<_>>(), [(2, true)]);
}

/// What a link says to the active process of calls that stand in a draining one's file is not lost when the active
/// one's file is shortened, or replaced by the next process's.
#[test]
fn what_links_said_elsewhere_lasts_as_long_as_the_other_file() {
    let home = Home::new();
    let mut old = open(&home, 1);
    old.append(&[sent(1, Some(1), 1), sent(2, Some(1), 2), sent(3, Some(1), 3)]).unwrap();
    let mut new = CallJournal::open_beside(&home.reopen(), Generation(2)).unwrap();
    let ended = JournalEntry::LinkEnded { link: LinkNonce(2) };
    new.append(&[acked(1, 2), ended, acked(9, 5), settled(3), settled(9)]).unwrap();
    let load = |home: &Home| {
        let (calls, _) = load(home);
        assert!(calls.iter().all(|call| call.settled), "a replay here had its answer");
        (calls, ())
    };
    assert_eq!(wires(&load(&home).0), [3]);
    new.rotate(NOW);
    assert_eq!(wires(&load(&home).0), [3], "after a rotation");
    drop(new);
    let third = open(&home, 3);
    assert_eq!(wires(&load(&home).0), [3], "after a cold start");
    let text = fs::read_to_string(home.root().join("journal/calls-3.log")).unwrap();
    assert_eq!(text.lines().count(), HEAD + 3, "nothing is kept of what is in no other file: {text}");
    drop(old);
    let mut third = third;
    let left = third.absorb_at(Generation(1), NOW);
    assert_eq!((wires(&left.calls), left.complete), (vec![3], true));
    third.rotate(NOW);
    assert_eq!(wires(&load(&home).0), [3]);
    assert_eq!(log_names(&home), ["calls-3.log"]);
}

#[test]
fn what_is_absorbed_after_a_torn_line_begins_on_its_own() {
    let home = Home::new();
    let mut old = open(&home, 1);
    old.append(&[sent(1, Some(1), 1)]).unwrap();
    let mut new = CallJournal::open_beside(&home.reopen(), Generation(2)).unwrap();
    let path = home.root().join("journal/calls-2.log");
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"S 0000").unwrap();
    new.torn = true;
    drop(old);
    assert_eq!(wires(&new.absorb_at(Generation(1), NOW).calls), [1]);
    let (calls, damage) = load(&home);
    assert_eq!(wires(&calls), [1]);
    assert_eq!(damage, JournalDamage { broken_lines: 1, ..JournalDamage::default() });
}

/// A disk that takes nothing more costs no file: what is left is still there, and another try finds it.
#[test]
fn what_cannot_be_absorbed_stays_where_it_is() {
    let home = Home::new();
    let mut old = open(&home, 1);
    old.append(&[sent(1, Some(1), 1)]).unwrap();
    drop(old);
    let mut new = CallJournal::open_beside(&home.reopen(), Generation(2)).unwrap();
    let path = home.root().join("journal/calls-2.log");
    // A descriptor that cannot be written to stands for a full disk.
    let good = std::mem::replace(&mut new.file, fs::File::open(&path).unwrap());
    assert_eq!(
        wires(&new.absorb_at(Generation(1), NOW).calls),
        [1],
        "they are known in this process at least"
    );
    assert_eq!(log_names(&home), ["calls-1.log", "calls-2.log"]);
    new.file = good;
    assert_eq!(wires(&new.absorb_at(Generation(1), NOW).calls), [1]);
    assert_eq!(log_names(&home), ["calls-2.log"]);
    assert_eq!(wires(&load(&home).0), [1]);
}
