//! Sessions on disk: what lets them outlive the upstream's process. Streams, pauses and running calls do not.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::state::{Kept, State};

#[derive(Serialize, Deserialize)]
struct Saved<S> {
    n_sessions: u64,
    sessions: BTreeMap<String, S>,
}

impl State {
    /// Takes over what an earlier process has saved, if there is anything.
    ///
    /// # Errors
    /// The file is there and is not one of ours.
    pub(super) fn load(&mut self) -> io::Result<()> {
        let Some(path) = &self.script.state_file else { return Ok(()) };
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let saved: Saved<Kept> = serde_json::from_slice(&text)?;
        self.n_sessions = saved.n_sessions;
        for (id, kept) in saved.sessions {
            self.restore(id, kept);
        }
        Ok(())
    }

    /// Writes the sessions if they are not as they were last written.
    pub(super) fn save(&mut self) {
        let Some(path) = &self.script.state_file else { return };
        let print = self.print();
        if self.saved == Some(print) {
            return;
        }
        let sessions = self.sessions.iter().map(|(id, session)| (id.clone(), &session.kept)).collect();
        write(path, &Saved { n_sessions: self.n_sessions, sessions }).expect("the state file can be written");
        self.saved = Some(print);
    }

    /// Changes whenever something that is kept does. Sets only count: one update never adds as much as it takes away.
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.n_sessions.hash(&mut hasher);
        for (id, session) in &self.sessions {
            let kept = &session.kept;
            (id, kept.initialized, kept.counter, kept.n_streams, &kept.log_level).hash(&mut hasher);
            (kept.subscriptions.len(), kept.seen_ids.len(), &kept.initialize_params).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Replaces the file in one step, so that a killed process leaves the old or the new one.
fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.persist(path)?;
    Ok(())
}
