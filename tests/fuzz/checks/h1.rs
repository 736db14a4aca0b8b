//! What must hold for any bytes given to the reader of HTTP/1.1 responses: it ends, and the response is the same wherever
//! it was cut. One function for the fuzzer and for the replay on stable.

use bytes::Bytes;
use mcp_http::h1::{Malformed, Part, Reader};

/// What a response was.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    heads: Vec<(u16, usize)>,
    body: Vec<u8>,
    whole: bool,
    reusable: bool,
    error: Option<Malformed>,
}

/// The first byte is the distance of the cuts. Panics if a response comes out differently.
pub(crate) fn check(input: &[u8]) {
    let [step, bytes @ ..] = input else { return };
    let at_once = read([bytes].into_iter());
    let in_pieces = read(bytes.chunks(usize::from(*step).max(1)));
    assert!(at_once.heads.len() <= 1 && (at_once.heads.len() == 1 || at_once.body.is_empty()));
    assert_eq!(at_once, in_pieces);
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Read {
    let mut reader = Reader::default();
    let mut read = Read::default();
    for piece in pieces {
        reader.push(Bytes::copy_from_slice(piece));
        loop {
            match reader.next_part() {
                Ok(Some(Part::Head(parts))) => read.heads.push((parts.status.as_u16(), parts.headers.len())),
                Ok(Some(Part::Data(data))) => {
                    assert!(!data.is_empty());
                    read.body.extend_from_slice(&data);
                }
                Ok(Some(Part::End)) => read.whole = true,
                Ok(None) => break,
                Err(error) => {
                    read.error = Some(error);
                    return read;
                }
            }
        }
    }
    // Asked when all has come: what is behind the end makes the connection unfit whenever it came.
    read.reusable = read.whole && reader.is_reusable();
    read.whole |= reader.finish();
    read
}
