//! The one function that decides whether a stored session may be continued (D10).
//!
//! Disk is one source of a record, a takeover the other, with the same value and the same checks. File
//! safety, format version, digest, witness and lock were checked by the store before a record got here.

use crate::record::{Fingerprint, HandshakeState, Record};

/// Where a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A file that a former process left.
    Disk,
    /// What a predecessor handed over.
    Takeover,
}

/// The verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// It may be continued, once the upstream accepts it.
    Resumed(Box<Record>),
    /// It may not, and a new session is due; nothing is wrong with the file.
    Fresh(&'static str),
}

/// Decides on a record. `fingerprint`: the configuration in force, when it is known yet; a record whose identity
/// cannot be had yet (a missing variable, say) waits and is superseded by nothing (D5).
pub fn resume(record: Record, _source: Source, fingerprint: Option<&Fingerprint>) -> Resume {
    if record.handshake_state == HandshakeState::Sent {
        return Resume::Fresh("handshake_unfinished");
    }
    if !mcp_wire::version::is_known_session_revision(&record.protocol_version) {
        return Resume::Fresh("version_mismatch");
    }
    match fingerprint.and_then(|now| changed_class(&record.fingerprint, now)) {
        Some(reason) => Resume::Fresh(reason),
        None => Resume::Resumed(Box::new(record)),
    }
}

/// The first class of configuration input that differs, as a stable reason.
pub fn changed_class(then: &Fingerprint, now: &Fingerprint) -> Option<&'static str> {
    if then.endpoint != now.endpoint {
        return Some("config_changed:endpoint");
    }
    if then.identity != now.identity {
        return Some("config_changed:identity");
    }
    if then.headers != now.headers {
        return Some("config_changed:headers");
    }
    (then.class != now.class).then_some("config_changed:class")
}
