//! The peers that are not ours: where they are, how the servers are started and ended, and what happens when they are missing.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use evermux_testkit::{Environment, Harness, HttpClient, Recorder, SocketServer, installed};

use crate::fixture::Fixture;

pub(crate) use evermux_testkit::socket_server::PATIENCE;

/// Where the server listens, in the test's own directory.
const SOCKET: &str = "server.sock";

/// Name of the upstream in every test.
pub(crate) const NAME: &str = "everything";

/// Node with the npm packages.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) binary: PathBuf,
    /// The directory that holds `node_modules`.
    pub(crate) directory: PathBuf,
}

/// Which official SDK, on either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sdk {
    TypeScript,
    Python,
    Rust,
}

impl Sdk {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::TypeScript, Self::Python, Self::Rust];
}

/// What `tests/run` installed.
#[derive(Debug)]
pub(crate) struct Peers {
    node: Option<Node>,
    python: Option<PathBuf>,
    rust: PathBuf,
}

impl Peers {
    /// The peers that a test needs; `None`, with a word on stderr, if one is missing and this is not CI.
    pub(crate) fn find(needed: &[Sdk]) -> Option<Self> {
        let node = installed::node_packages();
        let node = node.and_then(|directory| Some(Node { binary: installed::on_path("node")?, directory }));
        let python = env::var_os("EVERMUX_INTEROP_PYTHON").map(PathBuf::from);
        // Of another package, so cargo does not name it; all binaries of the workspace lie in one directory.
        let rust = Path::new(env!("CARGO_BIN_EXE_evermux")).with_file_name("evermux-rmcp-peer");
        let mut missing = Vec::new();
        if needed.contains(&Sdk::TypeScript) && node.is_none() {
            missing.push("the Node peers (EVERMUX_INTEROP_NODE, and node on PATH)");
        }
        if needed.contains(&Sdk::Python) && python.is_none() {
            missing.push("the Python peers (EVERMUX_INTEROP_PYTHON)");
        }
        if needed.contains(&Sdk::Rust) && !rust.is_file() {
            missing.push("the Rust peer (cargo test --workspace builds it, or -p evermux-peers)");
        }
        if missing.is_empty() {
            return Some(Self { node, python, rust });
        }
        installed::skip(&missing.join(" and "));
        None
    }

    pub(crate) fn node(&self) -> &Node {
        self.node.as_ref().expect("the test asked for Node")
    }

    pub(crate) fn python(&self) -> &Path {
        self.python.as_deref().expect("the test asked for Python")
    }

    pub(crate) fn rust(&self) -> &Path {
        &self.rust
    }
}

/// A file of this directory.
pub(crate) fn script(name: &str) -> String {
    format!("{}/../../tests/interop/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The command that serves this fixture at a unix socket.
fn server(fixture: Fixture, peers: &Peers, socket: &Path) -> Command {
    let mut command = match fixture {
        Fixture::Everything => {
            let Node { binary, directory } = peers.node();
            let package = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
            let mut command = Command::new(binary);
            // What is no number, Node's `listen` takes for a socket's path.
            command.arg(directory.join(package)).arg("streamableHttp").env_clear().env("PORT", socket);
            command
        }
        Fixture::Python | Fixture::PythonEvents => {
            let mut command = Command::new(peers.python());
            command.args([script("server.py").as_ref(), socket.as_os_str()]).env_clear();
            command.args((fixture == Fixture::PythonEvents).then_some("events"));
            command
        }
        Fixture::Rust => {
            let mut command = Command::new(peers.rust());
            command.arg("server").arg(socket).env_clear();
            command
        }
    };
    command.current_dir(socket.parent().unwrap_or(socket));
    command
}

/// Evermux between the peers: harness, recording proxy and real server, with the proxy configured as the only upstream.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) harness: Harness,
    pub(crate) recorder: Recorder,
    pub(crate) peers: Peers,
    pub(crate) fixture: Fixture,
    server: SocketServer,
}

impl World {
    /// Starts all but the clients; `None` if a peer is missing and the test is to be skipped.
    pub(crate) fn start(fixture: Fixture, clients: &[Sdk], environment: Environment) -> Option<Self> {
        let needed: Vec<_> = clients.iter().copied().chain([fixture.sdk()]).collect();
        let peers = Peers::find(&needed)?;
        let harness = Harness::with_environment(Path::new(env!("CARGO_BIN_EXE_evermux")), environment);
        let socket = harness.root().join(SOCKET);
        let server = SocketServer::start(server(fixture, &peers, &socket), &socket);
        let recorder = Recorder::start(&socket);
        harness.add_upstream(NAME, &recorder.url(), "");
        Some(Self { harness, recorder, peers, fixture, server })
    }

    /// A raw connection to the server, past evermux and recorder.
    pub(crate) fn direct(&self) -> HttpClient {
        HttpClient::unix(&self.harness.root().join(SOCKET)).expect("the server accepts")
    }

    /// Ends the server as a crash does, and starts it again at the same place: it knows no session any more.
    pub(crate) fn restart_server(&mut self) {
        let socket = self.harness.root().join(SOCKET);
        self.server.restart(server(self.fixture, &self.peers, &socket));
    }
}
