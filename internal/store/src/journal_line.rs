//! The call journal's lines: [`JournalEntry`] to text and back, and what a run of lines amounts to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;

use evermux_core::names::{Digest, Handshake, LinkNonce, Seq, Trajectory, WireId};
use evermux_core::record::{JournalEntry, JournalledAnswer, JournalledCall};

/// First line of every journal file.
const VERSION_LINE: &str = "V 1";

/// Hex digits of blake3 at the end of each line: against a line cut short and then added to, and against rot.
const CHECK_DIGITS: usize = 8;

/// A call is forgotten this long after it was sent: no client repeats a message after a day.
pub(crate) const FORGET_AFTER_MS: u64 = 24 * 60 * 60 * 1000;

/// Adds one line, ended. Written for each call before it is sent, so without the machinery of `fmt`.
pub(crate) fn write_entry(entry: &JournalEntry, out: &mut Vec<u8>) {
    let start = out.len();
    let mut line = Fields(out);
    match entry {
        JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms } => line
            .kind(b'S')
            .name(link.to_hex())
            .seq(*seq)
            .name(trajectory.to_hex())
            .number(handshake.0)
            .number(wire.0)
            .number(*at_ms),
        JournalEntry::Cursor { trajectory, wire, cursor } => {
            line.kind(b'C').name(trajectory.to_hex()).number(wire.0).text(cursor)
        }
        JournalEntry::Settled { trajectory, wire } => {
            line.kind(b'D').name(trajectory.to_hex()).number(wire.0)
        }
        JournalEntry::Acked { link, seq } => line.kind(b'A').name(link.to_hex()).number(seq.0),
        JournalEntry::Answered(answer) => line
            .kind(b'R')
            .name(answer.link.to_hex())
            .seq(answer.seq)
            .name(answer.trajectory.to_hex())
            .number(answer.handshake.0)
            .number(answer.wire.0)
            .name(answer.ask.to_hex())
            .number(answer.at_ms),
        JournalEntry::LinkEnded { link } => line.kind(b'E').name(link.to_hex()),
    };
    seal_line(start, out);
}

/// A line that is being written.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    fn kind(&mut self, kind: u8) -> &mut Self {
        self.0.push(kind);
        self
    }

    fn field(&mut self, field: &[u8]) -> &mut Self {
        self.0.push(b' ');
        self.0.extend_from_slice(field);
        self
    }

    fn name(&mut self, hex: [u8; 32]) -> &mut Self {
        self.field(&hex)
    }

    fn number(&mut self, number: impl itoa::Integer) -> &mut Self {
        self.field(itoa::Buffer::new().format(number).as_bytes())
    }

    fn seq(&mut self, seq: Option<Seq>) -> &mut Self {
        match seq {
            Some(seq) => self.number(seq.0),
            None => self.field(b"-"),
        }
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push(b' ');
        // Writing to memory cannot fail.
        let _infallible = serde_json::to_writer(&mut *self.0, text);
        self
    }
}

/// Adds the version line, ended.
pub(crate) fn write_version(out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(VERSION_LINE.as_bytes());
    seal_line(start, out);
}

/// Adds the line that says when the file's process began, ended: calls sent before it are those of others.
pub(crate) fn write_began(at_ms: u64, out: &mut Vec<u8>) {
    let start = out.len();
    let _infallible = write!(out, "B {at_ms}");
    seal_line(start, out);
}

pub(crate) fn seal_line(start: usize, out: &mut Vec<u8>) {
    let check = check_of(out.get(start..).unwrap_or_default());
    out.push(b' ');
    out.extend_from_slice(&check);
    out.push(b'\n');
}

fn check_of(body: &[u8]) -> [u8; CHECK_DIGITS] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let hash = blake3::hash(body);
    let mut check = [0; CHECK_DIGITS];
    for (pair, byte) in check.chunks_exact_mut(2).zip(hash.as_bytes()) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    check
}

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Version,
    /// The file is of a version that this one cannot read.
    OtherVersion,
    /// When the process began whose file this is (Unix milliseconds).
    Began(u64),
    Entry(JournalEntry),
    /// Whole, but of a kind that this version does not know.
    Unknown,
    Broken,
}

/// Reads one line without its line end.
pub(crate) fn parse_line(line: &[u8]) -> Line {
    let Some(body) = checked_body(line) else { return Line::Broken };
    if body == VERSION_LINE {
        return Line::Version;
    }
    let Some((kind, rest)) = body.split_once(' ') else { return Line::Unknown };
    let entry = match kind {
        "S" => parse_sent(rest),
        "C" => parse_cursor(rest),
        "D" => parse_pair(rest)
            .map(|(trajectory, wire)| JournalEntry::Settled { trajectory, wire: WireId(wire) }),
        "A" => parse_pair(rest).map(|(link, seq)| JournalEntry::Acked { link, seq: Seq(seq) }),
        "R" => parse_answered(rest),
        "V" => return Line::OtherVersion,
        "B" => return rest.parse().map_or(Line::Broken, Line::Began),
        "E" => rest.parse().ok().map(|link| JournalEntry::LinkEnded { link }),
        _ => return Line::Unknown,
    };
    entry.map_or(Line::Broken, Line::Entry)
}

fn checked_body(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line).ok()?;
    let (body, check) = text.rsplit_once(' ')?;
    (check.as_bytes() == check_of(body.as_bytes())).then_some(body)
}

fn parse_pair<T: std::str::FromStr>(rest: &str) -> Option<(T, u64)> {
    let (name, number) = rest.split_once(' ')?;
    Some((name.parse().ok()?, number.parse().ok()?))
}

fn parse_sent(rest: &str) -> Option<JournalEntry> {
    let mut fields = rest.split(' ');
    let link: LinkNonce = fields.next()?.parse().ok()?;
    let seq = parse_seq(fields.next()?)?;
    let entry = JournalEntry::Sent {
        link,
        seq,
        trajectory: fields.next()?.parse().ok()?,
        handshake: Handshake(fields.next()?.parse().ok()?),
        wire: WireId(fields.next()?.parse().ok()?),
        at_ms: fields.next()?.parse().ok()?,
    };
    fields.next().is_none().then_some(entry)
}

fn parse_seq(field: &str) -> Option<Option<Seq>> {
    if field == "-" { Some(None) } else { field.parse().ok().map(|seq| Some(Seq(seq))) }
}

fn parse_answered(rest: &str) -> Option<JournalEntry> {
    let mut fields = rest.split(' ');
    let answer = JournalledAnswer {
        link: fields.next()?.parse().ok()?,
        seq: parse_seq(fields.next()?)?,
        trajectory: fields.next()?.parse().ok()?,
        handshake: Handshake(fields.next()?.parse().ok()?),
        wire: WireId(fields.next()?.parse().ok()?),
        ask: fields.next()?.parse::<Digest>().ok()?,
        at_ms: fields.next()?.parse().ok()?,
    };
    fields.next().is_none().then_some(JournalEntry::Answered(answer))
}

fn parse_cursor(rest: &str) -> Option<JournalEntry> {
    let mut fields = rest.splitn(3, ' ');
    Some(JournalEntry::Cursor {
        trajectory: fields.next()?.parse().ok()?,
        wire: WireId(fields.next()?.parse().ok()?),
        cursor: serde_json::from_str(fields.next()?).ok()?,
    })
}

type CallKey = (Trajectory, Handshake, WireId);

/// What a run of lines says about calls that may stand in files of other processes.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    acked: BTreeMap<LinkNonce, Seq>,
    ended: BTreeSet<LinkNonce>,
    /// Answered, and not among the calls of these lines.
    answered: BTreeSet<(Trajectory, WireId)>,
}

impl Settled {
    /// The lines that say so of what is in other files.
    pub(crate) fn write(&self, elsewhere: &Elsewhere, out: &mut Vec<u8>) {
        for (trajectory, wire) in self.answered.intersection(&elsewhere.calls) {
            write_entry(&JournalEntry::Settled { trajectory: *trajectory, wire: *wire }, out);
        }
        for link in &elsewhere.links {
            if self.ended.contains(link) {
                write_entry(&JournalEntry::LinkEnded { link: *link }, out);
            } else if let Some(seq) = self.acked.get(link) {
                write_entry(&JournalEntry::Acked { link: *link, seq: *seq }, out);
            }
        }
    }
}

/// What files of other processes are about.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    links: BTreeSet<LinkNonce>,
    calls: BTreeSet<(Trajectory, WireId)>,
}

/// The calls that a run of lines leaves. Folding a shortened file and then more lines gives the same as folding
/// all lines.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    calls: BTreeMap<CallKey, JournalledCall>,
    /// A cursor or settlement names no handshake: it is about the one whose call was read last. In a copy of other
    /// files, read after them, that may be an older one again.
    latest: HashMap<(Trajectory, WireId), Handshake>,
    by_link: HashMap<LinkNonce, BTreeSet<(Option<Seq>, CallKey)>>,
    settled: Settled,
    /// An acknowledged answer stays: its ask may come once more with what its server keeps.
    answers: BTreeSet<JournalledAnswer>,
}

impl Fold {
    pub(crate) fn add(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms } => {
                let settled = false;
                let cursor = None;
                self.sent(JournalledCall { link, seq, trajectory, handshake, wire, cursor, settled, at_ms });
            }
            JournalEntry::Cursor { trajectory, wire, cursor } => {
                if let Some(call) = self.latest(trajectory, wire) {
                    // The first one replays everything, so it is the one to keep.
                    call.cursor.get_or_insert(cursor);
                }
            }
            JournalEntry::Settled { trajectory, wire } => {
                self.answered(trajectory, wire);
            }
            JournalEntry::Acked { link, seq } => self.acked(link, seq),
            JournalEntry::Answered(answer) => drop(self.answers.insert(answer)),
            JournalEntry::LinkEnded { link } => self.ended(link),
        }
    }

    /// Takes what another run of lines says of links.
    pub(crate) fn settle(&mut self, settled: &Settled) {
        for (link, seq) in &settled.acked {
            self.acked(*link, *seq);
        }
        for link in &settled.ended {
            self.ended(*link);
        }
        for (trajectory, wire) in &settled.answered {
            self.answered(*trajectory, *wire);
        }
    }

    /// What its lines say of calls that are not here.
    pub(crate) fn settled(&self) -> &Settled {
        &self.settled
    }

    /// What it is about, for others that may have something to say of it.
    pub(crate) fn elsewhere(&self) -> Elsewhere {
        let links = self.calls.values().map(|call| call.link);
        Elsewhere {
            links: links.chain(self.answers.iter().map(|answer| answer.link)).collect(),
            calls: self.calls.values().map(|call| (call.trajectory, call.wire)).collect(),
        }
    }

    fn answered(&mut self, trajectory: Trajectory, wire: WireId) {
        match self.latest(trajectory, wire) {
            Some(call) => call.settled = true,
            None => drop(self.settled.answered.insert((trajectory, wire))),
        }
    }

    fn ended(&mut self, link: LinkNonce) {
        self.settled.ended.insert(link);
        self.answers.retain(|answer| answer.link != link);
        for (_, key) in self.by_link.remove(&link).unwrap_or_default() {
            self.calls.remove(&key);
        }
    }

    fn sent(&mut self, call: JournalledCall) {
        let key = (call.trajectory, call.handshake, call.wire);
        self.latest.insert((call.trajectory, call.wire), call.handshake);
        // Seen before: the copy that another process made of a file that is still there.
        if self.calls.contains_key(&key) {
            return;
        }
        self.by_link.entry(call.link).or_default().insert((call.seq, key));
        self.calls.insert(key, call);
    }

    fn latest(&mut self, trajectory: Trajectory, wire: WireId) -> Option<&mut JournalledCall> {
        let handshake = *self.latest.get(&(trajectory, wire))?;
        self.calls.get_mut(&(trajectory, handshake, wire))
    }

    fn acked(&mut self, link: LinkNonce, first_kept: Seq) {
        let known = self.settled.acked.entry(link).or_insert(first_kept);
        *known = first_kept.max(*known);
        let Some(calls) = self.by_link.get_mut(&link) else { return };
        // `None` sorts before every number and is acknowledged by none.
        let first_kept = (Some(first_kept), (Trajectory(0), Handshake(0), WireId(0)));
        let kept = calls.split_off(&first_kept);
        let (done, unnumbered) =
            std::mem::replace(calls, kept).into_iter().partition::<Vec<_>, _>(|(seq, _)| seq.is_some());
        calls.extend(unnumbered);
        for (_, key) in done {
            self.calls.remove(&key);
        }
    }

    /// The answers that must not be posted again.
    pub(crate) fn answers(&self, now_ms: u64) -> Vec<JournalledAnswer> {
        let young = |answer: &&JournalledAnswer| now_ms.saturating_sub(answer.at_ms) <= FORGET_AFTER_MS;
        self.answers.iter().filter(young).copied().collect()
    }

    /// What another process may still be asked about. A settled call without a number is not: only a number can
    /// be repeated.
    pub(crate) fn survivors(self, now_ms: u64) -> Vec<JournalledCall> {
        let wanted = |call: &JournalledCall| {
            now_ms.saturating_sub(call.at_ms) <= FORGET_AFTER_MS && (call.seq.is_some() || !call.settled)
        };
        self.calls.into_values().filter(wanted).collect()
    }
}

/// The lines that say what `calls` and `answers` say, with the version line.
pub(crate) fn write_all(calls: &[JournalledCall], answers: &[JournalledAnswer], out: &mut Vec<u8>) {
    write_version(out);
    write_kept(calls, answers, out);
}

/// The same without the version line, for adding to a file.
pub(crate) fn write_kept(calls: &[JournalledCall], answers: &[JournalledAnswer], out: &mut Vec<u8>) {
    for answer in answers {
        write_entry(&JournalEntry::Answered(*answer), out);
    }
    for call in calls {
        let JournalledCall { link, seq, trajectory, handshake, wire, cursor, settled, at_ms } = call.clone();
        write_entry(&JournalEntry::Sent { link, seq, trajectory, handshake, wire, at_ms }, out);
        if let Some(cursor) = cursor {
            write_entry(&JournalEntry::Cursor { trajectory, wire, cursor }, out);
        }
        if settled {
            write_entry(&JournalEntry::Settled { trajectory, wire }, out);
        }
    }
}
