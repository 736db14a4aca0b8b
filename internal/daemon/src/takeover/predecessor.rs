//! The running process's side: carries out what `evermux_core::takeover::Predecessor` orders, and tells it what came of
//! it. One attempt at a time; everything of it is undone if it comes to nothing.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evermux_core::handover::Manifest;
use evermux_core::names::Generation;
use evermux_core::takeover::predecessor::{Fact, Order};
use evermux_core::takeover::{Ability, Agreed, Predecessor, Reason};
use evermux_store::{Key, Persist, failpoint};
use fd_handover::{Channel, Error, Frame, Process, Witness};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::frames::{Declined, Descriptor, Descriptors, Hello, Kind, Nothing, Offer, PROTOCOL, Refusal};
use super::manifest::{Ahead, Codec, Lent};
use super::say::{say, say_text};
use super::{Pipe, body_of, gone};
use crate::accept::{LockBox, Notice};
use crate::credentials;
use crate::downstream::Face;
use crate::drain::Drain;
use crate::inbox::{Ask, Told, Transfer};
use crate::reactor::Phase;

/// The first word is expected at once.
const GREETED_WITHIN: Duration = Duration::from_secs(2);
/// The disk's queue at the freeze: renames only.
const FLUSHED_WITHIN: Duration = Duration::from_millis(800);
/// For a successor that was told that it came to nothing.
const ENDED_WITHIN: Duration = Duration::from_secs(2);

/// What a process needs to hand itself over.
pub(crate) struct House {
    pub(crate) face: Arc<Face>,
    pub(crate) key: Key,
    pub(crate) generation: Generation,
    pub(crate) persist: Arc<Persist>,
    /// To the task that has listeners and lock.
    pub(crate) doors: mpsc::UnboundedSender<Notice>,
    pub(crate) tracker: TaskTracker,
    pub(crate) phases: tokio::sync::watch::Receiver<Phase>,
    /// This process's own life, as others see it.
    pub(crate) life: Pipe,
    /// Those that drain, and their lives.
    pub(crate) drains: Vec<(Generation, Arc<Witness>)>,
    pub(crate) lock: LockBox,
    /// Whoever listens is to look whether its socket can be found.
    pub(crate) look: Arc<Notify>,
    pub(crate) busy: AtomicBool,
}

/// What came of the conversation's first word.
struct Asked {
    channel: Channel,
    agreed: Agreed,
    witness: Witness,
    process: Process,
}

impl House {
    /// Serves one successor that asked.
    pub(crate) async fn hand_over(self: Arc<Self>, stream: UnixStream, read: &[u8]) {
        let mut channel = Channel::new(stream, read);
        let refusal = match timeout(GREETED_WITHIN, channel.recv()).await {
            Ok(Ok(Some(frame))) => self.judge(channel, frame),
            _ => return tracing::warn!("a successor said nothing"),
        };
        failpoint("takeover.o.hello");
        match refusal {
            Ok(asked) => {
                let _busy = Busy(&self.busy);
                tracing::info!("a successor asks to take over");
                Attempt::new(&self, asked).run().await;
            }
            Err(refused) => {
                let (mut channel, reason) = *refused;
                tracing::warn!(%reason, "a successor was refused");
                say(&mut channel, Kind::Refuse, &Refusal::from(&reason), &[]).await;
            }
        }
    }

    fn judge(&self, channel: Channel, frame: Frame) -> Result<Asked, Box<(Channel, Reason)>> {
        match self.examine(&channel, frame) {
            Ok((agreed, witness, process)) => Ok(Asked { channel, agreed, witness, process }),
            Err(reason) => Err(Box::new((channel, reason))),
        }
    }

    fn examine(&self, channel: &Channel, mut frame: Frame) -> Result<(Agreed, Witness, Process), Reason> {
        let unclear = || Reason::Broken("its first word");
        let (uid, pid) = channel.peer().map_err(|_| unclear())?;
        if uid != nix::unistd::geteuid().as_raw() {
            return Err(Reason::Foreign);
        }
        let hello: Hello = match Kind::of(frame.kind) {
            Some(Kind::Hello) => body_of(&frame).ok_or_else(unclear)?,
            _ => return Err(unclear()),
        };
        let ours = Ability { protocol: PROTOCOL, records: evermux_store::RECORD_VERSIONS };
        let agreed = ours.agree(hello.ability())?;
        let witness = frame.fds.pop().and_then(|fd| Witness::new(fd).ok()).ok_or_else(unclear)?;
        let process = pid.and_then(|pid| Process::open(pid).ok()).ok_or(Reason::Died)?;
        if *self.phases.borrow() != Phase::Serving {
            return Err(Reason::Ending);
        }
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(Reason::Busy);
        }
        Ok((agreed, witness, process))
    }
}

/// One attempt at a time, however it ends.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// One attempt.
struct Attempt<'a> {
    house: &'a Arc<House>,
    asked: Asked,
    began: Instant,
    prepared: Option<oneshot::Receiver<()>>,
    granting: Option<JoinHandle<Result<Generation, String>>>,
    granted: Option<Generation>,
    ahead: Ahead,
    manifest: Option<Box<Manifest>>,
    drain: Option<Drain>,
    frozen: Option<Instant>,
    /// Nothing more is read.
    closed: bool,
}

impl<'a> Attempt<'a> {
    fn new(house: &'a Arc<House>, asked: Asked) -> Self {
        let began = Instant::now();
        let (prepared, granting, granted, manifest, drain, frozen) = (None, None, None, None, None, None);
        let ahead = Ahead::default();
        Self {
            house,
            asked,
            began,
            prepared,
            granting,
            granted,
            ahead,
            manifest,
            drain,
            frozen,
            closed: false,
        }
    }

    async fn run(mut self) {
        let mut orders = Vec::new();
        let mut machine = Predecessor::begin(Duration::ZERO, &mut orders);
        let mut orders: VecDeque<Order> = orders.into();
        loop {
            while let Some(order) = orders.pop_front() {
                let facts = self.carry_out(order, self.at(machine.deadline())).await;
                self.take(&mut machine, facts, &mut orders);
            }
            if machine.is_over() {
                break;
            }
            let facts = self.wait(machine.deadline()).await;
            self.take(&mut machine, facts, &mut orders);
        }
        // A disk that hangs: what it does in the end is nobody's, and the next attempt's is not to be done beside it.
        if let Some(granting) = self.granting.take() {
            drop(granting.await);
        }
    }

    fn take(&self, machine: &mut Predecessor, facts: Vec<Fact>, orders: &mut VecDeque<Order>) {
        let mut out = Vec::new();
        for fact in facts {
            machine.step(self.began.elapsed(), fact, &mut out);
        }
        orders.extend(out);
    }

    /// A deadline of the machine as a point in time.
    fn at(&self, deadline: Option<Duration>) -> Instant {
        self.began + deadline.unwrap_or(Duration::from_secs(3600))
    }

    /// What happens next.
    async fn wait(&mut self, deadline: Option<Duration>) -> Vec<Fact> {
        let at = self.at(deadline);
        let Asked { channel, witness, .. } = &mut self.asked;
        let (prepared, granting) = (self.prepared.as_mut(), self.granting.as_mut());
        tokio::select! {
            biased;
            frame = channel.recv(), if !self.closed => self.read(frame),
            () = gone(witness) => {
                // What it had written counts, whatever became of it.
                let mut facts = Vec::new();
                while !self.closed {
                    let frame = self.asked.channel.recv().await;
                    facts.extend(self.read(frame));
                }
                facts.push(Fact::Gone);
                facts
            }
            prepared = done(prepared) => {
                self.prepared = None;
                failpoint("takeover.o.prepared");
                prepared.map(|()| Fact::Prepared).into_iter().collect()
            }
            granted = joined(granting) => {
                self.granting = None;
                vec![self.on_granted(granted)]
            }
            () = tokio::time::sleep_until(at) => vec![Fact::Tick],
        }
    }

    fn on_granted(&mut self, granted: Result<Generation, String>) -> Fact {
        match granted {
            Ok(generation) => {
                self.granted = Some(generation);
                Fact::Granted
            }
            Err(why) => Fact::NotGranted(why),
        }
    }

    fn read(&mut self, frame: Result<Option<Frame>, Error>) -> Vec<Fact> {
        let frame = match frame {
            Ok(Some(frame)) => frame,
            // In the middle of a frame too: what was not written whole was not said.
            Ok(None) | Err(Error::Cut) => {
                self.closed = true;
                return vec![Fact::Closed];
            }
            Err(error) => {
                self.closed = true;
                tracing::error!(%error, "what the successor says cannot be read");
                return vec![Fact::Unreadable];
            }
        };
        let fact = match Kind::of(frame.kind) {
            Some(Kind::Accept) => Fact::Accepted,
            Some(Kind::Ready) => {
                failpoint("takeover.o.ready");
                Fact::Ready
            }
            Some(Kind::Active) => {
                failpoint("takeover.o.active");
                Fact::Active
            }
            Some(Kind::Decline) => {
                let declined: Option<Declined> = body_of(&frame);
                Fact::Declined(declined.map(|declined| declined.reason).unwrap_or_default())
            }
            // It may have said in a way of its own that it is active: that is as good as not to be read.
            _ => {
                self.closed = true;
                tracing::error!(kind = frame.kind, "the successor says what it should not");
                Fact::Unreadable
            }
        };
        vec![fact]
    }

    /// `until`: what takes longer came to nothing, if it is the machine's to say so.
    async fn carry_out(&mut self, order: Order, until: Instant) -> Vec<Fact> {
        match order {
            Order::Prepare => {
                let (done, prepared) = oneshot::channel();
                self.tell(Transfer::Prepare(done));
                self.prepared = Some(prepared);
                Vec::new()
            }
            Order::Grant => self.grant(),
            Order::Draft => self.draft(until).await,
            Order::Offer => self.offer().await,
            Order::Freeze => self.freeze(until).await,
            Order::Send => {
                let sent = timeout_at(until, self.send()).await.unwrap_or(false);
                vec![if sent { Fact::Sent } else { Fact::SendFailed }]
            }
            Order::Commit => {
                failpoint("takeover.o.commit");
                let written = self.say(Kind::Commit, &Nothing {}).await;
                failpoint("takeover.o.committed");
                vec![if written { Fact::Committed } else { Fact::SendFailed }]
            }
            Order::Abort(reason) => {
                let written = self.say(Kind::Abort, &Refusal::from(&reason)).await;
                vec![if written { Fact::Aborted } else { Fact::SendFailed }]
            }
            Order::Kill => {
                tracing::warn!("the successor is ended: what it has come to is not known");
                if let Err(error) = self.asked.process.kill() {
                    tracing::error!(%error, "it cannot be ended");
                }
                Vec::new()
            }
            Order::Resume(reason) => {
                tracing::warn!(%reason, "the takeover came to nothing; this process goes on");
                self.tell(Transfer::Resume);
                self.see_off().await;
                Vec::new()
            }
            Order::HandOver => {
                self.leave().await;
                Vec::new()
            }
        }
    }

    fn tell(&self, transfer: Transfer) {
        self.house.face.inbox.tell(Told::Control(Ask::Transfer(transfer)));
    }

    /// A successor that gave up ends. One that hangs would keep its copy of the lock, and no cold start could ever take it.
    async fn see_off(&mut self) {
        if self.frozen.is_none() || timeout(ENDED_WITHIN, gone(&self.asked.witness)).await.is_ok() {
            return;
        }
        tracing::warn!("a successor that gave up and does not end is ended");
        if let Err(error) = self.asked.process.kill() {
            tracing::error!(%error, "it cannot be ended");
        }
    }

    async fn say(&mut self, kind: Kind, value: &impl serde::Serialize) -> bool {
        say(&mut self.asked.channel, kind, value, &[]).await
    }

    /// On disk, and so on a thread of its own, which nobody waits for longer than the machine does.
    fn grant(&mut self) -> Vec<Fact> {
        let (state, lock) = (self.house.face.state.clone(), self.house.lock.get());
        let Some(lock) = lock else { return vec![Fact::NotGranted("it has no lock".to_owned())] };
        let grant = move || {
            let granted = state.grant_generation(&lock, &[]);
            // What the successor gives out is to be as durable as what this process did.
            granted.and_then(|granted| state.settle().map(|()| granted)).map_err(|error| error.to_string())
        };
        self.granting = Some(tokio::task::spawn_blocking(grant));
        Vec::new()
    }

    async fn doors<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Notice) -> Option<T> {
        let (done, waiting) = oneshot::channel();
        self.house.doors.send(make(done)).ok()?;
        waiting.await.ok()
    }

    /// On a thread of its own: calls go on.
    async fn draft(&mut self, until: Instant) -> Vec<Fact> {
        let (done, drafted) = oneshot::channel();
        self.tell(Transfer::Draft(done));
        // One that is not prepared any more says nothing, and will not freeze either.
        let Ok(Ok(manifest)) = timeout_at(until, drafted).await else { return Vec::new() };
        let (sealer, key) = (self.house.face.seals.sealer().clone(), self.house.key.clone());
        let write = move || Ahead::write(&Codec { sealer: &sealer, key: &key }, manifest.links);
        let Ok(Ok((ahead, text))) = tokio::task::spawn_blocking(write).await else {
            return vec![Fact::SendFailed];
        };
        let sent = timeout_at(until, say_text(&mut self.asked.channel, &text)).await.unwrap_or(false);
        self.ahead = ahead;
        if sent { Vec::new() } else { vec![Fact::SendFailed] }
    }

    /// Also what is slow and need not wait for the freeze, which clients wait for: the socket for what is relayed, and
    /// the records that are on their way.
    async fn offer(&mut self) -> Vec<Fact> {
        let Some(generation) = self.granted else { return vec![Fact::SendFailed] };
        let socket = self.house.face.neighbours.path(evermux_core::handover::Peer::Successor);
        match Drain::listen(&socket, self.house.generation) {
            Ok(drain) => self.drain = Some(drain),
            Err(error) => {
                tracing::error!(%error, "cannot listen for what is relayed");
                return vec![Fact::SendFailed];
            }
        }
        drop(self.flush());
        let Agreed { protocol, records } = self.asked.agreed;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let offer = Offer { protocol, records, generation: generation.0, version };
        let life = [self.house.life.as_fd()];
        let sent = say(&mut self.asked.channel, Kind::Offer, &offer, &life).await;
        failpoint("takeover.o.offer");
        if sent { Vec::new() } else { vec![Fact::SendFailed] }
    }

    async fn freeze(&mut self, until: Instant) -> Vec<Fact> {
        let (done, handed) = oneshot::channel();
        self.frozen = Some(Instant::now());
        self.tell(Transfer::Freeze(done));
        let Ok(Ok(manifest)) = timeout_at(until, handed).await else { return vec![Fact::SendFailed] };
        self.manifest = Some(manifest);
        failpoint("takeover.o.frozen");
        vec![Fact::Handed]
    }

    /// Everything: descriptors, manifest, its end. The records that were on their way are on disk before that: a write of
    /// this process that came later would put an older one in the place of the successor's.
    async fn send(&mut self) -> bool {
        let flushing = self.flush();
        let (Some(manifest), Some(estate)) = (self.manifest.take(), self.copies().await) else {
            return false;
        };
        let sealer = self.house.face.seals.sealer().clone();
        let codec = Codec { sealer: &sealer, key: &self.house.key };
        let ahead = std::mem::take(&mut self.ahead);
        let Ok((text, links)) = ahead.write_rest(&codec, &manifest, self.lend()) else { return false };
        if !self.send_descriptors(estate).await || !say_text(&mut self.asked.channel, &text).await {
            return false;
        }
        failpoint("takeover.o.manifest");
        let end = ahead.end(&text, manifest.sessions.len(), links);
        if let Some(flushing) = flushing
            && !flushing.await.unwrap_or(false)
        {
            return false;
        }
        self.say(Kind::End, &end).await
    }

    /// Has the records written that wait for it. `None`: none do.
    fn flush(&self) -> Option<JoinHandle<bool>> {
        let persist = Arc::clone(&self.house.persist);
        let is_idle = persist.flush(Duration::ZERO);
        (!is_idle).then(|| tokio::task::spawn_blocking(move || persist.flush(FLUSHED_WITHIN)))
    }

    async fn copies(&self) -> Option<Estate> {
        let socket = self.doors(Notice::Copy).await?.ok()?;
        let lock = self.house.lock.get()?.as_fd().try_clone_to_owned().ok()?;
        Some(Estate { socket, lock, port: self.house.face.port.copy().ok()? })
    }

    fn lend(&self) -> Lent {
        let face = &self.house.face;
        let (environment, outputs) = credentials::lend(&face.keeper.config());
        Lent { environment, outputs, given: face.keeper.given() }
    }

    async fn send_descriptors(&mut self, estate: Estate) -> bool {
        let Estate { socket, lock, port } = estate;
        let (mut fds, mut what) =
            (vec![socket.as_fd(), lock.as_fd()], vec![Descriptor::Socket, Descriptor::Lock]);
        if let Some(port) = &port {
            fds.push(port.as_fd());
            what.push(Descriptor::Port);
        }
        let house = self.house;
        // Also one that is gone by now, as long as the core was not told: its calls are in the manifest.
        let neighbours = &house.face.neighbours;
        let known = house.drains.iter().filter(|(generation, _)| !neighbours.has_departed(*generation));
        for (generation, witness) in known {
            fds.push(witness.as_fd());
            what.push(Descriptor::Drains(generation.0));
        }
        let sent = say(&mut self.asked.channel, Kind::Descriptors, &Descriptors { fds: what }, &fds).await;
        failpoint("takeover.o.descriptors");
        sent
    }

    /// It is decided, and the successor is active: this process lets go of its doors before it does anything else, so
    /// that a cold start finds the lock free should the successor die.
    async fn leave(&mut self) {
        self.doors(Notice::Leave).await;
        let house = self.house;
        if let Some(drain) = self.drain.take() {
            let (face, tracker) = (Arc::clone(&house.face), house.tracker.clone());
            // In no tracker: it ends when the process does.
            tokio::spawn(drain.serve(face, tracker, house.phases.clone(), Arc::clone(&house.look)));
        }
        self.tell(Transfer::HandOver);
        let frozen_us = self.frozen.map_or(0, |frozen| frozen.elapsed().as_micros());
        tracing::info!(frozen_us, "handed over; calls that run here end here");
        failpoint("takeover.o.drain");
    }
}

/// Copies of what is handed over.
pub(crate) struct Estate {
    pub(crate) socket: OwnedFd,
    pub(crate) lock: OwnedFd,
    pub(crate) port: Option<OwnedFd>,
}

/// Waits for something that may not be under way at all.
async fn joined(waiting: Option<&mut JoinHandle<Result<Generation, String>>>) -> Result<Generation, String> {
    match waiting {
        Some(waiting) => waiting.await.unwrap_or_else(|error| Err(error.to_string())),
        None => std::future::pending().await,
    }
}

/// Waits for something that may not be awaited at all.
async fn done(waiting: Option<&mut oneshot::Receiver<()>>) -> Option<()> {
    match waiting {
        Some(waiting) => waiting.await.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
