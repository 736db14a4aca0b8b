//! The running process: it offers, freezes, hands everything over, decides, and is done when its successor is active.
//!
//! It stays frozen from the moment it has described itself until it knows that the successor is active, or that it will
//! never be: because `abort` was written, or because it is dead. An unfrozen core changes, and a successor that then
//! acted on the old description would use ids twice.

use std::time::Duration;

use super::Reason;
use crate::input::Mono;

/// For what runs and cannot be handed over.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);
/// For the disk.
const GRANTED_WITHIN: Duration = Duration::from_secs(5);
/// For the answer to the offer.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(2);
/// From freeze to decision.
const FROZEN_WITHIN: Duration = Duration::from_secs(1);
/// From the decision to the sign that it was taken.
const ACTIVE_WITHIN: Duration = Duration::from_secs(2);
/// How often a process that was killed is killed again.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The hub is prepared.
    Prepared,
    /// The next generation is on disk.
    Granted,
    /// It could not be written.
    NotGranted(String),
    /// The successor takes the offer.
    Accepted,
    /// The hub is frozen, and has said what it hands over.
    Handed,
    /// Descriptors and manifest are written.
    Sent,
    /// The successor has everything, and waits for the decision.
    Ready,
    /// The successor says that it cannot go on with what it was given.
    Declined(String),
    /// `commit` is written.
    Committed,
    /// `abort` is written.
    Aborted,
    /// The successor is active.
    Active,
    /// Something could not be written, or may have been written in part.
    SendFailed,
    /// Nothing more can be read, and everything that was written has been.
    Closed,
    /// Nothing more can be read, and what the successor wrote since then never will be.
    Unreadable,
    /// The successor is dead, and everything it had written was handed in.
    Gone,
    /// A deadline may have passed.
    Tick,
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Tell the hub to prepare.
    Prepare,
    /// Grant the next generation, on disk.
    Grant,
    /// Write ahead what is large and hardly changes, so that the freeze is not for it.
    Draft,
    /// Write the offer. That it is accepted says that what was written ahead was read.
    Offer,
    /// Freeze the hub.
    Freeze,
    /// Write descriptors, manifest and its end.
    Send,
    /// Write the decision for it. What came of it: [`Fact::Committed`] or [`Fact::SendFailed`].
    Commit,
    /// Write the decision against it. What came of it: [`Fact::Aborted`] or [`Fact::SendFailed`].
    Abort(Reason),
    /// End the successor.
    Kill,
    /// The hub goes on as if nothing had happened; the takeover is over.
    Resume(Reason),
    /// The hub has handed over; the takeover is over. The successor may be dead again: the lock is let go of all the same.
    HandOver,
}

/// Where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Settling,
    Granting,
    Offered,
    Freezing,
    Sending,
    AwaitReady,
    Committing,
    AwaitActive,
    /// `abort` is being written.
    Aborting(Reason),
    /// The successor is being ended: until its death is proven it may be active.
    Fencing(Reason),
    Over,
}

/// One attempt of a successor, as the running process sees it.
#[derive(Debug, Clone)]
pub struct Predecessor {
    step: Step,
    until: Option<Mono>,
    /// `commit` may be on its way, in part or whole.
    decided: bool,
    /// An `active` that was written may be missed.
    deaf: bool,
}

impl Predecessor {
    /// A successor that may take over asks to.
    pub fn begin(now: Mono, out: &mut Vec<Order>) -> Self {
        out.push(Order::Prepare);
        Self { step: Step::Settling, until: Some(now + SETTLED_WITHIN), decided: false, deaf: false }
    }

    /// When [`Fact::Tick`] is due.
    pub fn deadline(&self) -> Option<Mono> {
        self.until
    }

    /// The takeover is decided and done with.
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    /// Takes one fact in.
    pub fn step(&mut self, now: Mono, fact: Fact, out: &mut Vec<Order>) {
        match fact {
            _ if self.step == Step::Over => {}
            Fact::Tick if self.is_late(now) => self.on_late(now, out),
            Fact::Tick => {}
            Fact::Gone => self.on_gone(out),
            Fact::SendFailed | Fact::Closed => self.on_broken(now, out),
            Fact::Unreadable => {
                self.deaf = true;
                self.on_broken(now, out);
            }
            fact => {
                // Clients wait: the freeze is not longer because nobody looked at the clock in between.
                if self.step.is_frozen() && self.is_late(now) {
                    self.on_late(now, out);
                }
                self.on_word(now, fact, out);
            }
        }
    }

    fn is_late(&self, now: Mono) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// What hub, disk and successor say when all goes well, and a refusal.
    fn on_word(&mut self, now: Mono, fact: Fact, out: &mut Vec<Order>) {
        match (&self.step, fact) {
            (Step::Settling, Fact::Prepared) => {
                self.go(Step::Granting, now + GRANTED_WITHIN);
                out.push(Order::Grant);
            }
            (Step::Granting, Fact::Granted) => {
                self.go(Step::Offered, now + ACCEPTED_WITHIN);
                out.extend([Order::Draft, Order::Offer]);
            }
            (Step::Granting, Fact::NotGranted(why)) => self.abort(now, Reason::Disk(why), out),
            (Step::Offered, Fact::Accepted) => {
                self.go(Step::Freezing, now + FROZEN_WITHIN);
                out.push(Order::Freeze);
            }
            // The deadline runs on: it is one for the whole freeze.
            (Step::Freezing, Fact::Handed) => {
                self.step = Step::Sending;
                out.push(Order::Send);
            }
            (Step::Sending, Fact::Sent) => self.step = Step::AwaitReady,
            (Step::AwaitReady, Fact::Ready) => {
                self.go(Step::Committing, now + ACTIVE_WITHIN);
                self.decided = true;
                out.push(Order::Commit);
            }
            (Step::Committing, Fact::Committed) => self.go(Step::AwaitActive, now + ACTIVE_WITHIN),
            (Step::Committing | Step::AwaitActive | Step::Fencing(_), Fact::Active) => {
                self.over();
                out.push(Order::HandOver);
            }
            // Its word is no proof; it gets the decision all the same.
            (step, Fact::Declined(why)) if step.is_open() => self.abort(now, Reason::Declined(why), out),
            (Step::Aborting(reason), Fact::Aborted) => {
                let reason = reason.clone();
                self.over();
                out.push(Order::Resume(reason));
            }
            // Nothing that is said out of turn changes anything.
            _ => {}
        }
    }

    /// It is dead, and did not say that it was active: the hub has never been anybody else's. Unless it may have said so
    /// unheard: then what the hub holds may be out of date, and the next start goes by what is on disk.
    fn on_gone(&mut self, out: &mut Vec<Order>) {
        if self.decided && self.deaf {
            self.over();
            out.push(Order::HandOver);
            return;
        }
        let reason = match &self.step {
            Step::Fencing(reason) | Step::Aborting(reason) => reason.clone(),
            _ => Reason::Died,
        };
        self.over();
        out.push(Order::Resume(reason));
    }

    fn on_broken(&mut self, now: Mono, out: &mut Vec<Order>) {
        match &self.step {
            // Whether it has read that it is over is not known.
            Step::Aborting(reason) => self.fence(now, reason.clone(), out),
            Step::Fencing(_) => {}
            step => {
                let reason = Reason::Broken(step.word());
                if step.is_decided() { self.fence(now, reason, out) } else { self.abort(now, reason, out) }
            }
        }
    }

    fn on_late(&mut self, now: Mono, out: &mut Vec<Order>) {
        match &self.step {
            Step::Settling => {
                let what = "a handshake or another change that is under way".to_owned();
                self.abort(now, Reason::Unsettled(what), out);
            }
            Step::Fencing(reason) | Step::Aborting(reason) => self.fence(now, reason.clone(), out),
            step => {
                let reason = Reason::Silent(step.word());
                if step.is_decided() { self.fence(now, reason, out) } else { self.abort(now, reason, out) }
            }
        }
    }

    /// The decision against it is written before the core goes on.
    fn abort(&mut self, now: Mono, reason: Reason, out: &mut Vec<Order>) {
        self.go(Step::Aborting(reason.clone()), now + ACTIVE_WITHIN);
        out.push(Order::Abort(reason));
    }

    fn fence(&mut self, now: Mono, reason: Reason, out: &mut Vec<Order>) {
        self.go(Step::Fencing(reason), now + KILL_AGAIN);
        out.push(Order::Kill);
    }

    fn go(&mut self, step: Step, until: Mono) {
        (self.step, self.until) = (step, Some(until));
    }

    fn over(&mut self) {
        (self.step, self.until) = (Step::Over, None);
    }
}

impl Step {
    /// Nothing is decided, neither way.
    fn is_open(&self) -> bool {
        !matches!(self, Self::Aborting(_) | Self::Over) && !self.is_decided()
    }

    /// From the freeze to the decision.
    fn is_frozen(&self) -> bool {
        matches!(self, Self::Freezing | Self::Sending | Self::AwaitReady)
    }

    /// `commit` may have been read: only its death, or that it is active, settles what is.
    fn is_decided(&self) -> bool {
        matches!(self, Self::Committing | Self::AwaitActive | Self::Fencing(_))
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Settling | Self::Granting => "before the offer",
            Self::Offered => "waiting for the offer to be taken",
            Self::Freezing | Self::Sending => "handing over",
            Self::AwaitReady => "waiting for the successor to be ready",
            Self::Committing | Self::AwaitActive => "waiting for the successor to be active",
            Self::Aborting(_) | Self::Fencing(_) | Self::Over => "ending the takeover",
        }
    }
}
