//! Messages that an honest server sends to the device: several rounds and campaigns.

use std::sync::OnceLock;

use fedspan_protocol::assembly::plan;
use fedspan_protocol::limits::{BEACON_TAG, UNTIL_PLATEAU};
use fedspan_protocol::message::{
    Ack, AckOutcome, Announced, Chunk, Descent, Descriptors, Fault, GeometricGrid, HeadSolve, Missing,
    NewKey, PowerRows, PowerUpload, Refusal, Rejection, RoundId, RoundOpen, Task, ToDevice, Trained, Upload,
    Welcome,
};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::secure::Key;
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use super::models::{D, K, OTHER_MODELS, PRIOR_LINEAR, PRIOR_NETWORK, PRIOR_SHAPE, shape_of};
use crate::Random;
use crate::honest::payload;

/// Number of different rounds of a model.
pub const ROUNDS: usize = 48;

/// Index of the first round of FedPower, for models that compute them.
const POWER_ROUND: usize = 16;

/// Model of a device, as far as its rounds depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Number of the model; 0 for the linear one.
    pub model: usize,
    /// True if uploads may leave values out.
    pub has_error_feedback: bool,
    /// True if the campaign has a scale.
    pub is_scaled: bool,
    /// True if the rounds are those of FedPower.
    pub has_power: bool,
}

impl Kind {
    /// Number of kinds.
    const COUNT: usize = 8 * (1 + OTHER_MODELS);

    fn index(self) -> usize {
        let flags = [self.has_error_feedback, self.is_scaled, self.has_power];
        flags.iter().fold(self.model, |index, &flag| 2 * index + usize::from(flag))
    }
}

/// Messages of an honest server to a device with one of the models.
pub struct Catalogue {
    /// Index of the round by which a device is tested at the end.
    last: usize,
    /// All messages, the welcomes first.
    pub all: Vec<Vec<u8>>,
    /// Messages that open each round.
    rounds: Vec<Vec<Vec<u8>>>,
}

impl Catalogue {
    /// Returns the catalogue of a kind of models.
    pub fn of(kind: Kind) -> &'static Self {
        static CATALOGUES: [OnceLock<Catalogue>; Kind::COUNT] = [const { OnceLock::new() }; Kind::COUNT];
        CATALOGUES[kind.index()].get_or_init(|| Self::new(kind))
    }

    fn new(kind: Kind) -> Self {
        let opening = |index| match kind.model {
            0 => linear_round(kind, index),
            // Networks are trained in half of the rounds.
            PRIOR_NETWORK if index % 2 == 1 => network_round(kind, index),
            PRIOR_NETWORK | PRIOR_LINEAR => prior_round(kind, index),
            _ => network_round(kind, index),
        };
        let rounds: Vec<Vec<Vec<u8>>> = (0..ROUNDS).map(opening).collect();
        let mut all = small_messages();
        all.extend(rounds.iter().flatten().cloned());
        all.extend((0..4).map(|number| payload(&new_key(number), &[])));
        Self { last: if kind.has_power { POWER_ROUND } else { 0 }, all, rounds }
    }

    /// Returns the messages that open a round that the model computes.
    pub fn last_round(&self) -> &[Vec<u8>] {
        self.round(self.last)
    }

    /// Returns the messages that open round `index`.
    pub fn round(&self, index: usize) -> &[Vec<u8>] {
        &self.rounds[index % ROUNDS]
    }
}

/// Returns a key that the server sends; odd numbers have later epochs than the numbers before.
pub fn new_key(number: u8) -> ToDevice {
    key_of_epoch([2, 3, 3, 5][usize::from(number % 4)] + u16::from(number / 4), number << 1)
}

/// Returns the key of an epoch with these secret bytes.
pub fn key_of_epoch(epoch: u16, secret: u8) -> ToDevice {
    ToDevice::NewKey(NewKey::from(&Key::new(epoch, [secret; 32])))
}

/// Returns the messages without tensors: welcomes, refusals, faults, acknowledgements, requests for chunks.
fn small_messages() -> Vec<Vec<u8>> {
    let welcome = |campaign| ToDevice::Welcome(Welcome { campaign, idle_milliseconds: 5_000 });
    let mut messages = vec![
        welcome(3),
        welcome(4),
        ToDevice::Refused(Refusal::UnknownDevice),
        ToDevice::RetryAfter { milliseconds: 100 },
        ToDevice::RetryAfter { milliseconds: u32::MAX },
        ToDevice::Fault(Fault::Malformed),
        ToDevice::Fault(Fault::Greet),
    ];
    for round in 1..=3 {
        let id = RoundId { round, stage: 0 };
        let rejected = AckOutcome::Rejected(Rejection::NormOverBound { norm: 2.0, bound: 1.0 });
        for outcome in [AckOutcome::Counted, AckOutcome::Duplicate, AckOutcome::Late, rejected] {
            messages.push(ToDevice::Ack(Ack { id, outcome }));
        }
        messages.push(ToDevice::RoundClosed(id));
        for chunks in [vec![0], vec![1, 2, 3], vec![2, 200, 3]] {
            let chunks = chunks.into_iter().collect();
            messages.push(ToDevice::Missing(Missing { id, tensor: 0, chunks }));
        }
    }
    messages.extend([100, u32::MAX].map(|milliseconds| ToDevice::NextRound { milliseconds }));
    let tag = [7; BEACON_TAG];
    messages
        .extend((1..=2).map(|round| ToDevice::Announced(Announced { id: RoundId { round, stage: 0 }, tag })));
    messages.iter().map(|message| payload(message, &[])).collect()
}

/// Returns the messages of a round of the linear model. Over all indices: rounds 1 and 2, and round 1 again with other numbers,
/// for every task of a linear model, inline and in chunks.
fn linear_round(kind: Kind, index: usize) -> Vec<Vec<u8>> {
    let encoding = [Encoding::F32, Encoding::I8][index / 4 % 2];
    let (exact, gradient) =
        (HeadSolve::LeastSquares { ridge: 0.0 }, HeadSolve::Gradient { steps: 3, step_size: 0.1 });
    let upload_encoding = match encoding {
        Encoding::I8 if kind.has_error_feedback => Encoding::I8TopK,
        _ => encoding,
    };
    let fed_rep = |head, upload| Task::FedRep { step_size: 0.1, head, upload, encoding: upload_encoding };
    // The last rounds have more iterations than a device with noise allows.
    let power = Task::FedPower {
        iterations: if index < 40 { 1 + (index % 3) as u16 } else { 9 },
        rows: [PowerRows::Features, PowerRows::Weighted][index / 4 % 2],
        upload: [PowerUpload::Product, PowerUpload::ProductAndBasis, PowerUpload::Basis][index % 3],
        encoding: upload_encoding,
    };
    let task = match index / 8 {
        2.. if kind.has_power && index >= POWER_ROUND => power,
        0 => fed_rep(exact, Upload::Gradient),
        1 if index.is_multiple_of(2) => fed_rep(gradient, Upload::Representation),
        1 => Task::FitHead { head: exact },
        2 => Task::FedAvg { step_size: 0.1, head_step_size: 0.1, local_steps: 2, encoding },
        3 if index.is_multiple_of(2) => Task::PowerStart,
        3 if kind.is_scaled => Task::FeatureSums { first: 1, count: 1 + (index % 12) as u16 },
        3 => Task::MomentRows { first: 1, count: 2 },
        4 => Task::AdapterUp { head: exact, encoding },
        _ => Task::AdapterDown { step_size: 0.1, encoding },
    };
    let (round, seed) = [(1, 1), (2, 2), (1, 3), (2, 2)][index % 4];
    let mut representation: Vec<f32> = {
        let mut random = Random(seed);
        (0..D * K).map(|_| random.unit()).collect()
    };
    orthonormalise(&mut representation, K).expect("random columns are independent");
    let matrix =
        |role| (TensorDescriptor::inline(role, encoding, D as u16, K as u16), representation.clone());
    let head = (TensorDescriptor::inline(Role::SharedHead, encoding, K as u16, 1), vec![0.5; K]);
    let up = (TensorDescriptor::inline(Role::AdapterUp, encoding, K as u16, 1), vec![0.25; K]);
    let mut tensors = match task {
        Task::FedAvg { .. } => vec![matrix(Role::Representation), head],
        Task::PowerStart | Task::FedPower { .. } => vec![matrix(Role::Subspace)],
        Task::MomentRows { .. } | Task::FeatureSums { .. } => vec![],
        // Some rounds lack a tensor that a device may still hold from the previous round.
        Task::AdapterUp { .. } if index % 4 == 1 => vec![],
        Task::AdapterUp { .. } => vec![matrix(Role::AdapterDown)],
        Task::AdapterDown { .. } if index % 4 == 1 => vec![up],
        Task::AdapterDown { .. } => vec![matrix(Role::AdapterDown), up],
        _ => vec![matrix(Role::Representation)],
    };
    tensors.extend(scale_of_round(kind, index, D).filter(|_| !tensors.is_empty()));
    encode_opening(RoundId { round, stage: 0 }, task, &tensors, if index % 4 == 3 { 4096 } else { 128 })
}

/// Returns the scale of a round of a scaled campaign: one of two scales, an invalid one, or none.
fn scale_of_round(kind: Kind, index: usize, features: usize) -> Option<(TensorDescriptor, Vec<f32>)> {
    let factor = [0.5, 2.0, 0.5, 0.0][index / 2 % 4];
    let values = [0.25, factor].into_iter().flat_map(|value| std::iter::repeat_n(value, features)).collect();
    let descriptor = TensorDescriptor::inline(Role::Scale, Encoding::F32, 2, features as u16);
    (kind.is_scaled && index % 5 != 4).then_some((descriptor, values))
}

/// Returns the messages of a round that trains a network: like [`linear_round`], for every set of shared layers.
fn network_round(kind: Kind, index: usize) -> Vec<Vec<u8>> {
    let shape = shape_of(kind.model);
    let (layers, head) = (shape.layers(), shape.layers() - 1);
    let encoding = [Encoding::F32, Encoding::I8, Encoding::F16][index / 4 % 3];
    let momentum = if index.is_multiple_of(8) { 0.5 } else { 0.0 };
    // In some rounds the loss becomes infinite.
    let step_size = if index % 7 == 3 { 1e30 } else { 0.1 };
    let descent = Descent { step_size, momentum, batch: 2 };
    let sgd = |trained| Task::Sgd { descent, head_epochs: 1, epochs: 2, trained, encoding };
    let fit = |epochs| Task::FitHead { head: HeadSolve::Sgd { epochs, descent } };
    let (task, shared) = match (index / 12, shape.is_adapted()) {
        (0, true) => (sgd(Trained::Shared), 0..2),
        (1, true) => (sgd(Trained::Down), 0..1),
        (2, true) => (sgd(Trained::Up), if index.is_multiple_of(3) { 0..2 } else { 1..2 }),
        (0, false) => (sgd(Trained::Shared), 0..head),
        (1, false) => (sgd(Trained::All), 0..if index.is_multiple_of(3) { head } else { layers }),
        // Some rounds lack layers that a device may still hold from the previous round.
        (2, false) => (sgd(Trained::Shared), if index.is_multiple_of(3) { 0..0 } else { head..layers }),
        (_, is_adapted) => {
            let epochs = if index.is_multiple_of(2) { UNTIL_PLATEAU } else { 3 };
            (fit(epochs), 0..if is_adapted { 2 } else { head })
        }
    };
    let (round, seed) = [(1, 1), (2, 2), (1, 3), (2, 2)][index % 4];
    let mut random = Random(seed);
    let mut tensors: Vec<(TensorDescriptor, Vec<f32>)> = shared
        .clone()
        .map(|layer| {
            let role = match (shape.is_adapted(), layer) {
                (true, 0) => Role::AdapterDown,
                (true, _) => Role::AdapterUp,
                _ if layer == head || shared.start > 0 => Role::SharedHead,
                _ => Role::Representation,
            };
            let (rows, columns) = (shape.layer(layer).rows(), shape.layer(layer).matrix().1);
            let descriptor = TensorDescriptor::inline(role, encoding, rows as u16, columns as u16);
            (descriptor, (0..rows * columns).map(|_| random.unit()).collect())
        })
        .collect();
    tensors.extend(scale_of_round(kind, index, shape.features));
    encode_opening(RoundId { round, stage: 0 }, task, &tensors, if index % 4 == 3 { 4096 } else { 128 })
}

/// Returns the messages of a round of heads with a learned prior, of the linear model or of the last layer of a network: all tasks, with
/// and without a mean and a metric; in some rounds variances or numbers are impossible.
fn prior_round(kind: Kind, index: usize) -> Vec<Vec<u8>> {
    let is_network = kind.model == PRIOR_NETWORK;
    let step = index / if is_network { 2 } else { 1 };
    let noise = if step % 11 == 7 { -1.0 } else { 0.25 };
    let grid = |first, count| GeometricGrid { first, factor: 2.0, count };
    let task = match step % 5 {
        0 => Task::FitHead { head: HeadSolve::Prior { noise } },
        1 => Task::PooledMoments,
        2 => Task::HeadMoments { noise },
        3 => Task::PriorEvidence { spans: grid(0.5, 2), floors: grid(0.25, 1 + (step % 20) as u8), draws: 1 },
        _ => Task::NewcomerGradient { labels: 1, draws: (step % 3) as u8, first: step as u32 },
    };
    let network = shape_of(PRIOR_NETWORK);
    let head = network.layers() - 1;
    let (d, k, c) = if is_network {
        let inputs = network.layer(head).inputs();
        (inputs + 1, network.outputs.min(inputs), network.outputs)
    } else {
        (PRIOR_SHAPE.features, PRIOR_SHAPE.width, PRIOR_SHAPE.outputs)
    };
    let (round, seed) = [(1, 1), (2, 2), (1, 3), (2, 2)][index % 4];
    let mut random = Random(seed);
    let mut basis: Vec<f32> = (0..d * k).map(|_| random.unit()).collect();
    orthonormalise(&mut basis, k).expect("random columns are independent");
    let mean: Vec<f32> = (0..d * c).map(|_| random.unit()).collect();
    // In some rounds the floor is zero, or the metric is not positive.
    let floor = if step % 7 == 5 { 0.0 } else { 0.5 };
    let variances: Vec<f32> = std::iter::repeat_n(2.0, k).chain([floor]).collect();
    let diagonal = if step % 13 == 6 { -1.0 } else { 1.0 };
    let metric: Vec<f32> =
        (0..d).flat_map(|i| (0..=i).map(move |j| if i == j { diagonal } else { 0.1 })).collect();
    let tensor = |role, rows: usize, cols: usize, values: Vec<f32>| {
        (TensorDescriptor::inline(role, Encoding::F32, rows as u16, cols as u16), values)
    };
    let (has_mean, has_metric) = (step.is_multiple_of(2), step % 3 == 1);
    let mut tensors = Vec::new();
    if is_network {
        for layer in 0..head {
            let (rows, columns) = (network.layer(layer).rows(), network.layer(layer).matrix().1);
            let values = (0..rows * columns).map(|_| random.unit()).collect();
            tensors.push(tensor(Role::Representation, rows, columns, values));
        }
        if task != Task::PooledMoments {
            let metric = if has_metric { metric } else { Vec::new() };
            let values = [basis, mean, variances, metric].concat();
            tensors.push(tensor(Role::HeadPrior, 1, values.len(), values));
        }
    } else if task != Task::PooledMoments {
        tensors.push(tensor(Role::Representation, d, k, basis));
        if has_mean {
            tensors.push(tensor(Role::PriorMean, d, c, mean));
        }
        if has_metric {
            tensors.push(tensor(Role::SecondMoments, 1, d * (d + 1) / 2, metric));
        }
        tensors.push(tensor(Role::PriorVariances, 1, k + 1, variances));
    }
    let features = if is_network { network.features } else { d };
    tensors.extend(scale_of_round(kind, index, features));
    encode_opening(RoundId { round, stage: 0 }, task, &tensors, if index % 4 == 3 { 4096 } else { 128 })
}

/// Encodes the opening of a round. Tensors that do not fit a frame of `limit` bytes follow in chunks.
fn encode_opening(
    id: RoundId,
    task: Task,
    tensors: &[(TensorDescriptor, Vec<f32>)],
    limit: usize,
) -> Vec<Vec<u8>> {
    let mut descriptors: Descriptors = tensors.iter().map(|(descriptor, _)| *descriptor).collect();
    plan(&mut descriptors, limit).expect("fits");
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(descriptor, values)| {
            let mut bytes = vec![0; descriptor.byte_len()];
            descriptor.encoding.encode(values, &mut bytes).expect("finite");
            bytes
        })
        .collect();
    let inline = descriptors.iter().all(|descriptor| descriptor.chunk == 0);
    let open = RoundOpen { id, task, tensors: descriptors.clone() };
    let body = if inline { bytes.concat() } else { Vec::new() };
    let mut messages = vec![payload(&ToDevice::RoundOpen(open), &body)];
    for (tensor, (descriptor, bytes)) in descriptors.iter().zip(&bytes).enumerate() {
        for index in 0..descriptor.chunks() {
            let range = descriptor.chunk_range(index).expect("a chunk below the count");
            let first = descriptor.encoding.byte_len(range.start);
            let body = &bytes[first..first + descriptor.encoding.byte_len(range.len())];
            let chunk = Chunk { id, tensor: tensor as u8, offset: range.start as u32 };
            messages.push(payload(&ToDevice::Chunk(chunk), body));
        }
    }
    messages
}
