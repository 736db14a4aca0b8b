//! The only binary: reads the command line, runs one command, and turns its end into an exit code.

mod args;
mod commands;
mod connect;
mod control;
mod demo;
mod exit;
mod launch;
mod limits;
mod report;
mod successor;

use std::process::ExitCode;

use clap::Parser as _;
use evermux_config::{PathFlags, Paths};

use self::args::{Cli, Command, Global};
use self::commands::{daemon, doctor, purge, status, stop, upgrade, upstreams};
use self::report::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit)
        }
    }
}

/// Chooses the command. No runtime exists yet: each command builds the one it needs, or none.
fn dispatch(cli: Cli) -> Result<u8, Failure> {
    let paths = resolve(cli.global)?;
    match cli.command {
        Command::Connect { name, no_start } => connect::run(paths, &name, no_start),
        Command::Daemon(how) => daemon::daemon(paths, &how),
        Command::Upgrade { force, json } => upgrade::upgrade(&paths, force, json),
        Command::Status { json } => status::status(&paths, json),
        Command::Stop => stop::stop(&paths),
        Command::Add { name, url, headers } => upstreams::add(&paths, &name, &url, &headers),
        Command::List { json } => upstreams::list(&paths, json),
        Command::Remove { name } => upstreams::remove(&paths, &name),
        Command::Purge { name, all: _ } => purge::purge(&paths, name.as_deref()),
        Command::Doctor { json, share } => doctor::doctor(&paths, json, share),
        Command::Demo => demo::demo(),
    }
}

fn resolve(global: Global) -> Result<Paths, Failure> {
    let flags =
        PathFlags { config: global.config, state_dir: global.state_dir, runtime_dir: global.runtime_dir };
    Paths::resolve(flags).map_err(|error| Failure::config(report::chain(&error)))
}
