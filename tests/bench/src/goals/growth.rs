//! Throughput of one session as more and more links hang on it.
//!
//! Two readings. With the same ten callers everywhere, the other links cost only by being there: that is the growth
//! of the daemon. With all links calling in a closed loop the upstream, the generator and the kernel have as many
//! connections to look at too; the relay with as many clients shows how much of a fall is theirs.

use anyhow::Result;

use super::{Work, target};
use crate::load::Load;
use crate::stage::Stage;
use crate::targets::Running;
use crate::upstream::Reply;

/// Calls/s of a round.
async fn rate(stage: &mut Stage, running: &Running, links: u32, callers: u32, calls: u32) -> Result<f64> {
    let calls_per_client = calls.div_ceil(callers).max(10);
    // The relay has no session to share: a GET stream of each of its clients would be one of the upstream's.
    let listens = running.target.name != "relay";
    let load = Load { listens, callers, warm_up_per_client: 1, ..Load::of(links, calls_per_client, 100) };
    let sample = stage.round(running, load).await?;
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    Ok(sample.latencies.len() as f64 / sample.elapsed.as_secs_f64())
}

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    let mut stage = work.stage(Reply::Json, true).await?;
    let evermux = stage.start(target("evermux-unix")?).await?;
    let relay = stage.start(target("relay")?).await?;
    let counts = work.amounts.growth;
    let (base, calls) = (counts[0], work.amounts.calls);
    let mut one = Vec::new();
    // By number of links: the same callers, all, all through the relay.
    let mut rates = counts.map(|_| [const { Vec::new() }; 3]);
    for _ in work.rounds("growth") {
        one.push(rate(&mut stage, &evermux, 1, 1, calls).await?);
        for (links, [same, all, through_relay]) in counts.into_iter().zip(&mut rates) {
            same.push(rate(&mut stage, &evermux, links, base, calls).await?);
            all.push(rate(&mut stage, &evermux, links, links, calls).await?);
            through_relay.push(rate(&mut stage, &relay, links, links, calls).await?);
        }
    }
    evermux.end().await?;
    relay.end().await?;
    stage.end().await?;
    let figures = &mut work.figures;
    for (reading, id) in ["growth.idle", "growth.all", "growth.relay"].into_iter().enumerate() {
        for (links, measured) in counts.into_iter().zip(&rates).skip(1) {
            let against = measured[reading].iter().zip(&rates[0][reading]);
            figures.add(
                id,
                format!("{links} ÷ {base} links"),
                against.map(|(own, base)| own / base).collect(),
            )?;
        }
    }
    figures.add("growth.rate", "1 link", one)?;
    for (links, [same, all, through_relay]) in counts.into_iter().zip(rates) {
        figures.add("growth.rate", format!("{links} links, {base} of them call"), same)?;
        figures.add("growth.rate", format!("{links} links, all call"), all)?;
        figures.add("growth.rate", format!("relay, {links} clients"), through_relay)?;
    }
    Ok(())
}
