//! The guard's command line; `cargo run --profile micro -p evermux-micro -- guard`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool whose output is read by people")]

use std::process::ExitCode;

use anyhow::Result;
use evermux_micro::{guard, replay, trace};

const USAGE: &str = "usage: evermux-micro guard [--accept] | replay
  guard     count instructions and allocations of the recorded trace, and compare them to instructions.toml
  --accept  write what was counted there
  replay    replay the trace once, as callgrind is to see it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["guard"] => guard::run(false),
        ["guard", "--accept"] => guard::run(true),
        ["replay"] => replayed(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn replayed() -> Result<bool> {
    println!("{:#?}", replay::replay(&trace::read(guard::TRACE)?)?);
    Ok(true)
}
