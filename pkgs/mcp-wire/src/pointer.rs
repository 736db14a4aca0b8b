//! Looks into a result or into arguments without making values of what is not looked for.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The JSON text at `pointer` (RFC 6901) inside of `json`, as it was written. `None`: nothing is there, or either is
/// no such thing.
///
/// Of members with the same name the last one counts, as with the parsers of the official SDKs: whoever acts on the
/// text must not see another value than the one that was judged.
#[must_use]
pub fn at<'a>(json: &'a [u8], pointer: &str) -> Option<&'a str> {
    let mut here: &'a RawValue = serde_json::from_slice(json).ok()?;
    if !pointer.is_empty() {
        for step in pointer.strip_prefix('/')?.split('/') {
            here = into(here, &unescape(step)?)?;
        }
    }
    Some(here.get())
}

fn into<'a>(here: &'a RawValue, step: &str) -> Option<&'a RawValue> {
    match here.get().as_bytes().first()? {
        b'{' => {
            let mut members: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(here.get()).ok()?;
            members.remove(step)
        }
        b'[' => {
            let plain = step == "0" || (!step.starts_with('0') && step.bytes().all(|b| b.is_ascii_digit()));
            let index: usize = step.parse().ok().filter(|_| plain)?;
            let items: Vec<&'a RawValue> = serde_json::from_str(here.get()).ok()?;
            items.get(index).copied()
        }
        _ => None,
    }
}

/// `~1` is a slash and `~0` a tilde; a tilde before anything else is no pointer.
fn unescape(step: &str) -> Option<Cow<'_, str>> {
    if !step.contains('~') {
        return Some(Cow::Borrowed(step));
    }
    let mut out = String::with_capacity(step.len());
    let mut rest = step.chars();
    while let Some(c) = rest.next() {
        match c {
            '~' => out.push(match rest.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            }),
            c => out.push(c),
        }
    }
    Some(Cow::Owned(out))
}

/// Whether this text is a pointer (RFC 6901, section 3).
#[must_use]
pub fn is_pointer(text: &str) -> bool {
    text.is_empty() || (text.starts_with('/') && text.split('/').all(|step| unescape(step).is_some()))
}

#[cfg(test)]
mod tests {
    //! The examples of RFC 6901 section 5, and what is no pointer.

    use super::{at, is_pointer};

    const DOCUMENT: &[u8] =
        br#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8,
        "deep":[{"x":{"y":1e400}}],"twice":1,"twice":2,"esc\u0061ped":true}"#;

    #[test]
    fn the_examples_of_the_rfc() {
        let all = [
            ("/foo", r#"["bar","baz"]"#),
            ("/foo/0", r#""bar""#),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ];
        for (pointer, text) in all {
            assert_eq!(at(DOCUMENT, pointer), Some(text), "{pointer}");
        }
        assert_eq!(at(b" [1, 2] ", ""), Some("[1, 2]"));
    }

    #[test]
    fn values_stay_as_they_were_written() {
        assert_eq!(at(DOCUMENT, "/deep/0/x/y"), Some("1e400"));
        assert_eq!(at(DOCUMENT, "/twice"), Some("2"));
        assert_eq!(at(DOCUMENT, "/escaped"), Some("true"));
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        for pointer in ["/none", "/foo/2", "/foo/00", "/foo/-", "/foo/+1", "/foo/0/x", "foo", "/m~2n", "/m~"]
        {
            assert_eq!(at(DOCUMENT, pointer), None, "{pointer}");
        }
        assert_eq!(at(b"{\"a\":", "/a"), None);
    }

    #[test]
    fn pointers_are_told_from_other_text() {
        for text in ["", "/", "/a/b", "/a~0b~1c"] {
            assert!(is_pointer(text), "{text}");
        }
        for text in ["a", "$.a", "/a~", "/~2"] {
            assert!(!is_pointer(text), "{text}");
        }
    }
}
