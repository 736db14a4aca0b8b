//! A steady load for a long time while the daemon is killed again and again: nothing lost, nothing twice, no second
//! handshake, and nothing that grows.
//!
//! A minute in CI, ten with `EVERMUX_FULL=1`. The rate is what is aimed at; on a busy machine it is less, and what is
//! checked is the same.

mod figures;
mod judge;
mod pace;
mod plain;
mod worker;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Script, Upstream};
use nix::sys::signal::Signal;

use self::figures::{Sample, check_flat};
use self::pace::Pace;
use self::plain::Plain;
use self::worker::{URIS, Worker};
use crate::support::{PATIENCE, with_upstream};

/// Calls a second, over all clients.
const RATE: u32 = 200;
const SHIMS: usize = 5;
/// HTTP clients on the loopback port.
const PLAIN: usize = 3;
/// How long a daemon lives.
const LIFE: Duration = Duration::from_secs(20);
/// How long before its end it is looked at: time enough for calls of every age to be out again.
const LAST: Duration = Duration::from_secs(4);

const TOOLS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// How long it takes altogether, and how long the last daemon is left alone, so that what is small shows.
fn lengths() -> (Duration, Duration) {
    let is_full = std::env::var_os("EVERMUX_FULL").is_some_and(|value| value == "1");
    let (all, last) = if is_full { (600, 180) } else { (60, 20) };
    (Duration::from_secs(all), Duration::from_secs(last))
}

/// How many requests the server had seen: before a daemon was killed, and when it was gone.
type Kills = Vec<(u64, u64)>;

/// Who looks after the daemon and the server while the clients work.
struct Warden<'a> {
    harness: &'a Harness,
    upstream: &'a Upstream,
    pace: &'a Pace,
    said: AtomicU32,
    samples: Vec<(Sample, Sample)>,
    kills: Kills,
}

impl Warden<'_> {
    /// The life of one daemon: warm, looked at, used, looked at.
    fn live(&mut self, life: Duration) {
        let began = Instant::now();
        // By then it has what it needs.
        self.talk_until(began + life / 3);
        let warm = self.look();
        self.talk_until(began + life - LAST);
        self.samples.push((warm, self.look()));
        self.talk_until(Instant::now() + LAST);
    }

    /// The server has something to say four times a second.
    fn talk_until(&self, until: Instant) {
        let mut next = Instant::now();
        while next < until {
            pace::rest_until(next);
            let said = self.said.fetch_add(1, Ordering::Relaxed);
            let number = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{said}}}}}"#
            );
            self.upstream.notify(&number);
            self.upstream.touch_resource(URIS[said as usize % URIS.len()]);
            if said.is_multiple_of(8) {
                self.upstream.notify(TOOLS_CHANGED);
            }
            next = (next + Duration::from_millis(250)).max(Instant::now());
        }
    }

    /// Looks at the daemon while nobody calls.
    fn look(&self) -> Sample {
        self.pace.pause();
        let pid = self.harness.wait_status(PATIENCE, |status| {
            let calls: u64 =
                status["sessions"].as_array()?.iter().filter_map(|s| s["in_flight"].as_u64()).sum();
            (calls == 0).then(|| status["daemon"]["pid"].as_u64()?.try_into().ok())?
        });
        let sample = Sample::of(self.harness, pid, self.pace.given());
        self.pace.resume();
        sample
    }

    /// How many requests the server has seen. A copy of its journal would be large by and by.
    fn seen(&self) -> u64 {
        let mut seen = 0;
        self.upstream.wait_for(PATIENCE, |journal| {
            seen = journal.len() as u64;
            true
        });
        seen
    }

    /// SIGKILL while calls are in flight; a shim starts the next one.
    fn kill(&mut self) {
        let pid = self.harness.wait_status(PATIENCE, |status| {
            let session = status["sessions"].as_array()?.first()?;
            (session["in_flight"].as_u64()? > 0).then(|| status["daemon"]["pid"].as_u64()?.try_into().ok())?
        });
        let before = self.seen();
        assert!(self.harness.signal(pid, Signal::SIGKILL));
        self.harness.wait_gone(pid, PATIENCE);
        self.kills.push((before, self.seen()));
        self.harness.wait_status(PATIENCE, |status| {
            (status["daemon"]["phase"] == "serving" && status["daemon"]["pid"] != pid).then_some(())
        });
    }
}

/// What was said to a client since then reaches it again: its stream is there.
fn check_heard(workers: &[Worker], upstream: &Upstream) {
    let before: Vec<usize> = workers.iter().map(Worker::updates).collect();
    let all = poll_until(PATIENCE, || {
        URIS.iter().for_each(|uri| upstream.touch_resource(uri));
        poll_until(Duration::from_millis(200), || {
            workers.iter().zip(&before).all(|(worker, before)| worker.updates() > *before).then_some(())
        })
    });
    assert!(all.is_some(), "a client does not hear of its resource any more");
}

#[test]
fn a_steady_load_over_many_kills_loses_nothing_and_leaves_nothing() {
    let (harness, upstream) = with_upstream(Script::default());
    // Any port: each daemon may have another one, and clients find it as they do after a restart.
    harness.append_config("[http]\nlisten = \"127.0.0.1:0\"\n");
    let pace = Pace::new(RATE);
    let mut workers: Vec<Worker> = (0..SHIMS).map(|name| Worker::new(name, harness.connect("up"))).collect();
    let mut plain: Vec<Plain<'_>> = (0..PLAIN).map(|name| Plain::new(&harness, name)).collect();
    let (all, last) = lengths();
    let until = Instant::now() + all;
    let mut warden = Warden {
        harness: &harness,
        upstream: &upstream,
        pace: &pace,
        said: AtomicU32::new(0),
        samples: Vec::new(),
        kills: Kills::new(),
    };
    std::thread::scope(|scope| {
        // However this ends: workers must not wait for a turn that nobody gives.
        let _over = pace.stop_at_the_end();
        for worker in &mut workers {
            scope.spawn(|| worker.work(&pace));
        }
        for client in &mut plain {
            scope.spawn(|| client.work(&pace));
        }
        pace.begin(SHIMS + PLAIN);
        while Instant::now() + last < until {
            warden.live(LIFE);
            warden.kill();
        }
        warden.live(last);
    });
    check_heard(&workers, &upstream);
    let Warden { samples, kills, .. } = warden;
    figures::show(&samples);
    judge::check(&workers, &plain, &upstream, &kills);
    check_flat(&samples);
}
