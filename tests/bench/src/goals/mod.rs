//! Holds evermux against its goals, part by part.
//!
//! A part sets a stage, measures, and adds its figures; the bounds are data (`table.rs`). What a part measures beside a
//! limit is measured in the same rounds as the limit.

mod calls;
mod cold;
mod connections;
mod figures;
mod growth;
mod idle;
mod large;
mod memory;
mod start;
mod table;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

pub(crate) use self::table::Part;

use self::figures::Figures;
use crate::cli::GoalsArgs;
use crate::output::{say, talk};
use crate::report::Spread;
use crate::run::interrupted;
use crate::stage::{Stage, StageOptions, machine};
use crate::targets::{Running, Target, read_table};
use crate::upstream::Reply;

/// How much of everything.
struct Amounts {
    rounds: u32,
    /// Starts of each kind in a round.
    starts: u32,
    few_links: u32,
    many_links: u32,
    shims: u32,
    /// Of all clients in a round.
    calls: u32,
    load: Duration,
    /// Before a daemon and a shim count as idle: threads that were needed are kept for seconds, connections for half a
    /// minute.
    settle: Duration,
    idle: Duration,
    records: u32,
    growth: [u32; 3],
    sizes: Vec<usize>,
    clients: Vec<u32>,
    large_clients: [u32; 2],
    /// Of all clients in a round.
    large_calls: u32,
}

impl Amounts {
    fn of(args: &GoalsArgs) -> Self {
        if args.common.quick {
            return Self {
                rounds: 1,
                starts: 1,
                few_links: 3,
                many_links: 6,
                shims: 3,
                calls: 60,
                load: Duration::ZERO,
                settle: Duration::from_millis(100),
                idle: Duration::from_millis(300),
                records: 5,
                growth: [2, 4, 8],
                sizes: vec![100],
                clients: vec![1, 4],
                large_clients: [1, 2],
                large_calls: 4,
            };
        }
        Self {
            rounds: args.rounds,
            starts: 5,
            few_links: 50,
            many_links: 1000,
            shims: 10,
            calls: 4000,
            load: Duration::from_secs_f64(args.minutes.max(0.0) * 60.0),
            settle: Duration::from_secs(35),
            idle: Duration::from_secs(args.idle_seconds),
            records: 1000,
            growth: [10, 100, 1000],
            sizes: vec![100, 10 * 1024],
            clients: vec![1, 16, 64],
            large_clients: [1, 16],
            large_calls: 160,
        }
    }
}

/// What every part works with.
struct Work {
    args: GoalsArgs,
    amounts: Amounts,
    figures: Figures,
}

/// Measures and reports. `Ok(false)`: something failed, and the report says what.
pub(crate) async fn run(args: GoalsArgs) -> Result<bool> {
    raise_descriptor_limit()?;
    let parts: BTreeSet<Part> = match args.only.is_empty() {
        true => Part::value_variants().iter().copied().collect(),
        false => args.only.iter().copied().collect(),
    };
    let directory = tempfile::Builder::new().prefix("evb-").tempdir()?;
    let spinner =
        crate::spin::start_unless(args.common.no_spin, &std::env::current_exe()?, directory.path()).await;
    let figures = Figures::new(
        machine(spinner.as_ref().map(|spinner| spinner.class)),
        args.common.quick,
        parts.iter().copied().collect(),
    );
    let mut work = Work { amounts: Amounts::of(&args), args, figures };
    let measured = tokio::select! {
        () = work.measure(&parts) => Ok(()),
        interrupted = interrupted() => interrupted,
    };
    if let Some(spinner) = spinner {
        spinner.end().await?;
    }
    let Work { args, mut figures, .. } = work;
    if let Err(error) = measured {
        // What is there took long to measure.
        figures.failed.insert("all".to_owned(), format!("{error:#}"));
    }
    say(figures.markdown().trim_end())?;
    if let Some(path) = &args.common.json {
        std::fs::write(path, serde_json::to_vec_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let complete = figures.failed.is_empty() && figures.missing().is_empty();
    Ok(complete && (!args.common.strict || figures.unmet() == 0))
}

impl Work {
    async fn measure(&mut self, parts: &BTreeSet<Part>) {
        for part in parts {
            let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            talk(&format!("{name} ..."));
            // Boxed: the parts are large, and one runs at a time.
            let measured = match part {
                Part::Calls => Box::pin(calls::measure(self)).await,
                Part::Large => Box::pin(large::measure(self)).await,
                Part::Connections => Box::pin(connections::measure(self)).await,
                Part::Start => Box::pin(start::measure(self)).await,
                Part::Memory => Box::pin(memory::measure(self)).await,
                Part::Idle => Box::pin(idle::measure(self)).await,
                Part::Cold => Box::pin(cold::measure(self)).await,
                Part::Growth => Box::pin(growth::measure(self)).await,
            };
            if let Err(error) = measured {
                talk(&format!("FAILED {name}: {error:#}"));
                self.figures.failed.insert(name, format!("{error:#}"));
            }
        }
    }

    /// A stage without targets.
    async fn stage(&self, reply: Reply, streams: bool) -> Result<Stage> {
        Stage::open(&StageOptions { streams, ..StageOptions::of(&self.args.common, reply)? }).await
    }

    fn rounds(&self, what: &str) -> impl Iterator<Item = u32> + use<> {
        let (what, rounds) = (what.to_owned(), self.amounts.rounds);
        (1..=rounds).inspect(move |round| talk(&format!("{what}: round {round} of {rounds}")))
    }
}

/// The entry of the built-in table.
fn target(name: &str) -> Result<Target> {
    let mut table = read_table(None)?.into_iter();
    table.find(|target| target.name == name).with_context(|| format!("no target {name}"))
}

fn evermux(stage: &Stage) -> Result<PathBuf> {
    stage.evermux.clone().context("no evermux binary (--evermux PATH)")
}

fn median(values: Vec<f64>) -> Result<f64> {
    Spread::of(values).map(|spread| spread.median).context("nothing was measured")
}

/// Proportional set size of a process in bytes.
fn proportional(pid: u32) -> Result<f64> {
    let memory = crate::process::memory(pid).context("its memory cannot be read")?;
    #[expect(clippy::cast_precision_loss, reason = "bytes of a process stay far below 2^53")]
    Ok(memory.proportional as f64)
}

fn pid(running: &Running) -> Result<u32> {
    running.pid().context("it has no server")
}

/// A thousand links are more descriptors than a process has by default. Children inherit the limit.
fn raise_descriptor_limit() -> Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
