//! From the binary of the commit that landed before to this one, and back. Where either cannot hand over or take over, it
//! says so and nothing changes; then a stop and a start carry the session across. Calls that are under way meanwhile end in the
//! process where they began, and the other build is told.

use std::path::PathBuf;

use evermux_testkit::{Answer, Harness, Pending, Script, ShimClient, Upstream};
use serde_json::{Value, json};

use super::serving;
use crate::support::{PATIENCE, binary, check_processes, with_upstream};

/// The former binary; CI builds it and sets this (`tests/skew/previous`).
const PREVIOUS: &str = "EVERMUX_PREVIOUS";

fn previous() -> Option<PathBuf> {
    let path = std::env::var_os(PREVIOUS).map(PathBuf::from);
    if path.is_none() {
        eprintln!("left out: {PREVIOUS} names no binary of a former commit (see .ci/run)");
    }
    path
}

struct Scene {
    harness: Harness,
    upstream: Upstream,
    client: ShimClient,
    calls: u64,
}

/// Calls that end in the process that drains.
struct Held {
    gate: String,
    call: Pending,
    asking: Pending,
    ask: Answer,
}

impl Scene {
    #[track_caller]
    fn works(&mut self, what: &str) {
        self.calls += 1;
        let answer = self.client.call("counter", "{}");
        assert_eq!(answer.structured()["count"].as_u64(), Some(self.calls), "{what}: {}", answer.raw);
        assert_eq!((self.upstream.initializes(), self.upstream.deletes()), (1, 0), "{what}");
    }

    /// One call that waits at a gate, and one whose question waits for its answer.
    fn hold(&mut self) -> Held {
        let gate = format!("after {}", self.calls);
        let call = self.client.start_call("gate", &json!({"name": gate}).to_string());
        self.upstream.wait_at_gate(&gate, 1, PATIENCE);
        let form = json!({"message": gate, "requestedSchema": {"type": "object", "properties": {}}});
        let asking = self.client.start_call("ask", &json!({"params": form}).to_string());
        let ask = self.client.wait_ask(PATIENCE, |ask| ask.raw.contains(&format!("\"{gate}\"")));
        Held { gate, call, asking, ask }
    }

    /// How many calls each process that drains has left, as the active one knows it.
    #[track_caller]
    fn wait_left(&self, old: (u32, u64), left: Option<u64>) {
        let (pid, generation) = old;
        let listed = left.map(|left| json!({"pid": pid, "generation": generation, "in_flight": left}));
        let listed: Vec<Value> = listed.into_iter().collect();
        let is_it = |status: &Value| (status["daemon"]["draining"] == json!(listed)).then_some(());
        self.harness.wait_status(PATIENCE, is_it);
    }

    /// They end in the former process, and the present one hears so line by line: of the first end while that one lives.
    fn end(&mut self, held: &Held, old: (u32, u64), what: &str) {
        self.wait_left(old, Some(2));
        self.client.respond(&held.ask, r#"{"action":"accept","content":{}}"#);
        let answer = self.client.wait(&held.asking, PATIENCE);
        assert_eq!(answer.structured()["result"]["action"], "accept", "{what}: {}", answer.raw);
        self.wait_left(old, Some(1));
        self.upstream.open_gate(&held.gate);
        let answer = self.client.wait(&held.call, PATIENCE);
        assert!(answer.raw.contains("passed"), "{what}: {}", answer.raw);
        self.harness.wait_gone(old.0, PATIENCE);
        self.wait_left(old, None);
    }

    /// `new` takes over from what runs, or is refused and changes nothing; then it is started after a stop.
    fn replace(&mut self, new: &std::path::Path, able: bool) {
        let before = serving(&self.harness);
        let held = able.then(|| self.hold());
        let command = self.harness.command_of(new, &["upgrade", "--force"]);
        let output = self.harness.finish(command, PATIENCE * 3);
        let what = format!("{}: {}{}", new.display(), output.stdout, output.stderr);
        self.works(&what);
        if let Some(held) = held {
            assert_eq!(output.code, Some(0), "{what}");
            assert!(serving(&self.harness).1 > before.1, "{what}");
            self.end(&held, before, &what);
            self.works(&what);
            return;
        }
        assert_ne!(output.code, Some(0), "{what}");
        assert_eq!(serving(&self.harness), before, "{what}");
        let _ = self.harness.run(&["stop"]).success();
        self.harness.wait_gone(before.0, PATIENCE);
        self.harness.start_daemon_of(new, &[]);
        self.works(&what);
    }
}

#[test]
fn the_former_binary_and_this_one_follow_each_other() {
    let Some(previous) = previous() else { return };
    let (harness, upstream) = with_upstream(Script::default());
    // What a binary can do it says itself.
    let says = harness.finish(harness.command_of(&previous, &["--help"]), PATIENCE).success();
    let able = says.stdout.contains("upgrade");
    harness.start_daemon_of(&previous, &[]);
    let mut client = harness.connect("up");
    let hello = r#"{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"skew","version":"1"}}"#;
    assert!(client.initialize_with(hello).error().is_none());
    let mut scene = Scene { harness, upstream, client, calls: 0 };
    scene.works("at the beginning");
    scene.replace(binary(), able);
    scene.replace(&previous, able);
    scene.replace(binary(), able);
    scene.upstream.assert_no_violations();
    assert_eq!(scene.client.close(PATIENCE), Some(0));
    check_processes(&scene.harness, |pids| pids.len() == 1, "one daemon");
}
