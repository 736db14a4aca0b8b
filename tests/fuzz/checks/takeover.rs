//! What must hold for any bytes that two processes of a takeover exchange: the frames and whose the descriptors are do
//! not depend on where the stream was cut, and are those of the plain definition; what a frame is taken to say is in
//! it, and is read back as the same. One function for the fuzzer and for the replay on stable.

use std::fs::File;
use std::os::fd::OwnedFd;

use evermux_core::seal::Sealer;
use evermux_daemon::bare::reword;
use evermux_store::Key;
use fd_handover::{LARGEST_FRAME, bare};
use serde_json::Value;

/// Descriptors that come with one input at most: beyond them frames announce what nobody sent.
const MOST: usize = 32;
const MANIFEST: u8 = 6;

/// One frame of the plain definition: where it begins, its kind, how many descriptors, its body.
type Plain<'a> = (usize, u8, usize, &'a [u8]);

/// The first byte is the distance of the cuts, the rest the stream. Panics if it is taken wrongly.
pub(crate) fn check(input: &[u8]) {
    let [step, stream @ ..] = input else { return };
    let step = usize::from(*step).max(1);
    let (expected, whole) = plain(stream);
    let pieces = stream.chunks(step).enumerate().map(|(at, piece)| {
        let begun = expected.iter().filter(|frame| frame.0 / step == at);
        (piece.to_vec(), descriptors(begun.map(|frame| frame.2).sum()))
    });
    let (frames, end) = bare::frames(pieces);
    assert_eq!(end.is_ok(), whole, "{end:?}");
    assert_eq!(frames.len(), expected.len());
    let mut manifest = Vec::new();
    for (frame, (_, kind, fds, body)) in frames.iter().zip(expected) {
        assert_eq!((frame.kind, frame.fds.len(), &frame.body[..]), (kind, fds, body));
        let written = bare::encode(kind, body, u8::try_from(fds).unwrap_or(u8::MAX)).unwrap_or_default();
        assert!(stream.windows(written.len()).any(|part| part == written), "written otherwise than read");
        check_words(kind, body);
        if kind == MANIFEST {
            manifest.extend_from_slice(body);
        }
    }
    check_words(MANIFEST, &manifest);
}

fn descriptors(count: usize) -> Vec<OwnedFd> {
    std::iter::repeat_with(|| File::open("/dev/null")).take(count).flatten().map(OwnedFd::from).collect()
}

/// The whole frames, and whether nothing else was there.
fn plain(stream: &[u8]) -> (Vec<Plain<'_>>, bool) {
    let (mut frames, mut at, mut left) = (Vec::new(), 0, MOST);
    while at < stream.len() {
        let Some((length, rest)) = stream[at..].split_first_chunk::<4>() else { return (frames, false) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > LARGEST_FRAME + 2 || length > rest.len() {
            return (frames, false);
        }
        let [kind, fds, body @ ..] = &rest[..length] else { return (frames, false) };
        let Some(still) = left.checked_sub(usize::from(*fds)) else { return (frames, false) };
        frames.push((at, *kind, usize::from(*fds), body));
        (at, left) = (at + 4 + length, still);
    }
    (frames, true)
}

fn check_words(kind: u8, body: &[u8]) {
    let (sealer, key) = (Sealer::new(&[7; 32]), Key::from_bytes([7; 32]));
    let Some(written) = reword(kind, body, &sealer, &key) else { return };
    let again = reword(kind, &written, &sealer, &key);
    assert_eq!(again.as_deref(), Some(&written[..]), "not read as it was written: {kind}");
    let said = serde_json::from_slice::<Value>(body).expect("what was read is JSON");
    let taken = serde_json::from_slice::<Value>(&written).expect("what was written is JSON");
    assert!(is_in(&taken, &said), "{taken} was made of {said}");
}

/// Nothing is made up: every member that was taken stands in what was said. Names may be spelled in capitals, a record
/// in another order.
fn is_in(taken: &Value, said: &Value) -> bool {
    match (taken, said) {
        (Value::Object(taken), Value::Object(said)) => taken.iter().all(|(name, value)| {
            said.get(name).map_or(value.is_null(), |said| name == "record" || is_in(value, said))
        }),
        (Value::Array(taken), Value::Array(said)) => {
            taken.len() == said.len() && taken.iter().zip(said).all(|(taken, said)| is_in(taken, said))
        }
        // The parser takes a list for an object of its members, and an object for a word.
        (Value::Object(_), Value::Array(_)) | (Value::String(_), Value::Object(_)) => true,
        (Value::String(taken), Value::String(said)) => taken.eq_ignore_ascii_case(said),
        (taken, said) => taken == said,
    }
}
