//! Replay check: simulates a campaign with the answer times of a server's journal, and compares the decisions
//! of the simulator with the decisions of the server.

use std::time::Duration;

use fedspan_aggregator::config::{Fleet, Mismatch};
use fedspan_aggregator::journal::{JournalEntry, JournalPhase, Server};
use fedspan_engine::DeviceId;
use fedspan_engine::config::{MeasuredSteps, StopSection};

use super::{LiveError, campaign};
use crate::run::replay::{Replay, ReplayError};
use crate::run::{Job, Outcome, RunError};
use crate::scenario::Scenario;

/// Reason why the decisions of a journal cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ReplayCheckError {
    /// The journal is empty or incomplete.
    #[error(transparent)]
    Journal(#[from] ReplayError),
    /// The scenario cannot be served.
    #[error(transparent)]
    Scenario(#[from] LiveError),
    /// The journal records another campaign.
    #[error(
        "found the journal of another campaign than {name} (-: the journal, +: the scenario): {difference}"
    )]
    Other {
        /// Name of the scenario.
        name: String,
        /// Settings that differ, in one line.
        difference: String,
    },
    /// The journal has a device that is not a client of the scenario.
    #[error("found device {device} in the journal, allowed: the scenario's clients, 0 to {last}")]
    Device {
        /// Number of the device.
        device: u64,
        /// Number of the last client.
        last: usize,
    },
    /// The simulation failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Result of a replay check.
#[derive(Clone, Debug)]
pub struct ReplayCheck {
    /// Journal, number of equal decisions, and the first difference.
    pub replay: Replay,
    /// Result of the simulation; `None` if the simulation could not continue after a difference.
    pub outcome: Option<Outcome>,
}

/// Replays a journal and compares every decision.
///
/// # Errors
/// [`ReplayCheckError`] if the journal does not belong to the scenario. A different decision is not an error;
/// see [`Replay::difference`].
pub fn check_replay(scenario: &Scenario, lines: &[JournalEntry]) -> Result<ReplayCheck, ReplayCheckError> {
    let replay = Replay::new(lines)?;
    // The server supports only this stop condition, and newcomers do not affect its decisions.
    let stop = StopSection { change: scenario.stop.change, ..StopSection::default() };
    let scenario = Scenario { stop, ..scenario.clone() };
    // A server is configured with the numbers of step sizes that the scenario has measured.
    let measured = Job::prepare(&scenario, scenario.seed)?.scenario().clone();
    let scenario = Scenario { measured: MeasuredSteps::default(), ..measured };
    let scenario = with_served_settings(scenario, replay.server())?;
    let mut job = Job::prepare(&scenario, scenario.seed)?;
    let newcomers = std::mem::take(&mut job.dataset.newcomers).len();
    let clients = job.dataset.clients.len();
    let mut replay = Replay::new(&trained_devices(lines, &replay, clients, newcomers))?;
    if let Some(device) = replay.devices().into_iter().rfind(|device| *device >= DeviceId(clients as u64)) {
        return Err(ReplayCheckError::Device { device: device.0, last: clients - 1 });
    }
    match job.replay(&mut replay) {
        Ok(outcome) => Ok(ReplayCheck { replay, outcome: Some(outcome) }),
        Err(_) if replay.is_contradicted() => Ok(ReplayCheck { replay, outcome: None }),
        Err(error) => Err(error.into()),
    }
}

/// Entries of a journal in which devices have the numbers of the scenario's clients from 0, without the answers of clients
/// that came after training. Devices of `fedspan-sim device` are numbered from 1.
fn trained_devices(
    lines: &[JournalEntry],
    replay: &Replay,
    clients: usize,
    newcomers: usize,
) -> Vec<JournalEntry> {
    let devices = replay.devices();
    let [clients, all] = [clients, clients + newcomers].map(|count| count as u64);
    let is_from_1 = devices.first().is_some_and(|first| first.0 >= 1)
        && devices.last().is_some_and(|last| (clients..=all).contains(&last.0));
    let offset = u64::from(is_from_1);
    let number = |device: &mut DeviceId| device.0 = device.0.saturating_sub(offset);
    let mut kept = Vec::new();
    for line in lines {
        let mut line = line.clone();
        match &mut line {
            JournalEntry::Opened(opened) => opened.cohort.iter_mut().for_each(number),
            JournalEntry::Committed(committed) => committed.participants.iter_mut().for_each(number),
            JournalEntry::Answered(answered) => number(&mut answered.device),
            JournalEntry::NotAwaited(awaited) | JournalEntry::Awaited(awaited) => number(&mut awaited.device),
            JournalEntry::Began(_) | JournalEntry::Resumed(_) | JournalEntry::Deadline(_) => {}
        }
        let is_newcomer = |device: DeviceId| (clients..clients + newcomers as u64).contains(&device.0);
        if !matches!(&line, JournalEntry::Answered(answered) if is_newcomer(answered.device)) {
            kept.push(line);
        }
    }
    kept
}

/// Completes a scenario: keys that the scenario does not set take the values with which the server's campaign
/// started.
fn with_served_settings(scenario: Scenario, server: &Server) -> Result<Scenario, ReplayCheckError> {
    let dataset = scenario.dataset(scenario.seed).map_err(RunError::from)?;
    let expected = campaign(&scenario, &dataset, std::path::Path::new(""))?;
    let (mut different, resumed) = match expected.resumed(&server.configuration) {
        Ok(resumed) => (String::new(), Some(resumed.fleet)),
        Err(Mismatch::Differs(different)) => (different, None),
        Err(Mismatch::Unreadable(problem)) => (problem.to_string(), None),
    };
    if server.expected != expected.expected && !different.contains("devices.expected") {
        let (recorded, derived) = (server.expected, expected.expected);
        different += &format!("\n- devices.expected = {recorded}\n+ devices.expected = {derived}");
    }
    match resumed {
        Some(fleet) if different.is_empty() => {
            let Fleet { seed, model, algorithm, rule, participation, stop_change, limits, .. } = fleet;
            let stop = StopSection { change: stop_change, ..scenario.stop };
            let (norm, samples) = (limits.norm, limits.samples);
            Ok(Scenario { seed, model, algorithm, rule, participation, stop, norm, samples, ..scenario })
        }
        _ => {
            let lines = different.lines().filter(|line| !line.is_empty());
            let difference = lines.collect::<Vec<_>>().join("; ");
            Err(ReplayCheckError::Other { name: scenario.name, difference })
        }
    }
}

/// Training round with its commit time on the server's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedRound {
    /// Number of the round; 0 is the model at the start of training.
    pub round: u32,
    /// Time from the opening of the first training round to the commit of this round.
    pub after: Duration,
    /// Distance from the true representation after the round, if this representation is known and the round
    /// was evaluated.
    pub distance: Option<f64>,
}

impl ReplayCheck {
    /// Training rounds of the journal with their times. The journal must not contain restarts.
    #[must_use]
    pub fn timed_rounds(&self) -> Vec<TimedRound> {
        let rows = self.outcome.iter().flat_map(|outcome| &outcome.rounds);
        let distances: Vec<(u32, Option<f64>)> =
            rows.map(|row| (row.round, row.scores.and_then(|scores| scores.distance))).collect();
        let distance = |round| {
            distances.iter().find(|(distance_round, _)| *distance_round == round).and_then(|(_, d)| *d)
        };
        let mut timed = Vec::new();
        let (mut began, mut open) = (None, None);
        for line in self.replay.decisions() {
            match line {
                JournalEntry::Opened(opened) if opened.phase == JournalPhase::Training => {
                    if began.is_none() {
                        began = Some(opened.at);
                        timed.push(TimedRound { round: 0, after: Duration::ZERO, distance: distance(0) });
                    }
                    open = Some(opened.number);
                }
                JournalEntry::Committed(committed) => {
                    if let (Some(began), Some(round)) = (began, open.take()) {
                        let elapsed = Duration::from_millis((committed.at - began).as_u64());
                        timed.push(TimedRound { round, after: elapsed, distance: distance(round) });
                    }
                }
                _ => {}
            }
        }
        timed
    }
}
