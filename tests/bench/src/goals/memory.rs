//! Memory: what an idle link and a shim cost, and whether load lets the daemon grow.

use std::time::Instant;

use anyhow::{Context as _, Result};

use super::{Work, median, pid, proportional, target};
use crate::load::{Crowd, Load};
use crate::stage::Stage;
use crate::upstream::Reply;

const MB: f64 = 1e6;
/// Clients that come, call and go in a round of the long load.
const CLIENTS: u32 = 16;
/// So many rounds are load enough to compare their quarters.
const LEAST_ROUNDS: usize = 8;
/// Links on a fresh daemon have just stopped doing things.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(500);

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    let mut stage = work.stage(Reply::Json, true).await?;
    let (mut few, mut many, mut shims) = (Vec::new(), Vec::new(), Vec::new());
    for _ in work.rounds("memory") {
        let [with_few, with_many] =
            idle_links(&mut stage, work.amounts.few_links, work.amounts.many_links).await?;
        few.push(with_few / MB);
        many.push(with_many / MB);
        shims.push(further_shim(&mut stage, work.amounts.shims).await? / MB);
    }
    work.figures.add("memory.shim", "", shims)?;
    work.figures.add("memory.few", format!("{} links", work.amounts.few_links), few)?;
    work.figures.add("memory.many", format!("{} links", work.amounts.many_links), many)?;
    under_load(work, &mut stage).await?;
    stage.end().await?;
    Ok(())
}

/// The daemon's size with few links and with many.
async fn idle_links(stage: &mut Stage, few: u32, many: u32) -> Result<[f64; 2]> {
    let running = stage.start(target("evermux-unix")?).await?;
    let mut crowds = Vec::new();
    let mut sizes = [0.0; 2];
    for (clients, size) in [few, many - few].into_iter().zip(&mut sizes) {
        let load = Load { listens: true, round: stage.number_round(), ..Load::of(clients, 0, 100) };
        let mut crowd = Crowd::open(&running.endpoint, load).await?;
        // Idle for half a minute, without half a minute: what the daemon holds of a link does not depend on the time.
        crowd.rest();
        crowds.push(crowd);
        tokio::time::sleep(PAUSE).await;
        *size = proportional(pid(&running)?)?;
    }
    for crowd in crowds {
        crowd.close().await?;
    }
    running.end().await?;
    Ok(sizes)
}

/// What the machine pays for one more shim: all shims and the daemon, with many less with one. The first one shares its
/// program with nobody but the daemon.
async fn further_shim(stage: &mut Stage, further: u32) -> Result<f64> {
    let running = stage.start(target("evermux-shim")?).await?;
    let mut open = async |clients| {
        let load = Load { round: stage.number_round(), ..Load::of(clients, 0, 100) };
        Crowd::open(&running.endpoint, load).await
    };
    let total = |pids: &[u32]| pids.iter().map(|pid| proportional(*pid)).sum::<Result<f64>>();
    let first = open(1).await?;
    let mut pids = vec![pid(&running)?];
    pids.extend(first.pids());
    tokio::time::sleep(PAUSE).await;
    let with_one = total(&pids)?;
    let others = open(further).await?;
    pids.extend(others.pids());
    tokio::time::sleep(PAUSE).await;
    let with_all = total(&pids)?;
    first.close().await?;
    others.close().await?;
    running.end().await?;
    Ok((with_all - with_one) / f64::from(further))
}

/// Clients come, listen, call and go, on one daemon.
async fn under_load(work: &mut Work, stage: &mut Stage) -> Result<()> {
    let running = stage.start(target("evermux-unix")?).await?;
    let load = Load { listens: true, ..Load::of(CLIENTS, work.amounts.calls.div_ceil(CLIENTS), 100) };
    let began = Instant::now();
    let (mut sizes, mut next_word) = (Vec::new(), 1.0);
    while began.elapsed() < work.amounts.load || sizes.len() < LEAST_ROUNDS {
        stage.round(&running, load).await?;
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let size = proportional(pid(&running)?)?;
        if minutes >= next_word {
            next_word = minutes.floor() + 1.0;
            crate::output::talk(&format!("memory: {:.2} MB after {minutes:.0} min of load", size / MB));
        }
        sizes.push((minutes, size));
    }
    running.end().await?;
    let quarter = |number: usize| {
        let quarter = sizes.len() / 4;
        let sizes = sizes.get(number * quarter..(number + 1) * quarter).unwrap_or_default();
        median(sizes.iter().map(|(_, size)| *size).collect())
    };
    let minutes = sizes.last().context("no load")?.0;
    let detail = format!("{} rounds of {CLIENTS} clients in {minutes:.1} min", sizes.len());
    work.figures.add("memory.flat", detail, vec![quarter(3)? / quarter(1)?])?;
    let half = sizes.get(sizes.len() / 2..).unwrap_or_default();
    work.figures.add("memory.slope", "", vec![slope(half) / 1e3])
}

/// Least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count: f64 = points.iter().map(|_| 1.0).sum();
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let with: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let along: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    with / along
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_slope_of_a_line_is_its_own() {
        assert!((super::slope(&[(0.0, 5.0), (1.0, 7.0), (2.0, 9.0)]) - 2.0).abs() < 1e-9);
    }
}
