//! Tools that changed while no daemon ran: clients hear of it, and no approval is passed on before its client has
//! looked. The upstream's journal and its count of side effects are the witnesses.

use evermux_testkit::{Engine, ExecIds, Harness, Script, ShimClient, Upstream};
use serde_json::{Value, json};

use crate::support::{PATIENCE, while_down, with_settings};

const EXECUTOR: &str = "\n[[upstream.up.handle]]\npreset = \"executor\"";

struct Scene {
    harness: Harness,
    upstream: Upstream,
    client: ShimClient,
    execution: String,
}

/// A client that has listed the tools and left an approval open; then the daemon is killed, and something happens.
fn killed_in_a_pause(meanwhile: impl Fn(&Upstream)) -> Scene {
    let script = Script { engine: Some(Engine::PerSession), exec_ids: ExecIds::Uuid, ..Script::default() };
    let (harness, upstream) = with_settings(script, EXECUTOR);
    let mut client = harness.connect("up");
    client.initialize("2025-11-25");
    list(&mut client);
    let paused = client.call("execute", r#"{"code":"transfer"}"#).structured();
    let execution = paused["executionId"].as_str().unwrap().to_owned();
    while_down(&harness, &client, || meanwhile(&upstream));
    Scene { harness, upstream, client, execution }
}

#[track_caller]
fn list(client: &mut ShimClient) {
    let list = client.request("tools/list", "{}");
    assert_eq!(client.wait(&list, PATIENCE).error(), None);
}

impl Scene {
    /// The upstream's status, or the kind of an error of evermux's own.
    fn accept(&mut self) -> String {
        let arguments = format!(r#"{{"executionId":"{}","action":"accept"}}"#, self.execution);
        let answer = self.client.call("resume", &arguments);
        let status = || answer.structured()["status"].as_str().unwrap_or("none").to_owned();
        answer.evermux_kind().unwrap_or_else(status)
    }

    fn required(&self) -> Value {
        let session = self.harness.status()["sessions"][0].clone();
        assert_eq!(session["status"], "resumed", "{session}");
        session["revalidation_required"].clone()
    }

    #[track_caller]
    fn end(mut self, effects: u64) {
        assert_eq!(self.upstream.side_effects("transfer"), effects);
        assert_eq!((self.upstream.initializes(), self.upstream.deletes()), (1, 0));
        self.upstream.assert_no_violations();
        assert_eq!(self.client.close(PATIENCE), Some(0));
    }
}

#[test]
fn an_approval_of_a_changed_tool_waits_until_its_client_has_looked() {
    let mut scene = killed_in_a_pause(|upstream| upstream.redefine_tool("resume"));
    assert_eq!(scene.accept(), "revalidation_required");
    assert_eq!(scene.required(), json!(["tools"]));
    scene.client.wait_notification(PATIENCE, |told| told.method() == "notifications/tools/list_changed");
    crate::takeover::upgraded(&scene.harness);
    assert_eq!(scene.accept(), "revalidation_required", "a newer process knows it, too");
    assert_eq!(scene.upstream.count(|entry| entry.calls("resume")), 0);
    list(&mut scene.client);
    assert_eq!(scene.required(), json!([]));
    assert_eq!(scene.accept(), "completed");
    scene.end(1);
}

#[test]
fn a_tool_more_is_told_and_holds_nothing_back() {
    let mut scene = killed_in_a_pause(|upstream| upstream.add_tool("more"));
    assert_eq!(scene.accept(), "completed");
    assert_eq!(scene.required(), json!(["tools"]));
    scene.client.wait_notification(PATIENCE, |told| told.method() == "notifications/tools/list_changed");
    scene.end(1);
}

#[test]
fn the_same_tools_are_no_news() {
    let mut scene = killed_in_a_pause(|_| {});
    assert_eq!(scene.accept(), "completed");
    assert_eq!(scene.required(), json!([]));
    assert_eq!(scene.upstream.count(|entry| entry.is("ping")), 0, "the list stands for it");
    scene.end(1);
}
