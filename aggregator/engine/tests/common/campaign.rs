//! Test helpers: engines of small campaigns, and simulated devices whose updates are fixed functions of
//! the broadcast.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use fedspan_engine::aggregate::{Rule, SampleCap};
use fedspan_engine::algorithm::{
    Algorithm, FedAvg, FedAvgParameters, FedRep, FedRepParameters, PowerStart, random_start,
};
use fedspan_engine::linalg::{Matrix, from_f32, to_f32};
use fedspan_engine::participation::{DoubleBy, Doubling, Fraction, Full, Schedule};
use fedspan_engine::{
    Action, Checkpoint, DeviceId, Engine, Event, Millis, Participation, Phase, RoundBroadcast, RoundRecord,
    Settings, Update,
};
use fedspan_engine::{Tensor, Weighting};
use fedspan_protocol::message::{HeadSolve, Task, Upload};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

/// Number of features.
pub const D: usize = 4;
/// Width of the representation.
pub const K: usize = 2;
/// Step size of the representation.
pub const ETA: f32 = 0.25;
/// Largest norm of an update.
pub const BOUND: f32 = 50.0;
/// Number of power iterations of the start, which computes the initial representation.
pub const ITERATIONS: u32 = 2;
/// Cap on declared sample counts. Devices declare fewer samples, except in tests of the cap.
pub const MAX_SAMPLES: u32 = 1000;

/// Settings of a small campaign.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub fleet_size: usize,
    pub rounds: u32,
    pub deadline: Option<u64>,
    /// Shortest time between the openings of two rounds.
    pub every: Option<u64>,
    pub min_count: usize,
    pub absence: u64,
    pub retry_delay: Option<u64>,
    pub patience: Option<NonZeroU32>,
    pub stop_change: Option<f64>,
    /// Rate and over-selection of random participation; `None` for full participation.
    pub fraction: Option<(f64, f64)>,
    /// First number of devices, rounds per stage, and doubled quantity of doubling participation; takes
    /// precedence over `fraction`.
    pub doubling: Option<(usize, u32, DoubleBy)>,
    /// Whether the campaign begins with power iterations.
    pub power: bool,
    /// Whether the algorithm is FedAvg instead of FedRep.
    pub fedavg: bool,
    /// Whether updates are weighted by their sample counts.
    pub by_samples: bool,
    pub rule: Rule,
    pub seed: u64,
}

/// Random setups.
pub fn random_setup() -> impl Strategy<Value = Setup> {
    let rates = (prop::sample::select(vec![0.2, 0.5, 0.75]), prop::sample::select(vec![1.0, 1.6]));
    let sizes = (1usize..=4, 1u32..=4, proptest::option::weighted(0.7, 50u64..200), 1usize..=5);
    let double_by = prop::sample::select(vec![DoubleBy::Devices, DoubleBy::Samples]);
    let doubling = proptest::option::of((1usize..=3, 1u32..=2, double_by));
    let options = (proptest::option::of(rates), doubling, any::<bool>(), any::<bool>(), any::<bool>());
    let every = proptest::option::weighted(0.3, prop::sample::select(vec![1u64, 80, 300]));
    let times = (prop::sample::select(vec![0u64, 60, 500]), proptest::option::of(20u64..150), every);
    (sizes, times, options, any::<u64>()).prop_map(
        |(
            (fleet_size, rounds, deadline, min_count),
            (absence, retry_delay, every),
            (fraction, doubling, power, fedavg, by_samples),
            seed,
        )| {
            Setup {
                fleet_size,
                rounds,
                deadline,
                every,
                min_count,
                absence,
                retry_delay,
                patience: None,
                stop_change: None,
                fraction,
                doubling,
                power,
                fedavg,
                by_samples,
                rule: Rule::MEAN,
                seed,
            }
        },
    )
}

impl Setup {
    pub fn weighting(&self) -> Weighting {
        if self.by_samples { Weighting::Samples } else { Weighting::Uniform }
    }

    /// Participation policy of the campaign.
    pub fn policy(&self) -> Box<dyn Participation> {
        match (self.doubling, self.fraction) {
            (Some((first, rounds, by)), _) => {
                Box::new(Doubling::new(first, None, Schedule::Fixed(rounds), by, self.seed))
            }
            (None, Some((rate, over_select))) => Box::new(Fraction { rate, over_select, seed: self.seed }),
            (None, None) => Box::new(Full),
        }
    }

    /// Initial representation, D x K.
    pub fn basis(&self) -> Matrix {
        random_start(D, K, self.seed)
    }

    /// Engine of the campaign.
    pub fn engine(&self) -> Engine {
        let head = HeadSolve::LeastSquares { ridge: 0.0 };
        let settings = Settings {
            fleet_size: self.fleet_size,
            first_device: 0,
            rounds: self.rounds,
            final_head: head,
            deadline: self.deadline.map(Millis::new),
            min_count: self.min_count,
            every: self.every.map(Millis::new),
            norm_bound: BOUND,
            samples: SampleCap { max_samples: MAX_SAMPLES, relative: self.rule.needs_all_updates() },
            absence: Millis::new(self.absence),
            retry_delay: self.retry_delay.map(Millis::new),
            patience: self.patience,
            stop_change: self.stop_change,
        };
        let (weighting, rule) = (self.weighting(), self.rule);
        let start: Option<Box<dyn Algorithm>> = match self.power {
            true => Some(Box::new(PowerStart::new(self.basis(), ITERATIONS, weighting, self.rule))),
            false => None,
        };
        let algorithm: Box<dyn Algorithm> = if self.fedavg {
            let encoding = Encoding::F32;
            let parameters = FedAvgParameters {
                step_size: ETA,
                head_step_size: 0.5,
                local_steps: 1,
                encoding,
                weighting,
                rule,
            };
            Box::new(FedAvg::new(self.basis(), Matrix::zeros(K, 1), parameters))
        } else {
            let parameters = FedRepParameters {
                step_size: ETA,
                head,
                upload: Upload::Gradient,
                download_encoding: Encoding::F32,
                upload_encoding: Encoding::F32,
                weighting,
                rule,
            };
            Box::new(FedRep::new(self.basis(), parameters))
        };
        Engine::new(settings, start, algorithm, self.policy())
    }
}

/// Symmetric d x d matrix that determines all updates of a device.
fn device_matrix(device: DeviceId, d: usize) -> Matrix {
    let raw = super::gaussian(d, d, &mut super::random(1000 + device.0));
    &raw * raw.transpose() * (0.2 / d as f64)
}

/// Values that an honest device uploads for a task. The broadcast tensors are a representation (d x k,
/// row-major) and, for FedAvg, a head.
pub fn honest_values(
    device: DeviceId,
    task: &Task,
    d: usize,
    k: usize,
    broadcast_tensors: &[Vec<f32>],
) -> Vec<Vec<f32>> {
    let Some(representation) = broadcast_tensors.first().map(|values| from_f32(d, k, values)) else {
        return Vec::new();
    };
    let step = device_matrix(device, d) * &representation;
    match task {
        Task::FedRep { .. } => vec![to_f32(&(step * -0.3))],
        Task::PowerStart => vec![to_f32(&step)],
        Task::FedAvg { .. } => {
            let head = broadcast_tensors[1].iter().map(|w| w * 0.5 + device.0 as f32 * 0.125).collect();
            vec![to_f32(&(&representation + step * 0.1)), head]
        }
        _ => Vec::new(),
    }
}

/// Update of an honest device for a broadcast.
pub fn honest_update(device: DeviceId, broadcast: &RoundBroadcast) -> Update {
    let broadcast_tensors: Vec<Vec<f32>> =
        broadcast.request.tensors.iter().map(|t| t.values.clone()).collect();
    let (d, k) =
        broadcast.request.tensors.first().map_or((0, 0), |t| (usize::from(t.rows), usize::from(t.cols)));
    let values = honest_values(device, &broadcast.request.task, d, k, &broadcast_tensors);
    let tensors = broadcast.request.expects.iter().zip(values);
    let tensors = tensors.map(|(t, values)| Tensor { role: t.role, rows: t.rows, cols: t.cols, values });
    super::create_update(broadcast.id, 1 + device.0 as u32 % 5, &broadcast.request.expects, tensors.collect())
}

/// Campaign of two rounds with two devices.
pub fn two_device_setup() -> Setup {
    Setup {
        fleet_size: 2,
        rounds: 2,
        deadline: Some(100),
        every: None,
        min_count: 1,
        absence: 50,
        retry_delay: None,
        patience: None,
        stop_change: None,
        fraction: None,
        doubling: None,
        power: false,
        fedavg: false,
        by_samples: false,
        rule: Rule::MEAN,
        seed: 1,
    }
}

/// A committed round as a server stores it.
#[derive(Clone)]
pub struct StoredRound {
    pub phase: Phase,
    pub checkpoint: Checkpoint,
    pub record: RoundRecord,
}

/// Result of a simulated campaign: the engine, the committed rounds, and the numbers of the opened rounds.
pub struct CampaignRun {
    pub engine: Engine,
    pub stored: Vec<StoredRound>,
    pub opened: BTreeSet<u32>,
}

/// Runs a campaign with `devices` honest devices until it has finished or `commits` rounds are committed.
pub fn simulate_campaign(mut engine: Engine, devices: u64, commits: usize) -> CampaignRun {
    let mut stored = Vec::new();
    let mut opened = BTreeSet::new();
    let mut queue: Vec<Event> = (0..devices).rev().map(|device| Event::Joined(DeviceId(device))).collect();
    while let Some(event) = queue.pop() {
        let mut actions = Vec::new();
        engine.handle(Millis::ZERO, event, &mut actions);
        for action in actions {
            match action {
                Action::Open(device, broadcast) => {
                    opened.insert(broadcast.id.round);
                    queue.insert(0, Event::Update(device, honest_update(device, &broadcast)));
                }
                Action::Commit(record) => {
                    // Like a server, stores the state after the event has been handled.
                    let checkpoint = engine.checkpoint();
                    stored.push(StoredRound { phase: record.phase, checkpoint, record: *record });
                }
                Action::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
        if stored.len() >= commits {
            break;
        }
    }
    CampaignRun { engine, stored, opened }
}

/// Bits of the representation and of the shared head, for exact comparisons.
pub fn model_bits(engine: &Engine) -> (Vec<u64>, Option<Vec<u64>>) {
    (super::bits(engine.representation()), engine.shared_head().map(super::bits))
}
