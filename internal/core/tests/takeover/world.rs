//! Two processes, a stream each way, and what an observer of both would see.

use std::collections::VecDeque;
use std::time::Duration;

use evermux_core::takeover::predecessor::{Fact as OldFact, Order as OldOrder};
use evermux_core::takeover::successor::{Fact as NewFact, Order as NewOrder};
use evermux_core::takeover::{Predecessor, Reason, Successor};

#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// The process carries out its next order.
    Old,
    New,
    /// So many bytes arrive.
    ToOld(u8),
    ToNew(u8),
    Time(u64),
    KillOld,
    KillNew,
    StopOld,
    StopNew,
    /// Both run.
    Continue,
    /// What is provable by now is seen.
    SeeDeath,
    /// The hub cannot be prepared.
    Unsettled,
    /// What the successor gets is no good.
    Unusable,
    /// The next write of one side fails, in part or altogether.
    SendFails(bool),
}

#[derive(Debug, Clone, PartialEq)]
enum Frame {
    Hello,
    Offer,
    Accept,
    Everything,
    Ready,
    Decline,
    Commit,
    Abort,
    Active,
}

/// Each frame has this many bytes; a cut one is none.
const BYTES: usize = 7;

/// One direction: whole frames and the bytes of the first that have arrived.
#[derive(Debug, Default)]
struct Wire {
    frames: VecDeque<(Frame, usize)>,
    arrived: usize,
    closed: bool,
}

impl Wire {
    fn write(&mut self, frame: Frame, bytes: usize) {
        if !self.closed {
            self.frames.push_back((frame, bytes));
        }
    }

    /// Bytes arrive; what they complete is read.
    fn arrive(&mut self, bytes: usize) -> Vec<Frame> {
        self.arrived += bytes;
        let mut read = Vec::new();
        while let Some((_, length)) = self.frames.front() {
            if *length < BYTES || self.arrived < BYTES {
                break;
            }
            self.arrived -= BYTES;
            read.extend(self.frames.pop_front().map(|(frame, _)| frame));
        }
        self.arrived = self.arrived.min(BYTES);
        read
    }

    fn all(&mut self) -> Vec<Frame> {
        self.arrive(BYTES * (self.frames.len() + 1))
    }
}

#[derive(Debug, Default)]
struct Process {
    dead: bool,
    stopped: bool,
    /// It has ended by itself.
    left: bool,
    send_fails: bool,
}

impl Process {
    fn runs(&self) -> bool {
        !self.dead && !self.stopped && !self.left
    }
}

pub(crate) struct World {
    now: Duration,
    old: Predecessor,
    new: Successor,
    old_orders: VecDeque<OldOrder>,
    new_orders: VecDeque<NewOrder>,
    old_is: Process,
    new_is: Process,
    to_old: Wire,
    to_new: Wire,
    unsettled: bool,
    unusable: bool,
    frozen: bool,
    resumed: bool,
    handed_over: bool,
    complete: bool,
    serves: bool,
    was_active: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        let (mut out_old, mut out_new) = (Vec::new(), Vec::new());
        let new = Successor::begin(Duration::ZERO, &mut out_new);
        let old = Predecessor::begin(Duration::ZERO, &mut out_old);
        Self {
            now: Duration::ZERO,
            old,
            new,
            old_orders: out_old.into(),
            new_orders: out_new.into(),
            old_is: Process::default(),
            new_is: Process::default(),
            to_old: Wire::default(),
            to_new: Wire::default(),
            unsettled: false,
            unusable: false,
            frozen: false,
            resumed: false,
            handed_over: false,
            complete: false,
            serves: false,
            was_active: false,
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Old => self.old_acts(),
            Op::New => self.new_acts(),
            Op::ToOld(bytes) => self.reach_old(usize::from(bytes)),
            Op::ToNew(bytes) => self.reach_new(usize::from(bytes)),
            Op::Time(ms) => {
                self.now += Duration::from_millis(ms);
                self.tick();
            }
            Op::KillOld => self.kill_old(),
            Op::KillNew => self.kill_new(),
            Op::StopOld => self.old_is.stopped = true,
            Op::StopNew => self.new_is.stopped = true,
            Op::Continue => (self.old_is.stopped, self.new_is.stopped) = (false, false),
            Op::SeeDeath => self.see_death(),
            Op::Unsettled => self.unsettled = true,
            Op::Unusable => self.unusable = true,
            Op::SendFails(old) => {
                let process = if old { &mut self.old_is } else { &mut self.new_is };
                process.send_fails = true;
            }
        }
        self.check();
    }

    fn check(&self) {
        let old_serves = !self.old_is.dead && !self.frozen && !self.handed_over;
        let new_serves = self.serves && !self.new_is.dead;
        assert!(!(old_serves && new_serves), "two are active");
        assert!(!self.serves || self.complete, "active without everything");
        // Also when the old one died later: what was described is not what is.
        assert!(!(self.resumed && self.serves && !self.new_is.dead), "active on an old description");
        // The lock goes with the descriptors; whoever is active has it.
        assert!(!self.handed_over || self.was_active, "the lock was let go of for nobody");
    }

    fn tell_old(&mut self, fact: OldFact) {
        if self.old_is.runs() {
            let mut out = Vec::new();
            self.old.step(self.now, fact, &mut out);
            self.old_orders.extend(out);
        }
    }

    fn tell_new(&mut self, fact: NewFact) {
        if self.new_is.runs() {
            let mut out = Vec::new();
            self.new.step(self.now, fact, &mut out);
            self.new_orders.extend(out);
        }
    }

    fn tick(&mut self) {
        self.tell_old(OldFact::Tick);
        self.tell_new(NewFact::Tick);
    }

    /// Whether it was written. A write may fail after some bytes left, and the stream is of no more use then.
    fn send_to_new(&mut self, frame: Frame) -> bool {
        let fails = std::mem::take(&mut self.old_is.send_fails) || self.to_new.closed;
        self.to_new.write(frame, if fails { 3 } else { BYTES });
        self.to_new.closed |= fails;
        !fails
    }

    fn send_to_old(&mut self, frame: Frame) -> bool {
        let fails = std::mem::take(&mut self.new_is.send_fails) || self.to_old.closed;
        self.to_old.write(frame, if fails { 3 } else { BYTES });
        self.to_old.closed |= fails;
        !fails
    }

    fn old_acts(&mut self) {
        if !self.old_is.runs() {
            return;
        }
        let Some(order) = self.old_orders.pop_front() else { return };
        match order {
            OldOrder::Prepare if self.unsettled => {}
            OldOrder::Prepare => self.tell_old(OldFact::Prepared),
            OldOrder::Grant => self.tell_old(OldFact::Granted),
            OldOrder::Offer => self.write_old(Frame::Offer, None),
            OldOrder::Freeze => {
                self.frozen = true;
                self.tell_old(OldFact::Handed);
            }
            OldOrder::Send => self.write_old(Frame::Everything, Some(OldFact::Sent)),
            OldOrder::Commit => self.write_old(Frame::Commit, Some(OldFact::Committed)),
            OldOrder::Abort(_) => self.write_old(Frame::Abort, Some(OldFact::Aborted)),
            OldOrder::Kill => self.kill_new(),
            OldOrder::Resume(_) => {
                (self.frozen, self.resumed) = (false, true);
                self.to_new.closed = true;
            }
            OldOrder::HandOver => self.handed_over = true,
        }
    }

    fn write_old(&mut self, frame: Frame, then: Option<OldFact>) {
        let fact = if self.send_to_new(frame) { then } else { Some(OldFact::SendFailed) };
        if let Some(fact) = fact {
            self.tell_old(fact);
        }
    }

    fn new_acts(&mut self) {
        if !self.new_is.runs() {
            return;
        }
        let Some(order) = self.new_orders.pop_front() else { return };
        match order {
            NewOrder::Hello => self.write_new(Frame::Hello, None),
            NewOrder::Accept => self.write_new(Frame::Accept, None),
            NewOrder::Ready => self.write_new(Frame::Ready, Some(NewFact::ReadyWritten)),
            NewOrder::Decline(_) => drop(self.send_to_old(Frame::Decline)),
            NewOrder::Active => self.write_new(Frame::Active, Some(NewFact::ActiveWritten)),
            NewOrder::Serve { adopted } => {
                assert!(!adopted || self.old_is.dead, "adopted without a death");
                (self.serves, self.was_active) = (true, true);
            }
            NewOrder::StartCold | NewOrder::GiveUp(_) => {
                self.new_is.left = true;
                self.to_old.closed = true;
            }
        }
    }

    fn write_new(&mut self, frame: Frame, then: Option<NewFact>) {
        let active = frame == Frame::Active;
        let fact = if self.send_to_old(frame) { then } else { Some(NewFact::SendFailed) };
        // From here on it is in the stream, whatever becomes of its writer.
        self.was_active |= active && fact == Some(NewFact::ActiveWritten);
        if let Some(fact) = fact {
            self.tell_new(fact);
        }
    }

    fn reach_old(&mut self, bytes: usize) {
        if !self.old_is.runs() {
            return;
        }
        for frame in self.to_old.arrive(bytes) {
            self.old_reads(&frame);
        }
        self.old_sees_end();
    }

    fn old_reads(&mut self, frame: &Frame) {
        match frame {
            Frame::Accept => self.tell_old(OldFact::Accepted),
            Frame::Ready => self.tell_old(OldFact::Ready),
            Frame::Decline => self.tell_old(OldFact::Declined(String::new())),
            Frame::Active => self.tell_old(OldFact::Active),
            _ => {}
        }
    }

    fn old_sees_end(&mut self) {
        let over = self.to_old.frames.front().is_none_or(|(_, length)| *length < BYTES);
        if self.to_old.closed && over {
            self.tell_old(OldFact::Closed);
        }
    }

    fn reach_new(&mut self, bytes: usize) {
        if !self.new_is.runs() {
            return;
        }
        for frame in self.to_new.arrive(bytes) {
            self.new_reads(&frame);
        }
        let over = self.to_new.frames.front().is_none_or(|(_, length)| *length < BYTES);
        if self.to_new.closed && over {
            self.tell_new(NewFact::Closed);
        }
    }

    fn new_reads(&mut self, frame: &Frame) {
        match frame {
            Frame::Offer => self.tell_new(NewFact::Offered),
            Frame::Everything if self.unusable => self.tell_new(NewFact::Unusable(String::new())),
            Frame::Everything => {
                self.complete = true;
                self.tell_new(NewFact::Complete);
            }
            Frame::Commit => self.tell_new(NewFact::Commit),
            Frame::Abort => self.tell_new(NewFact::Refused(Reason::Busy)),
            _ => {}
        }
    }

    fn kill_old(&mut self) {
        self.old_is.dead = true;
        self.to_new.closed = true;
    }

    fn kill_new(&mut self) {
        self.new_is.dead = true;
        self.to_old.closed = true;
    }

    /// The end of a pipe proves a death; what the dead had written is read first.
    fn see_death(&mut self) {
        if self.new_is.dead || self.new_is.left {
            for frame in if self.old_is.runs() { self.to_old.all() } else { Vec::new() } {
                self.old_reads(&frame);
            }
            self.tell_old(OldFact::Gone);
        }
        if self.old_is.dead {
            for frame in if self.new_is.runs() { self.to_new.all() } else { Vec::new() } {
                self.new_reads(&frame);
            }
            self.tell_new(NewFact::Gone);
        }
    }

    /// Both do what they have to, and everything arrives.
    pub(crate) fn one_step(&mut self) {
        for op in [Op::Old, Op::New, Op::ToOld(3), Op::ToNew(3)] {
            self.apply(&op);
        }
    }

    /// Nothing goes wrong any more.
    pub(crate) fn finish(&mut self) {
        self.apply(&Op::Continue);
        for _ in 0..600 {
            self.one_step();
            self.apply(&Op::SeeDeath);
            if self.now < Duration::from_secs(200) && self.new_orders.is_empty() && self.old_orders.is_empty()
            {
                self.apply(&Op::Time(if self.now.is_zero() { 1 } else { 100 }));
            }
        }
        let new_done = self.new_is.dead || self.new.is_over();
        let old_done = self.old_is.dead || self.old.is_over();
        assert!(new_done && old_done, "it does not end: {:?} {:?}", self.old, self.new);
        assert!(self.is_served_or_free(), "nobody serves, and the lock is held");
    }

    pub(crate) fn is_served_or_free(&self) -> bool {
        let old_holds = !self.old_is.dead && !self.handed_over;
        let new_holds = self.serves && !self.new_is.dead;
        new_holds || !(old_holds && self.frozen)
    }

    pub(crate) fn new_serves(&self) -> bool {
        self.serves && !self.new_is.dead
    }

    pub(crate) fn new_was_active(&self) -> bool {
        self.was_active
    }

    pub(crate) fn old_has_handed_over(&self) -> bool {
        self.handed_over
    }

    pub(crate) fn old_goes_on(&self) -> bool {
        !self.old_is.dead && !self.frozen && !self.handed_over
    }
}
