//! Grid of settings of a scenario: runs every combination, chooses the best on validation data, and scores the chosen one
//! on test data.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_engine::config::Problem;
use fedspan_sim_core::data::file::DataFile;
use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::report::summary::{Spread, Summary};
use fedspan_sim_core::run::{Job, RunError, Watcher};
use fedspan_sim_core::scenario::Scenario;
use serde::{Deserialize, Serialize};

use crate::survey;

/// Largest number of combinations of a grid.
pub const LARGEST: usize = 10_000;

/// Key with the values that a grid tries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Axis {
    /// Key of the scenario, such as `model.k`.
    pub key: String,
    /// Values in TOML, or words.
    pub values: Vec<String>,
}

/// Data on which settings are compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// This fraction of each client's training samples, which is scored in place of the test samples.
    Validation(f64),
    /// Generated data of other seeds than those of the final score, if the data have no section `[split]`.
    OtherSeeds,
}

/// Everything on which the results of a grid depend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// Name of the scenario, or path of its file.
    pub scenario: String,
    /// Text of the scenario, with the changes that hold for all combinations.
    pub text: String,
    /// Files of the data.
    pub data: Vec<DataFile>,
    /// Keys that the combinations differ in.
    pub axes: Vec<Axis>,
    /// Data on which combinations are compared.
    pub choice: Choice,
    /// Metric by which they are compared.
    pub metric: String,
    /// First seed.
    pub seed: u64,
    /// Number of seeds of each combination.
    pub seeds: u32,
    /// Version of the program, and the commit of its sources if it is known.
    pub program: String,
}

/// Result of one run of a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Figures of the final model.
    Figures(BTreeMap<String, f64>),
    /// Reason why the run has none.
    Failed(String),
}

/// One run of a grid.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Index of the combination.
    pub combination: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Scenario of the run, or the reason why the combination is none.
    scenario: Result<Box<Scenario>, String>,
    /// Whether figures of new clients are kept: not in runs that compare combinations, since they are on test samples.
    keeps_new_clients: bool,
    /// Values of the keys, for the progress display.
    label: String,
    seconds: f64,
}

/// Metrics by which a grid can choose, with true if a larger value is better.
pub const METRICS: [(&str, bool); 4] =
    [("accuracy", true), ("test_mse", false), ("loss", false), ("distance", false)];

impl Grid {
    /// Combinations of the values, the last key changing fastest: the value of each key.
    #[must_use]
    pub fn combinations(&self) -> Vec<Vec<&str>> {
        let mut all = vec![Vec::new()];
        for axis in &self.axes {
            all = all
                .into_iter()
                .flat_map(|values: Vec<&str>| {
                    axis.values.iter().map(move |value| [values.as_slice(), &[value.as_str()]].concat())
                })
                .collect();
        }
        all
    }

    /// Changes of the scenario for the values of a combination.
    #[must_use]
    pub fn changes(&self, values: &[&str]) -> Vec<String> {
        self.axes.iter().zip(values).map(|(axis, value)| format!("{}={value}", axis.key)).collect()
    }

    /// Runs that compare the combinations.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let validation = match self.choice {
            Choice::Validation(fraction) => Some(format!("split.validation={fraction}")),
            Choice::OtherSeeds => None,
        };
        let cells = |(combination, values): (usize, Vec<&str>)| {
            let changes: Vec<String> = self.changes(&values).into_iter().chain(validation.clone()).collect();
            self.runs(combination, &changes, self.seed, self.choice == Choice::OtherSeeds)
        };
        self.combinations().into_iter().enumerate().flat_map(cells).collect()
    }

    /// Runs that score a combination on test data.
    #[must_use]
    pub fn final_cells(&self, combination: usize) -> Vec<Cell> {
        let combinations = self.combinations();
        let mut changes = self.changes(combinations.get(combination).map_or(&[][..], Vec::as_slice));
        let first = match self.choice {
            Choice::Validation(_) => {
                changes.push("split.validation=0".to_owned());
                self.seed
            }
            Choice::OtherSeeds => self.seed.saturating_add(self.seeds.into()),
        };
        self.runs(combination, &changes, first, true)
    }

    /// One run for each seed.
    fn runs(&self, combination: usize, changes: &[String], first: u64, keeps_new_clients: bool) -> Vec<Cell> {
        let parsed: Result<Scenario, Problem> = Scenario::parse(&self.scenario, &self.text, changes);
        let scenario = parsed.map(Box::new).map_err(|problem| problem.to_string());
        let label = changes.join(" ");
        let seconds = scenario.as_ref().map_or(0.0, |scenario| expected_seconds(scenario));
        let seeds = (0..u64::from(self.seeds)).map(|index| first.saturating_add(index));
        let cell = |seed| Cell {
            combination,
            seed,
            scenario: scenario.clone(),
            keeps_new_clients,
            label: label.clone(),
            seconds,
        };
        seeds.map(cell).collect()
    }
}

/// Expected time of a run on one core of a 2020s server. It is a guess from the number of rounds, since the data have not
/// been read.
fn expected_seconds(scenario: &Scenario) -> f64 {
    let of_a_round = if scenario.model.network.is_some() { 5e-2 } else { 2e-3 };
    0.1 + f64::from(scenario.algorithm.rounds) * of_a_round
}

impl survey::Cell for Cell {
    type Outcome = Outcome;

    fn seconds(&self) -> f64 {
        self.seconds
    }

    fn label(&self) -> String {
        format!("{} seed {}", self.label, self.seed)
    }

    fn measure(&self, stop: &AtomicBool) -> Result<Option<Outcome>, RunError> {
        let scenario = match &self.scenario {
            Ok(scenario) => scenario,
            Err(reason) => return Ok(Some(Outcome::Failed(reason.clone()))),
        };
        let outcome = Job::prepare(scenario, self.seed).and_then(|job| {
            let clients = job.dataset.clients.len();
            Ok((clients, job.run(&mut UntilStopped(stop))?))
        });
        Ok(match outcome {
            Ok((_, outcome)) if outcome.interrupted => None,
            Ok((clients, outcome)) => {
                let summary = Summary::new(scenario, self.seed, clients, &outcome, 0.0);
                match summary.diverged {
                    Some(diverged) => Some(Outcome::Failed(format!("diverged in round {}", diverged.round))),
                    None => {
                        let kept = |(name, _): &(&str, f64)| {
                            self.keeps_new_clients || !name.ends_with("_new_clients")
                        };
                        let figures = summary.figures.iter().filter(kept);
                        Some(Outcome::Figures(
                            figures.map(|(name, value)| (name.to_owned(), value)).collect(),
                        ))
                    }
                }
            }
            Err(error) => Some(Outcome::Failed(error.to_string())),
        })
    }
}

/// Watcher that ends a run when the flag is set.
struct UntilStopped<'a>(&'a AtomicBool);

impl Watcher for UntilStopped<'_> {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// Results of a combination over its seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Index of the combination.
    pub combination: usize,
    /// Values of the keys, in the order of the axes.
    pub values: Vec<String>,
    /// Spread of the metric over the runs that finished; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<Spread>,
    /// Number of runs that finished with the metric.
    pub finished: usize,
    /// Reason of the first run that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Rows of all combinations, the best first; combinations with failed runs follow those without.
#[must_use]
pub fn rows(grid: &Grid, cells: &[Cell], outcomes: &[Option<Outcome>]) -> Vec<Row> {
    let larger_is_better = METRICS.iter().any(|(name, larger)| *name == grid.metric && *larger);
    let row = |(combination, values): (usize, Vec<&str>)| {
        let of_it = || {
            let runs = cells.iter().zip(outcomes).filter(|(cell, _)| cell.combination == combination);
            runs.filter_map(|(_, outcome)| outcome.as_ref())
        };
        let value = |outcome: &Outcome| match outcome {
            Outcome::Figures(figures) => figures.get(&grid.metric).copied(),
            Outcome::Failed(_) => None,
        };
        let found: Vec<f64> = of_it().filter_map(value).collect();
        let failure = of_it().find_map(|outcome| match outcome {
            Outcome::Failed(reason) => Some(reason.clone()),
            Outcome::Figures(figures) => {
                let names: Vec<&str> = figures.keys().map(String::as_str).collect();
                let message = || format!("the run has no {:?}, it has: {}", grid.metric, names.join(", "));
                (!figures.contains_key(&grid.metric)).then(message)
            }
        });
        Row {
            combination,
            values: values.into_iter().map(str::to_owned).collect(),
            metric: Spread::new(&found),
            finished: found.len(),
            failure,
        }
    };
    let mut rows: Vec<Row> = grid.combinations().into_iter().enumerate().map(row).collect();
    let key = |row: &Row| {
        let mean = row
            .metric
            .map_or(f64::INFINITY, |spread| if larger_is_better { -spread.mean } else { spread.mean });
        (row.failure.is_some() || row.metric.is_none(), mean)
    };
    rows.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    rows
}

/// Number of rows, the best included, whose mean is within one standard error of the best one's.
#[must_use]
pub fn as_good(rows: &[Row]) -> usize {
    let best = rows.first().and_then(|row| Some((row.metric?, row.finished)));
    let Some((best, count)) = best else { return 0 };
    #[allow(clippy::cast_precision_loss, reason = "a number of seeds")]
    let error = best.sd.unwrap_or(0.0) / (count as f64).sqrt();
    let is_near = |row: &&Row| {
        row.failure.is_none() && row.metric.is_some_and(|spread| (spread.mean - best.mean).abs() <= error)
    };
    rows.iter().filter(is_near).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn grid(axes: &[(&str, &[&str])]) -> Grid {
        let axis = |(key, values): &(&str, &[&str])| Axis {
            key: (*key).to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        Grid {
            scenario: "linear".to_owned(),
            text: Scenario::built_in("linear").unwrap().to_owned(),
            data: Vec::new(),
            axes: axes.iter().map(axis).collect(),
            choice: Choice::OtherSeeds,
            metric: "distance".to_owned(),
            seed: 3,
            seeds: 2,
            program: "test".to_owned(),
        }
    }

    #[test]
    fn all_combinations_are_tried_with_the_same_seeds() {
        let grid = grid(&[("model.k", &["1", "2"]), ("algorithm.rounds", &["2", "4", "6"])]);
        assert_eq!(grid.combinations()[..2], [["1", "2"], ["1", "4"]]);
        assert_eq!(grid.changes(&["2", "6"]), ["model.k=2", "algorithm.rounds=6"]);
        let cells = grid.cells();
        assert_eq!(cells.len(), 12);
        assert!(cells.chunks(2).all(|pair| pair[0].seed == 3
            && pair[1].seed == 4
            && pair[0].combination == pair[1].combination));
        // The final score is on data that no choice has seen.
        assert_eq!(grid.final_cells(5).iter().map(|cell| cell.seed).collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn best_is_first_and_impossible_combinations_are_last() {
        let grid = grid(&[("model.k", &["2", "99", "3"])]);
        let cells = grid.cells();
        let figure = |value: f64| Some(Outcome::Figures(BTreeMap::from([("distance".to_owned(), value)])));
        let failed = || Some(Outcome::Failed("model.k".to_owned()));
        let outcomes = [figure(0.3), figure(0.5), failed(), failed(), figure(0.1), figure(0.2)];
        let rows = rows(&grid, &cells, &outcomes);
        let values: Vec<&str> = rows.iter().map(|row| row.values[0].as_str()).collect();
        assert_eq!(values, ["3", "2", "99"]);
        assert!((rows[0].metric.unwrap().mean - 0.15).abs() < 1e-12 && rows[2].metric.is_none());
        assert_eq!(as_good(&rows), 1);
        // A combination of which a seed failed is not the best, however good the other seeds.
        let outcomes = [figure(0.3), figure(0.5), failed(), figure(0.0), figure(0.1), figure(0.2)];
        let rows = super::rows(&grid, &cells, &outcomes);
        assert_eq!((rows[2].values[0].as_str(), rows[2].finished), ("99", 1));
    }
}
