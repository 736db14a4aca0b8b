//! The fuzzer's corpus of requests on stable.

#[path = "../../../tests/fuzz/checks/face.rs"]
#[expect(clippy::expect_used, clippy::panic, reason = "a check panics")]
mod face;
#[path = "../../../tests/fuzz/checks/replay.rs"]
mod replay;

#[test]
fn face_corpus() {
    replay::replay("face", 10, face::check);
}
