//! JSON-RPC ids and progress tokens as the text they came in: `1` and `"1"` are two ids, and `1.0` goes back as
//! `1.0`, because the peer that made the id will compare it its own way.

use std::{cmp::Ordering, fmt, hash};

use bytes::Bytes;

use crate::{Fault, ParseError, cursor::Cursor};

/// Holds a quoted UUID (38 bytes), the longest id in common use.
const INLINE: usize = 38;

/// Raw JSON text of an id or a progress token: a string or a number. Compared as text, so two spellings of one
/// string (`"a"`, `"\u0061"`) are two ids.
#[derive(Clone)]
pub struct Id(Repr);

/// Short ids are held in place and long ones are copied: a slice of the message would keep a 16 MiB buffer alive
/// for as long as its id is in a table.
#[derive(Clone)]
enum Repr {
    Inline { len: u8, text: [u8; INLINE] },
    Shared(Bytes),
}

impl Id {
    /// The id that is this integer. Stay below 2^53: peers keep numbers as doubles.
    #[must_use]
    pub fn number(n: u64) -> Self {
        let mut text = [0; 20];
        let mut at = text.len();
        let mut rest = n;
        loop {
            at -= 1;
            text[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        Self::from_checked(&text[at..])
    }

    /// The value, if the text is a plain non-negative integer: not `1.0`, not `1e0`, not `"1"`.
    #[must_use]
    pub fn as_number(&self) -> Option<u64> {
        let text = self.as_raw();
        if !text.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    /// The value, also in the spellings that some peers give a plain integer back in: `"5"`, `5.0`, `5e0`. For ids
    /// that we made: an integer of ours is meant by no other text, but `5` and `"5"` of another's making are two ids.
    #[must_use]
    pub fn as_number_loosely(&self) -> Option<u64> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let text = std::str::from_utf8(self.as_raw()).ok()?;
        let text = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
        if let Ok(number) = text.parse() {
            return Some(number).filter(|_| text.as_bytes().first() != Some(&b'+'));
        }
        let plain = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+');
        let number: f64 = text.parse().ok().filter(|_| text.bytes().all(plain))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "integral and in range")]
        (number.fract() == 0.0 && (0.0..EXACT).contains(&number)).then_some(number as u64)
    }

    /// The JSON text.
    #[must_use]
    pub fn as_raw(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, text } => &text[..usize::from(*len)],
            Repr::Shared(text) => text,
        }
    }

    /// Takes JSON text of a string or a number, with or without white space around it.
    ///
    /// # Errors
    /// [`Fault::NotUtf8`], [`Fault::Syntax`] or [`Fault::NotAnId`].
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers hold `Bytes`; a long id may share them one day"
    )]
    pub fn from_raw(raw: Bytes) -> Result<Self, ParseError> {
        let text = std::str::from_utf8(&raw).map_err(|e| ParseError::new(Fault::NotUtf8, e.valid_up_to()))?;
        let mut cursor = Cursor::new(text);
        let span = cursor.value().and_then(|span| cursor.end().map(|()| span));
        let span = span.map_err(|broken| ParseError::new(Fault::Syntax(broken.reason), broken.at))?;
        let text = text.get(span.range()).unwrap_or_default();
        match Shape::of(text) {
            Shape::String | Shape::Integer | Shape::Fraction => Ok(Self::from_checked(text.as_bytes())),
            Shape::Null | Shape::Other => Err(ParseError::new(Fault::NotAnId, span.range().start)),
        }
    }

    /// `text` is one valid JSON string or number.
    pub(crate) fn from_checked(text: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        match (inline.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(room), Ok(len)) => {
                room.copy_from_slice(text);
                Self(Repr::Inline { len, text: inline })
            }
            _ => Self(Repr::Shared(Bytes::copy_from_slice(text))),
        }
    }
}

/// What a valid JSON value is, as far as ids care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    String,
    /// A number without a fractional part, in whatever spelling.
    Integer,
    Fraction,
    Null,
    Other,
}

impl Shape {
    pub(crate) fn of(valid_json: &str) -> Self {
        match valid_json.as_bytes().first() {
            Some(b'"') => Self::String,
            Some(b'n') => Self::Null,
            Some(b'-' | b'0'..=b'9') if is_integral(valid_json) => Self::Integer,
            Some(b'-' | b'0'..=b'9') => Self::Fraction,
            _ => Self::Other,
        }
    }
}

/// Whether a JSON number has no fractional part, by its digits: a double would round `1e-400` to 0.
fn is_integral(number: &str) -> bool {
    // As nearly all are.
    if number.bytes().all(|byte| byte.is_ascii_digit()) {
        return true;
    }
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // An exponent beyond i64 is as good as infinite.
    let limit = if exponent.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 };
    let exponent = exponent.parse::<i64>().map_or(limit, |e| e.clamp(i64::MIN / 2, i64::MAX / 2));
    let digits = whole.bytes().chain(fraction.bytes()).filter(u8::is_ascii_digit);
    let (mut zeros_at_end, mut all_zero) = (0_i64, true);
    for digit in digits {
        zeros_at_end = if digit == b'0' { zeros_at_end + 1 } else { 0 };
        all_zero &= digit == b'0';
    }
    let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX / 4);
    all_zero || exponent - places + zeros_at_end >= 0
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.as_raw() == other.as_raw()
    }
}

impl Eq for Id {}

impl PartialOrd for Id {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Id {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_raw().cmp(other.as_raw())
    }
}

impl hash::Hash for Id {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_raw().hash(state);
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_raw()))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_integral_by_their_digits() {
        for text in [
            "0",
            "-0",
            "1",
            "-7",
            "1.0",
            "1e0",
            "1.50e1",
            "1e400",
            "100e-2",
            "0.0e-99",
            "0e-99999999999999999999",
        ] {
            assert_eq!(Shape::of(text), Shape::Integer, "{text}");
        }
        for text in ["1.5", "1e-1", "1.05e1", "1e-400", "10e-2", "-0.1", "1e-99999999999999999999"] {
            assert_eq!(Shape::of(text), Shape::Fraction, "{text}");
        }
        assert_eq!(Shape::of("1e99999999999999999999"), Shape::Integer);
    }

    #[test]
    fn as_number_reads_plain_integers_only() {
        for n in [0, 7, 10, 9_007_199_254_740_991, u64::MAX] {
            assert_eq!(Id::number(n).as_raw(), n.to_string().as_bytes());
            assert_eq!(Id::number(n).as_number(), Some(n));
        }
        for text in ["1.0", "1e0", "\"1\"", "-1", "18446744073709551616"] {
            assert_eq!(
                Id::from_raw(Bytes::from_static(text.as_bytes())).unwrap().as_number(),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn a_number_of_ours_is_known_in_every_spelling() {
        let of = |text: &'static str| {
            Id::from_raw(Bytes::from_static(text.as_bytes())).unwrap().as_number_loosely()
        };
        for text in ["7", "\"7\"", "7.0", "7.000", "\"7.0\"", "7e0", "70e-1", "0.7E1", "7.0e+0"] {
            assert_eq!(of(text), Some(7), "{text}");
        }
        for text in ["0", "-0", "0.0", "\"0\"", "0e5"] {
            assert_eq!(of(text), Some(0), "{text}");
        }
        assert_eq!(of("9007199254740991.0"), Some(9_007_199_254_740_991));
        assert_eq!(of("\"18446744073709551615\""), Some(u64::MAX));
        for text in [
            "-7",
            "7.5",
            "\"\"",
            "\"seven\"",
            "\"7 \"",
            "\" 7\"",
            "\"+7\"",
            "\"0x7\"",
            "\"7\\u0030\"",
            "\"inf\"",
            "\"nan\"",
            "1e400",
            "9007199254740993.0",
            "\"\\\"7\\\"\"",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn text_is_what_counts() {
        let id = |text: &'static str| Id::from_raw(Bytes::from_static(text.as_bytes())).unwrap();
        assert_ne!(id("1"), id("\"1\""));
        assert_ne!(id("1"), id("1.0"));
        assert_eq!(id(" 1\n"), id("1"));
        for length in [35, 36, 37, 38, 39, 200] {
            let text = format!("\"{}\"", "x".repeat(length));
            let long = Id::from_raw(Bytes::from(text.clone())).unwrap();
            assert_eq!(long.as_raw(), text.as_bytes());
            assert_eq!(long, long.clone());
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for (text, at) in [("null", 0), ("true", 0), (" {}", 1), ("[1]", 0)] {
            let error = Id::from_raw(Bytes::from_static(text.as_bytes())).unwrap_err();
            assert_eq!((error.fault, error.at), (Fault::NotAnId, at), "{text}");
        }
        for text in ["", "1 2", "01", "1.", "\"a", "1,\"id\":2", "+1", "0x1", "NaN"] {
            let error = Id::from_raw(Bytes::from_static(text.as_bytes())).unwrap_err();
            assert!(matches!(error.fault, Fault::Syntax(_)), "{text}: {error}");
        }
    }
}
