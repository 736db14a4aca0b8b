//! The suite itself: where it is, how it is run to its end, and what it found, check by check.
//!
//! Its exit code counts failures only. What a revision says SHOULD be so comes as a warning, which we want to hold as
//! well; so runs are judged by the `checks.json` that it leaves for each scenario, and the exit code only has to agree.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evermux_testkit::{Harness, Output, installed};
use serde_json::Value;

/// For one run. A requirement set takes about 8 s alone; the suite itself ends a scenario after 30 s.
const DEADLINE: Duration = Duration::from_secs(180);

/// The installed suite, with a Node that can run it.
#[derive(Debug, Clone)]
pub(crate) struct Suite {
    node: PathBuf,
    packages: PathBuf,
}

impl Suite {
    /// `None`, with a word on stderr, if it is not installed and this is not CI.
    pub(crate) fn find() -> Option<Self> {
        let found = installed::node_packages()
            .and_then(|packages| Some(Self { node: installed::node_at_least(&packages, 22)?, packages }))
            .filter(|suite| suite.script().is_file());
        if found.is_none() {
            installed::skip("the conformance suite (EVERMUX_INTEROP_NODE, and Node 22 in it or on PATH)");
        }
        found
    }

    /// Node 22 or newer.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// The directory that holds `node_modules`.
    pub(crate) fn packages(&self) -> &Path {
        &self.packages
    }

    fn script(&self) -> PathBuf {
        self.packages.join("node_modules/@modelcontextprotocol/conformance/dist/index.js")
    }

    /// What it says to a question that needs no run (`list`).
    #[track_caller]
    pub(crate) fn say(&self, harness: &Harness, arguments: &[&str]) -> String {
        let mut command = harness.command_of(&self.node, &[&self.script().to_string_lossy()]);
        command.args(arguments);
        harness.finish(command, DEADLINE).success().stdout
    }

    /// Runs it in the harness's environment, to its end. What it starts itself (`client --command`) inherits that
    /// environment and these variables, and is ended with the harness.
    #[track_caller]
    pub(crate) fn run(&self, harness: &Harness, arguments: &[&str], variables: &[(&str, &str)]) -> Run {
        let results = tempfile::Builder::new().prefix("suite-").tempdir_in(harness.root());
        let results = results.expect("a directory for the results").keep();
        let script = self.script();
        let mut command = harness.command_of(&self.node, &[&script.to_string_lossy()]);
        command.args(arguments).arg("--output-dir").arg(&results).envs(variables.iter().copied());
        let output = harness.finish(command, DEADLINE);
        // Results of the server role begin with it, those of clients do not.
        let prefix = if arguments.first() == Some(&"server") { "server-" } else { "" };
        let mut scenarios = BTreeMap::new();
        collect(&results, &results, prefix, &mut scenarios);
        Run { output, scenarios }
    }
}

/// Scenarios may have a slash in their names, so their results lie at any depth.
fn collect(root: &Path, directory: &Path, prefix: &str, into: &mut BTreeMap<String, Vec<Check>>) {
    for entry in fs::read_dir(directory).expect("results can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(root, &path, prefix, into);
        } else if path.ends_with("checks.json") {
            let text = fs::read(&path).expect("results can be read");
            let checks: Vec<Value> = serde_json::from_slice(&text).expect("results are JSON");
            let name = directory.strip_prefix(root).unwrap_or(directory).to_string_lossy().into_owned();
            into.insert(scenario(&name, prefix), checks.iter().map(Check::of).collect());
        }
    }
}

/// `server-ping-2026-01-02T03-04-05-678Z` is of `ping`.
fn scenario(name: &str, prefix: &str) -> String {
    let name = name.strip_prefix(prefix).unwrap_or(name);
    let length = name.len().saturating_sub("-2026-01-02T03-04-05-678Z".len());
    name.get(..length).unwrap_or(name).to_owned()
}

/// One check of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) id: String,
    /// `SUCCESS`, `FAILURE`, `WARNING`, `INFO` or `SKIPPED`.
    pub(crate) status: String,
    /// What is wrong, else what is looked at.
    pub(crate) text: String,
}

impl Check {
    fn of(check: &Value) -> Self {
        let text = |member: &str| check.get(member).and_then(Value::as_str).map(str::to_owned);
        Self {
            id: text("id").unwrap_or_default(),
            status: text("status").unwrap_or_default(),
            text: text("errorMessage").or_else(|| text("description")).unwrap_or_default(),
        }
    }

    /// Whether it found fault.
    pub(crate) fn is_bad(&self) -> bool {
        !matches!(self.status.as_str(), "SUCCESS" | "INFO" | "SKIPPED")
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.id, self.text)
    }
}

/// What a run found.
#[derive(Debug)]
pub(crate) struct Run {
    /// What the suite said, and its exit code.
    pub(crate) output: Output,
    /// The checks of each scenario that ran.
    pub(crate) scenarios: BTreeMap<String, Vec<Check>>,
}

impl Run {
    /// The checks of a scenario; none if it did not run.
    pub(crate) fn checks(&self, scenario: &str) -> &[Check] {
        self.scenarios.get(scenario).map_or(&[], Vec::as_slice)
    }

    /// Leaves these scenarios out of account.
    pub(crate) fn without(mut self, scenarios: &[&str]) -> Self {
        self.scenarios.retain(|scenario, _| !scenarios.contains(&scenario.as_str()));
        self
    }

    /// All that found fault, one a line.
    pub(crate) fn faults(&self) -> String {
        let of = |(scenario, checks): (&String, &Vec<Check>)| {
            let bad = checks.iter().filter(|check| check.is_bad());
            bad.map(|check| format!("  {scenario}: {check}\n")).collect::<String>()
        };
        self.scenarios.iter().map(of).collect()
    }

    /// The suite is content, no check found fault, and at least these scenarios really ran.
    #[track_caller]
    pub(crate) fn passed(self, scenarios: &[&str]) -> Self {
        let faults = self.faults();
        let Output { code, stdout, stderr } = &self.output;
        let tail: Vec<_> = stdout.lines().rev().take(30).collect();
        let tail: String = tail.into_iter().rev().map(|line| format!("  {line}\n")).collect();
        assert!(
            *code == Some(0) && faults.is_empty(),
            "exit code {code:?}, faults:\n{faults}it said at last:\n{tail}{stderr}"
        );
        for wanted in scenarios {
            let succeeded = self.checks(wanted).iter().any(|check| check.status == "SUCCESS");
            assert!(succeeded, "{wanted} checked nothing: {:?}", self.checks(wanted));
        }
        self
    }
}

#[test]
fn names_of_results_are_read() {
    assert_eq!(scenario("server-server-initialize-2026-01-02T03-04-05-678Z", "server-"), "server-initialize");
    assert_eq!(scenario("auth/basic-cimd-2026-01-02T03-04-05-678Z", ""), "auth/basic-cimd");
}
