//! The name of an upstream: part of a path, a file name and an HTTP path at once, hence the narrow alphabet.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

/// Longest name in bytes.
const MAX_BYTES: usize = 64;

/// The NAME of `[upstream.NAME]`: `[a-z0-9][a-z0-9_-]{0,63}` (contract, "Config").
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamName(String);

/// The text is not an upstream name. The user's fault; repeating does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name is 1 to 64 of `a-z`, `0-9`, `_` and `-`, and starts with a letter or digit")]
pub struct InvalidName;

impl UpstreamName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for UpstreamName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let starts_well = text.bytes().next().is_some_and(alphanumeric);
        let goes_on_well = text.bytes().all(|byte| alphanumeric(byte) || byte == b'_' || byte == b'-');
        if starts_well && goes_on_well && text.len() <= MAX_BYTES {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName)
        }
    }
}

impl fmt::Display for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for UpstreamName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// So that a map of upstreams can be asked with the text that a client sent.
impl Borrow<str> for UpstreamName {
    fn borrow(&self) -> &str {
        &self.0
    }
}
