//! The per-install key and the TCP listener's token: two small secrets, made once.
//!
//! The key makes every hash on disk a keyed one, because a plain hash of a weak token can be guessed from the
//! file (D8). Losing it costs every record, and nothing else.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;

use evermux_core::names::Digest;
use nix::fcntl::OFlag;

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::failpoint::failpoint;
use crate::file::{Content, read_checked, temp_for};
use crate::quarantine::QuarantineReason;

pub(crate) const KEY_NAME: &str = "key";
pub(crate) const TOKEN_NAME: &str = "http-token";
const KEY_BYTES: usize = 32;
/// Longest secret that is accepted from a file; our tokens have 64 hex digits.
pub(crate) const SECRET_LIMIT_BYTES: usize = 1024;

/// The per-install key. Its bytes are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// A key from its bytes, for tests and for a takeover's manifest.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The keyed hash of `input` in its own domain `class`: equal inputs of different classes differ.
    ///
    /// blake3, keyed, over the length of `class` (8 bytes, little endian), `class`, `input`; the first 16 bytes.
    pub fn digest(&self, class: &str, input: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(class.len() as u64).to_le_bytes());
        hasher.update(class.as_bytes());
        hasher.update(input);
        let mut first = [0; 16];
        hasher.finalize_xof().fill(&mut first);
        Digest(u128::from_be_bytes(first))
    }

    /// The secret bytes, for the core's own keyed hashes (seals).
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Whether the key was there.
#[derive(Debug, Clone)]
pub enum KeyLoad {
    /// Made just now: the first start, or the old one was lost or damaged. No record can be under it.
    Created(Key),
    /// Read from the file.
    Existing(Key),
}

impl KeyLoad {
    /// The key, either way.
    pub fn into_key(self) -> Key {
        match self {
            Self::Created(key) | Self::Existing(key) => key,
        }
    }

    /// The key, either way.
    pub fn key(&self) -> &Key {
        match self {
            Self::Created(key) | Self::Existing(key) => key,
        }
    }

    /// Whether it was made just now.
    pub fn is_created(&self) -> bool {
        matches!(self, Self::Created(_))
    }
}

/// What is in a secret's file.
pub(crate) enum Secret {
    Missing,
    Good(Vec<u8>),
    Damaged(&'static str),
}

impl StateDir {
    /// Reads the key, or makes one, which is durable before the first record under it is. A damaged or unsafe key file is moved to quarantine first, and every record
    /// will then be refused as `foreign_key`.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it can neither be read nor made; the daemon cannot start then.
    pub fn key(&self) -> Result<KeyLoad, StoreError> {
        let fresh = || Ok(random_bytes()?.to_vec());
        let (bytes, created) = self.secret(KEY_NAME, is_key, fresh)?;
        let bytes = <[u8; KEY_BYTES]>::try_from(bytes)
            .map_err(|_| StoreError::UnsafeFile { path: self.root().join(KEY_NAME), why: "wrong size" })?;
        Ok(if created { KeyLoad::Created(Key(bytes)) } else { KeyLoad::Existing(Key(bytes)) })
    }

    /// The token for the TCP listener, made at first use: 64 hex digits, no line end in the file. A new one is durable once
    /// it is settled ([`StateDir::settle`]).
    ///
    /// # Errors
    /// [`StoreError::Io`] if it can neither be read nor made.
    pub fn http_token(&self) -> Result<String, StoreError> {
        let fresh = || {
            let hex: String = random_bytes()?.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(hex.into_bytes())
        };
        let (bytes, _) = self.secret(TOKEN_NAME, is_token, fresh)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn secret(
        &self,
        name: &'static str,
        is_good: fn(&[u8]) -> bool,
        fresh: impl Fn() -> Result<Vec<u8>, std::io::Error>,
    ) -> Result<(Vec<u8>, bool), StoreError> {
        loop {
            match self.read_secret(name, is_good)? {
                Secret::Good(bytes) => {
                    // Whoever made it may have been killed before it was durable.
                    let path = self.root().join(name);
                    let found =
                        OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path);
                    let found = found.map_err(|source| StoreError::io("cannot read", &path, source))?;
                    self.unsettled().add_secret(name, &bytes, found);
                    return Ok((bytes, false));
                }
                Secret::Missing => {}
                Secret::Damaged(why) => {
                    let moved =
                        self.move_to_quarantine(self.root(), name, QuarantineReason::SecretUnusable.code())?;
                    tracing::warn!(file = name, why, moved_to = moved, "a secret was replaced by a new one");
                }
            }
            let bytes =
                fresh().map_err(|source| StoreError::io("cannot make", &self.root().join(name), source))?;
            if self.install_secret(name, &bytes)? {
                return Ok((bytes, true));
            }
            // Another starter was faster: its secret counts.
        }
    }

    fn read_secret(&self, name: &str, is_good: fn(&[u8]) -> bool) -> Result<Secret, StoreError> {
        judge_secret(read_checked(self.root(), name, SECRET_LIMIT_BYTES), is_good)
            .map_err(|source| StoreError::io("cannot read", &self.root().join(name), source))
    }

    /// Puts a new secret in place; it is durable once it is settled. `false`: somebody else did so first.
    fn install_secret(&self, name: &'static str, bytes: &[u8]) -> Result<bool, StoreError> {
        let install = || -> std::io::Result<bool> {
            let mut temp = temp_for(self.root(), name, false)?;
            temp.write_all(bytes)?;
            failpoint("key.before_rename");
            match temp.persist_noclobber(self.root().join(name)) {
                Ok(file) => {
                    self.unsettled().add_secret(name, bytes, file);
                    Ok(true)
                }
                Err(refused) if refused.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
                Err(refused) => Err(refused.error),
            }
        };
        install().map_err(|source| StoreError::io("cannot write", &self.root().join(name), source))
    }
}

/// Judges a secret's file by what was found there.
pub(crate) fn judge_secret(content: Content, is_good: fn(&[u8]) -> bool) -> Result<Secret, std::io::Error> {
    Ok(match content {
        Content::Text(bytes) if is_good(&bytes) => Secret::Good(bytes),
        Content::Text(_) | Content::TooLong => Secret::Damaged("wrong size or content"),
        Content::Missing => Secret::Missing,
        Content::Unsafe(why) => Secret::Damaged(why),
        Content::Unread(error) => return Err(error),
    })
}

pub(crate) fn is_key(bytes: &[u8]) -> bool {
    bytes.len() == KEY_BYTES
}

pub(crate) fn is_token(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    text.len() >= 32 && text.iter().all(u8::is_ascii_graphic)
}

pub(crate) fn random_bytes() -> Result<[u8; KEY_BYTES], std::io::Error> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}
