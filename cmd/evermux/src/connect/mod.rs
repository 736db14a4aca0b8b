//! `evermux connect NAME`: the stdio end for one MCP client, and a small client of the daemon.
//!
//! It outlives the daemon: what the client sent is kept until it is settled, and is sent again under its number
//! to whichever daemon answers next. The client sees one server that is never away.
//!
//! * [`machine`] decides everything, and does nothing.
//! * [`exchange`] and [`stdio`] do what it orders, and decide nothing.
//! * This file runs the loop between them: one thread, no locks.
//!
//! stdout carries JSON-RPC lines and nothing else, ever; words go to stderr. The process stays small: it touches
//! no TLS and no HTTP/2, and holds only messages that are under way.

mod backoff;
mod entry;
mod envelope;
mod exchange;
mod facts;
mod machine;
mod offer;
mod spawn;
mod stdio;

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use evermux_config::{ConfigError, Paths};
use mcp_wire::LineDecoder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep};

use self::envelope::ErrorKind;
use self::exchange::{Daemon, Facts};
use self::facts::{Input, Order};
use self::machine::Machine;
use self::stdio::{Outbox, Sink, Source};
use crate::limits::Limits;
use crate::report::{Failure, chain, say};

/// The longest line of a client, in bytes.
const LINE_LIMIT: usize = 64 << 20;
/// Bytes that may wait for stdout before bodies are no longer read.
const OUT_LIMIT: usize = 1 << 20;
/// So long the last lines may take to leave, once all is decided.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// Before a daemon counts as hanging, what has come meanwhile is looked at.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// Runs the shim to its end; returns the exit code.
pub(crate) fn run(paths: Paths, upstream: &str, no_start: bool) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot start: {error}"));
    let machine = match refusal(&paths, upstream) {
        None => Machine::new(upstream, !no_start, seed()).giving_up_after(Limits::get().give_up),
        Some(refusal) => {
            refusal.print();
            Machine::doomed(upstream, refusal.exit, ErrorKind::Misconfigured, refusal.one_line())
        }
    };
    let Some(daemon) = Daemon::new(paths, upstream) else {
        return Err(Failure::config(format!("`{upstream}` cannot be the name of an upstream")));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let exit = runtime.block_on(async {
        // A task of its own: each wake-up of the one that the runtime waits for costs it a look at all its sockets.
        tokio::spawn(Shim::new(machine, daemon)?.run()).await.map_err(std::io::Error::other)
    });
    let exit = exit.map_err(failed);
    // A thread that sits in a read of a terminal would be waited for.
    runtime.shutdown_background();
    exit
}

/// Why NAME cannot be served, whatever the daemon says.
fn refusal(paths: &Paths, upstream: &str) -> Option<Failure> {
    let file = paths.config_file.display().to_string();
    let config = match evermux_config::load(&paths.config_file) {
        Ok(config) => config,
        Err(error @ (ConfigError::Read { .. } | ConfigError::Invalid { .. })) => {
            return Some(Failure::config(chain(&error)).at(file).next("correct the file and connect again"));
        }
    };
    if config.upstreams.keys().any(|name| name.as_str() == upstream) {
        return None;
    }
    let shown = upstream.escape_default();
    let next = format!("see `evermux list`, or add it: `evermux add {shown} URL`");
    Some(Failure::config(format!("no upstream `{shown}` in the config")).at(file).next(next))
}

fn seed() -> u64 {
    // Without randomness the shims of one machine only lose their spread.
    getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()))
}

/// Fires at the first signal that asks this process to end. A task of its own, so that three signals are not looked at
/// each time the loop waits.
fn signals() -> std::io::Result<oneshot::Receiver<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
        tell.send(()).unwrap_or_default();
    });
    Ok(told)
}

/// What woke the loop.
enum Woken {
    Facts(Option<Input>),
    Read(std::io::Result<Bytes>),
    Wrote(std::io::Result<()>),
    Tick,
    Told,
}

/// A message that was posted and has no head yet.
struct Awaited {
    seq: u64,
    until: Instant,
    /// The time was over once.
    late: bool,
    exchange: AbortHandle,
}

/// One timer for everything. It is set for an earlier time only, and rings for nothing now and then: setting and
/// taking back one for each message costs a system call each time, as the only one of an idle runtime.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    armed: Option<Instant>,
}

impl Alarm {
    fn set(&mut self, at: Option<Instant>) {
        if let Some(at) = at.filter(|at| self.armed.is_none_or(|armed| *at < armed)) {
            self.sleep.as_mut().reset(at);
            self.armed = Some(at);
        }
    }
}

struct Shim {
    machine: Machine,
    daemon: Daemon,
    began: Instant,
    source: Source,
    stdin_open: bool,
    lines: LineDecoder,
    /// The client wrote more lines than the one that is dealt with.
    followed: bool,
    sink: Sink,
    outbox: Outbox,
    stdout_open: bool,
    facts: Facts,
    inbox: mpsc::Receiver<Input>,
    /// Every exchange that runs; all end with the shim.
    exchanges: JoinSet<()>,
    stream: Option<AbortHandle>,
    /// The message whose head is awaited.
    awaited: Option<Awaited>,
    alarm: Alarm,
    /// Asked to end, or the terminal is gone.
    told: oneshot::Receiver<()>,
    exit: Option<u8>,
}

impl Shim {
    fn new(machine: Machine, daemon: Daemon) -> std::io::Result<Self> {
        let (facts, inbox) = mpsc::channel(1);
        Ok(Self {
            machine,
            daemon,
            began: Instant::now(),
            source: Source::stdin()?,
            stdin_open: true,
            lines: LineDecoder::new(LINE_LIMIT),
            followed: false,
            sink: Sink::stdout()?,
            outbox: Outbox::default(),
            stdout_open: true,
            facts,
            inbox,
            exchanges: JoinSet::new(),
            stream: None,
            awaited: None,
            alarm: Alarm { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), armed: None },
            told: signals()?,
            exit: None,
        })
    }

    async fn run(mut self) -> u8 {
        self.feed(Input::Start);
        let exit = loop {
            if let Some(exit) = self.exit {
                break exit;
            }
            let woken = self.wait().await;
            self.take(woken);
            while self.exchanges.try_join_next().is_some() {}
        };
        let flush = async {
            while self.stdout_open && self.outbox.length() > 0 {
                self.stdout_open = self.outbox.write_some(&mut self.sink).await.is_ok();
            }
            self.sink.finish().await;
        };
        if tokio::time::timeout(FLUSH_LIMIT, flush).await.is_err() {
            say("evermux: the client does not read; the last answers are lost");
        }
        exit
    }

    async fn wait(&mut self) -> Woken {
        let room = self.outbox.length() < OUT_LIMIT;
        let read = self.stdin_open && room && self.machine.wants_input();
        let write = self.stdout_open && self.outbox.length() > 0;
        let due = self.machine.deadline().map(|deadline| self.began + deadline);
        self.alarm.set(due.into_iter().chain(self.awaited.as_ref().map(|awaited| awaited.until)).min());
        tokio::select! {
            // Writing first, so that what is decided leaves before more is taken in.
            biased;
            wrote = self.outbox.write_some(&mut self.sink), if write => Woken::Wrote(wrote),
            fact = self.inbox.recv(), if room => Woken::Facts(fact),
            chunk = self.source.read(), if read => Woken::Read(chunk),
            () = self.alarm.sleep.as_mut(), if self.alarm.armed.is_some() => Woken::Tick,
            _ = &mut self.told, if !self.told.is_terminated() => Woken::Told,
        }
    }

    fn take(&mut self, woken: Woken) {
        match woken {
            Woken::Facts(fact) => fact.into_iter().for_each(|fact| self.feed(fact)),
            Woken::Read(Ok(chunk)) if !chunk.is_empty() => {
                self.lines.push(chunk);
                self.read_lines();
            }
            // An error of stdin ends it like its end does.
            Woken::Read(_end) => {
                self.stdin_open = false;
                while let Some(line) = self.lines.finish() {
                    self.feed_line(line);
                }
                self.feed(Input::Eof);
            }
            Woken::Wrote(Ok(())) => {}
            Woken::Wrote(Err(error)) => {
                if !stdio::is_gone(&error) {
                    say(&format!("evermux: stdout cannot be written: {error}"));
                }
                self.stdout_open = false;
                self.feed(Input::Abandon);
            }
            Woken::Tick => self.ring(),
            Woken::Told => self.feed(Input::Abandon),
        }
    }

    fn ring(&mut self) {
        self.alarm.armed = None;
        let now = Instant::now();
        if let Some(awaited) = self.awaited.as_mut().filter(|awaited| awaited.until <= now) {
            if !self.inbox.is_empty() {
                // A stdout that is not read holds facts back, and the head may be among them.
                awaited.until = now + Limits::get().head;
            } else if !std::mem::replace(&mut awaited.late, true) {
                // A process that was stopped finds the time over and the head come, and looks at the time first.
                awaited.until = now + SECOND_LOOK;
            }
        }
        match self.awaited.take_if(|awaited| awaited.until <= now) {
            Some(Awaited { seq, exchange, .. }) => {
                // It tells nothing more.
                exchange.abort();
                self.feed(Input::Hung { seq });
            }
            None => self.feed(Input::Tick),
        }
    }

    fn read_lines(&mut self) {
        let mut next = self.lines.next_line();
        while let Some(line) = next {
            next = self.lines.next_line();
            self.followed = next.is_some();
            self.feed_line(line);
        }
    }

    fn feed_line(&mut self, line: Result<Bytes, mcp_wire::LineTooLong>) {
        self.feed(match line {
            Ok(line) => Input::Line(line),
            Err(error) => Input::LineTooLong(error),
        });
    }

    fn feed(&mut self, input: Input) {
        if let Some(seq) = input.ends_posting() {
            self.awaited.take_if(|awaited| awaited.seq == seq);
        }
        let mut orders = Vec::new();
        self.machine.handle(self.began.elapsed(), input, &mut orders);
        for order in orders {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Order) {
        let (daemon, facts) = (self.daemon.clone(), self.facts.clone());
        match order {
            Order::Reach { may_start } => drop(self.exchanges.spawn(daemon.reach(may_start, facts))),
            Order::Post(mut post) => {
                post.more |= self.followed;
                let (seq, until) = (post.seq, Instant::now() + Limits::get().head);
                let exchange = self.exchanges.spawn(daemon.post(post, facts));
                self.awaited = Some(Awaited { seq, until, late: false, exchange });
            }
            Order::OpenStream { link, version, last_event } => {
                let stream = daemon.stream(link, version, last_event, facts);
                self.stream = Some(self.exchanges.spawn(stream));
            }
            Order::CloseStream => self.stream.take().into_iter().for_each(|stream| stream.abort()),
            Order::Offer => drop(self.exchanges.spawn(daemon.offer())),
            Order::Reload => drop(self.exchanges.spawn(daemon.reload(facts))),
            Order::Delete { link, version } => {
                drop(self.exchanges.spawn(daemon.delete(link, version, facts)))
            }
            Order::Write(_) if !self.stdout_open => {}
            Order::Write(line) => self.outbox.push(line),
            Order::Say(line) => say(&line),
            Order::Exit(code) => self.exit = Some(code),
        }
    }
}
