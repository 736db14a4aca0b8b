//! `evermux connect NAME`: the stdio end for one MCP client, and a small client of the daemon.
//!
//! It outlives the daemon: what the client sent is kept until it is settled, and is sent again under its number
//! to whichever daemon answers next. The client sees one server that is never away.
//!
//! * [`machine`] decides everything, and does nothing.
//! * [`pump`] carries out what each call needs, on one thread that waits for all its files at once; [`exchange`],
//!   [`socket`] and [`stdio`] are what it moves.
//! * [`errand`] does the rest beside it, each on a thread that ends with it.
//!
//! stdout carries JSON-RPC lines and nothing else, ever; words go to stderr. The process stays small: it touches
//! no TLS and no HTTP/2, and holds only messages that are under way. The loop is not a runtime's, because what a call costs
//! where sixty shims share two cores is the code that it touches (decision 0028).

mod backoff;
mod entry;
mod envelope;
mod errand;
mod exchange;
mod facts;
mod machine;
mod offer;
mod pump;
mod scratch;
mod socket;
mod spawn;
mod stdio;

use evermux_config::{ConfigError, Paths};

use self::envelope::ErrorKind;
use self::errand::Place;
use self::machine::Machine;
use self::pump::Pump;
use crate::limits::Limits;
use crate::report::{Failure, chain};

/// Runs the shim to its end; returns the exit code.
pub(crate) fn run(paths: Paths, upstream: &str, no_start: bool) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot start: {error}"));
    let machine = match refusal(&paths, upstream) {
        None => Machine::new(upstream, !no_start, seed()).giving_up_after(Limits::get().give_up),
        Some(refusal) => {
            refusal.print();
            Machine::doomed(upstream, refusal.exit, ErrorKind::Misconfigured, refusal.one_line())
        }
    };
    let Some(daemon) = Place::new(paths, upstream) else {
        return Err(Failure::config(format!("`{upstream}` cannot be the name of an upstream")));
    };
    Pump::new(machine, daemon).map(Pump::run).map_err(failed)
}

/// Why NAME cannot be served, whatever the daemon says.
fn refusal(paths: &Paths, upstream: &str) -> Option<Failure> {
    let file = paths.config_file.display().to_string();
    let config = match evermux_config::load(&paths.config_file) {
        Ok(config) => config,
        Err(error @ (ConfigError::Read { .. } | ConfigError::Invalid { .. })) => {
            return Some(Failure::config(chain(&error)).at(file).next("correct the file and connect again"));
        }
    };
    if config.upstreams.keys().any(|name| name.as_str() == upstream) {
        return None;
    }
    let shown = upstream.escape_default();
    let next = format!("see `evermux list`, or add it: `evermux add {shown} URL`");
    Some(Failure::config(format!("no upstream `{shown}` in the config")).at(file).next(next))
}

fn seed() -> u64 {
    // Without randomness the shims of one machine only lose their spread.
    getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()))
}
