//! Links that are written before the freeze: a thousand of them take milliseconds on either side, and in the freeze most are
//! still as they were. What changed since stands behind them, in the same list; a build that knows nothing of this reads
//! one manifest like any other, in which a link's last word counts.

use std::collections::{BTreeMap, BTreeSet};

use evermux_core::handover::{HandedLink, Manifest};
use evermux_core::names::LinkNonce;

use super::super::frames::End;
use super::{Codec, Lent, NO_MANIFEST, Whole, Wrong, nonce};

/// What a text begins with whose links were written ahead.
const BEGINNING: &[u8] = br#"{"links":["#;

/// What was written ahead, or read.
#[derive(Default)]
pub(crate) struct Ahead {
    links: BTreeMap<LinkNonce, HandedLink>,
    /// Of the text up to here.
    digest: blake3::Hasher,
}

impl Ahead {
    /// The text with these links. Without any there is nothing to write ahead.
    pub(crate) fn write(codec: &Codec<'_>, links: Vec<HandedLink>) -> Result<(Self, Vec<u8>), Wrong> {
        if links.is_empty() {
            return Ok((Self::default(), Vec::new()));
        }
        let text = [BEGINNING, &list(codec, links.iter())?].concat();
        Ok((Self::of(links, &text), text))
    }

    fn of(links: Vec<HandedLink>, text: &[u8]) -> Self {
        let mut digest = blake3::Hasher::new();
        digest.update(text);
        Self { links: links.into_iter().map(|link| (link.claim.nonce, link)).collect(), digest }
    }

    /// What says that nothing of it was lost.
    pub(crate) fn end(&self, rest: &[u8], sessions: usize, links: usize) -> End {
        End::behind(&self.digest, rest, sessions, links)
    }

    /// The rest of the text, and how many links the whole of it has.
    pub(crate) fn write_rest(
        &self,
        codec: &Codec<'_>,
        manifest: &Manifest,
        lent: Lent,
    ) -> Result<(Vec<u8>, usize), Wrong> {
        if self.links.is_empty() {
            return Ok((codec.write(manifest, lent)?, manifest.links.len()));
        }
        let changed = manifest.links.iter().filter(|link| self.links.get(&link.claim.nonce) != Some(*link));
        let changed: Vec<&HandedLink> = changed.collect();
        let there: BTreeSet<LinkNonce> = manifest.links.iter().map(|link| link.claim.nonce).collect();
        let gone = self.links.keys().filter(|link| !there.contains(link)).map(ToString::to_string);
        let rest = codec.write_with(manifest, None, gone.collect(), lent)?;
        let mut text = Vec::with_capacity(rest.len() + 16);
        if !changed.is_empty() {
            text.push(b',');
            text.append(&mut list(codec, changed.iter().copied())?);
        }
        text.extend_from_slice(b"],");
        text.extend_from_slice(rest.get(1..).unwrap_or_default());
        Ok((text, self.links.len() + changed.len()))
    }

    /// Reads what came ahead.
    pub(crate) fn read(codec: &Codec<'_>, text: &[u8]) -> Result<Self, Wrong> {
        let links = text.strip_prefix(BEGINNING).ok_or(NO_MANIFEST)?;
        let links = [b"[", links, b"]"].concat();
        let links = serde_json::from_slice(&links).map_err(|_| NO_MANIFEST)?;
        Ok(Self::of(codec.read_links(links)?, text))
    }

    /// The whole, from what came behind. With the number of links in the text.
    pub(crate) fn read_rest(self, codec: &Codec<'_>, rest: &[u8]) -> Result<(Manifest, Lent, usize), Wrong> {
        if self.links.is_empty() {
            let (manifest, lent) = codec.read(rest)?;
            let count = manifest.links.len();
            return Ok((manifest, lent, count));
        }
        let rest = [BEGINNING, rest.strip_prefix(b",").unwrap_or(rest)].concat();
        let mut whole: Whole = serde_json::from_slice(&rest).map_err(|_| NO_MANIFEST)?;
        let changed = codec.read_links(whole.links.take().unwrap_or_default())?;
        let count = self.links.len() + changed.len();
        let mut links = self.links;
        links.extend(changed.into_iter().map(|link| (link.claim.nonce, link)));
        for link in &whole.gone {
            links.remove(&nonce(link)?);
        }
        let (manifest, lent) = codec.read_with(whole, links.into_values().collect())?;
        Ok((manifest, lent, count))
    }
}

/// As they stand in a list, without its brackets.
fn list<'a>(codec: &Codec<'_>, links: impl Iterator<Item = &'a HandedLink>) -> Result<Vec<u8>, Wrong> {
    let links: Vec<_> = links.map(|link| codec.link(link)).collect();
    let text = serde_json::to_vec(&links).map_err(|_| "a value that cannot be written")?;
    Ok(text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or_default().to_vec())
}
