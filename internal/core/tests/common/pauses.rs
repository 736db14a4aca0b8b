//! A model of a server that pauses for an approval and counts its ids anew in every session: the wrong session either
//! does not know an id, or runs something else.

use std::collections::BTreeMap;

use evermux_core::handles::rule::{Condition, HandleRule, Scalar};
use mcp_wire::Message;

use super::World;

/// What the engines of all sessions have.
#[derive(Debug, Default)]
pub struct Pauses {
    /// By session: how many were counted, and which wait.
    engines: BTreeMap<String, (u32, BTreeMap<String, String>)>,
    /// What was approved: session, id, what ran.
    pub approved: Vec<(String, String, String)>,
    /// Said of each pause.
    pub expires: Option<String>,
}

impl Pauses {
    /// The result of a call of one of the two tools.
    pub fn result(&mut self, session: &str, message: &Message) -> Option<String> {
        let params: serde_json::Value = serde_json::from_slice(message.params()?).ok()?;
        let arguments = &params["arguments"];
        let tag = arguments["tag"].as_str()?;
        let engine = self.engines.entry(session.to_owned()).or_default();
        match params["name"].as_str()? {
            "execute" => {
                engine.0 += 1;
                let id = format!("exec_{}", engine.0);
                engine.1.insert(id.clone(), arguments["code"].as_str()?.to_owned());
                let expires =
                    self.expires.as_ref().map_or_else(String::new, |at| format!(r#","expiresAt":"{at}""#));
                Some(result(
                    &format!(r#""waiting_for_interaction","executionId":"{id}"{expires}"#),
                    tag,
                    false,
                ))
            }
            "resume" => {
                let id = arguments["executionId"].as_str()?.to_owned();
                let Some(code) = engine.1.remove(&id) else {
                    return Some(result(
                        &format!(r#""execution_not_found","executionId":"{id}""#),
                        tag,
                        true,
                    ));
                };
                self.approved.push((session.to_owned(), id, code));
                Some(result(r#""completed""#, tag, false))
            }
            _ => None,
        }
    }
}

fn result(status: &str, tag: &str, is_error: bool) -> String {
    format!(
        r#"{{"content":[],"tag":"{tag}","structuredContent":{{"status":{status}}},"isError":{is_error}}}"#
    )
}

/// The rule for such a server.
pub fn executions() -> HandleRule {
    let status = |words: &[&str]| {
        let any_of = words.iter().map(|word| Scalar::Text((*word).to_owned())).collect();
        vec![Condition { pointer: "/structuredContent/status".to_owned(), any_of }]
    };
    HandleRule {
        born_in: ["execute", "resume"].map(str::to_owned).into(),
        born_at: "/structuredContent/executionId".to_owned(),
        born_when: status(&["waiting_for_interaction"]),
        expires_at: Some("/structuredContent/expiresAt".to_owned()),
        ttl: std::time::Duration::from_secs(24 * 3600),
        used_in: ["resume".to_owned()].into(),
        used_at: "/executionId".to_owned(),
        settled_when: Some(status(&["completed", "error", "execution_not_found"])),
    }
}

impl World {
    /// A call that pauses; `code` says what will run.
    pub fn pause(&mut self, client: usize, code: &str) -> u64 {
        let params = format!(
            r#"{{"name":"execute","arguments":{{"tag":"{}","code":"{code}"}}}}"#,
            self.new_tag(client)
        );
        self.ask(client, "tools/call", &params)
    }

    /// An approval of it.
    pub fn resume(&mut self, client: usize, id: &str) -> u64 {
        let params = format!(
            r#"{{"name":"resume","arguments":{{"tag":"{}","executionId":"{id}"}}}}"#,
            self.new_tag(client)
        );
        self.ask(client, "tools/call", &params)
    }

    fn new_tag(&mut self, client: usize) -> String {
        self.clients[client].tag(client)
    }

    /// The status in a result, or the kind of an error of evermux's own.
    pub fn status_of(&self, client: usize, seq: u64) -> String {
        let value: serde_json::Value = serde_json::from_str(&self.text(client, seq)).expect("JSON");
        let status = value["result"]["structuredContent"]["status"].as_str().map(str::to_owned);
        status.unwrap_or_else(|| self.outcome(client, seq))
    }

    /// What was approved: session and what ran.
    pub fn approved(&self) -> Vec<(&str, &str)> {
        let all = self.upstream.pauses.approved.iter();
        all.map(|(session, _, code)| (session.as_str(), code.as_str())).collect()
    }
}
