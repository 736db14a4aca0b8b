//! A small decoder of server-sent events for the bench's own use.
//!
//! Deliberately not the decoder of `mcp-http`: a checker that shares code with what it checks is blind to its faults.
//! Only `data` is of interest here. HTML Living Standard §9.2.6; a lone CR as line end is not taken, no MCP server
//! sends it.

/// Decoder state between chunks.
#[derive(Default)]
pub(crate) struct SseDecoder {
    line: Vec<u8>,
    data: Vec<u8>,
}

impl SseDecoder {
    /// Takes the next bytes and puts the data of every event that ended into `events` (empty data is left out).
    pub(crate) fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<Vec<u8>>) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            if self.line.is_empty() {
                Self::take_line(&mut self.data, head, events);
            } else {
                self.line.extend_from_slice(head);
                Self::take_line(&mut self.data, &self.line, events);
                self.line.clear();
            }
        }
        self.line.extend_from_slice(bytes);
    }

    fn take_line(data: &mut Vec<u8>, line: &[u8], events: &mut Vec<Vec<u8>>) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            if !data.is_empty() {
                events.push(std::mem::take(data));
            }
        } else if let Some(value) = line.strip_prefix(b"data:") {
            if !data.is_empty() {
                data.push(b'\n');
            }
            data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"id: 1\ndata:\n\n: hi\r\nevent: message\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata:x\n\ndata: cut";

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        for size in 1..STREAM.len() {
            let (mut decoder, mut events) = (SseDecoder::default(), Vec::new());
            for chunk in STREAM.chunks(size) {
                decoder.feed(chunk, &mut events);
            }
            assert_eq!(events, [b"{\"a\":\n1}".to_vec(), b"x".to_vec()], "chunks of {size}");
        }
    }
}
