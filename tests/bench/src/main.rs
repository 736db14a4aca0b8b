//! `evermux-bench`: what evermux costs, as ratios to the limits of one hop.
//!
//! Absolute times on shared machines say little; what can be held to is how many times longer a call takes than
//! through the least program that could stand in the same place, measured in the same minute. So this binary brings
//! its own upstream, its own limits and its own load, and runs each as a process of its own, as evermux runs.

mod byte_shim;
mod cli;
mod goals;
mod load;
mod output;
mod pool;
mod process;
mod protocol;
mod relay;
mod report;
mod run;
mod server;
mod spin;
mod sse;
mod stage;
mod targets;
mod tls;
mod upgrade;
mod upstream;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use crate::cli::{Cli, Command, LoadArgs, TargetsArgs, UpstreamArgs};
use crate::load::{Address, Endpoint, HttpEndpoint, Load, StdioEndpoint};
use crate::output::{say, talk};
use crate::report::Round;
use crate::server::{Listener, run_on_one_thread, run_server, serve_http};

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            talk(&format!("evermux-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<bool> {
    match command {
        Command::Run(args) => return run_on_one_thread(run::run(*args)),
        Command::Goals(args) => return run_on_one_thread(goals::run(*args)),
        Command::Targets(args) => print_targets(&args)?,
        Command::Load(args) => run_on_one_thread(put_load(args))?,
        Command::Upstream(args) => run_server(args.owned, serve_upstream(args))?,
        Command::Relay(args) => run_server(args.owned, async {
            relay::serve(Listener::bind(args.socket.as_deref()).await?, &args.upstream).await
        })?,
        Command::ByteDaemon(args) => run_server(args.owned, async {
            byte_shim::serve_daemon(Listener::bind(Some(&args.socket)).await?, &args.upstream).await
        })?,
        Command::ByteShim(args) => byte_shim::run_shim(&args.socket)?,
        Command::Upgrade(args) => upgrade::run(&args)?,
        Command::Spin => spin::run()?,
    }
    Ok(true)
}

async fn serve_upstream(args: UpstreamArgs) -> Result<()> {
    let listener = Listener::bind(None).await?;
    listener.announce(upstream::MCP_PATH)?;
    let connections = Arc::default();
    let upstream = upstream::Upstream::new(&args, Arc::clone(&connections));
    let handler = move |request| Arc::clone(&upstream).answer(request);
    let plain = serve_http(listener, &connections, handler.clone());
    match &args.tls {
        None => plain.await,
        Some(directory) => {
            let secured = tls::Secured::bind(directory).await?;
            secured.announce(upstream::MCP_PATH)?;
            tokio::try_join!(plain, secured.serve_http2(&connections, handler)).map(|((), ())| ())
        }
    }
}

fn print_targets(args: &TargetsArgs) -> Result<()> {
    if args.print {
        return say(targets::BUILT_IN.trim_end());
    }
    for target in targets::read_table(args.table.as_deref())? {
        let reference = target.reference.as_deref().map_or(String::new(), |name| format!("  against {name}"));
        say(&format!("{:<14}{reference}", target.name))?;
    }
    Ok(())
}

async fn put_load(args: LoadArgs) -> Result<()> {
    let endpoint = endpoint_of(&args)?;
    let calls_per_client = args.calls.div_ceil(args.clients);
    let load = Load {
        warm_up_per_client: calls_per_client.div_ceil(10),
        ..Load::of(args.clients, calls_per_client, args.size)
    };
    let sample = load::run_round(&endpoint, load, None).await?;
    say(&serde_json::to_string_pretty(&Round::from(&sample))?)
}

fn endpoint_of(args: &LoadArgs) -> Result<Endpoint> {
    if let Some(command) = &args.command {
        let command = command.split_whitespace().map(str::to_owned).collect();
        let environment = std::env::vars().filter(|(name, _)| name.starts_with("EVERMUX_")).collect();
        return Ok(Endpoint::Stdio(StdioEndpoint { command, environment, directory: std::env::temp_dir() }));
    }
    let (address, path) = match (&args.url, &args.socket) {
        (Some(url), _) => targets::tcp_address(url)?,
        (None, Some(socket)) => (Address::Unix(socket.clone()), args.path.clone()),
        (None, None) => anyhow::bail!("one of --url, --socket and --command is needed"),
    };
    let headers = args
        .header
        .iter()
        .map(|header| {
            header.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect::<Option<_>>()
        .context("--header is `Name: value`")?;
    Ok(Endpoint::Http(HttpEndpoint { address, path, headers, as_shim: args.shim }))
}
