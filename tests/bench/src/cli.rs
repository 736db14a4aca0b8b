//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::goals::Part;
use crate::upstream::{Reply, Spoil};

const HOW: &str = "\
How it measures
  One fast upstream answers everything. Each target (evermux, and the limits it is held against) is started once;
  then the rounds are interleaved, A B C A B C ..., so that what else the machine does falls on all alike. In a round
  every client makes its own handshake and warm-up, then all of them call in a closed loop. Every answer is checked:
  id, nonce, size and content; and the upstream's count must equal the calls made. One wrong answer fails the run.
  Figures are medians over the rounds with [min..max]. A ratio is taken within a round and then its median; microseconds
  of different machines or runs are not comparable, ratios are.

Examples
  evermux-bench run --quick                          do all parts work?
  evermux-bench run --clients 1,16,64 --json out.json
  evermux-bench run --targets evermux-shim --size 1m --reply sse
  evermux-bench run --targets evermux-unix,evermux-shim --clients 50 --calls 500 --memory
  evermux-bench run --table mine.toml --targets mine  your own proxy beside its limit; see `targets --print`
  evermux-bench load --url http://127.0.0.1:3001/mcp --calls 100000      load to profile something under

Exit: 0 measured; 1 a wrong answer, a failure while measuring, or (--strict) a target that could not start.";

const GOALS_HOW: &str = "\
Parts (all with a fresh daemon, in this order)
  calls        tools/call, 100 B and 10 KiB, JSON and SSE, 1, 16 and 64 clients; the socket and the port beside the
               relay, the shim beside the byte shim: p50, p99, calls/s, CPU
  large        1 MiB results over the same paths; extra memory is the daemon's peak resident size in the round less what
               was resident before, in sizes of a result; a daemon for each round
  start        a client spawns its shim, says initialize, asks for tools/list and makes a call; with a daemon running,
               and with none (once with a recorded session, once with an empty state directory)
  memory       what the machine pays for one more shim; the daemon with links that listen and say nothing; the daemon
               while clients come, call and go for --minutes
  idle         voluntary context switches of all the daemon's threads in --idle-seconds, less one for each keep-alive
               that came out and two for each ping that the upstream had
  connections  what the upstream counts; one of the connections is the GET stream; once more over TLS, where the
               upstream speaks HTTP/2
  cold         a daemon is started on what 1 000 sessions have left: from its spawn to a client's tools/list, and memory
               against the same start on nothing; sessions of 1 000 clients (share = client) and of 1 000 upstreams
  growth       calls/s on one session at 10, 100 and 1 000 links that all listen, against 10 in the same round

  The goals themselves are a table in the source, src/goals/table.rs. A figure is the median over the rounds with
  [min..max], and it is the median that meets the goal or does not. Every answer is checked as with `run`.

Examples
  evermux-bench goals --quick --evermux target/release/evermux        do all parts work?
  evermux-bench goals --only start,cold --rounds 9 --json out.json
  evermux-bench goals --only memory --minutes 60

Exit: 0 measured; 1 a wrong answer, a part that failed or gave no figure, or (--strict) a goal that is not met.";

/// Measures evermux as ratios to the limits of one hop.
#[derive(Debug, Parser)]
#[command(name = "evermux-bench", version, after_long_help = HOW, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure targets beside each other and print a table of figures and ratios
    #[command(after_long_help = HOW)]
    Run(Box<RunArgs>),
    /// Hold evermux against its goals: a table of what, goal, figure and whether it is met
    #[command(after_long_help = GOALS_HOW)]
    Goals(Box<GoalsArgs>),
    /// Tell which targets there are
    Targets(TargetsArgs),
    /// Put load on one endpoint and check every answer (for profiling)
    Load(LoadArgs),
    /// Measure what an upgrade of the daemon costs those who work
    Upgrade(UpgradeArgs),
    /// Serve the fast MCP upstream on a free loopback port
    Upstream(UpstreamArgs),
    /// Serve the one-hop relay (a limit)
    Relay(RelayArgs),
    /// Serve the byte daemon behind the byte shim (a limit)
    ByteDaemon(ByteDaemonArgs),
    /// Move bytes between stdio and the byte daemon (a limit)
    ByteShim(ByteShimArgs),
    /// Keep every core awake until stdin ends
    Spin,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// The evermux binary
    #[arg(long, value_name = "PATH")]
    pub(crate) evermux: PathBuf,
    /// Numbers of links that listen, a row each
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    pub(crate) links: Vec<usize>,
    /// Rounds; the rows are interleaved
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: u32,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct GoalsArgs {
    /// Parts to measure [default: all]
    #[arg(long, value_delimiter = ',', value_enum, value_name = "PART")]
    pub(crate) only: Vec<Part>,
    /// Rounds; medians need at least five
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// memory: how long load is put on
    #[arg(long, default_value_t = 1.0)]
    pub(crate) minutes: f64,
    /// idle: how long wake-ups are counted
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) idle_seconds: u64,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Rounds; medians need at least five
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Measured calls of all clients together in a round [default: 4000, from 64 KiB on 200]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) calls: Option<u32>,
    /// Numbers of clients, one table each
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) clients: Vec<u32>,
    /// Sizes of a result in bytes (100, 10k, 1m), one table each
    #[arg(long, value_delimiter = ',', default_value = "100", value_parser = parse_size)]
    pub(crate) size: Vec<usize>,
    /// How the upstream answers
    #[arg(long, value_enum, default_value = "json")]
    pub(crate) reply: Reply,
    /// Targets to measure [default: all that the table marks so]; their references come along
    #[arg(long, value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// Table with further targets
    #[arg(long, value_name = "FILE")]
    pub(crate) table: Option<PathBuf>,
    /// Also tell the memory of servers and stdio children
    #[arg(long)]
    pub(crate) memory: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// What `run` and `goals` take alike.
#[derive(Clone, Debug, Args)]
pub(crate) struct CommonArgs {
    /// The evermux binary [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) evermux: Option<PathBuf>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// At most two rounds of little: shows that the parts work, not how fast they are
    #[arg(long)]
    pub(crate) quick: bool,
    /// What could not be measured fails the run: a target that could not start; with `goals`, a goal not met too
    #[arg(long)]
    pub(crate) strict: bool,
    /// Keep a spinner on each core, which gives way to what is measured (the default)
    #[arg(long, overrides_with = "no_spin")]
    pub(crate) spin: bool,
    /// Let idle cores halt
    #[arg(long, overrides_with = "spin")]
    pub(crate) no_spin: bool,
    /// Longest time for one round of one target, in seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub(crate) round_timeout: u64,
    #[command(flatten)]
    pub(crate) spoil: SpoilArgs,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SpoilArgs {
    /// Have the upstream spoil the answer of its N-th call, to see the run fail
    #[arg(long, value_name = "N")]
    pub(crate) corrupt_call: Option<u64>,
    /// What is wrong with that answer
    #[arg(long, value_enum, default_value = "nonce")]
    pub(crate) corrupt_what: Spoil,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TargetsArgs {
    /// Print the built-in table itself, with its explanation
    #[arg(long)]
    pub(crate) print: bool,
    /// Table with further targets
    #[arg(long, value_name = "FILE")]
    pub(crate) table: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true))]
pub(crate) struct LoadArgs {
    /// MCP endpoint over TCP
    #[arg(long, group = "where")]
    pub(crate) url: Option<String>,
    /// Unix socket with an MCP endpoint at --path
    #[arg(long, group = "where")]
    pub(crate) socket: Option<PathBuf>,
    /// Command of a stdio client, in one argument, split at spaces
    #[arg(long, group = "where")]
    pub(crate) command: Option<String>,
    /// Endpoint path with --socket
    #[arg(long, default_value = "/mcp")]
    pub(crate) path: String,
    /// Request header as `Name: value`
    #[arg(long)]
    pub(crate) header: Vec<String>,
    /// Send the headers of evermux's shim
    #[arg(long)]
    pub(crate) shim: bool,
    /// Clients
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) clients: u32,
    /// Calls of all clients together
    #[arg(long, default_value_t = 10_000)]
    pub(crate) calls: u32,
    /// Size of a result in bytes (100, 10k, 1m)
    #[arg(long, default_value = "100", value_parser = parse_size)]
    pub(crate) size: usize,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UpstreamArgs {
    /// How it answers
    #[arg(long, value_enum, default_value = "json")]
    pub(crate) reply: Reply,
    /// Hold GET streams open instead of refusing them
    #[arg(long)]
    pub(crate) streams: bool,
    /// Serve HTTP/2 over TLS too, on a port of its own (the second line), with the authority's certificate in DIR/ca.pem
    #[arg(long, value_name = "DIR")]
    pub(crate) tls: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) spoil: SpoilArgs,
    /// End when stdin does
    #[arg(long)]
    pub(crate) owned: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RelayArgs {
    /// The upstream's endpoint
    #[arg(long)]
    pub(crate) upstream: String,
    /// Listen on this unix socket instead of a free loopback port
    #[arg(long)]
    pub(crate) socket: Option<PathBuf>,
    /// End when stdin does
    #[arg(long)]
    pub(crate) owned: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ByteDaemonArgs {
    /// The upstream's endpoint
    #[arg(long)]
    pub(crate) upstream: String,
    /// Unix socket to listen on
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// End when stdin does
    #[arg(long)]
    pub(crate) owned: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ByteShimArgs {
    /// The byte daemon's socket
    #[arg(long)]
    pub(crate) socket: PathBuf,
}

/// Bytes, with `k` for 1024 and `m` for 1024².
fn parse_size(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = match lower.strip_suffix('k') {
        Some(digits) => (digits, 1024),
        None => lower.strip_suffix('m').map_or((lower.as_str(), 1), |digits| (digits, 1024 * 1024)),
    };
    let size: usize = digits.parse().map_err(|_| "a number of bytes, such as 100, 10k or 1m".to_owned())?;
    size.checked_mul(factor).filter(|size| *size <= 64 * 1024 * 1024).ok_or("at most 64m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(parse_size("100"), Ok(100));
        assert_eq!(parse_size("10k"), Ok(10_240));
        assert_eq!(parse_size("1M"), Ok(1_048_576));
        assert!(parse_size("1g").is_err());
        assert!(parse_size("999999m").is_err());
    }
}
