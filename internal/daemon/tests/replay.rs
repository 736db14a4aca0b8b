//! The fuzzers' corpora of requests and of takeovers on stable, and damaged ones of the latter.

#[path = "../../../tests/fuzz/checks/face.rs"]
#[expect(clippy::expect_used, clippy::panic, reason = "a check panics")]
mod face;
#[path = "../../../tests/fuzz/checks/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/checks/takeover.rs"]
#[expect(clippy::expect_used, reason = "a check panics")]
mod takeover;

use proptest::{prelude::*, sample::select};

#[test]
fn face_corpus() {
    replay::replay("face", 10, face::check);
}

#[test]
fn takeover_corpus() {
    replay::replay("takeover", 16, takeover::check);
}

fn takeovers() -> Vec<Vec<u8>> {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/corpus/takeover");
    let files = std::fs::read_dir(corpus).into_iter().flatten().flatten();
    let mut all: Vec<Vec<u8>> = files.filter_map(|file| std::fs::read(file.path()).ok()).collect();
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn damaged_takeovers_are_judged_without_panic(
        mut stream in select(takeovers()),
        other in select(takeovers()),
        damage in proptest::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), select(b"{}[],:\"\\nul019 -.eAF".to_vec())]),
            0..4,
        ),
        step in any::<u8>(),
        cut in proptest::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        // Past the distance of the cuts and a length, where more than a refusal can come of it.
        for (at, byte) in damage {
            let end = stream.len();
            if end > 5 {
                stream[5 + at.index(end - 5)] = byte;
            }
        }
        if let Some(cut) = cut {
            stream.truncate(cut.index(stream.len()));
        }
        stream.extend_from_slice(&other[1..]);
        stream[0] = step;
        takeover::check(&stream);
    }
}
