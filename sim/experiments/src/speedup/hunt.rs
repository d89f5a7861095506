//! Search for settings in which the adaptive schedule is slower than full participation: worlds drawn at
//! random, each measured at several communication costs.
//!
//! A world has a shape of the data, a step, a fleet with its speeds, and possibly a correlation of speed with
//! data. The target of a data set lies between the distance of its start and the distance that full
//! participation reaches, so that a world without a stationary distance has a target as well.

use std::fmt::Write;
use std::sync::atomic::AtomicBool;

use fedspan_engine::config::Problem;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_sim_core::report::summary::Spread;
use fedspan_sim_core::run::RunError;
use fedspan_sim_core::scenario::Scenario;
use serde::{Deserialize, Serialize};

use super::{Crossings, FULL_PARTICIPATION, SCENARIO, Speedup, Trajectory};
use crate::survey;

/// Communication costs of a round at which a world is measured, in mean computation times.
pub const COSTS: [f64; 4] = [0.0, 1.0, 10.0, 100.0];
/// Ratio below which the schedule counts as slower than full participation.
pub const SLOWER: f64 = 0.97;
/// Smallest fleet of the worlds whose gain without communication is reported.
const LARGE_FLEET: usize = 64;
/// Limit of the simulated time of the schedule, as a multiple of the time of full participation.
const TIME_LIMIT: f64 = 1.3;
/// Smallest target, as a multiple of the distance that full participation reaches.
const ABOVE_FLOOR: f64 = 1.1;
/// Numbers of rounds of full participation: with steps of the inverse curvature, and at most.
const FULL_ROUNDS: (f64, f64) = (30.0, 250.0);
/// Largest number of values of all samples of a fleet, so that a hunt ends in a night.
const MOST_VALUES: usize = 150_000;
/// Number of worlds that the table lists for each communication cost.
const LISTED: usize = 8;

/// Settings of a hunt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Number of worlds.
    pub worlds: usize,
    /// Changes of the scenario that apply to every run, after those of the world.
    pub changes: Vec<String>,
    /// Seed of the worlds, and first seed of their data.
    pub seed: u64,
    /// Number of data sets of a world.
    pub seeds: u32,
}

/// World drawn at random.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// Number of devices.
    pub clients: usize,
    /// Position of the target between the start (1) and the floor (0), on a logarithmic scale.
    pub target: f64,
    /// Number of rounds of full participation from which the floor is taken.
    rounds: u32,
    /// Expected number of floating-point operations of a round.
    work: f64,
    /// Changes of the scenario, in which the world consists.
    changes: Vec<String>,
    /// Changes that apply to every run.
    common: Vec<String>,
    seed: u64,
    seeds: u32,
}

/// Result of a world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Changes of the scenario, in which the world consists.
    pub world: Vec<String>,
    /// Number of rounds of full participation to the target, as a median over the data sets.
    pub rounds: f64,
    /// Time of full participation divided by the time of the schedule, at each communication cost; an upper
    /// bound if the schedule did not reach the target, and `None` if full participation did not.
    pub ratios: Vec<Option<f64>>,
}

/// Draws the worlds of a hunt. The first n worlds are the same for every number of worlds from n on.
#[must_use]
pub fn worlds(settings: &Settings) -> Vec<World> {
    let world = |index: u64| {
        let random = &mut stream(settings.seed, Purpose::Design, index);
        World { common: settings.changes.clone(), seed: settings.seed, seeds: settings.seeds, ..draw(random) }
    };
    (0..settings.worlds as u64).map(world).collect()
}

/// Draws a number that is log-uniform on `low..high`.
fn log_uniform(random: &mut Stream, low: f64, high: f64) -> f64 {
    low * (random.uniform() * (high / low).ln()).exp()
}

/// Draws an integer that is about log-uniform on `low..=high`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between small integers")]
fn log_integer(random: &mut Stream, low: usize, high: usize) -> usize {
    (log_uniform(random, low as f64, high as f64 + 1.0).floor() as usize).clamp(low, high)
}

/// Draws a world, without the settings that all worlds share.
fn draw(random: &mut Stream) -> World {
    let (d, samples, clients) = loop {
        let shape = (log_integer(random, 4, 128), log_integer(random, 5, 200), log_integer(random, 8, 256));
        if shape.0 * shape.1 * shape.2 <= MOST_VALUES {
            break shape;
        }
    };
    let k = log_integer(random, 1, 8.min(d / 2).min(samples - 1));
    let first = log_integer(random, 1, clients / 2);
    // Heads of norm sqrt(k) have this largest curvature in expectation.
    let curvature = (1.0 + (k as f64 / clients as f64).sqrt()).powi(2);
    let step = log_uniform(random, 0.05, 1.9);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a few hundred")]
    let rounds = (FULL_ROUNDS.0 / step).min(FULL_ROUNDS.1).ceil() as u32;
    let mut changes = vec![
        format!("data.d={d}"),
        format!("data.k={k}"),
        format!("model.k={k}"),
        format!("data.samples={samples}"),
        format!("data.clients={clients}"),
        format!("data.fresh={}", random.below(2) == 1),
        format!("data.noise_std={:.3}", random.uniform()),
        format!("algorithm.step_size={:.4}", step / curvature),
        format!("participation.n0={first}"),
    ];
    if random.below(4) == 0 {
        changes.extend(["data.sizes=\"log-normal\"", "algorithm.weighting=\"samples\""].map(str::to_owned));
    }
    if random.below(4) == 0 {
        changes.push("model.init=\"random\"".to_owned());
    }
    changes.extend(draw_speeds(random));
    if random.below(4) == 0 {
        changes.push(format!("fleet.dropout={:.3}", 0.3 * random.uniform()));
    }
    let target = 0.05 + 0.45 * random.uniform();
    let work = clients as f64 * (samples * (4 * d + k * k) + 40 * d * k) as f64;
    World { clients, target, rounds, work, changes, common: Vec::new(), seed: 0, seeds: 0 }
}

/// Draws the speeds of a fleet, and their correlation with the data.
fn draw_speeds(random: &mut Stream) -> Vec<String> {
    let mut changes = match random.below(6) {
        0 => vec!["fleet.speed=\"uniform\"".to_owned()],
        1 => vec!["fleet.speed=\"exponential\"".to_owned()],
        2 => vec![
            "fleet.speed=\"two-class\"".to_owned(),
            format!("fleet.slow_fraction={:.2}", 0.05 + 0.45 * random.uniform()),
            format!("fleet.slow_factor={:.1}", log_uniform(random, 2.0, 100.0)),
        ],
        3 => vec![
            "fleet.speed=\"pareto\"".to_owned(),
            format!("fleet.tail_index={:.2}", log_uniform(random, 1.5, 4.0)),
        ],
        4 => vec!["fleet.speed=\"exponential-dynamic\"".to_owned(), "fleet.reading=\"mean\"".to_owned()],
        _ => vec!["fleet.speed=\"exponential-dynamic\"".to_owned(), "fleet.reading=\"rate\"".to_owned()],
    };
    if random.below(2) == 1 {
        changes.push(format!("fleet.spike_probability={:.4}", log_uniform(random, 0.001, 0.1)));
        changes.push(format!("fleet.spike_factor={:.1}", log_uniform(random, 2.0, 100.0)));
    }
    match random.below(8) {
        0 => {
            changes.extend(["fleet.correlation=\"features\"".to_owned(), "data.blind_clients=0.5".to_owned()])
        }
        1 => changes.push("fleet.correlation=\"targets\"".to_owned()),
        2 => changes.push("fleet.correlation=\"task\"".to_owned()),
        3 => changes.push("fleet.correlation=\"samples\"".to_owned()),
        _ => {}
    }
    changes
}

impl World {
    /// The world as changes of the scenario, for `speedup` and `run`.
    #[must_use]
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Scenario of the world with further changes.
    fn scenario(&self, changes: &[String]) -> Result<Scenario, Problem> {
        // Some rounds more than those that define the target, so that every data set reaches it.
        let first = [format!("algorithm.rounds={}", self.rounds + self.rounds / 2)];
        let all = first.iter().chain(&self.changes).chain(&self.common).chain(changes);
        let changes: Vec<String> = all.cloned().collect();
        Scenario::parse(SCENARIO, Scenario::built_in(SCENARIO).unwrap_or_default(), &changes)
    }

    /// Checks that the changes fit the scenario of this world.
    ///
    /// # Errors
    /// [`Problem`] of the scenario.
    pub fn check(&self) -> Result<(), Problem> {
        self.scenario(&[]).map(|_| ())
    }

    /// Runs all data sets with full participation, at communication cost 0. `None` if `stop` was set.
    fn full(&self, stop: &AtomicBool) -> Result<Option<Vec<Trajectory>>, RunError> {
        let scenario = self.scenario(&[FULL_PARTICIPATION.to_owned()]).map_err(mismatch)?;
        let run = |index| Trajectory::run(&scenario, self.seed.wrapping_add(index), stop);
        (0..u64::from(self.seeds)).map(run).collect()
    }

    /// Target of a data set, from its run with full participation.
    fn target(&self, full: &Trajectory) -> f64 {
        let points = full.points(0.0).take(self.rounds as usize + 1);
        let distances: Vec<f64> = points.map(|(_, distance)| distance).collect();
        let start = distances.first().copied().unwrap_or(1.0);
        let last = distances.get(distances.len() - distances.len() / 4..).unwrap_or_default();
        let floor = Spread::new(last).map_or(start, |spread| spread.median).max(f64::MIN_POSITIVE);
        floor * (start / floor).powf(self.target).max(ABOVE_FLOOR)
    }

    /// Runs all data sets with the schedule, each until a multiple of the time that full participation needs.
    /// `None` if `stop` was set.
    fn scheduled(
        &self,
        communication: f64,
        full: &[Trajectory],
        time: f64,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Trajectory>>, RunError> {
        let communicating = format!("fleet.communication={communication:?}");
        let mut scenario = self.scenario(&[communicating]).map_err(mismatch)?;
        scenario.algorithm.rounds = super::MAX_ROUNDS;
        let run = |(index, full): (u64, &Trajectory)| {
            let mut scenario = scenario.clone();
            scenario.stop.simulated_time = Some(full.start(communication) + TIME_LIMIT * time);
            Trajectory::run(&scenario, self.seed.wrapping_add(index), stop)
        };
        (0u64..).zip(full).map(run).collect()
    }
}

/// The changes were checked before, so this error is not expected.
fn mismatch(problem: Problem) -> RunError {
    RunError::Mismatch(problem.to_string())
}

impl survey::Cell for World {
    type Outcome = Outcome;

    fn seconds(&self) -> f64 {
        // The schedule takes more rounds, but with fewer devices.
        let runs = f64::from(self.seeds) * (1 + COSTS.len()) as f64;
        self.work * 2e-9 * f64::from(self.rounds) * runs * 0.4
    }

    fn label(&self) -> String {
        format!("{} clients, {} rounds", self.clients, self.rounds)
    }

    fn measure(&self, stop: &AtomicBool) -> Result<Option<Outcome>, RunError> {
        let Some(full) = self.full(stop)? else { return Ok(None) };
        let targets: Vec<f64> = full.iter().map(|run| self.target(run)).collect();
        let scaled = |runs: Vec<Trajectory>| -> Vec<Trajectory> {
            runs.into_iter().zip(&targets).map(|(run, target)| run.scaled(1.0 / target)).collect()
        };
        let full = scaled(full);
        let mut ratios = Vec::new();
        for communication in COSTS {
            let crossings = Crossings::new(&full, communication, 1.0);
            // Without a majority at the target, nothing can be compared.
            let Some(time) = crossings.time() else {
                ratios.push(None);
                continue;
            };
            let Some(runs) = self.scheduled(communication, &full, time, stop)? else { return Ok(None) };
            let scheduled = Crossings::new(&scaled(runs), communication, 1.0);
            ratios.push(Some(Speedup::ratio_alone(&crossings, &scheduled)));
        }
        let to_target = |run: &Trajectory| {
            let reached = run.points(0.0).position(|(_, distance)| distance <= 1.0);
            reached.unwrap_or_else(|| run.rounds() as usize) as f64
        };
        let rounds: Vec<f64> = full.iter().map(to_target).collect();
        let world = self.changes.clone();
        Ok(Some(Outcome { world, rounds: Spread::new(&rounds).map_or(0.0, |spread| spread.median), ratios }))
    }
}

/// Formats the finished worlds: a summary for each communication cost, and the worst worlds.
#[must_use]
pub fn markdown(worlds: &[World], outcomes: &[Option<Outcome>]) -> String {
    let finished: Vec<(usize, &World, &Outcome)> = (0..)
        .zip(worlds.iter().zip(outcomes))
        .filter_map(|(index, (world, outcome))| Some((index, world, outcome.as_ref()?)))
        .collect();
    let mut text = format!(
        "| communication | worlds | below {SLOWER} | worst | median | median, {LARGE_FLEET} clients and more |\n\
         | --- | --- | --- | --- | --- | --- |\n"
    );
    let ratio = |outcome: &Outcome, cost: usize| outcome.ratios.get(cost).copied().flatten();
    for (cost, communication) in COSTS.iter().enumerate() {
        let select = |least: usize| -> Vec<f64> {
            let large = finished.iter().filter(|(_, world, _)| world.clients >= least);
            let mut ratios: Vec<f64> = large.filter_map(|(.., outcome)| ratio(outcome, cost)).collect();
            ratios.sort_by(f64::total_cmp);
            ratios
        };
        let (all, large) = (select(0), select(LARGE_FLEET));
        let below = all.iter().filter(|ratio| **ratio < SLOWER).count();
        let percent = 100.0 * below as f64 / all.len().max(1) as f64;
        let middle = |sorted: &[f64]| sorted.get(sorted.len() / 2).copied();
        let _ = writeln!(
            text,
            "| {communication} | {} | {percent:.1} % | {} | {} | {} |",
            all.len(),
            shown(all.first().copied()),
            shown(middle(&all)),
            shown(middle(&large))
        );
    }
    text.push_str("\n| ratio | communication | world | rounds of full participation | changes of `stragglers` |\n| --- | --- | --- | --- | --- |\n");
    for (cost, communication) in COSTS.iter().enumerate() {
        let mut worst: Vec<_> = finished
            .iter()
            .filter_map(|(index, world, outcome)| Some((ratio(outcome, cost)?, index, world, outcome)))
            .collect();
        worst.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        for (ratio, index, world, outcome) in worst.into_iter().take(LISTED) {
            let changes: Vec<String> =
                world.changes().iter().map(|change| format!("`{}`", change.replace('"', ""))).collect();
            let _ = writeln!(
                text,
                "| {} | {communication} | {index} | {:.0} | {} |",
                shown(Some(ratio)),
                outcome.rounds,
                changes.join(" ")
            );
        }
    }
    text
}

fn shown(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}
