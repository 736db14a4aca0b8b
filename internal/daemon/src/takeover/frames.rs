//! What the two processes of a takeover write to each other. The forms are fixtures (`golden/`): another version reads
//! them. An unknown member is ignored; a kind that is not known, or not the other side's, is refused.

use evermux_core::takeover::{Ability, Reason};
use serde::{Deserialize, Serialize};

/// Versions of this conversation.
pub(crate) const PROTOCOL: (u32, u32) = (1, 1);

/// The kinds, by their byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Refuse = 2,
    Offer = 3,
    Accept = 4,
    Descriptors = 5,
    Manifest = 6,
    End = 7,
    Ready = 8,
    Decline = 9,
    Commit = 10,
    Abort = 11,
    Active = 12,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Refuse,
        Self::Offer,
        Self::Accept,
        Self::Descriptors,
        Self::Manifest,
        Self::End,
        Self::Ready,
        Self::Decline,
        Self::Commit,
        Self::Abort,
        Self::Active,
    ];

    pub(crate) fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The successor's first word. With the end of a pipe that it holds for life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: (u32, u32),
    pub(crate) records: (u32, u32),
    pub(crate) version: String,
}

impl Hello {
    pub(crate) fn ability(&self) -> Ability {
        Ability { protocol: self.protocol, records: self.records }
    }
}

/// `refuse` and `abort`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// For people.
    pub(crate) reason: String,
    /// Another attempt may do better.
    pub(crate) again: bool,
}

impl From<&Reason> for Refusal {
    fn from(reason: &Reason) -> Self {
        Self { reason: reason.to_string(), again: reason.is_worth_repeating() }
    }
}

/// What the predecessor offers, on disk already. With the end of a pipe that it holds for life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) protocol: u32,
    pub(crate) records: u32,
    pub(crate) generation: u64,
    pub(crate) version: String,
}

/// What the descriptors of this frame are, in their order: `socket`, `lock`, `port`, or `drains` with a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Descriptors {
    pub(crate) fds: Vec<Descriptor>,
}

/// What one of them is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Descriptor {
    /// The owner-only socket.
    Socket,
    /// The locked file.
    Lock,
    /// The loopback port.
    Port,
    /// The life of a process that drains.
    Drains(u64),
}

/// What came before: the bytes of all `manifest` frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) bytes: usize,
    pub(crate) sessions: usize,
    pub(crate) links: usize,
    pub(crate) blake3: String,
}

impl End {
    pub(crate) fn of(text: &[u8], sessions: usize, links: usize) -> Self {
        Self::behind(&blake3::Hasher::new(), text, sessions, links)
    }

    /// `rest`: what came behind what was taken by the hasher.
    pub(crate) fn behind(ahead: &blake3::Hasher, rest: &[u8], sessions: usize, links: usize) -> Self {
        let mut hasher = ahead.clone();
        hasher.update(rest);
        let bytes = usize::try_from(hasher.count()).unwrap_or(usize::MAX);
        Self { bytes, sessions, links, blake3: hasher.finalize().to_hex().to_string() }
    }
}

/// `decline`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Declined {
    pub(crate) reason: String,
}

/// `accept`, `ready`, `commit` and `active` say it all by their kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nothing {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T>(kind: Kind, number: u8, golden: &str, value: &T)
    where
        T: Serialize + for<'a> Deserialize<'a> + PartialEq + std::fmt::Debug,
    {
        assert_eq!((kind as u8, Kind::of(number)), (number, Some(kind)));
        assert_eq!(serde_json::to_string(value).unwrap(), golden.trim(), "{kind:?} as it is written");
        assert_eq!(serde_json::from_str::<T>(golden).unwrap(), *value, "{kind:?} as it is read");
        let newer = golden.trim().replacen('{', r#"{"a_newer_member":[1]"#, 1).replace("[1]\"", "[1],\"");
        assert_eq!(serde_json::from_str::<T>(&newer).unwrap(), *value, "{newer}");
    }

    #[test]
    fn frames_are_written_and_read_as_ever() {
        let version = || "0.1.0".to_owned();
        let hello = Hello { protocol: (1, 1), records: (1, 1), version: version() };
        check(Kind::Hello, 1, include_str!("golden/hello.json"), &hello);
        let refuse = Refusal { reason: "no".to_owned(), again: true };
        check(Kind::Refuse, 2, include_str!("golden/refuse.json"), &refuse);
        check(Kind::Abort, 11, include_str!("golden/refuse.json"), &refuse);
        let offer = Offer { protocol: 1, records: 1, generation: 4, version: version() };
        check(Kind::Offer, 3, include_str!("golden/offer.json"), &offer);
        let fds = vec![Descriptor::Socket, Descriptor::Lock, Descriptor::Port, Descriptor::Drains(3)];
        check(Kind::Descriptors, 5, include_str!("golden/descriptors.json"), &Descriptors { fds });
        let end = End::of(b"{}", 1, 2);
        check(Kind::End, 7, include_str!("golden/end.json"), &end);
        let declined = Declined { reason: "no".to_owned() };
        check(Kind::Decline, 9, include_str!("golden/decline.json"), &declined);
        for (kind, number) in
            [(Kind::Accept, 4), (Kind::Ready, 8), (Kind::Commit, 10), (Kind::Active, 12), (Kind::Manifest, 6)]
        {
            assert_eq!((kind as u8, Kind::of(number)), (number, Some(kind)));
        }
        assert_eq!(Kind::of(13), None);
    }
}
