//! What a measurement stands on: the upstream, the targets beside each other, and rounds that are checked against it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;

use crate::cli::{CommonArgs, SpoilArgs};
use crate::load::{Address, Endpoint, Load, Sample, run_round};
use crate::output::talk;
use crate::process::{self, OwnedChild};
use crate::report::{Machine, Round, Scenario, TargetReport};
use crate::spin;
use crate::targets::{Running, Surroundings, Target, tcp_address};
use crate::upstream::Reply;
use crate::upstream::control::{Control, Counts};

/// Everything that decides how a stage is set.
pub(crate) struct StageOptions {
    pub(crate) evermux: Option<PathBuf>,
    pub(crate) reply: Reply,
    /// Whether the upstream has GET streams.
    pub(crate) streams: bool,
    /// The targets' upstream speaks HTTP/2 over TLS, and [`Stage::authority`] vouches for it.
    pub(crate) tls: bool,
    pub(crate) spoil: SpoilArgs,
    pub(crate) round_timeout: Duration,
}

impl StageOptions {
    pub(crate) fn of(args: &CommonArgs, reply: Reply) -> Result<Self> {
        Ok(Self {
            evermux: evermux_binary(args)?,
            reply,
            streams: false,
            tls: false,
            spoil: args.spoil,
            round_timeout: Duration::from_secs(args.round_timeout),
        })
    }
}

/// An upstream of its own, in a directory of its own, and what was started beside it.
pub(crate) struct Stage {
    directory: tempfile::TempDir,
    pub(crate) bench: PathBuf,
    pub(crate) evermux: Option<PathBuf>,
    upstream: OwnedChild,
    pub(crate) url: String,
    control: Control,
    pub(crate) targets: Vec<Running>,
    /// Targets that could not start, and why.
    pub(crate) skipped: BTreeMap<String, String>,
    /// Targets that failed while measured, and how.
    pub(crate) failed: BTreeMap<String, String>,
    round_timeout: Duration,
    next_round: u64,
    next_directory: u32,
}

/// A scenario to measure.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) size: usize,
    pub(crate) clients: u32,
    /// Of all clients together.
    pub(crate) calls: u32,
    pub(crate) rounds: u32,
    pub(crate) memory: bool,
}

impl Plan {
    fn load(self) -> Load {
        let calls_per_client = self.calls.div_ceil(self.clients);
        Load {
            warm_up_per_client: calls_per_client.div_ceil(10),
            memory: self.memory,
            ..Load::of(self.clients, calls_per_client, self.size)
        }
    }
}

impl Stage {
    pub(crate) async fn open(options: &StageOptions) -> Result<Self> {
        let bench = std::env::current_exe()?;
        // Short names: a socket's path has 108 bytes.
        let directory = tempfile::Builder::new().prefix("evb-").tempdir()?;
        let mut upstream =
            OwnedChild::spawn(&upstream_words(options, &bench, directory.path()), &[], directory.path())?;
        let plain = upstream.first_line().await.context("the upstream did not start")?;
        let url = if options.tls { upstream.first_line().await? } else { plain.clone() };
        let Address::Tcp(address) = tcp_address(&plain)?.0 else { bail!("the upstream listens on TCP") };
        Ok(Self {
            control: Control::connect(address).await?,
            directory,
            bench,
            evermux: options.evermux.clone(),
            upstream,
            url,
            targets: Vec::new(),
            skipped: BTreeMap::new(),
            failed: BTreeMap::new(),
            round_timeout: options.round_timeout,
            next_round: 1,
            next_directory: 0,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The certificate that a target must trust when the upstream speaks TLS.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory().join(crate::tls::CA_FILE)
    }

    /// What the upstream has counted so far.
    pub(crate) async fn counts(&mut self) -> Result<Counts> {
        self.control.counts().await
    }

    /// The same, with the most open connections counted anew from here on.
    pub(crate) async fn reset_counts(&mut self) -> Result<Counts> {
        self.control.reset().await
    }

    /// Starts these besides those that run; one that cannot is skipped with a word.
    pub(crate) async fn start_targets(&mut self, chosen: Vec<Target>) -> Result<()> {
        for target in chosen {
            let name = target.name.clone();
            match self.start(target).await {
                Ok(running) => self.targets.push(running),
                Err(error) => {
                    talk(&format!("skipped {name}: {error:#}"));
                    self.skipped.insert(name, format!("{error:#}"));
                }
            }
        }
        Ok(())
    }

    /// Starts one in a directory of its own; whoever asked for it ends it.
    pub(crate) async fn start(&mut self, target: Target) -> Result<Running> {
        let directory = self.new_directory();
        let evermux = self.evermux.as_deref();
        let surroundings = Surroundings { upstream: &self.url, bench: &self.bench, evermux };
        target.start(&surroundings, &directory).await
    }

    /// A path with nothing there yet.
    pub(crate) fn new_directory(&mut self) -> PathBuf {
        self.next_directory += 1;
        self.directory.path().join(format!("t{}", self.next_directory))
    }

    /// All targets in turn, round by round. One that fails is left out from then on.
    pub(crate) async fn measure_scenario(&mut self, plan: Plan) -> Result<Scenario> {
        let load = plan.load();
        // Not borrowed from `self`, which measures.
        let running = std::mem::take(&mut self.targets);
        let mut targets: Vec<TargetReport> = running.iter().map(TargetReport::of).collect();
        for round in 1..=plan.rounds {
            talk(&format!("round {round} of {}", plan.rounds));
            for (running, target) in running.iter().zip(&mut targets) {
                if self.failed.contains_key(&target.name) {
                    continue;
                }
                match self.round(running, load).await {
                    Ok(sample) => target.rounds.push(Round::from(&sample)),
                    Err(error) => self.fail(&target.name, &error),
                }
            }
        }
        self.targets = running;
        let calls_per_round = load.calls_per_client * plan.clients;
        let mut scenario =
            Scenario { size_bytes: plan.size, clients: plan.clients, calls_per_round, targets };
        scenario.evaluate();
        Ok(scenario)
    }

    pub(crate) fn fail(&mut self, name: &str, error: &anyhow::Error) {
        talk(&format!("FAILED {name}: {error:#}"));
        self.failed.insert(name.to_owned(), format!("{error:#}"));
    }

    /// A number for nonces that no other round has.
    pub(crate) fn number_round(&mut self) -> u64 {
        self.next_round += 1;
        self.next_round - 1
    }

    /// One round of one target.
    pub(crate) async fn round(&mut self, running: &Running, load: Load) -> Result<Sample> {
        self.round_at(&running.endpoint, running.pid(), load).await
    }

    /// One round. The upstream must have executed exactly the calls that were made.
    pub(crate) async fn round_at(
        &mut self,
        endpoint: &Endpoint,
        server: Option<u32>,
        load: Load,
    ) -> Result<Sample> {
        let load = Load { round: self.number_round(), ..load };
        let before = self.counts().await?.calls;
        let deadline = self.round_timeout;
        let sample = tokio::time::timeout(deadline, run_round(endpoint, load, server))
            .await
            .with_context(|| format!("the round took longer than {deadline:?} (--round-timeout)"))??;
        let executed = self.counts().await?.calls - before;
        ensure!(
            executed == sample.checked,
            "the upstream executed {executed} calls for {} that were made",
            sample.checked
        );
        Ok(sample)
    }

    /// Ends everything; what could not start and what failed stays.
    pub(crate) async fn end(self) -> Result<(BTreeMap<String, String>, BTreeMap<String, String>)> {
        for running in self.targets {
            running.end().await?;
        }
        drop(self.control);
        self.upstream.end().await?;
        Ok((self.skipped, self.failed))
    }
}

/// What the figures were taken on; to be asked before they are.
pub(crate) fn machine(spinners: Option<&'static str>) -> Machine {
    let system = nix::sys::utsname::uname().map_or_else(
        |_| std::env::consts::OS.to_owned(),
        |name| format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
    );
    Machine { cores: spin::cores(), system, spinners, load_before: process::load_average() }
}

fn evermux_binary(args: &CommonArgs) -> Result<Option<PathBuf>> {
    if let Some(path) = &args.evermux {
        let path = path.canonicalize().with_context(|| format!("--evermux {}", path.display()))?;
        return Ok(Some(path));
    }
    let beside = std::env::current_exe()?.with_file_name("evermux");
    Ok(beside.exists().then_some(beside))
}

fn upstream_words(options: &StageOptions, bench: &Path, directory: &Path) -> Vec<String> {
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let mut words = vec![bench.display().to_string(), "upstream".to_owned(), "--owned".to_owned()];
    words.extend(["--reply".to_owned(), name(options.reply.to_possible_value())]);
    if options.streams {
        words.push("--streams".to_owned());
    }
    if options.tls {
        words.extend(["--tls".to_owned(), directory.display().to_string()]);
    }
    if let Some(call) = options.spoil.corrupt_call {
        words.extend(["--corrupt-call".to_owned(), call.to_string()]);
        words.extend(["--corrupt-what".to_owned(), name(options.spoil.corrupt_what.to_possible_value())]);
    }
    words
}
