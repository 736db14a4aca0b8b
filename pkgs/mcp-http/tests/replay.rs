//! The fuzzers' checks of the event decoder and of the reader of responses, on stable: over their corpora, and over what
//! proptest makes up.

#[path = "../../../tests/fuzz/checks/h1.rs"]
mod h1;
#[path = "../../../tests/fuzz/checks/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/checks/sse.rs"]
mod sse;

use proptest::prelude::*;

#[test]
fn the_corpus_still_holds() {
    replay::replay("sse", 10, sse::check);
    replay::replay("h1", 8, h1::check);
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

/// Heads and bodies, right and wrong.
fn response() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just("content-length: 5\r\n".to_owned()),
        Just("content-length: 6\r\n".to_owned()),
        Just("transfer-encoding: chunked\r\n".to_owned()),
        Just("transfer-encoding: gzip\r\n".to_owned()),
        Just("connection: close\r\n".to_owned()),
        "[a-z]{0,3}:? ?[a-z]{0,3}\r?\n",
    ];
    let piece = prop_oneof![
        Just(b"5\r\nhello\r\n".to_vec()),
        Just(b"0\r\n\r\n".to_vec()),
        Just(b"0\r\na: b\r\n\r\n".to_vec()),
        Just(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..12),
    ];
    let status = prop_oneof![8 => Just("200"), 1 => Just("204"), 1 => Just("100"), 1 => Just("9")];
    (status, prop::collection::vec(line, 0..3), prop::collection::vec(piece, 0..5)).prop_map(
        |(status, lines, pieces)| {
            let head = format!("HTTP/1.1 {status} OK\r\n{}\r\n", lines.concat());
            [head.into_bytes(), pieces.concat()].concat()
        },
    )
}

proptest! {
    #[test]
    fn a_response_is_the_same_wherever_it_is_cut(step in 1_u8..40, response in response()) {
        h1::check(&[&[step], &response[..]].concat());
    }

    #[test]
    fn events_are_those_of_the_plain_definition(max_event in any::<u8>(), step in 1_u8..20, text in stream()) {
        sse::check(&[&[max_event, step], &text[..]].concat());
    }
}
