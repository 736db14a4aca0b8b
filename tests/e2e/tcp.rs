//! The TCP face: HTTP clients on a loopback port, who may come in there, and what one daemon takes from them.

mod access;
mod batches;
mod life;
mod limits;
mod resume;

use std::fs;
use std::net::SocketAddr;

use evermux_testkit::{Harness, HttpClient, HttpReply, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{PATIENCE, with_upstream};

const UP: &str = "/mcp/up";
const PING: &str = r#"{"jsonrpc":"2.0","id":"ping","method":"ping"}"#;

/// A daemon with `[http]` on any port; `more` is TOML behind that table's first line.
fn with_port(more: &str) -> (Harness, Upstream, SocketAddr) {
    let (harness, upstream) = with_upstream(Script::default());
    harness.append_config(&format!("[http]\nlisten = \"127.0.0.1:0\"\n{more}\n"));
    harness.start_daemon();
    let address = address(&harness);
    (harness, upstream, address)
}

#[track_caller]
fn address(harness: &Harness) -> SocketAddr {
    let status = harness.status();
    let address = status["daemon"]["http"].as_str();
    address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("no address in {status:#}"))
}

fn token(harness: &Harness) -> String {
    fs::read_to_string(harness.state_dir().join("http-token")).unwrap()
}

fn bearer(harness: &Harness) -> String {
    format!("Bearer {}", token(harness))
}

fn dial(address: SocketAddr) -> HttpClient {
    let mut http = HttpClient::tcp(address).unwrap();
    http.patience = PATIENCE;
    http
}

fn greeting(version: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{{"name":"http","version":"1"}}}}}}"#
    )
}

/// The messages of an answer, whether it came as JSON or as events.
fn messages(reply: &HttpReply) -> Vec<Value> {
    let text = reply.text();
    if reply.header("content-type").is_some_and(|kind| kind.starts_with("application/json")) {
        return vec![serde_json::from_str(&text).unwrap()];
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    data.filter(|data| !data.is_empty()).map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Requires an error body with this status.
#[track_caller]
fn check_refused(reply: &HttpReply, status: u16, says: &str) {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"), "{}", reply.text());
    let body: Value = serde_json::from_str(&reply.text()).unwrap();
    assert_eq!((&body["jsonrpc"], &body["id"]), (&json!("2.0"), &Value::Null), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains(says), "`{says}` is not in {body}");
}

/// An HTTP client with a link.
struct HttpLink {
    http: HttpClient,
    bearer: String,
    id: String,
    next: u64,
}

impl HttpLink {
    #[track_caller]
    fn greeted(harness: &Harness, address: SocketAddr) -> Self {
        Self::greeted_as(harness, address, "2025-11-25")
    }

    #[track_caller]
    fn greeted_as(harness: &Harness, address: SocketAddr, version: &str) -> Self {
        let (mut http, bearer) = (dial(address), bearer(harness));
        let reply = http.post_mcp(UP, &[("authorization", &bearer)], &greeting(version)).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let answer = messages(&reply);
        assert_eq!(answer.last().unwrap()["result"]["protocolVersion"], version, "{answer:?}");
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        let mut link = Self { http, bearer, id, next: 1 };
        let reply = link.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert_eq!((reply.status, reply.text().as_str()), (202, ""));
        link
    }

    fn headers(&self) -> [(&str, &str); 2] {
        [("authorization", &self.bearer), ("mcp-session-id", &self.id)]
    }

    #[track_caller]
    fn post(&mut self, body: &str) -> HttpReply {
        let (bearer, id) = (self.bearer.clone(), self.id.clone());
        self.http.post_mcp(UP, &[("authorization", &bearer), ("mcp-session-id", &id)], body).unwrap()
    }

    /// The answer to a request.
    #[track_caller]
    fn request(&mut self, method: &str, params: &str) -> Value {
        let id = self.next;
        self.next += 1;
        let reply =
            self.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let answer = messages(&reply).into_iter().find(|message| message["id"] == id);
        answer.unwrap_or_else(|| panic!("no answer to {id}: {}", reply.text()))
    }

    #[track_caller]
    fn count(&mut self) -> u64 {
        let answer = self.request("tools/call", r#"{"name":"counter"}"#);
        answer["result"]["structuredContent"]["count"]
            .as_u64()
            .unwrap_or_else(|| panic!("no count: {answer}"))
    }
}

#[track_caller]
fn count(shim: &mut ShimClient) -> u64 {
    shim.call("counter", "{}").structured()["count"].as_u64().unwrap()
}

#[track_caller]
fn shim(harness: &Harness) -> ShimClient {
    let mut shim = harness.connect("up");
    assert_eq!(shim.initialize("2025-11-25").error(), None);
    shim
}

#[test]
fn http_clients_and_shims_share_one_session() {
    let (harness, upstream, address) = with_port("");
    let mut shim = shim(&harness);
    assert_eq!(count(&mut shim), 1);
    let mut one = HttpLink::greeted(&harness, address);
    let mut two = HttpLink::greeted_as(&harness, address, "2025-03-26");
    assert_eq!((one.count(), two.count(), count(&mut shim), one.count()), (2, 3, 4, 5));
    let list = one.request("tools/list", "{}");
    let named =
        |name: &str| list["result"]["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == name);
    assert!(named("counter") && named("echo"), "{list}");
    assert_eq!(upstream.initializes(), 1);
    let status = harness.status();
    assert_eq!(status["sessions"][0]["links"], 3, "{status:#}");
    upstream.assert_no_violations();
}

/// News goes to HTTP clients as to others.
#[test]
fn a_get_stream_over_tcp_hears_news() {
    let (harness, upstream, address) = with_port("");
    let link = HttpLink::greeted(&harness, address);
    let mut listener = dial(address);
    let mut stream = listener.open_stream(UP, &link.headers()).unwrap();
    assert_eq!((stream.status, stream.header("content-type")), (200, Some("text/event-stream")));
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    upstream.notify(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    let heard = std::iter::from_fn(|| listener.next_event(&mut stream).unwrap());
    let mut heard = heard.filter(|event| !event.data.is_empty());
    assert!(heard.next().unwrap().data.contains("list_changed"));
    upstream.assert_no_violations();
}

/// An end of a link is no end of the session.
#[test]
fn delete_ends_the_link_alone() {
    let (harness, upstream, address) = with_port("");
    let mut shim = shim(&harness);
    let mut one = HttpLink::greeted(&harness, address);
    let mut two = HttpLink::greeted(&harness, address);
    assert_eq!((one.count(), two.count()), (1, 2));
    let headers: Vec<(String, String)> =
        two.headers().iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let reply = two.http.exchange("DELETE", UP, &headers, "").unwrap();
    assert!((200..300).contains(&reply.status), "{}", reply.status);
    assert_eq!(two.post(PING).status, 404);
    assert_eq!((one.count(), count(&mut shim)), (3, 4));
    assert_eq!((upstream.deletes(), upstream.initializes()), (0, 1));
    upstream.assert_no_violations();
}
