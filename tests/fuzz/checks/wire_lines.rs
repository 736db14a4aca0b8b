//! What must hold for any bytes given to the line decoder: the lines do not depend on where the bytes were cut,
//! and are those of the plain definition. One function for the fuzzer and for the replay on stable.

use bytes::Bytes;
use mcp_wire::{LineDecoder, LineTooLong};

/// The first byte is the longest line allowed, the second the distance of the cuts. Panics if lines come out wrong.
pub(crate) fn check(input: &[u8]) {
    let [max_line, step, bytes @ ..] = input else { return };
    let (max_line, step) = (usize::from(*max_line), usize::from(*step).max(1));
    let mut decoder = LineDecoder::new(max_line);
    let mut lines = Vec::new();
    for piece in bytes.chunks(step) {
        decoder.push(piece);
        lines.extend(std::iter::from_fn(|| decoder.next_line()));
    }
    lines.extend(std::iter::from_fn(|| decoder.finish()));
    assert_eq!(lines, plain(bytes, max_line));
}

fn plain(bytes: &[u8], max_line: usize) -> Vec<Result<Bytes, LineTooLong>> {
    let too_long = |line: &[u8]| LineTooLong {
        limit: max_line,
        request_id: line.get(..max_line).and_then(mcp_wire::request_id_of_start),
    };
    bytes
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| line.len() > max_line || !line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')))
        .map(
            |line| if line.len() > max_line { Err(too_long(line)) } else { Ok(Bytes::copy_from_slice(line)) },
        )
        .collect()
}
