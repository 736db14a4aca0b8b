//! Results of 1 MiB: how many get through, and what the daemon holds of them at once.
//!
//! A daemon for each round, because one that has carried such results keeps the memory it needed for them.

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use super::{Work, pid, target};
use crate::load::Load;
use crate::process::{memory, reset_peak};
use crate::stage::Stage;
use crate::upstream::Reply;

const SIZE: usize = 1024 * 1024;
const PAIRS: [(&str, &str); 3] =
    [("evermux-unix", "relay"), ("evermux-tcp", "relay-tcp"), ("evermux-shim", "byte-shim")];

/// Results per second, and the most memory that the server needed besides what it had, in results.
async fn once(stage: &mut Stage, name: &str, load: Load) -> Result<[f64; 2]> {
    let running = stage.start(target(name)?).await.context("start")?;
    let server = pid(&running)?;
    reset_peak(server)?;
    let peak = || memory(server).map(|memory| memory.peak_resident).context("its memory cannot be read");
    let before = peak()?;
    let sample = stage.round(&running, load).await?;
    let extra = peak()?.saturating_sub(before);
    running.end().await?;
    #[expect(clippy::cast_precision_loss, reason = "counts and bytes stay far below 2^53")]
    Ok([sample.latencies.len() as f64 / sample.elapsed.as_secs_f64(), extra as f64 / SIZE as f64])
}

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    for reply in Reply::value_variants() {
        let reply_name = format!("{reply:?}").to_uppercase();
        let mut stage = work.stage(*reply, false).await?;
        for clients in work.amounts.large_clients {
            let calls_per_client = work.amounts.large_calls.div_ceil(clients).max(2);
            let load = Load { warm_up_per_client: 1, ..Load::of(clients, calls_per_client, SIZE) };
            let mut rates = PAIRS.map(|_| Vec::new());
            let mut extras = PAIRS.map(|_| Vec::new());
            for _ in work.rounds(&format!("large, {reply_name}, {clients} client(s)")) {
                for (at, (name, limit)) in PAIRS.into_iter().enumerate() {
                    let [limit_rate, _] = once(&mut stage, limit, load).await.context(limit)?;
                    let [rate, extra] = once(&mut stage, name, load).await.context(name)?;
                    rates[at].push(rate / limit_rate);
                    extras[at].push(extra / f64::from(clients));
                }
            }
            let extra_goal = if clients == 1 { "large.memory" } else { "large.memory_each" };
            for ((name, _), (rates, extras)) in PAIRS.into_iter().zip(rates.into_iter().zip(extras)) {
                let detail = format!("{name}, {reply_name}, {clients} client(s)");
                work.figures.add("large.rate", &*detail, rates)?;
                work.figures.add(extra_goal, detail, extras)?;
            }
        }
        stage.end().await?;
    }
    Ok(())
}
