//! Decides again, in the simulator, what a server decided: at the times of its journal.

use std::time::Duration;

use fedspan_aggregator::config::{Fleet, Mismatch};
use fedspan_aggregator::journal::{JournalEntry, JournalPhase, Server};
use fedspan_engine::config::StopSection;

use super::{LiveError, campaign};
use crate::run::recorded::{Replay, ReplayError};
use crate::run::{Job, Outcome, RunError};
use crate::scenario::Scenario;

/// Why decisions could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum AgainError {
    /// The journal itself.
    #[error(transparent)]
    Journal(#[from] ReplayError),
    /// The scenario, which no server could have run.
    #[error(transparent)]
    Scenario(#[from] LiveError),
    /// The journal is of another campaign.
    #[error(
        "the journal is of another campaign than {name} (-: the journal, +: the scenario):\n{difference}"
    )]
    Other {
        /// The scenario.
        name: String,
        /// Lines that differ.
        difference: String,
    },
    /// The journal's devices are not the scenario's clients.
    #[error("the journal has a device {device}, the scenario has clients 0 to {last}")]
    Device {
        /// One that no client is.
        device: u64,
        /// The last client.
        last: usize,
    },
    /// The simulation.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// A journal that was run again.
#[derive(Clone, Debug)]
pub struct Again {
    /// What was compared, and what is different.
    pub replay: Replay,
    /// What the simulator learnt, as far as it came; nothing if it could not go on after a difference.
    pub outcome: Option<Outcome>,
}

/// Runs a journal again.
///
/// # Errors
/// [`AgainError`]. A decision that is different is none: see [`Replay::difference`].
pub fn again(scenario: &Scenario, lines: &[JournalEntry]) -> Result<Again, AgainError> {
    let mut replay = Replay::new(lines)?;
    // A server knows of no other target, and clients that come later take no part in decisions.
    let stop = StopSection { change: scenario.stop.change, ..StopSection::default() };
    let scenario = Scenario { stop, ..scenario.clone() };
    let scenario = as_served(scenario, replay.server())?;
    let mut job = Job::prepare(&scenario, scenario.seed)?;
    job.dataset.newcomers.clear();
    let clients = job.dataset.clients.len();
    if let Some(device) = replay.devices().into_iter().rfind(|device| *device >= clients as u64) {
        return Err(AgainError::Device { device, last: clients - 1 });
    }
    match job.replay(&mut replay) {
        Ok(outcome) => Ok(Again { replay, outcome: Some(outcome) }),
        Err(_) if replay.is_contradicted() => Ok(Again { replay, outcome: None }),
        Err(error) => Err(error.into()),
    }
}

/// The scenario under the settings with which the server's campaign began, where it does not say others.
fn as_served(scenario: Scenario, server: &Server) -> Result<Scenario, AgainError> {
    let dataset = scenario.dataset(scenario.seed).map_err(RunError::from)?;
    let own = campaign(&scenario, &dataset, std::path::Path::new(""))?;
    let (mut different, resumed) = match own.resumed(&server.configuration) {
        Ok(resumed) => (String::new(), Some(resumed.fleet)),
        Err(Mismatch::Differs(different)) => (different, None),
        Err(Mismatch::Unreadable(problem)) => (format!("{problem}\n"), None),
    };
    if server.expected != own.expected && !different.contains("devices.expected") {
        let (was, is) = (server.expected, own.expected);
        different += &format!("- devices.expected = {was}\n+ devices.expected = {is}\n");
    }
    match resumed {
        Some(fleet) if different.is_empty() => {
            let Fleet { seed, model, algorithm, rule, participation, stop_change, limits, .. } = fleet;
            let stop = StopSection { change: stop_change, ..scenario.stop };
            let (norm, samples) = (limits.norm, limits.samples);
            Ok(Scenario { seed, model, algorithm, rule, participation, stop, norm, samples, ..scenario })
        }
        _ => Err(AgainError::Other { name: scenario.name, difference: different }),
    }
}

/// A training round on the server's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// Its number; 0 is the model that training began with.
    pub round: u32,
    /// From the opening of the first training round to this one's commit.
    pub after: Duration,
    /// The distance to the truth after it, where there is a truth and the round was evaluated.
    pub distance: Option<f64>,
}

impl Again {
    /// The training rounds, of a journal without restarts.
    #[must_use]
    pub fn timed(&self) -> Vec<Timed> {
        let rows = self.outcome.iter().flat_map(|outcome| &outcome.rounds);
        let distances: Vec<(u32, Option<f64>)> =
            rows.map(|row| (row.round, row.scores.and_then(|scores| scores.distance))).collect();
        let distance = |round| distances.iter().find(|(known, _)| *known == round).and_then(|(_, d)| *d);
        let mut timed = Vec::new();
        let (mut began, mut open) = (None, None);
        for line in self.replay.decisions() {
            match line {
                JournalEntry::Opened(opened) if opened.phase == JournalPhase::Training => {
                    if began.is_none() {
                        began = Some(opened.at);
                        timed.push(Timed { round: 0, after: Duration::ZERO, distance: distance(0) });
                    }
                    open = Some(opened.number);
                }
                JournalEntry::Committed(committed) => {
                    if let (Some(began), Some(round)) = (began, open.take()) {
                        let after = Duration::from_millis(committed.at.saturating_sub(began));
                        timed.push(Timed { round, after, distance: distance(round) });
                    }
                }
                _ => {}
            }
        }
        timed
    }
}
