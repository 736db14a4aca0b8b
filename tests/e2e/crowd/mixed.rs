//! Fifty clients that do all sorts of things, leave, come back and lose their daemon, against a reference model: what
//! each was told, compared with what the upstream did.
//!
//! P1 one answer or a broken connection; P2 nobody else's answer or progress; P3 ids once (the upstream's own check);
//! P4 nothing sent twice; P5 nothing after the answer; P6 one session id, in one session; P7 questions to whom they
//! concern, answered once (the upstream's own check); P13 bytes as they were. P8 is the core's to hold, P9 of slow
//! clients and, here, of memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, Harness, Script, Upstream};

use super::socket::SocketClient;
use super::{descriptors, resident, seconds};
use crate::support::{PATIENCE, with_settings};

const LINKS: usize = 50;
/// In KiB: what an allocator may keep back.
const SLACK: u64 = 8 * 1024;

/// Numbers that repeat for a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// How often a side effect may have happened, by what its caller was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Done,
    Unknown,
    Not,
}

struct Worker<'a> {
    harness: &'a Harness,
    client: SocketClient,
    name: usize,
    dice: Dice,
    steps: u64,
    effects: BTreeMap<String, Told>,
    answered: usize,
    questions: usize,
}

impl<'a> Worker<'a> {
    fn new(harness: &'a Harness, name: usize) -> Self {
        let dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (name as u64 + 1));
        let client = SocketClient::new(harness);
        Self { harness, client, name, dice, steps: 0, effects: BTreeMap::new(), answered: 0, questions: 0 }
    }

    fn step(&mut self) {
        self.steps += 1;
        if !self.client.is_greeted() {
            self.client.retried(SocketClient::initialize);
        }
        let done = match self.dice.roll(18) {
            0..=3 => self.echo(),
            4..=6 => self.side_effect(),
            7 => self.with_progress(),
            8 => self.pass("tools/list", "{}"),
            9 => self.pass("resources/read", r#"{"uri":"test://nothing"}"#),
            10 => self.pass("vendor/unheard-of", r#"{"x":1e400}"#),
            11 => self.pass("ping", "{}"),
            12 => self.client.cancelled("tools/call", r#"{"name":"slow","arguments":{"ms":2000,"steps":3}}"#),
            13 => self.client.abandon("tools/call", r#"{"name":"echo","arguments":{"nobody":"listens"}}"#),
            14 => self.subscription(),
            15..=16 => self.question(),
            _ => self.leave(),
        };
        // A broken connection is an answer too: the daemon was killed. The next step goes on.
        self.answered += usize::from(done.is_ok());
    }

    fn mark(&self) -> String {
        format!("{}-{}", self.name, self.steps)
    }

    fn took(&self, answer: &Answer) {
        let last =
            self.client.body.lines().rfind(|line| line.starts_with("data: {") || line.starts_with('{'));
        assert!(last.is_some_and(|line| line.ends_with(&answer.raw)), "P5: {}", self.client.body);
    }

    fn echo(&mut self) -> io::Result<()> {
        let arguments =
            format!(r#"{{"mark":"{}","n":12345678901234567890,"x":1e400,"k":1,"k":2}}"#, self.mark());
        let answer = self.client.call("echo", &arguments)?;
        self.took(&answer);
        let ours = answer.raw.contains(&format!(r#""structuredContent":{arguments}"#));
        assert!(ours || answer.evermux_kind().is_some(), "P2, P13: {}", answer.raw);
        Ok(())
    }

    fn side_effect(&mut self) -> io::Result<()> {
        let key = self.mark();
        self.effects.insert(key.clone(), Told::Unknown);
        let answer = self.client.call("side_effect", &format!(r#"{{"key":"{key}"}}"#))?;
        let told = match answer.error() {
            None => Told::Done,
            Some(error) if error["data"]["evermux"]["outcome"] == "unknown" => Told::Unknown,
            Some(_) => Told::Not,
        };
        self.effects.insert(key, told);
        Ok(())
    }

    fn with_progress(&mut self) -> io::Result<()> {
        let params = r#"{"name":"slow","arguments":{"ms":20,"steps":3},"_meta":{"progressToken":"mine"}}"#;
        let params = params.replace("mine", &self.mark());
        let answer = self.client.request("tools/call", &params)?;
        self.took(&answer);
        let progress = self.client.body.lines().filter(|line| line.contains("notifications/progress"));
        for line in progress {
            assert!(line.contains(&format!(r#""progressToken":"{}""#, self.mark())), "P2: {line}");
        }
        Ok(())
    }

    fn question(&mut self) -> io::Result<()> {
        let mark = self.mark();
        let answer = self.client.asked(&mark)?;
        let ours = answer.structured()["result"]["content"]["mark"] == *mark;
        assert!(ours || answer.evermux_kind().is_some(), "P7: {mark}: {}", answer.raw);
        self.questions += usize::from(ours);
        Ok(())
    }

    fn pass(&mut self, method: &str, params: &str) -> io::Result<()> {
        let answer = self.client.request(method, params)?;
        self.took(&answer);
        Ok(())
    }

    fn subscription(&mut self) -> io::Result<()> {
        let method = if self.dice.roll(2) == 0 { "resources/subscribe" } else { "resources/unsubscribe" };
        let uri = format!(r#"{{"uri":"test://{}"}}"#, self.dice.roll(3));
        self.pass(method, &uri)
    }

    /// Ends the link, or just goes.
    fn leave(&mut self) -> io::Result<()> {
        let ended = if self.dice.roll(2) == 0 { self.client.end() } else { Ok(()) };
        self.client = SocketClient::new(self.harness);
        ended
    }
}

fn run_until(workers: &mut [Worker<'_>], stop: &AtomicBool, meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        for worker in workers.iter_mut() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    worker.step();
                }
            });
        }
        meanwhile();
        stop.store(true, Ordering::Relaxed);
    });
    stop.store(false, Ordering::Relaxed);
}

/// Comes back when that much time has passed, doing something useful with it now and then.
fn spend(time: Duration, mut each: impl FnMut() -> bool) {
    let until = Instant::now() + time;
    while Instant::now() < until && poll_until(until - Instant::now(), || each().then_some(())).is_some() {}
}

#[track_caller]
fn check_effects(workers: &[Worker<'_>], upstream: &Upstream) {
    let mut told = BTreeMap::<&str, usize>::new();
    for (key, outcome) in workers.iter().flat_map(|worker| &worker.effects) {
        let count = upstream.side_effects(key);
        let (word, fits) = match outcome {
            Told::Done => ("done", count == 1),
            Told::Unknown => ("unknown", count <= 1),
            Told::Not => ("not", count == 0),
        };
        assert!(fits, "P4: {key} was told {outcome:?} and happened {count} times");
        *told.entry(word).or_default() += 1;
    }
    assert!(told.get("done").is_some_and(|count| *count > LINKS), "hardly any was answered: {told:?}");
}

#[test]
fn fifty_clients_do_all_sorts_of_things() {
    let (harness, upstream) = with_settings(Script::default(), "idle = \"2s\"\n");
    harness.start_daemon();
    // A kill in the middle of the very first handshake may cost a second one; that is another test's.
    SocketClient::greeted(&harness).end().unwrap();
    let stop = AtomicBool::new(false);
    let mut workers: Vec<_> = (0..LINKS).map(|name| Worker::new(&harness, name)).collect();
    // Half of the time the daemon is killed again and again …
    run_until(&mut workers, &stop, || {
        spend(seconds(5, 30), || {
            let working = harness.status();
            if working["sessions"][0]["in_flight"].as_u64().is_some_and(|calls| calls > 0) {
                harness.kill_daemon();
                harness.start_daemon();
            }
            true
        });
    });
    // … and half of the time it is left alone.
    let pid = harness.daemon_pid().unwrap();
    run_until(&mut workers, &stop, || spend(seconds(1, 5), || harness.status()["daemon"]["pid"].is_u64()));
    let warm = resident(pid);
    run_until(&mut workers, &stop, || spend(seconds(4, 25), || harness.status()["daemon"]["pid"].is_u64()));
    let late = resident(pid);
    assert!(late <= warm + SLACK, "memory grows: {warm} KiB, then {late} KiB");
    for worker in &mut workers {
        assert!(
            worker.answered > 10,
            "{} had {} answers in {} steps",
            worker.name,
            worker.answered,
            worker.steps
        );
        worker.leave().ok();
    }
    harness.wait_status(PATIENCE, |status| {
        let session = &status["sessions"][0];
        (session["links"] == 0 && session["in_flight"] == 0).then_some(())
    });
    // Log, lock, socket, journal and what the runtime needs; all that came with clients and calls is gone.
    let least = poll_until(PATIENCE, || (descriptors(pid) <= 24).then_some(()));
    assert!(least.is_some(), "{} descriptors are left", descriptors(pid));
    check_effects(&workers, &upstream);
    assert!(workers.iter().map(|worker| worker.questions).sum::<usize>() > LINKS, "hardly anybody was asked");
    assert_eq!((upstream.initializes(), upstream.minted_sessions().len(), upstream.deletes()), (1, 1, 0));
    upstream.assert_no_violations();
}
