//! The loop: facts in, the core asked, its orders carried out in their order. Never waits for anything but the
//! next fact or the next deadline (D22).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evermux_config::Config;
use evermux_core::Hub;
use evermux_core::handover::{Manifest, Relayed};
use evermux_core::input::{End, ExchangeId, Fact, Input, Now, Renewal, StreamId};
use evermux_core::names::{Generation, UpstreamName};
use evermux_core::output::{ExchangeSpec, Outbox, Output, Verb};
use evermux_core::record::{Fingerprint, JournalEntry};
use evermux_core::seal::Sealer;
use evermux_store::{CallJournal, Key, Left, Persist};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use crate::audit::Audit;
use crate::body::{Head, Sink};
use crate::credentials::{self, Purse, Resolved};
use crate::drain::{self, Line};
use crate::exchange::{self, Job};
use crate::inbox::{Ask, Inbox, Purged, Told, Transfer};
use crate::neighbours::Neighbours;
use crate::network::Network;
use crate::policy::{limits, policies};
use crate::relay;
use crate::sleep::{Clocks, Wall};
use crate::status;
use ends::Ends;
use heads::Heads;

/// Facts taken in one turn before its exchanges start and the deadline is looked at again.
const TURN: usize = 64;
/// Entries that only say how a call ended may wait this long for the next write: unsaid, they cost a former
/// process's call its mark, never its safety.
const SETTLED_WITHIN: Duration = Duration::from_millis(200);
/// As many of them wait at most.
const MOST_UNWRITTEN: usize = 256;
/// How far the process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    Draining,
    Drained,
}

impl Phase {
    fn word(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Draining | Self::Drained => "draining",
        }
    }
}

/// What the reactor is made of.
pub(crate) struct Parts {
    pub(crate) hub: Hub,
    pub(crate) generation: Generation,
    pub(crate) config: Config,
    pub(crate) key: Key,
    pub(crate) sealer: Sealer,
    pub(crate) journal: CallJournal,
    pub(crate) persist: Arc<Persist>,
    pub(crate) inbox: Inbox,
    pub(crate) tracker: TaskTracker,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) wall: Wall,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) audit: Audit,
    pub(crate) network: Network,
}

pub(crate) struct Reactor {
    parts: Parts,
    clocks: Clocks,
    sinks: BTreeMap<StreamId, Sink>,
    /// Responses whose head was held back.
    heads: Heads,
    ends: Ends,
    exchanges: BTreeMap<ExchangeId, AbortHandle>,
    purse: Purse,
    unwritten: Vec<JournalEntry>,
    /// Exchanges of this turn: they start together, behind one write of the journal.
    starting: Vec<(ExchangeId, Box<ExchangeSpec>)>,
    /// When what may wait for the journal is written at the latest.
    write_by: Option<Instant>,
    /// Facts that came up while orders were carried out.
    echo: Vec<Input>,
    outbox: Outbox,
    purged: Purged,
    transfer: Ongoing,
}

/// A takeover that is under way.
#[derive(Default)]
struct Ongoing {
    prepared: Option<oneshot::Sender<()>>,
    handed: Option<oneshot::Sender<Box<Manifest>>>,
    frozen: bool,
    /// What was asked meanwhile.
    held: Vec<Ask>,
    /// Processes that drained and ended meanwhile.
    departed: Vec<Generation>,
}

impl Reactor {
    pub(crate) fn new(mut parts: Parts) -> Self {
        let wall = std::mem::replace(&mut parts.wall, Box::new(|| Duration::ZERO));
        Self {
            parts,
            clocks: Clocks::new(wall),
            sinks: BTreeMap::new(),
            heads: Heads::default(),
            ends: Ends::default(),
            exchanges: BTreeMap::new(),
            purse: Purse::default(),
            unwritten: Vec::new(),
            starting: Vec::new(),
            write_by: None,
            echo: Vec::new(),
            outbox: Outbox::new(),
            purged: Purged::default(),
            transfer: Ongoing::default(),
        }
    }

    /// Runs until every `Inbox` is gone or the last call has ended after a stop.
    pub(crate) async fn run(mut self, mut rx: mpsc::UnboundedReceiver<Told>) {
        let alarm = tokio::time::sleep_until(tokio::time::Instant::now());
        tokio::pin!(alarm);
        // A timer is set again only for an earlier deadline: setting it for each call costs a system call, waking
        // once too often costs less.
        let mut armed: Option<Instant> = None;
        loop {
            if let Some(at) = self.deadline().filter(|at| armed.is_none_or(|armed| *at < armed)) {
                alarm.as_mut().reset(at.into());
                armed = Some(at);
            }
            let told = tokio::select! {
                biased;
                told = rx.recv() => told,
                () = tokio::task::yield_now(), if self.ends.are_waiting() => {
                    self.ends.end_some(&mut self.sinks);
                    continue;
                }
                () = alarm.as_mut(), if armed.is_some() => {
                    armed = None;
                    Some(Told::Fact(Input::Tick))
                }
            };
            let Some(told) = told else { break };
            self.take(told);
            for _ in 1..TURN {
                let Ok(told) = rx.try_recv() else { break };
                self.take(told);
            }
            self.end_turn();
            if *self.parts.phase.borrow() == Phase::Drained {
                break;
            }
        }
        self.write_journal();
    }

    fn deadline(&self) -> Option<Instant> {
        let core = self.parts.hub.deadline().map(|at| self.clocks.at(at));
        core.into_iter().chain(self.write_by).chain(self.heads.alarm()).min()
    }

    /// *Sent* is a fact on disk before it is one on the wire (D17): one write for every call of the turn.
    fn end_turn(&mut self) {
        self.ends.end_turn(&mut self.sinks);
        while !self.starting.is_empty() {
            let written = self.write_journal();
            for (exchange, spec) in std::mem::take(&mut self.starting) {
                if written {
                    self.start(exchange, spec);
                } else {
                    self.never_written(exchange, "the call journal cannot be written");
                }
            }
            self.take_echo();
        }
        let may_wait =
            |entry: &JournalEntry| matches!(entry, JournalEntry::Settled { .. } | JournalEntry::Acked { .. });
        if self.unwritten.len() > MOST_UNWRITTEN || !self.unwritten.iter().all(may_wait) {
            self.write_journal();
        } else if !self.unwritten.is_empty() && self.write_by.is_none() {
            self.write_by = Some(Instant::now() + SETTLED_WITHIN);
        }
    }

    fn take(&mut self, told: Told) {
        if let Some(slept) = self.clocks.slept() {
            tracing::info!(seconds = slept.as_secs(), "the machine slept");
            self.parts.network.renew();
            self.handle(Input::Woke);
        }
        match told {
            Told::Fact(input) => {
                if let Input::StreamClosed(stream) = &input {
                    self.sinks.remove(stream);
                }
                self.handle(input);
            }
            Told::Client { stream, sink, input } => {
                self.sinks.insert(stream, sink);
                self.handle(input);
            }
            Told::Exchange(exchange, facts, _until_taken) => {
                for fact in facts {
                    if matches!(fact, Fact::Ended(_)) {
                        self.exchanges.remove(&exchange);
                    }
                    self.handle(Input::Exchange(exchange, fact));
                }
            }
            Told::Credentials { upstream, outcome, default } => {
                self.take_credentials(upstream, outcome, default)
            }
            Told::Refreshed { upstream, fingerprint, outcome } => {
                self.take_refreshed(upstream, fingerprint, outcome);
            }
            Told::Control(ask) => self.control(ask),
        }
    }

    fn take_credentials(&mut self, upstream: UpstreamName, outcome: Result<Resolved, String>, default: bool) {
        match outcome {
            Ok(resolved) => {
                let fingerprint = resolved.fingerprint;
                self.purse.put(upstream.clone(), resolved);
                self.handle(Input::IdentityKnown { upstream, fingerprint, default });
            }
            Err(why) => {
                tracing::warn!(upstream = %upstream, why, "upstream is misconfigured");
                self.handle(Input::Misconfigured { upstream, why });
            }
        }
    }

    /// In the purse before the core hears of it: what it then starts goes out with the new value.
    fn take_refreshed(
        &mut self,
        upstream: UpstreamName,
        fingerprint: Fingerprint,
        outcome: Result<Option<Resolved>, String>,
    ) {
        let what = credentials::renewal(&outcome);
        match &what {
            Renewal::Missing(why) => {
                tracing::warn!(upstream = %upstream, why, "header values cannot be read")
            }
            what => {
                tracing::info!(upstream = %upstream, changed = *what == Renewal::Changed, "header values read again")
            }
        }
        if let Ok(Some(resolved)) = outcome {
            self.purse.put(upstream.clone(), resolved);
        }
        self.handle(Input::Refreshed { upstream, fingerprint, what });
    }

    /// A task of its own: a command may take its time, and the loop waits for nobody.
    fn refresh(&self, upstream: UpstreamName, fingerprint: Fingerprint) {
        let known = self.purse.get(&upstream, fingerprint).cloned();
        let (inbox, key) = (self.parts.inbox.clone(), self.parts.key.clone());
        tokio::spawn(async move {
            let outcome = match known {
                Some(known) => credentials::read_again(&known, &key).await,
                None => Err("its header values are not at hand".to_owned()),
            };
            inbox.tell(Told::Refreshed { upstream, fingerprint, outcome });
        });
    }

    fn control(&mut self, ask: Ask) {
        // Decided by whoever goes on, like everything else that comes in the frozen moment.
        if self.transfer.frozen && !matches!(ask, Ask::Transfer(_) | Ask::Status(_)) {
            return self.transfer.held.push(ask);
        }
        match ask {
            Ask::Transfer(step) => self.transfer(step),
            Ask::Status(done) => drop(done.send(self.status())),
            Ask::Reload { config, done } => {
                self.reload(*config);
                done.send(()).unwrap_or_default();
            }
            Ask::Purge { upstream, done } => {
                self.purged = Purged::default();
                self.handle(Input::Purge(upstream));
                self.end_turn();
                done.send(self.purged).unwrap_or_default();
            }
            Ask::Stop => {
                self.parts.phase.send_replace(Phase::Draining);
                self.handle(Input::Drain);
            }
        }
    }

    fn transfer(&mut self, step: Transfer) {
        match step {
            Transfer::Prepare(done) => {
                self.transfer.prepared = Some(done);
                self.handle(Input::Prepare);
            }
            Transfer::Freeze(done) => {
                self.transfer.handed = Some(done);
                // What was sent is in the journal before anybody else goes on.
                self.end_turn();
                self.write_journal();
                let heads = self.heads.all();
                self.release(heads);
                self.take_echo();
                self.handle(Input::Freeze);
                // A core that was told to stop meanwhile is not frozen, and the attempt hears that by its dropped channel.
                self.transfer.frozen = self.transfer.handed.take().is_none();
            }
            Transfer::Describe(done) => self.describe(done, Input::Describe),
            Transfer::Draft(done) => self.describe(done, Input::Draft),
            Transfer::Resume => {
                let Ongoing { held, departed, .. } = std::mem::take(&mut self.transfer);
                self.handle(Input::Resume);
                departed.into_iter().for_each(|generation| self.depart(generation));
                held.into_iter().for_each(|ask| self.control(ask));
            }
            Transfer::HandOver => {
                let Ongoing { held, departed, .. } = std::mem::take(&mut self.transfer);
                self.parts.phase.send_replace(Phase::Draining);
                self.handle(Input::HandOver);
                // What was on its way there when it ended is handed in again.
                departed.into_iter().for_each(|generation| self.depart(generation));
                if held.iter().any(|ask| matches!(ask, Ask::Stop)) {
                    let neighbours = Arc::clone(&self.parts.neighbours);
                    tokio::spawn(async move { relay::stop_successor(&neighbours).await });
                }
                // Whoever asked anything else asks the successor, once its connection ends.
            }
            // A successor that is on its way is told of that process, and sees its end itself.
            Transfer::Departed(generation) if self.transfer.frozen => self.transfer.departed.push(generation),
            Transfer::Departed(generation) => self.depart(generation),
        }
    }

    /// `done` is dropped by a core that is not asked in its time.
    fn describe(&mut self, done: oneshot::Sender<Box<Manifest>>, input: Input) {
        self.transfer.handed = Some(done);
        self.handle(input);
        self.transfer.handed = None;
    }

    /// What it left is read here although it takes a few milliseconds: nothing may be decided in between.
    fn depart(&mut self, generation: Generation) {
        // Its journal is the active process's to take over.
        if self.parts.neighbours.is_handed_over() {
            let (journal, answers) = (Vec::new(), Vec::new());
            return self.handle(Input::Departed { generation, journal, answers, complete: true });
        }
        let left = self.parts.journal.absorb(generation);
        tracing::info!(generation = generation.0, calls = left.calls.len(), "a process that drained is gone");
        let Left { calls: journal, answers, complete } = left;
        self.handle(Input::Departed { generation, journal, answers, complete });
    }

    fn status(&self) -> serde_json::Value {
        let upstreams = &self.parts.config.upstreams;
        let process = status::Process {
            generation: self.parts.generation.0,
            phase: self.parts.phase.borrow().word(),
            pid_of: &|generation| self.parts.neighbours.pid_of(generation),
            origins: &|name| upstreams.get(name).map(evermux_config::Upstream::origin),
        };
        status::to_json(&self.parts.hub.report(), &process)
    }

    fn reload(&mut self, config: Config) {
        self.parts.network.configure(config.daemon.ca_file.as_ref());
        self.handle(Input::Limits(limits(&config)));
        self.handle(Input::Configured(policies(&config)));
        self.parts.config = config;
    }

    fn handle(&mut self, input: Input) {
        if matches!(input, Input::Tick) {
            self.do_what_waited();
        }
        self.ask_core(input);
        self.take_echo();
    }

    fn do_what_waited(&mut self) {
        let now = Instant::now();
        if self.write_by.is_some_and(|at| at <= now) {
            self.write_by = None;
            self.write_journal();
        }
        let is_held = |stream: &StreamId| self.sinks.get(stream).is_some_and(Sink::is_held);
        let due = self.heads.due(now, is_held);
        self.release(due);
    }

    fn release(&mut self, heads: impl IntoIterator<Item = StreamId>) {
        for stream in heads {
            let taken = self.sinks.get_mut(&stream).is_none_or(Sink::release);
            self.gone_unless(taken, stream);
        }
    }

    fn take_echo(&mut self) {
        while let Some(input) = self.echo.pop() {
            self.ask_core(input);
        }
    }

    fn ask_core(&mut self, input: Input) {
        let now = Now { mono: self.clocks.mono(), wall_ms: self.clocks.wall_ms() };
        self.parts.neighbours.note(&input, &self.parts.inbox);
        let mut outbox = std::mem::take(&mut self.outbox);
        self.parts.hub.handle(now, input, &mut outbox);
        for output in outbox.drain(..) {
            self.carry_out(output);
        }
        self.outbox = outbox;
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Accept { stream, link } => {
                let link = link.map(|claim| self.parts.sealer.link(&claim));
                let inbox = &self.parts.inbox;
                let Some(sink) = self.sinks.get_mut(&stream) else { return };
                let taken = sink.accept(stream, link, inbox);
                if sink.is_held() {
                    self.heads.hold(stream, Instant::now);
                }
                self.gone_unless(taken, stream);
            }
            Output::Accepted(stream) => self.answer(stream, Head::Accepted),
            Output::Refuse { stream, status, body } => self.answer(stream, Head::Refused { status, body }),
            Output::Event { stream, id, data } => {
                let id = id.map(|claim| self.parts.sealer.event(&claim));
                let Some(sink) = self.sinks.get_mut(&stream) else { return };
                let taken = sink.event(id.as_deref(), &data);
                self.gone_unless(taken, stream);
            }
            Output::Prime { stream, id } => {
                let id = self.parts.sealer.event(&id);
                let taken = self.sinks.get(&stream).is_none_or(|sink| sink.prime(&id));
                self.gone_unless(taken, stream);
            }
            Output::Stopping(stream) => {
                if let Some(sink) = self.sinks.get_mut(&stream) {
                    sink.push(bytes::Bytes::from_static(b"event: evermux/stopped\ndata: \n\n"));
                }
            }
            Output::End(stream) => self.ends.end(stream, &mut self.sinks),
            Output::Start { exchange, spec } => self.starting.push((exchange, spec)),
            Output::Forget { upstream, fingerprint } => self.purse.forget(&upstream, fingerprint),
            Output::Refresh { upstream, fingerprint } => self.refresh(upstream, fingerprint),
            Output::Abort(exchange) => {
                self.starting.retain(|(other, _)| *other != exchange);
                if let Some(task) = self.exchanges.remove(&exchange) {
                    task.abort();
                }
            }
            Output::Journal(entry) => self.unwritten.push(entry),
            Output::WriteRecord { ticket, record, sync } => self.parts.persist.write(ticket.0, *record, sync),
            Output::DeleteRecord { upstream, trajectory } => {
                self.purged.ended += 1;
                self.parts.persist.delete(0, upstream, trajectory);
            }
            Output::Note(note) => {
                notes::write(&note);
                self.parts.audit.tell(&note, self.clocks.wall_ms());
            }
            // The connections of a process that was succeeded are to end in an order of their own.
            Output::Drained => {
                // The process may be gone before the time is over that its last entries may wait.
                self.write_journal();
                if self.parts.neighbours.is_handed_over() {
                    self.parts.neighbours.note_emptied();
                } else {
                    self.parts.phase.send_replace(Phase::Drained);
                }
            }
            takeover => self.carry_over(takeover),
        }
    }

    /// What has to do with other processes.
    fn carry_over(&mut self, output: Output) {
        match output {
            Output::Relay(relayed) => self.relay(relayed),
            Output::NotMine(stream) => self.answer(stream, Head::NotMine(self.parts.generation)),
            Output::Release { generation, trajectory } => {
                let neighbours = Arc::clone(&self.parts.neighbours);
                tokio::spawn(drain::release(neighbours, generation, trajectory));
            }
            Output::Released(stream) => self.parts.neighbours.feed.tell(Line::released(&stream)),
            Output::Forward(news) => self.parts.neighbours.feed.tell(Line::forwarded(&news)),
            Output::HandlesChanged(news) => self.parts.neighbours.feed.tell(Line::handles(&news)),
            Output::CallOver { trajectory, handshake, wire, answered } => {
                self.parts.neighbours.feed.tell(Line::call_over(trajectory, handshake, wire, answered));
            }
            Output::Prepared => {
                if let Some(done) = self.transfer.prepared.take() {
                    done.send(()).unwrap_or_default();
                }
            }
            Output::Handed(manifest) => {
                if let Some(done) = self.transfer.handed.take() {
                    drop(done.send(manifest));
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, stream: StreamId, head: Head) {
        if let Some(mut sink) = self.sinks.remove(&stream) {
            sink.answer(head);
        }
    }

    /// The response goes with it: the relay's task writes it from here on.
    fn relay(&mut self, relayed: Box<Relayed>) {
        let Some(mut sink) = self.sinks.remove(&relayed.stream) else { return };
        if !sink.release() {
            return self.echo.push(Input::StreamClosed(relayed.stream));
        }
        let Parts { neighbours, sealer, inbox, .. } = &self.parts;
        let (neighbours, sealer, inbox) = (Arc::clone(neighbours), sealer.clone(), inbox.clone());
        self.parts.tracker.spawn(relay::run(relay::Job { neighbours, sealer, inbox, relayed, sink }));
    }

    fn gone_unless(&mut self, taken: bool, stream: StreamId) {
        if !taken {
            self.sinks.remove(&stream);
            self.echo.push(Input::StreamClosed(stream));
        }
    }

    fn start(&mut self, exchange: ExchangeId, spec: Box<ExchangeSpec>) {
        let Some(resolved) = self.purse.get(&spec.upstream, spec.fingerprint).cloned() else {
            self.purged.owed += usize::from(matches!(spec.verb, Verb::Delete));
            self.never_written(exchange, "its credentials are not at hand");
            return;
        };
        let inbox = self.parts.inbox.clone();
        let job = Job { exchange, spec, resolved, sender: self.parts.network.sender(), inbox };
        let task = self.parts.tracker.spawn(exchange::run(job));
        self.exchanges.insert(exchange, task.abort_handle());
    }

    fn never_written(&mut self, exchange: ExchangeId, why: &str) {
        let end = Fact::Ended(End::NeverWritten(why.to_owned()));
        self.echo.push(Input::Exchange(exchange, end));
    }

    fn write_journal(&mut self) -> bool {
        if self.unwritten.is_empty() {
            return true;
        }
        let written = self.parts.journal.append(&self.unwritten);
        self.unwritten.clear();
        if let Err(error) = &written {
            tracing::error!(%error, "cannot write the call journal");
        }
        written.is_ok()
    }
}

mod ends;
mod heads;
mod notes;
#[cfg(test)]
mod relays;
#[cfg(test)]
mod tests;
