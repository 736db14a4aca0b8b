//! The fuzzer's corpus of requests on stable: what was found once is checked on every run.

#[path = "../../../tests/fuzz/checks/face.rs"]
#[expect(clippy::expect_used, clippy::panic, reason = "a check panics")]
mod face;

use std::path::Path;

#[test]
fn face_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/face");
    let mut replayed = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        face::check(&std::fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed >= 10, "only {replayed} files");
}
