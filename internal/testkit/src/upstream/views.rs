//! What a test may see of the sessions.

use super::state::{GET_STREAM, Session};
use super::{Upstream, asks};

/// What a test may see of a live session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: String,
    /// Path it was opened on.
    pub path: String,
    /// Negotiated revision.
    pub version: String,
    /// `notifications/initialized` was answered.
    pub initialized: bool,
    /// Value of `counter`.
    pub counter: u64,
    /// Subscribed URIs, sorted.
    pub subscriptions: Vec<String>,
    /// Last `logging/setLevel`.
    pub log_level: Option<String>,
    /// Whether someone reads the GET stream.
    pub get_open: bool,
    /// Requests in work.
    pub running: usize,
    /// Raw `params` of its `initialize`, the last one if there were several.
    pub initialize_params: String,
}

impl SessionView {
    /// Whether the client declared a capability, named as a path: `roots`, `elicitation.url`.
    #[must_use]
    pub fn declares(&self, capability: &str) -> bool {
        asks::declares(&self.initialize_params, capability)
    }

    fn of(id: &str, session: &Session) -> Self {
        Self {
            id: id.to_owned(),
            path: session.kept.path.clone(),
            version: session.kept.version.clone(),
            initialized: session.kept.initialized,
            counter: session.kept.counter,
            subscriptions: session.kept.subscriptions.iter().cloned().collect(),
            log_level: session.kept.log_level.clone(),
            get_open: session.streams.get(&GET_STREAM).is_some_and(|log| log.viewer.is_some()),
            running: session.running.len(),
            initialize_params: session.kept.initialize_params.clone(),
        }
    }
}

impl Upstream {
    /// Moves the upstream's clock forward: leases and idle limits run out as if the time had passed.
    pub fn advance(&self, by: std::time::Duration) {
        self.shared.update(|state| {
            state.clock.advance(by);
            state.end_idle_sessions();
        });
    }

    /// The live sessions.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionView> {
        self.shared
            .read(|state| state.sessions.iter().map(|(id, session)| SessionView::of(id, session)).collect())
    }
}
