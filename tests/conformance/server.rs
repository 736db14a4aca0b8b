//! Evermux as the server: the whole set of a revision, through both faces, on two official SDKs, before and after a
//! SIGKILL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use evermux_testkit::recorder::Target;
use evermux_testkit::{Harness, Recorder, SocketServer, installed};

use crate::adapter::Adapter;
use crate::suite::Suite;

/// Name of the upstream in every test.
const NAME: &str = "everything";

/// The set of the newest revision with sessions.
const SET: [&str; 2] = ["--requirements", "2025-11-25"];

/// Not scored, and judged by us all the same: they are about what evermux itself does.
const OURS: [&str; 3] = ["server-session-lifecycle", "server-sse-polling", "dns-rebinding-protection"];

/// Of a stdio client there is nothing to judge here but the adapter that gives it a stream.
const HTTP_ONLY: [&str; 1] = ["server-sse-polling"];

/// Which official SDK is upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fixture {
    TypeScript,
    Rust,
}

/// A server that passes, evermux before it, and the proxy between them.
struct World {
    suite: Suite,
    harness: Harness,
    upstream: Recorder,
    _server: SocketServer,
}

impl World {
    /// `None` if something is not installed and the test is to be skipped.
    fn start(fixture: Fixture) -> Option<Self> {
        let suite = Suite::find()?;
        let harness = Harness::new(Path::new(env!("CARGO_BIN_EXE_evermux")));
        let socket = harness.root().join("server.sock");
        let server = SocketServer::start(command(fixture, &suite, &socket)?, &socket);
        let upstream = Recorder::start(&socket);
        harness.append_config("[http]\nlisten = \"127.0.0.1:0\"\n");
        harness.add_upstream(NAME, &upstream.url(), "");
        Some(Self { suite, harness, upstream, _server: server })
    }

    /// A clients' side for HTTP: to the daemon's port, with the token that the suite cannot be told.
    fn relay(&self) -> Recorder {
        let address = self.harness.wait_status(evermux_testkit::wait::PATIENCE, |status| {
            status.pointer("/daemon/http")?.as_str()?.parse().ok()
        });
        let token = fs::read_to_string(self.harness.state_dir().join("http-token")).unwrap();
        Recorder::before(Target::Tcp(address), Some(&format!("Bearer {}", token.trim())))
    }

    fn adapter(&self) -> Adapter {
        Adapter::start(self.harness.command(&["connect", NAME]))
    }

    #[track_caller]
    fn judge(&self, url: &str, arguments: &[&str], except: &[&str], must_run: &[&str]) {
        let arguments: Vec<_> = ["server", "--url", url].iter().chain(arguments).copied().collect();
        self.suite.run(&self.harness, &arguments, &[]).without(except).passed(must_run);
    }

    /// How many sessions were made upstream; none of them was ended.
    #[track_caller]
    fn handshakes(&self) -> usize {
        assert_eq!(self.upstream.count(|seen| seen.verb == "DELETE"), 0, "{}", self.upstream.summary());
        self.upstream.count(|seen| seen.is("initialize"))
    }
}

fn command(fixture: Fixture, suite: &Suite, socket: &Path) -> Option<Command> {
    let mut command = match fixture {
        Fixture::TypeScript => {
            let mut command = Command::new(suite.node());
            command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conformance/server.mjs"));
            command.env_clear().env("EVERMUX_INTEROP_NODE", suite.packages());
            command
        }
        Fixture::Rust => {
            let mut command = Command::new(rust_peer()?);
            command.arg("conformance").env_clear();
            command
        }
    };
    command.arg(socket);
    Some(command)
}

/// Of another package, so cargo does not name it; all binaries of the workspace lie in one directory.
fn rust_peer() -> Option<PathBuf> {
    let peer = Path::new(env!("CARGO_BIN_EXE_evermux")).with_file_name("evermux-rmcp-peer");
    if !peer.is_file() {
        installed::skip("the Rust peer (cargo test --workspace builds it, or -p evermux-peers)");
        return None;
    }
    Some(peer)
}

/// What fails here is not evermux's fault.
#[track_caller]
fn alone(fixture: Fixture) {
    let Some(world) = World::start(fixture) else { return };
    world.judge(&world.upstream.url(), &SET, &[], &OURS);
}

/// Judges evermux; then the daemon is killed and the same is asked of the next one, which goes on in the sessions that
/// are there.
#[track_caller]
fn twice(world: &World, judge: impl Fn()) {
    judge();
    let handshakes = world.handshakes();
    assert!(handshakes > 0, "nothing came upstream");
    world.harness.kill_daemon();
    judge();
    assert_eq!(
        world.handshakes(),
        handshakes,
        "a live session was initialised again:\n{}",
        world.upstream.summary()
    );
}

/// The set through the TCP face.
#[track_caller]
fn over_http(fixture: Fixture) {
    let Some(world) = World::start(fixture) else { return };
    twice(&world, || {
        world.harness.start_daemon();
        let relay = world.relay();
        world.judge(&relay.url_of(&format!("/mcp/{NAME}")), &SET, &[], &OURS);
    });
}

/// The same through `evermux connect`, whose shims start the daemon.
#[track_caller]
fn over_stdio(fixture: Fixture) {
    let Some(world) = World::start(fixture) else { return };
    twice(&world, || {
        let adapter = world.adapter();
        world.judge(&adapter.url(), &SET, &HTTP_ONLY, &["tools-call-sampling", "elicitation-sep1330-enums"]);
    });
}

/// Clients of an older revision, on a server that speaks the newer one, both ways.
#[track_caller]
fn of_older_revisions(fixture: Fixture) {
    let Some(world) = World::start(fixture) else { return };
    let active = ["--suite", "active", "--spec-version", "2025-06-18"];
    let lifecycle = ["--scenario", "server-session-lifecycle", "--spec-version", "2025-03-26"];
    twice(&world, || {
        world.harness.start_daemon();
        let relay = world.relay();
        let url = relay.url_of(&format!("/mcp/{NAME}"));
        world.judge(&url, &active, &[], &["tools-call-elicitation"]);
        world.judge(&url, &lifecycle, &[], &["server-session-lifecycle"]);
        let adapter = world.adapter();
        world.judge(&adapter.url(), &active, &[], &["tools-call-elicitation"]);
    });
}

#[test]
fn the_typescript_server_passes_alone() {
    alone(Fixture::TypeScript);
}

#[test]
fn the_rust_server_passes_alone() {
    alone(Fixture::Rust);
}

#[test]
fn typescript_over_http() {
    over_http(Fixture::TypeScript);
}

#[test]
fn rust_over_http() {
    over_http(Fixture::Rust);
}

#[test]
fn typescript_over_stdio() {
    over_stdio(Fixture::TypeScript);
}

#[test]
fn rust_over_stdio() {
    over_stdio(Fixture::Rust);
}

#[test]
fn typescript_of_older_revisions() {
    of_older_revisions(Fixture::TypeScript);
}

#[test]
fn rust_of_older_revisions() {
    of_older_revisions(Fixture::Rust);
}
