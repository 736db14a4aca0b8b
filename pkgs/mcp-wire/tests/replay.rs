//! The fuzzers' corpora of messages and lines on stable.

#[path = "../../../tests/fuzz/checks/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/checks/wire_envelope.rs"]
#[expect(clippy::expect_used, reason = "a check panics")]
mod wire_envelope;
#[path = "../../../tests/fuzz/checks/wire_lines.rs"]
mod wire_lines;

#[test]
fn envelope_corpus() {
    replay::replay("wire_envelope", 1, wire_envelope::check);
}

#[test]
fn line_corpus() {
    replay::replay("wire_lines", 1, wire_lines::check);
}
