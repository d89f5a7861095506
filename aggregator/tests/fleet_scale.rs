//! Tests of the scale of a fleet's samples: exact sums in any order, the stage that computes the scale, and
//! restarts.
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_aggregator::config::Fleet;
use fedspan_engine::Tensor;
use fedspan_engine::algorithm::scale::{FeatureMoments, FeatureSums, Scale};
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, Phase, RoundBroadcast, Update};
use fedspan_protocol::message::{AckOutcome, Rejection, Task};
use fedspan_protocol::tensor::{Encoding, Role, SUMS_COLUMNS, TensorDescriptor};
use proptest::prelude::*;

const COLUMNS: usize = SUMS_COLUMNS as usize;

/// Returns the rows that a device uploads, computed as SPEC.md defines them. `features` has one vector per
/// feature.
fn sum_rows(features: &[Vec<f32>]) -> Vec<f32> {
    let row = |column: &Vec<f32>| {
        let largest = column.iter().fold(0.0f32, |largest_so_far, value| largest_so_far.max(value.abs()));
        let mut e = -149;
        while f64::from(largest) >= 2f64.powi(e + 30) {
            e += 1;
        }
        let units = column.iter().map(|value| (f64::from(*value) / 2f64.powi(e)).round_ties_even() as i128);
        let (sum, squares) = units.fold((0, 0), |(s, q), n| (s + n, q + n * n));
        encode_sums(e, sum, squares)
    };
    features.iter().flat_map(row).collect()
}

/// Encodes an exponent and two sums as a row of an upload.
fn encode_sums(e: i32, sum: i128, squares: i128) -> [f32; COLUMNS] {
    let low = |value: i128, i: u32| ((value >> (22 * i)) & 0x3F_FFFF) as f32;
    [
        e as f32,
        low(sum, 0),
        low(sum, 1),
        (sum >> 44) as f32,
        low(squares, 0),
        low(squares, 1),
        low(squares, 2),
        (squares >> 66) as f32,
    ]
}

/// Computes mean and deviation in f64, in two passes over all samples.
fn two_pass_moments(samples: &[f32]) -> FeatureMoments {
    let m = samples.len() as f64;
    let mean = samples.iter().map(|v| f64::from(*v)).sum::<f64>() / m;
    let square = samples.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / m;
    FeatureMoments { mean, deviation: square.sqrt() }
}

fn random_samples() -> impl Strategy<Value = Vec<f32>> {
    // Offsets are up to 1e5 deviations, and scales are from 1e-6 to 1e6.
    let offset_scale_noise = (-1e5f32..1e5, -6i32..=6, prop::collection::vec(-1.7f32..1.7, 1..40));
    offset_scale_noise.prop_map(|(offset, power, noise)| {
        let scale = 10f32.powi(power);
        noise.iter().map(|value| (offset + value) * scale).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn moments_are_exact_in_any_order(
        devices in prop::collection::vec(random_samples(), 1..8),
        rotation in 0usize..8,
    ) {
        // All devices have the offset and the scale of the first device.
        let (first_device, other_devices) = devices.split_at(1);
        let with_spread_of_first = |samples: &Vec<f32>| -> Vec<f32> {
            let spread = first_device[0]
                .iter()
                .fold(0.0f32, |largest, v| largest.max((v - first_device[0][0]).abs()))
                .max(f32::MIN_POSITIVE);
            samples.iter().map(|v| first_device[0][0] + (v % 1.0) * spread).collect()
        };
        let devices: Vec<Vec<f32>> =
            first_device.iter().cloned().chain(other_devices.iter().map(with_spread_of_first)).collect();
        let absorb = |order: &mut dyn Iterator<Item = usize>| {
            let mut sums = FeatureSums::new(1);
            for device in order {
                let column = devices[device].clone();
                assert!(sums.absorb(column.len() as u32, &sum_rows(&[column])));
            }
            sums.moments().unwrap()[0]
        };
        let moments = absorb(&mut (0..devices.len()));
        let count = devices.len();
        prop_assert_eq!(absorb(&mut (0..count).rev()), moments);
        prop_assert_eq!(absorb(&mut (0..count).map(|i| (i + rotation) % count)), moments);

        let samples: Vec<f32> = devices.concat();
        let exact = two_pass_moments(&samples);
        // The mean of the oracle has an error of a few units in the last place of f64.
        let tolerance = 1e-6 * exact.deviation + 1e-15 * exact.mean.abs() * samples.len() as f64;
        prop_assert!((moments.mean - exact.mean).abs() <= tolerance, "{moments:?} {exact:?}");
        prop_assert!((moments.deviation - exact.deviation).abs() <= tolerance, "{moments:?} {exact:?}");
    }

    /// An upload that cannot be the moments of any samples is rejected.
    #[test]
    fn impossible_moments_are_rejected(
        e in -200i32..150,
        sum in -(1i128 << 66)..1i128 << 66,
        squares in 0i128..1 << 90,
        m in 1u32..1 << 30,
        change in prop::option::of((0usize..COLUMNS, any::<u32>().prop_map(f32::from_bits))),
    ) {
        let mut row = encode_sums(e, sum, squares);
        if let Some((index, value)) = change {
            row[index] = value;
        }
        let mut sums = FeatureSums::new(1);
        if sums.absorb(m, &row) {
            let [e, s0, s1, s2, q0, q1, q2, q3] = row.map(|value| value as i128);
            let (s, q) = (s0 + (s1 << 22) + (s2 << 44), q0 + (q1 << 22) + (q2 << 44) + (q3 << 66));
            let m = i128::from(m);
            prop_assert!(row.iter().all(|value| value.fract() == 0.0));
            prop_assert!((-149..=98).contains(&e) && m < 1 << 28 && s * s <= m * q && (s + q) % 2 == 0);
            prop_assert!(sums.moments().unwrap()[0].deviation.is_finite());
        } else {
            prop_assert!(sums.moments().is_none());
        }
    }
}

#[test]
fn constant_features_are_not_scaled() {
    let devices =
        [vec![vec![1.0f32; 7], vec![0.0; 7], vec![0.1; 7]], vec![vec![1.0; 2], vec![0.0; 2], vec![0.1; 2]]];
    let mut sums = FeatureSums::new(3);
    for columns in &devices {
        assert!(sums.absorb(columns[0].len() as u32, &sum_rows(columns)));
    }
    let moments = sums.moments().unwrap();
    assert_eq!(moments.iter().map(|m| m.deviation).collect::<Vec<_>>(), [0.0; 3]);
    assert_eq!(moments[2].mean as f32, 0.1);
    assert_eq!(Scale::standard(&moments), Scale::identity(3));
    // The factor of a scale must be representable in f32.
    let scale_for = |deviation| Scale::standard(&[FeatureMoments { mean: 3.0, deviation }]);
    assert_eq!(scale_for(1e-39), Scale::identity(1));
    assert_eq!(scale_for(1e39).factor(), [1e-39]);
    assert_eq!(scale_for(0.5), Scale::new(vec![3.0], vec![2.0]).unwrap());
}

const FEATURES: usize = 5;

fn configuration_text(data: &str) -> String {
    format!(
        "[devices]\nexpected = 3\n[listen]\nplaintext = true\n[data]\nd = {FEATURES}\n{data}\n[model]\nk = 2\n\
         [algorithm]\nname = \"fedrep\"\nrounds = 2\nstep_size = 0.1\n"
    )
}

fn parse_fleet(data: &str) -> Fleet {
    Fleet::parse("fleet.toml", &configuration_text(data)).unwrap_or_else(|problem| panic!("{problem}"))
}

/// Returns samples of a device: feature j is 1000 j plus an offset, and the last feature is constant.
fn device_samples(device: DeviceId) -> Vec<Vec<f32>> {
    let sample = |j: usize, i: usize| {
        if j + 1 == FEATURES {
            1.0
        } else {
            1000.0 * j as f32 + ((i * 7 + j * 3 + device.0 as usize * 5) % 11) as f32
        }
    };
    (0..FEATURES).map(|j| (0..4 + device.0 as usize).map(|i| sample(j, i)).collect()).collect()
}

/// Returns the update of a device.
fn create_update(device: DeviceId, opening: &RoundBroadcast) -> Update {
    let columns = device_samples(device);
    let samples = columns[0].len() as u32;
    let (descriptors, tensors) = match opening.request.task {
        Task::FeatureSums { first, count } => {
            let (first, count) = (usize::from(first), usize::from(count));
            let values = sum_rows(&columns[first..first + count]);
            let tensor = Tensor { role: Role::FeatureSums, rows: count as u16, cols: SUMS_COLUMNS, values };
            (vec![tensor.descriptor(Encoding::F32)], vec![tensor])
        }
        Task::FedRep { .. } => {
            let values = (0..FEATURES * 2).map(|i| (i as f32 + device.0 as f32) * 1e-3).collect();
            let tensor = Tensor { role: Role::Gradient, rows: FEATURES as u16, cols: 2, values };
            (vec![tensor.descriptor(Encoding::F32)], vec![tensor])
        }
        _ => (Vec::new(), Vec::new()),
    };
    Update { id: opening.id, samples, skipped: 0, descriptors, tensors }
}

/// Engine with the requests that its devices have received.
struct World {
    engine: Engine,
    requests: BTreeMap<DeviceId, Arc<RoundBroadcast>>,
    outcomes: Vec<AckOutcome>,
}

impl World {
    fn new(engine: Engine) -> Self {
        Self { engine, requests: BTreeMap::new(), outcomes: Vec::new() }
    }

    /// Passes an event to the engine and stores the requests and outcomes that result.
    fn handle_event(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.engine.handle(Millis::new(1), event, &mut actions);
        for action in actions {
            match action {
                Action::Open(device, opening) => {
                    self.requests.insert(device, opening);
                }
                Action::Acknowledge(_, ack) => self.outcomes.push(ack.outcome),
                _ => {}
            }
        }
    }

    /// Lets a device answer its request.
    fn answer_request(&mut self, device: DeviceId) {
        let opening = self.requests.remove(&device).expect("the device has no request");
        self.handle_event(Event::Update(device, create_update(device, &opening)));
    }

    /// Lets devices answer until the engine is in this phase.
    fn run_until(&mut self, phase: Phase) {
        while self.engine.phase() != phase {
            let device = *self.requests.keys().next().expect("no device has a request");
            self.answer_request(device);
        }
    }
}

/// Computes the scale of the fleet's samples.
fn expected_scale() -> Scale {
    let all_samples =
        |j: usize| (0..3).flat_map(|device| device_samples(DeviceId(device))[j].clone()).collect::<Vec<_>>();
    Scale::standard(&(0..FEATURES).map(|j| two_pass_moments(&all_samples(j))).collect::<Vec<_>>())
}

#[test]
fn first_stage_finds_scale_for_every_round() {
    for start in ["", "init = \"power\"\n"] {
        let configuration =
            configuration_text("scale = \"fleet\"").replace("k = 2\n", &format!("k = 2\n{start}"));
        let fleet = Fleet::parse("fleet.toml", &configuration).unwrap_or_else(|problem| panic!("{problem}"));
        let mut world = World::new(fleet.engine());
        assert_eq!(world.engine.scale(), None);
        (0..3).for_each(|device| world.handle_event(Event::Joined(DeviceId(device))));
        assert_eq!(world.engine.phase(), Phase::Start(1));
        assert_eq!(world.requests[&DeviceId(0)].request.task, Task::FeatureSums { first: 0, count: 3 });
        // The devices may answer in any order.
        for device in [2, 0, 1] {
            world.answer_request(DeviceId(device));
        }
        assert_eq!(world.requests[&DeviceId(1)].request.task, Task::FeatureSums { first: 3, count: 2 });
        for device in [1, 2, 0] {
            world.answer_request(DeviceId(device));
        }
        let scale = world.engine.scale().expect("the stage found no scale");
        assert_eq!(scale, expected_scale());
        assert_eq!((scale.shift()[4], scale.factor()[4]), (0.0, 1.0));
        if start.is_empty() {
            assert_eq!(world.engine.phase(), Phase::Train(1));
            world.run_until(Phase::FitHead);
        }
        let tensors = &world.requests[&DeviceId(0)].request.tensors;
        assert_eq!(tensors.last(), Some(&scale.tensor()));
        if start.is_empty() {
            // A device that joins later receives the scale too.
            world.handle_event(Event::Joined(DeviceId(9)));
            assert_eq!(world.requests[&DeviceId(9)].request.tensors.last(), Some(&scale.tensor()));
            // A scale has a shift and a factor of 4 bytes for each feature.
            assert_eq!(world.requests[&DeviceId(9)].encoded.last().unwrap().len(), 4 * 2 * FEATURES);
        }
    }
}

/// The scale is exact even if downloads are quantised to i8.
#[test]
fn scale_is_never_rounded() {
    let configuration =
        configuration_text("scale = { shift = [1013.25, 0, 0, 0, 0], factor = [0.1, 1, 1, 1, 1] }")
            .replace("rounds = 2\n", "rounds = 2\ndownload = \"i8\"\n");
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap_or_else(|problem| panic!("{problem}"));
    let mut world = World::new(fleet.engine());
    (0..3).for_each(|device| world.handle_event(Event::Joined(DeviceId(device))));
    assert_eq!(world.engine.phase(), Phase::Train(1));
    let opening = &world.requests[&DeviceId(0)];
    let [representation, scale] = &opening.request.tensors[..] else { panic!("{:?}", opening.request) };
    assert_eq!((representation.role, scale.role), (Role::Representation, Role::Scale));
    assert_eq!(scale.descriptor(opening.request.encoding).encoding, Encoding::F32);
    assert_eq!(&opening.encoded[1][..4], 1013.25f32.to_le_bytes());
    // Exported tensors do not include the scale.
    assert!(world.engine.tensors().iter().all(|tensor| tensor.role != Role::Scale));
}

#[test]
fn false_moments_are_rejected_and_counted() {
    let mut world = World::new(parse_fleet("scale = \"fleet\"").engine());
    (0..3).for_each(|device| world.handle_event(Event::Joined(DeviceId(device))));
    for device in [1, 2] {
        world.answer_request(DeviceId(device));
    }
    let opening = Arc::clone(&world.requests[&DeviceId(0)]);
    let honest = create_update(DeviceId(0), &opening);
    let falsified = |index: usize, value: f32| {
        let mut falsified = honest.clone();
        falsified.tensors[0].values[index] = value;
        falsified
    };
    let mut too_many_samples = honest.clone();
    too_many_samples.samples = 1 << 28;
    let mut too_few_samples = honest.clone();
    too_few_samples.samples = 1;
    let mut wrong_columns = honest.clone();
    wrong_columns.descriptors[0] = TensorDescriptor { cols: 7, ..wrong_columns.descriptors[0] };
    let mut no_samples = honest.clone();
    no_samples.samples = 0;
    let false_updates = [
        (falsified(1, f32::NAN), Rejection::NonFinite),
        (falsified(0, f32::INFINITY), Rejection::NonFinite),
        (falsified(0, 99.0), Rejection::Tensors),
        (falsified(0, -20.5), Rejection::Tensors),
        (falsified(1, -1.0), Rejection::Tensors),
        (falsified(2, 4_194_304.0), Rejection::Tensors),
        (falsified(3, 1e30), Rejection::Tensors),
        (falsified(1, honest.tensors[0].values[1] + 1.0), Rejection::Tensors),
        (falsified(6, 0.0), Rejection::Tensors),
        (too_many_samples, Rejection::Tensors),
        (too_few_samples, Rejection::Tensors),
        (wrong_columns, Rejection::Tensors),
        (no_samples, Rejection::NoSamples),
    ];
    let count = false_updates.len() as u64;
    for (update, rejection) in false_updates {
        world.outcomes.clear();
        // Each false update is sent to a new engine.
        let mut world = World::new(parse_fleet("scale = \"fleet\"").engine());
        (0..3).for_each(|device| world.handle_event(Event::Joined(DeviceId(device))));
        world.handle_event(Event::Update(DeviceId(0), update));
        assert_eq!(world.outcomes, [AckOutcome::Rejected(rejection)]);
        assert_eq!(world.engine.counters().rejected(), 1);
        for device in [1, 2] {
            world.answer_request(DeviceId(device));
        }
    }
    assert!(count > 10);
    world.answer_request(DeviceId(0));
    world.run_until(Phase::Train(1));
    assert_eq!(world.engine.scale(), Some(expected_scale()));
}

/// Restarts at every moment during the stage and after the stage lead to the same bits.
#[test]
fn restart_keeps_scale_and_model() {
    let fleet = parse_fleet("scale = \"fleet\"");
    let uninterrupted_state = {
        let mut world = World::new(fleet.engine());
        (0..3).for_each(|device| world.handle_event(Event::Joined(DeviceId(device))));
        world.run_until(Phase::FitHead);
        world.engine.checkpoint().state
    };
    for moment in 0..13 {
        let mut world = World::new(fleet.engine());
        (0..3).for_each(|device| world.handle_event(Event::Joined(DeviceId(device))));
        let mut counted = Vec::new();
        let mut round = world.engine.checkpoint();
        for _ in 0..moment {
            if world.engine.phase() == Phase::FitHead {
                break;
            }
            let device = *world.requests.keys().next_back().unwrap();
            let opening = world.requests.remove(&device).unwrap();
            let update = create_update(device, &opening);
            world.handle_event(Event::Update(device, update.clone()));
            counted.push((device, update));
            let now = world.engine.checkpoint();
            if now.id != round.id {
                counted.clear();
                round = now;
            }
        }
        let mut restarted = World::new(fleet.engine());
        assert!(restarted.engine.resume(Millis::new(1), &round), "{moment}");
        for (device, update) in counted {
            assert!(restarted.engine.replay_update(Millis::new(1), device, &update));
        }
        restarted.handle_event(Event::Resumed);
        (0..3).for_each(|device| restarted.handle_event(Event::Joined(DeviceId(device))));
        restarted.run_until(Phase::FitHead);
        assert_eq!(restarted.engine.checkpoint().state, uninterrupted_state, "{moment}");
        assert_eq!(restarted.engine.scale(), Some(expected_scale()));
    }
    // A checkpoint of another campaign, or a damaged one, is refused.
    let mut damaged = World::new(fleet.engine()).engine.checkpoint();
    damaged.done = Phase::Start(1);
    damaged.id.round = 1;
    damaged.state[0] = 6.0;
    assert!(!fleet.engine().resume(Millis::new(1), &damaged));
}

#[test]
fn configuration_validates_scale() {
    let scale_error = |data: &str, additions: &str| {
        Fleet::parse("fleet.toml", &format!("{}{additions}", configuration_text(data)))
            .unwrap_err()
            .to_string()
    };
    let error = scale_error("scale = \"standard\"", "");
    assert!(error.contains("data.scale") && error.contains("\"none\", \"fleet\""), "{error}");
    let error = scale_error("scale = { shift = [1, 2], factor = [1, 1, 1, 1, 1] }", "");
    assert!(error.contains("found 2 numbers") && error.contains("5 numbers"), "{error}");
    let error = scale_error("scale = { shift = [1, 2, 3, 4, 5] }", "");
    assert!(error.contains("factor"), "{error}");
    let error = scale_error("scale = { shift = [0, 0, 0, 0, 0], factor = [1, 1, 0, 1, 1] }", "");
    assert!(error.contains("found 0 for feature 2"), "{error}");
    let error = scale_error("scale = { shift = [0, 0, 0, 0, 0], factor = [1, 1, 1e50, 1, 1] }", "");
    assert!(error.contains("f32"), "{error}");
    let error = scale_error("scale = { shift = [0, 0, 0, 0, 0], factor = [1, 1, 1, 1, 1], x = 1 }", "");
    assert!(error.contains("unknown key"), "{error}");
    let error = scale_error("scale = \"fleet\"", "[aggregation]\nrule = \"geometric-median\"\n");
    assert!(error.contains("geometric-median") && error.contains("shift"), "{error}");
    let error = scale_error("scale = \"fleet\"", "[privacy]\nepsilon = 1.0\ndelta = 1e-5\n");
    assert!(error.contains("[privacy]") || error.contains("privacy"), "{error}");

    // The scale is part of the fingerprint. A fingerprint without a scale has no key for it.
    let (without_scale, with_scale) = (parse_fleet(""), parse_fleet("scale = \"fleet\""));
    assert_eq!(parse_fleet("scale = \"none\"").fingerprint(), without_scale.fingerprint());
    assert!(!without_scale.fingerprint().contains("data.scale"));
    assert!(with_scale.fingerprint().contains("data.scale = \"fleet\"\n"));
    // A campaign with a scale requires devices to support the task of the stage.
    let task_bits =
        |fleet: &Fleet| fleet.engine().requests().iter().fold(0, |bits, request| bits | request.task.bit());
    assert_eq!(task_bits(&with_scale) & !task_bits(&without_scale), 1 << 10);
}
