//! Death, a stop and a crash of either side at every step: one daemon in the end, in the one session, and clients that
//! go on.

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, Pending, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;

use super::{serving, upgrade, upgraded};
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
        scene.harness.set_variable(FAILPOINT, &format!("stop takeover.n.{step}"));
        let mut hung = scene.harness.command(&["daemon", "--takeover"]).spawn().unwrap();
        scene.harness.unset_variable(FAILPOINT);
        // What came in the frozen moment is answered by the one that goes on.
        scene.all_work(&what);
        poll_until(PATIENCE, || {
            scene.all_work(&what);
            crate::takeover::is_stopped_or_gone(hung.id()).then_some(())
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
    // Each takes the successor its whole patience.
    let full = std::env::var_os("EVERMUX_FULL").is_some_and(|value| value == "1");
    let steps = ["commit", "manifest", "offer", "frozen", "descriptors", "ready", "active"];
    for step in steps.into_iter().take(if full { 7 } else { 2 }) {
        let what = format!("stop o.{step}");
        let mut scene = Scene::new(Some(&format!("stop takeover.o.{step}")));
        let before = serving(&scene.harness).0;
        let output = upgrade(&scene.harness);
        // Whether it was decided is on the wire: a commit that was read counts, silence does not.
        let taken = output.code == Some(0);
        assert!(taken || output.code == Some(1), "{what}: {output:?}");
        scene.harness.signal(before, Signal::SIGCONT);
        scene.all_work(&what);
        let after = serving(&scene.harness).0;
        assert_eq!(after != before, taken, "{what}: {output:?}\n{}", scene.harness.logs());
        scene.end(&what);
    }
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
