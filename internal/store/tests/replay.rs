//! The fuzzers' corpora on stable: what was found once is checked on every run.

#[path = "../../../tests/fuzz/checks/journal.rs"]
mod journal;
#[path = "../../../tests/fuzz/checks/records.rs"]
mod records;

use std::path::Path;

#[expect(clippy::print_stdout, reason = "shown only when the check panics, to name the input")]
fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus").join(target);
    let mut replayed = 0;
    for entry in corpus.read_dir().into_iter().flatten().flatten() {
        println!("{}", entry.path().display());
        if let Ok(input) = std::fs::read(entry.path()) {
            check(&input);
            replayed += 1;
        }
    }
    assert!(replayed >= 5, "{replayed} files in {}", corpus.display());
}

#[test]
fn record_corpus() {
    replay("records", records::check);
}

#[test]
fn journal_corpus() {
    replay("journal", journal::check);
}
