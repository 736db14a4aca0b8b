//! Runs the replay under callgrind and reads what it counted.
//!
//! A plain run and a small parser: the harness crate for this (`gungraun`, before `iai-callgrind`) wants a second program of
//! exactly its version installed, which takes longer to build than all of this takes to run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// What happened inside of one function, callees included.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Instructions of the program's own code. The C library's are not in it: it picks its copying functions by the processor,
    /// and every system has another one.
    pub own: u64,
    /// Those of shared libraries.
    pub library: u64,
    /// Blocks that were asked for, or made larger or smaller.
    ///
    /// Each goes through a function that the compiler makes, which is one jump: so its instructions are its calls. The calls
    /// that callgrind writes down are of the whole run, wherever it counts.
    pub allocations: u64,
}

/// Replays the trace under callgrind, and counts inside of `function` only. What was counted is kept in `out`.
///
/// # Errors
/// If callgrind or the replay fails, or nothing was counted.
pub fn count(function: &str, out: &Path) -> Result<Counts> {
    let program = std::env::current_exe().context("where am I?")?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--quiet"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .arg("replay")
        .output()
        .context("valgrind cannot be run")?;
    let said = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "the replay failed under callgrind: {said}");
    let text = std::fs::read_to_string(out).with_context(|| out.display().to_string())?;
    let counts = read(&text, &program.to_string_lossy())?;
    ensure!(counts.own > 0, "callgrind has seen nothing of `{function}`");
    Ok(counts)
}

/// What is read at present.
#[derive(Default)]
struct Place {
    /// Names are written once, and later only their number.
    objects: BTreeMap<String, String>,
    functions: BTreeMap<String, String>,
    object: String,
    function: String,
    /// The next cost is what a call took, which stands at the callee already.
    of_call: bool,
}

/// Reads callgrind's file (its manual, "Callgrind Format Specification").
///
/// # Errors
/// If a number is none.
pub fn read(text: &str, program: &str) -> Result<Counts> {
    let (mut counts, mut place) = (Counts::default(), Place::default());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            place.object = named(&mut place.objects, name);
        } else if let Some(name) = line.strip_prefix("cob=") {
            named(&mut place.objects, name);
        } else if let Some(name) = line.strip_prefix("fn=") {
            place.function = named(&mut place.functions, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            named(&mut place.functions, name);
        } else if line.starts_with("calls=") {
            place.of_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = number(line.split(' ').nth(1))?;
            if std::mem::take(&mut place.of_call) {
                continue;
            }
            if allocates(&place.function) {
                counts.allocations += cost;
            }
            *(if place.object == program { &mut counts.own } else { &mut counts.library }) += cost;
        }
    }
    Ok(counts)
}

fn allocates(function: &str) -> bool {
    matches!(function.rsplit("::").next(), Some("__rust_alloc" | "__rust_alloc_zeroed" | "__rust_realloc"))
}

fn number(word: Option<&str>) -> Result<u64> {
    word.unwrap_or_default().parse().with_context(|| format!("no number: {word:?}"))
}

/// `(3) name` says what 3 is called, `(3)` is it again.
fn named(names: &mut BTreeMap<String, String>, text: &str) -> String {
    match text.split_once(' ') {
        Some((short, name)) => {
            names.insert(short.to_owned(), name.to_owned());
            name.to_owned()
        }
        None => names.get(text).cloned().unwrap_or_else(|| text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_code_and_its_allocations_are_counted() {
        let text = "version: 1\nevents: Ir\n\nob=(1) /bin/p\nfl=(1) ???\nfn=(1) a\n0 5\ncfn=(2) __rustc::__rust_alloc\n\
                    calls=3 0 \n0 70\n+2 4\nfn=(2)\n0 3\ncob=(2) /lib/libc.so\ncfn=(3) malloc\ncalls=9 0\n0 60\n\
                    ob=(2)\nfn=(3)\n0 60\nob=(1)\nfn=(4) __rustc::__rdl_realloc\n* 6\n";
        assert_eq!(read(text, "/bin/p").unwrap(), Counts { own: 18, library: 60, allocations: 3 });
    }
}
