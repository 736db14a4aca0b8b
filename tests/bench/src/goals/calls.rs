//! Calls as `run` measures them, over all that the goals name: both ways the upstream may answer, two sizes, three
//! numbers of clients, three ways in.

use anyhow::Result;
use clap::ValueEnum as _;

use super::Work;
use crate::output::talk;
use crate::report::Scenario;
use crate::stage::Plan;
use crate::targets::{read_table, select};
use crate::upstream::Reply;

/// Targets, and the goals for figures of `run`.
const HELD: [(&str, [(&str, &str); 4]); 3] = [
    ("evermux-unix", HTTP),
    ("evermux-tcp", HTTP),
    (
        "evermux-shim",
        [
            ("p50_us", "calls.shim_p50"),
            ("p99_us", "calls.shim_p99"),
            ("calls_per_second", "calls.shim_rate"),
            ("cpu_us_per_call", "calls.shim_cpu"),
        ],
    ),
];
const HTTP: [(&str, &str); 4] = [
    ("p50_us", "calls.p50"),
    ("p99_us", "calls.p99"),
    ("calls_per_second", "calls.rate"),
    ("cpu_us_per_call", "calls.cpu"),
];

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    for reply in Reply::value_variants() {
        measure_reply(work, *reply).await?;
    }
    Ok(())
}

async fn measure_reply(work: &mut Work, reply: Reply) -> Result<()> {
    let reply_name = format!("{reply:?}").to_uppercase();
    let mut stage = work.stage(reply, false).await?;
    let names = HELD.map(|(name, _)| name.to_owned());
    stage.start_targets(select(&read_table(None)?, &names)?).await?;
    for size in work.amounts.sizes.clone() {
        for clients in work.amounts.clients.clone() {
            let detail = format!("{size} B, {reply_name}, {clients} client(s)");
            talk(&format!("calls, {detail}"));
            let (calls, rounds) = (work.amounts.calls, work.amounts.rounds);
            let plan = Plan { size, clients, calls, rounds, memory: false };
            let scenario = stage.measure_scenario(plan).await?;
            add(work, &scenario, &detail)?;
        }
    }
    let (skipped, failed) = stage.end().await?;
    for (name, why) in skipped.into_iter().chain(failed) {
        work.figures.failed.insert(format!("calls, {reply_name}, {name}"), why);
    }
    Ok(())
}

fn add(work: &mut Work, scenario: &Scenario, detail: &str) -> Result<()> {
    for (name, goals) in HELD {
        for (figure, goal) in goals {
            let ratios = scenario.ratios_of(name, figure);
            // What failed is told as a failure; elsewhere a kernel may not tell of CPU.
            if !ratios.is_empty() {
                work.figures.add(goal, format!("{name}, {detail}"), ratios)?;
            }
        }
    }
    Ok(())
}
