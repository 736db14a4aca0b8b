//! Whether a daemon whose clients say nothing sleeps.
//!
//! A thread that wakes to look whether there is something to do gives the core up again by itself, so voluntary
//! context switches count wake-ups. Keep-alives are meant to wake it: one for each comment that a stream carried, two
//! (the question and its answer) for each ping that the upstream had.

use anyhow::{Result, ensure};

use super::{Work, pid, target};
use crate::load::{Crowd, Load};
use crate::process::wake_ups;
use crate::stage::Stage;
use crate::targets::Running;
use crate::upstream::Reply;

/// A daemon with its links, on a stage of its own so that the upstream's requests are told apart.
struct Face {
    stage: Stage,
    running: Running,
    crowd: Crowd,
    /// Wake-ups, comments and requests at the start.
    before: [u64; 3],
}

impl Face {
    async fn open(work: &Work, name: &str, links: u32) -> Result<Self> {
        let mut stage = work.stage(Reply::Json, true).await?;
        let running = stage.start(target(name)?).await?;
        let load = Load { listens: true, ..Load::of(links, 0, 100) };
        let mut crowd = Crowd::open(&running.endpoint, load).await?;
        crowd.rest();
        Ok(Self { stage, running, crowd, before: [0; 3] })
    }

    async fn counts(&mut self) -> Result<[u64; 3]> {
        let requests = self.stage.counts().await?.requests;
        Ok([wake_ups(pid(&self.running)?)?, self.crowd.heard(), requests])
    }

    async fn end(self) -> Result<()> {
        self.crowd.close().await?;
        self.running.end().await?;
        self.stage.end().await?;
        Ok(())
    }
}

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    let mut faces = Vec::new();
    for name in ["evermux-unix", "evermux-tcp"] {
        faces.push((name, Face::open(work, name, work.amounts.few_links).await?));
    }
    let shim = Face::open(work, "evermux-shim", 1).await?;
    tokio::time::sleep(work.amounts.settle).await;
    for (name, face) in &mut faces {
        face.before = face.counts().await?;
        ensure!(face.before[0] > 0, "{name} has served and was never woken");
    }
    let shim_pids = shim.crowd.pids();
    let of_shim = || shim_pids.iter().map(|pid| wake_ups(*pid)).sum::<Result<u64>>();
    let shim_before = of_shim()?;
    tokio::time::sleep(work.amounts.idle).await;
    let shim_woke = of_shim()? - shim_before;
    let seconds = work.amounts.idle.as_secs_f64();
    for (name, mut face) in faces {
        let after = face.counts().await?;
        let [woke, comments, requests]: [u64; 3] =
            std::array::from_fn(|at| after[at].saturating_sub(face.before[at]));
        let links = work.amounts.few_links;
        let detail = format!(
            "{name}, {links} links, {seconds} s; {woke} in all, {comments} comments, {requests} pings"
        );
        let beyond = woke.saturating_sub(comments + 2 * requests);
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        work.figures.add("idle.wakeups", detail, vec![beyond as f64])?;
        face.end().await?;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    work.figures.add("idle.shim", format!("{seconds} s"), vec![shim_woke as f64])?;
    shim.end().await
}
