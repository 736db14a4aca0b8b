//! What a test may see of the sessions.

use super::state::{GET_STREAM, Session};
use super::{Upstream, asks};

/// What a test may see of a live session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: String,
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
            version: session.version.clone(),
            initialized: session.initialized,
            counter: session.counter,
            subscriptions: session.subscriptions.iter().cloned().collect(),
            log_level: session.log_level.clone(),
            get_open: session.streams.get(&GET_STREAM).is_some_and(|log| log.viewer.is_some()),
            running: session.running.len(),
            initialize_params: session.initialize_params.clone(),
        }
    }
}

impl Upstream {
    /// The live sessions.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionView> {
        self.shared
            .read(|state| state.sessions.iter().map(|(id, session)| SessionView::of(id, session)).collect())
    }
}
