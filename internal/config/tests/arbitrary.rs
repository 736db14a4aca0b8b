//! No bytes make the parser panic, and what it accepts holds the rules.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "../../../tests/fuzz/checks/config.rs"]
mod config;
#[path = "../../../tests/fuzz/checks/replay.rs"]
mod replay;

use std::path::Path;

use evermux_config::{ConfigError, edit, load, parse};
use proptest::prelude::*;

const VALID: &str = r#"# A comment.
[http]
listen = "127.0.0.1:0"

[upstream.github] # another
url = "https://example.com/mcp"
headers.Authorization = { env = "TOKEN", prefix = "Bearer " }
headers."X-File" = { file = "path" }
[upstream.github.headers.X-Command]
command = ["prog", "arg"]
[upstream.b]
url = 'http://[::1]:7/'
idle = "1h 30m"
trust_annotations = true
[[upstream.b.handle]]
born = { tool = "make", pointer = "/id", when = { "/n" = [1, true, "a"] } }
used = { tools = ["use"], argument = "/id" }
[[upstream.b.handle]]
preset = "codex"
ttl = "1h"

[daemon]
drain_timeout = "0"
"#;

/// Pieces that mean something in TOML, so that mutations reach past the first syntax error.
const PIECES: [&str; 26] = [
    "[",
    "]",
    "[[",
    "{",
    "}",
    "\"",
    "'",
    "\"\"\"",
    "=",
    ".",
    ",",
    "\n",
    "\r\n",
    "\r",
    "#",
    "\\u0000",
    "\u{feff}",
    "é",
    "1979-05-27",
    "[upstream.c]\n",
    "url = 1\n",
    "upstream = 1\n",
    "headers.A.env = 1\n",
    "nan",
    "[[upstream.b.handle]]\n",
    "preset = \"executor\"\n",
];

fn mutated() -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), 0..26usize, 0..4usize);
    prop::collection::vec(edit, 1..6).prop_map(|edits| {
        let mut text: Vec<char> = VALID.chars().collect();
        for (place, piece, cut) in edits {
            let start = place.index(text.len() + 1);
            let end = (start + cut).min(text.len());
            text.splice(start..end, PIECES[piece].chars());
        }
        text.into_iter().collect()
    })
}

/// An edit either leaves the file alone or makes exactly its change.
fn check_edits(directory: &Path, text: &str) {
    let file = directory.join("config.toml");
    std::fs::write(&file, text).unwrap();
    let before = parse(text);
    match edit::add(&file, "new", "https://example.com/new", &[("X-A".to_owned(), "${A}".to_owned())]) {
        Ok(added) => {
            let mut after = load_parsed(&file);
            assert_eq!(after.upstreams.remove("new"), Some(added.upstream));
            assert_eq!(Ok(after), before);
            edit::remove(&file, "new").unwrap();
            assert_eq!(Ok(load_parsed(&file)), before);
        }
        Err(_) => assert_eq!(std::fs::read_to_string(&file).unwrap(), text),
    }
}

fn load_parsed(file: &Path) -> evermux_config::Config {
    parse(&std::fs::read_to_string(file).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn arbitrary_text(text in any::<String>()) {
        config::check(text.as_bytes());
    }

    #[test]
    fn arbitrary_toml_like_text(text in "[a-z\\[\\]{}=.\"'#,\\\\ \n\r\t0-9é-]{0,200}") {
        config::check(text.as_bytes());
    }

    #[test]
    fn mutations_of_a_valid_file(text in mutated()) {
        config::check(text.as_bytes());
    }

    #[test]
    fn edits_of_mutations_are_all_or_nothing(text in mutated()) {
        let directory = tempfile::tempdir().unwrap();
        check_edits(directory.path(), &text);
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        std::fs::write(&file, &bytes).unwrap();
        if let Err(error) = load(&file) {
            let invalid = matches!(error, ConfigError::Invalid { .. });
            prop_assert!(invalid, "{error}");
        }
    }
}

#[test]
fn the_fuzzers_corpus_still_holds() {
    replay::replay("config", 10, config::check);
}

#[test]
fn the_base_of_the_mutations_is_valid() {
    parse(VALID).unwrap();
    let directory = tempfile::tempdir().unwrap();
    check_edits(directory.path(), VALID);
}
