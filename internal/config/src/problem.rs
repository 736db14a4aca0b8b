//! One thing wrong with a config file, and the list of them in the order of the file.

use std::fmt;

/// One thing wrong with a config file. Its text never holds a header value or a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The dotted path of the key, such as `upstream.github.url`; empty where the file is not TOML.
    pub path: String,
    /// What is wrong, as a clause without a full stop.
    pub message: String,
    /// The line in the file, counted from 1; none if the text was never in a file.
    pub line: Option<usize>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Collects problems with their byte offsets, so that they come out in the order of the file whatever order
/// the rules ran in.
pub(crate) struct Problems<'t> {
    text: &'t str,
    found: Vec<(usize, Problem)>,
}

impl<'t> Problems<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new() }
    }

    pub(crate) fn push(&mut self, at: usize, path: &str, message: impl Into<String>, hint: Option<String>) {
        let line = Some(line_of(self.text.as_bytes(), at));
        self.found.push((at, Problem { path: path.to_owned(), message: message.into(), line, hint }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(crate) fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|(at, _)| *at);
        self.found.into_iter().map(|(_, problem)| problem).collect()
    }
}

/// The line that holds the byte at `offset`, counted from 1.
pub(crate) fn line_of(text: &[u8], offset: usize) -> usize {
    1 + text.iter().take(offset).filter(|byte| **byte == b'\n').count()
}
