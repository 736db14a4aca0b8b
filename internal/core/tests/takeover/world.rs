//! Two processes, a stream each way, and what an observer of both would see.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
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
    /// What one side writes from here on makes no sense to the other.
    Garbles(bool),
    /// What was killed by the old one is dead. Between the signal and the death it may do more.
    Die,
    /// One side's deadline has come, by its own clock.
    Late(bool),
    /// One side sees that the other is dead.
    See(bool),
    /// A third process is started: it serves if the lock is free.
    Cold,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Frame {
    Hello,
    Ahead,
    Offer,
    Accept,
    Descriptors,
    Everything,
    Ready,
    Decline,
    Commit,
    Abort,
    Active,
    Garbage,
}

/// Each frame has this many bytes; a cut one is none.
const BYTES: usize = 7;

/// One direction: whole frames and the bytes of the first that have arrived.
#[derive(Debug, Clone, Default)]
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

#[derive(Debug, Clone, Default)]
struct Process {
    dead: bool,
    /// A signal is on its way that will end it.
    doomed: bool,
    /// It reads nothing more of what the other one writes.
    deaf: bool,
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

#[derive(Clone)]
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
    /// `abort` was written.
    aborted: bool,
    /// Grows whenever the old one may have changed anything: ids, sessions, links.
    state: u32,
    /// What it was when it was described, and what the new one has of it.
    described: u32,
    complete: Option<u32>,
    handed_over: bool,
    /// The new one has the locked descriptor.
    has_lock: bool,
    serves: bool,
    was_active: bool,
    /// A third process serves.
    cold: bool,
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
            aborted: false,
            state: 0,
            described: 0,
            complete: None,
            handed_over: false,
            has_lock: false,
            serves: false,
            was_active: false,
            cold: false,
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
            Op::Garbles(true) => self.to_new.write(Frame::Garbage, BYTES),
            Op::Garbles(false) => self.to_old.write(Frame::Garbage, BYTES),
            Op::Die => self.die(),
            Op::Late(true) => self.late_old(),
            Op::Late(false) => self.late_new(),
            Op::See(true) => self.old_sees_death(),
            Op::See(false) => self.new_sees_death(),
            Op::Cold => self.cold |= !self.old_holds() && !self.new_holds(),
        }
        self.check();
    }

    fn check(&self) {
        let old_serves = !self.old_is.dead && !self.frozen && !self.handed_over;
        let new_serves = self.serves && !self.new_is.dead;
        let active = usize::from(old_serves) + usize::from(new_serves) + usize::from(self.cold);
        assert!(active <= 1, "two are active");
        assert!(!old_serves || self.old_holds(), "active without the lock");
        assert!(!new_serves || self.has_lock, "active without the lock");
        // Unheard it may have been active, and then only the disk is right.
        let unsure = self.old_is.deaf && (self.new_is.dead || self.new_is.left);
        assert!(!self.handed_over || self.was_active || unsure, "the lock was let go of for nobody");
    }

    /// It holds the lock until it has handed over.
    fn old_holds(&self) -> bool {
        !self.old_is.dead && !self.handed_over
    }

    /// Descriptors that are on their way are held by nobody but the wire, for as long as there is somebody to read them.
    fn new_holds(&self) -> bool {
        let on_its_way = self.to_new.frames.iter().any(|(frame, _)| *frame == Frame::Descriptors);
        !self.new_is.dead && !self.new_is.left && (self.has_lock || on_its_way)
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

    fn late_old(&mut self) {
        if let Some(at) = self.old.deadline().filter(|_| self.old_is.runs()) {
            let (now, mut out) = (self.now.max(at), Vec::new());
            self.old.step(now, OldFact::Tick, &mut out);
            self.old_orders.extend(out);
        }
    }

    fn late_new(&mut self) {
        if let Some(at) = self.new.deadline().filter(|_| self.new_is.runs()) {
            let (now, mut out) = (self.now.max(at), Vec::new());
            self.new.step(now, NewFact::Tick, &mut out);
            self.new_orders.extend(out);
        }
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
            OldOrder::Draft => self.write_old(Frame::Ahead, None),
            OldOrder::Offer => self.write_old(Frame::Offer, None),
            OldOrder::Freeze => {
                (self.frozen, self.described) = (true, self.state);
                self.tell_old(OldFact::Handed);
            }
            OldOrder::Send if !self.send_to_new(Frame::Descriptors) => self.tell_old(OldFact::SendFailed),
            OldOrder::Send => self.write_old(Frame::Everything, Some(OldFact::Sent)),
            OldOrder::Commit => self.write_old(Frame::Commit, Some(OldFact::Committed)),
            OldOrder::Abort(_) => self.write_old(Frame::Abort, Some(OldFact::Aborted)),
            OldOrder::Kill => self.new_is.doomed = true,
            OldOrder::Resume(_) => {
                assert!(!self.was_active, "goes on where another one was active");
                assert!(!self.frozen || self.told_or_gone(), "goes on without a decision or a proof");
                (self.frozen, self.state) = (false, self.state + 1);
                self.to_new.closed = true;
            }
            OldOrder::HandOver => self.handed_over = true,
        }
    }

    fn write_old(&mut self, frame: Frame, then: Option<OldFact>) {
        let aborts = frame == Frame::Abort;
        let fact = if self.send_to_new(frame) { then } else { Some(OldFact::SendFailed) };
        self.aborted |= aborts && fact == Some(OldFact::Aborted);
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
                // Also when the old one died later: what was described is not what is.
                let (has, is) = (self.complete, Some(self.state));
                assert_eq!(has, is, "active on less than everything, or on an old description");
                (self.serves, self.was_active) = (true, true);
            }
            NewOrder::StartCold | NewOrder::GiveUp(_) => {
                (self.new_is.left, self.has_lock) = (true, false);
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
            _ if self.old_is.deaf => {}
            Frame::Garbage => {
                self.old_is.deaf = true;
                self.tell_old(OldFact::Unreadable);
            }
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
            _ if self.new_is.deaf => {}
            Frame::Garbage => {
                self.new_is.deaf = true;
                self.tell_new(NewFact::Unusable(String::new()));
            }
            Frame::Offer => self.tell_new(NewFact::Offered),
            Frame::Descriptors => self.has_lock = true,
            Frame::Everything if self.unusable => self.tell_new(NewFact::Unusable(String::new())),
            Frame::Everything => {
                self.complete = Some(self.described);
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
        (self.new_is.dead, self.has_lock) = (true, false);
        self.to_old.closed = true;
    }

    fn die(&mut self) {
        if self.new_is.doomed {
            self.kill_new();
        }
    }

    /// `abort` was written whole, or the new one is no more.
    fn told_or_gone(&self) -> bool {
        self.aborted || self.new_is.dead || self.new_is.left
    }

    fn see_death(&mut self) {
        self.old_sees_death();
        self.new_sees_death();
    }

    /// The end of a pipe proves a death; what the dead had written is read first.
    fn old_sees_death(&mut self) {
        if (self.new_is.dead || self.new_is.left) && self.old_is.runs() {
            for frame in self.to_old.all() {
                self.old_reads(&frame);
            }
            self.tell_old(OldFact::Gone);
        }
    }

    fn new_sees_death(&mut self) {
        if self.old_is.dead && self.new_is.runs() {
            for frame in self.to_new.all() {
                self.new_reads(&frame);
            }
            self.tell_new(NewFact::Gone);
        }
    }

    /// Both do what they have to, and everything arrives.
    pub(crate) fn one_step(&mut self) {
        for op in [Op::Old, Op::New, Op::ToOld(3), Op::ToNew(3), Op::Die] {
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
        let serves = self.new_serves() || self.old_goes_on() || self.cold;
        serves || !(self.old_holds() || self.new_holds())
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

    /// Whether this could happen now and change anything. A shell hears nothing before what was ordered is done.
    pub(crate) fn may(&self, op: &Op) -> bool {
        let (old, new) = (&self.old_is, &self.new_is);
        let comes = |wire: &Wire| wire.closed || !wire.frames.is_empty();
        let old_hears = old.runs() && self.old_orders.is_empty();
        let new_hears = new.runs() && self.new_orders.is_empty();
        match op {
            Op::Old => old.runs() && !self.old_orders.is_empty(),
            Op::New => new.runs() && !self.new_orders.is_empty(),
            Op::ToOld(_) => old_hears && comes(&self.to_old),
            Op::ToNew(_) => new_hears && comes(&self.to_new),
            Op::Late(true) => old_hears && self.old.deadline().is_some(),
            Op::Late(false) => new_hears && self.new.deadline().is_some(),
            Op::See(true) => old_hears && (new.dead || new.left),
            Op::See(false) => new_hears && old.dead,
            Op::Die => new.doomed && !new.dead,
            Op::Cold => !self.cold && !self.old_holds() && !self.new_holds(),
            _ => true,
        }
    }

    /// What can be told apart, without the clocks: every process has its own, and it runs as it likes.
    pub(crate) fn key(&self) -> String {
        let mut key = String::new();
        let Self { old, new, old_orders, new_orders, old_is, new_is, to_old, to_new, .. } = self;
        for machine in [format!("{old:?}"), format!("{new:?}")] {
            let (before, after) = machine.split_once(", until: ").unwrap_or_default();
            let after = after.split_once(", decided").map_or("", |(_, after)| after);
            write!(key, "{before}{after}").unwrap();
        }
        write!(key, "{old_orders:?}{new_orders:?}{old_is:?}{new_is:?}{to_old:?}{to_new:?}").unwrap();
        let Self { unsettled, unusable, frozen, aborted, state, described, complete, .. } = self;
        let Self { handed_over, has_lock, serves, was_active, cold, .. } = self;
        write!(key, "{unsettled}{unusable}{frozen}{aborted}{state}{described}{complete:?}").unwrap();
        write!(key, "{handed_over}{has_lock}{serves}{was_active}{cold}").unwrap();
        key
    }

    /// Nothing goes wrong any more, and no clock is early: it ends, whatever has come before. `good`: from these states it
    /// does, which is what makes a search affordable. `key` is this one's.
    pub(crate) fn settle(&mut self, key: String, good: &mut BTreeSet<String>) {
        let mut way = vec![key];
        while way.len() < 200 {
            if way.last().is_some_and(|key| good.contains(key)) {
                return good.extend(way);
            }
            for op in [Op::Old, Op::New, Op::ToOld(7), Op::ToNew(7), Op::Die, Op::See(true), Op::See(false)] {
                if self.may(&op) {
                    self.apply(&op);
                }
            }
            let key = self.key();
            if way.last() != Some(&key) {
                way.push(key);
            } else if self.is_over() {
                assert!(self.is_served_or_free(), "nobody serves, and the lock is held");
                return good.extend(way);
            } else {
                self.apply(&Op::Late(true));
                self.apply(&Op::Late(false));
                way.push(self.key());
            }
        }
        panic!("it does not end: {:?} {:?}", self.old, self.new);
    }

    fn is_over(&self) -> bool {
        let new_done = self.new_is.dead || self.new_is.left || self.new.is_over();
        new_done && (self.old_is.dead || self.old.is_over())
    }
}
