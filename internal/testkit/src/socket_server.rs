//! A real server in a process of its own, at a unix socket.
//!
//! A socket has a name of the test's own, so no port is guessed, and a server that is started again comes back at the
//! same place.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::wait::poll_until;

/// Long enough for a loaded two-core machine to start Node or Python; a test that needs it has found a hang.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// The process. Dropping it kills it.
#[derive(Debug)]
pub struct SocketServer {
    socket: PathBuf,
    child: Child,
}

impl SocketServer {
    /// Starts this command, which is to listen at `socket`, and waits until it accepts. What it says goes to a file
    /// beside the socket.
    ///
    /// # Panics
    /// If it does not come to accept.
    #[track_caller]
    #[must_use]
    pub fn start(command: Command, socket: &Path) -> Self {
        let mut server = Self { socket: socket.to_owned(), child: spawn(command, socket) };
        server.wait_accepting();
        server
    }

    /// Ends it as a crash does, and starts this command at the same place.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    pub fn restart(&mut self, command: Command) {
        self.kill();
        self.child = spawn(command, &self.socket);
        self.wait_accepting();
    }

    #[track_caller]
    fn wait_accepting(&mut self) {
        let accepts = poll_until(PATIENCE, || match self.child.try_wait() {
            Ok(None) => UnixStream::connect(&self.socket).is_ok().then_some(true),
            _ => Some(false),
        });
        let words = || fs::read_to_string(words(&self.socket)).unwrap_or_default();
        assert_eq!(accepts, Some(true), "the server does not accept; it said:\n{}", words());
    }

    fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        // A killed server leaves it, and the next one would refuse to start.
        fs::remove_file(&self.socket).ok();
    }
}

fn words(socket: &Path) -> PathBuf {
    socket.with_extension("err")
}

fn spawn(mut command: Command, socket: &Path) -> Child {
    let said = File::options().create(true).append(true).open(words(socket));
    let said = said.expect("a file for the server's words");
    let also_said = said.try_clone().expect("a descriptor can be copied");
    command.stdin(Stdio::null()).stdout(said).stderr(also_said);
    command.spawn().expect("the server can be started")
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.kill();
    }
}
