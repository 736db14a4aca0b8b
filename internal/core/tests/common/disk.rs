//! What survives a kill: records as the persist thread wrote them, and the journal as the store folds it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evermux_core::input::Ticket;
use evermux_core::names::{Handshake, Trajectory, WireId};
use evermux_core::record::{JournalEntry, JournalledAnswer, JournalledCall, Record, Sync};

#[derive(Debug, Clone)]
enum Order {
    Write(Ticket, Box<Record>),
    Delete(Trajectory),
}

#[derive(Debug, Default)]
pub struct Disk {
    records: BTreeMap<Trajectory, Record>,
    queue: VecDeque<Order>,
    pub journal: Journal,
    /// The persist thread is slow: nothing is done by itself.
    pub stuck: bool,
    /// It refuses.
    pub full: bool,
    pub writes: usize,
}

impl Disk {
    pub fn write(&mut self, ticket: Ticket, record: Record, _sync: Sync) {
        self.writes += 1;
        self.queue.push_back(Order::Write(ticket, Box::new(record)));
    }

    pub fn delete(&mut self, trajectory: Trajectory) {
        self.queue.push_back(Order::Delete(trajectory));
    }

    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    pub fn next_done(&mut self) -> Option<(Ticket, bool)> {
        if self.stuck { None } else { self.force() }
    }

    /// The oldest order is carried out.
    pub fn force(&mut self) -> Option<(Ticket, bool)> {
        loop {
            let order = self.queue.pop_front()?;
            let full = self.full;
            if let Some(done) = self.carry_out(order, full) {
                return Some(done);
            }
        }
    }

    fn carry_out(&mut self, order: Order, full: bool) -> Option<(Ticket, bool)> {
        match order {
            Order::Delete(trajectory) => {
                self.records.remove(&trajectory);
                None
            }
            Order::Write(ticket, record) => {
                if !full {
                    if let Some(old) = self.records.get(&record.trajectory) {
                        assert!(
                            old.ids_reserved_until <= record.ids_reserved_until,
                            "P3: a record takes back reserved ids"
                        );
                    }
                    self.records.insert(record.trajectory, *record);
                }
                Some((ticket, !full))
            }
        }
    }

    pub fn crash(&mut self, writes: usize) {
        for order in std::mem::take(&mut self.queue).into_iter().take(writes) {
            self.carry_out(order, false);
        }
    }

    pub fn records(&self) -> Vec<Record> {
        self.records.values().cloned().collect()
    }
}

/// The same rules as the store's.
#[derive(Debug, Default)]
pub struct Journal {
    calls: BTreeMap<(Trajectory, Handshake, WireId), JournalledCall>,
    answers: BTreeSet<JournalledAnswer>,
    /// Which process wrote what.
    writers: BTreeMap<(Trajectory, Handshake, WireId), u64>,
}

impl Journal {
    pub fn add(&mut self, writer: u64, entry: JournalEntry) {
        match entry {
            JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms } => {
                let call = JournalledCall {
                    link,
                    seq,
                    trajectory,
                    handshake,
                    wire,
                    cursor: None,
                    settled: false,
                    at_ms,
                };
                self.writers.insert((trajectory, handshake, wire), writer);
                self.calls.entry((trajectory, handshake, wire)).or_insert(call);
            }
            JournalEntry::Cursor { trajectory, wire, cursor } => {
                if let Some(call) = self.newest(trajectory, wire) {
                    call.cursor.get_or_insert(cursor);
                }
            }
            JournalEntry::Settled { trajectory, wire } => {
                if let Some(call) = self.newest(trajectory, wire) {
                    call.settled = true;
                }
            }
            JournalEntry::Acked { link, seq } => {
                self.calls.retain(|_, call| call.link != link || call.seq.is_none_or(|old| old >= seq));
            }
            JournalEntry::Answered(answer) => drop(self.answers.insert(answer)),
            JournalEntry::LinkEnded { link } => {
                self.calls.retain(|_, call| call.link != link);
                self.answers.retain(|answer| answer.link != link);
            }
        }
    }

    fn newest(&mut self, trajectory: Trajectory, wire: WireId) -> Option<&mut JournalledCall> {
        let mine = |key: &&(Trajectory, Handshake, WireId)| key.0 == trajectory && key.2 == wire;
        let key = *self.calls.keys().filter(mine).max_by_key(|key| key.1)?;
        self.calls.get_mut(&key)
    }

    pub fn answers(&self) -> Vec<JournalledAnswer> {
        self.answers.iter().copied().collect()
    }

    /// What one process left.
    pub fn left_by(&self, writer: u64) -> Vec<JournalledCall> {
        let mine = |call: &JournalledCall| {
            self.writers.get(&(call.trajectory, call.handshake, call.wire)) == Some(&writer)
        };
        self.survivors().into_iter().filter(mine).collect()
    }

    pub fn survivors(&self) -> Vec<JournalledCall> {
        self.calls.values().filter(|call| call.seq.is_some() || !call.settled).cloned().collect()
    }
}
