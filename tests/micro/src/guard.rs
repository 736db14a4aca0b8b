//! Compares what the recorded trace takes to what it took when that was last accepted.
//!
//! Instructions of the own code are the same from run to run, and on every x86-64 processor that has AVX2: below that, what
//! `memchr` and `blake3` do differs. Another compiler makes other code, so its version stands beside the numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::callgrind::{self, Counts};
use crate::replay::{Replayed, replay};
use crate::trace;

/// The trace.
pub const TRACE: &str = include_str!("../trace.txt");

/// More than this is too much, as much less should be accepted: what the compiler inlines elsewhere moves the numbers by a
/// per cent or two.
const TOLERANCE: f64 = 0.05;
/// Allocations are exact, and hardly a matter of the compiler.
const ALLOCATIONS: f64 = 0.01;
const ACCEPT: &str = "cargo run --profile micro -p evermux-micro -- guard --accept";

/// The accepted numbers, as in `instructions.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    rustc: String,
    parts: BTreeMap<String, Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    instructions: u64,
    allocations: u64,
}

/// A function that is counted, and how often what is counted by it is in the trace.
struct Unit {
    name: &'static str,
    function: &'static str,
    what: &'static str,
    count: u64,
}

/// Counts, reports and compares, or accepts. True if nothing takes more than is accepted.
///
/// # Errors
/// If it cannot be counted.
pub fn run(accept: bool) -> Result<bool> {
    if let Some(why) = cannot_compare() {
        return Ok(unguarded(&why));
    }
    let compiler = compiler()?;
    let counted = count_all(&replay(&trace::read(TRACE)?)?)?;
    say(&table(&counted));
    if accept {
        std::fs::write(file(), as_toml(&compiler, &counted)).context("instructions.toml")?;
        say("accepted");
        return Ok(true);
    }
    let text = std::fs::read_to_string(file()).context("instructions.toml")?;
    let accepted: Accepted = toml::from_str(&text).context("instructions.toml")?;
    if accepted.rustc != compiler {
        let why = format!("counted with {compiler}, accepted with {}; accept anew: {ACCEPT}", accepted.rustc);
        return Ok(unguarded(&why));
    }
    let verdicts: Vec<Verdict> =
        counted.iter().flat_map(|(unit, counts)| judge(&accepted, unit, *counts)).collect();
    verdicts.iter().for_each(|verdict| say(&verdict.words));
    let is_counted = |name: &String| counted.iter().any(|(unit, _)| unit.name == name);
    let uncounted: Vec<&String> = accepted.parts.keys().filter(|name| !is_counted(name)).collect();
    uncounted.iter().for_each(|name| say(&format!("FAILED: {name} is accepted, and nothing counts it")));
    Ok(uncounted.is_empty() && verdicts.iter().all(|verdict| verdict.fits))
}

/// What is not compared must not pass for compared where it matters.
fn unguarded(why: &str) -> bool {
    say(&format!("SKIPPED: the guard of instructions: {why}"));
    std::env::var("CI").as_deref() != Ok("true")
}

fn cannot_compare() -> Option<String> {
    if cfg!(debug_assertions) {
        return Some("this is a debug build; say `--profile micro`".to_owned());
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("the numbers are of Linux on x86-64".to_owned());
    }
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !processor.split_whitespace().any(|flag| flag == "avx2") {
        return Some("the numbers are of a processor with AVX2".to_owned());
    }
    let found = Command::new("valgrind").arg("--version").output().is_ok_and(|run| run.status.success());
    (!found).then(|| "valgrind is not installed".to_owned())
}

fn compiler() -> Result<String> {
    let run = Command::new("rustc").arg("-V").output().context("rustc -V")?;
    Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned())
}

/// What `cargo run` says comes first: two checkouts may share a target directory, and with it what was built in the other.
fn file() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()).join("instructions.toml")
}

fn units(done: &Replayed) -> [Unit; 5] {
    let unit = |name, function, what, count| Unit { name, function, what, count };
    [
        unit("call", "measured_call", "call, all its facts", done.sum.calls),
        unit("rest", "measured_rest", "fact about anything else", done.sum.facts_of_rest),
        unit("parse", "measured_parse", "message", done.parsed),
        unit("splice", "measured_splice", "message", done.spliced),
        unit("decode", "measured_decode", "event", done.events),
    ]
}

fn count_all(done: &Replayed) -> Result<Vec<(Unit, Counts)>> {
    let program = std::env::current_exe().context("where am I?")?;
    let count = |unit: Unit| {
        let out = program.with_file_name(format!("callgrind.out.{}", unit.name));
        let counts = callgrind::count(unit.function, &out)?;
        Ok((unit, counts))
    };
    let counted = units(done).into_iter().map(count).collect::<Result<Vec<_>>>()?;
    // A part may do without, but not all of them.
    ensure!(counted.iter().any(|(_, counts)| counts.allocations > 0), "callgrind has seen no allocation");
    Ok(counted)
}

fn table(counted: &[(Unit, Counts)]) -> String {
    let mut text = String::from(
        "part    of                        each: own, in libraries, allocations   in all: own, allocations",
    );
    for (unit, counts) in counted {
        let each = |number: u64| number.checked_div(unit.count).unwrap_or(0);
        let allocations = per(counts.allocations, unit.count);
        let _ = write!(
            text,
            "\n{:<7} {:>4} × {:<25} {:>7} {:>7} {allocations:>7.2}   {:>10} {:>7}",
            unit.name,
            unit.count,
            unit.what,
            each(counts.own),
            each(counts.library),
            counts.own,
            counts.allocations,
        );
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "numbers far below 2^52")]
fn per(number: u64, count: u64) -> f64 {
    number as f64 / count.max(1) as f64
}

fn as_toml(compiler: &str, counted: &[(Unit, Counts)]) -> String {
    let mut text =
        format!("# What the recorded trace takes, in all. Written by `{ACCEPT}`.\nrustc = {compiler:?}\n");
    for (unit, counts) in counted {
        let _ = write!(
            text,
            "\n# {} × {}\n[parts.{}]\ninstructions = {}\nallocations = {}\n",
            unit.count, unit.what, unit.name, counts.own, counts.allocations
        );
    }
    text
}

#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    fits: bool,
    words: String,
}

/// What there is to say about a part: nothing, as a rule.
fn judge(accepted: &Accepted, unit: &Unit, counts: Counts) -> Vec<Verdict> {
    let Some(part) = accepted.parts.get(unit.name) else {
        let words = format!("FAILED: {} is not in instructions.toml; accept it: {ACCEPT}", unit.name);
        return vec![Verdict { fits: false, words }];
    };
    let instructions = compare(unit, "instructions", counts.own, part.instructions, TOLERANCE);
    let allocations = compare(unit, "allocations", counts.allocations, part.allocations, ALLOCATIONS);
    instructions.into_iter().chain(allocations).collect()
}

fn compare(unit: &Unit, what: &str, now: u64, before: u64, tolerance: f64) -> Option<Verdict> {
    let ratio = match (now, before) {
        (0, 0) => 1.0,
        (_, 0) => f64::INFINITY,
        _ => per(now, before),
    };
    let (fits, judged) = match ratio {
        more if more > 1.0 + tolerance => (false, "FAILED: too many"),
        less if less < 1.0 - tolerance => (true, "better, so that the accepted number should be lowered:"),
        _ => return None,
    };
    let (each, was) = (per(now, unit.count), per(before, unit.count));
    let words = format!(
        "{judged} {what} of `{}`: {now} in all, accepted are {before} ({:+.1} %); for one {}: {each:.2}, accepted {was:.2}. \
         If that is as it should be: {ACCEPT}",
        unit.name,
        (ratio - 1.0) * 100.0,
        unit.what,
    );
    Some(Verdict { fits, words })
}

#[allow(clippy::print_stdout, reason = "a tool whose output is read by people")]
fn say(words: &str) {
    println!("{words}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Unit = Unit { name: "call", function: "f", what: "call", count: 10 };

    fn verdicts(own: u64, allocations: u64) -> Vec<bool> {
        let text = "rustc = \"r\"\n[parts.call]\ninstructions = 1000\nallocations = 200\n";
        let accepted: Accepted = toml::from_str(text).unwrap();
        let verdicts = judge(&accepted, &UNIT, Counts { own, library: 0, allocations });
        verdicts.into_iter().map(|verdict| verdict.fits).collect()
    }

    #[test]
    fn more_fails_less_is_said_and_about_as_much_is_silent() {
        assert_eq!(verdicts(1050, 202), [true; 0]);
        assert_eq!(verdicts(1051, 200), [false]);
        assert_eq!(verdicts(1000, 203), [false]);
        assert_eq!(verdicts(949, 197), [true, true]);
        assert_eq!(
            judge(&Accepted { rustc: String::new(), parts: BTreeMap::new() }, &UNIT, Counts::default()).len(),
            1
        );
    }

    #[test]
    fn what_is_written_can_be_read() {
        let counts = Counts { own: 5, library: 6, allocations: 7 };
        let accepted: Accepted = toml::from_str(&as_toml("rustc 1", &[(UNIT, counts)])).unwrap();
        assert_eq!(accepted.parts["call"], Part { instructions: 5, allocations: 7 });
    }

    /// Every request of the trace is answered by the core as it is now.
    #[test]
    fn the_trace_fits_the_core() {
        let done = replay(&trace::read(TRACE).unwrap()).unwrap();
        assert!(done.sum.calls > 90 && done.sum.others > 30 && done.sum.told > 20, "{done:?}");
        assert_eq!((done.sum.asked, done.sum.refused), (2, 0));
    }
}
