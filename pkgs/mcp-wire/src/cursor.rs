//! Walks the members of an object without building it.
//!
//! The structure between members is read here, so that every span is an exact offset in one pass; values are skipped
//! by `skip.rs`. What that refuses goes through serde_json's `RawValue`, which checks JSON without converting anything:
//! its words are the reason that people are told. Both keep their stack on the heap, so depth costs no call stack and
//! needs no limit here.
//! Rejected: derived structs. `RawValue` inside `untagged` picks the wrong variant silently, inside `flatten` it
//! errors, and `Option<&RawValue>` turns an explicit `null` into absence.

use std::{borrow::Cow, num::NonZeroU32, ops::Range};

use memchr::memchr;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::skip::Escapes;

/// Where a JSON value lies. Never empty, which makes `Option<Span>` 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: NonZeroU32,
}

impl Span {
    /// Offsets fit because the parser refuses what is longer than `u32::MAX` before it makes a span.
    fn new(start: usize, end: usize) -> Self {
        Self {
            start: u32::try_from(start).unwrap_or(u32::MAX),
            end: u32::try_from(end).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX),
        }
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end.get() as usize
    }
}

/// Broken syntax: why, and at which byte of the text.
pub(crate) struct Broken {
    pub(crate) reason: Box<str>,
    pub(crate) at: usize,
}

/// The unescaped name of a member, and where it begins.
pub(crate) struct Key<'a> {
    name: Cow<'a, str>,
    pub(crate) at: usize,
}

impl Key<'_> {
    /// Which of these it is.
    pub(crate) fn place_in(&self, names: &[&str]) -> Option<usize> {
        names.iter().position(|name| self.is(name))
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Which of these it is equal to for a parser that ignores case. To be asked of a key that is none of them.
    pub(crate) fn lookalike_in(&self, names: &[&str]) -> Option<usize> {
        // As nearly all are.
        if self.name.is_ascii() {
            return names.iter().position(|name| self.name.eq_ignore_ascii_case(name));
        }
        names.iter().position(|name| {
            // Longer than any fold of `name`: U+212A is three bytes for one.
            self.name.len() <= name.len() * 3 && self.name.chars().map(fold).eq(name.chars().map(fold))
        })
    }
}

/// Unicode simple folding, as far as it reaches ASCII letters: the long s and the Kelvin sign fold to them too.
fn fold(letter: char) -> char {
    match letter {
        '\u{017f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    }
}

/// A position in JSON text.
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// Spans count from here; errors count from the start of `text`.
    base: usize,
    /// A raw line end was passed, or may have been. In a string there is none, so all of them are white space.
    line_ends: bool,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, base: 0, line_ends: false }
    }

    /// Makes spans count from the current position on.
    pub(crate) fn rebase(&mut self) {
        self.base = self.at;
    }

    /// What was given, without regard to the position.
    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Whether a raw line end may be in what was passed.
    pub(crate) fn line_ends(&self) -> bool {
        self.line_ends
    }

    /// All that is not passed.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    /// The byte so far back.
    pub(crate) fn before(&self, distance: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at.checked_sub(distance)?).copied()
    }

    pub(crate) fn step(&mut self) {
        self.at += 1;
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    #[inline]
    pub(crate) fn skip_space(&mut self) {
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.skip_all_space();
        }
    }

    fn skip_all_space(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b'\n' | b'\r')) = self.peek() {
            self.line_ends |= matches!(byte, b'\n' | b'\r');
            self.at += 1;
        }
    }

    #[cold]
    fn broken<T>(&self, reason: &str) -> Result<T, Broken> {
        let reason = if self.peek().is_none() { "unexpected end" } else { reason };
        Err(Broken { reason: reason.into(), at: self.at })
    }

    /// Takes one byte of structure.
    fn take(&mut self, wanted: u8, reason: &str) -> Result<(), Broken> {
        if self.peek() == Some(wanted) {
            self.at += 1;
            return Ok(());
        }
        self.broken(reason)
    }

    /// Nothing but white space may follow.
    pub(crate) fn end(&mut self) -> Result<(), Broken> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { self.broken("trailing characters") }
    }

    pub(crate) fn span_from(&self, start: usize) -> Span {
        Span::new(start - self.base, self.at - self.base)
    }

    /// Checks and skips one value of any type.
    pub(crate) fn value(&mut self) -> Result<Span, Broken> {
        self.raw().map(|(span, _)| span)
    }

    fn raw(&mut self) -> Result<(Span, &'a str), Broken> {
        self.skip_space();
        let start = self.at;
        if self.skip_value().is_some()
            && let Some(raw) = self.text.get(start..self.at)
        {
            return Ok((self.span_from(start), raw));
        }
        self.at = start;
        self.raw_by_serde()
    }

    /// What was refused, or is rare enough: the slower way knows the words for it.
    #[cold]
    fn raw_by_serde(&mut self) -> Result<(Span, &'a str), Broken> {
        let start = self.at;
        self.line_ends = true;
        let rest = self.text.get(start..).unwrap_or_default();
        let mut deserializer = serde_json::Deserializer::from_str(rest);
        match <&RawValue>::deserialize(&mut deserializer) {
            Ok(raw) => {
                self.at += raw.get().len();
                Ok((self.span_from(start), raw.get()))
            }
            Err(error) => Err(Broken { reason: reason_of(&error), at: start + offset_of(rest, &error) }),
        }
    }

    /// Enters an object; then [`Self::next_member`] until it says `None`.
    pub(crate) fn open_object(&mut self) -> Result<(), Broken> {
        self.take(b'{', "expected an object")
    }

    /// The next member's name, with the cursor on its value, or `None` after the closing brace.
    pub(crate) fn next_member(&mut self, first: &mut bool) -> Result<Option<Key<'a>>, Broken> {
        if !self.next_item(b'}', first, "expected `,` or `}`")? {
            return Ok(None);
        }
        if self.peek() != Some(b'"') {
            return self.broken("expected a member name");
        }
        let at = self.at;
        let name = match self.skip_string() {
            Some(Escapes::None) => {
                Cow::Borrowed(self.text.get(at + 1..self.at.saturating_sub(1)).unwrap_or_default())
            }
            // Where something is wrong with it, it is this that says what.
            _ => {
                self.at = at;
                key_name(self.raw()?.1)
            }
        };
        self.skip_space();
        self.take(b':', "expected `:`")?;
        self.skip_space();
        Ok(Some(Key { name, at }))
    }

    /// Enters an array; then [`Self::next_element`] until it says `false`.
    pub(crate) fn open_array(&mut self) -> Result<(), Broken> {
        self.take(b'[', "expected an array")
    }

    /// Whether another element follows, with the cursor on it.
    pub(crate) fn next_element(&mut self, first: &mut bool) -> Result<bool, Broken> {
        self.next_item(b']', first, "expected `,` or `]`")
    }

    fn next_item(&mut self, close: u8, first: &mut bool, reason: &str) -> Result<bool, Broken> {
        self.skip_space();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(false);
        }
        if !std::mem::take(first) {
            self.take(b',', reason)?;
            self.skip_space();
        }
        Ok(true)
    }
}

/// A key that cannot be unescaped (a lone surrogate) is no name we know; it passes as it is.
fn key_name(raw: &str) -> Cow<'_, str> {
    unescape(raw).unwrap_or(Cow::Borrowed(raw))
}

/// The text of a raw JSON string; `None` if it is no string or has no text (a lone surrogate).
pub(crate) fn unescape(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr(b'\\', inner.as_bytes()).is_some() {
        serde_json::from_str(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// serde_json's reason without its position, which counts lines from the wrong start.
fn reason_of(error: &serde_json::Error) -> Box<str> {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().into()
}

/// serde_json gives a line and a column in bytes, both from 1.
fn offset_of(text: &str, error: &serde_json::Error) -> usize {
    let lines_before = error.line().saturating_sub(1);
    let line_start: usize = text.split_inclusive('\n').take(lines_before).map(str::len).sum();
    (line_start + error.column().saturating_sub(1)).min(text.len())
}
