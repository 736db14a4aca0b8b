//! The bounded log file: `log/daemon.log`, and one older file beside it.
//!
//! Only evermux's own targets are logged, whatever the level: libraries below write header values at `trace`, and
//! no secret may reach a log (contract, rule on secrets).

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::OFlag;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::error::RunError;

/// Length in bytes at which the log starts anew; at most twice this is on disk.
const LARGEST: u64 = 4 * 1024 * 1024;

const OURS: [&str; 6] =
    ["evermux", "evermux_daemon", "evermux_core", "evermux_store", "evermux_config", "mcp_http"];

/// Sets up logging for the process. `level` is one word (`off` … `trace`).
pub(crate) fn set_up(dir: &Path, level: &str, to_stderr: bool) -> Result<(), RunError> {
    let file =
        Rolling::open(dir.join("daemon.log")).map_err(|error| RunError::setup("open the log", error))?;
    let layer = tracing_subscriber::fmt::layer().with_writer(Shared(Mutex::new(file))).with_ansi(false);
    let registry = tracing_subscriber::registry().with(layer.with_filter(filter(level)));
    let stderr = to_stderr.then(|| {
        tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(filter(level))
    });
    // A second call (tests in one process) keeps the first.
    drop(registry.with(stderr).try_init());
    Ok(())
}

fn filter(level: &str) -> EnvFilter {
    let level =
        if matches!(level, "off" | "error" | "warn" | "info" | "debug" | "trace") { level } else { "info" };
    let directives: Vec<String> = OURS.iter().map(|target| format!("{target}={level}")).collect();
    EnvFilter::new(directives.join(","))
}

struct Shared(Mutex<Rolling>);

impl<'a> MakeWriter<'a> for Shared {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(&self.0)
    }
}

struct Line<'a>(&'a Mutex<Rolling>);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that lines are appended to: at [`LARGEST`] bytes it becomes the older one, `<name>.1`, and a new one begins.
pub(crate) struct Rolling {
    path: PathBuf,
    file: File,
    length: u64,
    /// Device and number of the open file.
    id: (u64, u64),
}

impl Rolling {
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        // A pipe in its place would hold the whole process until somebody reads it.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(flags);
        let file = options.open(&path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no plain file"));
        }
        let mut this = Self { path, file, length: metadata.len(), id: id_of(&metadata) };
        this.end_line()?;
        Ok(this)
    }

    /// A process that was killed may have written half of one.
    fn end_line(&mut self) -> io::Result<()> {
        let mut last = [b'\n'];
        if self.length > 0 {
            self.file.read_exact_at(&mut last, self.length - 1)?;
        }
        if last != [b'\n'] {
            self.length += self.file.write(b"\n")? as u64;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Somebody may have moved it away; around an upgrade another process may have begun the new one, whose lines
        // must not push out the older ones.
        let still_there = std::fs::metadata(&self.path).is_ok_and(|there| self.id == id_of(&there));
        let full = self.length + bytes.len() as u64 > LARGEST;
        if still_there && full {
            let mut older = self.path.clone().into_os_string();
            older.push(".1");
            std::fs::rename(&self.path, older)?;
        }
        if !still_there || full {
            *self = Self::open(self.path.clone())?;
        }
        let written = self.file.write(bytes)?;
        self.length += written as u64;
        Ok(written)
    }
}

fn id_of(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_stays_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Rolling::open(dir.path().join("daemon.log")).unwrap();
        let line = vec![b'x'; 64 * 1024];
        for _ in 0..300 {
            log.write(&line).unwrap();
        }
        let total: u64 = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(total <= 2 * LARGEST, "{total}");
        assert!(total > LARGEST / 2);
    }

    #[test]
    fn a_file_that_another_process_began_anew_is_not_pushed_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let (mut old, mut new) = (Rolling::open(path.clone()).unwrap(), Rolling::open(path.clone()).unwrap());
        let line = vec![b'x'; 64 * 1024];
        let lines = LARGEST / line.len() as u64;
        for _ in 0..lines {
            old.write(&line).unwrap();
        }
        // Both believe that it is full; one of them begins a new one.
        new.length = old.length;
        new.write(b"new\n").unwrap();
        old.write(b"old\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new\nold\n");
        assert_eq!(std::fs::metadata(dir.path().join("events.jsonl.1")).unwrap().len(), LARGEST);
    }

    #[test]
    fn what_is_no_plain_file_is_not_opened_and_half_a_line_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Rolling::open(path.clone()).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"{}\n{\"torn").unwrap();
        Rolling::open(path.clone()).unwrap().write(b"next\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"{}\n{\"torn\nnext\n");
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut log = Rolling::open(path.clone()).unwrap();
        log.write(b"one\n").unwrap();
        std::fs::rename(&path, dir.path().join("kept")).unwrap();
        log.write(b"two\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two\n");
    }

    #[test]
    fn no_filter_lets_another_crate_speak() {
        for level in ["trace", "hyper=trace", "trace,h2=trace"] {
            let text = filter(level).to_string();
            assert!(text.split(',').all(|one| OURS.iter().any(|ours| one.starts_with(ours))), "{text}");
        }
    }
}
