//! The house rules that a machine can hold: direction of dependencies, what the core may depend on, budgets,
//! module heads. A rule without a test is a wish.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Lines of one file, tests cut off.
const LONGEST_FILE: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn metadata() -> Metadata {
    MetadataCommand::new().current_dir(root()).no_deps().exec().unwrap()
}

/// `cmd` above `internal` above `pkgs`; test code may look anywhere.
fn storey(manifest: &str) -> u8 {
    match manifest {
        path if path.contains("/cmd/") => 3,
        path if path.contains("/internal/") => 2,
        path if path.contains("/pkgs/") => 1,
        _ => 4,
    }
}

#[test]
fn dependencies_run_downwards() {
    let metadata = metadata();
    let storeys: BTreeMap<&str, u8> =
        metadata.packages.iter().map(|p| (p.name.as_str(), storey(p.manifest_path.as_str()))).collect();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let from = storeys[package.name.as_str()];
        for dependency in package.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal) {
            if let Some(to) = storeys.get(dependency.name.as_str()).filter(|to| **to > from) {
                wrong
                    .push(format!("{} (storey {from}) uses {} (storey {to})", package.name, dependency.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_core_depends_on_nothing_that_touches_the_world() {
    // Of jiff only the reading of written times: what the time is now comes in with every fact.
    let allowed = ["base64", "blake3", "bytes", "jiff", "mcp-wire", "serde", "serde_json", "thiserror"];
    let metadata = metadata();
    let core = metadata.packages.iter().find(|p| p.name.as_str() == "evermux-core").unwrap();
    let used: Vec<&str> = core
        .dependencies
        .iter()
        .filter(|d| d.kind == DependencyKind::Normal)
        .map(|d| d.name.as_str())
        .filter(|name| !allowed.contains(name))
        .collect();
    assert!(used.is_empty(), "{used:?}");
}

#[test]
fn the_test_kit_is_used_by_tests_only() {
    let users: Vec<String> = metadata()
        .packages
        .iter()
        .filter(|p| {
            p.dependencies.iter().any(|d| d.name == "evermux-testkit" && d.kind == DependencyKind::Normal)
        })
        .map(|p| p.name.to_string())
        .collect();
    assert!(users.is_empty(), "{users:?}");
}

#[test]
fn the_top_level_is_what_the_design_says() {
    let known = [
        "AGENTS.md",
        "CHANGELOG.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "TODO.md",
        "cmd",
        "internal",
        "pkgs",
        "planning",
        "target",
        "tests",
    ];
    let strange: Vec<String> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.') && !known.contains(&name.as_str()))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && name != "node_modules" && !name.starts_with('.') {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for dir in ["cmd", "internal", "pkgs", "tests"] {
        sources(&root().join(dir), &mut found);
    }
    assert!(found.len() > 50, "the walk found {} files only", found.len());
    found.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn is_test(path: &Path) -> bool {
    let path = path.to_string_lossy();
    path.contains("/tests/") || path.ends_with("tests.rs")
}

#[test]
fn every_module_says_why_it_exists() {
    let silent: Vec<PathBuf> = all_sources()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!") && !text.starts_with("#!["))
        .map(|(path, _)| path)
        .collect();
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn files_stay_within_their_budget() {
    let long: Vec<String> = all_sources()
        .into_iter()
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| {
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            (path, code.lines().count())
        })
        .filter(|(_, lines)| *lines > LONGEST_FILE)
        .map(|(path, lines)| format!("{}: {lines} lines", path.display()))
        .collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_hub_only_dispatches() {
    let hub = fs::read_to_string(root().join("internal/core/src/hub.rs")).unwrap();
    assert!(hub.lines().count() <= 450, "{} lines", hub.lines().count());
}

/// What the short names of `planning/protocol-rules.md` stand for.
const SHORT: [(&str, &str); 7] = [
    ("core/", "internal/core/tests/scenarios/"),
    ("common/", "internal/core/tests/common/"),
    ("http/", "pkgs/mcp-http/tests/"),
    ("wire/", "pkgs/mcp-wire/tests/"),
    ("suite/", "tests/conformance/"),
    ("e2e/", "tests/e2e/"),
    ("interop/", "tests/interop/"),
];

/// The tests that a page names as `file::test`. A table about tests is worth nothing once a test was renamed.
#[test]
fn every_test_named_in_a_table_exists() {
    for (page, at_least) in [("planning/field-failures.md", 200), ("planning/protocol-rules.md", 80)] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        // Backticks come in pairs: every other part is quoted.
        let quoted = text.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once("::"));
        let is_rust = |file: &str| Path::new(file).extension().is_some_and(|extension| extension == "rs");
        let named: Vec<(&str, &str)> = quoted.filter(|(file, _)| is_rust(file)).collect();
        assert!(named.len() > at_least, "{page} names {} only", named.len());
        let missing: Vec<String> = named
            .into_iter()
            .filter(|(file, test)| !is_held(file, test))
            .map(|(file, test)| format!("{page}: {file}::{test}"))
            .collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }
}

/// The same for the page that names tests as `binary: module::test`.
#[test]
fn every_test_of_a_requirement_exists() {
    let text = fs::read_to_string(root().join("planning/requirements.md")).unwrap();
    let quoted = text.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once(": "));
    let named: Vec<(&str, &str)> = quoted.filter(|(_, path)| path.contains('_')).collect();
    assert!(named.len() > 140, "{} only", named.len());
    let sources: Vec<(String, String)> =
        all_sources().into_iter().map(|(path, text)| (path.display().to_string(), text)).collect();
    let exists = |(binary, path): &(&str, &str)| {
        let (module, name) = (path.split("::").next().unwrap(), path.rsplit("::").next().unwrap());
        let place = if module == name { binary } else { &module };
        let made = |text: &str| text.contains("macro_rules!") && text.contains(&format!("    {name},"));
        sources.iter().any(|(file, text)| file.contains(place) && (has_test(text, name) || made(text)))
    };
    let missing: Vec<_> = named.iter().filter(|test| !exists(test)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A test of this name, or what is looked at in every scenario of the core.
fn is_held(file: &str, name: &str) -> bool {
    let known = SHORT.iter().find_map(|(short, long)| Some(format!("{long}{}", file.strip_prefix(short)?)));
    let text = fs::read_to_string(root().join(known.unwrap_or_else(|| file.to_owned()))).unwrap_or_default();
    let always = file.starts_with("common/") && text.contains(&format!("fn {name}("));
    // A list that a macro makes tests of.
    let listed = text.contains("macro_rules!") && text.contains(&format!("\n    {name},"));
    always || listed && text.contains(&format!("fn {name}<")) || has_test(&text, name)
}

/// A function of this name right behind an attribute that makes it a test.
fn has_test(text: &str, name: &str) -> bool {
    let attributes = ["#[test]", "#[tokio::test"].into_iter();
    let mut tests = attributes.flat_map(|attribute| text.split(attribute).skip(1));
    tests.any(|part| {
        let function = part.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
        function.is_some_and(|(function, _)| function == name)
    })
}

/// Pauses in tests that are no waits, by file: nothing is taken for done because one is over.
const PAUSES: [(&str, &str); 14] = [
    ("cmd/evermux/tests/connect/shim.rs", "between two looks, of `until` with its deadline"),
    ("internal/daemon/src/reactor/tests.rs", "between two looks, of `until` with its deadline"),
    (
        "pkgs/mcp-http/tests/support/mod.rs",
        "between two looks, of `until`; and a server that closes when its script says",
    ),
    ("pkgs/mcp-http/tests/pool.rs", "calls at scattered moments, so that some meet a close"),
    ("tests/bench/src/goals/cold.rs", "between two looks, with a deadline; a tool, no test"),
    ("tests/bench/src/goals/connections.rs", "between two looks, with a deadline; a tool, no test"),
    ("tests/bench/src/goals/idle.rs", "so long nothing happens, which is what is measured; a tool, no test"),
    ("tests/bench/src/goals/memory.rs", "between two looks at memory under load; a tool, no test"),
    ("tests/bench/src/process.rs", "between two looks, with a deadline; a tool, no test"),
    ("tests/bench/src/targets.rs", "between two looks, with a deadline; a tool, no test"),
    ("tests/bench/src/upgrade.rs", "between two calls, and two looks with a deadline; a tool, no test"),
    (
        "tests/e2e/soak/pace.rs",
        "until the next call is due: it says how fast to go, and nothing is done because of it",
    ),
    ("tests/peers/src/conformance.rs", "a tool whose steps can be told apart"),
    ("tests/peers/src/server.rs", "a tool that takes its time"),
];

#[test]
fn no_test_sleeps_and_none_is_left_out() {
    let me = Path::new("tidy.rs");
    let pauses = |path: &Path| PAUSES.iter().any(|(known, _)| path.ends_with(known));
    let wrong: Vec<String> = all_sources()
        .into_iter()
        .filter(|(path, _)| is_test(path) && !path.ends_with(me))
        .filter(|(path, text)| {
            let waits = (text.contains("time::sleep(") || text.contains("park_timeout(")) && !pauses(path);
            waits || text.contains("thread::sleep(") || text.contains("#[ignore")
        })
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
