//! Self-describing names for what a client may present to a *different* process later.
//!
//! Link ids and event ids carry their own meaning under a keyed MAC, so that a SIGKILL costs no table that was
//! only in memory, and a client that opens a session per call costs no disk. The MAC proves that this state
//! directory's key made them; it hides nothing, so no secret goes in: an upstream's event id is a position,
//! its session id stays in the record.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use mcp_wire::Id;

use crate::class::Class;
use crate::names::{Digest, Generation, Handshake, LinkNonce, Trajectory, UpstreamName, WireId};

const MAC: usize = 16;
/// Most names are shorter than this, in bytes.
const USUAL: usize = 192;
const LINK: u8 = 1;
const ASK: u8 = 3;
/// 2 was an event id without a place.
const EVENT: u8 = 4;
/// An upstream's event id longer than this does not travel in ours; it stays in memory and in the journal.
pub const LONGEST_CURSOR: usize = 512;

/// What a link id says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkClaim {
    /// Tells this link from every other.
    pub nonce: LinkNonce,
    /// The upstream it was made for.
    pub upstream: UpstreamName,
    /// Whose credentials it uses.
    pub identity: Digest,
    /// The client's capability class (D6).
    pub class: Class,
    /// The protocol revision negotiated with the client.
    pub version: String,
}

/// What an event id says: which call of which session, whose, and how far its stream was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventClaim {
    /// The link it was sent to; another link's is not accepted.
    pub link: LinkNonce,
    /// The session.
    pub trajectory: Trajectory,
    /// Its handshake.
    pub handshake: Handshake,
    /// The call towards the upstream; 0 for the GET stream.
    pub wire: WireId,
    /// The client's own id of the call.
    pub client_id: Option<Id>,
    /// The client's own progress token.
    pub token: Option<Id>,
    /// The upstream's event id.
    pub cursor: Option<String>,
    /// Where it stands among the events that this process sent to a plain client.
    pub place: Option<Place>,
}

impl EventClaim {
    /// It stood on the way to an answer, not on a GET stream.
    pub fn is_of_call(&self) -> bool {
        self.wire.0 != 0 || self.place.is_some_and(|place| place.of_call)
    }
}

/// Where an event stands on its response: good for the process that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The process.
    pub generation: Generation,
    /// Which of its event streams.
    pub trail: u64,
    /// Its number there.
    pub number: u64,
    /// The stream leads to an answer; else it is a GET stream.
    pub of_call: bool,
}

/// What the id of an ask says: who was asked, on whose stream, and what the server calls it. The same ask has the
/// same id in every process, so that a client that is shown it twice can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskClaim {
    /// The link that was asked; nobody else's answer counts.
    pub link: LinkNonce,
    /// The session that asked.
    pub trajectory: Trajectory,
    /// Its handshake: another one's server would take the answer for something else.
    pub handshake: Handshake,
    /// The call on whose stream it came; 0 for the GET stream.
    pub wire: WireId,
    /// The server's own id, as it wrote it.
    pub id: Id,
}

/// Seals and opens names under the state directory's key.
#[derive(Clone)]
pub struct Sealer {
    key: [u8; 32],
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(…)")
    }
}

impl Sealer {
    /// Derives the sealing key, so that the same bytes never serve two purposes.
    pub fn new(state_key: &[u8; 32]) -> Self {
        Self { key: blake3::derive_key("evermux 2026 seal of link and event ids", state_key) }
    }

    /// The link id: visible ASCII, as `Mcp-Session-Id` demands (2025-11-25, "Session Management").
    pub fn link(&self, claim: &LinkClaim) -> String {
        let mut out = begun(LINK);
        out.extend_from_slice(&claim.nonce.0.to_be_bytes());
        out.extend_from_slice(&claim.identity.0.to_be_bytes());
        out.push(claim.class.0);
        put(&mut out, claim.version.as_bytes());
        put(&mut out, claim.upstream.0.as_bytes());
        self.close(out)
    }

    /// Opens a link id; `None`: not made under this key.
    pub fn open_link(&self, text: &str) -> Option<LinkClaim> {
        let body = self.open(text, LINK)?;
        let mut rest = body.as_slice();
        let claim = LinkClaim {
            nonce: LinkNonce(take_u128(&mut rest)?),
            identity: Digest(take_u128(&mut rest)?),
            class: Class(take::<1>(&mut rest)?[0]),
            version: take_text(&mut rest)?,
            upstream: UpstreamName(take_text(&mut rest)?.into()),
        };
        rest.is_empty().then_some(claim)
    }

    /// The event id.
    pub fn event(&self, claim: &EventClaim) -> String {
        let mut out = begun(EVENT);
        out.extend_from_slice(&claim.link.0.to_be_bytes());
        out.extend_from_slice(&claim.trajectory.0.to_be_bytes());
        out.extend_from_slice(&claim.handshake.0.to_be_bytes());
        out.extend_from_slice(&claim.wire.0.to_be_bytes());
        put_optional(&mut out, claim.client_id.as_ref().map(Id::as_raw));
        put_optional(&mut out, claim.token.as_ref().map(Id::as_raw));
        let cursor = claim.cursor.as_ref().filter(|cursor| cursor.len() <= LONGEST_CURSOR);
        put_optional(&mut out, cursor.map(String::as_bytes));
        put_place(&mut out, claim.place);
        self.close(out)
    }

    /// Opens an event id; `None`: not made under this key.
    pub fn open_event(&self, text: &str) -> Option<EventClaim> {
        let body = self.open(text, EVENT)?;
        let mut rest = body.as_slice();
        let claim = EventClaim {
            link: LinkNonce(take_u128(&mut rest)?),
            trajectory: Trajectory(take_u128(&mut rest)?),
            handshake: Handshake(u32::from_be_bytes(take(&mut rest)?)),
            wire: WireId(u64::from_be_bytes(take(&mut rest)?)),
            client_id: take_id(&mut rest)?,
            token: take_id(&mut rest)?,
            cursor: match take_optional(&mut rest)? {
                Some(bytes) => Some(String::from_utf8(bytes).ok()?),
                None => None,
            },
            place: take_place(&mut rest)?,
        };
        rest.is_empty().then_some(claim)
    }

    /// The id under which a client is asked.
    pub fn ask(&self, claim: &AskClaim) -> String {
        let mut out = begun(ASK);
        out.extend_from_slice(&claim.link.0.to_be_bytes());
        out.extend_from_slice(&claim.trajectory.0.to_be_bytes());
        out.extend_from_slice(&claim.handshake.0.to_be_bytes());
        out.extend_from_slice(&claim.wire.0.to_be_bytes());
        put(&mut out, claim.id.as_raw());
        self.close(out)
    }

    /// Opens the id of an ask; `None`: not made under this key.
    pub fn open_ask(&self, text: &str) -> Option<AskClaim> {
        let body = self.open(text, ASK)?;
        let mut rest = body.as_slice();
        let claim = AskClaim {
            link: LinkNonce(take_u128(&mut rest)?),
            trajectory: Trajectory(take_u128(&mut rest)?),
            handshake: Handshake(u32::from_be_bytes(take(&mut rest)?)),
            wire: WireId(u64::from_be_bytes(take(&mut rest)?)),
            id: Id::from_raw(Bytes::from(take_bytes(&mut rest)?)).ok()?,
        };
        rest.is_empty().then_some(claim)
    }

    /// A keyed hash: equal or not, and nothing else. `class` tells one kind of value from another.
    pub fn digest(&self, class: &str, value: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"digest\0").update(class.as_bytes()).update(b"\0").update(value);
        let mut out = [0; 16];
        hasher.finalize_xof().fill(&mut out);
        Digest(u128::from_be_bytes(out))
    }

    fn close(&self, mut body: Vec<u8>) -> String {
        let mac = blake3::keyed_hash(&self.key, &body);
        body.extend_from_slice(&mac.as_bytes()[..MAC]);
        URL_SAFE_NO_PAD.encode(body)
    }

    fn open(&self, text: &str, kind: u8) -> Option<Vec<u8>> {
        let mut body = URL_SAFE_NO_PAD.decode(text).ok()?;
        let split = body.len().checked_sub(MAC)?;
        let mac = blake3::keyed_hash(&self.key, &body[..split]);
        // `blake3::Hash` compares in constant time, a slice would not.
        let mut padded = *mac.as_bytes();
        padded[..MAC].copy_from_slice(&body[split..]);
        if blake3::Hash::from_bytes(padded) != mac {
            return None;
        }
        body.truncate(split);
        (body.first() == Some(&kind)).then(|| body.split_off(1))
    }
}

fn begun(kind: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL);
    out.push(kind);
    out
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(0);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&bytes[..len as usize]);
}

fn put_optional(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put(out, bytes);
    }
}

fn put_place(out: &mut Vec<u8>, place: Option<Place>) {
    out.push(match place {
        None => 0,
        Some(Place { of_call: false, .. }) => 1,
        Some(Place { of_call: true, .. }) => 2,
    });
    if let Some(place) = place {
        out.extend_from_slice(&place.generation.0.to_be_bytes());
        out.extend_from_slice(&place.trail.to_be_bytes());
        out.extend_from_slice(&place.number.to_be_bytes());
    }
}

fn take_place(rest: &mut &[u8]) -> Option<Option<Place>> {
    let of_call = match take::<1>(rest)?[0] {
        0 => return Some(None),
        1 => false,
        2 => true,
        _ => return None,
    };
    let mut number = || take(rest).map(u64::from_be_bytes);
    let (generation, trail, number) = (Generation(number()?), number()?, number()?);
    Some(Some(Place { generation, trail, number, of_call }))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

fn take_u128(rest: &mut &[u8]) -> Option<u128> {
    take(rest).map(u128::from_be_bytes)
}

fn take_bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let len = u32::from_be_bytes(take(rest)?) as usize;
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head.to_vec())
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    String::from_utf8(take_bytes(rest)?).ok()
}

fn take_optional(rest: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    match take::<1>(rest)?[0] {
        0 => Some(None),
        1 => take_bytes(rest).map(Some),
        _ => None,
    }
}

fn take_id(rest: &mut &[u8]) -> Option<Option<Id>> {
    match take_optional(rest)? {
        Some(raw) => Id::from_raw(Bytes::from(raw)).ok().map(Some),
        None => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> LinkClaim {
        LinkClaim {
            nonce: LinkNonce(7),
            upstream: "github".into(),
            identity: Digest(9),
            class: Class::SAMPLING,
            version: "2025-11-25".into(),
        }
    }

    fn event() -> EventClaim {
        EventClaim {
            link: LinkNonce(7),
            trajectory: Trajectory(1),
            handshake: Handshake(2),
            wire: WireId(3),
            client_id: Some(Id::number(4)),
            token: None,
            cursor: Some("stream-1_17".into()),
            place: Some(Place { generation: Generation(5), trail: 6, number: 7, of_call: true }),
        }
    }

    #[test]
    fn a_link_id_is_visible_ascii_and_opens_under_its_own_key_only() {
        let sealer = Sealer::new(&[1; 32]);
        let text = sealer.link(&claim());
        assert!(text.bytes().all(|b| (0x21..=0x7e).contains(&b)));
        assert_eq!(sealer.open_link(&text), Some(claim()));
        assert_eq!(Sealer::new(&[2; 32]).open_link(&text), None);
    }

    #[test]
    fn an_event_id_keeps_all_it_says() {
        let sealer = Sealer::new(&[1; 32]);
        assert_eq!(sealer.open_event(&sealer.event(&event())), Some(event()));
    }

    fn ask(id: &'static str) -> AskClaim {
        AskClaim {
            link: LinkNonce(7),
            trajectory: Trajectory(1),
            handshake: Handshake(2),
            wire: WireId(3),
            id: Id::from_raw(Bytes::from_static(id.as_bytes())).unwrap(),
        }
    }

    #[test]
    fn an_ask_keeps_the_servers_id_with_its_type_and_spelling() {
        let sealer = Sealer::new(&[1; 32]);
        for id in ["1", "\"1\"", "1.0", "\"a\\u0062\"", "-7"] {
            let text = sealer.ask(&ask(id));
            assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
            let opened = sealer.open_ask(&text).unwrap();
            assert_eq!(opened, ask(id));
            assert_eq!(opened.id.as_raw(), id.as_bytes());
            assert_eq!(Sealer::new(&[2; 32]).open_ask(&text), None);
        }
        assert_ne!(sealer.ask(&ask("1")), sealer.ask(&ask("\"1\"")));
    }

    #[test]
    fn every_part_of_an_ask_is_sealed() {
        let sealer = Sealer::new(&[1; 32]);
        let text = sealer.ask(&ask("\"s\""));
        let raw = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..raw.len() {
            let mut other = raw.clone();
            other[at] ^= 1;
            assert_eq!(sealer.open_ask(&URL_SAFE_NO_PAD.encode(other)), None, "byte {at}");
        }
    }

    #[test]
    fn no_kind_of_id_is_taken_for_another() {
        let sealer = Sealer::new(&[1; 32]);
        assert_eq!(sealer.open_event(&sealer.link(&claim())), None);
        assert_eq!(sealer.open_link(&sealer.event(&event())), None);
        for text in [sealer.link(&claim()), sealer.event(&event())] {
            assert_eq!(sealer.open_ask(&text), None);
        }
        assert_eq!(sealer.open_event(&sealer.ask(&ask("1"))), None);
        assert_eq!(sealer.open_link(&sealer.ask(&ask("1"))), None);
    }

    #[test]
    fn no_changed_byte_opens() {
        let sealer = Sealer::new(&[1; 32]);
        let text = sealer.event(&event());
        let raw = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..raw.len() {
            let mut other = raw.clone();
            other[at] ^= 1;
            assert_eq!(sealer.open_event(&URL_SAFE_NO_PAD.encode(other)), None, "byte {at}");
        }
        for len in 0..text.len() {
            assert_eq!(sealer.open_event(&text[..len]), None, "cut at {len}");
        }
    }

    #[test]
    fn an_overlong_cursor_does_not_travel() {
        let sealer = Sealer::new(&[1; 32]);
        let mut long = event();
        long.cursor = Some("x".repeat(LONGEST_CURSOR + 1));
        let opened = sealer.open_event(&sealer.event(&long)).unwrap();
        assert_eq!(opened.cursor, None);
    }
}
