//! Trajectory of a run: its distances over simulated time, convertible to other communication costs.

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_sim_core::evaluate::{MetricSet, Scores};
use fedspan_sim_core::run::{Job, RunError, Watcher};
use fedspan_sim_core::scenario::Scenario;

/// Times and distances of a run after each round. The times can be converted to another communication cost if
/// the server's decisions do not depend on the communication cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// Communication cost of a round with which the scenario was run.
    communication: f64,
    /// Duration of the initialisation, i.e. the simulated time before the first round.
    start: f64,
    /// Number of rounds in the initialisation; each has the communication cost of a training round.
    exchanges: u32,
    /// Time since the initialisation, and distance, for each round from 0.
    points: Vec<(f64, f64)>,
}

/// Watcher that stops a run if the flag is set.
struct StopFlag<'a>(&'a AtomicBool);

impl Watcher for StopFlag<'_> {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl Trajectory {
    /// Runs a scenario with one seed. Returns `None` if `stop` was set before the end.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if the scenario has no known true representation and therefore no distance, or
    /// any other [`RunError`] of the run.
    pub fn run(scenario: &Scenario, seed: u64, stop: &AtomicBool) -> Result<Option<Self>, RunError> {
        let job = Job::prepare(scenario, seed)?.with_metrics(MetricSet::Distance);
        if job.dataset.truth.is_none() {
            return Err(RunError::Mismatch("without a known truth there is no distance".to_owned()));
        }
        let outcome = job.run(&mut StopFlag(stop))?;
        if outcome.interrupted {
            return Ok(None);
        }
        let start = outcome.rounds.first().map_or(0.0, |row| row.time);
        let trained: u64 = outcome.rounds.iter().map(|row| row.participants.len() as u64).sum();
        // Every client sends one update in every round of the initialisation.
        let starting = outcome.updates.saturating_sub(trained) / job.dataset.clients.len() as u64;
        let points = outcome.rounds.iter().filter_map(|row| Some((row.time - start, row.scores?.distance?)));
        Ok(Some(Self {
            communication: scenario.fleet.communication,
            start,
            exchanges: u32::try_from(starting).unwrap_or(u32::MAX),
            points: points.collect(),
        }))
    }

    /// The same run with all distances multiplied by `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.points.iter_mut().for_each(|(_, distance)| *distance *= factor);
        self
    }

    /// Duration of the initialisation at the given communication cost.
    #[must_use]
    pub fn start(&self, communication: f64) -> f64 {
        self.start + f64::from(self.exchanges) * (communication - self.communication)
    }

    /// Time since the initialisation, and distance, for each round from 0 at the given communication cost.
    pub fn points(&self, communication: f64) -> impl Iterator<Item = (f64, f64)> + '_ {
        let extra_time = communication - self.communication;
        self.points
            .iter()
            .enumerate()
            .map(move |(round, (time, distance))| (time + round as f64 * extra_time, *distance))
    }

    /// Time from the initialisation to the end of the last round, at the given communication cost.
    #[must_use]
    pub fn end(&self, communication: f64) -> f64 {
        self.points(communication).last().map_or(0.0, |point| point.0)
    }

    /// Number of finished rounds.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        u32::try_from(self.points.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}
