//! Carries out the steps of a case on a real daemon, real shims and a scripted upstream.
//!
//! Clients never start a daemon here: when one runs is for the case to say, and a record can be changed meanwhile.

use std::collections::BTreeMap;
use std::process::Stdio;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{
    Answer, Engine, ExecIds, Harness, LostAs, Pending, Replies, Script, ShimClient, Upstream,
};
use serde_json::Value;

use super::form::{Answers, Case, Facts, Fixture, Keep, Pauses, Step, Subset, Told};
use super::judge::{self, Names, Wanted};
use super::{edits, witness};
use crate::support::{PATIENCE, binary};

const VERSION: &str = "2025-11-25";
/// The exit code of a daemon that finds another.
const ANOTHER_RUNS: i32 = 1;

/// What the multiplexer is configured with.
#[derive(Debug, Clone)]
struct Config {
    credential: String,
    header: String,
    path: String,
}

struct World {
    fixture: Fixture,
    config: Config,
    names: Names,
    marks: BTreeMap<String, usize>,
    copy: Option<String>,
    /// By name, with whose it is.
    calls: BTreeMap<String, (String, Pending)>,
    clients: BTreeMap<String, ShimClient>,
    harness: Harness,
    upstream: Upstream,
}

fn script(fixture: &Fixture) -> Script {
    let lost = fixture.says_gone.as_ref().map(|name| {
        let named = LostAs::ALL.into_iter().find(|lost| lost.name() == name);
        named.unwrap_or_else(|| panic!("no way to say that a session is gone is named {name}"))
    });
    Script {
        replies: match fixture.answers {
            Answers::Json => Replies::Json,
            Answers::EventsWithIds => Replies::SseWithIds,
        },
        engine: fixture.pauses.map(|_| Engine::PerSession),
        exec_ids: if fixture.pauses == Some(Pauses::CountedIds) { ExecIds::Counter } else { ExecIds::Uuid },
        lease_ms: fixture.pause_ms,
        lost: lost.unwrap_or_default(),
        resources: ["/mcp", "/other"].map(str::to_owned).to_vec(),
        ..Script::default()
    }
}

/// All steps, and that nothing was left open and no rule of the protocol was broken.
#[track_caller]
pub(super) fn run(case: &Case, fixture: &Fixture) {
    let start = |text: &str| text.to_owned();
    let mut world = World {
        fixture: fixture.clone(),
        config: Config { credential: start("alice"), header: start("one"), path: start("/mcp") },
        names: Names::default(),
        marks: BTreeMap::new(),
        copy: None,
        calls: BTreeMap::new(),
        clients: BTreeMap::new(),
        harness: Harness::new(binary()),
        upstream: Upstream::start(script(fixture)),
    };
    world.configure();
    for (at, step) in case.steps.iter().enumerate() {
        eprintln!("step {at} with {fixture:?}: {step:?}");
        world.step(step);
    }
    assert!(world.calls.is_empty(), "calls that nobody waited for");
    for (name, client) in &mut world.clients {
        assert_eq!(client.close(PATIENCE), Some(0), "{name}");
    }
    world.upstream.assert_no_violations();
}

impl World {
    #[track_caller]
    fn step(&mut self, step: &Step) {
        match step {
            Step::StartMultiplexer { .. }
            | Step::KillMultiplexer {}
            | Step::StopMultiplexer {}
            | Step::UpgradeMultiplexer {}
            | Step::Configure { .. }
            | Step::Purge {} => self.multiplexer(step),
            Step::CopyRecord {} => {
                self.check_down();
                self.copy = Some(edits::copy(&self.harness));
            }
            Step::EditRecord { how } => {
                self.check_down();
                edits::edit(&self.harness, *how, self.copy.as_ref());
            }
            Step::RestartUpstream { .. }
            | Step::RedefineTool { .. }
            | Step::AwaitGate { .. }
            | Step::OpenGate { .. } => self.server(step),
            Step::WaitUntil { time } => self.wait_until(time),
            Step::Mark { mark } => {
                self.marks.insert(mark.clone(), self.upstream.journal().len());
            }
            Step::Status { session, sessions, put_aside, keep } => {
                let session = session.as_ref().map(|facts| self.names.resolve_all(facts));
                self.status(&Wanted { session, sessions: *sessions, put_aside: put_aside.clone() }, keep);
            }
            Step::UpstreamJournal { since, expect } => self.journal(since.as_deref(), expect),
            Step::Distinct { values } => self.names.check_distinct(values),
            of_client => self.client_step(of_client),
        }
    }

    // ---- the multiplexer ----

    #[track_caller]
    fn multiplexer(&mut self, step: &Step) {
        match step {
            Step::StartMultiplexer { count: None } => {
                self.harness.start_daemon();
            }
            Step::StartMultiplexer { count: Some(count) } => self.start_at_once(*count),
            Step::KillMultiplexer {} => {
                self.harness.kill_daemon();
            }
            Step::StopMultiplexer {} => {
                let _ = self.harness.run(&["stop"]).success();
                self.check_down();
            }
            Step::UpgradeMultiplexer {} => {
                crate::takeover::upgraded(&self.harness);
            }
            Step::Purge {} => {
                let _ = self.harness.run(&["purge", "up"]).success();
            }
            Step::Configure { credential, header, path } => {
                self.check_down();
                let set = |place: &mut String, value: &Option<String>| {
                    if let Some(value) = value {
                        place.clone_from(value);
                    }
                };
                set(&mut self.config.credential, credential);
                set(&mut self.config.header, header);
                set(&mut self.config.path, path);
                self.configure();
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn configure(&self) {
        let Config { credential, header, path } = &self.config;
        let url = self.upstream.url_of(path);
        let handles = if self.fixture.pauses.is_some() {
            "\n[[upstream.up.handle]]\npreset = \"executor\"\n"
        } else {
            ""
        };
        self.harness.write_config(&format!(
            "[upstream.up]\nurl = \"{url}\"\nheaders.Authorization = \"Bearer {credential}\"\n\
             headers.X-Team = \"{header}\"\n{handles}"
        ));
    }

    #[track_caller]
    fn check_down(&self) {
        let down = poll_until(PATIENCE, || self.harness.daemon_pid().is_none().then_some(()));
        assert!(down.is_some(), "a multiplexer runs");
    }

    /// So many at once: one of them serves, the others say that one does.
    #[track_caller]
    fn start_at_once(&self, count: usize) {
        let start = |_| {
            let mut command = self.harness.command(&["daemon"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let mut all: Vec<_> = (0..count).map(start).collect();
        let losers = poll_until(PATIENCE, || {
            let ended: Vec<_> = all.iter_mut().filter_map(|child| child.try_wait().unwrap()).collect();
            (ended.len() + 1 >= count).then_some(ended)
        });
        let codes: Vec<_> = losers.unwrap_or_default().iter().map(std::process::ExitStatus::code).collect();
        assert_eq!(codes, vec![Some(ANOTHER_RUNS); count - 1]);
        let serving = self.harness.wait_status(PATIENCE, |status| {
            (status["daemon"]["phase"] == "serving").then(|| status["daemon"]["pid"].as_u64())
        });
        assert!(all.iter().any(|child| Some(u64::from(child.id())) == serving));
        // Whoever serves is killed by a later step or by the harness, and waited for by nobody else.
        std::thread::spawn(move || all.iter_mut().for_each(|child| drop(child.wait())));
    }

    // ---- the upstream ----

    #[track_caller]
    fn server(&self, step: &Step) {
        match step {
            Step::RestartUpstream { keeps_sessions: true } => self.upstream.restart(),
            Step::RestartUpstream { keeps_sessions: false } => self.upstream.restart_without_state(),
            Step::RedefineTool { tool } => self.upstream.redefine_tool(tool),
            Step::AwaitGate { gate, count } => self.upstream.wait_at_gate(gate, *count, PATIENCE),
            Step::OpenGate { gate } => {
                self.upstream.open_gate(gate);
                let done = |session: &evermux_testkit::SessionView| session.running == 0;
                self.upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().all(done));
            }
            other => unreachable!("{other:?}"),
        }
    }

    #[track_caller]
    fn journal(&self, since: Option<&str>, expect: &Facts) {
        let from = since.map_or(0, |mark| self.marks[mark]);
        let mut found = Facts::default();
        let reached = poll_until(PATIENCE, || {
            found = witness::facts(&self.upstream, from, expect);
            (found == *expect).then_some(())
        });
        assert!(reached.is_some(), "{found:?}\nis not {expect:?}\n{}", self.upstream.summary());
        assert_ne!(found, Facts::default(), "nothing is asked");
    }

    // ---- what is told ----

    #[track_caller]
    fn status(&mut self, wanted: &Wanted, keep: &Keep) {
        wanted.session.iter().for_each(judge::check_words);
        let nothing = wanted.session.is_none() && wanted.sessions.is_none() && wanted.put_aside.is_none();
        assert!(!nothing, "nothing is asked");
        let mut last = (Value::Null, Ok(Value::Null));
        let reached = poll_until(PATIENCE, || {
            let status = self.harness.status();
            last = (status.clone(), judge::session(&status, wanted));
            last.1.clone().ok()
        });
        let session = reached.unwrap_or_else(|| panic!("{:?}: {:#}", last.1, last.0));
        self.names.keep(keep, &session);
    }

    #[track_caller]
    fn wait_until(&self, time: &str) {
        let time = self.names.resolve(&Value::from(time));
        let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
        let over = poll_until(PATIENCE, || (jiff::Timestamp::now() > time).then_some(()));
        assert!(over.is_some(), "{time} is too far away");
    }

    #[track_caller]
    fn told(&mut self, answer: &Answer, expect: &Told, keep: &Keep) {
        assert!(expect.result.is_some() != expect.error.is_some(), "a result or an error is expected");
        if let Some(kind) = &expect.error {
            assert!(expect.session.is_none() && keep.is_empty(), "an error tells nothing more");
            assert_eq!(answer.evermux_kind().as_ref(), Some(kind), "{}", answer.raw);
            return;
        }
        let found = answer.structured();
        let result = self.names.resolve_all(expect.result.as_ref().unwrap());
        assert!(judge::fits(&found, &result), "{found} is not {result:?}");
        if let Some(session) = &expect.session {
            judge::check_words(session);
            let told = &answer.result_value()["_meta"]["evermux/session"];
            assert!(judge::fits(told, &self.names.resolve_all(session)), "{told} is not {session:?}");
        }
        self.names.keep(keep, &found);
    }

    // ---- clients ----

    #[track_caller]
    fn client(&mut self, name: &str) -> &mut ShimClient {
        self.clients.get_mut(name).unwrap_or_else(|| panic!("no client {name}"))
    }

    #[track_caller]
    fn arguments(&self, arguments: &Subset) -> String {
        Value::Object(self.names.resolve_all(arguments)).to_string()
    }

    #[track_caller]
    fn client_step(&mut self, step: &Step) {
        match step {
            Step::Connect { client, capabilities } => self.connect(client, capabilities),
            Step::Leave { client } => {
                let mut gone = self.clients.remove(client).unwrap();
                assert_eq!(gone.close(PATIENCE), Some(0));
            }
            Step::KillClient { client } => {
                self.clients.remove(client).unwrap().kill();
                // Nobody is left to be answered.
                self.calls.retain(|_, (caller, _)| caller != client);
            }
            Step::ListTools { client } => {
                let client = self.client(client);
                let list = client.request("tools/list", "{}");
                assert_eq!(client.wait(&list, PATIENCE).error(), None);
            }
            Step::Call { client, tool, arguments, expect, keep } => {
                let arguments = self.arguments(arguments);
                let answer = self.client(client).call(tool, &arguments);
                self.told(&answer, expect, keep);
            }
            Step::BeginCall { client, tool, arguments, call } => {
                let arguments = self.arguments(arguments);
                let pending = self.client(client).start_call(tool, &arguments);
                let former = self.calls.insert(call.clone(), (client.clone(), pending));
                assert!(former.is_none(), "{call} is named twice");
            }
            Step::FinishCall { client, call, expect } => {
                let (caller, pending) = self.calls.remove(call).unwrap_or_else(|| panic!("no call {call}"));
                assert_eq!(caller, *client, "{call} is another's");
                let answer = self.client(client).wait(&pending, PATIENCE);
                self.told(&answer, expect, &Keep::new());
            }
            Step::Hears { client, method } => {
                self.client(client).wait_notification(PATIENCE, |told| told.method() == *method);
            }
            other => unreachable!("{other:?}"),
        }
    }

    #[track_caller]
    fn connect(&mut self, name: &str, capabilities: &Subset) {
        let mut client = self.harness.connect_with("up", &["--no-start"]);
        let capabilities = Value::Object(capabilities.clone());
        let params = format!(
            r#"{{"protocolVersion":"{VERSION}","capabilities":{capabilities},"clientInfo":{{"name":"{name}","version":"1"}}}}"#
        );
        assert_eq!(client.initialize_with(&params).error(), None);
        assert!(self.clients.insert(name.to_owned(), client).is_none(), "{name} is connected");
    }
}
