//! Evermux as a client: the suite is the server, and a known-good client stands in front of evermux.
//!
//! What the suite cannot see, that an answer found its way back, is judged by that client (`client.mjs`). It is tried
//! on the suite itself first: a fault that it has without evermux is none of ours.

use std::path::Path;

use evermux_testkit::Harness;
use evermux_testkit::wait::{PATIENCE, poll_until};

use crate::suite::{Run, Suite};

const REVISION: &str = "2025-11-25";
/// What is scored of a client at [`REVISION`], but authorization: evermux has none of its own yet.
const SCORED: [&str; 4] = ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"];
/// Added to the suite after the revision's requirements were frozen.
const UNSCORED: &str = "json-schema-2020-12-preservation";

/// The suite, and the directory of a test.
struct Trial {
    suite: Suite,
    harness: Harness,
}

impl Trial {
    fn begin() -> Option<Self> {
        let suite = Suite::find()?;
        Some(Self { suite, harness: Harness::new(Path::new(env!("CARGO_BIN_EXE_evermux"))) })
    }

    /// One scenario with the client on this way (`client.mjs` has the list).
    #[track_caller]
    fn run(&self, way: &str, scenario: &str, more: &[&str]) -> Run {
        let script = format!("{}/../../tests/conformance/client.mjs", env!("CARGO_MANIFEST_DIR"));
        let binary = env!("CARGO_BIN_EXE_evermux");
        let (node, packages) = (self.suite.node().to_string_lossy(), self.suite.packages().to_string_lossy());
        let root = self.harness.root().to_string_lossy();
        // A shell reads it.
        let command =
            [&*node, &script, &*packages, way, binary, &*root].map(|word| format!("'{word}'")).join(" ");
        let arguments = ["client", "--command", &command, "--scenario", scenario];
        let run = self.suite.run(&self.harness, &[&arguments, more].concat(), &[]);
        self.all_gone();
        run
    }

    #[track_caller]
    fn passes(&self, way: &str, scenario: &str, version: &str) -> Run {
        self.run(way, scenario, &["--spec-version", version]).passed(&[scenario])
    }

    /// Whatever became of a run, nothing of it stays.
    #[track_caller]
    fn all_gone(&self) {
        let gone = poll_until(PATIENCE, || self.harness.processes().is_empty().then_some(()));
        assert!(gone.is_some(), "left behind: {:?}", self.harness.processes());
    }
}

/// How many handshakes came to the suite's server; of the scenarios that keep a log of what came.
fn handshakes(run: &Run, scenario: &str) -> usize {
    let came = |text: &str| text.starts_with("Received POST") && text.ends_with("(method: initialize)");
    run.checks(scenario).iter().filter(|check| came(&check.text)).count()
}

#[test]
fn nothing_that_is_scored_is_left_out() {
    let Some(trial) = Trial::begin() else { return };
    let said = trial.suite.say(&trial.harness, &["list", "--requirements", REVISION]);
    let (_, clients) = said.split_once("Client scenarios").expect("the list has a part about clients");
    let (scored, _) = clients.split_once("Run and reported").expect("what is not scored follows");
    let listed = scored.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let listed: Vec<_> = listed.filter(|scenario| !scenario.starts_with("auth/")).collect();
    assert_eq!(listed, SCORED);
}

#[test]
fn the_known_good_client_is_good() {
    let Some(trial) = Trial::begin() else { return };
    for scenario in SCORED.iter().chain([&UNSCORED]) {
        trial.passes("direct", scenario, REVISION);
    }
}

#[test]
fn evermux_passes_what_is_scored() {
    let Some(trial) = Trial::begin() else { return };
    for scenario in SCORED.iter().chain([&UNSCORED]) {
        trial.passes("stdio", scenario, REVISION);
    }
}

/// The client is an HTTP client of the loopback port: its own streams are polled and resumed as well.
#[test]
fn evermux_passes_for_http_clients() {
    let Some(trial) = Trial::begin() else { return };
    for scenario in SCORED.iter().chain([&UNSCORED]) {
        trial.passes("http", scenario, REVISION);
    }
}

/// The scenarios that the suite has for it.
#[test]
fn evermux_passes_at_2025_06_18() {
    let Some(trial) = Trial::begin() else { return };
    for scenario in ["initialize", "tools_call"] {
        trial.passes("stdio", scenario, "2025-06-18");
    }
}

/// The daemon that serves the call is not the one that made the session, and the server cannot tell.
#[test]
fn a_killed_daemon_changes_nothing() {
    let Some(trial) = Trial::begin() else { return };
    for scenario in SCORED.iter().skip(1) {
        let run = trial.passes("killed", scenario, REVISION);
        // The suite's plain server keeps no log.
        let wanted = usize::from(*scenario != "tools_call");
        assert_eq!(handshakes(&run, scenario), wanted, "{scenario}: {:#?}", run.checks(scenario));
    }
}

/// The suite ends its client after a time, wherever it is just then.
#[test]
fn a_run_that_is_broken_off_leaves_nothing_behind() {
    let Some(trial) = Trial::begin() else { return };
    for limit in ["200", "500"] {
        let run = trial.run("stdio", "sse-retry", &["--timeout", limit]);
        assert_ne!(run.output.code, Some(0), "sse-retry takes longer than {limit} ms");
    }
}
