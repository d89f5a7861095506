//! Tests of the adaptive schedule in a small simulation: a model that contracts towards the truth with noise,
//! and devices that answer in a fixed order.

use crate::common::gaussian;
use fedspan_engine::Tensor;
use fedspan_engine::linalg::{Matrix, from_f32, orthonormal, random_basis, to_f32};
use fedspan_engine::participation::{ClosedRound, DoubleBy, Doubling, Schedule, UpdateArrival, UploadLayout};
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_engine::{DeviceId, Millis, Participation};
use fedspan_protocol::tensor::Role;
use proptest::prelude::*;

/// Number of features.
const D: usize = 10;
/// Width of the representation.
const K: usize = 2;
/// Number of devices.
const N: usize = 64;
/// Step size of the model.
const STEP: f64 = 0.125;

/// Doubling participation with the adaptive schedule. The first stage waits for four devices.
fn adaptive_doubling(double_by: DoubleBy) -> Doubling {
    Doubling::new(4, None, Schedule::Adaptive, double_by, 1)
}

/// Simulated fleet. Device `i` answers after `times[i]` (ascending) and has the head `heads[i]`.
struct World {
    times: Vec<u64>,
    heads: Vec<Matrix>,
    truth: Matrix,
    model: Matrix,
    random: Stream,
    noise: f64,
}

impl World {
    /// Creates a fleet with these arrival times and random heads, truth and noise.
    fn new(times: Vec<u64>, seed: u64) -> Self {
        let mut random = stream(seed, Purpose::Truth, 0);
        let heads = (0..times.len()).map(|_| gaussian(K, 1, &mut random)).collect();
        let truth = random_basis(D, K, &mut random);
        // The initial model is about as close to the truth as after the method of moments.
        let deviation = gaussian(D, K, &mut random) * 0.2;
        let model = orthonormal(&(&truth + deviation)).unwrap();
        Self { times, heads, truth, model, random, noise: 0.3 }
    }

    /// Fleet with exponential computation times of mean 1000, plus the time `communication`.
    fn with_exponential_times(communication: u64, seed: u64) -> Self {
        let mut random = stream(seed, Purpose::Speed, 0);
        let mut times: Vec<u64> =
            (0..N).map(|_| communication + (1000.0 * random.exponential()) as u64).collect();
        times.sort_unstable();
        Self::new(times, seed)
    }

    /// Runs one round, and returns the number of updates and the round's duration.
    fn run_round(&mut self, policy: &mut Doubling, number: u32) -> (usize, u64) {
        let fleet: Vec<DeviceId> = (0..self.times.len() as u64).map(DeviceId).collect();
        let cohort = policy.cohort(number, &fleet);
        let update_count = cohort.sample_target.map_or(cohort.target, |sample_target| {
            (sample_target.samples as usize).div_ceil(10).max(sample_target.answers)
        });
        let mut sum = Matrix::zeros(D, K);
        for (rank, (head, arrival)) in (1..).zip(self.heads.iter().zip(&self.times)).take(update_count) {
            // The gradient is that of the device's expected loss, plus noise.
            let residual = &self.truth * (self.truth.transpose() * &self.model) - &self.model;
            let noise = gaussian(D, 1, &mut self.random) * (self.noise * head.norm());
            let gradient = (residual * head * -1.0 + noise) * head.transpose();
            let values = to_f32(&gradient);
            let tensors = [Tensor { role: Role::Gradient, rows: D as u16, cols: K as u16, values }];
            let answer = UpdateArrival {
                elapsed: Millis::new(*arrival),
                samples: 10 * rank,
                tensors: &tensors,
                model: &self.model,
                layout: UploadLayout::Representation,
            };
            policy.counted(&answer);
            sum += from_f32(D, K, &tensors[0].values);
        }
        let previous_model = self.model.clone();
        self.model = orthonormal(&(&previous_model - sum * (STEP / update_count as f64))).unwrap();
        let elapsed = self.times[update_count - 1];
        policy.closed(&ClosedRound {
            elapsed: Millis::new(elapsed),
            short_of: None,
            before: &previous_model,
            model: &self.model,
            ends_cycle: true,
        });
        (update_count, elapsed)
    }

    /// Runs rounds from the first, and returns the number of updates of each.
    fn run_rounds(&mut self, policy: &mut Doubling, rounds: u32) -> Vec<usize> {
        (1..=rounds).map(|number| self.run_round(policy, number).0).collect()
    }
}

#[test]
fn schedule_measures_all_then_grows_from_few_to_all() {
    for seed in 1..=10 {
        let counts =
            World::with_exponential_times(0, seed).run_rounds(&mut adaptive_doubling(DoubleBy::Devices), 150);
        assert_eq!((counts[0], counts[149]), (N, N), "{counts:?}");
        assert!(counts[1] <= 8 && counts[1..].windows(2).all(|pair| pair[0] <= pair[1]), "{counts:?}");
        assert!(counts.iter().all(|count| [4, 8, 16, 32, 64].contains(count)));
    }
}

#[test]
fn schedule_waits_for_all_if_that_is_free() {
    for times in [vec![700; N], (0..N as u64).map(|i| 100_000 + 50 * i).collect(), vec![0; N]] {
        let counts = World::new(times, 3).run_rounds(&mut adaptive_doubling(DoubleBy::Devices), 40);
        assert_eq!(counts, [N; 40]);
    }
}

/// The schedule depends only on the ratios of times.
#[test]
fn schedule_is_independent_of_time_unit() {
    let run_scaled = |factor: u64| {
        let mut world = World::with_exponential_times(500, 5);
        world.times.iter_mut().for_each(|time| *time *= factor);
        world.run_rounds(&mut adaptive_doubling(DoubleBy::Devices), 100)
    };
    assert_eq!(run_scaled(1), run_scaled(64));
}

/// For two rounds only three devices are present, then all return. The schedule continues with at most twice
/// as many updates as before.
#[test]
fn schedule_survives_outage() {
    let mut world = World::with_exponential_times(0, 2);
    let mut policy = adaptive_doubling(DoubleBy::Devices);
    let counts_before = world.run_rounds(&mut policy, 6);
    let (times, heads) = (world.times.clone(), world.heads.clone());
    world.times.truncate(3);
    world.heads.truncate(3);
    assert_eq!(world.run_rounds(&mut policy, 2), [3, 3]);
    (world.times, world.heads) = (times, heads);
    let counts_after = world.run_rounds(&mut policy, 200);
    assert!(
        counts_before[5] < N && counts_after[0] <= 2 * counts_before[5],
        "more than one stage was skipped: {counts_before:?} {counts_after:?}"
    );
    assert_eq!(counts_after[199], N);
}

/// Uses a model of which every value matters, such as a shared head, instead of only its span. Devices upload
/// their models.
#[test]
fn schedule_handles_models_without_representation() {
    for seed in 1..=5 {
        let mut world = World::with_exponential_times(0, seed);
        let mut policy = adaptive_doubling(DoubleBy::Devices);
        let fleet: Vec<DeviceId> = (0..N as u64).map(DeviceId).collect();
        let mut counts = Vec::new();
        for number in 1..=150 {
            let target = policy.cohort(number, &fleet).target;
            let previous_model = world.model.clone();
            let mut sum = Matrix::zeros(D, K);
            for (rank, arrival) in (1..).zip(&world.times[..target]) {
                let noise = gaussian(D, K, &mut world.random) * 0.1;
                let local_model = &previous_model - (&previous_model - &world.truth + noise) * STEP;
                let values = to_f32(&local_model);
                let tensors = [Tensor { role: Role::SharedHead, rows: D as u16, cols: K as u16, values }];
                let samples = 10 * rank;
                policy.counted(&UpdateArrival {
                    elapsed: Millis::new(*arrival),
                    samples,
                    tensors: &tensors,
                    model: &previous_model,
                    layout: UploadLayout::Representation,
                });
                sum += local_model;
            }
            world.model = sum / target as f64;
            let elapsed = world.times[target - 1];
            policy.closed(&ClosedRound {
                elapsed: Millis::new(elapsed),
                short_of: None,
                before: &previous_model,
                model: &world.model,
                ends_cycle: true,
            });
            counts.push(target);
        }
        assert_eq!((counts[0], counts[149]), (N, N), "{counts:?}");
        assert!(counts[1] <= 8 && counts[1..].windows(2).all(|pair| pair[0] <= pair[1]), "{counts:?}");
    }
}

#[test]
fn doubling_samples_equals_doubling_devices_for_equal_devices() {
    let run =
        |double_by| World::with_exponential_times(0, 7).run_rounds(&mut adaptive_doubling(double_by), 120);
    assert_eq!(run(DoubleBy::Samples), run(DoubleBy::Devices));
    // The results also agree if the schedule depends on the coverage of the first stage, to which the first
    // round, which measures times, must not belong.
    let run = |double_by| {
        let mut world = World::with_exponential_times(0, 7);
        world.model = random_basis(D, K, &mut world.random);
        for head in world.heads.iter_mut().take(16) {
            head[(1, 0)] = 0.0;
        }
        world.run_rounds(&mut adaptive_doubling(double_by), 120)
    };
    assert_eq!(run(DoubleBy::Samples), run(DoubleBy::Devices));
}

/// The heads of the fastest sixteen devices cover one direction only, so rounds with these devices alone
/// would never learn the other direction. The coverage estimate ends these stages after one round each;
/// without it they would last for tens of rounds.
#[test]
fn schedule_rejects_devices_covering_one_direction() {
    for seed in 1..=10 {
        let mut world = World::with_exponential_times(0, seed);
        world.model = random_basis(D, K, &mut world.random);
        for head in world.heads.iter_mut().take(16) {
            head[(1, 0)] = 0.0;
        }
        let counts = world.run_rounds(&mut adaptive_doubling(DoubleBy::Devices), 40);
        assert_eq!(counts[..4], [64, 4, 8, 16]);
        assert!(counts[4..].iter().all(|count| *count >= 32), "{counts:?}");
    }
}

/// An additional device that is slower than all others does not make the schedule wait for all devices.
#[test]
fn schedule_survives_late_device() {
    for seed in 1..=10 {
        let mut world = World::with_exponential_times(0, seed);
        let mut policy = adaptive_doubling(DoubleBy::Devices);
        let counts_before = world.run_rounds(&mut policy, 5);
        world.times.push(world.times[N - 1] + 1);
        world.heads.push(gaussian(K, 1, &mut world.random));
        let count_after = world.run_round(&mut policy, 6).0;
        assert!(count_after <= 2 * counts_before[4], "{counts_before:?}, then {count_after}");
    }
}

/// With one update per round the variance between updates is unknown. The estimates stay finite and can be
/// restored.
#[test]
fn single_update_rounds_leave_valid_state() {
    for seed in 0..20 {
        let mut world = World::new(vec![10], seed);
        let mut policy = Doubling::new(1, None, Schedule::Adaptive, DoubleBy::Devices, 1);
        for round in 1..=60 {
            world.run_round(&mut policy, round);
            let state = policy.state();
            assert!(state.iter().all(|value| value.is_finite()), "round {round}: {state:?}");
            let mut resumed = Doubling::new(1, None, Schedule::Adaptive, DoubleBy::Devices, 1);
            assert!(resumed.restore(&state));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After a restore from the state, the next decision is the same, and the schedule still ends with all
    /// devices.
    #[test]
    fn restart_preserves_decisions(seed in 0u64..1000, stop in 0u32..80, samples in any::<bool>()) {
        let double_by = if samples { DoubleBy::Samples } else { DoubleBy::Devices };
        let mut world = World::with_exponential_times(200, seed);
        let mut policy = adaptive_doubling(double_by);
        world.run_rounds(&mut policy, stop);
        let mut resumed = adaptive_doubling(double_by);
        prop_assert!(resumed.restore(&policy.state()));
        prop_assert_eq!(resumed.state(), policy.state());
        let fleet: Vec<DeviceId> = (0..N as u64).map(DeviceId).collect();
        prop_assert_eq!(resumed.cohort(stop + 1, &fleet), policy.cohort(stop + 1, &fleet));
        let counts = world.run_rounds(&mut resumed, 200);
        prop_assert_eq!(counts.last(), Some(&N));
    }

    /// A state that is truncated, or contains NaN, is rejected and changes nothing.
    #[test]
    fn damaged_state_is_refused(rounds in 1u32..30, index in any::<prop::sample::Index>(), truncates in any::<bool>()) {
        let mut policy = adaptive_doubling(DoubleBy::Devices);
        World::with_exponential_times(0, 1).run_rounds(&mut policy, rounds);
        let mut state = policy.state();
        let index = index.index(state.len());
        if truncates {
            state.truncate(index);
        } else {
            state[index] = f64::NAN;
        }
        let mut fresh = adaptive_doubling(DoubleBy::Devices);
        let initial_state = fresh.state();
        prop_assert!(!fresh.restore(&state));
        prop_assert_eq!(fresh.state(), initial_state);
    }
}
