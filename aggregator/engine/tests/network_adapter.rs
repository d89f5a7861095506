//! Tests of algorithms that train low-rank adapters, run by the engine: the tensors requested and sent in
//! each round, and the averaged factors.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use fedspan_engine::aggregate::{Rule, SampleCap};
use fedspan_engine::algorithm::Algorithm as _;
use fedspan_engine::algorithm::network::{Adapter, Averaging, Front, NetworkParameters, NetworkShape};
use fedspan_engine::linalg::{Matrix, from_f32, product};
use fedspan_engine::participation::Full;
use fedspan_engine::{Action, DeviceId, Engine, Event, Millis, Phase, RoundBroadcast, RoundRecord, Settings};
use fedspan_engine::{Tensor, Weighting};
use fedspan_protocol::message::{Decline, DeclineReason, Descent, HeadSolve, RoundId};
use fedspan_protocol::tensor::{Encoding, Role};

/// Number of features.
const D: usize = 7;
/// Rank of the adapter.
const R: usize = 2;
/// Number of outputs of the frozen layer.
const H: usize = 5;
/// Roles of the two factors.
const FACTOR_ROLES: [Role; 2] = [Role::AdapterDown, Role::AdapterUp];
const DESCENT: Descent = Descent { step_size: 0.1, momentum: 0.0, batch: 8 };

/// Parameters of a network with an adapter and no hidden layers.
fn parameters() -> NetworkParameters {
    let front = Front::Adapter { rank: R as u16, width: H as u16, frozen: 7 };
    NetworkParameters {
        shape: NetworkShape { features: D as u16, front, hidden: [0; 3], outputs: 3 },
        descent: DESCENT,
        head_epochs: 0,
        epochs: 2,
        download_encoding: Encoding::F32,
        upload_encoding: Encoding::F32,
        weighting: Weighting::Samples,
        rule: Rule::MEAN,
        fleet: 3,
        seed: 4,
        training_rounds: 0,
        first_device: 0,
    }
}

/// Engine with simulated devices, the last broadcast to each device, and the committed rounds.
struct World {
    engine: Engine,
    opened: BTreeMap<DeviceId, Arc<RoundBroadcast>>,
    commits: Vec<RoundRecord>,
    now: u64,
}

impl World {
    /// Creates a campaign that `devices` devices have joined.
    fn new(averaging: Averaging, devices: u64) -> Self {
        let settings = Settings {
            fleet_size: devices as usize,
            first_device: 0,
            rounds: 50,
            final_head: HeadSolve::Sgd { epochs: 0, descent: DESCENT },
            deadline: Some(Millis::new(1000)),
            min_count: 1,
            every: None,
            norm_bound: 1e6,
            samples: SampleCap { max_samples: 1000, relative: false },
            absence: Millis::new(1_000_000),
            retry_delay: Some(Millis::new(10)),
            patience: None,
            stop_change: None,
        };
        let server = Box::new(Adapter::new(parameters(), averaging));
        let engine = Engine::new(settings, None, server, Box::new(Full));
        let mut world = Self { engine, opened: BTreeMap::new(), commits: Vec::new(), now: 0 };
        for device in 0..devices {
            world.handle_event(Event::Joined(DeviceId(device)));
        }
        world
    }

    /// Passes an event to the engine, and stores its broadcasts and commits.
    fn handle_event(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.now += 1;
        self.engine.handle(Millis::new(self.now), event, &mut actions);
        for action in actions {
            match action {
                Action::Open(device, broadcast) => drop(self.opened.insert(device, broadcast)),
                Action::Commit(record) => self.commits.push(*record),
                _ => {}
            }
        }
    }

    /// Roles of the tensors last sent to a device.
    fn roles(&self, device: DeviceId) -> Vec<Role> {
        self.opened[&device].request.tensors.iter().map(|tensor| tensor.role).collect()
    }

    /// Id of the open round.
    fn round_id(&self) -> RoundId {
        self.engine.open_round().unwrap().broadcast.id
    }

    /// Random upload of a device for the open round.
    fn random_upload(&self, device: DeviceId) -> Vec<Tensor> {
        let id = self.round_id();
        random_tensors(
            &self.opened[&device].request.expects,
            &mut random(u64::from(id.round) * 100 + device.0),
            1.0,
        )
    }

    /// Sends these tensors as the update of a device.
    fn send_update(&mut self, device: DeviceId, tensors: Vec<Tensor>) {
        let expects = self.opened[&device].request.expects.clone();
        let update = create_update(self.round_id(), 10 * (device.0 as u32 + 1), &expects, tensors);
        self.handle_event(Event::Update(device, update));
    }

    /// Sends a random update of every device, and returns the uploads.
    fn run_round(&mut self, devices: u64) -> Vec<Vec<Tensor>> {
        let answers: Vec<Vec<Tensor>> =
            (0..devices).map(|device| self.random_upload(DeviceId(device))).collect();
        for (device, tensors) in answers.iter().enumerate() {
            self.send_update(DeviceId(device as u64), tensors.clone());
        }
        answers
    }

    /// Current factors A and B.
    fn factors(&self) -> [Matrix; 2] {
        let tensors = self.engine.tensors();
        [to_matrix(&tensors[0]), to_matrix(&tensors[1])]
    }
}

fn to_matrix(tensor: &Tensor) -> Matrix {
    from_f32(tensor.rows.into(), tensor.cols.into(), &tensor.values)
}

/// Mean over all uploads of the matrix that `matrix_of` computes, weighted by samples.
fn weighted_mean(answers: &[Vec<Tensor>], matrix_of: impl Fn(&[Tensor]) -> Matrix) -> Matrix {
    let weights: Vec<f64> = (1..=answers.len()).map(|n| 10.0 * n as f64).collect();
    let total: f64 = weights.iter().sum();
    answers
        .iter()
        .zip(&weights)
        .map(|(answer, w)| matrix_of(answer) * (w / total))
        .reduce(|a, b| a + b)
        .unwrap()
}

/// Whether two matrices are equal up to the rounding of f32.
fn is_near(a: &Matrix, b: &Matrix) -> bool {
    (a - b).norm() < 1e-5 * b.norm().max(1.0)
}

#[test]
fn rolora_mean_equals_mean_of_products() {
    let mut world = World::new(Averaging::RoLora, 3);
    for round in 0..6 {
        let trained = FACTOR_ROLES[usize::from(round % 2 == 0)];
        let factors_before = world.factors();
        for device in 0..3 {
            let expected = if round == 0 {
                FACTOR_ROLES.to_vec()
            } else {
                vec![FACTOR_ROLES[usize::from(round % 2 == 1)]]
            };
            // Participants of the round before have the factor that did not change, so it is not sent.
            assert_eq!(world.roles(DeviceId(device)), expected, "round {round}");
            assert_eq!(
                world.opened[&DeviceId(device)].request.expects.iter().map(|t| t.role).collect::<Vec<_>>(),
                [trained]
            );
            assert_eq!(world.opened[&DeviceId(device)].encoded.len(), expected.len());
        }
        let answers = world.run_round(3);
        let factors_after = world.factors();
        let (averaged, frozen) = if trained == Role::AdapterUp { (1, 0) } else { (0, 1) };
        assert_eq!(factors_before[frozen], factors_after[frozen]);
        assert!(is_near(&factors_after[averaged], &weighted_mean(&answers, |answer| to_matrix(&answer[0]))));
        // The product of the new factors equals the mean of the devices' products.
        let device_product = |answer: &[Tensor]| match averaged {
            1 => product(&factors_before[0], &to_matrix(&answer[0])),
            _ => product(&to_matrix(&answer[0]), &factors_before[1]),
        };
        assert!(is_near(
            &product(&factors_after[0], &factors_after[1]),
            &weighted_mean(&answers, device_product)
        ));
        assert_eq!(world.commits.last().unwrap().interference, Some(0.0));
    }
}

#[test]
fn ffa_lora_keeps_down_projection() {
    let mut world = World::new(Averaging::FfaLora, 3);
    let start = world.factors();
    for round in 0..4 {
        assert_eq!(
            world.roles(DeviceId(1)),
            if round == 0 { FACTOR_ROLES.to_vec() } else { vec![Role::AdapterUp] }
        );
        let answers = world.run_round(3);
        assert_eq!(world.factors()[0], start[0]);
        assert!(is_near(&world.factors()[1], &weighted_mean(&answers, |answer| to_matrix(&answer[0]))));
        assert_eq!(world.commits[round].interference, Some(0.0));
    }
}

#[test]
fn plain_averaging_reports_interference() {
    let mut world = World::new(Averaging::Lora, 3);
    for round in 0..3 {
        // Both factors change in every round, so both are sent.
        assert_eq!(world.roles(DeviceId(2)), FACTOR_ROLES);
        let answers = world.run_round(3);
        let [down, up] = world.factors();
        assert!(is_near(&down, &weighted_mean(&answers, |answer| to_matrix(&answer[0]))));
        assert!(is_near(&up, &weighted_mean(&answers, |answer| to_matrix(&answer[1]))));
        let mean_of_products =
            weighted_mean(&answers, |answer| product(&to_matrix(&answer[0]), &to_matrix(&answer[1])));
        let product_of_means = product(
            &weighted_mean(&answers, |answer| to_matrix(&answer[0])),
            &weighted_mean(&answers, |answer| to_matrix(&answer[1])),
        );
        let expected = (&mean_of_products - &product_of_means).norm() / mean_of_products.norm();
        let interference = world.commits[round].interference.unwrap();
        assert!(expected > 0.1 && (interference - expected).abs() < 1e-12, "{interference} {expected}");
    }
}

#[test]
fn flexlora_keeps_best_factors_of_mean() {
    let mut world = World::new(Averaging::FlexLora, 3);
    let answers = world.run_round(3);
    let mean_product =
        weighted_mean(&answers, |answer| product(&to_matrix(&answer[0]), &to_matrix(&answer[1])));
    let [down, up] = world.factors();
    let mut singular_values: Vec<f64> = mean_product.clone().singular_values().iter().copied().collect();
    singular_values.sort_by(|a, b| b.total_cmp(a));
    let discarded: f64 = singular_values[R..].iter().map(|v| v * v).sum();
    assert!(
        ((&mean_product - product(&down, &up)).norm_squared() - discarded).abs()
            < 1e-5 * mean_product.norm_squared()
    );
    assert!((down.transpose() * &down - Matrix::identity(R, R)).norm() < 1e-5);
    // If two devices send the same update, the truncation discards nothing.
    let mut world = World::new(Averaging::FlexLora, 2);
    let answer = world.random_upload(DeviceId(0));
    world.send_update(DeviceId(0), answer.clone());
    world.send_update(DeviceId(1), answer.clone());
    let [down, up] = world.factors();
    assert!(is_near(&product(&down, &up), &product(&to_matrix(&answer[0]), &to_matrix(&answer[1]))));
    assert!(world.commits[0].interference.unwrap() < 1e-12);
}

/// The result is bit-identical for any order of arrival.
#[test]
fn result_is_independent_of_arrival_order() {
    for averaging in [Averaging::RoLora, Averaging::Lora, Averaging::FfaLora, Averaging::FlexLora] {
        let result = |order: [u64; 3]| {
            let mut world = World::new(averaging, 3);
            for _ in 0..3 {
                let answers: Vec<_> = (0..3).map(|device| world.random_upload(DeviceId(device))).collect();
                for device in order {
                    world.send_update(DeviceId(device), answers[device as usize].clone());
                }
            }
            let interference =
                world.commits.iter().map(|c| c.interference.unwrap().to_bits()).collect::<Vec<_>>();
            (world.factors().map(|factor| bits(&factor)), interference)
        };
        assert_eq!(result([0, 1, 2]), result([2, 0, 1]), "{averaging:?}");
    }
}

/// Devices that may lack the unchanged tensors are sent all tensors: devices that reconnected, declined, or
/// did not answer in the round before.
#[test]
fn stale_device_receives_all_tensors() {
    let mut world = World::new(Averaging::RoLora, 3);
    world.run_round(3);
    assert_eq!(world.roles(DeviceId(0)), [Role::AdapterUp]);
    // The device may have restarted and lost its tensors.
    world.handle_event(Event::Left(DeviceId(0)));
    world.handle_event(Event::Joined(DeviceId(0)));
    assert_eq!(world.roles(DeviceId(0)), FACTOR_ROLES);
    // Device 1 reports that it lacks tensors.
    let declined = Decline { id: world.round_id(), reason: DeclineReason::Tensors };
    world.handle_event(Event::Declined(DeviceId(1), declined));
    for device in [0, 2] {
        let tensors = world.random_upload(DeviceId(device));
        world.send_update(DeviceId(device), tensors);
    }
    // The round closes without device 1, and the next round sends all tensors to it.
    assert_eq!(world.engine.phase(), Phase::Train(3));
    assert_eq!(world.roles(DeviceId(1)), FACTOR_ROLES);
    assert_eq!(
        (world.roles(DeviceId(0)), world.roles(DeviceId(2))),
        (vec![Role::AdapterDown], vec![Role::AdapterDown])
    );
    // Device 1 does not answer before the deadline, so the next round sends all tensors to it again.
    for device in [0, 2] {
        let tensors = world.random_upload(DeviceId(device));
        world.send_update(DeviceId(device), tensors);
    }
    world.now += 2000;
    world.handle_event(Event::Tick);
    assert_eq!(world.engine.phase(), Phase::Train(4));
    assert_eq!(world.roles(DeviceId(1)), FACTOR_ROLES);
    assert_eq!(world.roles(DeviceId(0)), [Role::AdapterUp]);
}

/// An abandoned round is repeated. Devices have overwritten the factors that they trained in it, so these
/// factors are sent again.
#[test]
fn repeated_round_sends_trained_tensors() {
    let mut world = World::new(Averaging::RoLora, 2);
    world.run_round(2);
    let factors_before = world.factors();
    // Both updates are rejected, since their norms exceed the bound.
    for device in 0..2 {
        let mut tensors = world.random_upload(DeviceId(device));
        tensors[0].values.fill(1e6);
        world.send_update(DeviceId(device), tensors);
    }
    world.now += 20;
    world.handle_event(Event::Tick);
    assert_eq!(world.engine.phase(), Phase::Train(2));
    assert_eq!(world.factors(), factors_before);
    for device in 0..2 {
        let roles = world.roles(DeviceId(device));
        assert!(roles.contains(&Role::AdapterDown), "{roles:?}");
    }
}

#[test]
fn state_is_restored_between_rounds() {
    let mut world = World::new(Averaging::RoLora, 2);
    world.run_round(2);
    let mut server = Adapter::new(parameters(), Averaging::RoLora);
    let state = world.engine.checkpoint().state;
    assert!(server.restore(&state));
    assert_eq!(server.request().expects[0].role, Role::AdapterDown);
    assert!(!server.restore(&state[1..]) && !server.restore(&[]));
}
