//! Distances of one run over time.

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_sim_core::evaluate::{MetricSet, Scores};
use fedspan_sim_core::run::{Job, RunError, Watcher};
use fedspan_sim_core::scenario::Scenario;

/// Distance after each round with its time. The times can be converted to another communication cost as long as
/// the server's decisions do not depend on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// Communication cost of a round in the run.
    communication: f64,
    /// Time of round 0, i.e. the duration of the start.
    start: f64,
    /// Number of exchanges in the start; each has its communication cost.
    exchanges: u32,
    /// Time since the start and distance, from round 0.
    points: Vec<(f64, f64)>,
}

struct StopFlag<'a>(&'a AtomicBool);

impl Watcher for StopFlag<'_> {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl Trajectory {
    /// Runs a scenario with one seed. `None` if `stop` ended it.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if the scenario has no known truth, hence no distance; any other [`RunError`] of
    /// the run.
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
        // Every client answers every exchange of the start.
        let starting = outcome.updates.saturating_sub(trained) / job.dataset.clients.len() as u64;
        let points = outcome.rounds.iter().filter_map(|row| Some((row.time - start, row.scores?.distance?)));
        Ok(Some(Self {
            communication: scenario.fleet.communication,
            start,
            exchanges: u32::try_from(starting).unwrap_or(u32::MAX),
            points: points.collect(),
        }))
    }

    /// Duration of the start at this communication cost.
    #[must_use]
    pub fn start(&self, communication: f64) -> f64 {
        self.start + f64::from(self.exchanges) * (communication - self.communication)
    }

    /// Time since the start and distance for each round from 0, at this communication cost.
    pub fn points(&self, communication: f64) -> impl Iterator<Item = (f64, f64)> + '_ {
        let more = communication - self.communication;
        self.points
            .iter()
            .enumerate()
            .map(move |(round, (time, distance))| (time + round as f64 * more, *distance))
    }

    /// Time since the start at which the last round ended.
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
