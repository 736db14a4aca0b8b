//! The fuzzers' corpora on stable: what was found once is checked on every run.

#[path = "../../../tests/fuzz/checks/wire_envelope.rs"]
#[expect(clippy::expect_used, reason = "a check panics")]
mod wire_envelope;
#[path = "../../../tests/fuzz/checks/wire_lines.rs"]
mod wire_lines;

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
    assert!(replayed > 0, "no corpus in {}", corpus.display());
}

#[test]
fn envelope_corpus() {
    replay("wire_envelope", wire_envelope::check);
}

#[test]
fn line_corpus() {
    replay("wire_lines", wire_lines::check);
}
