//! The process that takes over: it is ready when it could go on, and active when that was decided: by a `commit` it has
//! read, or because its predecessor is proven to have died after it was ready and without a decision.

use std::time::Duration;

use super::Reason;
use crate::input::Mono;

/// For the offer: the predecessor settles and writes before.
const OFFERED_WITHIN: Duration = Duration::from_secs(12);
/// For everything that is handed over.
const RECEIVED_WITHIN: Duration = Duration::from_secs(3);
/// For the decision, or for the proof that there will be none.
const DECIDED_WITHIN: Duration = Duration::from_secs(10);
/// A connection that broke early is most often followed by a proof of death.
const PROVEN_WITHIN: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The predecessor refuses, or takes its offer back.
    Refused(Reason),
    /// An offer came.
    Offered,
    /// Everything came, and a core was made of it.
    Complete,
    /// What came cannot be gone on with; or the stream cannot be read on although it has not ended, so that a decision in
    /// it would be missed.
    Unusable(String),
    /// `ready` is written.
    ReadyWritten,
    /// The decision for it came.
    Commit,
    /// `active` is written. This, or [`Fact::SendFailed`], comes of the order in any case: it has no deadline here.
    ActiveWritten,
    /// Something could not be written.
    SendFailed,
    /// Nothing more can be read, and everything that was written has been.
    Closed,
    /// The predecessor is dead, and everything it had written was handed in.
    Gone,
    /// A deadline may have passed.
    Tick,
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Say what this process is.
    Hello,
    /// Take the offer.
    Accept,
    /// Say that this process could go on.
    Ready,
    /// Say that it cannot.
    Decline(String),
    /// Say that it is active now.
    Active,
    /// It is: serve. `adopted`: the predecessor is dead, and its calls with it.
    Serve {
        /// Nobody drains.
        adopted: bool,
    },
    /// Close everything that came, and start as if nobody ran before.
    StartCold,
    /// Close everything that came, and end.
    GiveUp(Reason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Greeting,
    Receiving,
    /// `ready` is being written: from here on a proven death of the predecessor makes this the daemon.
    Ready,
    Undecided,
    /// The connection ended without a decision.
    Orphan,
    /// The connection ended before `ready`.
    Lost,
    /// `active` is being written.
    Activating,
    /// It could not be: only the predecessor's death shows that nobody else is active.
    Unheard,
    Over,
}

/// One attempt.
#[derive(Debug, Clone)]
pub struct Successor {
    step: Step,
    until: Option<Mono>,
}

impl Successor {
    /// Everything slow is done, and the predecessor listens.
    pub fn begin(now: Mono, out: &mut Vec<Order>) -> Self {
        out.push(Order::Hello);
        Self { step: Step::Greeting, until: Some(now + OFFERED_WITHIN) }
    }

    /// When [`Fact::Tick`] is due.
    pub fn deadline(&self) -> Option<Mono> {
        self.until
    }

    /// It serves, or has given up.
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    /// Takes one fact in.
    pub fn step(&mut self, now: Mono, fact: Fact, out: &mut Vec<Order>) {
        match (self.step, fact) {
            (Step::Over, _) => {}
            (_, Fact::Tick) if self.until.is_some_and(|until| now >= until) => {
                self.give_up(Reason::Silent(self.step.word()), out);
            }
            // An `abort` that was read ends it, whatever this process had come to; after `commit` there is none.
            (Step::Activating | Step::Unheard, Fact::Refused(_)) => {}
            (_, Fact::Refused(reason)) => self.give_up(reason, out),
            (Step::Greeting, Fact::Offered) => {
                self.go(Step::Receiving, now + RECEIVED_WITHIN);
                out.push(Order::Accept);
            }
            (Step::Receiving, Fact::Complete) => {
                self.go(Step::Ready, now + DECIDED_WITHIN);
                out.push(Order::Ready);
            }
            (Step::Activating | Step::Unheard, Fact::Unusable(_)) => {}
            (_, Fact::Unusable(why)) => {
                out.push(Order::Decline(why.clone()));
                self.give_up(Reason::Declined(why), out);
            }
            (Step::Ready, Fact::ReadyWritten) => self.step = Step::Undecided,
            (Step::Ready | Step::Undecided, Fact::Commit) => {
                // Once `active` may be read there is no way back by the clock.
                (self.step, self.until) = (Step::Activating, None);
                out.push(Order::Active);
            }
            (Step::Activating, Fact::ActiveWritten) => self.serve(false, out),
            (Step::Activating, Fact::SendFailed) => self.go(Step::Unheard, now + DECIDED_WITHIN),
            // Everything it had written was read, and there was no decision: nobody else can be active any more.
            (Step::Ready | Step::Undecided | Step::Orphan | Step::Unheard | Step::Activating, Fact::Gone) => {
                self.serve(true, out);
            }
            (Step::Ready | Step::Undecided, Fact::Closed | Fact::SendFailed) => {
                self.go(Step::Orphan, now + DECIDED_WITHIN);
            }
            (Step::Greeting | Step::Receiving, Fact::Closed | Fact::SendFailed) => {
                self.go(Step::Lost, now + PROVEN_WITHIN);
            }
            (Step::Greeting | Step::Receiving | Step::Lost, Fact::Gone) => {
                self.over();
                out.push(Order::StartCold);
            }
            // Nothing that is said out of turn changes anything.
            _ => {}
        }
    }

    fn serve(&mut self, adopted: bool, out: &mut Vec<Order>) {
        self.over();
        out.push(Order::Serve { adopted });
    }

    fn give_up(&mut self, reason: Reason, out: &mut Vec<Order>) {
        self.over();
        out.push(Order::GiveUp(reason));
    }

    fn go(&mut self, step: Step, until: Mono) {
        (self.step, self.until) = (step, Some(until));
    }

    fn over(&mut self) {
        (self.step, self.until) = (Step::Over, None);
    }
}

impl Step {
    fn word(self) -> &'static str {
        match self {
            Self::Greeting => "waiting for the running daemon's offer",
            Self::Receiving => "waiting for what the running daemon hands over",
            Self::Ready | Self::Undecided | Self::Orphan => "waiting for the running daemon's decision",
            Self::Lost | Self::Unheard => "waiting for proof that the running daemon is gone",
            Self::Activating | Self::Over => "becoming active",
        }
    }
}
