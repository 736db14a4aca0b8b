//! Words of a server that people are to see: in an error of our own, in the log, in status.
//!
//! They are a stranger's. What could act on a terminal or hide in a line is taken out, so that a log line stays one
//! line, and so is what looks like a credential: servers like to repeat the token that they refuse. (Header values
//! themselves are cut out by the shell, which alone knows them.)

/// The most that is quoted, in characters.
const LONGEST: usize = 200;
/// A run this long with a digit in it is taken for a secret. Words are shorter, or have none.
const SECRET: usize = 16;

/// What may be shown of it, on one line.
pub(crate) fn quoted(words: &str) -> String {
    let plain: String = words.chars().take(4 * LONGEST).map(|c| if is_plain(c) { c } else { ' ' }).collect();
    let mut line = String::new();
    for word in plain.split(' ').filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&without_secrets(word));
    }
    if line.chars().count() > LONGEST {
        line = line.chars().take(LONGEST).collect();
        line.push('…');
    }
    line
}

/// Not a control character, a line end, or a mark that turns the direction of what follows or cannot be seen.
fn is_plain(c: char) -> bool {
    let unseen = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !(c.is_control() || unseen)
}

fn without_secrets(word: &str) -> String {
    let part_of_one = |c: char| c.is_ascii_alphanumeric() || "+/=_.~-".contains(c);
    let mut shown = String::new();
    let mut rest = word;
    while !rest.is_empty() {
        let run = rest.find(|c| !part_of_one(c)).unwrap_or(rest.len());
        let (head, tail) = rest.split_at(run);
        if run >= SECRET && head.contains(|c: char| c.is_ascii_digit()) {
            shown.push('…');
        } else {
            shown.push_str(head);
        }
        let mark = tail.chars().next().map_or(0, char::len_utf8);
        let (mark, after) = tail.split_at(mark);
        shown.push_str(mark);
        rest = after;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_stay_as_they_are() {
        for words in
            ["", "Server already initialized", "Unsupported protocol version: 2025-11-25 (have: 2024-11-05)"]
        {
            assert_eq!(quoted(words), words);
        }
        assert_eq!(quoted("größer als 5 — nein"), "größer als 5 — nein");
    }

    #[test]
    fn a_line_stays_one_line_and_bounded() {
        assert_eq!(quoted(" a\r\nINFO forged\t\u{1b}[31m\u{202e}x\0 "), "a INFO forged [31m x");
        let long = quoted(&"wort ".repeat(1000));
        assert!(long.chars().count() == LONGEST + 1 && long.ends_with('…'));
        assert!(quoted(&"\u{1f600}".repeat(1000)).chars().count() <= LONGEST + 1);
    }

    #[test]
    fn what_looks_like_a_credential_is_cut_out() {
        for (words, shown) in [
            ("bad token ghp_0123456789abcdefABCDEF", "bad token …"),
            ("bad token \"sk-live-0123456789\", sorry", "bad token \"…\", sorry"),
            ("session=8f14e45f-ceea-467f-a0e6-1c1a2b3c4d5e unknown", "… unknown"),
            ("(eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln)", "(…)"),
            ("internationalization misconfigured", "internationalization misconfigured"),
        ] {
            assert_eq!(quoted(words), shown);
        }
    }
}
