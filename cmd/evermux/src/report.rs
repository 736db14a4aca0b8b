//! The one place where an error becomes words: what happened, where, and what to do next.
//!
//! Commands return a [`Failure`]; only `main` prints it and only its `exit` becomes the exit code.

use std::io::Write as _;

use crate::exit;

const RED: &str = "\x1b[1;31m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// A command that did not do what it was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// One of [`crate::exit`].
    pub(crate) exit: u8,
    /// One sentence, no full stop.
    pub(crate) what: String,
    /// The file, socket or setting concerned.
    pub(crate) place: Option<String>,
    /// What the reader can do about it.
    pub(crate) next: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: u8, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), place: None, next: None }
    }

    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::new(exit::FAILED, what)
    }

    pub(crate) fn config(what: impl Into<String>) -> Self {
        Self::new(exit::CONFIG, what)
    }

    pub(crate) fn no_daemon(socket: &std::path::Path) -> Self {
        Self::new(exit::NO_DAEMON, "no daemon runs")
            .at(socket.display().to_string())
            .next("`evermux connect NAME` starts one; `evermux daemon` runs one in the foreground")
    }

    #[must_use]
    pub(crate) fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    #[must_use]
    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// All of it in one line, for places that have only one (a JSON-RPC error's `message`).
    pub(crate) fn one_line(&self) -> String {
        let mut line = self.what.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        if let Some(place) = self.place.as_ref().filter(|place| !line.contains(place.as_str())) {
            line.push_str(&format!(" ({place})"));
        }
        if let Some(next) = &self.next {
            line.push_str(&format!(": {next}"));
        }
        line
    }

    /// As it is shown on a terminal; ANSI styles, which the writer strips where they do not belong.
    fn styled(&self) -> String {
        let mut text = format!("{RED}error:{PLAIN} {}\n", self.what);
        if let Some(place) = &self.place {
            text.push_str(&format!("{DIM}where:{PLAIN} {place}\n"));
        }
        if let Some(next) = &self.next {
            text.push_str(&format!("{DIM}next:{PLAIN}  {next}\n"));
        }
        text
    }

    /// Says it on stderr. A stderr that cannot be written to changes nothing: the exit code still tells.
    pub(crate) fn print(&self) {
        let _unwritable = anstream::stderr().write_all(self.styled().as_bytes());
    }
}

/// `source` and everything below it, joined by `: `, for errors whose `Display` shows one level only.
pub(crate) fn chain(source: &dyn std::error::Error) -> String {
    let mut text = source.to_string();
    let mut below = source.source();
    while let Some(error) = below {
        let line = error.to_string();
        if !text.contains(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        below = error.source();
    }
    text
}

/// Talk: something the user may want to know and a script must not parse.
pub(crate) fn say(line: &str) {
    let _unwritable = writeln!(anstream::stderr(), "{line}");
}

/// Data: what the command was asked for.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // `evermux status | head -1` is no failure.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| Failure::failed(format!("stdout cannot be written: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_where_and_what_next() {
        let failure = Failure::config("no upstream `x`").at("/c.toml").next("add it");
        insta::assert_snapshot!(anstream::adapter::strip_str(&failure.styled()), @r"
        error: no upstream `x`
        where: /c.toml
        next:  add it
        ");
        assert_eq!(failure.one_line(), "no upstream `x` (/c.toml): add it");
        assert_eq!(failure.exit, 2);
        let listed = Failure::config("2 problems in /c.toml\n  line 1: a\n  line 2: b").at("/c.toml");
        assert_eq!(listed.one_line(), "2 problems in /c.toml; line 1: a; line 2: b");
    }
}
