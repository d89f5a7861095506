//! How many times as fast as waiting for everybody: the same target, reached by schedules of participation and by full
//! participation, over fleets, speeds and communication. `STRAGGLERS.md` defines what is measured.

mod hit;
mod table;
mod trajectory;

use std::sync::atomic::AtomicBool;

use fedspan_engine::config::Problem;
use serde::Serialize;

pub use hit::{Crossings, RESAMPLES, Ratio, Speedup};
pub use table::markdown;
pub use trajectory::Trajectory;

use fedspan_sim_core::parallel;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::summary::Spread;
use fedspan_sim_core::run::RunError;
use fedspan_sim_core::scenario::Scenario;

/// The scenario that is measured.
pub const SCENARIO: &str = "stragglers";

/// Where full participation's distance hovers in [`SCENARIO`]: clients, median over rounds and seeds.
pub const STATIONARY: [(usize, f64); 7] =
    [(16, 0.0720), (32, 0.0507), (64, 0.0358), (128, 0.02525), (256, 0.0178), (512, 0.01266), (1024, 0.0089)];

/// Rounds from the truth until the distance hovers, and over which its median is then taken.
const BURN_IN: u32 = 50;
const HOVERING: u32 = 150;
/// Seeds for that, at most.
const HOVERING_SEEDS: u32 = 20;

/// Rounds that are tried first.
const FIRST_ROUNDS: u32 = 64;
/// Rounds after which a target counts as out of reach.
const MOST_ROUNDS: u32 = 100_000;
/// Schedules whose rounds do not depend on communication are followed for so many times what full participation takes.
const PATIENCE: f64 = 4.0;
/// The others have to be run for each communication, and are followed for so many times.
const PATIENCE_EACH: f64 = 1.15;

/// Everybody, in every round.
const FULL: &str = "participation={ policy = \"full\" }";

/// A schedule of participation: what to change in the scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// In tables.
    pub name: String,
    /// Changes of the scenario. `{communication}` stands for what a round takes besides computation, `{floor}` for the
    /// distance at which full participation hovers.
    pub changes: Vec<String>,
    /// Decides by what it sees. The best of the others is marked.
    pub adaptive: bool,
}

impl Policy {
    /// The schedules that have a name.
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
        ]
    }

    /// The changes for a communication and a floor.
    #[must_use]
    pub fn filled(&self, communication: f64, floor: f64) -> Vec<String> {
        let fill = |change: &String| {
            let change = change.replace("{communication}", &format!("{communication:?}"));
            change.replace("{floor}", &format!("{floor:?}"))
        };
        self.changes.iter().map(fill).collect()
    }

    /// Whether the rounds of a run depend on what communication takes.
    fn minds_communication(&self) -> bool {
        self.adaptive || self.changes.iter().any(|change| change.contains("{communication}"))
    }
}

/// A model of the clients' speeds: what to change in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedModel {
    /// In tables.
    pub name: &'static str,
    /// Changes of the scenario.
    pub changes: &'static [&'static str],
}

/// The speeds that have a name.
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

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Sizes of the fleet.
    pub clients: Vec<usize>,
    /// Models of speeds.
    pub speeds: Vec<SpeedModel>,
    /// What a round takes besides computation, in mean computations.
    pub communication: Vec<f64>,
    /// Schedules that are compared with full participation.
    pub policies: Vec<Policy>,
    /// The first seed.
    pub seed: u64,
    /// How many.
    pub seeds: u32,
    /// The target over the distance at which full participation hovers.
    pub factor: f64,
    /// Measure that distance instead of taking it from [`STATIONARY`].
    pub measure_target: bool,
    /// Threads; results do not depend on it.
    pub threads: usize,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum SpeedupError {
    /// A schedule, or something else, that the scenario does not know.
    #[error(transparent)]
    Scenario(#[from] Problem),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It is not known where full participation hovers.
    #[error("for {0} clients no target is recorded: --measure-target measures it")]
    NoTarget(usize),
    /// Full participation does not come to the target.
    #[error("full participation of {clients} clients does not come to {target} in {MOST_ROUNDS} rounds")]
    Unreached {
        /// Size of the fleet.
        clients: usize,
        /// The distance.
        target: f64,
    },
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Size of the fleet.
    pub clients: usize,
    /// Name of the speeds.
    pub speed: &'static str,
    /// What a round takes besides computation.
    pub communication: f64,
    /// Where full participation hovers.
    pub stationary: f64,
    /// The distance to come to.
    pub target: f64,
    /// What the start takes, median over seeds; in none of the other times.
    pub start: f64,
    /// Time of full participation.
    pub full: f64,
    /// The schedules, in order.
    pub policies: Vec<Compared>,
}

/// A schedule in a line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Its name.
    pub name: String,
    /// Decides by what it sees.
    pub adaptive: bool,
    /// Against full participation.
    #[serde(flatten)]
    pub speedup: Speedup,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Of all fleets and speeds that were finished.
    pub rows: Vec<Row>,
    /// Ended by the user.
    pub interrupted: bool,
}

/// The scenario with this many clients and these changes.
///
/// # Errors
/// [`Problem`] if it does not know them.
pub fn scenario(clients: usize, changes: &[String]) -> Result<Scenario, Problem> {
    let text = Scenario::built_in(SCENARIO).unwrap_or_default();
    let first = [format!("data.clients={clients}"), "evaluate_every=1".to_owned()];
    let changes: Vec<String> = first.into_iter().chain(changes.iter().cloned()).collect();
    Scenario::parse(SCENARIO, text, &changes)
}

/// Measures all of it. `stop` ends it early.
///
/// # Errors
/// [`SpeedupError`].
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Measured, SpeedupError> {
    let bench = Bench { settings, stop, progress };
    let mut rows = Vec::new();
    for &clients in &settings.clients {
        let Some(stationary) = bench.stationary(clients)? else {
            return Ok(Measured { rows, interrupted: true });
        };
        for speed in &settings.speeds {
            let Some(more) = bench.part(clients, stationary, speed)? else {
                return Ok(Measured { rows, interrupted: true });
            };
            rows.extend(more);
        }
    }
    Ok(Measured { rows, interrupted: false })
}

/// The distance at which full participation of a fleet hovers: from the truth, without its first rounds, the median
/// over rounds and seeds. `None` if `stop` ended it.
///
/// # Errors
/// [`SpeedupError`].
pub fn stationary(
    clients: usize,
    settings: &Settings,
    stop: &AtomicBool,
) -> Result<Option<f64>, SpeedupError> {
    let changes = [FULL, "model.init=\"truth-sine:0\"", "fleet.speed=\"constant\""].map(str::to_owned);
    let mut scenario = scenario(clients, &changes)?;
    scenario.algorithm.rounds = BURN_IN + HOVERING;
    let seeds: Vec<u64> = (0..settings.seeds.min(HOVERING_SEEDS).into()).collect();
    let run = |index: &u64| Trajectory::run(&scenario, settings.seed.wrapping_add(*index), stop);
    let Some(runs) = parallel::each(settings.threads, &seeds, run)? else { return Ok(None) };
    let after = BURN_IN as usize + 1;
    let hovering: Vec<f64> =
        runs.iter().flat_map(|run| run.points(0.0).skip(after)).map(|(_, distance)| distance).collect();
    Ok(Spread::new(&hovering).map(|spread| spread.median))
}

struct Bench<'a> {
    settings: &'a Settings,
    stop: &'a AtomicBool,
    progress: &'a dyn Progress,
}

impl Bench<'_> {
    /// Where full participation hovers, recorded or measured; `None` if that was ended early.
    fn stationary(&self, clients: usize) -> Result<Option<f64>, SpeedupError> {
        if self.settings.measure_target {
            return stationary(clients, self.settings, self.stop);
        }
        let known = STATIONARY.iter().find(|(n, _)| *n == clients);
        Ok(Some(known.ok_or(SpeedupError::NoTarget(clients))?.1))
    }

    /// All lines of one fleet and its speeds; `None` if it was ended early.
    fn part(
        &self,
        clients: usize,
        stationary: f64,
        speed: &SpeedModel,
    ) -> Result<Option<Vec<Row>>, SpeedupError> {
        let target = self.settings.factor * stationary;
        let Some(full) = self.followed(clients, speed, &[FULL.to_owned()], target, None)? else {
            return Ok(None);
        };
        let (mut rows, mut begun) = (Vec::new(), Vec::new());
        for &communication in &self.settings.communication {
            let crossings = Crossings::of(&full, communication, target);
            let hit = crossings.hit().ok_or(SpeedupError::Unreached { clients, target })?;
            let starts: Vec<f64> = full.iter().map(|run| run.start(communication)).collect();
            let start = Spread::new(&starts).map_or(0.0, |spread| spread.median);
            begun.push((crossings, starts));
            let (speed, full, policies) = (speed.name, hit, Vec::new());
            rows.push(Row { clients, speed, communication, stationary, target, start, full, policies });
        }
        let times: Vec<f64> = rows.iter().map(|row| row.full).collect();
        for policy in &self.settings.policies {
            let fleet = (clients, stationary, target);
            let Some(compared) = self.policy(policy, speed, fleet, &begun, &times)? else { return Ok(None) };
            for (row, compared) in rows.iter_mut().zip(compared) {
                row.policies.push(compared);
            }
        }
        Ok(Some(rows))
    }

    /// A schedule with each communication, against full participation's crossings, starts and times.
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
            speedup: Speedup::of(full, &Crossings::of(runs, communication, target)),
        };
        let each = self.settings.communication.iter().copied().zip(full);
        if !policy.minds_communication() {
            let limits: Vec<f64> = times.iter().map(|time| PATIENCE * time).collect();
            let Some(runs) =
                self.followed(clients, speed, &policy.filled(0.0, stationary), target, Some(&limits))?
            else {
                return Ok(None);
            };
            return Ok(Some(each.map(|(c, (full, _))| compared(full, &runs, c)).collect()));
        }
        let mut all = Vec::new();
        for ((communication, (full, starts)), time) in each.zip(times) {
            let mut changes = policy.filled(communication, stationary);
            changes.push(format!("fleet.communication={communication:?}"));
            let scenario = self.scenario(clients, speed, &changes)?;
            let seeds: Vec<(u64, f64)> = (0..).zip(starts.iter().copied()).collect();
            let run = |(index, start): &(u64, f64)| {
                let mut scenario = scenario.clone();
                scenario.stop.simulated_time = Some(start + PATIENCE_EACH * time);
                scenario.algorithm.rounds = MOST_ROUNDS;
                self.run(&scenario, *index, clients)
            };
            let Some(runs) = parallel::each(self.settings.threads, &seeds, run)? else { return Ok(None) };
            all.push(compared(full, &runs, communication));
        }
        Ok(Some(all))
    }

    fn scenario(&self, clients: usize, speed: &SpeedModel, changes: &[String]) -> Result<Scenario, Problem> {
        let speed = speed.changes.iter().map(|change| (*change).to_owned());
        scenario(clients, &speed.chain(changes.iter().cloned()).collect::<Vec<_>>())
    }

    /// Runs all seeds of what does not mind communication, without it, until the median over them, and over most
    /// resamples of them, has come to the target with every communication; for at most `limits` of simulated time.
    fn followed(
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
            let mut longer = vec![1.0f64; runs.len()];
            for (index, communication) in self.settings.communication.iter().enumerate() {
                let crossings = Crossings::of(&runs, *communication, target);
                let wanted = crossings.hit_of_most().unwrap_or(2.0 * crossings.horizon());
                let limit = limits.and_then(|limits| limits.get(index)).copied().unwrap_or(f64::INFINITY);
                for (longer, run) in longer.iter_mut().zip(&runs) {
                    *longer = longer.max(wanted.min(limit) / run.end(*communication));
                }
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few at a time")]
            let more =
                |run: &Trajectory, factor: f64| (f64::from(run.rounds()) * factor * 1.05).ceil() as u32 + 1;
            let short: Vec<(u64, u32)> = (0u64..)
                .zip(longer.iter().zip(&runs))
                .filter(|(_, (longer, _))| **longer > 1.0)
                .map(|(index, (longer, run))| (index, more(run, *longer)))
                .collect();
            if short.is_empty() {
                return Ok(Some(runs));
            }
            if short.iter().any(|(_, rounds)| *rounds > MOST_ROUNDS) {
                return Err(SpeedupError::Unreached { clients, target });
            }
            let Some(new) = parallel::each(self.settings.threads, &short, run(0))? else { return Ok(None) };
            for ((index, _), new) in short.into_iter().zip(new) {
                if let Some(old) = usize::try_from(index).ok().and_then(|index| runs.get_mut(index)) {
                    *old = new;
                }
            }
        }
    }

    fn run(&self, scenario: &Scenario, index: u64, weight: usize) -> Result<Option<Trajectory>, RunError> {
        let run = Trajectory::run(scenario, self.settings.seed.wrapping_add(index), self.stop)?;
        let what = format!("communication {}, seed {index}", scenario.fleet.communication);
        self.progress.advance(weight as u64, self.work(), &what);
        Ok(run)
    }

    /// All runs, weighed by their clients, without those that turn out to be too short.
    fn work(&self) -> u64 {
        let Settings { clients, speeds, communication, policies, seeds, .. } = self.settings;
        let minding = policies.iter().filter(|policy| policy.minds_communication()).count();
        let runs = speeds.len() * (1 + policies.len() - minding + minding * communication.len());
        clients.iter().sum::<usize>() as u64 * runs as u64 * u64::from(*seeds)
    }
}
