//! The figures beside their goals: a table for people, JSON for programs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::table::{Bound, GOALS, Goal, Part, find};
use crate::report::{Machine, Spread};

/// All that a measurement of goals gave.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) parts: Vec<Part>,
    rows: Vec<Row>,
    /// Parts that failed while measured, and how.
    pub(crate) failed: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    goal: &'static Goal,
    /// Which of several things with the same goal.
    detail: String,
    rounds: Vec<f64>,
    figure: Option<Spread>,
    /// Whether the median keeps the bound; none without bound or figure.
    met: Option<bool>,
}

impl Figures {
    pub(crate) fn new(machine: Machine, quick: bool, parts: Vec<Part>) -> Self {
        Self { machine, quick, parts, rows: Vec::new(), failed: BTreeMap::new() }
    }

    /// Takes the values of the rounds down.
    pub(crate) fn add(&mut self, id: &str, detail: impl Into<String>, rounds: Vec<f64>) -> Result<()> {
        let goal = find(id).with_context(|| format!("no goal {id}"))?;
        let figure = Spread::of(rounds.iter().copied().filter(|value| value.is_finite()).collect());
        let met = figure.zip(goal.bound).map(|(figure, bound)| bound.is_kept_by(figure.median));
        self.rows.push(Row { goal, detail: detail.into(), rounds, figure, met });
        Ok(())
    }

    /// Goals of the measured parts that have no figure.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let measured = |goal: &&Goal| {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.goal.id == goal.id).collect();
            !rows.is_empty() && rows.iter().all(|row| row.figure.is_some())
        };
        let wanted = GOALS.iter().filter(|goal| self.parts.contains(&goal.part));
        wanted.filter(|goal| !measured(goal)).map(|goal| goal.id).collect()
    }

    pub(crate) fn unmet(&self) -> usize {
        self.rows.iter().filter(|row| row.met == Some(false)).count()
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = self.machine.markdown();
        if self.quick {
            text.push_str("Too little to hold anyone to these figures (--quick).\n");
        }
        text.push_str("\n| what | goal | figure | met |\n|---|---|---|---|\n");
        for row in &self.rows {
            text.push_str(&row.markdown());
        }
        let bounds = self.rows.iter().filter(|row| row.goal.bound.is_some()).count();
        text.push_str(&format!("\n{} of {bounds} figures with a goal meet it.\n", bounds - self.unmet()));
        for (part, why) in &self.failed {
            text.push_str(&format!("\nFAILED {part}: {why}\n"));
        }
        for id in self.missing() {
            text.push_str(&format!("\nNO FIGURE for {id}\n"));
        }
        text
    }
}

impl Row {
    fn markdown(&self) -> String {
        let Goal { what, unit, bound, .. } = self.goal;
        let space = if unit.is_empty() || unit.starts_with('×') { "" } else { " " };
        let detail = if self.detail.is_empty() { String::new() } else { format!(": {}", self.detail) };
        let goal = match bound {
            Some(Bound::AtMost(most)) => format!("≤ {most}{space}{unit}"),
            Some(Bound::AtLeast(least)) => format!("≥ {least}{space}{unit}"),
            None => "–".to_owned(),
        };
        let figure = self.figure.map_or("none".to_owned(), |figure| show(figure, self.rounds.len()));
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        format!("| {what}{detail} | {goal} | {figure}{space}{unit} | {met} |\n")
    }
}

/// With as many digits as the size of the number is worth.
fn show(figure: Spread, rounds: usize) -> String {
    let digits = match figure.median.abs() {
        large if large >= 100.0 => 0,
        medium if medium >= 10.0 => 1,
        _ => 2,
    };
    if rounds == 1 { format!("{:.digits$}", figure.median) } else { figure.show(digits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        Figures::new(crate::stage::machine(None), false, vec![Part::Start])
    }

    #[test]
    fn a_goal_is_met_by_the_median_and_missed_without_a_figure() {
        let mut figures = figures();
        figures.add("start.running", "", vec![1.4, 9.0, 1.3]).unwrap();
        figures.add("start.cold", "recorded", vec![3.5]).unwrap();
        figures.add("start.ms", "", vec![f64::NAN]).unwrap();
        assert_eq!(figures.missing(), ["start.ms"]);
        assert_eq!(figures.unmet(), 1);
        let text = figures.markdown();
        let running = "| spawn to first result, daemon running | ≤ 1.5× | 1.40 [1.30..9.00]× | yes |\n";
        assert!(text.contains(running), "{text}");
        assert!(text.contains("no daemon: recorded | ≤ 3× | 3.50× | **no** |"), "{text}");
    }

    #[test]
    fn parts_that_were_not_asked_for_are_not_missing() {
        assert_eq!(figures().missing(), ["start.running", "start.cold", "start.ms"]);
        assert!(figures().add("no.such", "", Vec::new()).is_err());
    }
}
