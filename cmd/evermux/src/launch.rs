//! Starts this very program as a daemon of its own, and reads the one line it says.

use std::path::PathBuf;
use std::process::Stdio;

use evermux_config::Paths;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout, Command};

/// The longest line of a starting daemon that is read, in bytes.
const LINE_CAP: u64 = 64 << 10;

/// `evermux daemon --detached` for the same files, not yet started. Its standard output is a pipe.
pub(crate) fn daemon_command(paths: &Paths) -> std::io::Result<Command> {
    let mut command = Command::new(own_program()?);
    command.arg("--config").arg(&paths.config_file);
    command.arg("--state-dir").arg(&paths.state_dir);
    command.arg("--runtime-dir").arg(&paths.runtime_dir);
    command.args(["daemon", "--detached"]);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

/// Waits for its end. While this process lives the daemon is its child, and would stay a zombie once it ends.
pub(crate) async fn reap(mut child: Child) {
    drop(child.wait().await);
}

/// The running program, also after its file was replaced by an upgrade.
fn own_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.filter(|path| path.exists()).unwrap_or(path))
}

/// The line, or what there was of it when the daemon ended.
pub(crate) async fn first_line(stdout: Option<ChildStdout>) -> Vec<u8> {
    let mut line = Vec::new();
    let Some(stdout) = stdout else { return line };
    let mut stdout = stdout.take(LINE_CAP);
    // The daemon closes its end after the line, so this ends with the line or with the daemon.
    while !line.contains(&b'\n') && matches!(stdout.read_buf(&mut line).await, Ok(1..)) {}
    line
}
