//! Finds the end of a JSON value and checks its syntax on the way, without building anything.
//!
//! serde_json's `RawValue` did this before, and still says what is wrong with a value that is refused here. It looks at
//! strings eight bytes at a time, which of a large result was the most expensive part of its parsing, and setting it
//! up for each small value was most of the time that a small message took. What must never happen is that something
//! passes here that serde_json refuses; a test holds both to the same judgement.
//!
//! The stack of what is open is on the heap from the 64th level on, one bit a level: depth costs no call stack.

use memchr::memchr2;

use crate::cursor::Cursor;

/// Whether a string means something else than its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Escapes {
    None,
    Some,
}

impl Cursor<'_> {
    /// Moves behind the value that begins here. `None`: there is no whole value, and where the cursor is means nothing.
    pub(crate) fn skip_value(&mut self) -> Option<()> {
        match self.peek()? {
            b'{' | b'[' => self.skip_nested(),
            scalar => self.skip_scalar(scalar),
        }
    }

    /// `first`: the byte it begins with.
    #[inline]
    fn skip_scalar(&mut self, first: u8) -> Option<()> {
        match first {
            b'"' => self.skip_string().map(|_| ()),
            b'-' | b'0'..=b'9' => self.skip_number(),
            b't' => self.skip_exactly(b"true"),
            b'f' => self.skip_exactly(b"false"),
            b'n' => self.skip_exactly(b"null"),
            _ => None,
        }
    }

    fn skip_nested(&mut self) -> Option<()> {
        let mut open = Nesting::default();
        loop {
            match self.peek()? {
                b'{' => {
                    self.step_over_space();
                    if self.peek()? != b'}' {
                        open.push(true);
                        self.skip_key()?;
                        continue;
                    }
                    self.step();
                }
                b'[' => {
                    self.step_over_space();
                    if self.peek()? != b']' {
                        open.push(false);
                        continue;
                    }
                    self.step();
                }
                scalar => self.skip_scalar(scalar)?,
            }
            if self.skip_ends(&mut open)? {
                return Some(());
            }
        }
    }

    /// Behind a value: closes what ends with it. Whether all did; else the cursor is at the next value.
    fn skip_ends(&mut self, open: &mut Nesting) -> Option<bool> {
        while let Some(is_object) = open.last() {
            self.skip_space();
            match (self.peek()?, is_object) {
                (b',', true) => {
                    self.step_over_space();
                    self.skip_key()?;
                    return Some(false);
                }
                (b',', false) => {
                    self.step_over_space();
                    return Some(false);
                }
                (b'}', true) | (b']', false) => {
                    self.step();
                    open.pop();
                }
                _ => return None,
            }
        }
        Some(true)
    }

    fn step_over_space(&mut self) {
        self.step();
        self.skip_space();
    }

    /// A member's name and its colon.
    fn skip_key(&mut self) -> Option<()> {
        self.skip_string()?;
        self.skip_space();
        self.skip_exactly(b":")?;
        self.skip_space();
        Some(())
    }

    fn skip_exactly(&mut self, wanted: &[u8]) -> Option<()> {
        self.rest().starts_with(wanted).then(|| self.advance(wanted.len()))
    }

    fn skip_number(&mut self) -> Option<()> {
        if self.peek() == Some(b'-') {
            self.step();
        }
        let whole = self.skip_digits()?;
        if whole > 1 && self.before(whole) == Some(b'0') {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.step();
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.step();
            if let Some(b'+' | b'-') = self.peek() {
                self.step();
            }
            self.skip_digits()?;
        }
        Some(())
    }

    /// How many there are, at least one.
    fn skip_digits(&mut self) -> Option<usize> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.advance(digits);
        (digits > 0).then_some(digits)
    }

    /// A string with its quotes.
    #[inline]
    pub(crate) fn skip_string(&mut self) -> Option<Escapes> {
        if let Some(length) = short_string(self.rest()) {
            self.advance(length);
            return Some(Escapes::None);
        }
        self.skip_any_string()
    }

    fn skip_any_string(&mut self) -> Option<Escapes> {
        self.skip_exactly(b"\"")?;
        let mut escapes = Escapes::None;
        loop {
            let (plain, special) = plain(self.rest())?;
            self.advance(plain);
            match special {
                b'"' => {
                    self.step();
                    return Some(escapes);
                }
                b'\\' => {
                    escapes = Escapes::Some;
                    self.skip_escape()?;
                }
                _ => return None,
            }
        }
    }

    /// Which code point it is, and whether that has a meaning, is not asked.
    fn skip_escape(&mut self) -> Option<()> {
        self.step();
        let kind = self.peek()?;
        self.step();
        match kind {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.rest().get(..4)?;
                let all_hex = digits.iter().all(u8::is_ascii_hexdigit);
                all_hex.then(|| self.advance(4))
            }
            _ => None,
        }
    }
}

/// See [`short_string`], in bytes.
const SHORT: usize = 32;
/// Strings up to this are looked at without a call; so are the pieces between escapes that are close together.
const NEAR: usize = 64;
/// Looked through twice while it is in the fastest cache.
const BLOCK: usize = 4096;

/// How long the string is that `text` begins with, with its quotes, if it is short and means its bytes. Nearly all keys are
/// that, and most values of a small message.
#[inline]
fn short_string(text: &[u8]) -> Option<usize> {
    let inner = text.strip_prefix(b"\"")?;
    let mut at = 0;
    while at < SHORT {
        let word = u64::from_le_bytes(*inner.get(at..)?.first_chunk()?);
        let special = special_in(word);
        if special != 0 {
            let place = at + special.trailing_zeros() as usize / 8;
            return (inner.get(place) == Some(&b'"')).then_some(place + 2);
        }
        at += 8;
    }
    None
}

/// How far a string goes without anything to look at, and what there is: a quote, a backslash or a byte below 0x20. `None`:
/// there is none of them, or one that no string may hold lies far before the others.
#[inline]
fn plain(text: &[u8]) -> Option<(usize, u8)> {
    let (words, last) = text.as_chunks::<8>();
    for (index, word) in words.iter().take(NEAR / 8).enumerate() {
        let word = u64::from_le_bytes(*word);
        let special = special_in(word);
        if special != 0 {
            let bit = special.trailing_zeros() & !7;
            return Some((index * 8 + bit as usize / 8, (word >> bit).to_le_bytes()[0]));
        }
    }
    if text.len() > NEAR {
        return plain_far(text);
    }
    let at = last.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
    Some((words.len() * 8 + at, *last.get(at)?))
}

/// The same, of what is plain up to [`NEAR`].
#[inline(never)]
fn plain_far(text: &[u8]) -> Option<(usize, u8)> {
    for (index, block) in text.get(NEAR..)?.chunks(BLOCK).enumerate() {
        let found = memchr2(b'"', b'\\', block);
        let before = block.get(..found.unwrap_or(block.len()))?;
        if before.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < 0x20 {
            return None;
        }
        if let Some(at) = found {
            return Some((NEAR + index * BLOCK + at, *block.get(at)?));
        }
    }
    None
}

/// The highest bit of each byte that is a quote, a backslash or below 0x20; above the first such byte others may be
/// marked in error.
const fn special_in(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let quote = quote.wrapping_sub(ONES) & !quote;
    let backslash = backslash.wrapping_sub(ONES) & !backslash;
    (control | quote | backslash) & HIGHEST
}

/// What is open, from the outside in: a bit each, set for an object.
#[derive(Default)]
struct Nesting {
    depth: usize,
    inner: u64,
    outer: Vec<u64>,
}

impl Nesting {
    const WORD: usize = 64;

    fn push(&mut self, is_object: bool) {
        if self.depth > 0 && self.depth.is_multiple_of(Self::WORD) {
            self.outer.push(self.inner);
        }
        self.inner = self.inner << 1 | u64::from(is_object);
        self.depth += 1;
    }

    fn last(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.inner & 1 == 1)
    }

    fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.inner >>= 1;
        if self.depth.is_multiple_of(Self::WORD)
            && let Some(outer) = self.outer.pop()
        {
            self.inner = outer;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    fn skipped(text: &str) -> Option<&str> {
        let mut cursor = Cursor::new(text);
        cursor.skip_value()?;
        text.get(..cursor.at())
    }

    fn by_serde(text: &str) -> Option<&str> {
        let raw = serde::Deserialize::deserialize(&mut serde_json::Deserializer::from_str(text));
        raw.ok().map(|raw: &RawValue| raw.get())
    }

    fn same(text: &str) {
        assert_eq!(skipped(text), by_serde(text), "{text:?}");
    }

    /// serde_json takes white space before a value; a cursor is never at any.
    fn agrees(text: &str) {
        same(text.trim_start_matches([' ', '\t', '\n', '\r']));
    }

    proptest! {
        #[test]
        fn what_looks_like_json_is_judged_as_serde_json_does(
            text in r#"([\[\]{},:"\\ntu0-9aA.eE+\- \n\r\x01é/]|null|true|false|"a"|"b":|\\u00e9|\[\[|\}\]|-0|1e5){0,40}"#
        ) {
            agrees(&text);
        }

        #[test]
        fn strings_of_any_length_are_judged_as_serde_json_does(
            lead in 0..200_usize, middle in 0..9000_usize, last in 0..200_usize,
            first in "[\"\\\\\x01-\x1f\x20é]|\\\\n|\\\\u12aF|\\\\u12g0|\u{2028}",
            second in "[\"\\\\\x01-\x1f\x20é]|\\\\\"|\\\\/|\\\\x",
        ) {
            let text = format!("\"{}{first}{}{second}{}\"", "a".repeat(lead), "b".repeat(middle), "\u{e9}".repeat(last));
            agrees(&text);
            agrees(&text[..text.len() - 1]);
        }
    }

    #[test]
    fn any_depth_is_closed_as_it_was_opened() {
        for depth in [1, 2, 63, 64, 65, 127, 128, 129, 1000] {
            // All orders of kinds that repeat after five.
            for kinds in 0..32_u32 {
                let is_object = |level: usize| kinds >> (level % 5) & 1 == 1;
                let open = |level| if is_object(level) { "{\"k\":" } else { "[1," };
                let close = |level| if is_object(level) { "}" } else { "]" };
                let mut text: String = (0..depth).map(open).collect();
                text.push_str("{}");
                text.extend((0..depth).rev().map(close));
                assert_eq!(skipped(&text).map(str::len), Some(text.len()), "{text}");
                same(&text);
                let wrong = depth / 2;
                let at = text.len() - 1 - wrong;
                let other = if close(wrong) == "}" { "]" } else { "}" };
                text.replace_range(at..=at, other);
                same(&text);
            }
        }
    }

    #[test]
    fn every_byte_of_a_word_is_looked_at() {
        for byte in 0..=255_u8 {
            let is_special = matches!(byte, b'"' | b'\\' | 0..0x20);
            for at in 0..8 {
                let mut word = [0xc3; 8];
                word[at] = byte;
                let found = special_in(u64::from_le_bytes(word));
                assert_eq!(
                    found.trailing_zeros() / 8 == u32::try_from(at).unwrap(),
                    is_special,
                    "{byte} at {at}"
                );
            }
        }
    }
}
