//! The peers that are not ours: where they are, how the servers are started and ended, and what happens when they are missing.

use std::env;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Environment, Harness, HttpClient, installed};

use crate::fixture::Fixture;
use crate::recorder::Recorder;

/// Long enough for a loaded two-core machine to start Node or Python; a test that needs it has found a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

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

/// A real server in its own process, at a unix socket. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Server {
    fixture: Fixture,
    root: PathBuf,
    child: Child,
}

impl Server {
    fn socket(root: &Path) -> PathBuf {
        root.join("server.sock")
    }

    /// Starts and waits until it accepts.
    fn start(fixture: Fixture, peers: &Peers, root: &Path) -> Self {
        let child = Self::spawn(fixture, peers, root);
        let mut server = Self { fixture, root: root.to_owned(), child };
        server.wait_accepting();
        server
    }

    fn restart(&mut self, peers: &Peers) {
        self.kill();
        self.child = Self::spawn(self.fixture, peers, &self.root);
        self.wait_accepting();
    }

    fn spawn(fixture: Fixture, peers: &Peers, root: &Path) -> Child {
        let socket = Self::socket(root);
        let said = File::options().create(true).append(true).open(root.join("server.err"));
        let said = said.expect("a file for the server's words");
        let mut command = match fixture {
            Fixture::Everything => {
                let Node { binary, directory } = peers.node();
                let package = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
                let mut command = Command::new(binary);
                // What is no number, Node's `listen` takes for a socket's path.
                command.arg(directory.join(package)).arg("streamableHttp").env_clear().env("PORT", &socket);
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
                command.arg("server").arg(&socket).env_clear();
                command
            }
        };
        let also_said = said.try_clone().expect("a descriptor can be copied");
        command.stdin(Stdio::null()).stdout(said).stderr(also_said).current_dir(root);
        command.spawn().expect("the server can be started")
    }

    #[track_caller]
    fn wait_accepting(&mut self) {
        let socket = Self::socket(&self.root);
        let accepts = poll_until(PATIENCE, || match self.child.try_wait() {
            Ok(None) => UnixStream::connect(&socket).is_ok().then_some(true),
            _ => Some(false),
        });
        let words = || fs::read_to_string(self.root.join("server.err")).unwrap_or_default();
        assert_eq!(accepts, Some(true), "the server does not accept; it said:\n{}", words());
    }

    fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        // A killed server leaves it, and the next one would refuse to start.
        fs::remove_file(Self::socket(&self.root)).ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Evermux between the peers: harness, recording proxy and real server, with the proxy configured as the only upstream.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) harness: Harness,
    pub(crate) recorder: Recorder,
    pub(crate) peers: Peers,
    pub(crate) fixture: Fixture,
    server: Server,
}

impl World {
    /// Starts all but the clients; `None` if a peer is missing and the test is to be skipped.
    pub(crate) fn start(fixture: Fixture, clients: &[Sdk], environment: Environment) -> Option<Self> {
        let needed: Vec<_> = clients.iter().copied().chain([fixture.sdk()]).collect();
        let peers = Peers::find(&needed)?;
        let harness = Harness::with_environment(Path::new(env!("CARGO_BIN_EXE_evermux")), environment);
        let server = Server::start(fixture, &peers, harness.root());
        let recorder = Recorder::start(&Server::socket(harness.root()));
        harness.add_upstream(NAME, &recorder.url(), "");
        Some(Self { harness, recorder, peers, fixture, server })
    }

    /// A raw connection to the server, past evermux and recorder.
    pub(crate) fn direct(&self) -> HttpClient {
        HttpClient::unix(&Server::socket(self.harness.root())).expect("the server accepts")
    }

    /// Ends the server as a crash does, and starts it again at the same place: it knows no session any more.
    pub(crate) fn restart_server(&mut self) {
        self.server.restart(&self.peers);
    }
}
