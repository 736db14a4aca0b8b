//! The session-less revision 2026-07-28: every request says for itself who asks, in which revision, and with which capabilities.
//!
//! A request runs in a session of its own that ends with its response, so the tools need not know the difference. Where the response
//! stream is closed early, the session goes, and with it the work: here, and only here, a disconnect is a cancel.

use std::sync::Arc;

use http::Method;
use http::header::{CONTENT_TYPE, HeaderValue};

use super::faults::Canned;
use super::rpc::{self, Params, RpcError, SERVER_INFO, Site, answer, capabilities};
use super::server::{Received, Reply, canned};
use super::state::{Kept, Session, Shared, State};
use super::{Era, Script, input, listen};

/// The revision this module speaks.
pub(super) const VERSION: &str = "2026-07-28";

/// Every request method of the revision.
const METHODS: [&str; 10] = [
    "server/discover",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "subscriptions/listen",
];

/// Methods whose results say how long they may be kept.
const CACHEABLE: [&str; 6] = [
    "server/discover",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
];

/// What is special about a request of this revision.
#[derive(Debug)]
pub(super) struct Visit {
    cacheable: bool,
    /// Set while it is a `subscriptions/listen`.
    pub(super) listening: Option<listen::Listening>,
}

impl Visit {
    /// A result with what this revision puts into every one.
    pub(super) fn complete(&self, result: &str) -> String {
        let kind = if input::is_input_required(result) { "" } else { r#""resultType":"complete","# };
        let cache = if self.cacheable { r#""ttlMs":0,"cacheScope":"private","# } else { "" };
        let rest = result.trim_start().strip_prefix('{').unwrap_or_default();
        let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
        format!(
            r#"{{{kind}{cache}"_meta":{{"io.modelcontextprotocol/serverInfo":{SERVER_INFO}}}{comma}{rest}"#
        )
    }
}

/// Whether a request is for the session-less side.
pub(super) fn is_modern(era: Era, received: &Received) -> bool {
    match era {
        Era::Legacy => false,
        Era::Modern => true,
        Era::Dual => {
            let params = received.message.params();
            received.verb == Method::POST
                && (received.entry.protocol_version.as_deref() == Some(VERSION)
                    || received.entry.is("server/discover")
                    || params.meta.is_some_and(|meta| meta.protocol_version.is_some()))
        }
    }
}

/// Answers one request.
pub(super) async fn serve(shared: &Arc<Shared>, received: &Received) -> Reply {
    if received.verb != Method::POST {
        return canned(Canned::text(405, "Method Not Allowed").with("allow", "POST"));
    }
    if received.entry.violations.contains(&super::Violation::Accept) {
        return canned(Canned::rpc(406, -32000, "Not Acceptable: both kinds of answer have to be accepted"));
    }
    let message = &received.message;
    let (method, id) = match (message.method.as_deref(), &message.id) {
        (Some(method), Some(id)) => (method, id),
        (Some(_), None) => return canned(Canned::empty(202)),
        (None, Some(_)) => return canned(Canned::rpc(400, -32600, "Invalid Request: answers are not taken")),
        (None, None) => return canned(Canned::rpc(400, -32700, "Parse error")),
    };
    let params = message.params();
    if let Err((status, error)) = check(received, method, &params) {
        let body = answer(id, Err(error));
        let reply = Canned { status, headers: Vec::new(), body };
        return canned(reply.with("content-type", "application/json"));
    }
    let site = shared.update(|state| open_visit(state, received, (method, id), &params));
    let visiting = Visiting { shared, session: &site.session };
    match method {
        "server/discover" => {
            let result = shared.read(|state| discovered(&state.script));
            site.finish(shared, Ok(result));
        }
        "subscriptions/listen" => {
            shared.update(|state| listen::start(state, &site, params.notifications));
            visiting.goes_on();
            return listen::deliver(shared, received, &site);
        }
        _ => rpc::run(shared, received, method, &site),
    }
    let reply = rpc::deliver(shared, received, &site).await;
    if reply.headers().get(CONTENT_TYPE) == Some(&HeaderValue::from_static("text/event-stream")) {
        visiting.goes_on();
    }
    reply
}

/// Ends the visit if the client leaves while it waits for a JSON answer; a stream ends it by itself.
struct Visiting<'a> {
    shared: &'a Shared,
    session: &'a str,
}

impl Visiting<'_> {
    fn goes_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for Visiting<'_> {
    fn drop(&mut self) {
        self.shared.update(|state| state.visits.remove(self.session));
    }
}

fn open_visit(
    state: &mut State,
    received: &Received,
    (method, id): (&str, &str),
    params: &Params<'_>,
) -> Site {
    state.n_visits += 1;
    let meta = params.meta.as_ref();
    let capabilities = meta.and_then(|meta| meta.client_capabilities).map_or("{}", |raw| raw.get());
    let mut session = Session::new(Kept {
        version: VERSION.to_owned(),
        initialized: true,
        log_level: meta.and_then(|meta| meta.log_level.as_deref()).map(str::to_owned),
        initialize_params: format!(r#"{{"capabilities":{capabilities}}}"#),
        owner: received.entry.auth.clone(),
        ..Kept::default()
    });
    session.visit = Some(Visit { cacheable: CACHEABLE.contains(&method), listening: None });
    session.running.insert(id.to_owned(), false);
    let stream = session.open_stream();
    // Not a legal session id, so that no header can name it.
    let name = format!("visit {}", state.n_visits);
    state.visits.insert(name.clone(), session);
    Site { session: name, stream, id: id.to_owned() }
}

fn discovered(script: &Script) -> String {
    let instructions = script.instructions.as_ref().map_or_else(String::new, |text| {
        format!(r#","instructions":{}"#, serde_json::Value::from(text.as_str()))
    });
    // Tasks are an extension in this revision, which the fixture does not have.
    let capabilities = capabilities(&Script { tasks: false, ..script.clone() });
    format!(r#"{{"supportedVersions":["{VERSION}"],"capabilities":{capabilities}{instructions}}}"#)
}

/// What is wrong with a request: HTTP status and error.
fn check(received: &Received, method: &str, params: &Params<'_>) -> Result<(), (u16, RpcError)> {
    let unsupported = |requested: &str| {
        let text = format!("Unsupported protocol version; supported: {VERSION}");
        let requested = serde_json::Value::from(requested);
        let data = format!(r#"{{"supported":["{VERSION}"],"requested":{requested}}}"#);
        (400, RpcError::new(-32022, &text).with(data))
    };
    if method == "initialize" {
        return Err(unsupported(params.protocol_version.as_deref().unwrap_or_default()));
    }
    if !METHODS.contains(&method) {
        return Err((404, RpcError::new(-32601, &format!("Method not found: {method}"))));
    }
    let meta = params.meta.as_ref();
    let version = meta.and_then(|meta| meta.protocol_version.as_deref());
    let (Some(version), Some(_)) = (version, meta.and_then(|meta| meta.client_capabilities)) else {
        let text = "Invalid params: _meta needs protocolVersion and clientCapabilities";
        return Err((400, RpcError::new(-32602, text)));
    };
    if version != VERSION {
        return Err(unsupported(version));
    }
    headers_match(received, method, params)?;
    input::check(method, params)
}

/// Headers say the same as the body (2026-07-28, "Standard request headers").
fn headers_match(received: &Received, method: &str, params: &Params<'_>) -> Result<(), (u16, RpcError)> {
    let mismatch = |name: &str| Err((400, RpcError::new(-32020, &format!("Header mismatch: {name}"))));
    if received.header("mcp-protocol-version") != Some(VERSION) {
        return mismatch("MCP-Protocol-Version");
    }
    if received.header("mcp-method") != Some(method) {
        return mismatch("Mcp-Method");
    }
    let name = match method {
        "tools/call" | "prompts/get" => params.name.as_deref(),
        "resources/read" => params.uri.as_deref(),
        _ => return Ok(()),
    };
    let sent = received.header("mcp-name").map(decoded);
    if name.is_none() || sent.as_deref() != name { mismatch("Mcp-Name") } else { Ok(()) }
}

/// A header value, out of its `=?base64?…?=` if it is in one; what cannot be decoded matches nothing.
fn decoded(value: &str) -> String {
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return value.to_owned();
    };
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0_u32, 0_u32);
    for letter in encoded.trim_end_matches('=').bytes() {
        let six = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return String::from("\u{fffd}"),
        };
        bits = (bits << 6 | u32::from(six)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.extend(u8::try_from((bits >> held) & 0xff));
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| String::from("\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn names_come_out_of_base64() {
        assert_eq!(decoded("plain name"), "plain name");
        assert_eq!(decoded("=?base64?Z3LDvMOfZQ==?="), "grüße");
        assert_eq!(decoded("=?base64?YWJj?="), "abc");
        assert_ne!(decoded("=?base64?**?="), "**");
    }
}
