//! Who may come in: the path, the bearer token, and the session a request belongs to.

use super::SessionIds;
use super::faults::Canned;
use super::server::Received;
use super::state::State;

/// The answer to a request that may not come in at all.
pub(super) fn refusal(state: &State, received: &Received) -> Option<Canned> {
    if !state.script.resources.iter().any(|path| path == received.path()) {
        return Some(Canned::text(404, "Not Found"));
    }
    let first = state.script.bearer.as_ref()?;
    let good = |token: &String| received.entry.sent_bearer(token);
    if good(first) || state.script.other_bearers.iter().any(good) {
        return None;
    }
    let challenge = "Bearer error=\"invalid_token\"";
    Some(Canned::rpc(401, -32001, "Unauthorized").with("www-authenticate", challenge))
}

/// The session a request belongs to, or the answer it gets because it has none.
pub(super) fn session_of(state: &mut State, received: &Received) -> Result<String, Canned> {
    let id = match &received.entry.session {
        Some(id) => id.clone(),
        None if state.script.session_ids == SessionIds::None => String::new(),
        None => return Err(Canned::rpc(400, -32000, "Bad Request: Mcp-Session-Id header is required")),
    };
    let Some(session) = state.sessions.get(&id) else { return Err(state.script.lost.answer()) };
    if state.script.bind_to_bearer && session.kept.owner != received.entry.auth {
        return Err(Canned::rpc(403, -32003, "Session belongs to another principal"));
    }
    if session.kept.path != received.path() {
        return Err(Canned::rpc(403, -32003, "Session belongs to another resource"));
    }
    state.touch(&id);
    match &received.entry.protocol_version {
        Some(version) if !state.script.versions.contains(version) => {
            let supported = state.script.versions.join(", ");
            let message =
                format!("Bad Request: Unsupported protocol version (supported versions: {supported})");
            Err(Canned::rpc(400, -32000, &message))
        }
        _ => Ok(id),
    }
}
