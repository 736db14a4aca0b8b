//! What must hold for any bytes given to the decoder of server-sent events: the events do not depend on where the
//! bytes were cut, and are those of the plain definition, read slowly from the whole text. One function for the
//! fuzzer and for the replay on stable.

use bytes::Bytes;
use mcp_http::sse::{Decoder, MAX_WAIT, SseError, SseEvent};

/// The first byte is the size limit of an event, the second the distance of the cuts. Panics if events come out wrong.
pub(crate) fn check(input: &[u8]) {
    let [max_event, step, bytes @ ..] = input else { return };
    let (max_event, step) = (usize::from(*max_event), usize::from(*step).max(1));
    let mut decoder = Decoder::new(max_event);
    let mut events = Vec::new();
    for piece in bytes.chunks(step) {
        decoder.push(&Bytes::copy_from_slice(piece));
        events.extend(std::iter::from_fn(|| decoder.next()));
    }
    decoder.finish();
    assert_eq!(decoder.next(), None);
    assert_eq!(events, plain(bytes, max_event));
}

/// The lines that have an end, then the rest.
fn lines(bytes: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut lines = Vec::new();
    let mut rest = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        lines.push(&rest[..at]);
        let length = if rest[at..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[at + length..];
    }
    (lines, rest)
}

fn plain(bytes: &[u8], max_event: usize) -> Vec<Result<SseEvent, SseError>> {
    // Half a mark is no line yet, and two bytes are within every limit that is used.
    if b"\xEF\xBB\xBF".starts_with(bytes) {
        return Vec::new();
    }
    let too_large = SseError::TooLarge { cap: max_event };
    let mut events = Vec::new();
    let (lines, rest) = lines(bytes);
    let mut begun: Vec<&[u8]> = Vec::new();
    for line in lines {
        if line.is_empty() {
            events.extend(event(&begun).map(Ok));
            begun.clear();
            continue;
        }
        if line.starts_with(b":") {
            continue;
        }
        begun.push(line);
        if begun.iter().map(|line| line.len()).sum::<usize>() > max_event {
            events.push(Err(too_large));
            return events;
        }
        if let Some(field) = not_text(line) {
            events.push(Err(SseError::Utf8 { field }));
            return events;
        }
    }
    let used: usize = begun.iter().map(|line| line.len()).sum();
    if !rest.starts_with(b":") && !rest.is_empty() && used + rest.len() > max_event {
        events.push(Err(too_large));
    }
    events
}

fn split(line: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = line.splitn(2, |byte| *byte == b':');
    let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    (name, value.strip_prefix(b" ").unwrap_or(value))
}

fn not_text(line: &[u8]) -> Option<&'static str> {
    let (name, value) = split(line);
    let field = ["data", "event", "id"].into_iter().find(|field| field.as_bytes() == name)?;
    let ignored = field == "id" && value.contains(&0);
    (!ignored && std::str::from_utf8(value).is_err()).then_some(field)
}

fn event(lines: &[&[u8]]) -> Option<SseEvent> {
    let values = |wanted: &'static [u8]| {
        lines.iter().map(|line| split(line)).filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
    };
    let data: Vec<&[u8]> = values(b"data").collect();
    let id = values(b"id").rfind(|value| !value.contains(&0));
    let retry = values(b"retry").rfind(|value| !value.is_empty() && value.iter().all(u8::is_ascii_digit));
    if data.is_empty() && id.is_none() && retry.is_none() {
        return None;
    }
    let retry = retry.map(|digits| {
        let number = String::from_utf8_lossy(digits).parse::<u64>();
        number.map_or(MAX_WAIT, std::time::Duration::from_millis).min(MAX_WAIT)
    });
    let name = values(b"event").next_back().map(|name| String::from_utf8_lossy(name).into_owned());
    Some(SseEvent {
        id: id.map(Bytes::copy_from_slice),
        event: name.filter(|name| !name.is_empty()),
        data: Bytes::from(data.join(&b'\n')),
        retry,
    })
}
