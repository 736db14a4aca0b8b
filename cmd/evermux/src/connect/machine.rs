//! Every decision of the shim, as a pure machine: facts in, orders out, no IO, no clock, no randomness.
//!
//! The shim's promise is about orders of events: each request of the client gets exactly one answer, whatever
//! daemon dies in between. It decides nothing about MCP calls. It numbers each message once (`Evermux-Seq`),
//! keeps it until it is settled, and repeats it under the same number after a cut; whether a repeated call
//! runs again is the daemon's to know. Rules by number are those of the shim's protocol (see the module head
//! of `connect`).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use mcp_wire::Id;

use super::backoff::Backoff;
use super::entry::{Entry, Kind, State};
use super::envelope::{self, Client, ErrorKind, Server};
use super::facts::{Event, Input, Now, Order, Post, Unreachable};
use crate::limits::Limits;

mod answers;
mod asked;
mod next;

/// So long is a daemon looked for before the pending requests are answered with an error, when a started daemon said by itself that it cannot run: only a rival's start can still help.
const GIVE_UP_TOLD: Duration = Duration::from_secs(3);
/// So long pending answers are waited for once stdin has ended (contract, `connect`).
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// So long the end of the link may take.
const DELETE_LIMIT: Duration = Duration::from_secs(2);
/// Client messages that no daemon has taken yet, in bytes: above it stdin waits.
const UNSENT_LIMIT: usize = 64 << 20;
/// So often one message may meet an unknown link before the refusal is passed on: twice is a key that was
/// lost twice, more is a loop.
const LOST_LIMIT: u8 = 3;

/// A standalone stream that lasted so long worked, also if it had nothing to say: its end is no failure.
const STEADY: Duration = Duration::from_secs(5);

/// What is known of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Down,
    Trying,
    Waiting { until: Now },
    Up,
}

/// The GET stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standalone {
    /// Not due yet, or not offered.
    None,
    Wanted {
        not_before: Now,
    },
    Open {
        since: Now,
    },
}

use asked::Asked;

/// How far the end has come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Serving is hopeless: the first request gets `reason`, then the shim exits with `exit`.
    Doomed {
        exit: u8,
        kind: ErrorKind,
        reason: String,
    },
    /// stdin ended.
    Closing {
        until: Now,
    },
    Deleting {
        until: Now,
    },
    Ended,
}

/// The client's session with the daemon.
#[derive(Debug, Default)]
struct Link {
    id: Option<String>,
    version: Option<String>,
    /// Counts the links, so that a late refusal of an older one is told apart.
    number: u32,
    /// The daemon does not know it.
    lost: bool,
    /// The client's own `initialize`, kept to be sent again when the link is lost.
    initialize: Option<(Id, Bytes)>,
    /// The client's own `notifications/initialized`, once taken.
    initialized: Option<Bytes>,
    /// The client has had a successful `initialize`.
    established: bool,
}

/// The shim's decisions. See the module's head.
#[derive(Debug)]
pub(crate) struct Machine {
    upstream: String,
    may_start: bool,
    /// So long is a daemon looked for before the pending requests are answered with an error.
    give_up: Duration,
    backoff: Backoff,
    phase: Phase,
    reach: Reach,
    ever_reached: bool,
    failing_since: Option<Now>,
    failures: u32,
    /// Stopped on purpose, or given up: only a message of the client wakes it (rule 3).
    parked: bool,
    /// The daemon said that it was stopped on purpose.
    stopped: bool,
    identity: Option<String>,
    link: Link,
    next_seq: u64,
    /// Every message that is not settled, by number.
    entries: BTreeMap<u64, Entry>,
    /// The message whose head is awaited: no other may overtake it.
    posting: Option<u64>,
    /// The `initialize` of ours that is to replace a lost link, and the `initialized` after it: while one of
    /// them is open, nothing else goes.
    renewing: Option<u64>,
    renewed: Option<u64>,
    /// The client's open requests.
    ids: HashMap<Id, u64>,
    /// Cost of the messages that no daemon has taken yet, in bytes.
    unsent: usize,
    /// What the client was asked. After a cut a daemon shows an ask again that it cannot know to have come through,
    /// under the same id: a person must not be asked twice.
    asked: Asked,
    standalone: Standalone,
    stream_last_event: Option<String>,
    stream_failures: u32,
    reloading: bool,
    /// The client got its first answer: its start is over.
    answered: bool,
    /// The daemon was offered to be replaced: once in a shim's life.
    offered: bool,
}

impl Machine {
    /// One that cannot serve: the client's first request is answered with `reason`.
    pub(crate) fn doomed(upstream: &str, exit: u8, kind: ErrorKind, reason: String) -> Self {
        Self { phase: Phase::Doomed { exit, kind, reason }, ..Self::new(upstream, false, 0) }
    }

    /// For one client of `upstream`; `may_start` unless `--no-start`; `seed` makes the jitter.
    pub(crate) fn new(upstream: &str, may_start: bool, seed: u64) -> Self {
        Self {
            upstream: upstream.to_owned(),
            may_start,
            give_up: Limits::NORMAL.give_up,
            backoff: Backoff::new(seed),
            phase: Phase::Serving,
            reach: Reach::Down,
            ever_reached: false,
            failing_since: None,
            failures: 0,
            parked: false,
            stopped: false,
            identity: None,
            link: Link::default(),
            next_seq: 1,
            entries: BTreeMap::new(),
            posting: None,
            renewing: None,
            renewed: None,
            ids: HashMap::new(),
            unsent: 0,
            asked: Asked::default(),
            standalone: Standalone::None,
            stream_last_event: None,
            stream_failures: 0,
            reloading: false,
            answered: false,
            offered: false,
        }
    }

    /// With another patience.
    pub(crate) fn giving_up_after(self, give_up: Duration) -> Self {
        Self { give_up, ..self }
    }

    /// Whether another line of the client may be read.
    pub(crate) fn wants_input(&self) -> bool {
        self.unsent <= UNSENT_LIMIT && matches!(self.phase, Phase::Serving | Phase::Doomed { .. })
    }

    /// Takes a fact at `now` and appends what is to be done. `now` never goes back.
    pub(crate) fn handle(&mut self, now: Now, input: Input, orders: &mut Vec<Order>) {
        if self.phase == Phase::Ended {
            return;
        }
        if let Some(seq) = input.ends_posting() {
            self.posting.take_if(|posting| *posting == seq);
        }
        match input {
            Input::Start if self.phase == Phase::Serving => self.reach(orders),
            Input::Line(line) => self.line(line, orders),
            Input::LineTooLong(error) => {
                // Under an id that is still open the answer would end the other request.
                let id = error.request_id.filter(|id| !self.ids.contains_key(id));
                orders.push(Order::Write(envelope::line_too_long(id.as_ref(), error.limit)));
            }
            Input::Eof => self.eof(now, orders),
            Input::Abandon => self.finish(now, orders),
            Input::Reached(identity) => self.reached(identity),
            Input::Unreachable(why) => self.unreachable(now, why, orders),
            Input::Head { seq, link } => self.head(seq, link),
            Input::Accepted { seq } => self.accepted(now, seq),
            Input::Event { seq, event } => self.event(seq, event, orders),
            Input::Refused { seq, status, body } => self.refused(seq, status, &body, orders),
            Input::Cut { seq } => self.cut(now, seq),
            Input::Hung { seq } => {
                // The host shows this to whoever wonders why nothing comes; the message itself is repeated.
                orders.push(Order::Say("evermux: the daemon does not answer; it is dialled anew".into()));
                self.cut(now, seq);
            }
            Input::Ended { seq } => self.ended(now, seq),
            Input::StreamEvent(event) => self.stream_event(event, orders),
            Input::StreamEnded { refused, body } => self.stream_ended(now, refused, &body),
            Input::Reloaded => self.reloading = false,
            Input::Deleted => self.exit(0, orders),
            Input::Start | Input::Tick => {}
        }
        self.pump(now, orders);
    }

    /// When [`Input::Tick`] is due, if nothing else happens.
    pub(crate) fn deadline(&self) -> Option<Now> {
        let until = match self.phase {
            Phase::Doomed { .. } | Phase::Ended => return None,
            Phase::Deleting { until } => return Some(until),
            Phase::Closing { until } => Some(until),
            Phase::Serving => None,
        };
        if self.reloading {
            return until;
        }
        let next = match self.reach {
            Reach::Waiting { until } => Some(until),
            Reach::Up => self.next_due().into_iter().chain(self.stream_due()).min(),
            Reach::Down | Reach::Trying => None,
        };
        until.into_iter().chain(next).min()
    }

    // ---- the client ----

    fn line(&mut self, line: Bytes, orders: &mut Vec<Order>) {
        let message = match envelope::client(&line) {
            Ok(message) => message,
            Err(garbage) => {
                orders.push(Order::Write(garbage.answer));
                return orders.push(Order::Say(garbage.note));
            }
        };
        if let Phase::Doomed { exit, kind, reason } = &self.phase {
            let (exit, kind, reason) = (*exit, *kind, reason.clone());
            if let Client::Request { id, .. } = message {
                orders.push(Order::Write(envelope::our_error(
                    &id,
                    kind,
                    &self.upstream,
                    "not_sent",
                    &reason,
                )));
                self.exit(exit, orders);
            }
            return;
        }
        let kind = match message {
            Client::Request { id, .. } if self.ids.contains_key(&id) => {
                return orders.push(Order::Write(envelope::duplicate_id(&id)));
            }
            Client::Request { id, initialize } => {
                self.ids.insert(id.clone(), self.next_seq);
                if initialize { Kind::Initialize(id) } else { Kind::Request(id) }
            }
            Client::Initialized => Kind::Initialized,
            Client::Cancelled(Some(id)) => Kind::Cancel(id),
            Client::Cancelled(None) | Client::Notice => Kind::Notice,
        };
        (self.parked, self.stopped) = (false, false);
        self.enqueue(kind, line);
    }

    fn enqueue(&mut self, kind: Kind, body: Bytes) {
        let seq = self.next_seq;
        self.next_seq += 1;
        match kind {
            Kind::Reinitialize(_) => self.renewing = Some(seq),
            Kind::Reinitialized => self.renewed = Some(seq),
            _ => {}
        }
        let entry = Entry::new(kind, body);
        self.unsent += entry.cost();
        self.entries.insert(seq, entry);
    }

    fn eof(&mut self, now: Now, orders: &mut Vec<Order>) {
        match self.phase {
            Phase::Serving => self.phase = Phase::Closing { until: now + LAST_ANSWERS },
            Phase::Doomed { exit, .. } => self.exit(exit, orders),
            _ => {}
        }
    }

    // ---- the daemon, found or not ----

    fn reach(&mut self, orders: &mut Vec<Order>) {
        self.reach = Reach::Trying;
        orders.push(Order::Reach { may_start: self.may_start && !self.stopped });
    }

    fn reached(&mut self, identity: Option<String>) {
        self.identity = identity;
        self.reach = Reach::Up;
        self.ever_reached = true;
        self.failing_since = None;
        self.failures = 0;
    }

    fn unreachable(&mut self, now: Now, why: Unreachable, orders: &mut Vec<Order>) {
        let since = *self.failing_since.get_or_insert(now);
        let wait = self.backoff.after(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.reach = Reach::Waiting { until: now + wait };
        match why {
            Unreachable::NoDaemon if !self.may_start && !self.ever_reached => {
                self.doom(crate::exit::NO_DAEMON, ErrorKind::Draining, NO_START, orders);
            }
            Unreachable::Config(reason) if !self.link.established => {
                self.doom(crate::exit::CONFIG, ErrorKind::Misconfigured, &reason, orders);
            }
            Unreachable::Config(reason) => self.give_up(ErrorKind::Misconfigured, &reason, orders),
            Unreachable::Failed(reason) if now - since >= GIVE_UP_TOLD => {
                self.give_up(ErrorKind::Draining, &format!("the daemon does not start: {reason}"), orders);
            }
            Unreachable::NotYet(reason) if now - since >= self.give_up => {
                self.give_up(ErrorKind::Draining, &format!("the daemon does not answer: {reason}"), orders);
            }
            // Stopped on purpose while something was open: nobody will bring the answer.
            Unreachable::NoDaemon if self.stopped || now - since >= self.give_up => {
                self.give_up(ErrorKind::Draining, "the daemon is gone, and this shim starts none", orders);
            }
            _ => {}
        }
    }

    /// Answers everything that waits and ends after the client's first request.
    fn doom(&mut self, exit: u8, kind: ErrorKind, reason: &str, orders: &mut Vec<Order>) {
        orders.push(Order::Say(format!("evermux: {reason}")));
        let answered = self.fail_waiting(kind, reason, orders);
        if answered || self.phase != Phase::Serving {
            return self.exit(exit, orders);
        }
        self.reach = Reach::Down;
        self.phase = Phase::Doomed { exit, kind, reason: reason.to_owned() };
    }

    /// Answers everything that waits and goes on living; the next message of the client tries again.
    fn give_up(&mut self, kind: ErrorKind, reason: &str, orders: &mut Vec<Order>) {
        orders.push(Order::Say(format!("evermux: {reason}")));
        self.fail_waiting(kind, reason, orders);
        self.reach = Reach::Down;
        self.failing_since = None;
        self.failures = 0;
        self.parked = true;
    }

    /// Errors for all requests that no live stream serves; says whether there were any. The client's own
    /// `initialized` is kept, because a link without it would stay mute for ever.
    fn fail_waiting(&mut self, kind: ErrorKind, reason: &str, orders: &mut Vec<Order>) -> bool {
        let kept = |entry: &Entry| matches!(entry.kind, Kind::Initialized | Kind::Reinitialized);
        let waiting = self.queued(|entry| !kept(entry));
        self.fail(waiting, kind, reason, orders)
    }

    /// Settles these messages with an error of ours for each request; says whether there were any.
    fn fail(&mut self, seqs: Vec<u64>, kind: ErrorKind, reason: &str, orders: &mut Vec<Order>) -> bool {
        let mut answered = false;
        for seq in seqs {
            let Some(entry) = self.settle(seq) else { continue };
            // What may have run is told as that, whatever is in the way now (contract: kind and outcome agree).
            let (kind, outcome) =
                if entry.sent { (ErrorKind::OutcomeUnknown, "unknown") } else { (kind, "not_sent") };
            if let Some(id) = entry.client_id() {
                orders.push(Order::Write(envelope::our_error(id, kind, &self.upstream, outcome, reason)));
                answered = true;
            }
        }
        answered
    }

    fn queued(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<u64> {
        let queued = self.entries.iter().filter(|(_, entry)| entry.state == State::Queued && wanted(entry));
        queued.map(|(seq, _)| *seq).collect()
    }
}

/// Said when `--no-start` meets no daemon.
const NO_START: &str = "no daemon runs, and --no-start forbids to start one";

#[cfg(test)]
mod tests;
