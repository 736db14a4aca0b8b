//! The protocol's fixed words, in one place, so that no caller spells a method or a code by hand.
//!
//! Revisions: 2024-11-05 to 2025-11-25 are the session era; 2026-07-28 has no sessions.

/// Method and notification names.
pub mod method {
    /// Opens a session (session era, Lifecycle).
    pub const INITIALIZE: &str = "initialize";
    /// Liveness check in either direction (session era, Ping).
    pub const PING: &str = "ping";
    /// What a server speaks and offers (2026-07-28, Discovery).
    pub const SERVER_DISCOVER: &str = "server/discover";
    /// Lists tools.
    pub const TOOLS_LIST: &str = "tools/list";
    /// Runs a tool. The one method that may have effects.
    pub const TOOLS_CALL: &str = "tools/call";
    /// Lists prompts.
    pub const PROMPTS_LIST: &str = "prompts/list";
    /// Reads one prompt.
    pub const PROMPTS_GET: &str = "prompts/get";
    /// Lists resources.
    pub const RESOURCES_LIST: &str = "resources/list";
    /// Lists resource templates.
    pub const RESOURCES_TEMPLATES_LIST: &str = "resources/templates/list";
    /// Reads one resource.
    pub const RESOURCES_READ: &str = "resources/read";
    /// Asks for `notifications/resources/updated` (session era).
    pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
    /// Ends a resource subscription (session era).
    pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
    /// One stream of change notifications (2026-07-28, Subscriptions).
    pub const SUBSCRIPTIONS_LISTEN: &str = "subscriptions/listen";
    /// Completes an argument.
    pub const COMPLETION_COMPLETE: &str = "completion/complete";
    /// Sets the lowest log level of a session (session era).
    pub const LOGGING_SET_LEVEL: &str = "logging/setLevel";
    /// State of a task (2025-11-25 Tasks; 2026-07-28 extension).
    pub const TASKS_GET: &str = "tasks/get";
    /// Result of a task, blocking (2025-11-25).
    pub const TASKS_RESULT: &str = "tasks/result";
    /// Lists tasks (2025-11-25).
    pub const TASKS_LIST: &str = "tasks/list";
    /// Cancels a task.
    pub const TASKS_CANCEL: &str = "tasks/cancel";
    /// Hands input to a task (2026-07-28 extension).
    pub const TASKS_UPDATE: &str = "tasks/update";
    /// Server asks the client's model (session era).
    pub const SAMPLING_CREATE_MESSAGE: &str = "sampling/createMessage";
    /// Server asks the user (since 2025-06-18).
    pub const ELICITATION_CREATE: &str = "elicitation/create";
    /// Server asks for the client's roots (session era).
    pub const ROOTS_LIST: &str = "roots/list";

    /// The client has taken the answer to `initialize`.
    pub const NOTIFICATIONS_INITIALIZED: &str = "notifications/initialized";
    /// A request is no longer wanted.
    pub const NOTIFICATIONS_CANCELLED: &str = "notifications/cancelled";
    /// Progress of a request that carried a progress token.
    pub const NOTIFICATIONS_PROGRESS: &str = "notifications/progress";
    /// A log message.
    pub const NOTIFICATIONS_MESSAGE: &str = "notifications/message";
    /// The tool list changed.
    pub const NOTIFICATIONS_TOOLS_LIST_CHANGED: &str = "notifications/tools/list_changed";
    /// The prompt list changed.
    pub const NOTIFICATIONS_PROMPTS_LIST_CHANGED: &str = "notifications/prompts/list_changed";
    /// The resource list changed.
    pub const NOTIFICATIONS_RESOURCES_LIST_CHANGED: &str = "notifications/resources/list_changed";
    /// A subscribed resource changed.
    pub const NOTIFICATIONS_RESOURCES_UPDATED: &str = "notifications/resources/updated";
    /// The client's roots changed (session era).
    pub const NOTIFICATIONS_ROOTS_LIST_CHANGED: &str = "notifications/roots/list_changed";
    /// A URL-mode elicitation ended (2025-11-25).
    pub const NOTIFICATIONS_ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
    /// A task changed state (2025-11-25).
    pub const NOTIFICATIONS_TASKS_STATUS: &str = "notifications/tasks/status";
    /// A task changed state (2026-07-28 extension).
    pub const NOTIFICATIONS_TASKS: &str = "notifications/tasks";
    /// First message on a listen stream (2026-07-28).
    pub const NOTIFICATIONS_SUBSCRIPTIONS_ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

    /// Whether a request of this method is a read, so that sending it twice does no harm.
    ///
    /// The `*/list` methods are spelled out: a vendor's `cart/list` may do anything, and a call that ran twice
    /// is worse than one that failed.
    #[must_use]
    pub fn is_repeatable(method: &str) -> bool {
        matches!(
            method,
            TOOLS_LIST
                | PROMPTS_LIST
                | RESOURCES_LIST
                | RESOURCES_TEMPLATES_LIST
                | TASKS_LIST
                | ROOTS_LIST
                | RESOURCES_READ
                | PROMPTS_GET
                | COMPLETION_COMPLETE
                | PING
        )
    }
}

/// JSON-RPC error codes, the standard ones and those MCP gives a meaning.
pub mod code {
    /// The bytes are not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// JSON, but not a JSON-RPC message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// Unknown method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Bad parameters.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The receiver failed.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// Resource not found, from servers older than 2026-07-28; never to be sent to a 2026-07-28 peer.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// A URL-mode elicitation is needed first (2025-11-25); never to be sent to a 2026-07-28 peer.
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
    /// HTTP headers disagree with the body (2026-07-28).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The client did not declare what is needed (2026-07-28).
    pub const MISSING_REQUIRED_CLIENT_CAPABILITY: i64 = -32021;
    /// The protocol version is not spoken here (2026-07-28).
    pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
}

/// Protocol revisions.
pub mod version {
    /// First revision; HTTP+SSE transport, no streamable HTTP.
    pub const V2024_11_05: &str = "2024-11-05";
    /// Streamable HTTP and JSON-RPC batches.
    pub const V2025_03_26: &str = "2025-03-26";
    /// Batches removed, elicitation added.
    pub const V2025_06_18: &str = "2025-06-18";
    /// Tasks, URL-mode elicitation, polling of SSE streams.
    pub const V2025_11_25: &str = "2025-11-25";
    /// Sessions removed.
    pub const V2026_07_28: &str = "2026-07-28";
    /// Newest revision that has sessions.
    pub const LATEST_SESSION: &str = V2025_11_25;

    /// Whether this is a streamable HTTP revision with sessions that we speak.
    #[must_use]
    pub fn is_known_session_revision(revision: &str) -> bool {
        matches!(revision, V2025_03_26 | V2025_06_18 | V2025_11_25)
    }
}

#[cfg(test)]
mod tests {
    use super::{method, version};

    #[test]
    fn only_reads_are_repeatable() {
        for name in ["tools/list", "resources/templates/list", "resources/read", "prompts/get", "ping"] {
            assert!(method::is_repeatable(name), "{name}");
        }
        for name in
            ["tools/call", "cart/list", "resources/subscribe", "notifications/cancelled", "initialize", ""]
        {
            assert!(!method::is_repeatable(name), "{name}");
        }
    }

    #[test]
    fn session_revisions_have_streamable_http_and_sessions() {
        assert!(version::is_known_session_revision(version::LATEST_SESSION));
        for other in [version::V2024_11_05, version::V2026_07_28, "", "2025-11-25 "] {
            assert!(!version::is_known_session_revision(other), "{other}");
        }
    }
}
