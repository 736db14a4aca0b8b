//! Canonical JSON (RFC 8785) for the part of JSON that a record uses, so that a digest survives other key order
//! and white space.
//!
//! The part: strings, integers with a magnitude below 2^53, booleans, null, arrays, objects without repeated
//! names. Fractions and exponents are refused on reading. That leaves out the one hard and error-prone piece of
//! RFC 8785 (printing doubles, section 3.2.2.3); raw server values, which may hold any number, are carried as
//! strings.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// First magnitude that a double cannot hold exactly next to its neighbours (RFC 8785, appendix D).
pub(crate) const INTEGER_LIMIT: u64 = 1 << 53;

/// A value of the subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// An integer, if the subset has it.
    pub(crate) fn unsigned(value: u64) -> Option<Self> {
        if value >= INTEGER_LIMIT {
            return None;
        }
        i64::try_from(value).ok().map(Self::Int)
    }

    /// Reads strictly: the whole text is one value of the subset.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// The canonical form.
    pub(crate) fn canonical(&self) -> String {
        let mut out = String::new();
        write_value(self, &mut out);
        out
    }
}

fn write_value(value: &Json, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Int(number) => out.push_str(&number.to_string()),
        Json::Text(text) => write_text(text, out),
        Json::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (index, (name, item)) in in_canonical_order(members).into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_text(name, out);
                out.push(':');
                write_value(item, out);
            }
            out.push('}');
        }
    }
}

/// Members sorted by the UTF-16 code units of their names (RFC 8785, section 3.2.3), which is not the order of
/// `str`: U+10000 and above come before U+E000..U+FFFF.
pub(crate) fn in_canonical_order(members: &BTreeMap<String, Json>) -> Vec<(&String, &Json)> {
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_by(|(left, _), (right, _)| left.encode_utf16().cmp(right.encode_utf16()));
    sorted
}

/// A string as RFC 8785, section 3.2.2.2 wants it: the short escapes, `\u00xx` in lower case for the other
/// control characters, everything else as it is.
pub(crate) fn write_text(text: &str, out: &mut String) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            control if u32::from(control) < 0x20 => {
                out.push_str("\\u00");
                out.push(HEX[(control as usize) >> 4]);
                out.push(HEX[(control as usize) & 0xf]);
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, an integer below 2^53, a boolean, null, an array or an object")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Json, E> {
        Json::unsigned(value).ok_or_else(|| E::custom("integer of 2^53 or more"))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Json, E> {
        if value.unsigned_abs() >= INTEGER_LIMIT {
            return Err(E::custom("integer of -2^53 or less"));
        }
        Ok(Json::Int(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = entries.next_entry::<String, Json>()? {
            // Two readers may disagree on which of two equal names counts, so neither is believed.
            if members.insert(name, value).is_some() {
                return Err(de::Error::custom("repeated member name"));
            }
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Json::parse(text.as_bytes()).unwrap().canonical()
    }

    #[test]
    fn sorts_by_utf16_code_units() {
        // The member-sorting example of RFC 8785, section 3.2.3.
        let text = r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
            "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#;
        let expected = "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\
            \"\u{f6}\":\"Latin Small Letter O With Diaeresis\",\"\u{20ac}\":\"Euro Sign\",\
            \"\u{1f600}\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}";
        assert_eq!(canonical(text), expected);
    }

    #[test]
    fn escapes_exactly_what_must_be() {
        // The string of RFC 8785, section 3.2.2, and every control character.
        assert_eq!(
            canonical(r#""\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/""#),
            "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\""
        );
        let all: String = (0u8..0x20).map(char::from).collect();
        assert_eq!(
            Json::Text(all).canonical(),
            "\"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f\
             \\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\\u001d\\u001e\\u001f\""
        );
        assert_eq!(canonical("\"\u{7f}\u{2028}\""), "\"\u{7f}\u{2028}\"");
    }

    #[test]
    fn drops_white_space_and_keeps_array_order() {
        assert_eq!(
            canonical(" { \"b\" : [ 2 , 1 , -3 ] ,\n\t\"a\" : { } , \"c\":[null,true,false,[]] } "),
            r#"{"a":{},"b":[2,1,-3],"c":[null,true,false,[]]}"#
        );
    }

    #[test]
    fn refuses_what_the_subset_has_not() {
        for text in [
            "1.0",
            "1e2",
            "-0",
            "9007199254740992",
            "-9007199254740992",
            r#"{"a":1,"a":1}"#,
            r#""\ud800""#,
            "1 2",
        ] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(canonical("9007199254740991"), "9007199254740991");
        assert_eq!(canonical("-9007199254740991"), "-9007199254740991");
    }

    #[test]
    fn canonical_form_reads_back_as_itself() {
        let text = "{\"a\":[\"\\u0001\u{1f600}\"],\"b\":{\"\":-1}}";
        assert_eq!(canonical(text), text);
    }
}
