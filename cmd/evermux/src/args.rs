//! The command line as types, and nothing else: no side effects, no defaults that need the machine.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};

/// Keeps the sessions of your MCP servers alive and shares them among all MCP clients on this machine.
#[derive(Debug, Parser)]
#[command(name = "evermux", version, propagate_version = true, max_term_width = 100)]
#[command(after_long_help = "\
Examples:
  evermux add docs https://mcp.example.com/mcp     name a server once
  evermux connect docs                             what your MCP client runs instead of the server
  evermux status                                   what runs, per server and session
  evermux doctor                                   what is wrong with what is recorded
  evermux demo                                     see a session outlive the daemon, on a built-in server

In an MCP client's configuration:
  { \"mcpServers\": { \"docs\": { \"command\": \"evermux\", \"args\": [\"connect\", \"docs\"] } } }

Exit codes: 0 done, 1 failed, 2 command line or config, 3 no daemon runs.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where things are; every flag has an environment variable, and the flag wins.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The config file [default: the platform's config directory, evermux/config.toml]
    #[arg(long, global = true, value_name = "FILE", env = "EVERMUX_CONFIG", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Where sessions are recorded [default: the platform's state directory, evermux]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "EVERMUX_STATE_DIR",
        help_heading = "Global options"
    )]
    pub(crate) state_dir: Option<PathBuf>,
    /// Where the daemon's socket lies [default: STATE_DIR/run]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "EVERMUX_RUNTIME_DIR",
        help_heading = "Global options"
    )]
    pub(crate) runtime_dir: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Be the MCP server NAME on stdin and stdout (run by MCP clients)
    #[command(after_long_help = "\
Speaks newline-delimited JSON-RPC on stdin and stdout and starts the daemon if none runs. It ends when
stdin ends, after pending answers are written (at most 10 s).

Examples:
  evermux connect docs
  claude mcp add docs -- evermux connect docs

Exit codes: 0 stdin ended; 2 NAME is not in the config, or the config is wrong; 3 no daemon (--no-start).
For 2 and 3 the reason is also the answer to the client's first request.")]
    Connect {
        /// An upstream of the config (see `evermux list`)
        name: String,
        /// Fail instead of starting a daemon when none runs
        #[arg(long)]
        no_start: bool,
    },
    /// Run the daemon in the foreground (`connect` starts one by itself)
    #[command(after_long_help = "\
SIGTERM and SIGINT drain: running calls end, nothing new is taken. SIGHUP reloads the config.
With --takeover it becomes the successor of the daemon that runs, or simply starts if none does.

Examples:
  evermux daemon
  kill -HUP $(evermux status --json | jq .daemon.pid)

Exit codes: 0 stopped after a drain; 1 failed, or one already runs; 2 config.")]
    Daemon(DaemonArgs),
    /// Replace the running daemon by this build; sessions, clients and calls go on
    #[command(after_long_help = "\
Starts this program as the successor of the running daemon and waits until it serves. Running calls
end in the old process. If anything is in the way, the old daemon goes on as before.

Examples:
  evermux upgrade            after a new version was installed
  evermux upgrade --force    also if the daemon runs this very build

Exit codes: 0 upgraded, or it runs this build already; 1 not upgraded, nothing changed; 3 no daemon.")]
    Upgrade {
        /// Also if the daemon runs this very build
        #[arg(long)]
        force: bool,
        /// Print what became of it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what runs, per upstream and session
    #[command(after_long_help = "\
Examples:
  evermux status
  evermux status --json | jq '.sessions[] | {upstream, status, initializes}'

Exit codes: 0; 3 no daemon runs (with --json: {\"daemon\": null}).")]
    Status {
        /// Print the daemon's answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Drain and stop the daemon; sessions stay recorded
    #[command(after_long_help = "\
Upstream sessions are not ended: the next daemon goes on in them. Shims that still live start no daemon until
their client sends a request.

Exit codes: 0 it stopped, or is draining; 3 none ran.")]
    Stop,
    /// Add an upstream to the config, keeping comments
    #[command(after_long_help = "\
Examples:
  evermux add docs https://mcp.example.com/mcp
  evermux add hub https://hub.example.com/mcp --header 'Authorization=Bearer ${HUB_TOKEN}'

In single quotes ${VAR} stays a name: the config holds no token, and the value comes from the
environment of the client that runs `evermux connect`. For a file or a command, in the config:
  headers.Authorization = { file = \"token\" }
  headers.Authorization = { command = [\"prog\", \"arg\"] }

Exit codes: 0; 1 the daemon refused to reload; 2 the name, the URL or the config is wrong.")]
    Add {
        #[arg(help = "[a-z0-9][a-z0-9_-]{0,63}")]
        name: String,
        /// The server's streamable HTTP endpoint
        url: String,
        /// A header sent with every request; may be repeated
        #[arg(long = "header", value_name = "K=V")]
        headers: Vec<String>,
    },
    /// List the upstreams of the config
    #[command(after_long_help = "Header values are never shown, only where they come from.")]
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an upstream from the config, keeping comments
    #[command(after_long_help = "\
A running daemon reloads, and ends the upstream's sessions once nothing runs in them.

Exit codes: 0; 1 the daemon refused to reload; 2 NAME is not in the config, or the config is wrong.")]
    Remove {
        /// An upstream of the config
        name: String,
    },
    /// End sessions for good: DELETE at the upstream, record removed
    #[command(group(ArgGroup::new("which").required(true).args(["name", "all"])), after_long_help = "\
Examples:
  evermux purge docs
  evermux purge --all

Exit codes: 0; 3 no daemon runs: the records are removed, the DELETE is owed to the upstreams.")]
    Purge {
        /// An upstream
        name: Option<String>,
        /// Every session of every upstream
        #[arg(long)]
        all: bool,
    },
    /// Look at what is recorded, and say what is wrong; changes nothing
    #[command(after_long_help = "\
Reads the state directory only: no daemon is needed or asked, nothing is written, locked or sent.
It works on a copy, on a read-only one, and while a daemon runs. planning/doctor.md in the
sources lists the codes. A call that was sent and has no answer noted is told as
OUTCOME_UNKNOWN: it may have taken effect.

Examples:
  evermux doctor
  evermux doctor --json | jq -r '.findings[] | [.code, .file] | @tsv'
  evermux doctor --share                     names as hashes, for a bug report
  evermux doctor --state-dir /mnt/copy/evermux

Exit codes: 0 healthy (notes may be there); 1 findings; 2 no such directory, or it cannot be read.")]
    Doctor {
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
        /// Replace names and ids by hashes, so that the report may be posted
        #[arg(long)]
        share: bool,
    },
    /// Show a session outliving the daemon's SIGKILL, on a built-in server
    #[command(after_long_help = "\
Uses its own temporary config and state, needs no network, and leaves nothing behind.

Exit codes: 0 all it shows held; 1 something did not.")]
    Demo,
}

/// How to be the daemon.
#[derive(Debug, Clone, Args)]
pub(crate) struct DaemonArgs {
    /// Report readiness as one line of JSON on stdout and leave the terminal's session
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Take over from the daemon that runs
    #[arg(long)]
    pub(crate) takeover: bool,
    /// A shim thought of it, no person
    #[arg(long, hide = true, requires = "takeover")]
    pub(crate) offered: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn purge_wants_exactly_one_of_name_and_all() {
        assert!(Cli::try_parse_from(["evermux", "purge"]).is_err());
        assert!(Cli::try_parse_from(["evermux", "purge", "x", "--all"]).is_err());
        assert!(Cli::try_parse_from(["evermux", "purge", "x"]).is_ok());
    }
}
