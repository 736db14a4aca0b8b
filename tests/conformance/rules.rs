//! `planning/protocol-rules.md` says which test holds which rule of the transport; here it is looked whether they exist.
//!
//! A table about tests is worth nothing once a test was renamed.

use std::fs;
use std::path::Path;

/// What the table's short names stand for.
const PLACES: [(&str, &str); 7] = [
    ("core/", "internal/core/tests/scenarios/"),
    ("common/", "internal/core/tests/common/"),
    ("http/", "pkgs/mcp-http/tests/"),
    ("wire/", "pkgs/mcp-wire/tests/"),
    ("suite/", "tests/conformance/"),
    ("e2e/", "tests/e2e/"),
    ("interop/", "tests/interop/"),
];

fn place(short: &str) -> String {
    let known =
        PLACES.iter().find_map(|(name, long)| short.strip_prefix(name).map(|rest| format!("{long}{rest}")));
    known.unwrap_or_else(|| short.to_owned())
}

#[test]
fn tests_that_hold_a_rule_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("planning/protocol-rules.md")).unwrap();
    let named: Vec<_> = text.split('`').filter_map(|word| word.split_once(".rs::")).collect();
    assert!(named.len() >= 50, "only {} tests are named", named.len());
    for (file, name) in named {
        let source = fs::read_to_string(root.join(place(file)).with_extension("rs"));
        let is_there =
            |source: String| ["(", "<"].iter().any(|after| source.contains(&format!("fn {name}{after}")));
        let found = source.is_ok_and(is_there);
        assert!(found, "{file}.rs::{name} does not exist");
    }
}
