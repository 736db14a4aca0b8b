//! What a client waits for when it spawns its shim: to the first result, with a daemon and without.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use super::{Work, evermux, median, target};
use crate::load::{Endpoint, Load, StdioEndpoint};
use crate::stage::Stage;
use crate::upstream::Reply;

/// A place where `connect` starts a daemon, which is no child of ours: it is ended by `evermux stop`.
struct Cold {
    evermux: PathBuf,
    endpoint: StdioEndpoint,
    state: PathBuf,
}

impl Cold {
    fn prepare(stage: &mut Stage) -> Result<Self> {
        let (evermux, directory) = (evermux(stage)?, stage.new_directory());
        std::fs::create_dir_all(&directory)?;
        let (config, state) = (directory.join("config.toml"), directory.join("s"));
        std::fs::write(&config, format!("[upstream.bench]\nurl = \"{}\"\n", stage.url))?;
        let environment = vec![
            ("EVERMUX_CONFIG".to_owned(), config.display().to_string()),
            ("EVERMUX_STATE_DIR".to_owned(), state.display().to_string()),
        ];
        let command = vec![evermux.display().to_string(), "connect".to_owned(), "bench".to_owned()];
        Ok(Self { evermux, endpoint: StdioEndpoint { command, environment, directory }, state })
    }

    fn stop(&self) -> Result<()> {
        let mut command = std::process::Command::new(&self.evermux);
        command.arg("stop").env_clear().env("HOME", &self.endpoint.directory);
        command.envs(self.endpoint.environment.iter().map(|(name, value)| (name, value)));
        let output = command.output().context("cannot run `evermux stop`")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "`evermux stop` failed: {said}");
        Ok(())
    }

    fn forget(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.state).context("the state directory")
    }
}

impl Drop for Cold {
    fn drop(&mut self) {
        // None runs any more, unless a start failed in between.
        self.stop().ok();
    }
}

/// Milliseconds that one start took.
async fn once(stage: &mut Stage, endpoint: &Endpoint) -> Result<f64> {
    let sample = stage.round_at(endpoint, None, Load::of(1, 0, 100)).await?;
    let first = sample.first_results.first().context("nobody had a result")?;
    Ok(first.as_secs_f64() * 1e3)
}

/// Milliseconds of one round: the limit, with a daemon, cold with a record, cold with nothing.
async fn round(
    stage: &mut Stage,
    [limit, running]: &[Endpoint; 2],
    cold: &Cold,
    starts: u32,
) -> Result<[f64; 4]> {
    let mut times: [Vec<f64>; 4] = Default::default();
    let [of_limit, of_running, recorded, nothing] = &mut times;
    let cold_endpoint = Endpoint::Stdio(cold.endpoint.clone());
    for _ in 0..starts {
        of_limit.push(once(stage, limit).await.context("byte-shim")?);
        of_running.push(once(stage, running).await.context("daemon running")?);
        recorded.push(once(stage, &cold_endpoint).await.context("no daemon, a record")?);
        cold.stop()?;
        cold.forget()?;
        nothing.push(once(stage, &cold_endpoint).await.context("no daemon, no record")?);
        cold.stop()?;
    }
    let [limit, running, recorded, nothing] = times;
    Ok([median(limit)?, median(running)?, median(recorded)?, median(nothing)?])
}

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    let mut stage = work.stage(Reply::Json, false).await?;
    let limit = stage.start(target("byte-shim")?).await?;
    let running = stage.start(target("evermux-shim")?).await?;
    let cold = Cold::prepare(&mut stage)?;
    // The first leaves the record that the next one finds.
    once(&mut stage, &Endpoint::Stdio(cold.endpoint.clone())).await.context("the first start")?;
    cold.stop()?;
    let endpoints = [limit.endpoint.clone(), running.endpoint.clone()];
    let mut rounds = Vec::new();
    for _ in work.rounds("start") {
        rounds.push(round(&mut stage, &endpoints, &cold, work.amounts.starts).await?);
    }
    drop(cold);
    limit.end().await?;
    running.end().await?;
    stage.end().await?;
    let of = |at: fn(&[f64; 4]) -> f64| rounds.iter().map(at).collect::<Vec<_>>();
    let figures = &mut work.figures;
    figures.add("start.running", "shim ÷ byte shim", of(|[limit, running, ..]| running / limit))?;
    figures.add("start.cold", "a session recorded", of(|[limit, _, recorded, _]| recorded / limit))?;
    figures.add("start.cold", "nothing recorded", of(|[limit, .., nothing]| nothing / limit))?;
    figures.add("start.ms", "byte shim", of(|[limit, ..]| *limit))?;
    figures.add("start.ms", "daemon running", of(|[_, running, ..]| *running))?;
    figures.add("start.ms", "no daemon, a session recorded", of(|[_, _, recorded, _]| *recorded))?;
    figures.add("start.ms", "no daemon, nothing recorded", of(|[.., nothing]| *nothing))
}
