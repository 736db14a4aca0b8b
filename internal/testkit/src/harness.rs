//! The real `evermux` binary in a world of its own.
//!
//! Everything a test touches lies in one temporary directory, every command starts with a cleared environment, and nothing outlives the
//! harness: not the shims, not the daemon that a shim started and detached.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::ShimClient;
use crate::processes;
use crate::wait::{PATIENCE, poll_until};

/// How much of each log a failed test prints.
const LOG_TAIL: usize = 8 * 1024;

/// How a command learns where its files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Environment {
    /// `EVERMUX_CONFIG`, `EVERMUX_STATE_DIR` and `EVERMUX_RUNTIME_DIR`.
    #[default]
    Explicit,
    /// Only what MCP hosts give a server: HOME, LOGNAME, PATH, SHELL, TERM, USER. HOME leads to the same files.
    Bare,
}

/// What a command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
}

impl Output {
    /// Requires exit code 0.
    ///
    /// # Panics
    /// On any other.
    #[track_caller]
    pub fn success(self) -> Self {
        assert_eq!(self.code, Some(0), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Standard output as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(error) => {
                panic!(
                    "stdout is no JSON ({error}), code {:?}:\n{}\nstderr:\n{}",
                    self.code, self.stdout, self.stderr
                )
            }
        }
    }
}

/// The directory, the binary, and the daemons started by hand.
#[derive(Debug)]
pub struct Harness {
    binary: PathBuf,
    environment: Environment,
    root: TempDir,
    variables: Mutex<Vec<(String, String)>>,
    daemons: Mutex<Vec<Child>>,
    n_daemons: Mutex<usize>,
}

impl Harness {
    /// A fresh directory for this binary.
    #[must_use]
    pub fn new(binary: &Path) -> Self {
        Self::with_environment(binary, Environment::Explicit)
    }

    /// As [`new`](Self::new), with the choice of environment.
    #[must_use]
    pub fn with_environment(binary: &Path, environment: Environment) -> Self {
        // In /tmp, whatever TMPDIR says: a socket's path is short, and the state directory must hold one.
        let root = tempfile::Builder::new()
            .prefix("evermux-test-")
            .tempdir_in("/tmp")
            .expect("a temporary directory");
        let harness = Self {
            binary: binary.to_owned(),
            environment,
            root,
            variables: Mutex::default(),
            daemons: Mutex::default(),
            n_daemons: Mutex::default(),
        };
        let parent = harness.config_file().parent().map(Path::to_owned).unwrap_or_default();
        fs::create_dir_all(parent).expect("a config directory");
        harness
    }

    // ---- places ----

    /// The test's own directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// HOME of every command.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    /// The config file; at the platform's place under HOME, so that both environments mean the same.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        let directory =
            if cfg!(target_os = "macos") { "Library/Application Support/evermux" } else { ".config/evermux" };
        self.home().join(directory).join("config.toml")
    }

    /// The state directory, likewise.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        let macos = cfg!(target_os = "macos");
        self.home().join(if macos { "Library/Application Support/evermux" } else { ".local/state/evermux" })
    }

    /// The runtime directory, inside the state directory.
    #[must_use]
    pub fn runtime_dir(&self) -> PathBuf {
        self.state_dir().join("run")
    }

    /// The daemon's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir().join("evermux.sock")
    }

    // ---- config ----

    /// Appends an upstream to the config file; `extra` is TOML inside its table. A running daemon is not told.
    pub fn add_upstream(&self, name: &str, url: &str, extra: &str) {
        self.append_config(&format!("[upstream.{name}]\nurl = \"{url}\"\n{extra}\n"));
    }

    /// Appends TOML to the config file.
    pub fn append_config(&self, text: &str) {
        let mut file =
            File::options().create(true).append(true).open(self.config_file()).expect("the config opens");
        file.write_all(text.as_bytes()).expect("the config can be written");
    }

    /// Replaces the config file.
    pub fn write_config(&self, text: &str) {
        fs::write(self.config_file(), text).expect("the config can be written");
    }

    /// One variable more for every command from now on.
    pub fn set_variable(&self, name: &str, value: &str) {
        let mut variables = lock(&self.variables);
        variables.retain(|(known, _)| known != name);
        variables.push((name.to_owned(), value.to_owned()));
    }

    /// No such variable from now on.
    pub fn unset_variable(&self, name: &str) {
        lock(&self.variables).retain(|(known, _)| known != name);
    }

    // ---- commands ----

    /// The binary with these arguments in the test's environment, not yet started.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(&self.binary, arguments)
    }

    /// Another program (a second build of evermux, a real client) in the test's environment.
    #[must_use]
    pub fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir(self.root());
        command
            .env("HOME", self.home())
            .env("PATH", "/usr/bin:/bin")
            .env("SHELL", "/bin/sh")
            .env("TERM", "dumb");
        command.env("LOGNAME", "tester").env("USER", "tester");
        if self.environment == Environment::Explicit {
            command.env("EVERMUX_CONFIG", self.config_file()).env("EVERMUX_STATE_DIR", self.state_dir());
            command.env("EVERMUX_RUNTIME_DIR", self.runtime_dir());
        }
        command.envs(lock(&self.variables).iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    ///
    /// # Panics
    /// If it does not end in [`PATIENCE`].
    #[must_use = "look at the exit code, or say `.success()`"]
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_within(arguments, PATIENCE)
    }

    /// Runs the binary to its end, within a time of the test's choice.
    ///
    /// # Panics
    /// If it does not end in time, or something it started keeps its pipes.
    #[must_use = "look at the exit code, or say `.success()`"]
    #[track_caller]
    pub fn run_within(&self, arguments: &[&str], within: Duration) -> Output {
        finish(self.command(arguments), within, &format!("evermux {}", arguments.join(" ")))
    }

    /// Runs a command made by [`command_of`](Self::command_of) to its end, as [`run_within`](Self::run_within).
    ///
    /// # Panics
    /// As [`run_within`](Self::run_within).
    #[must_use = "look at the exit code, or say `.success()`"]
    #[track_caller]
    pub fn finish(&self, command: Command, within: Duration) -> Output {
        let what = command.get_program().to_string_lossy().into_owned();
        finish(command, within, &what)
    }

    /// A client on `evermux connect NAME`.
    #[must_use]
    #[track_caller]
    pub fn connect(&self, name: &str) -> ShimClient {
        self.connect_with(name, &[])
    }

    /// As [`connect`](Self::connect), with more arguments.
    #[must_use]
    #[track_caller]
    pub fn connect_with(&self, name: &str, arguments: &[&str]) -> ShimClient {
        let all: Vec<_> = ["connect", name].iter().chain(arguments).copied().collect();
        ShimClient::spawn(self.command(&all))
    }

    // ---- the daemon ----

    /// `status --json`, also when no daemon runs. Asked again where a daemon ends in the middle of its answer.
    ///
    /// # Panics
    /// If the command goes on failing in another way than "no daemon".
    #[must_use]
    #[track_caller]
    pub fn status(&self) -> Value {
        let mut output = self.run(&["status", "--json"]);
        let told = poll_until(PATIENCE, || {
            if !matches!(output.code, Some(0 | 3)) {
                output = self.run(&["status", "--json"]);
            }
            matches!(output.code, Some(0 | 3)).then_some(())
        });
        assert!(told.is_some(), "status failed: {output:?}");
        output.json()
    }

    /// Polls `status --json` until `condition` gives something.
    ///
    /// # Panics
    /// If it never does.
    #[track_caller]
    pub fn wait_status<R>(&self, within: Duration, mut condition: impl FnMut(&Value) -> Option<R>) -> R {
        let mut last = Value::Null;
        let reached = poll_until(within, || {
            last = self.status();
            condition(&last)
        });
        match reached {
            Some(result) => result,
            None => panic!("the status did not come to what was waited for in {within:?}: {last:#}"),
        }
    }

    /// Process id of the daemon, if one runs.
    #[must_use]
    #[track_caller]
    pub fn daemon_pid(&self) -> Option<u32> {
        pid_in(&self.status())
    }

    /// Starts `evermux daemon` as a child and waits until it serves; gives its pid.
    ///
    /// # Panics
    /// If it ends or does not come to serve.
    #[track_caller]
    pub fn start_daemon(&self) -> u32 {
        self.start_daemon_of(&self.binary, &[])
    }

    /// As [`start_daemon`](Self::start_daemon), of another build or with more arguments, `--takeover` for one.
    ///
    /// # Panics
    /// As [`start_daemon`](Self::start_daemon).
    #[track_caller]
    pub fn start_daemon_of(&self, program: &Path, arguments: &[&str]) -> u32 {
        let number = {
            let mut count = lock(&self.n_daemons);
            *count += 1;
            *count
        };
        let said = self.root().join(format!("daemon-{number}.err"));
        let all: Vec<_> = ["daemon"].iter().chain(arguments).copied().collect();
        let mut command = self.command_of(program, &all);
        command.stdout(Stdio::null()).stderr(File::create(&said).expect("a file for stderr"));
        let mut child = command.spawn().expect("the daemon can be started");
        let pid = child.id();
        let mut ended: Option<ExitStatus> = None;
        let served = poll_until(PATIENCE, || {
            ended = child.try_wait().ok().flatten();
            let status = if ended.is_some() { return Some(false) } else { self.status() };
            let serving = status.pointer("/daemon/phase").and_then(Value::as_str) == Some("serving");
            (serving && pid_in(&status) == Some(pid)).then_some(true)
        });
        lock(&self.daemons).push(child);
        if served != Some(true) {
            let said = fs::read_to_string(said).unwrap_or_default();
            panic!("the daemon does not serve (ended: {ended:?}); stderr:\n{said}");
        }
        pid
    }

    /// SIGKILL to the daemon; returns its pid when it is really gone.
    ///
    /// # Panics
    /// If none runs, or it does not go.
    #[track_caller]
    pub fn kill_daemon(&self) -> u32 {
        let pid = self.signal_daemon(Signal::SIGKILL);
        self.wait_gone(pid, PATIENCE);
        pid
    }

    /// Sends a signal to the daemon and gives its pid.
    ///
    /// # Panics
    /// If none runs.
    #[track_caller]
    pub fn signal_daemon(&self, signal: Signal) -> u32 {
        let Some(pid) = self.daemon_pid() else { panic!("no daemon runs") };
        assert!(processes::signal(pid, self.root(), signal), "process {pid} is not a daemon of this test");
        pid
    }

    /// Sends a signal to a process of this test, by its pid. False if there is none.
    pub fn signal(&self, pid: u32, signal: Signal) -> bool {
        processes::signal(pid, self.root(), signal)
    }

    /// Waits until a process is gone; reaps it if it is ours.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn wait_gone(&self, pid: u32, within: Duration) {
        let gone = poll_until(within, || processes::is_gone(pid).then_some(()));
        assert!(gone.is_some(), "process {pid} is not gone after {within:?}");
        // Only now: looked for before, it may have died between the two looks, and stays a zombie.
        for child in lock(&self.daemons).iter_mut().filter(|child| child.id() == pid) {
            child.try_wait().ok();
        }
    }

    /// Exit code of a daemon started by [`start_daemon`](Self::start_daemon), once it has ended (`None`: a signal).
    ///
    /// # Panics
    /// If it is not one, or does not end in time.
    #[track_caller]
    pub fn daemon_exit(&self, pid: u32, within: Duration) -> Option<i32> {
        let ended = poll_until(within, || {
            let mut daemons = lock(&self.daemons);
            let child = daemons.iter_mut().find(|child| child.id() == pid)?;
            child.try_wait().ok().flatten()
        });
        match ended {
            Some(status) => status.code(),
            None => panic!("daemon {pid} did not end in {within:?}, or was not started by this harness"),
        }
    }

    /// Pids of all live processes of this test, shims and daemons alike.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        processes::all_of(self.root())
    }

    /// The ends of all logs and of what daemons said, for messages.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for directory in [self.state_dir().join("log"), self.root().to_owned()] {
            let Ok(entries) = fs::read_dir(directory) else { continue };
            let mut files: Vec<_> =
                entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
            files.sort();
            for file in files {
                let content = fs::read(&file).unwrap_or_default();
                let tail = &content[content.len().saturating_sub(LOG_TAIL)..];
                write!(text, "---- {}\n{}\n", file.display(), String::from_utf8_lossy(tail)).ok();
            }
        }
        text
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        for child in lock(&self.daemons).iter_mut() {
            child.kill().ok();
            child.wait().ok();
        }
        let all_gone = processes::end_all(self.root(), PATIENCE);
        if std::thread::panicking() {
            writeln!(std::io::stderr(), "{}", self.logs()).ok();
        } else {
            assert!(all_gone, "processes of the test outlived it: {:?}", self.processes());
        }
    }
}

fn pid_in(status: &Value) -> Option<u32> {
    status.pointer("/daemon/pid")?.as_u64()?.try_into().ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command to its end and reads both its streams meanwhile.
#[track_caller]
fn finish(mut command: Command, within: Duration, what: &str) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command can be started");
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let Some(status) = poll_until(within, || child.try_wait().ok().flatten()) else {
        child.kill().ok();
        child.wait().ok();
        panic!("`{what}` did not end in {within:?}");
    };
    let whole = poll_until(within, || (stdout.is_finished() && stderr.is_finished()).then_some(()));
    assert!(whole.is_some(), "`{what}` ended, but something it started keeps its stdout or stderr open");
    let text = |reader: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8(reader.join().expect("a reader does not panic")).expect("commands print UTF-8")
    };
    Output { stdout: text(stdout), stderr: text(stderr), code: status.code() }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).ok();
        }
        bytes
    })
}
