//! Our own secrets in the words of a server.
//!
//! Some servers repeat the token that they refuse. Their words about a refused `initialize` are shown to people (error,
//! log, status), so what was sent to them in secret is cut out first; only this side of the core knows it. Answers to
//! clients' own requests are not touched: they pass byte for byte, to whoever's credentials they were asked with.

use bytes::Bytes;
use evermux_core::names::SessionId;
use http::{HeaderMap, Uri};
use mcp_wire::Message;
use memchr::memmem;

/// A shorter value stands in too many words.
const SHORTEST: usize = 6;
const CUT_OUT: &[u8] = "…".as_bytes();

/// Everything that was sent in secret, longest first. Without `Debug`, on purpose.
#[derive(Default)]
pub(crate) struct Secrets(Vec<Vec<u8>>);

impl Secrets {
    /// Those of one exchange: header values, what stands behind their scheme, what the URL's query says, the session.
    pub(crate) fn of(headers: &HeaderMap, session: Option<&SessionId>, url: &Uri) -> Self {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for part in url.query().unwrap_or_default().split('&') {
            let value = part.split_once('=').map_or(part, |(_, value)| value);
            all.push(value.as_bytes().to_vec());
        }
        let values = headers.values().map(http::HeaderValue::as_bytes);
        for value in values.chain(session.map(|session| session.expose().as_bytes())) {
            all.push(value.to_vec());
            all.extend(value.splitn(2, |byte| *byte == b' ').nth(1).map(<[u8]>::to_vec));
        }
        let escaped: Vec<Vec<u8>> = all.iter().filter_map(|value| in_json(value)).collect();
        all.extend(escaped);
        all.retain(|value| value.len() >= SHORTEST);
        all.sort_by_key(|value| std::cmp::Reverse(value.len()));
        all.dedup();
        Self(all)
    }

    /// The text without them.
    pub(crate) fn cut_out(&self, text: Bytes) -> Bytes {
        let mut text = text;
        for secret in &self.0 {
            if memmem::find(&text, secret).is_some() {
                text = replaced(&text, secret);
            }
        }
        text
    }

    /// The same for a message. One that is none any more without a value, because the value is a word of its envelope,
    /// stays: such a word is no secret.
    pub(crate) fn cut_out_of(&self, message: Message) -> Message {
        let bytes = message.bytes();
        let clean = self.cut_out(bytes.clone());
        if clean == *bytes { message } else { Message::parse(clean).unwrap_or(message) }
    }
}

/// As it stands inside a JSON string, if that differs.
fn in_json(value: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(value).ok()?;
    let quoted = serde_json::to_string(text).ok()?;
    let inner = quoted.get(1..quoted.len().saturating_sub(1))?;
    (inner != text).then(|| inner.as_bytes().to_vec())
}

fn replaced(text: &[u8], secret: &[u8]) -> Bytes {
    let mut clean = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memmem::find(rest, secret) {
        let (before, from) = rest.split_at(at);
        clean.extend_from_slice(before);
        clean.extend_from_slice(CUT_OUT);
        rest = from.get(secret.len()..).unwrap_or_default();
    }
    clean.extend_from_slice(rest);
    clean.into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn secrets() -> Secrets {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer pass-word"));
        headers.insert("x-key", HeaderValue::from_static(r#"a"quoted\key"#));
        headers.insert("x-word", HeaderValue::from_static("jsonrpc"));
        headers.insert("x-short", HeaderValue::from_static("on"));
        let url = Uri::from_static("http://h/mcp?api_key=in-the-query&x=1");
        Secrets::of(&headers, SessionId::new("session-of-ours").as_ref(), &url)
    }

    #[test]
    fn values_are_cut_out_with_and_without_their_scheme_and_escaped() {
        let secrets = secrets();
        for (said, shown) in [
            ("bad: Bearer pass-word!", "bad: …!"),
            ("pass-word and pass-word", "… and …"),
            (r#"key a"quoted\key"#, "key …"),
            (r#"key a\"quoted\\key"#, "key …"),
            ("session-of-ours is gone", "… is gone"),
            ("api_key=in-the-query", "api_key=…"),
            ("turned on", "turned on"),
            ("pass-wor", "pass-wor"),
        ] {
            assert_eq!(secrets.cut_out(Bytes::from(said)), shown);
        }
    }

    #[test]
    fn a_message_stays_one() {
        let text = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"token pass-word refused"}}"#;
        let message = Message::parse(Bytes::from(text)).unwrap();
        // `jsonrpc` is a value too: with it cut out nothing would be left of the message.
        assert_eq!(secrets().cut_out_of(message.clone()).bytes(), message.bytes());
        let mut headers = HeaderMap::new();
        headers.insert("x-key", HeaderValue::from_static("pass-word"));
        let clean = Secrets::of(&headers, None, &Uri::from_static("http://h/")).cut_out_of(message);
        assert_eq!(clean.error_message().as_deref(), Some("token … refused"));
    }
}
