//! Children that end with their owner, and what the kernel tells about them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const READY_DEADLINE: Duration = Duration::from_secs(15);
const END_DEADLINE: Duration = Duration::from_secs(5);

/// A command with nothing of our environment but `PATH`, and its stderr in `log`. Killed when its handle goes.
pub(crate) fn command(
    words: &[String],
    environment: &[(String, String)],
    directory: &Path,
    log: &Path,
) -> Result<Command> {
    let (program, arguments) = words.split_first().context("an empty command")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", directory)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(directory)
        .stderr(File::options().append(true).create(true).open(log)?)
        .kill_on_drop(true);
    Ok(command)
}

/// A server started for the run.
pub(crate) struct OwnedChild {
    child: Child,
    /// Held open: the bench's own servers end when it closes.
    _stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl OwnedChild {
    pub(crate) fn spawn(
        words: &[String],
        environment: &[(String, String)],
        directory: &Path,
    ) -> Result<Self> {
        let log = directory.join("server.log");
        let mut command = command(words, environment, directory, &log)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().map(BufReader::new);
        Ok(Self { _stdin: child.stdin.take(), child, stdout, log })
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The first line it prints; the bench's own servers say there where they listen.
    pub(crate) async fn first_line(&mut self) -> Result<String> {
        let stdout = self.stdout.as_mut().context("stdout is not captured")?;
        let mut line = String::new();
        let read = tokio::time::timeout(READY_DEADLINE, stdout.read_line(&mut line)).await;
        match read.context("it printed nothing")?? {
            0 => bail!("it ended: {}", self.last_words()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Fails when it has ended already.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("it ended with {status}: {}", self.last_words()),
        }
    }

    /// The last lines of its stderr, for a message to people.
    pub(crate) fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let mut lines: Vec<&str> = log.lines().rev().take(3).collect();
        lines.reverse();
        if lines.is_empty() { "(nothing on stderr)".to_owned() } else { lines.join(" / ") }
    }

    /// SIGTERM, some patience, SIGKILL; the process is reaped in any case.
    pub(crate) async fn end(mut self) -> Result<()> {
        drop(self._stdin.take());
        if let Some(pid) = self.child.id() {
            // Gone already is as good.
            let _ = kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM);
        }
        if tokio::time::timeout(END_DEADLINE, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    /// Proportional set size: private pages plus its share of shared ones.
    pub(crate) proportional: u64,
    /// Largest resident size so far.
    pub(crate) peak_resident: u64,
}

/// Reads a process's memory; `None` without `/proc` or when it is gone.
pub(crate) fn memory(pid: u32) -> Option<Memory> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Memory { proportional: kib_of(&rollup, "Pss:")?, peak_resident: kib_of(&status, "VmHWM:")? })
}

/// Has the kernel count the largest resident size anew from here on.
pub(crate) fn reset_peak(pid: u32) -> Result<()> {
    let place = format!("/proc/{pid}/clear_refs");
    std::fs::write(&place, "5").with_context(|| format!("cannot write {place}"))
}

fn kib_of(text: &str, label: &str) -> Option<u64> {
    number_of(text, label).map(|kib| kib * 1024)
}

fn number_of(text: &str, label: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(label))?;
    value.split_whitespace().next()?.parse().ok()
}

/// On-CPU time of all threads that these processes have now; `None` when the kernel does not tell of any.
/// Threads that ended are not in it, which is no matter between two readings of servers with steady threads.
pub(crate) fn cpu_time(pids: &[u32]) -> Option<Duration> {
    let mut nanoseconds = 0;
    for pid in pids {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            let schedstat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            nanoseconds += schedstat.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    (!pids.is_empty()).then(|| Duration::from_nanos(nanoseconds))
}

/// How often the threads of a process have given a core up by themselves, which is how often they had been woken.
/// Threads that ended are not in it.
pub(crate) fn wake_ups(pid: u32) -> Result<u64> {
    let mut switches = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        switches += number_of(&status, "voluntary_ctxt_switches:").context("no count of switches")?;
    }
    Ok(switches)
}

/// The load average of the last minute; `None` without `/proc`.
pub(crate) fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lines_are_read_in_bytes() {
        let rollup = "Rss:   4 kB\nPss:                 210 kB\nPss_Dirty: 3 kB\n";
        assert_eq!(kib_of(rollup, "Pss:"), Some(210 * 1024));
        assert_eq!(kib_of(rollup, "VmHWM:"), None);
    }

    #[test]
    fn a_thread_that_waits_has_been_woken() {
        let before = wake_ups(std::process::id()).unwrap();
        std::thread::park_timeout(Duration::from_millis(1));
        assert!(wake_ups(std::process::id()).unwrap() > before);
    }

    #[tokio::test]
    async fn a_peak_is_forgotten_when_it_is_reset() {
        // A child of its own: the other tests of this process allocate too.
        let grow = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); unset x; echo grown; read line";
        let words = ["sh", "-c", grow].map(str::to_owned);
        let directory = tempfile::tempdir().unwrap();
        let mut child = OwnedChild::spawn(&words, &[], directory.path()).unwrap();
        assert_eq!(child.first_line().await.unwrap(), "grown");
        let pid = child.pid().unwrap();
        let peak = || memory(pid).unwrap().peak_resident;
        let grown = peak();
        assert!(grown > 30_000_000);
        reset_peak(pid).unwrap();
        assert!(peak() < grown);
        child.end().await.unwrap();
    }

    #[tokio::test]
    async fn a_child_that_ended_is_told_with_its_last_words() {
        let directory = tempfile::tempdir().unwrap();
        let words = ["sh", "-c", "echo no such thing >&2; exit 3"].map(str::to_owned);
        let mut child = OwnedChild::spawn(&words, &[], directory.path()).unwrap();
        let error = child.first_line().await.unwrap_err().to_string();
        assert!(error.contains("no such thing"), "{error}");
        child.end().await.unwrap();
    }
}
