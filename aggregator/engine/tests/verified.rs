//! Tests of the verified schedule in worlds of quadratic objectives, drawn at random: different curvatures and
//! optima of the devices, noise, correlation of speed with data, heavy tails, spikes, and a first round that takes
//! much longer than all others.

use std::ops::Range;

use fedspan_engine::linalg::{Matrix, to_f32};
use fedspan_engine::participation::{
    ClosedRound, DoubleBy, Doubling, Full, Schedule, UpdateArrival, UploadLayout,
};
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_engine::{DeviceId, Millis, Participation, Tensor};
use fedspan_protocol::tensor::Role;

/// Number of worlds of a test. The nightly tests set FEDSPAN_WORLDS to a larger number.
fn worlds() -> u64 {
    std::env::var("FEDSPAN_WORLDS").map_or(150, |text| text.parse().expect("FEDSPAN_WORLDS is a number"))
}

/// Number of runs of a world, which differ in noise and drawn times.
const RUNS: u64 = 3;
/// Milliseconds of a mean computation.
const UNIT: f64 = 1e6;

/// Kind of the uploads and of the target.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Gradients. The target is a distance to the optimum.
    Gradients,
    /// Models, as with networks. The target is a value of the objective.
    Layers,
    /// Odd rounds train the first half of the dimensions and even rounds the second half, as with adapters. The
    /// target is a value of the objective.
    Alternating,
}

/// Computation times of the devices.
struct Speeds {
    /// Mean time of each device.
    means: Vec<f64>,
    /// Whether times are drawn in every round, from an exponential distribution.
    dynamic: bool,
    /// Probability of a spike, and factor of the time.
    spike: (f64, f64),
    /// Whether the last device takes a hundred times as long in the first round.
    slow_start: bool,
    /// Communication time of a round.
    communication: f64,
}

/// Fleet whose device `i` has the objective `sum_j h_ij (x_j - o_ij)^2 / 2`.
struct World {
    seed: u64,
    kind: Kind,
    first: usize,
    step: f64,
    curvatures: Vec<Vec<f64>>,
    optima: Vec<Vec<f64>>,
    noise: f64,
    start: Vec<f64>,
    /// Optimum of the mean objective.
    optimum: Vec<f64>,
    speeds: Speeds,
    /// Position of the target between start (1) and floor (0), on a logarithmic scale.
    target: f64,
}

/// Time and distance to the optimum after each round.
type Run = Vec<(f64, f64)>;

fn log_uniform(random: &mut Stream, low: f64, high: f64) -> f64 {
    low * (random.uniform() * (high / low).ln()).exp()
}

impl World {
    fn draw(seed: u64) -> Self {
        let random = &mut stream(seed, Purpose::Design, 0);
        let dimensions = log_uniform(random, 4.0, 60.0) as usize;
        let devices = log_uniform(random, 8.0, 200.0) as usize;
        let first = (log_uniform(random, 1.0, devices as f64 / 2.0) as usize).max(1);
        let step = log_uniform(random, 0.05, 1.9);
        let condition = log_uniform(random, 1.0, 10.0);
        let spectrum: Vec<f64> = (0..dimensions).map(|_| condition.powf(-random.uniform())).collect();
        let correlation = random.below(6);
        let spread = if random.below(3) == 0 { 0.0 } else { log_uniform(random, 0.02, 2.0) };
        let noise = if spread > 0.0 && random.below(2) == 0 { 0.0 } else { log_uniform(random, 0.02, 3.0) };
        let common: Vec<f64> = (0..dimensions).map(|_| random.normal()).collect();
        let common_length = log_uniform(random, 0.1, 3.0) / (dimensions as f64).sqrt();
        let thin = random.below(3) == 0;
        let (mut curvatures, mut optima) = (Vec::new(), Vec::new());
        for device in 0..devices {
            let is_fast = device < devices / 2;
            let scale = log_uniform(random, 0.3, 3.0);
            let curvature = |(j, h): (usize, &f64)| match () {
                // The fast devices do not see half of the dimensions.
                () if correlation == 0 && is_fast && j >= dimensions / 2 => 0.0,
                () if thin && (device + j) % 2 == 0 => 0.1 * scale * h,
                () => scale * h,
            };
            curvatures.push(spectrum.iter().enumerate().map(curvature).collect::<Vec<f64>>());
            // The fast devices have an optimum of their own.
            let shift = if correlation == 1 && is_fast { common_length } else { 0.0 };
            let optimum = common.iter().map(|direction| spread * random.normal() + shift * direction);
            optima.push(optimum.collect::<Vec<f64>>());
        }
        let mean = |j: usize| curvatures.iter().map(|h| h[j]).sum::<f64>() / devices as f64;
        let means: Vec<f64> = (0..dimensions).map(mean).collect();
        let weighted = |j: usize| curvatures.iter().zip(&optima).map(|(h, o)| h[j] * o[j]).sum::<f64>();
        let optimum: Vec<f64> =
            means.iter().enumerate().map(|(j, mean)| weighted(j) / devices as f64 / mean).collect();
        let radius = log_uniform(random, 1.0, 30.0) / (dimensions as f64).sqrt();
        let start = optimum.iter().map(|o| o + radius * random.normal()).collect();
        let largest = means.iter().copied().fold(0.0, f64::max);
        let speeds = Self::draw_speeds(random, devices, correlation < 3);
        let target = 0.05 + 0.45 * random.uniform();
        let kind = Kind::Gradients;
        Self {
            seed,
            kind,
            first,
            step: step / largest,
            curvatures,
            optima,
            noise,
            start,
            optimum,
            speeds,
            target,
        }
    }

    /// Draws the times of the devices, which are sorted if speed is correlated with data.
    fn draw_speeds(random: &mut Stream, devices: usize, sorted: bool) -> Speeds {
        let kind = random.below(5);
        let tail = 1.5 + 2.0 * random.uniform();
        let mut mean = || match kind {
            0 => 2.0 * random.uniform(),
            1 => random.exponential(),
            2 => (tail - 1.0) / tail * random.uniform().max(1e-9).powf(-1.0 / tail),
            _ => 1.0 / (1.0 / devices as f64 + random.uniform()),
        };
        let mut means: Vec<f64> = (0..devices).map(|_| mean()).collect();
        if sorted {
            means.sort_by(f64::total_cmp);
        }
        let spike = match random.below(2) {
            0 => (log_uniform(random, 0.001, 0.1), log_uniform(random, 2.0, 100.0)),
            _ => (0.0, 1.0),
        };
        let communication = [0.0, 1.0, 10.0][random.below(3)];
        Speeds { means, dynamic: kind >= 3, spike, slow_start: random.below(8) == 0, communication }
    }

    /// Arrival times of all devices in a round, ascending.
    fn arrivals(&self, run: u64, round: u32) -> Vec<(f64, usize)> {
        let Speeds { means, dynamic, spike, slow_start, communication } = &self.speeds;
        let time = |device: usize| {
            let random = &mut stream(
                self.seed,
                Purpose::RoundSpeed,
                run << 48 | u64::from(round) << 16 | device as u64,
            );
            let drawn = if *dynamic { random.exponential() } else { 1.0 };
            let spike = if random.uniform() < spike.0 { spike.1 } else { 1.0 };
            let slow = if *slow_start && round == 1 && device + 1 == means.len() { 100.0 } else { 1.0 };
            (means[device] * drawn * spike * slow + communication, device)
        };
        let mut arrivals: Vec<(f64, usize)> = (0..means.len()).map(time).collect();
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        arrivals
    }

    /// Distance to the optimum, or the square root of twice the objective over its minimum.
    fn distance(&self, x: &[f64]) -> f64 {
        let devices = self.curvatures.len() as f64;
        let weight = |j: usize| match self.kind {
            Kind::Gradients => 1.0,
            Kind::Layers | Kind::Alternating => self.curvatures.iter().map(|h| h[j]).sum::<f64>() / devices,
        };
        (0..).zip(x).zip(&self.optimum).map(|((j, a), b)| weight(j) * (a - b) * (a - b)).sum::<f64>().sqrt()
    }

    /// Dimensions that a round trains.
    fn trained(&self, round: u32) -> Range<usize> {
        let half = self.start.len() / 2;
        match self.kind {
            Kind::Gradients | Kind::Layers => 0..self.start.len(),
            Kind::Alternating if round % 2 == 1 => 0..half,
            Kind::Alternating => half..self.start.len(),
        }
    }

    /// Runs up to `rounds` rounds, until the time `limit`.
    fn run(&self, policy: &mut dyn Participation, run: u64, rounds: u32, limit: f64) -> Run {
        let dimensions = self.start.len();
        let devices: Vec<DeviceId> = (0..self.curvatures.len() as u64).map(DeviceId).collect();
        let mut noise = stream(self.seed, Purpose::Noise, run);
        let (mut x, mut now) = (self.start.clone(), 0.0);
        let mut points = vec![(now, self.distance(&x))];
        for round in 1..=rounds {
            let cohort = policy.cohort(round, &devices);
            let trained = self.trained(round);
            let model = Matrix::from_row_slice(1, dimensions, &x);
            let mut sum = Matrix::zeros(1, dimensions);
            let arrivals = self.arrivals(run, round);
            for (rank, (time, device)) in (1u64..).zip(arrivals.iter().take(cohort.target)) {
                let (h, o) = (&self.curvatures[*device], &self.optima[*device]);
                let slope = |j: usize| h[j] * (x[j] - o[j]) + self.noise * noise.normal();
                let step: Vec<f64> = (0..dimensions).map(slope).map(|slope| self.step * slope).collect();
                let is_trained = |(j, step)| if trained.contains(&j) { step } else { 0.0 };
                let step: Vec<f64> = (0..).zip(step).map(is_trained).collect();
                let step = Matrix::from_row_slice(1, dimensions, &step);
                let (role, values, layout) = match self.kind {
                    Kind::Gradients => (Role::Gradient, to_f32(&step), UploadLayout::Representation),
                    Kind::Layers | Kind::Alternating => {
                        let uploaded = to_f32(&(&model - &step))[trained.clone()].to_vec();
                        let layout = UploadLayout::Layers { offset: trained.start };
                        (Role::Representation, uploaded, layout)
                    }
                };
                let tensors = [Tensor { role, rows: 1, cols: values.len() as u16, values }];
                policy.counted(&UpdateArrival {
                    elapsed: Millis::new((time * UNIT) as u64),
                    samples: 10 * rank,
                    tensors: &tensors,
                    model: &model,
                    layout,
                });
                sum += step;
            }
            let duration = arrivals[cohort.target - 1].0;
            let after = &model - sum / cohort.target as f64;
            x = after.iter().copied().collect();
            policy.closed(&ClosedRound {
                elapsed: Millis::new((duration * UNIT) as u64),
                short_of: None,
                before: &model,
                model: &after,
                ends_cycle: self.kind != Kind::Alternating || round % 2 == 0,
            });
            now += duration;
            points.push((now, self.distance(&x)));
            if now > limit {
                break;
            }
        }
        points
    }

    /// Distance between the start and the one that full participation reaches.
    fn target(&self, full: &[Run]) -> f64 {
        let mut last: Vec<f64> =
            full.iter().flat_map(|run| run[run.len() * 3 / 4..].iter().map(|p| p.1)).collect();
        last.sort_by(f64::total_cmp);
        let floor = last[last.len() / 2].max(1e-6);
        floor * (full[0][0].1 / floor).powf(self.target).max(1.1)
    }

    fn schedule(&self) -> Doubling {
        Doubling::new(self.first, None, Schedule::Verified, DoubleBy::Devices, 1)
    }

    /// Runs with full participation.
    fn full_runs(&self) -> Vec<Run> {
        let largest = self.curvatures.iter().flatten().copied().fold(0.0, f64::max);
        let rounds = (30.0 / self.step / largest).clamp(30.0, 250.0) as u32;
        (0..RUNS).map(|run| self.run(&mut Full, run, rounds, f64::INFINITY)).collect()
    }
}

/// First time at which most runs are at or under the target.
fn time_to(runs: &[Run], target: f64) -> Option<f64> {
    let mut under: Vec<bool> = runs.iter().map(|run| run[0].1 <= target).collect();
    let mut points: Vec<(f64, usize, bool)> = (0..)
        .zip(runs)
        .flat_map(|(index, run)| run.iter().map(move |(time, distance)| (*time, index, *distance <= target)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (time, index, is_under) in points {
        under[index] = is_under;
        if 2 * under.iter().filter(|under| **under).count() > under.len() {
            return Some(time);
        }
    }
    None
}

/// In all but one of a thousand worlds, the time to a target is at most 1.1 times that of full participation in the
/// same world, and ten rounds of full participation more, as long as these are in the middle of its run.
fn time_to_target_is_bounded(kind: Kind, worlds: u64) {
    let mut excesses = Vec::new();
    let mut ratios = Vec::new();
    for seed in 0..worlds {
        let world = World { kind, ..World::draw(seed) };
        let full = world.full_runs();
        let target = world.target(&full);
        let Some(time) = time_to(&full, target) else { continue };
        let middle = |run: &Run| run[run.len() / 2].0 - run[run.len() / 2 - 1].0;
        let full_round = full.iter().map(middle).sum::<f64>() / full.len() as f64;
        let limit = 1.1 * time + 30.0 * full_round;
        let runs: Vec<Run> =
            (0..RUNS).map(|run| world.run(&mut world.schedule(), run, 100_000, limit)).collect();
        let found = time_to(&runs, target).unwrap_or(f64::INFINITY);
        ratios.push(if found > 0.0 { time / found } else { 1.0 });
        excesses.push(((found - 1.1 * time) / full_round, seed));
    }
    excesses.sort_by(|a, b| b.0.total_cmp(&a.0));
    ratios.sort_by(f64::total_cmp);
    let over = excesses.iter().filter(|(excess, _)| *excess > 10.0).count();
    println!(
        "{kind:?}: median of the ratio {:.2}, 1 % quantile {:.2}; more than 10 full rounds over 1.1 times full participation in {over} of {} worlds; largest: {:.2?}",
        ratios[ratios.len() / 2],
        ratios[ratios.len() / 100],
        excesses.len(),
        excesses.get(..5),
    );
    assert!(excesses.len() as u64 * 3 > worlds * 2, "{} worlds with a target", excesses.len());
    assert!(over * 1000 <= excesses.len(), "{over} of {}", excesses.len());
}

#[test]
fn time_to_target_is_bounded_with_gradients() {
    time_to_target_is_bounded(Kind::Gradients, worlds());
}

#[test]
fn time_to_target_is_bounded_with_layers() {
    time_to_target_is_bounded(Kind::Layers, worlds() / 2);
}

#[test]
fn time_to_target_is_bounded_with_alternating_layers() {
    time_to_target_is_bounded(Kind::Alternating, worlds() / 2);
}

/// With equal times nothing can be gained by waiting for fewer devices, so all rounds are those of full
/// participation.
#[test]
fn equal_times_give_full_participation() {
    for seed in 0..20 {
        let mut world = World::draw(seed);
        world.speeds.means.fill(1.0);
        (world.speeds.dynamic, world.speeds.spike, world.speeds.slow_start) = (false, (0.0, 1.0), false);
        let full = world.run(&mut Full, 0, 40, f64::INFINITY);
        assert_eq!(world.run(&mut world.schedule(), 0, 40, f64::INFINITY), full, "world {seed}");
    }
}

/// A restored schedule makes the decisions of one that was stored and waits for all devices once.
#[test]
fn restored_schedule_waits_for_all_devices_and_continues() {
    let mut partial_rounds = 0;
    for seed in 0..20 {
        let world = World::draw(seed);
        let devices: Vec<DeviceId> = (0..world.curvatures.len() as u64).map(DeviceId).collect();
        let mut policy = world.schedule();
        world.run(&mut policy, 0, 12, f64::INFINITY);
        let mut restored = world.schedule();
        assert!(restored.restore(&policy.state()), "world {seed}");
        assert_eq!(restored.state(), policy.state());
        assert_eq!(restored.cohort(13, &devices).target, devices.len(), "world {seed}");
        partial_rounds += usize::from(policy.cohort(13, &devices).target < devices.len());
        for cut in 0..policy.state().len() {
            assert!(!world.schedule().restore(&policy.state()[..cut]), "world {seed}: {cut} values");
        }
    }
    assert!(partial_rounds > 0, "no world had a partial round to restore");
}

/// A schedule that is restored before any round opens this round in the same stage: a checkpoint has the state before
/// the round and the stage of the round.
#[test]
fn restored_schedule_opens_every_round_in_the_same_stage() {
    let mut later_stages = 0;
    for kind in [Kind::Gradients, Kind::Layers, Kind::Alternating] {
        for seed in 0..12 {
            let world = World { kind, ..World::draw(seed) };
            let devices: Vec<DeviceId> = (0..world.curvatures.len() as u64).map(DeviceId).collect();
            let mut stages = Vec::new();
            let mut policy = Restarted { policy: world.schedule(), world: &world, stages: &mut stages };
            world.run(&mut policy, 0, 40, f64::INFINITY);
            for (round, (kept, restored)) in (1..).zip(&stages) {
                assert_eq!(
                    kept,
                    restored,
                    "{kind:?}, world {seed}, round {round} of {} devices",
                    devices.len()
                );
            }
            later_stages += usize::from(stages.last().unwrap().0 > 0);
        }
    }
    assert!(later_stages > 10, "{later_stages} worlds came to a later stage");
}

/// Schedule with a copy that is restored before every round. Keeps the stages of both.
struct Restarted<'a> {
    policy: Doubling,
    world: &'a World,
    stages: &'a mut Vec<(u16, u16)>,
}

impl Participation for Restarted<'_> {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> fedspan_engine::Cohort {
        let mut restored = self.world.schedule();
        assert!(restored.restore(&self.policy.state()), "round {round}");
        let cohort = self.policy.cohort(round, fleet);
        self.stages.push((cohort.stage, restored.cohort(round, fleet).stage));
        cohort
    }

    fn counted(&mut self, answer: &UpdateArrival<'_>) {
        self.policy.counted(answer);
    }

    fn closed(&mut self, closed: &ClosedRound<'_>) {
        self.policy.closed(closed);
    }
}

/// A schedule that is restored between the two rounds of a cycle finishes the cycle with all devices, and has
/// partial rounds later.
#[test]
fn schedule_restored_within_a_cycle_continues() {
    let mut worlds_with_partial_rounds = 0;
    for seed in 0..20 {
        let world = World { kind: Kind::Alternating, ..World::draw(seed) };
        let devices: Vec<DeviceId> = (0..world.curvatures.len() as u64).map(DeviceId).collect();
        let mut policy = world.schedule();
        world.run(&mut policy, 0, 13, f64::INFINITY);
        let mut restored = world.schedule();
        assert!(restored.restore(&policy.state()), "world {seed}");
        assert_eq!(restored.state(), policy.state());
        assert_eq!(restored.cohort(14, &devices).target, devices.len(), "world {seed}");
        let full = world.run(&mut Full, 0, 60, f64::INFINITY).last().unwrap().0;
        // The run begins with an odd round, so the cycle that was cut short has three rounds.
        worlds_with_partial_rounds +=
            usize::from(world.run(&mut restored, 0, 60, f64::INFINITY).last().unwrap().0 < full);
    }
    assert!(worlds_with_partial_rounds > 5, "{worlds_with_partial_rounds} of 20 worlds");
}
