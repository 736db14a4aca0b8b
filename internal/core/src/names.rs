//! The names things go by: small types that cannot be mixed up, and whose `Debug` never shows a secret.

use std::fmt;

/// Every byte's two hex digits.
const HEX: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut all = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        all[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    all
};

/// 32 lower-case hex digits, without `fmt`: each call is journalled with several of them.
fn hex(number: u128) -> [u8; 32] {
    let mut text = [0; 32];
    for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(number.to_be_bytes()) {
        *pair = HEX[usize::from(byte)];
    }
    text
}

/// A random 128-bit name, written as 32 lower-case hex digits.
macro_rules! name128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u128);

        impl $name {
            /// The 32 hex digits that stand for it in files and headers.
            #[must_use]
            pub fn to_hex(self) -> [u8; 32] {
                hex(self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(std::str::from_utf8(&self.to_hex()).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:032x})"), self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                parse_hex128(text).map($name).ok_or(BadName)
            }
        }
    };
}

/// The text is not 32 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 lower-case hex digits")]
pub struct BadName;

fn parse_hex128(text: &str) -> Option<u128> {
    let canonical =
        text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    canonical.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

name128! {
    /// The stable name of a session's work, until purge. Names the record file.
    Trajectory
}
name128! {
    /// A new name for each attach (process start, takeover, handshake); for people and audit.
    Continuation
}
name128! {
    /// The random part of a link id: tells one link from every other, for ever.
    LinkNonce
}
name128! {
    /// A keyed hash of one class of configuration input; says equal or not, and nothing else.
    Digest
}

/// Number of the `initialize` within its trajectory; changes exactly when the upstream session changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handshake(pub u32);

/// Who may write records: one number per daemon process, strictly increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// A JSON-RPC id towards an upstream: an integer below 2^53, never reused in a session's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WireId(pub u64);

/// The number a shim gives to each message it sends; repeated when the message is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(pub u64);

/// The name of a configured upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamName(pub std::sync::Arc<str>);

impl fmt::Display for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for UpstreamName {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// An upstream's `Mcp-Session-Id`: whoever holds it can speak in the session, so it is never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SessionId(std::sync::Arc<str>);

impl SessionId {
    /// Accepts visible ASCII 0x21–0x7E only (2025-11-25, basic/transports "Session Management"), at most 1 KiB.
    pub fn new(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= 1024;
        (fits && text.bytes().all(|b| (0x21..=0x7e).contains(&b))).then(|| Self(text.into()))
    }

    /// The secret text: for the request header and the record file only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(…)")
    }
}
