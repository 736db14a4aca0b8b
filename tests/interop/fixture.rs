//! The servers upstream, and what their tools, resources and prompts are called: server-everything has names of its own, the Python and
//! the Rust server have the same ones.

use serde_json::{Value, json};

use crate::peers::Sdk;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixture {
    /// The npm package `server-everything`. Its event store replays the events of *every* stream behind a cursor.
    Everything,
    /// The Python server without event ids: nothing of a cut stream can be had again.
    Python,
    /// The Python server with an event store.
    PythonEvents,
    /// The Rust server, which keeps the events of each stream.
    Rust,
}

/// A call as a client makes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) tool: &'static str,
    pub(crate) arguments: Value,
}

/// A call that takes its time, with progress on the way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Long {
    pub(crate) call: Call,
    pub(crate) steps: u32,
    /// The text of its result.
    pub(crate) text: String,
}

impl Fixture {
    /// What it is made with.
    pub(crate) fn sdk(self) -> Sdk {
        match self {
            Self::Everything => Sdk::TypeScript,
            Self::Python | Self::PythonEvents => Sdk::Python,
            Self::Rust => Sdk::Rust,
        }
    }

    /// Its name in the handshake.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Everything => "mcp-servers/everything",
            Self::Python | Self::PythonEvents => "interop-python",
            Self::Rust => "interop-rmcp",
        }
    }

    /// Whether its lists have pages, and its tools do what the tests say.
    pub(crate) fn is_ours(self) -> bool {
        self != Self::Everything
    }

    /// A long call of so many quarters of a second, different from those of other `key`s.
    pub(crate) fn long(self, key: u32, steps: u32) -> Long {
        if self.is_ours() {
            let arguments = json!({"key": format!("{key}/{steps}"), "steps": steps});
            let text = format!("slow {key}/{steps} done");
            return Long { call: Call { tool: "slow", arguments }, steps, text };
        }
        let duration = f64::from(steps) / 4.0 + f64::from(key) / 100.0;
        let text = format!("Long running operation completed. Duration: {duration} seconds, Steps: {steps}.");
        let arguments = json!({"duration": duration, "steps": steps});
        Long { call: Call { tool: "trigger-long-running-operation", arguments }, steps, text }
    }

    /// A prompt with an argument, and what its text then has.
    pub(crate) fn prompt(self) -> (Value, &'static str) {
        let name = if self.is_ours() { "greet" } else { "args-prompt" };
        (json!({"name": name, "arguments": {"city": "Ulm"}}), "Ulm")
    }

    /// A completion of a prompt's argument, and its values.
    pub(crate) fn completion(self) -> (Value, Value) {
        if self.is_ours() {
            let step = json!({"prompt": "greet", "argument": "city", "value": "U"});
            return (step, json!(["Ulm", "Utrecht", "Uppsala"]));
        }
        let step = json!({"prompt": "completable-prompt", "argument": "department", "value": "S"});
        (step, json!(["Sales", "Support"]))
    }

    /// A call whose tool asks the user something: the question, if the server lets it be chosen.
    pub(crate) fn ask(self, question: &str) -> Call {
        if self.is_ours() {
            return Call { tool: "ask", arguments: json!({"question": question}) };
        }
        Call { tool: "trigger-elicitation-request", arguments: json!({}) }
    }

    /// A user's answer to that.
    pub(crate) fn accept(self, word: &str) -> Value {
        let member = if self.is_ours() { "word" } else { "name" };
        json!({"action": "accept", "content": {member: word}})
    }

    /// A call whose tool asks the client's model.
    pub(crate) fn sample(self, prompt: &str) -> Call {
        let tool = if self.is_ours() { "sample" } else { "trigger-sampling-request" };
        Call { tool, arguments: json!({"prompt": prompt}) }
    }

    /// Three resources to subscribe to.
    pub(crate) fn resources(self) -> [&'static str; 3] {
        if self.is_ours() {
            return ["note://1", "note://2", "note://3"];
        }
        [
            "demo://resource/static/document/architecture.md",
            "demo://resource/static/document/features.md",
            "demo://resource/static/document/startup.md",
        ]
    }
}
