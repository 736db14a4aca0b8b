//! A run: starts the upstream and the targets, interleaves the rounds, ends everything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;
use http_body_util::{BodyExt as _, Empty};
use tokio::net::TcpStream;

use crate::cli::RunArgs;
use crate::load::{Address, Load, Sample, run_round};
use crate::output::{say, talk};
use crate::process::{self, OwnedChild};
use crate::report::{Machine, Report, Round, Scenario, TargetReport};
use crate::spin;
use crate::targets::{Running, Surroundings, read_table, select, tcp_address};
use crate::upstream::CALLS_PATH;

/// From this size on a round has few calls unless told otherwise.
const LARGE: usize = 64 * 1024;

struct Run {
    args: RunArgs,
    upstream: String,
    targets: Vec<Running>,
    next_round: u64,
    report: Report,
}

/// Measures and reports. `Ok(false)`: something failed, and the report says what.
pub(crate) async fn run(mut args: RunArgs) -> Result<bool> {
    if args.quick {
        args.rounds = args.rounds.min(2);
        args.calls = args.calls.or(Some(if args.size.iter().any(|size| *size >= LARGE) { 20 } else { 400 }));
    }
    let chosen = select(&read_table(args.table.as_deref())?, &args.targets)?;
    let bench = std::env::current_exe()?;
    let evermux = evermux_binary(&args, &bench)?;
    // Short names: a socket's path has 108 bytes.
    let directory = tempfile::Builder::new().prefix("evb-").tempdir()?;

    let (upstream, url) = start_upstream(&args, &bench, directory.path()).await?;
    let surroundings = Surroundings { upstream: &url, bench: &bench, evermux: evermux.as_deref() };
    let mut targets = Vec::new();
    let mut skipped = BTreeMap::new();
    for (number, target) in chosen.into_iter().enumerate() {
        let name = target.name.clone();
        match target.start(&surroundings, &directory.path().join(format!("t{number}"))).await {
            Ok(running) => targets.push(running),
            Err(error) => {
                talk(&format!("skipped {name}: {error:#}"));
                skipped.insert(name, format!("{error:#}"));
            }
        }
    }
    ensure!(!targets.is_empty(), "no target could be started");
    let load_before = process::load_average();
    let spinner = start_spinner(&args, &bench, directory.path());
    let machine =
        Machine { cores: spin::cores(), system: system(), spinners: spinner.is_some(), load_before };
    let (reply, rounds, quick) = (args.reply, args.rounds, args.quick);
    let report =
        Report { machine, reply, rounds, quick, scenarios: Vec::new(), skipped, failed: BTreeMap::new() };
    let mut run = Run { args, upstream: url, targets, next_round: 1, report };
    let measured = tokio::select! {
        measured = run.measure() => measured,
        interrupted = interrupted() => interrupted,
    };
    for child in run.targets.into_iter().filter_map(|running| running.server).chain(spinner).chain([upstream])
    {
        child.end().await?;
    }
    measured?;
    say(&run.report.markdown())?;
    if let Some(path) = &run.args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&run.report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(run.report.failed.is_empty() && (!run.args.strict || run.report.skipped.is_empty()))
}

impl Run {
    async fn measure(&mut self) -> Result<()> {
        for size in self.args.size.clone() {
            for clients in self.args.clients.clone() {
                let scenario = self.measure_scenario(size, clients).await?;
                self.report.scenarios.push(scenario);
            }
        }
        Ok(())
    }

    async fn measure_scenario(&mut self, size: usize, clients: u32) -> Result<Scenario> {
        let calls = self.args.calls.unwrap_or(if size >= LARGE { 200 } else { 4000 });
        let calls_per_client = calls.div_ceil(clients);
        let mut load = Load {
            clients,
            calls_per_client,
            warm_up_per_client: calls_per_client.div_ceil(10),
            size,
            round: 0,
            memory: self.args.memory,
        };
        let mut targets: Vec<TargetReport> = self
            .targets
            .iter()
            .map(|running| TargetReport {
                name: running.target.name.clone(),
                reference: running.target.reference.clone(),
                rounds: Vec::new(),
                figures: BTreeMap::new(),
                ratios: BTreeMap::new(),
            })
            .collect();
        for round in 1..=self.args.rounds {
            talk(&format!("{size} B, {clients} client(s): round {round} of {}", self.args.rounds));
            for (number, target) in targets.iter_mut().enumerate() {
                if self.report.failed.contains_key(&target.name) {
                    continue;
                }
                load.round = self.next_round;
                self.next_round += 1;
                match self.measure_round(number, load).await {
                    Ok(sample) => target.rounds.push(Round::from(&sample)),
                    Err(error) => {
                        talk(&format!("FAILED {}: {error:#}", target.name));
                        self.report.failed.insert(target.name.clone(), format!("{error:#}"));
                    }
                }
            }
        }
        let calls_per_round = calls_per_client * clients;
        let mut scenario = Scenario { size_bytes: size, clients, calls_per_round, targets };
        scenario.evaluate();
        Ok(scenario)
    }

    async fn measure_round(&self, number: usize, load: Load) -> Result<Sample> {
        let running = self.targets.get(number).context("no such target")?;
        let server = running.server.as_ref().and_then(OwnedChild::pid);
        let calls_before = upstream_calls(&self.upstream).await?;
        let deadline = Duration::from_secs(self.args.round_timeout);
        let sample = tokio::time::timeout(deadline, run_round(&running.endpoint, load, server))
            .await
            .with_context(|| format!("the round took longer than {deadline:?} (--round-timeout)"))??;
        let executed = upstream_calls(&self.upstream).await? - calls_before;
        ensure!(
            executed == sample.checked,
            "the upstream executed {executed} calls for {} that were made",
            sample.checked
        );
        Ok(sample)
    }
}

fn evermux_binary(args: &RunArgs, bench: &Path) -> Result<Option<PathBuf>> {
    if let Some(path) = &args.evermux {
        let path = path.canonicalize().with_context(|| format!("--evermux {}", path.display()))?;
        return Ok(Some(path));
    }
    let beside = bench.with_file_name("evermux");
    Ok(beside.exists().then_some(beside))
}

async fn start_upstream(args: &RunArgs, bench: &Path, directory: &Path) -> Result<(OwnedChild, String)> {
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let mut words = vec![bench.display().to_string(), "upstream".to_owned(), "--owned".to_owned()];
    words.extend(["--reply".to_owned(), name(args.reply.to_possible_value())]);
    if let Some(call) = args.spoil.corrupt_call {
        words.extend(["--corrupt-call".to_owned(), call.to_string()]);
        words.extend(["--corrupt-what".to_owned(), name(args.spoil.corrupt_what.to_possible_value())]);
    }
    let mut child = OwnedChild::spawn(&words, &[], directory)?;
    let url = child.first_line().await.context("the upstream did not start")?;
    Ok((child, url))
}

fn start_spinner(args: &RunArgs, bench: &Path, directory: &Path) -> Option<OwnedChild> {
    if args.no_spin {
        return None;
    }
    let started = spin::start(bench, directory);
    if let Err(error) = &started {
        talk(&format!("no spinners: {error:#}"));
    }
    started.ok()
}

async fn upstream_calls(url: &str) -> Result<u64> {
    let Address::Tcp(address) = tcp_address(url)?.0 else { bail!("the upstream listens on TCP") };
    let stream = TcpStream::connect(&address).await.context("the upstream is gone")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request =
        hyper::Request::get(CALLS_PATH).header("host", address).body(Empty::<bytes::Bytes>::new())?;
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    Ok(std::str::from_utf8(&body)?.parse()?)
}

async fn interrupted() -> Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
    }
    bail!("interrupted")
}

fn system() -> String {
    nix::sys::utsname::uname().map_or_else(
        |_| std::env::consts::OS.to_owned(),
        |name| format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
    )
}
