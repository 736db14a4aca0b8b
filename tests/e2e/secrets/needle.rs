//! A secret in every form that it could be written down in by mistake.

/// How many bytes of a secret in a row are a leak.
const WINDOW: usize = 12;

/// One secret, and what it looks like.
pub(super) struct Needle {
    pub(super) name: &'static str,
    forms: Vec<(String, Vec<u8>)>,
}

impl Needle {
    pub(super) fn new(name: &'static str, secret: &str) -> Self {
        let bytes = secret.as_bytes();
        assert!(bytes.len() >= 2 * WINDOW, "too short to be told from chance");
        let mut forms: Vec<(String, Vec<u8>)> =
            bytes.windows(WINDOW).map(|piece| ("as it is".to_owned(), piece.to_vec())).collect();
        let mut add = |form: &str, text: String| forms.push((form.to_owned(), text.into_bytes()));
        let each = |format: fn(u8) -> String| bytes.iter().map(|byte| format(*byte)).collect::<String>();
        add("hex", each(|byte| format!("{byte:02x}")));
        add("HEX", each(|byte| format!("{byte:02X}")));
        add("percent, all", each(|byte| format!("%{byte:02X}")));
        add("percent, all, small", each(|byte| format!("%{byte:02x}")));
        add("percent", each(|byte| percent(byte, true)));
        add("percent, small", each(|byte| percent(byte, true).to_ascii_lowercase()));
        add("percent, few", each(|byte| percent(byte, false)));
        add("JSON", serde_json::Value::from(secret).to_string().trim_matches('"').to_owned());
        add("JSON, all", each(|byte| format!("\\u{byte:04x}")));
        add("JSON twice", escaped_twice(secret));
        add("Debug", format!("{secret:?}").trim_matches('"').to_owned());
        add("list of numbers", each(|byte| format!("{byte}, ")).trim_end_matches(", ").to_owned());
        for (alphabet, letters) in [("base64", STANDARD), ("base64url", URL)] {
            for before in 0..3 {
                add(&format!("{alphabet}, {before} before"), base64_inside(bytes, before, letters));
            }
        }
        Self { name, forms }
    }

    /// The form in which it stands in these bytes.
    pub(super) fn found_in(&self, haystack: &[u8]) -> Option<&str> {
        self.forms.iter().find(|(_, form)| contains(haystack, form)).map(|(name, _)| name.as_str())
    }

    /// Every form, for the test of the test.
    pub(super) fn forms(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.forms.iter().map(|(name, form)| (name.as_str(), form.as_slice()))
    }
}

fn percent(byte: u8, strict: bool) -> String {
    let plain = byte.is_ascii_alphanumeric()
        || b"-._~".contains(&byte)
        || (!strict && b"/+=:!$&'()*,;@".contains(&byte));
    if plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
}

fn escaped_twice(secret: &str) -> String {
    let once = serde_json::Value::from(secret).to_string();
    serde_json::Value::from(once.trim_matches('"')).to_string().trim_matches('"').to_owned()
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The letters that only these bytes decide, when `before` other bytes stand in front of them and any behind.
fn base64_inside(bytes: &[u8], before: usize, letters: &[u8; 64]) -> String {
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let first_letter = (before * 8).div_ceil(6);
    let last_letter = (before + bytes.len()) * 8 / 6;
    (first_letter..last_letter)
        .map(|letter| {
            let value =
                (0..6).fold(0usize, |value, n| value << 1 | usize::from(bit(letter * 6 + n - before * 8)));
            char::from(letters[value])
        })
        .collect()
}

pub(super) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    let Some((first, rest)) = needle.split_first() else { return false };
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|byte| byte == first) {
        from += at + 1;
        if haystack[from..].starts_with(rest) {
            return true;
        }
    }
    false
}

#[test]
fn every_form_is_found_where_it_is() {
    let secret = r#"s3cr+t/of "a\kind"=x~0123456789"#;
    let needle = Needle::new("test", secret);
    for (name, form) in needle.forms() {
        let text = [b"before".as_slice(), form, b"after"].concat();
        assert!(needle.found_in(&text).is_some(), "{name}");
    }
    // Known answers, made by others: base64 of a text with 0, 1 and 2 bytes in front.
    let plain = Needle::new("test", "the quick brown fox jumps");
    for encoded in [
        "dGhlIHF1aWNrIGJyb3duIGZveCBqdW1wcw==",
        "LXRoZSBxdWljayBicm93biBmb3gganVtcHMh",
        "LS10aGUgcXVpY2sgYnJvd24gZm94IGp1bXBzIQ==",
    ] {
        assert!(plain.found_in(encoded.as_bytes()).is_some(), "{encoded}");
    }
    assert_eq!(plain.found_in(b"the quick fox jumps, brown"), None);
    assert_eq!(plain.found_in(b"dGhlIHF1aWNrIGZveCBqdW1wcw=="), None);
}
