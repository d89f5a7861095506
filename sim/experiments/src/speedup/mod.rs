//! Speedup measurement of participation schedules: simulated time to a target distance, compared with full
//! participation, for several fleet sizes, speed models and communication costs. `STRAGGLERS.md` defines the
//! measurement.

pub mod hunt;
mod table;
mod time_to_target;
mod trajectory;

use std::sync::atomic::AtomicBool;

use fedspan_engine::config::Problem;
use serde::Serialize;

pub use table::markdown;
pub use time_to_target::{Crossings, RESAMPLES, Ratio, Speedup};
pub use trajectory::Trajectory;

use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::summary::Spread;
use fedspan_sim_core::run::RunError;
use fedspan_sim_core::scenario::Scenario;

/// Name of the measured built-in scenario.
pub const SCENARIO: &str = "stragglers";

/// Stationary distances of full participation in [`SCENARIO`], as pairs of the number of clients and the
/// median distance over rounds and seeds.
pub const STATIONARY: [(usize, f64); 7] =
    [(16, 0.0720), (32, 0.0507), (64, 0.0358), (128, 0.02525), (256, 0.0178), (512, 0.01266), (1024, 0.0089)];

/// Number of rounds that are dropped at the beginning of a run that measures the stationary distance.
const BURN_IN: u32 = 50;
/// Number of rounds after the burn-in over which the median distance is taken.
const STATIONARY_ROUNDS: u32 = 150;
/// Largest number of seeds with which the stationary distance is measured.
const STATIONARY_SEEDS: u32 = 20;

/// Number of rounds of a run before its first extension.
const FIRST_ROUNDS: u32 = 64;
/// Number of rounds after which a target counts as unreachable.
const MAX_ROUNDS: u32 = 100_000;
/// Limit of the simulated time for schedules that do not depend on the communication cost, as a multiple of
/// the time that full participation needs to reach the target.
const TIME_LIMIT: f64 = 4.0;
/// Limit of the simulated time for schedules that depend on the communication cost, as a multiple of the time
/// that full participation needs to reach the target. Such schedules run once for each communication cost.
const TIME_LIMIT_PER_COST: f64 = 1.15;

/// Change of the scenario that selects every client in every round.
const FULL_PARTICIPATION: &str = "participation={ policy = \"full\" }";

/// Participation schedule, expressed as changes of the scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Name in tables.
    pub name: String,
    /// Changes of the scenario. The placeholder `{communication}` stands for the communication cost of a
    /// round, `{floor}` for the stationary distance of full participation.
    pub changes: Vec<String>,
    /// True if the schedule depends on observations during the run. The table marks the best of the schedules
    /// for which this is false.
    pub adaptive: bool,
}

impl Policy {
    /// Schedules that can be selected by name.
    #[must_use]
    pub fn known() -> Vec<Self> {
        let policy = |name: &str, adaptive, changes: &[&str]| Self {
            name: name.to_owned(),
            changes: changes.iter().map(|change| (*change).to_owned()).collect(),
            adaptive,
        };
        vec![
            policy("fixed", false, &["participation.schedule=\"fixed\""]),
            policy(
                "theorem",
                false,
                &["participation.schedule=\"theorem\"", "participation.contraction=0.19"],
            ),
            policy(
                "optimal",
                false,
                &[
                    "participation.schedule=\"optimal\"",
                    "participation.contraction=0.19",
                    "participation.floor={floor}",
                    "participation.communication={communication}",
                ],
            ),
            policy("adaptive", true, &["participation.schedule=\"adaptive\""]),
            policy("verified", true, &["participation.schedule=\"verified\""]),
        ]
    }

    /// Changes of the scenario in which the placeholders are replaced by `communication` and `floor`.
    #[must_use]
    pub fn filled(&self, communication: f64, floor: f64) -> Vec<String> {
        let fill = |change: &String| {
            let change = change.replace("{communication}", &format!("{communication:?}"));
            change.replace("{floor}", &format!("{floor:?}"))
        };
        self.changes.iter().map(fill).collect()
    }

    /// True if the communication cost influences which clients participate in the rounds of a run.
    fn depends_on_communication(&self) -> bool {
        self.adaptive || self.changes.iter().any(|change| change.contains("{communication}"))
    }
}

/// Model of the clients' speeds, expressed as changes of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedModel {
    /// Name in tables.
    pub name: &'static str,
    /// Changes of the scenario.
    pub changes: &'static [&'static str],
}

/// Speed models that can be selected by name.
pub const SPEEDS: [SpeedModel; 3] = [
    SpeedModel { name: "fixed", changes: &["fleet.speed=\"exponential\""] },
    SpeedModel {
        name: "dynamic-mean",
        changes: &["fleet.speed=\"exponential-dynamic\"", "fleet.reading=\"mean\""],
    },
    SpeedModel {
        name: "dynamic-rate",
        changes: &["fleet.speed=\"exponential-dynamic\"", "fleet.reading=\"rate\""],
    },
];

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Measured fleet sizes.
    pub clients: Vec<usize>,
    /// Measured speed models.
    pub speeds: Vec<SpeedModel>,
    /// Measured communication costs of a round, in mean computation times.
    pub communication: Vec<f64>,
    /// Schedules that are compared with full participation.
    pub policies: Vec<Policy>,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Target distance, as a multiple of the stationary distance of full participation.
    pub factor: f64,
    /// Further changes of the scenario, which apply to every run.
    pub changes: Vec<String>,
    /// True if the stationary distance is measured; otherwise the value of [`STATIONARY`] is used.
    pub measure_target: bool,
    /// Number of threads, which does not influence the results.
    pub threads: usize,
}

/// Error that ends a measurement.
#[derive(Debug, thiserror::Error)]
pub enum SpeedupError {
    /// The scenario rejects a schedule or another change.
    #[error(transparent)]
    Scenario(#[from] Problem),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// No stationary distance is recorded for this fleet size.
    #[error("for {0} clients no target is recorded: --measure-target measures it")]
    NoTarget(usize),
    /// Full participation does not reach the target.
    #[error("full participation of {clients} clients does not come to {target} in {MAX_ROUNDS} rounds")]
    Unreached {
        /// Fleet size.
        clients: usize,
        /// Target distance.
        target: f64,
    },
}

/// Row of the table: results for one fleet size, speed model and communication cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Fleet size.
    pub clients: usize,
    /// Name of the speed model.
    pub speed: &'static str,
    /// Communication cost of a round, in mean computation times.
    pub communication: f64,
    /// Stationary distance of full participation.
    pub stationary: f64,
    /// Target distance.
    pub target: f64,
    /// Duration of the initialisation, as a median over seeds. The other times do not include it.
    pub start: f64,
    /// Simulated time that full participation needs to reach the target.
    pub full: f64,
    /// Results of the schedules, in the order of the settings.
    pub policies: Vec<Compared>,
}

/// Result of one schedule in a row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Name of the schedule.
    pub name: String,
    /// True if the schedule depends on observations during the run.
    pub adaptive: bool,
    /// Comparison with full participation.
    #[serde(flatten)]
    pub speedup: Speedup,
}

/// Result of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Rows of all finished combinations of fleet size and speed model.
    pub rows: Vec<Row>,
    /// True if the user interrupted the measurement.
    pub interrupted: bool,
}

/// Creates the measured scenario with the given number of clients and further changes.
///
/// # Errors
/// [`Problem`] if the scenario rejects a change.
pub fn scenario(clients: usize, changes: &[String]) -> Result<Scenario, Problem> {
    let text = Scenario::built_in(SCENARIO).unwrap_or_default();
    let first = [format!("data.clients={clients}"), "evaluate_every=1".to_owned()];
    let changes: Vec<String> = first.into_iter().chain(changes.iter().cloned()).collect();
    Scenario::parse(SCENARIO, text, &changes)
}

/// Measures all fleet sizes, speed models and schedules. Setting `stop` interrupts the measurement.
///
/// # Errors
/// [`SpeedupError`] if the scenario rejects a schedule, a run fails, or a target is unknown or unreachable.
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Measured, SpeedupError> {
    let measurement = Measurement { settings, stop, progress };
    let mut rows = Vec::new();
    for &clients in &settings.clients {
        let Some(stationary) = measurement.stationary(clients)? else {
            return Ok(Measured { rows, interrupted: true });
        };
        for speed in &settings.speeds {
            let Some(fleet_rows) = measurement.fleet_rows(clients, stationary, speed)? else {
                return Ok(Measured { rows, interrupted: true });
            };
            rows.extend(fleet_rows);
        }
    }
    Ok(Measured { rows, interrupted: false })
}

/// Measures the stationary distance of full participation. Runs start at the true representation, and the
/// result is the median distance over the rounds after the burn-in and over the seeds. Returns `None` if
/// `stop` was set before the end.
///
/// # Errors
/// [`SpeedupError::Run`] if a run fails.
pub fn stationary(
    clients: usize,
    settings: &Settings,
    stop: &AtomicBool,
) -> Result<Option<f64>, SpeedupError> {
    let changes =
        [FULL_PARTICIPATION, "model.init=\"truth-sine:0\"", "fleet.speed=\"constant\""].map(str::to_owned);
    let changes: Vec<String> = changes.into_iter().chain(settings.changes.iter().cloned()).collect();
    let mut scenario = scenario(clients, &changes)?;
    scenario.algorithm.rounds = BURN_IN + STATIONARY_ROUNDS;
    let seeds: Vec<u64> = (0..settings.seeds.min(STATIONARY_SEEDS).into()).collect();
    let run = |index: &u64| Trajectory::run(&scenario, settings.seed.wrapping_add(*index), stop);
    let Some(runs) = parallel::each(settings.threads, &seeds, run)? else { return Ok(None) };
    let first_point = BURN_IN as usize + 1;
    let distances: Vec<f64> =
        runs.iter().flat_map(|run| run.points(0.0).skip(first_point)).map(|(_, distance)| distance).collect();
    Ok(Spread::new(&distances).map(|spread| spread.median))
}

/// Measurement in progress.
struct Measurement<'a> {
    settings: &'a Settings,
    stop: &'a AtomicBool,
    progress: &'a dyn Progress,
}

impl Measurement<'_> {
    /// Recorded or measured stationary distance, or `None` if the user interrupted the measurement.
    fn stationary(&self, clients: usize) -> Result<Option<f64>, SpeedupError> {
        if self.settings.measure_target || !self.settings.changes.is_empty() {
            return stationary(clients, self.settings, self.stop);
        }
        let level = STATIONARY.iter().find(|(n, _)| *n == clients);
        Ok(Some(level.ok_or(SpeedupError::NoTarget(clients))?.1))
    }

    /// Measures all rows of one fleet size and speed model. Returns `None` if the user interrupted the
    /// measurement.
    fn fleet_rows(
        &self,
        clients: usize,
        stationary: f64,
        speed: &SpeedModel,
    ) -> Result<Option<Vec<Row>>, SpeedupError> {
        let target = self.settings.factor * stationary;
        let Some(full) =
            self.run_to_target(clients, speed, &[FULL_PARTICIPATION.to_owned()], target, None)?
        else {
            return Ok(None);
        };
        let (mut rows, mut full_runs) = (Vec::new(), Vec::new());
        for &communication in &self.settings.communication {
            let crossings = Crossings::new(&full, communication, target);
            let time = crossings.time().ok_or(SpeedupError::Unreached { clients, target })?;
            let starts: Vec<f64> = full.iter().map(|run| run.start(communication)).collect();
            let start = Spread::new(&starts).map_or(0.0, |spread| spread.median);
            full_runs.push((crossings, starts));
            let (speed, full, policies) = (speed.name, time, Vec::new());
            rows.push(Row { clients, speed, communication, stationary, target, start, full, policies });
        }
        let times: Vec<f64> = rows.iter().map(|row| row.full).collect();
        for policy in &self.settings.policies {
            let fleet = (clients, stationary, target);
            let Some(compared) = self.policy(policy, speed, fleet, &full_runs, &times)? else {
                return Ok(None);
            };
            for (row, compared) in rows.iter_mut().zip(compared) {
                row.policies.push(compared);
            }
        }
        Ok(Some(rows))
    }

    /// Measures one schedule at each communication cost and compares it with full participation, which is
    /// given by crossings, durations of the initialisation, and times to the target. Returns `None` if the
    /// user interrupted the measurement.
    fn policy(
        &self,
        policy: &Policy,
        speed: &SpeedModel,
        (clients, stationary, target): (usize, f64, f64),
        full: &[(Crossings, Vec<f64>)],
        times: &[f64],
    ) -> Result<Option<Vec<Compared>>, SpeedupError> {
        let compared = |full: &Crossings, runs: &[Trajectory], communication: f64| Compared {
            name: policy.name.clone(),
            adaptive: policy.adaptive,
            speedup: Speedup::new(full, &Crossings::new(runs, communication, target)),
        };
        let each = self.settings.communication.iter().copied().zip(full);
        if !policy.depends_on_communication() {
            let limits: Vec<f64> = times.iter().map(|time| TIME_LIMIT * time).collect();
            let Some(runs) =
                self.run_to_target(clients, speed, &policy.filled(0.0, stationary), target, Some(&limits))?
            else {
                return Ok(None);
            };
            return Ok(Some(each.map(|(c, (full, _))| compared(full, &runs, c)).collect()));
        }
        let mut policies_of_speed = Vec::new();
        for ((communication, (full, starts)), time) in each.zip(times) {
            let mut changes = policy.filled(communication, stationary);
            changes.push(format!("fleet.communication={communication:?}"));
            let scenario = self.scenario(clients, speed, &changes)?;
            let seeds: Vec<(u64, f64)> = (0..).zip(starts.iter().copied()).collect();
            let run = |(index, start): &(u64, f64)| {
                let mut scenario = scenario.clone();
                scenario.stop.simulated_time = Some(start + TIME_LIMIT_PER_COST * time);
                scenario.algorithm.rounds = MAX_ROUNDS;
                self.run(&scenario, *index, clients)
            };
            let Some(runs) = parallel::each(self.settings.threads, &seeds, run)? else { return Ok(None) };
            policies_of_speed.push(compared(full, &runs, communication));
        }
        Ok(Some(policies_of_speed))
    }

    /// Creates the scenario with a speed model and further changes.
    fn scenario(&self, clients: usize, speed: &SpeedModel, changes: &[String]) -> Result<Scenario, Problem> {
        let speed = speed.changes.iter().map(|change| (*change).to_owned());
        let all = speed.chain(changes.iter().cloned()).chain(self.settings.changes.iter().cloned());
        scenario(clients, &all.collect::<Vec<_>>())
    }

    /// Runs all seeds of a schedule that does not depend on the communication cost, at communication cost 0.
    /// Runs are extended until, at every communication cost, the median over the seeds and the medians over
    /// most resamples have reached the target, or until the simulated time exceeds `limits`, which has one
    /// limit for each communication cost. Returns `None` if the user interrupted the measurement.
    fn run_to_target(
        &self,
        clients: usize,
        speed: &SpeedModel,
        changes: &[String],
        target: f64,
        limits: Option<&[f64]>,
    ) -> Result<Option<Vec<Trajectory>>, SpeedupError> {
        let changes: Vec<String> =
            changes.iter().cloned().chain(["fleet.communication=0.0".to_owned()]).collect();
        let scenario = self.scenario(clients, speed, &changes)?;
        let run = |weight: usize| {
            let scenario = &scenario;
            move |(index, rounds): &(u64, u32)| {
                let mut scenario = scenario.clone();
                scenario.algorithm.rounds = *rounds;
                self.run(&scenario, *index, weight)
            }
        };
        let first: Vec<(u64, u32)> =
            (0..self.settings.seeds.into()).map(|index| (index, FIRST_ROUNDS)).collect();
        let Some(mut runs) = parallel::each(self.settings.threads, &first, run(clients))? else {
            return Ok(None);
        };
        loop {
            let mut extension = vec![1.0f64; runs.len()];
            for (index, communication) in self.settings.communication.iter().enumerate() {
                let crossings = Crossings::new(&runs, *communication, target);
                let end_time = crossings.time_for_most_resamples().unwrap_or(2.0 * crossings.horizon());
                let limit = limits.and_then(|limits| limits.get(index)).copied().unwrap_or(f64::INFINITY);
                for (extension, run) in extension.iter_mut().zip(&runs) {
                    *extension = extension.max(end_time.min(limit) / run.end(*communication));
                }
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few at a time")]
            let extended_rounds =
                |run: &Trajectory, factor: f64| (f64::from(run.rounds()) * factor * 1.05).ceil() as u32 + 1;
            let too_short: Vec<(u64, u32)> = (0u64..)
                .zip(extension.iter().zip(&runs))
                .filter(|(_, (extension, _))| **extension > 1.0)
                .map(|(index, (extension, run))| (index, extended_rounds(run, *extension)))
                .collect();
            if too_short.is_empty() {
                return Ok(Some(runs));
            }
            if too_short.iter().any(|(_, rounds)| *rounds > MAX_ROUNDS) {
                return Err(SpeedupError::Unreached { clients, target });
            }
            let Some(new) = parallel::each(self.settings.threads, &too_short, run(0))? else {
                return Ok(None);
            };
            for ((index, _), new) in too_short.into_iter().zip(new) {
                if let Some(old) = usize::try_from(index).ok().and_then(|index| runs.get_mut(index)) {
                    *old = new;
                }
            }
        }
    }

    /// Runs one seed. In the progress display the run counts `weight`.
    fn run(&self, scenario: &Scenario, index: u64, weight: usize) -> Result<Option<Trajectory>, RunError> {
        let run = Trajectory::run(scenario, self.settings.seed.wrapping_add(index), self.stop)?;
        let label = format!("communication {}, seed {index}", scenario.fleet.communication);
        self.progress.advance(weight as u64, self.total_work(), &label);
        Ok(run)
    }

    /// Total work for the progress display: each run counts its number of clients. Extensions of runs do not
    /// count.
    fn total_work(&self) -> u64 {
        let Settings { clients, speeds, communication, policies, seeds, .. } = self.settings;
        let dependent = policies.iter().filter(|policy| policy.depends_on_communication()).count();
        let runs = speeds.len() * (1 + policies.len() - dependent + dependent * communication.len());
        clients.iter().sum::<usize>() as u64 * runs as u64 * u64::from(*seeds)
    }
}
