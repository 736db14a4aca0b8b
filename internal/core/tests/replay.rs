//! The fuzzer's corpus of seals on stable.

#[path = "../../../tests/fuzz/checks/replay.rs"]
#[expect(clippy::disallowed_methods, reason = "the corpus is in files, and the core reads none of it")]
mod replay;
#[path = "../../../tests/fuzz/checks/seals.rs"]
#[expect(clippy::panic, reason = "a check panics")]
mod seals;

#[test]
fn seal_corpus() {
    replay::replay("seals", 5, seals::check);
}
