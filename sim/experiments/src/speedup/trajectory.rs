//! One run as distances over time.

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_sim_core::evaluate::{MetricSet, Scores};
use fedspan_sim_core::run::{Job, RunError, Watcher};
use fedspan_sim_core::scenario::Scenario;

/// Distances after each round, and when: as they were with the scenario's communication, and as they would be with
/// another where what the server does is the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// What a round took besides computation.
    communication: f64,
    /// When round 0's row was written: what the start took.
    start: f64,
    /// Exchanges of the start, each with its communication.
    exchanges: u32,
    /// From round 0: time since the start, distance.
    points: Vec<(f64, f64)>,
}

struct Quiet<'a>(&'a AtomicBool);

impl Watcher for Quiet<'_> {
    fn round(&mut self, _done: u32, _of: u32, _scores: Option<&Scores>) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl Trajectory {
    /// Runs a scenario with one seed. `None` if `stop` ended it.
    ///
    /// # Errors
    /// [`RunError`]; without a truth there is no distance, which is [`RunError::Mismatch`].
    pub fn run(scenario: &Scenario, seed: u64, stop: &AtomicBool) -> Result<Option<Self>, RunError> {
        let job = Job::prepare(scenario, seed)?.with_metrics(MetricSet::Distance);
        if job.dataset.truth.is_none() {
            return Err(RunError::Mismatch("without a known truth there is no distance".to_owned()));
        }
        let outcome = job.run(&mut Quiet(stop))?;
        if outcome.interrupted {
            return Ok(None);
        }
        let start = outcome.rounds.first().map_or(0.0, |row| row.time);
        let trained: u64 = outcome.rounds.iter().map(|row| row.participants.len() as u64).sum();
        // Everyone answers every exchange of the start.
        let starting = outcome.updates.saturating_sub(trained) / job.dataset.clients.len() as u64;
        let points = outcome.rounds.iter().filter_map(|row| Some((row.time - start, row.scores?.distance?)));
        Ok(Some(Self {
            communication: scenario.fleet.communication,
            start,
            exchanges: u32::try_from(starting).unwrap_or(u32::MAX),
            points: points.collect(),
        }))
    }

    /// What the start takes with this communication.
    #[must_use]
    pub fn start(&self, communication: f64) -> f64 {
        self.start + f64::from(self.exchanges) * (communication - self.communication)
    }

    /// Time since the start and distance, round by round from 0, with this communication.
    pub fn points(&self, communication: f64) -> impl Iterator<Item = (f64, f64)> + '_ {
        let more = communication - self.communication;
        self.points
            .iter()
            .enumerate()
            .map(move |(round, (time, distance))| (time + round as f64 * more, *distance))
    }

    /// When the last round ended.
    #[must_use]
    pub fn end(&self, communication: f64) -> f64 {
        self.points(communication).last().map_or(0.0, |point| point.0)
    }

    /// Rounds that were done.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        u32::try_from(self.points.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}
