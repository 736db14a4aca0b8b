//! What must hold for any text that a client presents as a link id, an event id or the id of an ask: it opens only
//! under the key that made it, as what it was made for, whole and unchanged. One function for the fuzzer and for the
//! replay on stable.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evermux_core::seal::{AskClaim, EventClaim, LONGEST_CURSOR, LinkClaim, Sealer};

const KEY: [u8; 32] = [7; 32];
const MAC: usize = 16;

/// Whatever a text is taken for.
type Opened = (Option<LinkClaim>, Option<EventClaim>, Option<AskClaim>);

/// Panics if `input` is treated wrongly, as the text or as what is sealed in it.
pub(crate) fn check(input: &[u8]) {
    let sealer = Sealer::new(&KEY);
    if let Ok(text) = std::str::from_utf8(input) {
        check_text(&sealer, text);
    }
    check_text(&sealer, &sealed(input));
}

/// A text that this key made, whatever it says: written here once more, so that a changed seal is noticed.
fn sealed(body: &[u8]) -> String {
    let key = blake3::derive_key("evermux 2026 seal of link and event ids", &KEY);
    let mac = blake3::keyed_hash(&key, body);
    URL_SAFE_NO_PAD.encode([body, &mac.as_bytes()[..MAC]].concat())
}

fn open(sealer: &Sealer, text: &str) -> Opened {
    (sealer.open_link(text), sealer.open_event(text), sealer.open_ask(text))
}

fn check_text(sealer: &Sealer, text: &str) {
    let opened = open(sealer, text);
    let again: Vec<String> = match &opened {
        (None, None, None) => return,
        (Some(link), None, None) => vec![sealer.link(link)],
        (None, Some(event), None) => vec![sealer.event(event)],
        (None, None, Some(ask)) => vec![sealer.ask(ask)],
        several => panic!("one text, several meanings: {several:?}"),
    };
    let long = opened.1.as_ref().and_then(|event| event.cursor.as_ref());
    if long.is_none_or(|cursor| cursor.len() <= LONGEST_CURSOR) {
        again.iter().for_each(|again| assert_eq!(open(sealer, again), opened));
    }
    assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
    assert_eq!(open(&Sealer::new(&[8; 32]), text), (None, None, None), "under another key");
    // One place for each input: over many inputs, all of them.
    let at = text.bytes().fold(text.len(), |sum, byte| sum.wrapping_mul(31) + usize::from(byte)) % text.len();
    for other in ["", "A", "_", "=", "AA", "é"] {
        let changed = [&text[..at], other, &text[at + 1..]].concat();
        assert!(changed == text || open(sealer, &changed) == (None, None, None), "{changed}");
    }
    assert_eq!(open(sealer, &text[..at]), (None, None, None), "cut at {at}");
}
