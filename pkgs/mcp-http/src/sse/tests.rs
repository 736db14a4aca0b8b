//! The rules of the format one by one, then the property that no cut of the input changes what is read.

use proptest::prelude::*;

use super::*;

type Plain = (Option<String>, Option<String>, String, Option<u64>);

fn plain(event: &SseEvent) -> Plain {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let retry = event.retry.map(|wait| u64::try_from(wait.as_millis()).unwrap());
    (event.id.as_ref().map(text), event.event.clone(), text(&event.data), retry)
}

fn read(chunks: &[&[u8]], cap: usize) -> Vec<Result<Plain, SseError>> {
    let mut decoder = Decoder::new(cap);
    let mut found = Vec::new();
    for chunk in chunks {
        decoder.push(&Bytes::copy_from_slice(chunk));
        while let Some(event) = decoder.next() {
            found.push(event.as_ref().map(plain).map_err(|error| *error));
        }
    }
    decoder.finish();
    assert!(decoder.next().is_none());
    found
}

fn events(text: &str) -> Vec<Plain> {
    read(&[text.as_bytes()], 1 << 20).into_iter().map(Result::unwrap).collect()
}

fn data(text: &str) -> Vec<String> {
    events(text).into_iter().map(|event| event.2).collect()
}

#[test]
fn every_line_end_ends_a_line() {
    for end in ["\n", "\r", "\r\n"] {
        let text = ["data: a", "", "data: b", "data: c", "", ""].join(end);
        assert_eq!(data(&text), ["a", "b\nc"], "{end:?}");
    }
    assert_eq!(data("data: a\r\n\ndata: b\n\r\ndata: c\r\r"), ["a", "b", "c"]);
}

#[test]
fn crlf_cut_in_two_is_one_line_end() {
    let whole = |chunks: &[&[u8]]| read(chunks, 100).len();
    assert_eq!(read(&[b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"], 100).len(), 1);
    assert_eq!(whole(&[b"data: a\r", b"", b"\ndata: b\r\n\r\n"]), 1);
    // Complete at its last CR, without waiting for the LF.
    assert_eq!(whole(&[b"data: a\r\n\r"]), 1);
}

#[test]
fn fields_are_read_as_the_format_says() {
    assert_eq!(data("data:a\n\ndata:  b\n\ndata\n\ndata\ndata\n\n"), ["a", " b", "", "\n"]);
    assert_eq!(data("dat: x\nDATA: x\n data: x\nfoo\ndata: a:b\n\n"), ["a:b"]);
    assert_eq!(data(": comment\n:\ndata: a\n: more\ndata: b\n\n"), ["a\nb"]);
    assert_eq!(events("event: x\ndata: a\n\ndata: b\n\n")[0].1.as_deref(), Some("x"));
    assert_eq!(events("event: x\ndata: a\n\ndata: b\n\n")[1].1, None);
    assert_eq!(events("event:\ndata: a\n\n")[0].1, None);
    assert_eq!(events("event: only\n\n: c\n\n\n\n"), []);
}

#[test]
fn byte_order_mark_is_skipped_at_the_start_only() {
    assert_eq!(data("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a"]);
    assert_eq!(read(&[b"\xEF", b"\xBB", b"\xBFdata: a\n\n"], 100).len(), 1);
    assert_eq!(data("\u{feff}:comment\ndata: a\n\n"), ["a"]);
    // The start of one, then something else: part of a line that is then ignored.
    assert_eq!(read(&[b"\xEF\xBB", b"x\ndata: a\n\n"], 100).len(), 1);
}

#[test]
fn priming_events_are_delivered() {
    let priming = |text| events(text)[0].clone();
    assert_eq!(priming("id: 1\ndata:\n\n"), (Some("1".into()), None, String::new(), None));
    assert_eq!(
        priming("data: \nid: 1\nretry: 3000\n\n"),
        (Some("1".into()), None, String::new(), Some(3000))
    );
    assert_eq!(priming("id: 1\n\n"), (Some("1".into()), None, String::new(), None));
    assert_eq!(priming("retry: 5000\n\n"), (None, None, String::new(), Some(5000)));
}

#[test]
fn an_id_belongs_to_the_event_that_carried_it() {
    let ids: Vec<_> =
        events("id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n").into_iter().map(|e| e.0).collect();
    assert_eq!(ids, [Some("1".into()), None, Some(String::new())]);
    assert_eq!(events("id: a\0b\ndata: x\n\n")[0].0, None);
    assert_eq!(events("id: a\nid: a\0b\ndata: x\n\n")[0].0.as_deref(), Some("a"));
}

#[test]
fn retry_takes_digits_only_and_is_bounded() {
    let retry = |value: &str| events(&format!("retry:{value}\ndata: a\n\n"))[0].3;
    assert_eq!(retry(" 10"), Some(10));
    assert_eq!(retry("0"), Some(0));
    for wrong in ["", " -1", " 1.5", " 1s", "  1", " +1"] {
        assert_eq!(retry(wrong), None, "{wrong:?}");
    }
    assert_eq!(retry(&"9".repeat(40)), Some(86_400_000));
}

#[test]
fn retry_counts_even_without_the_end_of_its_event() {
    let mut decoder = Decoder::new(100);
    decoder.push(&Bytes::from_static(b"retry: 7\n"));
    assert!(decoder.next().is_none());
    assert!(decoder.finish());
    assert_eq!(decoder.retry(), Some(Duration::from_millis(7)));
}

#[test]
fn an_event_without_its_blank_line_is_discarded() {
    assert_eq!(data("data: a\n\ndata: b\n"), ["a"]);
    assert_eq!(data("data: a\n\ndata: b"), ["a"]);
    let mut decoder = Decoder::new(100);
    decoder.push(&Bytes::from_static(b"data: a\n\n"));
    assert!(decoder.next().is_some());
    assert!(!decoder.finish());
}

#[test]
fn text_cut_inside_a_character_is_whole_again() {
    let text = "data: \u{1F600}\u{e9}\n\n".as_bytes();
    for at in 0..text.len() {
        let (left, right) = text.split_at(at);
        assert_eq!(read(&[left, right], 100)[0].as_ref().unwrap().2, "\u{1F600}\u{e9}", "cut at {at}");
    }
}

#[test]
fn what_is_not_text_is_an_error_and_the_last() {
    let found = read(&[b"data: a\n\ndata: \xFF\n\ndata: b\n\n", b"data: c\n\n"], 100);
    assert_eq!(found.len(), 2);
    assert_eq!(found[1], Err(SseError::Utf8 { field: "data" }));
    assert_eq!(read(&[b"id: \xC3\n\n"], 100), [Err(SseError::Utf8 { field: "id" })]);
    assert_eq!(read(&[b": \xFF\nfoo: \xFF\ndata: a\n\n"], 100).len(), 1);
}

#[test]
fn the_limit_is_exact_and_named() {
    let fits = b"id: 1\ndata: 34567\n\n";
    assert!(read(&[fits], 16).iter().all(Result::is_ok));
    let found = read(&[fits], 15);
    assert_eq!(found, [Err(SseError::TooLarge { cap: 15 })]);
    assert_eq!(found[0].clone().unwrap_err().to_string(), "an event is larger than the limit of 15 bytes");
    // Per event, not per stream; comments are free, even endless ones.
    assert_eq!(read(&[&fits.repeat(100)], 16).len(), 100);
    let mut endless = Decoder::new(16);
    for _ in 0..1000 {
        endless.push(&Bytes::from_static(b":::::::::::::::::::::::::::::::::::::::"));
        assert!(endless.next().is_none());
        assert_eq!(held(&endless), 0);
    }
    endless.push(&Bytes::from_static(b"\ndata: a\n\n"));
    assert!(endless.next().is_some());
}

fn held(decoder: &Decoder) -> usize {
    let chunks: usize = decoder.chunks.iter().map(Bytes::len).sum();
    let line = match &decoder.line {
        Line::Kept(kept) => kept.capacity(),
        Line::Nothing | Line::Comment => 0,
    };
    let data = match &decoder.event.data {
        Data::Nothing => 0,
        Data::One(line) => line.len(),
        Data::Many(lines) => lines.len(),
    };
    chunks + line + data
}

/// 16 MiB in 1 KiB chunks: each byte is looked at and copied a bounded number of times.
#[test]
fn work_is_linear_however_small_the_chunks() {
    const SIZE: usize = 16 << 20;
    let chunk = Bytes::from(vec![b'x'; 1024]);
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    decoder.push(&Bytes::from_static(b"data: "));
    for _ in 0..SIZE / chunk.len() {
        decoder.push(&chunk);
        assert!(decoder.next().is_none());
        assert!(held(&decoder) <= DEFAULT_MAX_EVENT + chunk.len());
    }
    decoder.push(&Bytes::from_static(b"\n\n"));
    assert_eq!(decoder.next().unwrap().unwrap().data.len(), SIZE);
    assert!(decoder.work < 6 * SIZE, "{} bytes of work for {SIZE}", decoder.work);
}

#[test]
fn work_is_linear_in_many_lines_and_events() {
    let text =
        Bytes::from("data: 0123456789\n".repeat(100_000) + "\n" + &"id: 1\ndata: x\n\n".repeat(100_000));
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    for start in (0..text.len()).step_by(7) {
        decoder.push(&text.slice(start..text.len().min(start + 7)));
        while let Some(event) = decoder.next() {
            event.unwrap();
        }
    }
    assert!(decoder.work < 6 * text.len(), "{} bytes of work for {}", decoder.work, text.len());
}

#[test]
fn an_endless_line_is_refused_at_the_limit() {
    const CAP: usize = 1 << 20;
    let chunk = Bytes::from(vec![b'x'; 64 << 10]);
    let mut decoder = Decoder::new(CAP);
    decoder.push(&Bytes::from_static(b"data: "));
    let mut most = 0;
    let error = loop {
        decoder.push(&chunk);
        most = most.max(held(&decoder));
        if let Some(event) = decoder.next() {
            break event.unwrap_err();
        }
        most = most.max(held(&decoder));
    };
    assert_eq!(error, SseError::TooLarge { cap: CAP });
    assert!(most <= CAP + chunk.len(), "held {most}");
    assert_eq!(held(&decoder), 0);
    decoder.push(&chunk);
    assert!(decoder.next().is_none());
}

#[test]
fn sixteen_mebibytes_pass_and_sixty_four_do_not() {
    let event = |size: usize| Bytes::from(["data: ", &"x".repeat(size), "\n\n"].concat());
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    decoder.push(&event(16 << 20));
    assert_eq!(decoder.next().unwrap().unwrap().data.len(), 16 << 20);
    decoder.push(&event(64 << 20));
    assert_eq!(decoder.next(), Some(Err(SseError::TooLarge { cap: 32 << 20 })));
}

#[test]
fn data_in_one_chunk_is_not_copied() {
    let chunk = Bytes::from_static(b"id: 1\ndata: {\"a\":1}\n\n");
    let mut decoder = Decoder::new(100);
    decoder.push(&chunk);
    let event = decoder.next().unwrap().unwrap();
    assert_eq!(event.data.as_ptr(), chunk[12..].as_ptr());
    assert!(!chunk.as_ptr_range().contains(&event.id.unwrap().as_ptr()), "an id keeps its chunk alive");
}

#[test]
fn debug_shows_neither_id_nor_data() {
    let event =
        SseEvent { id: Some("s3cret".into()), data: Bytes::from_static(b"s3cret"), ..SseEvent::default() };
    assert!(!format!("{event:?}").contains("s3cret"));
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"data: hello".to_vec()),
        Just(b"data:".to_vec()),
        Just(b"data".to_vec()),
        Just(b"id: 7".to_vec()),
        Just(b"id".to_vec()),
        Just(b"event: message".to_vec()),
        Just(b"retry: 12".to_vec()),
        Just(b": comment".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n\n".to_vec()),
        Just(b"\xEF\xBB\xBF".to_vec()),
        Just("\u{1F600}".as_bytes().to_vec()),
        Just(b"\0".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_cut_changes_what_is_read(
        input in pieces(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        cap in prop_oneof![Just(1000_usize), 1_usize..40],
    ) {
        let whole = read(&[&input], cap);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.extend([0, input.len()]);
        cuts.sort_unstable();
        let cut: Vec<&[u8]> = cuts.windows(2).map(|pair| &input[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&read(&cut, cap), &whole);
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        prop_assert_eq!(&read(&bytes, cap), &whole);
    }
}
