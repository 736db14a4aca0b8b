//! Runs `tests/conformance-fixtures`: cases and vectors as data, which another project can run as well. Whatever is in
//! that directory is run; a file, a step or an expectation that is not understood fails, because a fixture that is
//! passed over looks like one that holds.

mod edits;
mod form;
mod judge;
mod run;
mod vectors;
mod witness;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use form::Case;

/// The only version there is, of every file.
const VERSION: u64 = 1;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance-fixtures")
}

/// The names of all files in a directory below, without their ending.
fn files(directory: &str) -> BTreeSet<String> {
    let listing = fs::read_dir(root().join(directory)).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let strip = |name: String| name.strip_suffix(".json").map(str::to_owned).expect("only JSON files");
    listing.map(|entry| strip(name(entry.unwrap()))).collect()
}

#[track_caller]
fn read<T: DeserializeOwned>(path: &str) -> T {
    let text = fs::read_to_string(root().join(path)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn run_case(name: &str) {
    let case: Case = read(&format!("cases/{name}.json"));
    case.check(name);
    for fixture in &case.upstreams {
        run::run(&case, fixture);
    }
}

/// One test for each file, and the list of them.
macro_rules! cases {
    ($($test:ident: $name:literal,)*) => {
        const CASES: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                run_case($name);
            }
        )*
    };
}

cases! {
    restart: "01-restart",
    record_edited: "02-record-edited",
    record_reserialised: "02-record-reserialised",
    foreign_key: "03-foreign-key",
    drift: "04-drift",
    binding_edited: "05-binding-edited",
    binding_changed: "05-binding-changed",
    capabilities: "05-capabilities",
    older_copy: "06-older-copy",
    race: "06-race",
    outcome_unknown: "07-outcome-unknown",
    late_answer: "07-late-answer",
    unresolved: "07-unresolved",
    approval_expired: "08-approval-expired",
    approval_not_repeated: "08-approval-not-repeated",
    trajectory: "09-trajectory",
    continuations: "10-continuations",
    ids_minted_again: "11-ids-minted-again",
    request_ids: "12-request-ids",
    gone: "13-gone",
    not_gone: "13-not-gone",
    delete: "14-delete",
}

#[test]
fn every_case_has_its_test() {
    assert_eq!(files("cases"), CASES.iter().map(|name| (*name).to_owned()).collect());
    let numbers: BTreeSet<&str> = CASES.iter().filter_map(|name| name.split('-').next()).collect();
    assert_eq!(numbers.len(), 14, "ten cases and four more: {numbers:?}");
}

/// Nothing lies there that nobody runs.
#[test]
fn every_directory_is_known() {
    let listing = fs::read_dir(root()).unwrap();
    let names: BTreeSet<_> =
        listing.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["README.md", "canonical-json", "cases", "evermux"].map(str::to_owned).into());
}

/// A stranger writes a runner from the page, so the page has each step that a case does, and no other.
#[test]
fn the_page_has_the_steps_of_the_cases() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let row =
        |line: &str| line.strip_prefix("| `").and_then(|rest| rest.split('`').next()).map(str::to_owned);
    let section = page.split("## Steps").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let told: BTreeSet<String> = section.lines().filter_map(row).collect();
    assert_eq!(told, words_at("do"));
}

/// And the words that a step may take are all told.
#[test]
fn the_page_has_the_words_of_the_cases() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    for member in ["how", "error", "put_aside", "says_gone", "tool"] {
        let words = words_at(member);
        assert!(!words.is_empty(), "{member}");
        for word in words {
            assert!(page.contains(&format!("\n| `{word}` | ")), "{member}: {word}");
        }
    }
}

/// Every text that is the value of a member of this name, in any case, or in a list that is.
fn words_at(member: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for name in CASES {
        collect(&read(&format!("cases/{name}.json")), member, &mut words);
    }
    words
}

fn collect(value: &Value, member: &str, words: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, member, words)),
        Value::Object(members) => {
            let texts = members.get(member).map(|found| match found {
                Value::Array(items) => items.clone(),
                one => vec![one.clone()],
            });
            words.extend(texts.into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)));
            members.values().for_each(|inner| collect(inner, member, words));
        }
        _ => {}
    }
}
