//! From samples to figures: medians with their range, ratios within rounds, Markdown and JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::load::Sample;
use crate::targets::Running;
use crate::upstream::Reply;

/// All of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) reply: Reply,
    pub(crate) rounds: u32,
    pub(crate) quick: bool,
    pub(crate) scenarios: Vec<Scenario>,
    /// Targets that could not start, and why.
    pub(crate) skipped: BTreeMap<String, String>,
    /// Targets that failed while measured, and how.
    pub(crate) failed: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) system: String,
    /// What kind of spinners kept the cores awake, if any did.
    pub(crate) spinners: Option<&'static str>,
    /// Load average of the last minute before the run: what else the machine was doing.
    pub(crate) load_before: Option<f64>,
}

impl Machine {
    /// What must be known to read figures.
    pub(crate) fn markdown(&self) -> String {
        let Self { cores, system, spinners, load_before } = self;
        let spinners = spinners.map_or_else(
            || "no spinners: halting of idle cores is in the figures".to_owned(),
            |class| format!("{class} spinners keep the cores awake"),
        );
        let mut text = format!(
            "{cores} cores, {system}; {spinners}. Medians with [min..max] over interleaved rounds; ratios within a round, then their median.\n"
        );
        if let Some(load) = load_before.filter(|load| *load > 0.5) {
            text.push_str(&format!(
                "The machine was busy before (load average {load:.1}): expect wide ranges.\n"
            ));
        }
        text
    }
}

/// One size of result at one number of clients.
#[derive(Debug, Serialize)]
pub(crate) struct Scenario {
    pub(crate) size_bytes: usize,
    pub(crate) clients: u32,
    pub(crate) calls_per_round: u32,
    pub(crate) targets: Vec<TargetReport>,
}

#[derive(Debug, Serialize)]
pub(crate) struct TargetReport {
    pub(crate) name: String,
    pub(crate) reference: Option<String>,
    pub(crate) rounds: Vec<Round>,
    pub(crate) figures: BTreeMap<&'static str, Spread>,
    /// Ratios to the reference; below 1 is better, but for `calls_per_second`.
    pub(crate) ratios: BTreeMap<&'static str, Spread>,
}

impl TargetReport {
    /// Nothing measured yet.
    pub(crate) fn of(running: &Running) -> Self {
        Self {
            name: running.target.name.clone(),
            reference: running.target.reference.clone(),
            rounds: Vec::new(),
            figures: BTreeMap::new(),
            ratios: BTreeMap::new(),
        }
    }
}

/// The figures of one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) checked: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) calls_per_second: f64,
    /// On-CPU time of the target's processes per call.
    pub(crate) cpu_us_per_call: Option<f64>,
    /// From dial or spawn to the first call's answer, median of the clients.
    pub(crate) first_result_ms: f64,
    pub(crate) server_pss_mib: Option<f64>,
    pub(crate) server_peak_mib: Option<f64>,
    /// Median of the clients' children.
    pub(crate) client_pss_mib: Option<f64>,
}

/// Median, least and greatest over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` for no values.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }

    pub(crate) fn show(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} [{min:.digits$}..{max:.digits$}]")
    }
}

const MIB: f64 = 1024.0 * 1024.0;

impl From<&Sample> for Round {
    #[expect(clippy::cast_precision_loss, reason = "figures for people; counts stay far below 2^53")]
    fn from(sample: &Sample) -> Self {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let calls = sample.latencies.len() as f64;
        let median = |values: Vec<f64>| Spread::of(values).map(|spread| spread.median);
        let mib = |bytes: u64| bytes as f64 / MIB;
        Self {
            checked: sample.checked,
            p50_us: microseconds(sample.latencies.value_at_quantile(0.5)),
            p99_us: microseconds(sample.latencies.value_at_quantile(0.99)),
            max_us: microseconds(sample.latencies.max()),
            calls_per_second: calls / sample.elapsed.as_secs_f64(),
            cpu_us_per_call: sample.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / calls),
            first_result_ms: median(
                sample.first_results.iter().map(|time| time.as_secs_f64() * 1e3).collect(),
            )
            .unwrap_or(f64::NAN),
            server_pss_mib: sample.daemon_memory.map(|memory| mib(memory.proportional)),
            server_peak_mib: sample.daemon_memory.map(|memory| mib(memory.peak_resident)),
            client_pss_mib: median(
                sample.client_memory.iter().map(|memory| mib(memory.proportional)).collect(),
            ),
        }
    }
}

type Figure = (&'static str, fn(&Round) -> Option<f64>);

const FIGURES: [Figure; 9] = [
    ("p50_us", |round| Some(round.p50_us)),
    ("p99_us", |round| Some(round.p99_us)),
    ("max_us", |round| Some(round.max_us)),
    ("calls_per_second", |round| Some(round.calls_per_second)),
    ("cpu_us_per_call", |round| round.cpu_us_per_call),
    ("first_result_ms", |round| Some(round.first_result_ms)),
    ("server_pss_mib", |round| round.server_pss_mib),
    ("server_peak_mib", |round| round.server_peak_mib),
    ("client_pss_mib", |round| round.client_pss_mib),
];

impl Scenario {
    /// Fills in figures and ratios from the rounds.
    pub(crate) fn evaluate(&mut self) {
        let ratios: Vec<_> = self
            .targets
            .iter()
            .map(|target| {
                let of = |(name, _)| Some((name, Spread::of(self.ratios_of(&target.name, name))?));
                FIGURES.into_iter().filter_map(of).collect()
            })
            .collect();
        for (target, ratios) in self.targets.iter_mut().zip(ratios) {
            target.ratios = ratios;
            for (name, figure) in FIGURES {
                if let Some(spread) = Spread::of(target.rounds.iter().filter_map(figure).collect()) {
                    target.figures.insert(name, spread);
                }
            }
        }
    }

    /// A target's figure as the ratio to its reference, round by round. Ratios need the same round of both, so a target
    /// whose reference failed has none.
    pub(crate) fn ratios_of(&self, target: &str, figure: &str) -> Vec<f64> {
        let find = |name: &str| self.targets.iter().find(|target| target.name == name);
        let Some(target) = find(target) else { return Vec::new() };
        let Some(reference) = target.reference.as_deref().and_then(find) else { return Vec::new() };
        let Some((_, figure)) = FIGURES.into_iter().find(|(name, _)| *name == figure) else {
            return Vec::new();
        };
        let pairs = target.rounds.iter().zip(&reference.rounds);
        let ratios = pairs.filter_map(|(own, limit)| Some(figure(own)? / figure(limit)?));
        ratios.filter(|ratio| ratio.is_finite()).collect()
    }

    fn markdown(&self, report: &Report) -> String {
        let Self { size_bytes, clients, calls_per_round, .. } = self;
        let (reply, rounds) = (format!("{:?}", report.reply).to_uppercase(), report.rounds);
        let mut text = format!(
            "\n### {size_bytes} B results, {reply} upstream, {clients} client(s), {calls_per_round} calls × {rounds} rounds\n\n"
        );
        text.push_str("| target | p50 µs | p99 µs | calls/s | CPU µs/call | first result ms |\n|---|---|---|---|---|---|\n");
        let columns = [
            ("p50_us", 0),
            ("p99_us", 0),
            ("calls_per_second", 0),
            ("cpu_us_per_call", 0),
            ("first_result_ms", 1),
        ];
        for target in &self.targets {
            text.push_str(&row(&target.name, &target.figures, &columns));
        }
        text.push_str("\n| target ÷ limit | p50 × | p99 × | calls/s × | CPU × | first result × |\n|---|---|---|---|---|---|\n");
        for target in &self.targets {
            if let Some(reference) = &target.reference
                && self.targets.iter().any(|other| other.name == *reference)
            {
                let name = format!("{} ÷ {reference}", target.name);
                text.push_str(&row(&name, &target.ratios, &columns.map(|(column, _)| (column, 2))));
            }
        }
        if self.targets.iter().any(|target| target.figures.contains_key("server_pss_mib")) {
            text.push_str("\n| target | server Pss MiB | server peak resident MiB | stdio child Pss MiB |\n|---|---|---|---|\n");
            let columns = [("server_pss_mib", 2), ("server_peak_mib", 2), ("client_pss_mib", 2)];
            for target in &self.targets {
                text.push_str(&row(&target.name, &target.figures, &columns));
            }
        }
        text
    }
}

fn row(name: &str, spreads: &BTreeMap<&'static str, Spread>, columns: &[(&str, usize)]) -> String {
    let cells = columns
        .iter()
        .map(|(column, digits)| spreads.get(column).map_or("–".to_owned(), |spread| spread.show(*digits)));
    format!("| {name} | {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

impl Report {
    /// The tables, with what must be known to read them.
    pub(crate) fn markdown(&self) -> String {
        let mut text = self.machine.markdown();
        if self.quick || self.rounds < 5 {
            text.push_str("Too few rounds to hold anyone to these figures.\n");
        }
        for scenario in &self.scenarios {
            text.push_str(&scenario.markdown(self));
        }
        for (word, targets) in [("skipped", &self.skipped), ("FAILED", &self.failed)] {
            for (name, why) in targets {
                text.push_str(&format!("\n{word} {name}: {why}\n"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(p50_us: f64) -> Round {
        Round {
            checked: 1,
            p50_us,
            p99_us: 2.0 * p50_us,
            max_us: 3.0 * p50_us,
            calls_per_second: 1e6 / p50_us,
            cpu_us_per_call: None,
            first_result_ms: 1.0,
            server_pss_mib: None,
            server_peak_mib: None,
            client_pss_mib: None,
        }
    }

    fn target(name: &str, reference: Option<&str>, p50s: &[f64]) -> TargetReport {
        TargetReport {
            name: name.to_owned(),
            reference: reference.map(str::to_owned),
            rounds: p50s.iter().copied().map(round).collect(),
            figures: BTreeMap::new(),
            ratios: BTreeMap::new(),
        }
    }

    #[test]
    fn ratios_are_taken_within_rounds_before_their_median() {
        // The machine was three times slower in the second round; the ratio of medians would say 1.5, not 2.
        let targets = vec![
            target("limit", None, &[10.0, 30.0, 20.0]),
            target("own", Some("limit"), &[20.0, 60.0, 30.0]),
        ];
        let mut scenario = Scenario { size_bytes: 100, clients: 1, calls_per_round: 1, targets };
        scenario.evaluate();
        let own = &scenario.targets[1];
        assert_eq!(own.ratios["p50_us"], Spread { median: 2.0, min: 1.5, max: 2.0 });
        assert_eq!(own.ratios["calls_per_second"].median, 0.5);
        assert!(!own.ratios.contains_key("cpu_us_per_call"));
        assert!(scenario.targets[0].ratios.is_empty());
    }

    #[test]
    fn a_median_of_two_is_between_them() {
        assert_eq!(Spread::of(vec![3.0, 1.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
