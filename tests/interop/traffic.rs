//! What holds for all that evermux sends upstream, whichever server is there.

use std::collections::HashSet;

use evermux_testkit::{Recorder, Seen};

use crate::fixture::Call;

/// The revision that all pinned peers speak.
pub(crate) const REVISION: &str = "2025-11-25";

/// So many handshakes and no more, none with a session; every other request in a session that a handshake gave, with the version it
/// agreed on; no id twice in a session; no DELETE.
#[track_caller]
pub(crate) fn check_traffic(recorder: &Recorder, handshakes: usize) {
    let journal = recorder.journal();
    let initializes: Vec<_> = journal.iter().filter(|seen| seen.is("initialize")).collect();
    assert_eq!(initializes.len(), handshakes, "handshakes:\n{}", recorder.summary());
    assert!(initializes.iter().all(|seen| seen.session.is_none()), "a handshake in an old session");
    let minted: HashSet<_> = initializes.iter().filter_map(|seen| seen.reply_session.as_ref()).collect();
    assert_eq!(minted.len(), handshakes, "each handshake gave a session");
    let mut used = HashSet::new();
    for seen in journal.iter().filter(|seen| !seen.is("initialize")) {
        assert_ne!(seen.verb, "DELETE", "a session was ended:\n{}", recorder.summary());
        assert!(seen.session.as_ref().is_some_and(|session| minted.contains(session)), "{seen:?}");
        assert_eq!(seen.version.as_deref(), Some(REVISION), "{seen:?}");
        if let (Some(_), Some(id)) = (&seen.rpc_method, &seen.id) {
            assert!(used.insert((&seen.session, id)), "an id came twice: {seen:?}");
        }
    }
}

/// A pool's only session was replaced: from the end of the fresh handshake on, nothing more was sent with the old id.
#[track_caller]
pub(crate) fn check_replaced(recorder: &Recorder) {
    let journal = recorder.journal();
    let fresh =
        journal.iter().rev().find(|seen| seen.is("initialize")).and_then(|seen| seen.reply_session.clone());
    let since = journal.iter().rposition(|seen| seen.is("notifications/initialized")).unwrap_or_default();
    let late: Vec<_> = journal[since..].iter().filter(|seen| seen.session != fresh).collect();
    assert!(late.is_empty(), "in the old session: {late:#?}");
}

/// How often this call went out.
pub(crate) fn sent(recorder: &Recorder, call: &Call) -> usize {
    recorder.count(|seen| is_call(seen, call))
}

fn is_call(seen: &Seen, call: &Call) -> bool {
    seen.calls(call.tool) && seen.body.pointer("/params/arguments") == Some(&call.arguments)
}
