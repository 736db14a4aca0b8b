//! The fuzzer's corpus of seals on stable: what was found once is checked on every run.

#[path = "../../../tests/fuzz/checks/seals.rs"]
#[expect(clippy::panic, reason = "a check panics")]
mod seals;

use std::path::Path;

#[test]
#[expect(clippy::disallowed_methods, reason = "the corpus is in files, and the core reads none of it")]
fn seal_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/seals");
    let mut replayed = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        seals::check(&std::fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed >= 5, "only {replayed} files");
}
