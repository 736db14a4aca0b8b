//! The words of the doctor: a stable code for each thing that can be found, what it means, and what to do next.
//! `planning/doctor.md` lists them; a test holds the two together.

use serde::{Serialize, Serializer};

/// Whether somebody has to do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something is lost, unsafe or not known: not healthy.
    Finding,
    /// Worth knowing, and as it may be.
    Note,
}

/// What was found. The codes are stable: scripts branch on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// Something in the place of a directory or the lock that no daemon would use.
    StateUnsafe,
    /// A directory that other users can look into.
    StateOpen,
    /// All of it belongs to another user than the one who looks.
    OtherOwner,
    /// A part could not be read, so nothing is known about it.
    NotRead,
    /// Records without their key.
    KeyMissing,
    /// The key or the token of the port cannot be used.
    SecretDamaged,
    /// Records without their witness.
    WitnessMissing,
    /// The witness cannot be used, or not all of it.
    WitnessDamaged,
    /// A record that others could have changed or read.
    RecordUnsafe,
    /// A record whose content is not what was written.
    RecordDamaged,
    /// A record of a newer format.
    RecordNewer,
    /// A record written under another key.
    ForeignKey,
    /// A copy that is older than what was written since, or of a session that was ended.
    StaleEpoch,
    /// A good record that this build does not go on with.
    NotResumable,
    /// A call journal with lines that fail their check, or that cannot be used.
    JournalDamaged,
    /// A call journal of another format.
    JournalVersion,
    /// A call journal whose last line has no end.
    JournalTorn,
    /// A call that was sent, and of which nothing more is known.
    OutcomeUnknown,
    /// A call that was sent by a process that lives.
    InFlight,
    /// A file that was put aside.
    Quarantined,
    /// A temporary file.
    LeftoverTemp,
}

impl Code {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 21] = [
        Self::StateUnsafe,
        Self::StateOpen,
        Self::OtherOwner,
        Self::NotRead,
        Self::KeyMissing,
        Self::SecretDamaged,
        Self::WitnessMissing,
        Self::WitnessDamaged,
        Self::RecordUnsafe,
        Self::RecordDamaged,
        Self::RecordNewer,
        Self::ForeignKey,
        Self::StaleEpoch,
        Self::NotResumable,
        Self::JournalDamaged,
        Self::JournalVersion,
        Self::JournalTorn,
        Self::OutcomeUnknown,
        Self::InFlight,
        Self::Quarantined,
        Self::LeftoverTemp,
    ];

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::StateUnsafe => "STATE_UNSAFE",
            Self::StateOpen => "STATE_OPEN",
            Self::OtherOwner => "OTHER_OWNER",
            Self::NotRead => "NOT_READ",
            Self::KeyMissing => "KEY_MISSING",
            Self::SecretDamaged => "SECRET_DAMAGED",
            Self::WitnessMissing => "WITNESS_MISSING",
            Self::WitnessDamaged => "WITNESS_DAMAGED",
            Self::RecordUnsafe => "RECORD_UNSAFE",
            Self::RecordDamaged => "RECORD_DAMAGED",
            Self::RecordNewer => "RECORD_NEWER",
            Self::ForeignKey => "FOREIGN_KEY",
            Self::StaleEpoch => "STALE_EPOCH",
            Self::NotResumable => "NOT_RESUMABLE",
            Self::JournalDamaged => "JOURNAL_DAMAGED",
            Self::JournalVersion => "JOURNAL_VERSION",
            Self::JournalTorn => "JOURNAL_TORN",
            Self::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Self::InFlight => "IN_FLIGHT",
            Self::Quarantined => "QUARANTINED",
            Self::LeftoverTemp => "LEFTOVER_TEMP",
        }
    }

    /// Whether it makes the directory unhealthy.
    pub fn severity(self) -> Severity {
        match self {
            Self::OtherOwner
            | Self::WitnessMissing
            | Self::NotResumable
            | Self::JournalTorn
            | Self::InFlight
            | Self::LeftoverTemp => Severity::Note,
            _ => Severity::Finding,
        }
    }

    /// What it means, in one sentence without a full stop.
    pub fn means(self) -> &'static str {
        match self {
            Self::StateUnsafe => {
                "a link, another user's, or not what belongs there: no daemon starts with it"
            }
            Self::StateOpen => "other users can look into this directory; session ids are secrets",
            Self::OtherOwner => "it belongs to another user, and is judged as that user's daemon would",
            Self::NotRead => "it could not be read, so nothing is known about it",
            Self::KeyMissing => "the key is gone, and without it no record can be believed",
            Self::SecretDamaged => {
                "it cannot be used: wrong size or content, or others could have changed it"
            }
            Self::WitnessMissing => "there is no witness, so an old copy of a record would be believed",
            Self::WitnessDamaged => "a part of the witness cannot be used, so an old copy may be believed",
            Self::RecordUnsafe => "a link, another user's, or open to others: it is not believed",
            Self::RecordDamaged => "its content is not what was written",
            Self::RecordNewer => {
                "a newer evermux wrote it: this one leaves it alone, and does not go on with it"
            }
            Self::ForeignKey => {
                "written under another key: the key was lost, or the file comes from elsewhere"
            }
            Self::StaleEpoch => "an old copy: something newer was written since, or the session was ended",
            Self::NotResumable => {
                "the file is good, and its session is not continued: the next use makes a new one"
            }
            Self::JournalDamaged => {
                "lines in it fail their check: a call found nowhere may have been sent all the same"
            }
            Self::JournalVersion => {
                "another evermux wrote it in another format: its calls are not known here"
            }
            Self::JournalTorn => {
                "its last line has no end: that write never came back, so nothing was sent for it"
            }
            Self::OutcomeUnknown => {
                "outcome unknown: the call was sent, and no answer is noted; it may have taken effect"
            }
            Self::InFlight => "the call was sent and has no answer yet; the process that waits for it lives",
            Self::Quarantined => "put aside, and not used any more; evermux never deletes it",
            Self::LeftoverTemp => "a killed process was writing it, or a live one is just now",
        }
    }

    /// What to do, in one sentence without a full stop.
    pub fn next(self) -> &'static str {
        match self {
            Self::StateUnsafe => "look who put it there, and move it away",
            Self::StateOpen => "chmod 700; the next start does it too",
            Self::OtherOwner => "nothing, if this is a copy; evermux runs as its owner only",
            Self::NotRead => "look at it as its owner, or once the disk is well",
            Self::KeyMissing => {
                "put the key back if you have it; else the next start makes one, and new sessions"
            }
            Self::SecretDamaged => "put it back if you have it; else the next start makes a new one",
            Self::WitnessMissing => "nothing; the next start begins one",
            Self::WitnessDamaged => "nothing, if no record was restored from a backup",
            Self::RecordUnsafe | Self::RecordDamaged | Self::ForeignKey | Self::StaleEpoch => {
                "nothing; the next start puts it aside, and the next use makes a new session"
            }
            Self::RecordNewer => "run the newer evermux again, or move the file away",
            Self::NotResumable => "nothing",
            Self::JournalDamaged => "look at the server before you repeat a call of that time",
            Self::JournalVersion => "run the evermux that wrote it",
            Self::JournalTorn => "nothing",
            Self::OutcomeUnknown => "look at the server whether it took effect, before you repeat it",
            Self::InFlight => "wait; `evermux status` tells more",
            Self::Quarantined => "look at it if you miss a session; else delete it",
            Self::LeftoverTemp => "nothing; the next start removes it",
        }
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}
