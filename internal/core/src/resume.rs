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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::names::{Continuation, Digest, Generation, Handshake, SessionId, Trajectory};
    use crate::record::Learned;

    const THEN: Fingerprint =
        Fingerprint { endpoint: Digest(1), identity: Digest(2), headers: Digest(3), class: Digest(4) };
    const OTHER: Digest = Digest(9);
    const SOURCES: [Source; 2] = [Source::Disk, Source::Takeover];

    fn record() -> Record {
        Record {
            upstream: "up".into(),
            trajectory: Trajectory(1),
            handshake: Handshake(1),
            continuation: Continuation(1),
            parent: None,
            generation: Generation(1),
            fingerprint: THEN,
            session_id: SessionId::new("s1"),
            protocol_version: "2025-11-25".to_owned(),
            initialize_result: "{}".to_owned(),
            client_info: "{}".to_owned(),
            capabilities: "{}".to_owned(),
            handshake_state: HandshakeState::Acknowledged,
            ids_reserved_until: 100,
            get_cursor: None,
            subscriptions: BTreeMap::new(),
            log_levels: BTreeMap::new(),
            owner: None,
            handles: Vec::new(),
            tools: None,
            learned: Learned::default(),
            created_ms: 1,
            used_ms: 2,
            ok_ms: 3,
            extra: BTreeMap::new(),
        }
    }

    /// Every record and config of the tables below, under the verdict that both sources have to come to.
    #[track_caller]
    fn expect(record: &Record, now: Option<&Fingerprint>, reason: Option<&'static str>) {
        let wanted = reason.map_or_else(|| Resume::Resumed(Box::new(record.clone())), Resume::Fresh);
        for source in SOURCES {
            assert_eq!(resume(record.clone(), source, now), wanted, "{source:?}");
        }
    }

    #[test]
    fn each_class_of_config_alone_has_its_reason() {
        let table = [
            (Fingerprint { endpoint: OTHER, ..THEN }, "config_changed:endpoint"),
            (Fingerprint { identity: OTHER, ..THEN }, "config_changed:identity"),
            (Fingerprint { headers: OTHER, ..THEN }, "config_changed:headers"),
            (Fingerprint { class: OTHER, ..THEN }, "config_changed:class"),
        ];
        for (at, (now, reason)) in table.iter().enumerate() {
            assert_eq!(changed_class(&THEN, now), Some(*reason));
            assert_eq!(changed_class(now, &THEN), Some(*reason), "whichever was first");
            expect(&record(), Some(now), Some(*reason));
            // Of several the first of the table is named, so that the reason is stable.
            let later = table[at..].iter().fold(THEN, |all, (other, _)| Fingerprint {
                endpoint: if other.endpoint == OTHER { OTHER } else { all.endpoint },
                identity: if other.identity == OTHER { OTHER } else { all.identity },
                headers: if other.headers == OTHER { OTHER } else { all.headers },
                class: if other.class == OTHER { OTHER } else { all.class },
            });
            assert_eq!(changed_class(&THEN, &later), Some(*reason), "the first of several");
        }
        assert_eq!(changed_class(&THEN, &THEN), None);
    }

    #[test]
    fn what_fits_or_cannot_be_compared_yet_goes_on_as_it_is() {
        expect(&record(), Some(&THEN), None);
        expect(&record(), None, None);
        // `initialized` is sent again, so this much of a handshake is enough.
        let answered = Record { handshake_state: HandshakeState::Answered, ..record() };
        expect(&answered, Some(&THEN), None);
        // A server without session ids leaves its InitializeResult only.
        expect(&Record { session_id: None, ..record() }, Some(&THEN), None);
    }

    #[test]
    fn an_unfinished_handshake_and_an_unknown_revision_make_a_new_session() {
        let unfinished = Record { handshake_state: HandshakeState::Sent, ..record() };
        for now in [None, Some(&THEN)] {
            expect(&unfinished, now, Some("handshake_unfinished"));
            for revision in ["2026-07-28", "2024-10-07", "", "2025-11-25 ", "1"] {
                let other = Record { protocol_version: revision.to_owned(), ..record() };
                expect(&other, now, Some("version_mismatch"));
            }
            for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
                expect(&Record { protocol_version: revision.to_owned(), ..record() }, now, None);
            }
        }
    }
}
