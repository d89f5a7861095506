//! Design of the attack survey: cells that cover fleets of many shapes, each with one attack by one fraction of
//! the fleet, under several aggregation rules.
//!
//! The cells are drawn at random from the levels of every factor, so that the worst values are not
//! those of fleets that the rule was designed with. The number of rounds of a cell is such that training without attack
//! has nearly reached its floor.

use std::sync::atomic::{AtomicBool, Ordering};

use fedspan_engine::config::Problem;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_sim_core::evaluate::{MetricSet, Scores};
use fedspan_sim_core::run::{Job, RunError, Watcher};
use fedspan_sim_core::scenario::Scenario;
use serde::{Deserialize, Serialize};

use super::{GRIDS, SCENARIO, Variant, median, run_seed};
use crate::survey;

/// Widths k of the representation.
pub const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];
/// Numbers d of features.
pub const FEATURES: [usize; 4] = [10, 20, 57, 128];
/// Numbers m of samples of a device.
pub const SAMPLES: [usize; 4] = [8, 20, 40, 200];
/// Numbers n of devices.
pub const DEVICES: [usize; 3] = [20, 40, 200];
/// Fractions of the fleet that attack.
pub const FRACTIONS: [f64; 3] = [0.05, 0.1, 0.2];
/// Attacks that a check does not already reject.
pub const ATTACKS: [&str; 17] = [
    "sign x1",
    "sign x10",
    "IPM 0.5",
    "IPM 1.5",
    "IPM 5",
    "ALIE",
    "ALIE 1.5",
    "Gauss x10",
    "scale 1e6",
    "mimic",
    "opposing",
    "opposing 0.3",
    "opposing 0.1",
    "opposing rank one",
    "weak heads 1",
    "weak heads 2",
    "poisoned targets",
];

/// Largest number of rounds of a cell.
const MAX_ROUNDS: u32 = 1200;
/// Number of rounds between evaluations while the number of rounds is determined.
const INTERVAL: u32 = 25;
/// Smallest number of rounds of a cell.
const MIN_ROUNDS: u32 = 75;
/// Largest number of data sets with which the number of rounds is determined.
const FLOOR_SEEDS: u32 = 3;
/// Distance of the last round of a cell without attack, as a multiple of the floor of the distance.
const ABOVE_FLOOR: f64 = 1.1;

/// Fleet of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fleet {
    /// Width of the representation.
    pub k: usize,
    /// Number of features.
    pub d: usize,
    /// Number of samples of a device, or the median number.
    pub samples: usize,
    /// Number of devices.
    pub devices: usize,
    /// Whether the numbers of samples are log-normal (sigma 1) and weigh the updates.
    pub unequal: bool,
    /// Whether devices compute in 16-bit fixed point.
    pub fixed_point: bool,
}

impl Fleet {
    /// Changes of the scenario.
    fn changes(&self) -> Vec<String> {
        let Self { k, d, samples, devices, unequal, fixed_point } = *self;
        let mut changes = vec![
            format!("data.k={k}"),
            format!("model.k={k}"),
            format!("data.d={d}"),
            format!("data.samples={samples}"),
            format!("data.clients={devices}"),
        ];
        if unequal {
            changes.extend(["data.sizes=log-normal", "algorithm.weighting=samples"].map(str::to_owned));
        }
        if fixed_point {
            changes.push("algorithm.numeric=i16".to_owned());
        }
        changes
    }
}

/// One cell of the design.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Fleet of the cell.
    pub fleet: Fleet,
    /// Fraction of the fleet that attacks.
    pub fraction: f64,
    /// Attack of the cell.
    pub attack: Variant,
    rules: Vec<Variant>,
    changes: Vec<String>,
    seed: u64,
    seeds: u32,
}

/// Settings of a survey.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Number of cells.
    pub cells: usize,
    /// Names of the attacks from which cells are drawn.
    pub attacks: Vec<&'static str>,
    /// Names of the measured rules. The first one is the reference.
    pub rules: Vec<&'static str>,
    /// Fractions from which cells are drawn.
    pub fractions: Vec<f64>,
    /// Changes of the scenario that apply to every run.
    pub changes: Vec<String>,
    /// First seed of the data. The cells do not depend on it.
    pub seed: u64,
    /// Number of consecutive seeds.
    pub seeds: u32,
}

/// Result of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of training rounds.
    pub rounds: u32,
    /// Distances without attack, for each rule and seed.
    pub clean: Vec<Vec<f64>>,
    /// Distances under the attack, for each rule and seed.
    pub attacked: Vec<Vec<f64>>,
}

/// Keys that a survey draws or determines itself, or sections of which it determines all keys.
const DRAWN: [&str; 10] = [
    "data.k",
    "data.d",
    "data.samples",
    "data.clients",
    "data.sizes",
    "model.k",
    "algorithm.numeric",
    "algorithm.weighting",
    "algorithm.rounds",
    "evaluate_every",
];

/// First of the changes that sets a key which the survey draws or determines itself.
#[must_use]
pub fn drawn_key(changes: &[String]) -> Option<&str> {
    let key = |change: &'_ str| change.split('=').next().unwrap_or_default().trim().to_owned();
    let is_drawn = |key: &str| {
        DRAWN.contains(&key)
            || ["attack", "aggregation", "data", "model"].contains(&key)
            || key.starts_with("attack.")
            || key.starts_with("aggregation.rule")
    };
    changes.iter().map(String::as_str).find(|change| is_drawn(&key(change)))
}

/// Draws the cells of a survey. The first n cells are the same for every number of cells from n on.
#[must_use]
pub fn cells(settings: &Settings) -> Vec<Cell> {
    let grid = &GRIDS[0];
    let known = |names: &[&'static str], variants: &[Variant]| -> Vec<Variant> {
        names
            .iter()
            .filter_map(|name| variants.iter().find(|variant| variant.name == *name))
            .copied()
            .collect()
    };
    let attacks = known(&settings.attacks, grid.attacks);
    let rules = known(&settings.rules, grid.rules);
    let cell = |index: usize| {
        let random = &mut stream(0, Purpose::Design, index as u64);
        Some(Cell {
            fleet: draw_fleet(random),
            fraction: pick(random, &settings.fractions)?,
            attack: pick(random, &attacks)?,
            rules: rules.clone(),
            changes: settings.changes.clone(),
            seed: settings.seed,
            seeds: settings.seeds,
        })
    };
    (0..settings.cells).filter_map(cell).collect()
}

/// Largest number of values of all samples of a fleet, so that a survey ends in a day.
const MOST_VALUES: usize = 600_000;

/// Draws a fleet with k < d, k < m and at most [`MOST_VALUES`] values.
fn draw_fleet(random: &mut Stream) -> Fleet {
    loop {
        let fleet = Fleet {
            k: pick(random, &WIDTHS).unwrap_or(1),
            d: pick(random, &FEATURES).unwrap_or(20),
            samples: pick(random, &SAMPLES).unwrap_or(40),
            devices: pick(random, &DEVICES).unwrap_or(40),
            unequal: random.below(2) == 1,
            fixed_point: random.below(2) == 1,
        };
        let values = fleet.devices * fleet.samples * fleet.d;
        if fleet.k < fleet.d && fleet.k < fleet.samples && values <= MOST_VALUES {
            return fleet;
        }
    }
}

fn pick<T: Copy>(random: &mut Stream, values: &[T]) -> Option<T> {
    values.get(random.below(values.len())).copied()
}

impl Cell {
    /// Scenario of the cell under a rule, with or without the attack.
    fn scenario(&self, rule: &Variant, attacked: bool, rounds: u32) -> Result<Scenario, Problem> {
        let mut changes = self.fleet.changes();
        let mut add = |more: &[&str]| changes.extend(more.iter().map(|change| (*change).to_owned()));
        if attacked {
            add(self.attack.changes);
            add(&[&format!("attack.fraction={}", self.fraction)]);
        } else {
            add(&["attack={}"]);
        }
        add(rule.changes);
        add(&[&format!("algorithm.rounds={rounds}"), &format!("evaluate_every={INTERVAL}")]);
        changes.extend(self.changes.iter().cloned());
        Scenario::parse(SCENARIO, Scenario::built_in(SCENARIO).unwrap_or_default(), &changes)
    }

    /// Checks that the changes fit the scenario of this cell.
    ///
    /// # Errors
    /// [`Problem`] of the scenario.
    pub fn check(&self) -> Result<(), Problem> {
        for rule in &self.rules {
            self.scenario(rule, true, MIN_ROUNDS)?;
        }
        Ok(())
    }

    /// Number of rounds after which training without attack has nearly reached its floor, for the slowest of
    /// the first data sets. `None` if `stop` was set.
    fn rounds(&self, stop: &AtomicBool) -> Result<Option<u32>, RunError> {
        let Some(reference) = self.rules.first() else { return Ok(None) };
        let scenario = self.scenario(reference, false, MAX_ROUNDS).map_err(mismatch)?;
        let mut rounds = MIN_ROUNDS;
        for index in 0..u64::from(self.seeds.min(FLOOR_SEEDS)) {
            let mut watcher = Evaluations { stop, points: Vec::new() };
            let job = Job::prepare(&scenario, self.seed + index)?.with_metrics(MetricSet::Distance);
            job.run(&mut watcher)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let floor = watcher.points.iter().map(|(_, distance)| *distance).fold(f64::INFINITY, f64::min);
            let reached = watcher.points.iter().find(|(_, distance)| *distance <= ABOVE_FLOOR * floor);
            rounds = rounds.max(reached.map_or(MAX_ROUNDS, |(round, _)| *round));
        }
        Ok(Some(rounds))
    }

    /// Distances for each rule and seed. `None` if `stop` was set.
    fn distances(
        &self,
        attacked: bool,
        rounds: u32,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Vec<f64>>>, RunError> {
        let mut all = Vec::new();
        for rule in &self.rules {
            let scenario = self.scenario(rule, attacked, rounds).map_err(mismatch)?;
            let mut distances = Vec::new();
            for index in 0..u64::from(self.seeds) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let distance = run_seed(&scenario, self.seed + index)?.distance;
                if !distance.is_finite() {
                    let message =
                        "the changed scenario has no true representation to measure a distance from";
                    return Err(RunError::Mismatch(message.to_owned()));
                }
                distances.push(distance);
            }
            all.push(distances);
        }
        Ok(Some(all))
    }
}

/// The changes were checked before, so this error is not expected.
fn mismatch(problem: Problem) -> RunError {
    RunError::Mismatch(problem.to_string())
}

impl survey::Cell for Cell {
    type Outcome = Outcome;

    fn seconds(&self) -> f64 {
        let Fleet { k, d, samples, devices, .. } = self.fleet;
        // A device passes over its samples about four times in a round, and the rule over the update.
        let round = devices as f64 * (samples as f64 * (4 * d + k * k) as f64 + (40 * d * k) as f64) * 1e-9;
        let runs = f64::from(self.seeds) * self.rules.len() as f64 * 2.0;
        round * f64::from(MAX_ROUNDS) * (runs / 4.0 + f64::from(self.seeds.min(FLOOR_SEEDS)))
    }

    fn label(&self) -> String {
        let Fleet { k, d, samples, devices, .. } = self.fleet;
        format!("k {k}, d {d}, {samples} samples, {devices} devices, {}", self.attack.name)
    }

    fn measure(&self, stop: &AtomicBool) -> Result<Option<Outcome>, RunError> {
        let Some(rounds) = self.rounds(stop)? else { return Ok(None) };
        let Some(clean) = self.distances(false, rounds, stop)? else { return Ok(None) };
        let Some(attacked) = self.distances(true, rounds, stop)? else { return Ok(None) };
        Ok(Some(Outcome { rounds, clean, attacked }))
    }
}

/// Watcher that collects distances and ends the run if the flag is set.
struct Evaluations<'a> {
    stop: &'a AtomicBool,
    points: Vec<(u32, f64)>,
}

impl Watcher for Evaluations<'_> {
    fn round(&mut self, done: u32, _of: u32, scores: Option<&Scores>) -> bool {
        if let Some(distance) = scores.and_then(|scores| scores.distance) {
            self.points.push((done, distance));
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Distance below which differences do not matter.
pub const NEGLIGIBLE: f64 = 0.02;

impl Outcome {
    /// Median distance of a rule without attack.
    #[must_use]
    pub fn clean_median(&self, rule: usize) -> f64 {
        self.clean.get(rule).map_or(f64::NAN, |distances| median(distances))
    }

    /// Median distance of a rule under the attack.
    #[must_use]
    pub fn attacked_median(&self, rule: usize) -> f64 {
        self.attacked.get(rule).map_or(f64::NAN, |distances| median(distances))
    }

    /// Median distance of a rule under the attack as a multiple of that of the reference, or of
    /// [`NEGLIGIBLE`] if that is larger.
    #[must_use]
    pub fn ratio(&self, rule: usize) -> f64 {
        self.attacked_median(rule) / self.attacked_median(0).max(NEGLIGIBLE)
    }

    /// Median distance of a rule without attack as a multiple of that of the reference.
    #[must_use]
    pub fn clean_ratio(&self, rule: usize) -> f64 {
        self.clean_median(rule) / self.clean_median(0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn settings(cells: usize) -> Settings {
        Settings {
            cells,
            attacks: ATTACKS.to_vec(),
            rules: vec!["mean", "spectral filter"],
            fractions: FRACTIONS.to_vec(),
            changes: Vec::new(),
            seed: 1,
            seeds: 1,
        }
    }

    /// Every cell fits the scenario, the first cells do not depend on the number of cells, and 600 cells have
    /// every level of every factor and every attack.
    #[test]
    fn cells_are_valid_and_have_every_level() {
        let all = cells(&settings(600));
        assert_eq!(all.len(), 600);
        all.iter().for_each(|cell| cell.check().unwrap());
        for (few, many) in cells(&settings(20)).iter().zip(&all) {
            assert_eq!((few.fleet, few.fraction, few.attack), (many.fleet, many.fraction, many.attack));
        }
        let has = |holds: &dyn Fn(&Cell) -> bool| all.iter().any(holds);
        assert!(WIDTHS.iter().all(|k| has(&|cell| cell.fleet.k == *k)));
        assert!(FEATURES.iter().all(|d| has(&|cell| cell.fleet.d == *d)));
        assert!(SAMPLES.iter().all(|samples| has(&|cell| cell.fleet.samples == *samples)));
        assert!(DEVICES.iter().all(|devices| has(&|cell| cell.fleet.devices == *devices)));
        assert!(FRACTIONS.iter().all(|fraction| has(&|cell| cell.fraction == *fraction)));
        assert!(ATTACKS.iter().all(|attack| has(&|cell| cell.attack.name == *attack)));
    }

    #[test]
    fn keys_that_the_survey_draws_are_found() {
        let found = |change: &str| drawn_key(&[change.to_owned()]).is_some();
        for drawn in ["data.k=3", "data={ k = 3 }", "attack.kind=mimic", "attack={}", "aggregation.rule=mean"]
        {
            assert!(found(drawn), "{drawn}");
        }
        for free in ["data.noise_std=0.3", "algorithm.step_size=0.1", "aggregation.attackers=0.3"] {
            assert!(!found(free), "{free}");
        }
    }
}
