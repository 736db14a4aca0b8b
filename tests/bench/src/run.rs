//! A run: measures the targets beside each other, scenario by scenario.

use anyhow::{Context as _, Result, bail, ensure};

use crate::cli::RunArgs;
use crate::output::{say, talk};
use crate::report::Report;
use crate::stage::{Plan, Stage, StageOptions, machine};
use crate::targets::{read_table, select};

/// From this size on a round has few calls unless told otherwise.
const LARGE: usize = 64 * 1024;

/// Measures and reports. `Ok(false)`: something failed, and the report says what.
pub(crate) async fn run(mut args: RunArgs) -> Result<bool> {
    if args.common.quick {
        args.rounds = args.rounds.min(2);
        args.calls = args.calls.or(Some(if args.size.iter().any(|size| *size >= LARGE) { 20 } else { 400 }));
    }
    let chosen = select(&read_table(args.table.as_deref())?, &args.targets)?;
    let mut stage = Stage::open(&StageOptions::of(&args.common, args.reply)?).await?;
    stage.start_targets(chosen).await?;
    ensure!(!stage.targets.is_empty(), "no target could be started");
    let spinner = crate::spin::start_unless(args.common.no_spin, &stage.bench, stage.directory()).await;
    let machine = machine(spinner.as_ref().map(|spinner| spinner.class));
    let mut scenarios = Vec::new();
    let measured = tokio::select! {
        measured = measure(&args, &mut stage, &mut scenarios) => measured,
        interrupted = interrupted() => interrupted,
    };
    if let Some(spinner) = spinner {
        spinner.end().await?;
    }
    let (skipped, failed) = stage.end().await?;
    measured?;
    let report = Report {
        machine,
        reply: args.reply,
        rounds: args.rounds,
        quick: args.common.quick,
        scenarios,
        skipped,
        failed,
    };
    say(&report.markdown())?;
    if let Some(path) = &args.common.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report.failed.is_empty() && (!args.common.strict || report.skipped.is_empty()))
}

async fn measure(
    args: &RunArgs,
    stage: &mut Stage,
    scenarios: &mut Vec<crate::report::Scenario>,
) -> Result<()> {
    for &size in &args.size {
        for &clients in &args.clients {
            let calls = args.calls.unwrap_or(if size >= LARGE { 200 } else { 4000 });
            let plan = Plan { size, clients, calls, rounds: args.rounds, memory: args.memory };
            talk(&format!("{size} B, {clients} client(s)"));
            scenarios.push(stage.measure_scenario(plan).await?);
        }
    }
    Ok(())
}

/// Ends with an error once someone wants the run to end.
pub(crate) async fn interrupted() -> Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
    }
    bail!("interrupted")
}
