//! What must hold for any bytes given as a call journal: a file shortened to what is still needed says the same, and
//! a torn end costs its own line only. One function for the fuzzer and for the replay on stable.

use evermux_store::bare::{self, Journal};

const NOW_MS: u64 = 1_764_000_000_000;

/// Panics if `input` is treated wrongly, as a journal's text or as the content of its lines.
pub(crate) fn check(input: &[u8]) {
    check_text(input);
    let mut text = Vec::new();
    for content in input.split(|byte| *byte == b'\n') {
        bare::write_line(content, &mut text);
    }
    check_text(&text);
}

fn check_text(text: &[u8]) {
    let Ok(journal) = bare::read_journal(text, NOW_MS) else { return };
    let short = bare::write_journal(&journal);
    let expected = Journal { damage: Default::default(), ..journal.clone() };
    assert_eq!(bare::read_journal(&short, NOW_MS).ok(), Some(expected));
    // A copy of what is there already, as a process that took over has it, adds nothing.
    if text.ends_with(b"\n") {
        let twice = bare::read_journal(&[&short, &short[..]].concat(), NOW_MS).ok();
        assert_eq!(twice.map(|twice| twice.calls), Some(journal.calls));
    }
    check_torn(text);
}

/// Ends the text within a line: what was before it counts, and the line is a torn one.
fn check_torn(text: &[u8]) {
    let Some(cut) = text.len().checked_sub(1 + text.len() / 3) else { return };
    let (whole, torn) = match text[..cut].iter().rposition(|byte| *byte == b'\n') {
        Some(end) => (&text[..=end], cut > end + 1),
        None => (&[][..], cut > 0),
    };
    let (whole, cut) = (bare::read_journal(whole, NOW_MS), bare::read_journal(&text[..cut], NOW_MS));
    let (Ok(whole), Ok(mut cut)) = (whole, cut) else { return };
    assert_eq!(cut.damage.torn_tails, u64::from(torn));
    cut.damage.torn_tails = 0;
    assert_eq!(cut, whole);
}
