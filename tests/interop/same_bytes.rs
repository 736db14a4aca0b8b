//! Byte for byte: what a server answers is what comes out of `evermux connect`, in key order, spelling of numbers and escapes.
//!
//! The same series of requests goes to a fresh server directly, raw over HTTP, and to the same server started anew through evermux. So
//! whatever the server counts agrees on both sides. No SDK is in between, which would parse and write anew.

use std::collections::BTreeSet;
use std::fmt;

use evermux_testkit::{Environment, HttpClient, ShimClient};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::peers::{NAME, PATIENCE, World};
use crate::traffic::{REVISION, check_traffic};

/// One way to the server.
trait Way {
    /// The raw result, or the raw error.
    fn ask(&mut self, method: &str, params: &str) -> String;
}

/// A session of our own with the server.
struct Direct {
    http: HttpClient,
    session: String,
    n_ids: u64,
    initialized: String,
}

#[derive(Deserialize)]
struct Answer<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Direct {
    fn connect(world: &World) -> Self {
        let (session, initialized) = (String::new(), String::new());
        let mut direct = Self { http: world.direct(), session, n_ids: 0, initialized };
        direct.initialized = direct.ask("initialize", &handshake());
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let reply = direct.post(notification);
        assert_eq!(reply.0, 202, "{}", reply.1);
        direct
    }

    /// The status, and the body as text.
    fn post(&mut self, message: &str) -> (u16, String) {
        let mut headers = vec![("mcp-protocol-version", REVISION), ("mcp-session-id", &self.session)];
        if self.session.is_empty() {
            headers.clear();
        }
        let reply = self.http.post_mcp("/mcp", &headers, message).expect("the server answers");
        if let Some(session) = reply.header("mcp-session-id") {
            session.clone_into(&mut self.session);
        }
        (reply.status, reply.text())
    }
}

impl Way for Direct {
    fn ask(&mut self, method: &str, params: &str) -> String {
        self.n_ids += 1;
        let id = self.n_ids;
        let (status, body) =
            self.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#));
        assert_eq!(status, 200, "{method}: {body}");
        let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
        let messages = data.filter_map(|data| serde_json::from_str::<Answer<'_>>(data).ok());
        let answer = messages.into_iter().find(|answer| answer.id == Some(id));
        let raw = answer.and_then(|answer| answer.result.or(answer.error));
        raw.unwrap_or_else(|| panic!("no answer to {method} in {body}")).get().to_owned()
    }
}

impl Way for ShimClient {
    fn ask(&mut self, method: &str, params: &str) -> String {
        let pending = self.request(method, params);
        let answer = self.wait(&pending, PATIENCE).raw;
        let answer: Answer<'_> = serde_json::from_str(&answer).expect("an answer");
        answer.result.or(answer.error).expect("an outcome").get().to_owned()
    }
}

fn handshake() -> String {
    let info = json!({"name": "same-bytes", "version": "1"});
    json!({"protocolVersion": REVISION, "capabilities": {}, "clientInfo": info}).to_string()
}

/// A JSON object's members, raw and in their order.
struct Members(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    members.push((name, value.get().to_owned()));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The members of an object, without those named.
fn members(raw: &str, without: &[&str]) -> Vec<(String, String)> {
    let Members(all) = serde_json::from_str(raw).expect("an object");
    all.into_iter().filter(|(name, _)| !without.contains(&name.as_str())).collect()
}

/// What an InitializeResult must keep: everything but the version and `_meta`, which are evermux's, and the capability `tasks`, which
/// evermux may hide.
fn kept(initialized: &str) -> Vec<(String, String)> {
    let mut kept = members(initialized, &["protocolVersion", "_meta"]);
    for (name, raw) in &mut kept {
        if name == "capabilities" {
            *raw = format!("{:?}", members(raw, &["tasks"]));
        }
    }
    kept
}

/// Arguments for a tool; `None` for one whose answer cannot be the same twice, or that asks the client something.
fn arguments(fixture: Fixture, tool: &str) -> Option<Vec<Value>> {
    let none = json!({});
    let text = "\u{2028} \u{1f980} \"q\" \\ \n \u{1} é";
    Some(match (fixture.is_ours(), tool) {
        (_, "echo") => vec![json!({"message": text}), json!({"message": 5}), none],
        (true, "slow") => vec![json!({"key": text, "steps": 1}), json!({"key": "k", "steps": "many"})],
        (true, "runs_of") => vec![json!({"key": text}), json!({"key": "never"})],
        (true, "odd" | "fail") => vec![none],
        (true, "touch") => vec![json!({"uri": "note://1"})],
        (true, "grow") => vec![json!({"name": "grown"})],
        (true, "log") => vec![json!({"level": "info", "message": text})],
        (true, "ask" | "sample") => return None,
        (false, "get-sum") => {
            vec![json!({"a": 1e-7, "b": 1e21}), json!({"a": 0.1, "b": 0.2}), json!({"a": "1"})]
        }
        (false, "get-annotated-message") => ["error", "success", "debug"]
            .map(|kind| json!({"messageType": kind, "includeImage": true}))
            .into(),
        (false, "get-structured-content") => {
            ["New York", "Chicago", "Ulm"].map(|place| json!({"location": place})).into()
        }
        (false, "get-env" | "get-tiny-image") => vec![none],
        (false, "get-resource-links") => vec![json!({"count": 4})],
        (false, "gzip-file-as-resource") => ["resource", "resourceLink"]
            .map(|kind| json!({"name": "a.gz", "data": "data:text/plain,aaaa", "outputType": kind}))
            .into(),
        (false, "trigger-long-running-operation") => vec![json!({"duration": 0.2, "steps": 2})],
        (false, "toggle-simulated-logging" | "toggle-subscriber-updates") => vec![none.clone(), none],
        // Has the time in it: one of the pairs below.
        (false, "get-resource-reference") => vec![],
        // Runs as a task only.
        (false, "simulate-research-query") => vec![json!({"topic": "bytes"})],
        (_, other) => panic!("{other} is not covered"),
    })
}

/// Requests whose answers name the second in which they were made.
fn timed(fixture: Fixture) -> Vec<(&'static str, Value)> {
    if fixture.is_ours() {
        return Vec::new();
    }
    let resource = json!({"resourceType": "Blob", "resourceId": 2});
    vec![
        ("resources/read", json!({"uri": "demo://resource/dynamic/text/1"})),
        ("resources/read", json!({"uri": "demo://resource/dynamic/blob/1"})),
        (
            "prompts/get",
            json!({"name": "resource-prompt", "arguments": {"resourceType": "Text", "resourceId": "1"}}),
        ),
        ("tools/call", json!({"name": "get-resource-reference", "arguments": resource})),
    ]
}

/// Each request and its raw outcome, over everything that the server lists.
#[derive(Default)]
struct Series {
    done: Vec<(String, String)>,
    used: BTreeSet<String>,
}

impl Series {
    fn ask(&mut self, way: &mut dyn Way, method: &str, params: &Value) -> Value {
        let raw = way.ask(method, &params.to_string());
        self.done.push((format!("{method} {params}"), raw.clone()));
        self.used.insert(method.to_owned());
        serde_json::from_str(&raw).expect("an outcome is JSON")
    }

    /// All pages of a list.
    fn list(&mut self, way: &mut dyn Way, method: &str, member: &str) -> Vec<Value> {
        let (mut all, mut params) = (Vec::new(), json!({}));
        loop {
            let page = self.ask(way, method, &params);
            all.extend(page[member].as_array().cloned().unwrap_or_default());
            match page.get("nextCursor") {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => break,
            }
        }
        assert!(!all.is_empty(), "nothing listed: {:?}", self.done.last());
        all
    }

    fn run(way: &mut dyn Way, fixture: Fixture) -> Self {
        let mut series = Self::default();
        for tool in series.list(way, "tools/list", "tools") {
            let name = tool["name"].as_str().unwrap_or_default();
            for arguments in arguments(fixture, name).unwrap_or_default() {
                series.ask(way, "tools/call", &json!({"name": name, "arguments": arguments}));
            }
        }
        series.ask(way, "tools/call", &json!({"name": "no-such-tool", "arguments": {}}));
        series.list(way, "tools/list", "tools");
        for resource in series.list(way, "resources/list", "resources") {
            series.ask(way, "resources/read", &json!({"uri": resource["uri"]}));
        }
        series.ask(way, "resources/read", &json!({"uri": "note://none"}));
        series.list(way, "resources/templates/list", "resourceTemplates");
        for prompt in series.list(way, "prompts/list", "prompts") {
            if prompt["name"] != "resource-prompt" {
                let arguments =
                    json!({"city": "\u{2028} \u{1f980} \\", "department": "Sales", "name": "Eve"});
                series.ask(way, "prompts/get", &json!({"name": prompt["name"], "arguments": arguments}));
            }
        }
        series.ask(way, "prompts/get", &json!({"name": "no-such-prompt"}));
        for (prompt, argument, value) in [
            ("greet", "city", "U"),
            ("greet", "city", "none"),
            ("completable-prompt", "department", "S"),
            ("completable-prompt", "name", ""),
        ] {
            if (prompt == "greet") == fixture.is_ours() {
                let reference = json!({"type": "ref/prompt", "name": prompt});
                let argument = json!({"name": argument, "value": value});
                series.ask(way, "completion/complete", &json!({"ref": reference, "argument": argument}));
            }
        }
        for uri in ["note://1", "note://2"] {
            series.ask(way, "resources/subscribe", &json!({"uri": uri}));
        }
        series.ask(way, "resources/unsubscribe", &json!({"uri": "note://1"}));
        series.ask(way, "logging/setLevel", &json!({"level": "warning"}));
        series.ask(way, "ping", &json!({}));
        series.ask(way, "no/such/method", &json!({}));
        series
    }
}

fn same_bytes(fixture: Fixture) {
    let Some(mut world) = World::start(fixture, &[], Environment::Explicit) else { return };
    let mut direct = Direct::connect(&world);
    let expected = Series::run(&mut direct, fixture);

    world.restart_server();
    let mut through = world.harness.connect(NAME);
    let initialized = through.initialize_with(&handshake()).result().to_owned();
    assert_eq!(kept(&initialized), kept(&direct.initialized), "InitializeResult");
    let came = Series::run(&mut through, fixture);
    let session = world.recorder.journal().iter().find_map(|seen| seen.reply_session.clone()).unwrap();
    assert!(expected.used.len() > 10 && expected.done.len() > 20, "{:?}", expected.used);
    for ((request, expected), (same_request, came)) in expected.done.iter().zip(&came.done) {
        // The one thing that has to differ: two tools name the session.
        let (expected, came) = (expected.replace(&direct.session, "S"), came.replace(&session, "S"));
        assert_eq!((same_request, &came), (request, &expected));
    }
    assert_eq!(came.done.len(), expected.done.len());

    // A pair that saw a second end in between is done again.
    let mut again = Direct::connect(&world);
    for (method, params) in timed(fixture) {
        let params = params.to_string();
        let mut pair = || [again.ask(method, &params), through.ask(method, &params)];
        let mut last = pair();
        for _ in 0..4 {
            if last[0] != last[1] {
                last = pair();
            }
        }
        assert_eq!(last[0], last[1], "{method} {params}");
    }
    assert_eq!(through.close(PATIENCE), Some(0));
    check_traffic(&world.recorder, 1);
}

#[test]
fn everything_of_server_everything_comes_byte_for_byte() {
    same_bytes(Fixture::Everything);
}

#[test]
fn everything_of_a_python_server_comes_byte_for_byte() {
    same_bytes(Fixture::PythonEvents);
}

#[test]
fn everything_of_a_rust_server_comes_byte_for_byte() {
    same_bytes(Fixture::Rust);
}
