//! Curves of a figure that are runs of scenarios, and the numbers that findings compare.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::accuracy_times::{final_accuracy, median_crossing, shifted};
use fedspan_sim_core::report::plot::{Point, Series, curve};
use fedspan_sim_core::report::summary::{Spread, Summary};
use fedspan_sim_core::report::table::{Table, figure};
use fedspan_sim_core::run::{Job, Watcher};
use fedspan_sim_core::scenario::Scenario;

use super::{ReproductionError, Request};

/// A curve: a scenario with changes.
pub struct Curve {
    /// Label, unique in the figure.
    pub label: String,
    scenario: Scenario,
}

impl Curve {
    /// Creates the curve of a built-in scenario with changes.
    pub fn new(
        label: impl Into<String>,
        scenario: &str,
        changes: &[&str],
    ) -> Result<Self, ReproductionError> {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let text = Scenario::built_in(scenario).unwrap_or_default();
        Ok(Self { label: label.into(), scenario: Scenario::parse(scenario, text, &changes)? })
    }
}

/// Runs of a curve, one for each seed.
struct Runs {
    curve: Curve,
    summaries: Vec<Summary>,
    curves: Vec<Vec<Point>>,
}

/// Runs of all curves of a figure.
pub struct Simulated(Vec<Runs>);

/// Ends a run when Ctrl-C was pressed.
struct UntilStopped<'a>(&'a AtomicBool);

impl Watcher for UntilStopped<'_> {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl Simulated {
    /// Runs all curves with all seeds. Returns `None` if `stop` was set before the end.
    ///
    /// # Errors
    /// [`ReproductionError::Run`] if a run fails.
    pub fn run(
        curves: Vec<Curve>,
        request: &Request,
        stop: &AtomicBool,
        progress: &dyn Progress,
    ) -> Result<Option<Self>, ReproductionError> {
        let tasks: Vec<(&Curve, u64)> = curves
            .iter()
            .flat_map(|curve| (0..u64::from(request.seeds)).map(move |seed| (curve, request.seed + seed)))
            .collect();
        let results = parallel::each(request.threads, &tasks, |(curve, seed)| {
            let failed = |error| ReproductionError::Run { label: curve.label.clone(), seed: *seed, error };
            let began = Instant::now();
            let job = Job::prepare(&curve.scenario, *seed).map_err(failed)?;
            let outcome = job.run(&mut UntilStopped(stop)).map_err(failed)?;
            if outcome.interrupted {
                return Ok(None);
            }
            progress.advance(1, tasks.len() as u64, &curve.label);
            let (clients, seconds) = (job.dataset.clients.len(), began.elapsed().as_secs_f64());
            let summary = Summary::new(&curve.scenario, *seed, clients, &outcome, seconds);
            Ok::<_, ReproductionError>(Some((
                Summary { label: curve.label.clone(), ..summary },
                self::curve(&outcome),
            )))
        })?;
        let Some(results) = results else { return Ok(None) };
        let mut results = results.into_iter();
        let runs = curves.into_iter().map(|curve| {
            let (summaries, curves) = results.by_ref().take(request.seeds as usize).unzip();
            Runs { curve, summaries, curves }
        });
        Ok(Some(Self(runs.collect())))
    }

    fn find(&self, label: &str) -> Option<&Runs> {
        self.0.iter().find(|runs| runs.curve.label == label)
    }

    /// Curves whose labels satisfy a condition, for a panel.
    pub fn series(&self, belongs: impl Fn(&str) -> bool) -> Vec<Series> {
        self.shifted_series(0.0, belongs)
    }

    /// Curves with a communication cost of a round in addition to that of the scenario.
    pub fn shifted_series(&self, communication: f64, belongs: impl Fn(&str) -> bool) -> Vec<Series> {
        let runs = self.0.iter().filter(|runs| belongs(&runs.curve.label));
        runs.map(|Runs { curve: Curve { label, scenario }, curves, .. }| {
            Series::of(label, scenario, shifted(curves, communication))
        })
        .collect()
    }

    /// Spread over the seeds of a final figure; NaN if a run does not have it.
    pub fn last(&self, label: &str, name: &str) -> Spread {
        let value = |summary: &Summary| summary.figures.get(name).unwrap_or(f64::NAN);
        spread(self.find(label).map(|runs| runs.summaries.iter().map(value).collect()).unwrap_or_default())
    }

    /// Spread over the seeds of a score after a round.
    pub fn after(&self, label: &str, round: u32, score: impl Fn(&Scores) -> Option<f64>) -> Spread {
        let value = |points: &Vec<Point>| {
            let point = points.iter().find(|point| point.round == f64::from(round));
            point.and_then(|point| score(&point.scores)).unwrap_or(f64::NAN)
        };
        spread(self.find(label).map(|runs| runs.curves.iter().map(value).collect()).unwrap_or_default())
    }

    /// Mean over the seeds of the difference `a - b` of a score after a round, in standard errors; NaN for a single seed.
    #[allow(clippy::cast_precision_loss, reason = "a number of seeds")]
    pub fn standard_errors(
        &self,
        a: &str,
        b: &str,
        round: u32,
        score: impl Fn(&Scores) -> Option<f64>,
    ) -> f64 {
        let values = |label: &str| -> Vec<f64> {
            let value = |points: &Vec<Point>| {
                let point = points.iter().find(|point| point.round == f64::from(round));
                point.and_then(|point| score(&point.scores)).unwrap_or(f64::NAN)
            };
            self.find(label).map(|runs| runs.curves.iter().map(value).collect()).unwrap_or_default()
        };
        let differences: Vec<f64> = values(a).iter().zip(values(b)).map(|(a, b)| a - b).collect();
        let spread = spread(differences.clone());
        spread.mean / (spread.sd.unwrap_or(f64::NAN) / (differences.len() as f64).sqrt())
    }

    /// Mean accuracy of the last ten rounds over all seeds; NaN if there is none.
    pub fn final_accuracy(&self, label: &str) -> f64 {
        self.find(label).and_then(|runs| final_accuracy(&runs.curves)).unwrap_or(f64::NAN)
    }

    /// First time at which more than half of the seeds have the accuracy `target`, with a communication cost in
    /// addition to that of the scenario; infinite if there is none.
    pub fn time_to(&self, label: &str, target: f64, communication: f64) -> f64 {
        let crossing = |runs: &Runs| median_crossing(&shifted(&runs.curves, communication), target);
        self.find(label).and_then(crossing).unwrap_or(f64::INFINITY)
    }

    /// Labels of all curves.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|runs| runs.curve.label.as_str())
    }

    /// Table of final figures: mean and standard deviation over the seeds, a row for each curve.
    pub fn table(&self, title: &str, names: &[&str]) -> Table {
        let row = |runs: &Runs| {
            let cells = names.iter().map(|name| shown(name, &self.last(&runs.curve.label, name)));
            std::iter::once(runs.curve.label.clone()).chain(cells).collect()
        };
        Table {
            title: title.to_owned(),
            columns: std::iter::once("curve").chain(names.iter().copied()).map(str::to_owned).collect(),
            rows: self.0.iter().map(row).collect(),
            notes: Vec::new(),
        }
    }

    /// Summaries of all runs, and the texts of the scenarios.
    pub fn into_parts(self) -> (Vec<Summary>, Vec<(String, String)>) {
        let (mut summaries, mut scenarios) = (Vec::new(), Vec::new());
        for Runs { curve, summaries: own, .. } in self.0 {
            summaries.extend(own);
            scenarios.push((format!("Scenario: {}", curve.label), curve.scenario.text));
        }
        (summaries, scenarios)
    }
}

/// Spread of values; NaN if there are none.
fn spread(values: Vec<f64>) -> Spread {
    let empty = Spread { mean: f64::NAN, sd: None, median: f64::NAN, q25: f64::NAN, q75: f64::NAN };
    Spread::new(&values).unwrap_or(empty)
}

/// Mean and standard deviation as text.
pub fn shown(name: &str, spread: &Spread) -> String {
    if spread.mean.is_nan() {
        return "-".to_owned();
    }
    let sd = spread.sd.map_or(String::new(), |sd| format!(" +- {}", figure(name, sd)));
    figure(name, spread.mean) + &sd
}
