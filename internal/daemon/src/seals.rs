//! Opens what clients bring back sealed, and remembers the links that came last.
//!
//! Each message of a client brings the same link id, and opening one costs more than all else that is looked at in a head. What is
//! remembered was opened before and is compared whole, so it says nothing that the seal did not.

use std::sync::{Mutex, PoisonError};

use evermux_core::seal::{EventClaim, LinkClaim, Sealer};

/// So many links, each at one place: more than call at the same time, in 16 KiB.
const PLACES: usize = 64;

/// A link id and what it says.
type Opened = Option<(Box<str>, LinkClaim)>;

pub(crate) struct Seals {
    sealer: Sealer,
    recent: Mutex<Box<[Opened; PLACES]>>,
}

impl Seals {
    pub(crate) fn new(sealer: Sealer) -> Self {
        Self { sealer, recent: Mutex::new(Box::new([const { None }; PLACES])) }
    }

    pub(crate) const fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// `None`: not made under this key.
    pub(crate) fn open_link(&self, id: &str) -> Option<LinkClaim> {
        // The end of an id is the end of its seal, and as good as random.
        let place = id.bytes().rev().take(2).fold(0, |hash, byte| hash * 31 + usize::from(byte)) % PLACES;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = recent.get_mut(place)?;
        if let Some((_, claim)) = recent.as_ref().filter(|(known, _)| **known == *id) {
            return Some(claim.clone());
        }
        let claim = self.sealer.open_link(id)?;
        *recent = Some((id.into(), claim.clone()));
        Some(claim)
    }

    pub(crate) fn open_event(&self, id: &str) -> Option<EventClaim> {
        self.sealer.open_event(id)
    }
}

#[cfg(test)]
mod tests {
    use evermux_core::class::Class;
    use evermux_core::names::{Digest, LinkNonce};

    use super::*;

    fn claim(nonce: u128) -> LinkClaim {
        LinkClaim {
            nonce: LinkNonce(nonce),
            upstream: "up".into(),
            identity: Digest(nonce),
            class: Class::default(),
            version: "2025-11-25".to_owned(),
        }
    }

    #[test]
    fn a_link_says_the_same_however_often_it_comes() {
        let sealer = Sealer::new(&[1; 32]);
        let seals = Seals::new(sealer.clone());
        let ids: Vec<String> = (0..500).map(|nonce| sealer.link(&claim(nonce))).collect();
        for _ in 0..2 {
            for (nonce, id) in (0..).zip(&ids) {
                assert_eq!(seals.open_link(id), Some(claim(nonce)));
                assert_eq!(seals.open_link(id), Some(claim(nonce)), "remembered");
            }
        }
    }

    /// What is no link is not taken for the one that was remembered at its place, and does not take that place.
    #[test]
    fn only_the_very_same_id_is_remembered() {
        let sealer = Sealer::new(&[1; 32]);
        let seals = Seals::new(sealer.clone());
        let id = sealer.link(&claim(7));
        assert_eq!(seals.open_link(&id), Some(claim(7)));
        for at in 0..id.len() - 2 {
            let mut forged = id.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(seals.open_link(std::str::from_utf8(&forged).unwrap()), None, "{at}");
        }
        assert_eq!(seals.open_link(&id[1..]), None);
        assert_eq!(seals.open_link(""), None);
        let others = Sealer::new(&[2; 32]).link(&claim(7));
        assert_eq!(seals.open_link(&others), None);
        assert_eq!(seals.open_link(&id), Some(claim(7)));
    }
}
