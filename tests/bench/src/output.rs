//! The two channels to people: data on stdout, talk on stderr.

use std::io::Write as _;

/// Writes a line of data to stdout.
///
/// # Errors
/// When stdout is closed.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}

/// Writes a line of talk to stderr.
pub(crate) fn talk(line: &str) {
    // Nobody to tell it to is no reason to end a measurement.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
