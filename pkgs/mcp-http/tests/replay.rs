//! The fuzzer's check of the event decoder, on stable: over its corpus, and over what proptest makes up.

#[path = "../../../tests/fuzz/checks/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/checks/sse.rs"]
mod sse;

use proptest::prelude::*;

#[test]
fn the_corpus_still_holds() {
    replay::replay("sse", 10, sse::check);
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let pieces: [&[u8]; 18] = [
        b"data: hello",
        b"data:",
        b"data",
        b"id: 7",
        b"id",
        b"event: x",
        b"event",
        b"retry: 12",
        b"retry: 1x",
        b": comment",
        b"unknown: x",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\xEF\xBB\xBF",
        b"\0",
        b"\xC3\xA9",
    ];
    let piece = prop_oneof![
        9 => prop::sample::select(pieces.to_vec()).prop_map(<[u8]>::to_vec),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn events_are_those_of_the_plain_definition(max_event in any::<u8>(), step in 1_u8..20, text in stream()) {
        sse::check(&[&[max_event, step], &text[..]].concat());
    }
}
