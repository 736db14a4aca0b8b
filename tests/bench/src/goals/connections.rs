//! Connections to the upstream, as the upstream counts them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Work, target};
use crate::load::{Crowd, Load};
use crate::stage::{Stage, StageOptions};
use crate::targets::{Running, Target};
use crate::upstream::Reply;

/// Calls of each client in turn.
const TURNS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// A target with the upstream to itself.
async fn start_alone(stage: &mut Stage, target: Target) -> Result<Running> {
    let until = Instant::now() + PATIENCE;
    while stage.counts().await?.open > 0 {
        ensure!(Instant::now() < until, "connections of a target that has ended are still open");
        tokio::time::sleep(POLL).await;
    }
    stage.start(target).await
}

/// Never two things at once: clients come one after the other, and then call one after the other.
async fn in_turn(stage: &mut Stage, running: &Running, clients: u32) -> Result<u64> {
    stage.reset_counts().await?;
    let mut crowds = Vec::new();
    for _ in 0..clients {
        let load = Load { listens: true, round: stage.number_round(), ..Load::of(1, 0, 100) };
        crowds.push(Crowd::open(&running.endpoint, load).await?);
    }
    for _ in 0..TURNS {
        for crowd in &mut crowds {
            crowd.call_in_turn().await?;
        }
    }
    let after = stage.counts().await?;
    ensure!(after.most_open >= after.open.max(1), "the upstream miscounts: {after:?}");
    for crowd in crowds {
        crowd.close().await?;
    }
    Ok(after.most_open)
}

/// Most open, and how many were made, while all call in a closed loop.
async fn at_once(stage: &mut Stage, running: &Running, load: Load) -> Result<[u64; 2]> {
    let before = stage.reset_counts().await?;
    stage.round(running, load).await?;
    let after = stage.counts().await?;
    ensure!(after.most_open >= after.open.max(1), "the upstream miscounts: {after:?}");
    Ok([after.most_open, after.accepted - before.accepted])
}

async fn over_http2(work: &Work, load: Load) -> Result<Vec<f64>> {
    let options = StageOptions::of(&work.args.common, Reply::Json)?;
    let mut stage = Stage::open(&StageOptions { streams: true, tls: true, ..options }).await?;
    let mut most_open = Vec::new();
    for _ in work.rounds("connections over HTTP/2") {
        let target =
            target("evermux-unix")?.with_env("SSL_CERT_FILE", stage.authority().display().to_string());
        let evermux = start_alone(&mut stage, target).await?;
        let [busy, _] = at_once(&mut stage, &evermux, load).await?;
        evermux.end().await?;
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        most_open.push(busy as f64);
    }
    stage.end().await?;
    Ok(most_open)
}

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    let mut stage = work.stage(Reply::Json, true).await?;
    let clients = work.amounts.few_links;
    let load = Load::of(clients, work.amounts.calls.div_ceil(clients), 100);
    let mut counts: [Vec<f64>; 4] = Default::default();
    for _ in work.rounds("connections") {
        let evermux = start_alone(&mut stage, target("evermux-unix")?).await?;
        let turns = in_turn(&mut stage, &evermux, clients).await?;
        let [busy, made] = at_once(&mut stage, &evermux, Load { listens: true, ..load }).await?;
        evermux.end().await?;
        let relay = start_alone(&mut stage, target("relay")?).await?;
        let [relayed, _] = at_once(&mut stage, &relay, load).await?;
        relay.end().await?;
        for (values, count) in counts.iter_mut().zip([turns, busy, made, relayed]) {
            #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
            values.push(count as f64);
        }
    }
    stage.end().await?;
    let http2 = over_http2(work, Load { listens: true, ..load }).await?;
    let [turns, busy, made, relayed] = counts;
    let detail = format!("{clients} clients");
    work.figures.add("connections.turns", &*detail, turns)?;
    work.figures.add("connections.busy", &*detail, busy)?;
    work.figures.add("connections.made", &*detail, made)?;
    work.figures.add("connections.relay", &*detail, relayed)?;
    work.figures.add("connections.http2", detail, http2)
}
