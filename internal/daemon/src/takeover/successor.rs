//! The side of the process that takes over: carries out what `evermux_core::takeover::Successor` orders. Until it is
//! active it writes nothing, sends nothing upstream and takes no connection.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use evermux_core::handover::Manifest;
use evermux_core::names::Generation;
use evermux_core::seal::Sealer;
use evermux_core::takeover::successor::{Fact, Order};
use evermux_core::takeover::{Reason, Successor};
use evermux_store::{CallJournal, DaemonLock, Key, StateDir, failpoint};
use fd_handover::{Channel, Error, Frame, Witness};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use super::frames::{Declined, Descriptor, Descriptors, End, Hello, Kind, Nothing, Offer, PROTOCOL, Refusal};
use super::manifest::{Ahead, Codec, Lent};
use super::say::say;
use super::{PROTOCOL_NAME, Pipe, body_of};
use crate::socket::Socket;

/// What a successor asks; the answer is 101, and frames from then on.
const ENDPOINT: &str = "takeover";
/// For that answer: a daemon that is alive gives it at once.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// The largest manifest, in bytes: far more than the limits of links and calls make.
pub(super) const LARGEST_MANIFEST: usize = 256 * 1024 * 1024;
const LARGEST_HEAD: usize = 8 * 1024;

/// What this process has to go on with.
pub(crate) struct Estate {
    pub(crate) generation: Generation,
    pub(crate) socket: Socket,
    pub(crate) lock: DaemonLock,
    pub(crate) port: Option<OwnedFd>,
    pub(crate) manifest: Manifest,
    pub(crate) lent: Lent,
    /// Begun, and empty: what cannot be written is to be known before anybody relies on it.
    pub(crate) journal: CallJournal,
    /// Processes that drain, and their lives; the predecessor among them.
    pub(crate) drains: Vec<(Generation, Witness)>,
}

/// How it went.
pub(crate) enum Outcome {
    /// Nobody runs: start as ever.
    Cold,
    /// This is the daemon now.
    Taken(Box<Estate>),
    /// The running daemon runs on. `again`: another attempt may do better.
    Refused { reason: String, again: bool },
    /// It broke off before it had handed over, and nothing proves that it died. The lock may.
    Lost { reason: String },
}

/// What is needed to understand what comes.
pub(crate) struct Tools<'a> {
    pub(crate) state: &'a StateDir,
    pub(crate) sealer: &'a Sealer,
    pub(crate) key: &'a Key,
    pub(crate) socket: &'a Path,
    pub(crate) life: &'a Pipe,
}

/// Asks the running daemon, if one runs, to hand over. Everything slow is done before.
pub(crate) async fn take_over(tools: Tools<'_>) -> Outcome {
    let channel = match dial(tools.socket, ENDPOINT).await {
        Ok(Some(channel)) => channel,
        Ok(None) => return Outcome::Cold,
        Err(outcome) => return outcome,
    };
    Attempt { tools, channel, began: Instant::now(), got: Got::default(), closed: false }.run().await
}

/// `None`: nobody listens.
pub(super) async fn dial(path: &Path, endpoint: &str) -> Result<Option<Channel>, Outcome> {
    let mut stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => {
            // More wait to be let in than fit, which passes.
            let again = error.kind() == io::ErrorKind::WouldBlock;
            let reason = format!("the running daemon cannot be reached: {error}");
            return Err(Outcome::Refused { reason, again });
        }
    };
    let request = format!(
        "POST /control/{endpoint} HTTP/1.1\r\nhost: evermux\r\nconnection: upgrade\r\nupgrade: {PROTOCOL_NAME}\r\n\
         content-length: 0\r\n\r\n"
    );
    let asked = async {
        stream.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") && head.len() < LARGEST_HEAD {
            head.push(stream.read_u8().await?);
        }
        io::Result::Ok(head)
    };
    let head = match timeout(ANSWERED_WITHIN, asked).await {
        Ok(Ok(head)) => head,
        Ok(Err(error)) => {
            return Err(Outcome::Lost { reason: format!("the running daemon broke off: {error}") });
        }
        Err(_) => {
            let reason = "the running daemon does not answer; it may hang".to_owned();
            return Err(Outcome::Refused { reason, again: false });
        }
    };
    match status(&head) {
        Some(101) => Ok(Some(Channel::new(stream, b""))),
        status => Err(not_welcome(status)),
    }
}

/// The status of a response's head.
fn status(head: &[u8]) -> Option<u16> {
    std::str::from_utf8(head).ok()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// Only "no such thing" is the answer of a daemon that never heard of takeovers.
fn not_welcome(status: Option<u16>) -> Outcome {
    let (reason, again) = match status {
        Some(503) => {
            ("the running daemon has no room for another connection, or only starts; try again", true)
        }
        Some(404 | 405) => (
            "the running daemon is of a version that cannot hand over; `evermux stop` ends it, and the next client starts \
             this one",
            false,
        ),
        _ => ("what answers is not understood; `evermux status` may tell what runs", false),
    };
    Outcome::Refused { reason: reason.to_owned(), again }
}

/// What came so far.
#[derive(Default)]
struct Got {
    refusal: Option<Refusal>,
    offer: Option<Offer>,
    life: Option<Witness>,
    fds: Vec<(Descriptor, OwnedFd)>,
    /// What came before the offer.
    ahead: Ahead,
    text: Vec<u8>,
    estate: Option<Box<Estate>>,
}

struct Attempt<'a> {
    tools: Tools<'a>,
    channel: Channel,
    began: Instant,
    got: Got,
    closed: bool,
}

impl Attempt<'_> {
    async fn run(mut self) -> Outcome {
        let mut orders = Vec::new();
        let mut machine = Successor::begin(Duration::ZERO, &mut orders);
        let mut orders: VecDeque<Order> = orders.into();
        loop {
            while let Some(order) = orders.pop_front() {
                match self.carry_out(order).await {
                    Ok(facts) => self.take(&mut machine, facts, &mut orders),
                    Err(outcome) => return outcome,
                }
            }
            let facts = self.wait(machine.deadline()).await;
            self.take(&mut machine, facts, &mut orders);
        }
    }

    fn take(&self, machine: &mut Successor, facts: Vec<Fact>, orders: &mut VecDeque<Order>) {
        let mut out = Vec::new();
        for fact in facts {
            machine.step(self.began.elapsed(), fact, &mut out);
        }
        orders.extend(out);
    }

    async fn wait(&mut self, deadline: Option<Duration>) -> Vec<Fact> {
        let at = self.began + deadline.unwrap_or(Duration::from_secs(3600));
        let life = self.got.life.as_ref();
        tokio::select! {
            biased;
            frame = self.channel.recv(), if !self.closed => self.read(frame),
            () = gone(life) => {
                let mut facts = Vec::new();
                while !self.closed {
                    let frame = self.channel.recv().await;
                    facts.extend(self.read(frame));
                }
                facts.push(Fact::Gone);
                facts
            }
            () = tokio::time::sleep_until(at) => vec![Fact::Tick],
        }
    }

    fn read(&mut self, frame: Result<Option<Frame>, Error>) -> Vec<Fact> {
        match frame {
            Ok(Some(frame)) => match self.read_frame(frame) {
                Ok(fact) => fact.into_iter().collect(),
                Err(why) => vec![Fact::Unusable(why)],
            },
            Ok(None) => {
                self.closed = true;
                vec![Fact::Closed]
            }
            // What was not written whole was not said.
            Err(Error::Cut) => {
                self.closed = true;
                vec![Fact::Closed]
            }
            Err(error) => {
                self.closed = true;
                tracing::error!(%error, "what the running daemon hands over cannot be received");
                // No end: there may be a decision in what is not read.
                vec![Fact::Unusable(error.to_string())]
            }
        }
    }

    /// # Errors
    /// What is not understood is not passed over: it may have been a decision.
    fn read_frame(&mut self, mut frame: Frame) -> Result<Option<Fact>, String> {
        let unread = |what: &str| format!("{what} that came is not understood");
        match Kind::of(frame.kind) {
            Some(Kind::Refuse | Kind::Abort) => {
                self.got.refusal = body_of(&frame);
                Ok(Some(Fact::Refused(Reason::Broken("it refuses, and its reason is not understood"))))
            }
            Some(Kind::Offer) => {
                let life = frame.fds.pop().and_then(|fd| Witness::new(fd).ok());
                self.got.life = Some(life.ok_or("an offer came without a life to watch")?);
                self.got.offer = Some(body_of(&frame).ok_or_else(|| unread("the offer"))?);
                if !self.got.text.is_empty() {
                    let text = std::mem::take(&mut self.got.text);
                    let ahead = Ahead::read(&self.codec(), &text);
                    self.got.ahead = ahead.map_err(|why| format!("the manifest is damaged: {why}"))?;
                }
                failpoint("takeover.n.offer");
                Ok(Some(Fact::Offered))
            }
            Some(Kind::Descriptors) => {
                let what: Descriptors = body_of(&frame).ok_or_else(|| unread("the list of descriptors"))?;
                if what.fds.len() != frame.fds.len() {
                    return Err("other descriptors came than were announced".to_owned());
                }
                self.got.fds = what.fds.into_iter().zip(frame.fds).collect();
                failpoint("takeover.n.descriptors");
                Ok(None)
            }
            Some(Kind::Manifest) => {
                if self.got.text.len() + frame.body.len() > LARGEST_MANIFEST {
                    return Err("the manifest is beyond all limits".to_owned());
                }
                self.got.text.extend_from_slice(&frame.body);
                Ok(None)
            }
            Some(Kind::End) => {
                failpoint("takeover.n.manifest");
                let end: End = body_of(&frame).ok_or_else(|| unread("the end of the manifest"))?;
                self.got.estate = Some(Box::new(self.assemble(&end)?));
                Ok(Some(Fact::Complete))
            }
            Some(Kind::Commit) => {
                failpoint("takeover.n.commit");
                Ok(Some(Fact::Commit))
            }
            _ => Err(unread(&format!("a frame of kind {}", frame.kind))),
        }
    }

    fn codec(&self) -> Codec<'_> {
        Codec { sealer: self.tools.sealer, key: self.tools.key }
    }

    /// Everything is checked before this process says that it could go on.
    fn assemble(&mut self, end: &End) -> Result<Estate, String> {
        let text = std::mem::take(&mut self.got.text);
        let ahead = std::mem::take(&mut self.got.ahead);
        let digest = ahead.end(&text, 0, 0);
        let read = ahead.read_rest(&self.codec(), &text);
        let (manifest, lent, links) = read.map_err(|why| format!("the manifest is damaged: {why}"))?;
        if *end != (End { sessions: manifest.sessions.len(), links, ..digest }) {
            return Err("the manifest is not what was sent".to_owned());
        }
        let offer = self.got.offer.as_ref().ok_or("nothing was offered")?;
        let life = self.got.life.take().ok_or("nothing was offered")?;
        // The original stays here: the predecessor's death decides what comes next.
        let copy =
            life.as_fd().try_clone_to_owned().and_then(Witness::new).map_err(|error| error.to_string())?;
        self.got.life = Some(life);
        let (mut socket, mut lock, mut port) = (None, None, None);
        let mut drains = vec![(manifest.generation, copy)];
        for (what, fd) in self.got.fds.drain(..) {
            match what {
                Descriptor::Socket => socket = Some(fd),
                Descriptor::Lock => lock = Some(fd),
                Descriptor::Port => port = Some(fd),
                Descriptor::Drains(generation) => {
                    let witness = Witness::new(fd).map_err(|error| error.to_string())?;
                    drains.push((Generation(generation), witness));
                }
            }
        }
        let lock = DaemonLock::from_passed(File::from(lock.ok_or("no lock came")?), self.tools.state)
            .map_err(|error| error.to_string())?;
        let socket = Socket::from_passed(self.tools.socket, socket.ok_or("no socket came")?)
            .map_err(|error| format!("the socket cannot be used: {error}"))?;
        let generation = Generation(offer.generation);
        let journal =
            CallJournal::open_beside(self.tools.state, generation).map_err(|error| error.to_string())?;
        Ok(Estate { generation, socket, lock, port, manifest, lent, journal, drains })
    }

    async fn carry_out(&mut self, order: Order) -> Result<Vec<Fact>, Outcome> {
        match order {
            Order::Hello => {
                let records = known_records();
                let version = env!("CARGO_PKG_VERSION").to_owned();
                let hello = Hello { protocol: PROTOCOL, records, version };
                let sent = say(&mut self.channel, Kind::Hello, &hello, &[self.tools.life.as_fd()]).await;
                failpoint("takeover.n.hello");
                Ok(unless(sent))
            }
            Order::Accept => {
                let sent = self.say(Kind::Accept, &Nothing {}).await;
                failpoint("takeover.n.accept");
                Ok(unless(sent))
            }
            Order::Ready => {
                let sent = self.say(Kind::Ready, &Nothing {}).await;
                failpoint("takeover.n.ready");
                Ok(vec![if sent { Fact::ReadyWritten } else { Fact::SendFailed }])
            }
            Order::Decline(reason) => {
                self.say(Kind::Decline, &Declined { reason }).await;
                Ok(Vec::new())
            }
            Order::Active => {
                let sent = self.say(Kind::Active, &Nothing {}).await;
                failpoint("takeover.n.active");
                Ok(vec![if sent { Fact::ActiveWritten } else { Fact::SendFailed }])
            }
            Order::Serve { adopted } => Err(self.serve(adopted)),
            Order::StartCold => Err(Outcome::Cold),
            Order::GiveUp(reason) => Err(self.give_up(&reason)),
        }
    }

    async fn say(&mut self, kind: Kind, value: &impl serde::Serialize) -> bool {
        say(&mut self.channel, kind, value, &[]).await
    }

    fn serve(&mut self, adopted: bool) -> Outcome {
        if adopted {
            tracing::warn!("the running daemon died in the middle of the takeover; its sessions are adopted");
        }
        match self.got.estate.take() {
            Some(estate) => Outcome::Taken(estate),
            None => Outcome::Refused { reason: "nothing was handed over".to_owned(), again: false },
        }
    }

    /// The predecessor's own words, if it said any.
    fn give_up(&mut self, reason: &Reason) -> Outcome {
        match self.got.refusal.take() {
            Some(Refusal { reason, again }) => Outcome::Refused { reason, again },
            None if self.got.estate.is_none() && self.closed => Outcome::Lost { reason: reason.to_string() },
            // A daemon that did not answer this one will not answer the next.
            None => Outcome::Refused { reason: reason.to_string(), again: false },
        }
    }
}

fn unless(sent: bool) -> Vec<Fact> {
    if sent { Vec::new() } else { vec![Fact::SendFailed] }
}

async fn gone(life: Option<&Witness>) {
    match life {
        Some(life) => super::gone(life).await,
        None => std::future::pending().await,
    }
}

/// What this build reads; in tests one of long ago.
fn known_records() -> (u32, u32) {
    if evermux_store::is_armed("takeover.n.old_records") { (0, 0) } else { evermux_store::RECORD_VERSIONS }
}

#[cfg(test)]
mod tests;
