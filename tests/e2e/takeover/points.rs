//! Death, a stop and a crash of either side at every step: one daemon in the end, in the one session, and clients that
//! go on.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::thread;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Pending, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{is_stopped_or_gone, serving, upgrade, upgraded};
use crate::support::{PATIENCE, check_processes, with_upstream};

/// The variable of `evermux_store::FAILPOINT_ENV`.
const FAILPOINT: &str = "EVERMUX_FAILPOINT";

/// Where the predecessor can be hit before it has decided.
const OLD_BEFORE: [&str; 6] = ["hello", "prepared", "offer", "frozen", "descriptors", "manifest"];
/// And from then on: the successor has everything.
const OLD_AFTER: [&str; 4] = ["ready", "commit", "active", "drain"];
/// Where the successor can be hit before it is active: the predecessor goes on.
const NEW_BEFORE: [&str; 7] = ["hello", "offer", "accept", "descriptors", "manifest", "ready", "commit"];
/// And from then on it is the daemon.
const NEW_AFTER: [&str; 2] = ["active", "serving"];

/// Clients with a call that the server holds, which ends wherever it began.
struct Scene {
    harness: Harness,
    upstream: Upstream,
    clients: Vec<ShimClient>,
    held: Option<(Pending, &'static str)>,
    calls: u64,
}

impl Scene {
    /// `old`: the failpoint of the daemon that is to hand over.
    fn new(old: Option<&str>) -> Self {
        let (harness, upstream) = with_upstream(Script::default());
        if let Some(point) = old {
            harness.set_variable(FAILPOINT, point);
        }
        harness.start_daemon();
        harness.unset_variable(FAILPOINT);
        let mut clients: Vec<_> = (0..2).map(|_| harness.connect("up")).collect();
        for client in &mut clients {
            assert!(client.initialize("2025-11-25").error().is_none());
        }
        Self { harness, upstream, clients, held: None, calls: 0 }
    }

    /// Every client has an answer, each call ran once.
    #[track_caller]
    fn all_work(&mut self, what: &str) {
        for client in &mut self.clients {
            let call = client.start_call("counter", "{}");
            self.calls += 1;
            let answer = client.wait(&call, PATIENCE);
            assert_eq!(
                answer.structured()["count"].as_u64(),
                Some(self.calls),
                "{what}: {}\n{}",
                answer.raw,
                self.harness.logs()
            );
        }
    }

    /// A call of each client.
    fn ask(&mut self) -> Vec<Pending> {
        self.clients.iter_mut().map(|client| client.start_call("counter", "{}")).collect()
    }

    /// They have answers, each ran once.
    #[track_caller]
    fn answered(&mut self, asked: &[Pending], what: &str) {
        let count = |(client, call): (&ShimClient, &Pending)| {
            let answer = client.wait(call, PATIENCE);
            let count = answer.structured()["count"].as_u64();
            count.unwrap_or_else(|| panic!("{what}: {}\n{}", answer.raw, self.harness.logs()))
        };
        let counts: BTreeSet<u64> = self.clients.iter().zip(asked).map(count).collect();
        let before = self.calls;
        self.calls += asked.len() as u64;
        assert_eq!(counts, (before + 1..=self.calls).collect(), "{what}");
    }

    fn hold(&mut self) {
        let call = self.clients[0].start_call("gate", r#"{"name":"held"}"#);
        self.upstream.wait_at_gate("held", 1, PATIENCE);
        self.held = Some((call, "held"));
    }

    /// The held call is answered, or its client is told that nobody knows; in no case does it run twice.
    #[track_caller]
    fn end_held(&mut self, certain: bool, what: &str) {
        let Some((call, gate)) = self.held.take() else { return };
        self.upstream.open_gate(gate);
        let answer = self.clients[0].wait(&call, PATIENCE);
        let unknown = answer.evermux_kind().as_deref() == Some("outcome_unknown");
        assert!(answer.error().is_none() || (unknown && !certain), "{what}: {}", answer.raw);
    }

    #[track_caller]
    fn end(mut self, what: &str) {
        self.all_work(what);
        assert_eq!((self.upstream.initializes(), self.upstream.deletes()), (1, 0), "{what}");
        self.upstream.assert_no_violations();
        for client in &mut self.clients {
            assert_eq!(client.close(PATIENCE), Some(0), "{what}");
        }
        check_processes(&self.harness, |pids| pids.len() == 1, what);
    }
}

/// What is waited for more than worked for, at the same time, each on a state directory of its own.
fn at_once<T: Sync>(cases: &[T], run: impl Fn(&T) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let run = &run;
            scope.spawn(move || run(case));
        }
    });
}

/// A successor that stops at a point.
fn hang(harness: &Harness, point: &str) -> Child {
    let mut command = harness.command(&["daemon", "--takeover"]);
    command.env(FAILPOINT, format!("stop takeover.{point}"));
    command.spawn().unwrap()
}

/// Runs `upgrade` with the successor armed. What it says of it, if it could.
fn upgrade_into(harness: &Harness, point: &str) -> evermux_testkit::Output {
    harness.set_variable(FAILPOINT, point);
    let output = upgrade(harness);
    harness.unset_variable(FAILPOINT);
    output
}

#[test]
fn a_successor_that_dies_or_crashes_before_it_is_active_changes_nothing() {
    for how in ["", "crash "] {
        for step in NEW_BEFORE {
            let what = format!("{how}n.{step}");
            let mut scene = Scene::new(None);
            let before = serving(&scene.harness).0;
            scene.hold();
            let output = upgrade_into(&scene.harness, &format!("{how}takeover.n.{step}"));
            assert_eq!(output.code, Some(1), "{what}: {}{}", output.stdout, output.stderr);
            assert!(output.stderr.contains("nothing changed"), "{what}: {}", output.stderr);
            assert_eq!(serving(&scene.harness).0, before, "{what}: the old one serves on");
            scene.all_work(&what);
            scene.end_held(true, &what);
            // And a good one takes over.
            upgraded(&scene.harness);
            scene.end(&what);
        }
    }
}

#[test]
fn a_successor_that_hangs_before_it_is_active_is_fenced() {
    for step in NEW_BEFORE {
        let what = format!("stop n.{step}");
        let mut scene = Scene::new(None);
        let before = serving(&scene.harness).0;
        scene.hold();
        let mut hung = hang(&scene.harness, &format!("n.{step}"));
        // What came in the frozen moment is answered by the one that goes on.
        scene.all_work(&what);
        poll_until(PATIENCE, || {
            scene.all_work(&what);
            is_stopped_or_gone(hung.id()).then_some(())
        });
        scene.all_work(&what);
        assert_eq!(serving(&scene.harness).0, before, "{what}");
        scene.end_held(true, &what);
        hung.kill().ok();
        hung.wait().unwrap();
        upgraded(&scene.harness);
        scene.end(&what);
    }
}

#[test]
fn a_successor_that_dies_once_it_is_active_is_followed_by_a_cold_start() {
    for how in ["", "crash "] {
        for step in NEW_AFTER {
            let what = format!("{how}n.{step}");
            let mut scene = Scene::new(None);
            scene.hold();
            upgrade_into(&scene.harness, &format!("{how}takeover.n.{step}"));
            // The old one drains, and has the held call; the next start gets the lock at once.
            scene.all_work(&what);
            scene.end_held(false, &what);
            scene.end(&what);
        }
    }
}

#[test]
fn a_predecessor_that_dies_or_crashes_before_its_decision_costs_no_session() {
    for how in ["", "crash "] {
        for step in OLD_BEFORE {
            let what = format!("{how}o.{step}");
            let mut scene = Scene::new(Some(&format!("{how}takeover.o.{step}")));
            scene.hold();
            // The successor may start cold, or give up.
            upgrade(&scene.harness);
            scene.all_work(&what);
            scene.end_held(false, &what);
            scene.end(&what);
        }
    }
}

#[test]
fn a_predecessor_that_dies_after_its_successor_was_ready_is_adopted() {
    for how in ["", "crash "] {
        for step in OLD_AFTER {
            let what = format!("{how}o.{step}");
            let mut scene = Scene::new(Some(&format!("{how}takeover.o.{step}")));
            scene.hold();
            let before = serving(&scene.harness).0;
            let output = upgrade(&scene.harness);
            assert_eq!(output.code, Some(0), "{what}: {}\n{}", output.stderr, scene.harness.logs());
            assert_ne!(serving(&scene.harness).0, before, "{what}");
            scene.all_work(&what);
            scene.end_held(false, &what);
            scene.end(&what);
        }
    }
}

#[test]
fn a_predecessor_that_hangs_is_not_taken_over_without_proof() {
    let steps: Vec<&str> = OLD_BEFORE.into_iter().chain(OLD_AFTER).collect();
    // Each takes the successor its whole patience.
    at_once(&steps, |step| {
        let what = format!("stop o.{step}");
        let mut scene = Scene::new(Some(&format!("stop takeover.o.{step}")));
        let before = serving(&scene.harness).0;
        let output = upgrade(&scene.harness);
        // Whether it was decided is on the wire: a commit that was read counts, silence does not.
        let taken = output.code == Some(0);
        assert!(taken || output.code == Some(1), "{what}: {output:?}");
        assert_eq!(taken, matches!(*step, "active" | "drain"), "{what}: {output:?}");
        // The upgrade is done once the successor is active; the other drains a moment later.
        let stopped = poll_until(PATIENCE, || is_stopped_or_gone(before).then_some(()));
        assert!(stopped.is_some(), "{what}: it never came there");
        let asked = scene.ask();
        scene.harness.signal(before, Signal::SIGCONT);
        scene.answered(&asked, &what);
        let after = serving(&scene.harness).0;
        assert_eq!(after != before, taken, "{what}: {output:?}\n{}", scene.harness.logs());
        scene.end(&what);
    });
}

#[test]
fn a_successor_that_hangs_once_it_is_active_is_waited_for() {
    let cases: Vec<_> = NEW_AFTER
        .into_iter()
        .flat_map(|step| [Signal::SIGKILL, Signal::SIGCONT].map(|end| (step, end)))
        .collect();
    at_once(&cases, |(step, end)| {
        let what = format!("stop n.{step}, {end}");
        let mut scene = Scene::new(None);
        scene.hold();
        let old = serving(&scene.harness).0;
        let mut hung = hang(&scene.harness, &format!("n.{step}"));
        let stopped = poll_until(PATIENCE, || is_stopped_or_gone(hung.id()).then_some(()));
        assert!(stopped.is_some(), "{what}: it never came there");
        let asked = scene.ask();
        // The one that drains answers what it has, before or after; the rest waits for whoever is the daemon.
        if *end == Signal::SIGCONT {
            scene.end_held(true, &what);
        }
        let open = asked.len() + usize::from(scene.held.is_some());
        assert_eq!(scene.clients.iter().map(ShimClient::unanswered).sum::<usize>(), open, "{what}");
        scene.harness.signal(hung.id(), *end);
        scene.answered(&asked, &what);
        let serves = serving(&scene.harness).0;
        assert_eq!(serves == hung.id(), *end == Signal::SIGCONT, "{what}");
        assert_ne!(serves, old, "{what}");
        scene.end_held(true, &what);
        scene.harness.wait_gone(old, PATIENCE);
        scene.end(&what);
        hung.kill().ok();
        hung.wait().unwrap();
    });
}

#[test]
fn the_status_lists_the_process_that_drains_and_what_it_has_left() {
    let mut scene = Scene::new(None);
    scene.hold();
    let (old, generation) = serving(&scene.harness);
    let new = upgraded(&scene.harness);
    let draining = |status: &Value| Some(status["daemon"]["draining"].clone());
    let one = json!([{"pid": old, "generation": generation, "in_flight": 1}]);
    scene.harness.wait_status(PATIENCE, |status| draining(status).filter(|told| *told == one));
    let shown = scene.harness.run(&["status"]).success().stdout;
    let line = format!("before it: generation {generation} (pid {old}), ending with its calls: 1 in flight");
    assert!(shown.contains(&line), "{shown}");
    scene.end_held(true, "its call");
    let gone =
        scene.harness.wait_status(PATIENCE, |status| draining(status).filter(|told| *told == json!([])));
    assert_eq!((gone, serving(&scene.harness).0), (json!([]), new));
    scene.end("listed");
}

#[test]
fn the_socket_of_the_one_that_drains_is_made_anew() {
    let mut scene = Scene::new(None);
    scene.hold();
    let (old, generation) = serving(&scene.harness);
    upgraded(&scene.harness);
    let socket = scene.harness.runtime_dir().join(format!("drain-{generation}.sock"));
    fs::remove_file(&socket).unwrap();
    let again = poll_until(PATIENCE, || UnixStream::connect(&socket).ok());
    assert!(again.is_some(), "{}", scene.harness.logs());
    scene.end_held(true, "its call");
    scene.harness.wait_gone(old, PATIENCE);
    assert!(!socket.exists(), "it goes with its process");
    scene.end("removed");
}

#[test]
fn a_disk_that_hangs_ends_the_attempt_and_nothing_else() {
    // The first grant is the daemon's own.
    let scene = Scene::new(Some("stall generation.before_append:2"));
    let before = serving(&scene.harness);
    let output = scene.harness.run(&["daemon", "--takeover", "--detached"]);
    assert!(output.stdout.contains("too long (before the offer)"), "{output:?}");
    assert_eq!(serving(&scene.harness), before);
    scene.end("a disk that hangs");
}

#[test]
fn the_session_is_forgotten_in_the_middle_of_a_drain() {
    let mut scene = Scene::new(None);
    scene.hold();
    upgraded(&scene.harness);
    scene.upstream.forget_sessions();
    let answers: Vec<_> = scene.clients.iter_mut().map(|client| client.start_call("counter", "{}")).collect();
    for (client, call) in scene.clients.iter().zip(&answers) {
        let answer = client.wait(call, PATIENCE);
        assert!(answer.error().is_none(), "{}", answer.raw);
    }
    assert_eq!(scene.upstream.initializes(), 2, "one recovery");
    scene.end_held(false, "held over a loss");
    scene.upstream.assert_no_violations();
}

#[test]
fn the_next_start_serves_at_once_when_the_new_one_is_killed_while_the_old_one_drains() {
    let mut scene = Scene::new(None);
    scene.hold();
    let old = serving(&scene.harness).0;
    let new = upgraded(&scene.harness);
    assert!(scene.harness.processes().contains(&old), "it has a call to end");
    scene.harness.signal(new, Signal::SIGKILL);
    scene.harness.wait_gone(new, PATIENCE);
    scene.all_work("after the kill");
    assert!(scene.harness.processes().contains(&old), "it still has a call to end");
    scene.end_held(true, "its call ends where it began");
    scene.end("killed while the old one drains");
}

#[test]
fn a_predecessor_that_dies_before_its_pipe_came_is_proven_gone_by_its_lock() {
    // Nobody else is there who would start another daemon meanwhile.
    for step in OLD_BEFORE {
        let what = format!("o.{step}, and no client");
        let (harness, upstream) = with_upstream(Script::default());
        harness.set_variable(FAILPOINT, &format!("takeover.o.{step}"));
        let old = harness.start_daemon();
        harness.unset_variable(FAILPOINT);
        let output = upgrade(&harness);
        assert_eq!(output.code, Some(0), "{what}: {}{}", output.stdout, output.stderr);
        assert_ne!(serving(&harness).0, old, "{what}");
        upstream.assert_no_violations();
    }
}
