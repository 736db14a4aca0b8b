//! Newline framing: the same lines, however the bytes are cut.

use bytes::Bytes;
use mcp_wire::{Id, LineDecoder, LineTooLong};
use proptest::prelude::*;

type Lines = Vec<Result<Bytes, LineTooLong>>;

/// Feeds `input` in pieces that end at `cuts`.
fn decode(input: &[u8], cuts: &[usize], max_line: usize) -> Lines {
    let mut decoder = LineDecoder::new(max_line);
    let mut lines = Vec::new();
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (input.len() + 1)).chain([0, input.len()]).collect();
    cuts.sort_unstable();
    for piece in cuts.windows(2) {
        decoder.push(&input[piece[0]..piece[1]]);
        lines.extend(std::iter::from_fn(|| decoder.next_line()));
    }
    lines.extend(std::iter::from_fn(|| decoder.finish()));
    lines
}

fn line(text: &'static str) -> Result<Bytes, LineTooLong> {
    Ok(Bytes::from_static(text.as_bytes()))
}

#[test]
fn lines_are_split_and_blank_ones_skipped() {
    let long = || Err(LineTooLong { limit: 4, request_id: None });
    for (input, expected) in [
        ("", vec![]),
        ("a\nb\n", vec![line("a"), line("b")]),
        ("a\r\n\r\n \t\n\nb", vec![line("a"), line("b")]),
        ("a\rb\n", vec![line("a\rb")]),
        ("abcd\nabcd\r\nabcd", vec![line("abcd"), line("abcd"), line("abcd")]),
        ("abcde\nx\n", vec![long(), line("x")]),
        ("abcd\r\r\nx", vec![long(), line("x")]),
        ("abcdefghijklmnop\nabcde\n", vec![long(), long()]),
        ("abcdefgh", vec![long()]),
        ("abcd\r", vec![line("abcd")]),
        ("        \nx", vec![long(), line("x")]),
    ] {
        let every_byte: Vec<_> = (0..input.len()).collect();
        assert_eq!(decode(input.as_bytes(), &[], 4), expected, "{input:?} whole");
        assert_eq!(decode(input.as_bytes(), &every_byte, 4), expected, "{input:?} byte by byte");
    }
}

#[test]
fn an_over_long_line_is_reported_before_its_end_and_not_kept() {
    let mut decoder = LineDecoder::new(10);
    decoder.push([b'x'; 11]);
    assert_eq!(decoder.next_line(), Some(Err(LineTooLong { limit: 10, request_id: None })));
    for _ in 0..1000 {
        decoder.push([b'y'; 1000]);
        assert_eq!(decoder.next_line(), None);
        assert!(format!("{decoder:?}").contains("0 bytes held"), "{decoder:?}");
    }
    decoder.push("\nok\n");
    assert_eq!(decoder.next_line(), Some(line("ok")));
    assert_eq!((decoder.next_line(), decoder.finish()), (None, None));
}

#[track_caller]
fn check_id(line: &str, id: Option<&str>) {
    const LIMIT: usize = 60;
    let long = format!("{line}{}", "y".repeat(100));
    let every_byte: Vec<_> = (0..long.len()).collect();
    for (text, cuts) in [(long.clone(), &[][..]), (format!("{long}\n"), &[]), (long.clone(), &every_byte)] {
        let lines = decode(text.as_bytes(), cuts, LIMIT);
        let id = id.and_then(|id| Id::from_raw(Bytes::copy_from_slice(id.as_bytes())).ok());
        assert_eq!(lines, [Err(LineTooLong { limit: LIMIT, request_id: id })], "{line}");
    }
}

#[test]
fn an_over_long_request_tells_its_id_if_that_comes_early() {
    check_id(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":""#, Some("7"));
    check_id(r#"{"method":"m","id":"7","jsonrpc":"2.0","params":["#, Some(r#""7""#));
    // Whole within the limit, and something behind it.
    check_id(r#"{"jsonrpc":"2.0","id":7,"method":"m"}            "#, Some("7"));
    // A character cut in two by the limit.
    check_id(&format!(r#"{{"id":7,"method":"m","params":"{}"#, "\u{e9}".repeat(20)), Some("7"));
    // Behind the limit, or cut by it: 123 of who knows what.
    check_id(&format!(r#"{{"method":"m","params":"{}","id":7}}"#, "x".repeat(60)), None);
    check_id(&format!(r#"{{"method":"m","params":"{}","id":123456789}}"#, "x".repeat(25)), None);
    // No request, or one that nobody should answer under this id.
    check_id(r#"{"jsonrpc":"2.0","id":7,"result":{"x":""#, None);
    check_id(r#"{"jsonrpc":"2.0","id":7,"params":{"method":""#, None);
    check_id(r#"{"jsonrpc":"2.0","id":7,"id":8,"method":"m","params":""#, None);
    check_id(r#"{"jsonrpc":"2.0","id":null,"method":"m","params":""#, None);
    check_id(r#"[{"jsonrpc":"2.0","id":7,"method":"m","params":""#, None);
    check_id("nonsense", None);
}

proptest! {
    #[test]
    fn cuts_do_not_matter(
        input in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b' '), Just(b'a'), any::<u8>()], 0..200),
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
        max_line in 0_usize..30,
    ) {
        let whole = decode(&input, &[], max_line);
        prop_assert_eq!(&decode(&input, &cuts, max_line), &whole);
        // The plain definition of the same thing.
        let expected: Lines = input
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .filter(|line| line.len() > max_line || !line.iter().all(|b| matches!(b, b' ' | b'\t' | b'\r')))
            .map(|line| if line.len() > max_line { Err(LineTooLong { limit: max_line, request_id: None }) } else { Ok(Bytes::copy_from_slice(line)) })
            .collect();
        prop_assert_eq!(whole, expected);
    }
}
