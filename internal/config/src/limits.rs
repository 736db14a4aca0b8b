//! `[limits]`: what one daemon takes from its clients before it says so instead of growing.
//!
//! Every limit has a default that no honest client meets. They are settings because the machine, not the protocol, says
//! what is too much.

use crate::problem::Problems;
use crate::raw::{Entry, Section};
use crate::rules;

const KEYS: [&str; 9] = [
    "body",
    "headers",
    "header_count",
    "connections",
    "links",
    "streams",
    "batch",
    "queued_response",
    "queued_stream",
];

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// `[limits]`, all defaults filled in. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest body of a client's request; a larger one gets 413.
    pub body: usize,
    /// All headers of a request with its first line; more gets 431.
    pub headers: usize,
    /// Header fields of a request; more gets 431.
    pub header_count: usize,
    /// Connections of clients at a time, of which the TCP listener may have half; others are told `overloaded`. Never
    /// more than half of the process's descriptors, whatever is written.
    pub connections: usize,
    /// Links remembered at a time. Beyond it the one that was silent longest is forgotten, which its client does not
    /// notice; where none may be, a new `initialize` is told `overloaded`.
    pub links: usize,
    /// Responses of one link that are open at a time: calls in flight. Others are told `overloaded`.
    pub streams: usize,
    /// Messages in one batch (2025-03-26); more gets 400.
    pub batch: usize,
    /// What a client may leave unread of one answer before its response is cut.
    pub queued_response: usize,
    /// The same of a GET stream.
    pub queued_stream: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 64 * MIB,
            headers: 64 * KIB,
            header_count: 100,
            connections: 4096,
            links: 10_000,
            streams: 1024,
            batch: 100,
            // More than the largest answer, which comes as one event.
            queued_response: 96 * MIB,
            // A listener that reads nothing costs this much for as long as its connection lasts.
            queued_stream: 4 * MIB,
        }
    }
}

/// Reads the table. What was refused keeps its default; the problem already keeps the whole from being used.
pub(crate) fn limits(section: &Section<'_>, problems: &mut Problems<'_>) -> Limits {
    section.refuse_unknown(&KEYS, problems);
    let mut limits = Limits::default();
    // Below these a plain client would not get through; above, memory or the HTTP parser would be the limit.
    let sizes: [(&str, &mut usize, usize, usize); 4] = [
        ("body", &mut limits.body, 64 * KIB, 1024 * MIB),
        ("headers", &mut limits.headers, 8 * KIB, 256 * KIB),
        ("queued_response", &mut limits.queued_response, 64 * KIB, 4096 * MIB),
        ("queued_stream", &mut limits.queued_stream, 64 * KIB, 1024 * MIB),
    ];
    for (key, limit, least, most) in sizes {
        if let Some(entry) = section.get(key) {
            set(limit, size(&entry, least, most, problems));
        }
    }
    let counts: [(&str, &mut usize, usize, usize); 5] = [
        ("header_count", &mut limits.header_count, 20, 10_000),
        ("connections", &mut limits.connections, 8, 1_000_000),
        ("links", &mut limits.links, 8, 1_000_000),
        ("streams", &mut limits.streams, 1, 10_000),
        ("batch", &mut limits.batch, 1, 10_000),
    ];
    for (key, limit, least, most) in counts {
        if let Some(entry) = section.get(key) {
            set(limit, count(&entry, least, most, problems));
        }
    }
    limits
}

fn set(limit: &mut usize, value: Option<usize>) {
    if let Some(value) = value {
        *limit = value;
    }
}

fn size(entry: &Entry<'_>, least: usize, most: usize, problems: &mut Problems<'_>) -> Option<usize> {
    let text = entry.string("a size in quotes, such as \"64MiB\"", problems)?;
    let size = match rules::size(text) {
        Ok(size) => size,
        Err(refusal) => {
            entry.problem(problems, refusal.message, refusal.hint);
            return None;
        }
    };
    within(entry, size, least, most, rules::shown_size, problems)
}

fn count(entry: &Entry<'_>, least: usize, most: usize, problems: &mut Problems<'_>) -> Option<usize> {
    let count = entry.integer("a whole number, such as 4096", problems)?;
    within(entry, usize::try_from(count).unwrap_or(0), least, most, |count| count.to_string(), problems)
}

fn within(
    entry: &Entry<'_>,
    value: usize,
    least: usize,
    most: usize,
    shown: impl Fn(usize) -> String,
    problems: &mut Problems<'_>,
) -> Option<usize> {
    if (least..=most).contains(&value) {
        return Some(value);
    }
    let message = format!("must be from {} to {}", shown(least), shown(most));
    entry.problem(problems, message, Some("leave it out for the default"));
    None
}
