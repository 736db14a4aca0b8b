//! The shim's loop: waits for stdin, stdout, the daemon's connections and the errands at once, tells the machine what
//! happened, and does what it orders. One thread, no locks, no decisions.
//!
//! What is decided leaves before more is taken in, and while stdout is not read nothing is: it all waits where it is.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Read as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcp_http::exchange::{Message, SOCKET_MAX_IDLE};
use mcp_wire::{LineDecoder, LineTooLong};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::errand::{Errand, Errands, Place};
use super::exchange::{self, Of, Running, Step};
use super::facts::{Input, Order, Post};
use super::machine::Machine;
use super::scratch::Scratch;
use super::socket::Socket;
use super::stdio::{self, Sink, Source};
use crate::limits::Limits;
use crate::report::say;

/// The longest line of a client, in bytes.
const LINE_LIMIT: usize = 64 << 20;
/// Bytes that may wait for stdout before bodies are no longer read.
const OUT_LIMIT: usize = 1 << 20;
/// So long the last lines may take to leave, once all is decided.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// Before a wait is tried again that the system refused.
const FAILED_WAIT: Duration = Duration::from_millis(100);

/// A message that was posted and has no head yet.
struct Awaited {
    seq: u64,
    until: Instant,
}

/// What a wait found.
#[derive(Default)]
struct Ready {
    /// Stdout had room, so the exchanges were waited for.
    room: bool,
    errands: bool,
    stdout: bool,
    stdin: bool,
    /// Those of the exchanges, by their place.
    exchanges: Vec<usize>,
}

/// See the module's head.
pub(crate) struct Pump {
    machine: Machine,
    began: Instant,
    /// Told to the machine next; a fact that comes of an order waits until the orders before it are carried out.
    told: VecDeque<Input>,
    /// Before stdin, since it was made after it: where both are one open file, what was found first is put back last.
    sink: Sink,
    stdout_open: bool,
    source: Source,
    stdin_open: bool,
    lines: LineDecoder,
    /// The client wrote more lines than the one that is dealt with.
    followed: bool,
    scratch: Rc<RefCell<Scratch>>,
    socket: PathBuf,
    path: String,
    exchanges: Vec<Running>,
    /// Counts the daemons that were found: a connection from before the last is not kept, since it may lead to one that
    /// has handed over.
    era: u32,
    /// Some of them may have more to tell, although nothing comes: stdout had no room for it.
    held_back: bool,
    idle: Vec<(Socket, Instant)>,
    awaited: Option<Awaited>,
    errands: Errands,
    exit: Option<u8>,
}

impl Pump {
    pub(crate) fn new(machine: Machine, daemon: Place) -> std::io::Result<Self> {
        Ok(Self {
            machine,
            began: Instant::now(),
            told: VecDeque::new(),
            source: Source::stdin()?,
            stdin_open: true,
            lines: LineDecoder::new(LINE_LIMIT),
            followed: false,
            sink: Sink::stdout()?,
            stdout_open: true,
            scratch: Rc::default(),
            socket: daemon.paths.socket(),
            path: daemon.url.path().to_owned(),
            exchanges: Vec::new(),
            era: 0,
            held_back: false,
            idle: Vec::new(),
            awaited: None,
            errands: Errands::new(daemon)?,
            exit: None,
        })
    }

    /// Runs until the machine says that it is over; returns the exit code.
    pub(crate) fn run(mut self) -> u8 {
        self.feed(Input::Start);
        let exit = loop {
            if self.sink.never_blocks() {
                self.write();
            }
            if let Some(exit) = self.exit {
                break exit;
            }
            // Before the wait: what it did not find by then was not there.
            let now = Instant::now();
            let ready = self.wait(now);
            let room = ready.room;
            self.take(ready);
            self.ring(now, room);
        };
        self.flush();
        exit
    }

    fn has_room(&self) -> bool {
        self.sink.length() < OUT_LIMIT
    }

    /// When the loop has to look again, if nothing happens.
    fn due(&self) -> Option<Instant> {
        let machine = self.machine.deadline().map(|deadline| self.began + deadline);
        let awaited = self.awaited.as_ref().map(|awaited| awaited.until);
        let idle = self.idle.first().map(|(_, since)| *since + Limits::get().idle);
        machine.into_iter().chain(awaited).chain(idle).min()
    }

    fn wait(&self, now: Instant) -> Ready {
        let room = self.has_room();
        let mut due = self.due().map(|due| due.saturating_duration_since(now));
        if room && self.held_back {
            due = Some(Duration::ZERO);
        }
        let flags = |wanted: bool, flags| if wanted { flags } else { PollFlags::empty() };
        let read = self.stdin_open && room && self.machine.wants_input();
        let write = self.stdout_open && self.sink.length() > 0;
        let mut files = Vec::with_capacity(3 + self.exchanges.len());
        files.push(PollFd::new(&self.errands.wake, PollFlags::IN));
        // A file that nobody waits for is left out: its end would be told again and again.
        if write {
            files.push(PollFd::new(&self.sink, PollFlags::OUT));
        }
        if read {
            files.push(PollFd::new(&self.source, PollFlags::IN));
        }
        if room {
            files.extend(self.exchanges.iter().map(|running| {
                let writing = flags(running.exchange.is_writing(), PollFlags::OUT);
                PollFd::new(running.exchange.wire(), PollFlags::IN | writing)
            }));
        }
        match poll(&mut files, due.map(timespec).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ready::default(),
            Err(error) => {
                // Only memory can be short here, and a loop that goes on at once would take the processor too. This wait
                // needs none.
                say(&format!("evermux: waiting failed: {error}"));
                poll(&mut [], Some(&timespec(FAILED_WAIT))).unwrap_or_default();
                return Ready::default();
            }
        }
        let mut events = files.iter().map(|file| !file.revents().is_empty());
        let errands = events.next().unwrap_or(false);
        let stdout = write && events.next().unwrap_or(false);
        let stdin = read && events.next().unwrap_or(false);
        let exchanges = events.enumerate().filter_map(|(at, ready)| ready.then_some(at)).collect();
        Ready { room, errands, stdout, stdin, exchanges }
    }

    fn take(&mut self, ready: Ready) {
        if ready.stdout {
            self.write();
        }
        if ready.errands {
            self.hear();
        }
        for at in ready.exchanges {
            if let Some(running) = self.exchanges.get_mut(at) {
                running.exchange.wire_mut().is_readable_now();
                running.is_ready = true;
            }
        }
        self.drive();
        if ready.stdin {
            self.read();
        }
    }

    /// What the errands found.
    fn hear(&mut self) {
        // As many bytes as there are facts, and some may be behind: the facts are what counts.
        let _bytes = (&self.errands.wake).read(&mut [0; 64]);
        while let Some(fact) = self.errands.found() {
            if matches!(fact, Input::Reached(_)) {
                self.era += 1;
                self.idle.clear();
            }
            self.feed(fact);
        }
    }

    /// Brings the exchanges that are ready as far as they go.
    fn drive(&mut self) {
        if !self.exchanges.iter().any(|running| running.is_ready) {
            self.held_back = false;
            return;
        }
        let mut at = 0;
        while let Some(running) = self.exchanges.get(at) {
            // What it tells may end others, and begin some at the end.
            let of = running.of;
            if running.is_ready {
                self.advance(of);
            }
            let here = self.exchanges.get(at).is_some_and(|running| running.of == of);
            at += usize::from(here);
        }
        self.held_back = self.exchanges.iter().any(|running| running.is_ready);
    }

    /// One exchange, until it has no more to tell or stdout no more room.
    fn advance(&mut self, of: Of) {
        while self.has_room() {
            let Some(at) = self.exchanges.iter().position(|running| running.of == of) else { return };
            let Some(running) = self.exchanges.get_mut(at) else { return };
            match running.step() {
                Step::Fact(fact) => self.feed(fact),
                Step::Over(fact) => {
                    let over = self.exchanges.remove(at);
                    self.keep(over);
                    self.feed(fact);
                    return;
                }
                Step::Pending => {
                    running.is_ready = false;
                    return;
                }
            }
        }
    }

    fn keep(&mut self, over: Running) {
        if over.era == self.era
            && self.idle.len() < SOCKET_MAX_IDLE
            && let Some(socket) = over.exchange.into_reusable()
        {
            self.idle.push((socket, Instant::now()));
        }
    }

    /// What time has brought; `now` is from before the wait that found nothing else, and `room` from the wait.
    fn ring(&mut self, now: Instant, room: bool) {
        self.idle.retain(|(_, since)| now < *since + Limits::get().idle);
        if let Some(awaited) = self.awaited.as_mut().filter(|awaited| awaited.until <= now) {
            let seq = awaited.seq;
            if room {
                self.awaited = None;
                self.exchanges.retain(|running| running.of != Of::Post(seq));
                self.feed(Input::Hung { seq });
            } else {
                // A stdout that is not read holds everything back, and the head may be among it.
                awaited.until = now + Limits::get().head;
            }
        }
        if self.machine.deadline().is_some_and(|deadline| self.began + deadline <= now) {
            self.feed(Input::Tick);
        }
    }

    fn read(&mut self) {
        if !self.machine.wants_input() {
            // What was dealt with just now was the end.
            return;
        }
        let chunk = self.source.read(&mut self.scratch.borrow_mut());
        match chunk {
            Ok(None) => {}
            Ok(Some(chunk)) if !chunk.is_empty() => {
                self.lines.push(chunk);
                let mut next = self.lines.next_line();
                while let Some(line) = next {
                    next = self.lines.next_line();
                    self.followed = next.is_some();
                    self.feed(line_of(line));
                }
            }
            // An error of stdin ends it like its end does.
            Ok(Some(_)) | Err(_) => {
                self.stdin_open = false;
                while let Some(line) = self.lines.finish() {
                    self.feed(line_of(line));
                }
                self.feed(Input::Eof);
            }
        }
    }

    /// Writes once; what is left waits for room.
    fn write(&mut self) {
        if !self.stdout_open || self.sink.length() == 0 {
            return;
        }
        if let Err(error) = self.sink.write() {
            if !stdio::is_gone(&error) {
                say(&format!("evermux: stdout cannot be written: {error}"));
            }
            self.stdout_open = false;
            self.feed(Input::Abandon);
        }
    }

    /// Waits until the last lines have left.
    fn flush(&mut self) {
        let until = Instant::now() + FLUSH_LIMIT;
        while self.stdout_open && self.sink.length() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return say("evermux: the client does not read; the last answers are lost");
            }
            let mut files = [PollFd::new(&self.sink, PollFlags::OUT)];
            if poll(&mut files, Some(&timespec(left))).is_ok_and(|ready| ready > 0) {
                self.stdout_open = self.sink.write().is_ok();
            }
        }
    }

    fn feed(&mut self, input: Input) {
        self.told.push_back(input);
        let mut orders = Vec::new();
        while let Some(input) = self.told.pop_front() {
            if let Some(seq) = input.ends_posting() {
                self.awaited.take_if(|awaited| awaited.seq == seq);
            }
            self.machine.handle(self.began.elapsed(), input, &mut orders);
            for order in orders.drain(..) {
                self.obey(order);
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Post(mut post) => {
                post.more |= self.followed;
                self.post(&post);
            }
            Order::OpenStream { link, version, last_event } => {
                let (link, version) = (link.as_deref(), version.as_deref());
                let message = exchange::stream(&self.path, link, version, last_event.as_deref());
                self.begin(Of::Stream, &message);
            }
            Order::CloseStream => self.exchanges.retain(|running| running.of != Of::Stream),
            Order::Reach { may_start } => self.send_out(Errand::Reach { may_start }),
            Order::Offer => self.send_out(Errand::Offer),
            Order::Reload => self.send_out(Errand::Reload),
            Order::Delete { link, version } => self.send_out(Errand::Delete { link, version }),
            Order::Write(_) if !self.stdout_open => {}
            Order::Write(line) => self.sink.push(line),
            Order::Say(line) => say(&line),
            Order::Exit(code) => self.exit = Some(code),
        }
    }

    /// What there is no thread for is told as a failure that may pass.
    fn send_out(&mut self, errand: Errand) {
        let failed = errand.failed();
        if let Err(error) = self.errands.run(errand) {
            say(&format!("evermux: no thread can be had: {error}"));
            self.told.extend(failed);
        }
    }

    fn post(&mut self, post: &Post) {
        self.awaited = Some(Awaited { seq: post.seq, until: Instant::now() + Limits::get().head });
        let message = exchange::post(&self.path, post);
        self.begin(Of::Post(post.seq), &message);
    }

    /// Sends a request, on an idle connection if one still lives: one that the daemon closed meanwhile takes no byte.
    fn begin(&mut self, of: Of, message: &Message) {
        let dialed = std::iter::once_with(|| Socket::dial(&self.socket, &self.scratch).ok()).flatten();
        let idle = std::iter::from_fn(|| self.idle.pop()).map(|(socket, _)| socket);
        let sent = idle.chain(dialed).find_map(|socket| {
            let mut running = Running::new(of, socket, message.clone(), self.era);
            running.send().then_some(running)
        });
        match sent {
            Some(running) => self.exchanges.push(running),
            None => self.told.push_back(exchange::never_sent(of)),
        }
    }
}

fn line_of(line: Result<Bytes, LineTooLong>) -> Input {
    match line {
        Ok(line) => Input::Line(line),
        Err(error) => Input::LineTooLong(error),
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
