//! The fuzzers' corpora on stable: what was found once is checked on every run. One function for all crates whose
//! readers are fuzzed; each lies two directories below the root.

use std::path::Path;

/// Checks every input of a target's corpus, and that there are as many as were there once.
#[expect(clippy::print_stdout, reason = "shown only when the check panics, to name the input")]
pub(crate) fn replay(target: &str, at_least: usize, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus").join(target);
    let mut replayed = 0;
    for entry in corpus.read_dir().into_iter().flatten().flatten() {
        println!("{}", entry.path().display());
        if let Ok(input) = std::fs::read(entry.path()) {
            check(&input);
            replayed += 1;
        }
    }
    assert!(replayed >= at_least, "{replayed} files in {}", corpus.display());
}
