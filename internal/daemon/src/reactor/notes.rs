//! What the core notes, as lines of the log. The file of events has its own words for it (`audit.rs`).

use evermux_core::output::Note;

pub(super) fn write(note: &Note) {
    match note {
        Note::Attached { upstream, trajectory, handshake, continuation, parent, status, reason } => {
            let parent = parent.map(tracing::field::display);
            tracing::info!(
                %upstream, %trajectory, handshake = handshake.0, %continuation, parent, status = status.word(),
                reason, "session attached"
            );
        }
        Note::Lost { upstream, trajectory, symptom, age, silent } => {
            let silent = silent.map(|silent| silent.as_secs());
            tracing::warn!(
                %upstream, %trajectory, symptom, age_s = age.as_secs(), silent_s = silent, "the upstream lost a session"
            );
        }
        Note::Ended { upstream, trajectory, why, delete } => {
            tracing::info!(%upstream, %trajectory, why, delete, "session ended");
        }
        Note::Trouble { upstream, what, retry_ms } => {
            tracing::warn!(%upstream, what, retry_ms, "the upstream cannot be used");
        }
        Note::Unrouted { upstream, why } => {
            tracing::warn!(%upstream, why, "a call with a handle was not routed")
        }
        // A crowd of short clients would push everything else out of the log; the events have them.
        Note::Leased { upstream, trajectory, lease } => {
            tracing::debug!(%upstream, %trajectory, %lease, "a client uses a session");
        }
        Note::Released { upstream, trajectory, lease, why, .. } => {
            tracing::debug!(%upstream, %trajectory, %lease, why, "a client uses a session no more");
        }
        Note::Dropped(what) => tracing::debug!(what, "dropped"),
    }
}
