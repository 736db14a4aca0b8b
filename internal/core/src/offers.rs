//! How a handshake is offered. The revision is negotiated in the body and named in no header (2025-11-25, "Protocol
//! Version Header": for requests after initialization), but there are servers that look for the header first, refuse
//! one that they do not know instead of answering with their own, or refuse a request without it (B48).
//!
//! So what a server refuses with 400, or for the revision's sake, is offered in other words: with the header, then
//! with older revisions. Once down the ladder for all sessions with these credentials; what worked is where the next
//! handshake begins.

use std::collections::BTreeSet;

use mcp_wire::{Message, version};

use crate::class::Declared;
use crate::hub::Hub;
use crate::input::Refusal;
use crate::session::SessionIx;

/// Newest first.
const OLDER: [&str; 2] = [version::V2025_06_18, version::V2025_03_26];

/// What an `initialize` says of the revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offer {
    header: bool,
    at_most: Option<&'static str>,
}

/// Where a server's ladder stands.
#[derive(Debug, Default)]
pub(crate) struct Ladder {
    /// The next handshake offers this.
    next: Offer,
    /// Declarations of these revisions were refused in all words: for them nothing but the first offer is made until
    /// one is taken. A client of an old revision has fewer words than others.
    spent: BTreeSet<String>,
}

impl Offer {
    /// The revision in the body.
    pub(crate) fn version(self, declared: &Declared) -> &str {
        self.at_most.filter(|most| *most < declared.version.as_str()).unwrap_or(&declared.version)
    }

    /// The same in the header, where one is sent.
    pub(crate) fn header(self, declared: &Declared) -> Option<String> {
        let version = self.version(declared);
        (self.header && has_header(version)).then(|| version.to_owned())
    }

    /// The next one that differs for this declaration.
    fn below(self, declared: &Declared) -> Option<Self> {
        let says = |offer: Self| (offer.version(declared).to_owned(), offer.header(declared));
        let with_header = |at_most| Self { header: true, at_most };
        let ladder = std::iter::once(None).chain(OLDER.map(Some)).map(with_header);
        let mut rest =
            ladder.skip_while(|offer| self.header && *offer != self).skip(usize::from(self.header));
        rest.find(|offer| says(*offer) != says(self))
    }
}

impl Hub {
    /// What the next `initialize` of this session says.
    pub(crate) fn offer_of(&mut self, ix: SessionIx) -> Offer {
        let offer = self.credentials_of(ix).map(|credentials| credentials.ladder.next).unwrap_or_default();
        if let Some(session) = self.sessions.get_mut(&ix) {
            session.offered = offer;
        }
        offer
    }

    /// The handshake was taken.
    pub(crate) fn note_taken_offer(&mut self, ix: SessionIx) {
        if let Some(credentials) = self.credentials_of(ix) {
            credentials.ladder.spent.clear();
        }
    }

    /// A refused handshake is offered in other words at once. `false`: there are none left, or it was refused for
    /// another reason.
    pub(crate) fn offer_otherwise(&mut self, ix: SessionIx) -> bool {
        let Some(session) = self.sessions.get(&ix) else { return false };
        let (offered, declared) = (session.offered, session.declared.clone());
        let draining = self.draining;
        let Some(credentials) = self.credentials_of(ix) else { return false };
        let ladder = &mut credentials.ladder;
        if draining || ladder.spent.contains(&declared.version) {
            return false;
        }
        // Another session may have found out more meanwhile.
        if ladder.next == offered {
            let Some(below) = offered.below(&declared) else {
                ladder.next = Offer::default();
                ladder.spent.insert(declared.version);
                return false;
            };
            ladder.next = below;
        }
        self.begin_initialize(ix);
        true
    }
}

/// Whether a refused handshake may be a matter of the revision: it says so, or says nothing at all.
pub(crate) fn may_be_version(refusal: &Refusal) -> bool {
    if !matches!(refusal.status, 400 | 426) {
        return false;
    }
    let message = Message::parse(refusal.body.clone()).ok();
    if message.as_ref().and_then(Message::error_code) == Some(UNSUPPORTED) {
        return names_older(&refusal.body);
    }
    let raw = || String::from_utf8_lossy(&refusal.body).into_owned();
    let words = message.and_then(|message| message.error_message()).unwrap_or_else(raw).to_ascii_lowercase();
    let says_nothing = matches!(words.trim(), "" | "bad request" | "400 bad request" | "upgrade required");
    says_nothing || ["version", "header", "unsupported"].iter().any(|word| words.contains(word))
}

/// The same of an error that came with 200: only if it says so.
pub(crate) fn is_version(error: &Message) -> bool {
    let words = error.error_message().unwrap_or_default().to_ascii_lowercase();
    let code = error.error_code();
    let said = words.contains("protocol version") || words.contains("protocolversion");
    (code != Some(UNSUPPORTED) && said) || (code == Some(UNSUPPORTED) && names_older(error.bytes()))
}

/// 2026-07-28, "Error Codes": `data.supported` lists what the server speaks. One that lists no revision with sessions
/// has none for us.
const UNSUPPORTED: i64 = mcp_wire::code::UNSUPPORTED_PROTOCOL_VERSION;

fn names_older(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    OLDER.iter().any(|older| text.contains(older))
}

/// `MCP-Protocol-Version` came with 2025-06-18; revisions sort as text.
pub(crate) fn has_header(revision: &str) -> bool {
    revision >= version::V2025_06_18
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder(version: &str) -> Vec<(String, Option<String>)> {
        let declared = Declared {
            version: version.to_owned(),
            client_info: "{}".to_owned(),
            capabilities: "{}".to_owned(),
        };
        let offers = std::iter::successors(Some(Offer::default()), |offer| offer.below(&declared));
        offers.map(|offer| (offer.version(&declared).to_owned(), offer.header(&declared))).collect()
    }

    #[test]
    fn each_offer_is_another_one_and_the_older_ones_come_last() {
        let (newest, middle, oldest) = ("2025-11-25", "2025-06-18", "2025-03-26");
        let said = |version: &str, header: bool| (version.to_owned(), header.then(|| version.to_owned()));
        assert_eq!(
            ladder(newest),
            [said(newest, false), said(newest, true), said(middle, true), said(oldest, false)]
        );
        assert_eq!(ladder(middle), [said(middle, false), said(middle, true), said(oldest, false)]);
        assert_eq!(ladder(oldest), [said(oldest, false)]);
    }
}
