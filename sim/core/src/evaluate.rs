//! Scoring of models: the metrics in result files, and baselines that are computed without training rounds.

mod baselines;
mod predictions;
pub mod ridge;

use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::memory::{NetworkShape, Shape};
use fedspan_client::source::Targets;
use fedspan_client::task::{LearnedPrior, PriorNetwork};
use fedspan_client::{Linear, Mechanism, NotReady, Recording, Task};
use fedspan_engine::Tensor;
use fedspan_engine::algorithm::Scale;
use fedspan_engine::algorithm::decoded_representation;
use fedspan_engine::linalg::{Matrix, from_f32, orthonormal, principal_angle_distance, to_f32};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{DeclineReason, HeadSolve, Numeric};
use fedspan_protocol::tensor::Encoding;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use baselines::{local_only, pooled, pooled_with_dropped};
pub use predictions::Predictions;

use crate::data::scaled::scaled_client;
use crate::data::{Client, Dataset, Labels, Set, shape_of};
use crate::fleet::{FleetArithmetic, HeapWorkspace, SimDevice, SimTask};
use crate::least_squares::DroppedDirections;
use crate::network::{self, HeapNetwork, SimNetwork};

/// Metrics of one model on one data set. Metrics that do not apply are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Sine of the largest principal angle between the representation and the true representation.
    pub distance: Option<f64>,
    /// Loss `1/(2m) |residual|^2` on training data with refitted heads, averaged over clients.
    pub loss: Option<f64>,
    /// Accuracy of each client's personal model on the client's test set, averaged over clients.
    pub accuracy: Option<f64>,
    /// Accuracy of the shared model on each client's test set, averaged over clients.
    pub accuracy_global: Option<f64>,
    /// Mean squared error of personal models on test data, averaged over clients.
    pub test_mse: Option<f64>,
    /// Accuracy of clients that would join now and fit a head, averaged over these clients. After rounds only.
    pub accuracy_new_clients: Option<f64>,
    /// Mean squared error of clients that would join now and fit a head, averaged over these clients. After rounds only.
    pub test_mse_new_clients: Option<f64>,
}

impl Scores {
    /// The same metrics without those of new clients.
    #[must_use]
    pub fn without_new_clients(self) -> Self {
        Self { accuracy_new_clients: None, test_mse_new_clients: None, ..self }
    }
}

/// Selection of the metrics that a run computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricSet {
    /// Every metric that applies.
    #[default]
    All,
    /// Only the distance. No heads are fitted, which would take about as long as a round of all clients.
    Distance,
}

/// Scores of a client's personal model, with the head of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientScore {
    /// Head, k x C, or d x C for baselines on all features; row-major.
    pub head: Vec<f64>,
    /// `1/(2m) |residual|^2` on training data; NaN if no head could be fitted on the samples.
    pub loss: f64,
    /// Accuracy on the client's test set; `None` without a test set, or for regression.
    pub accuracy: Option<f64>,
    /// Mean squared error on the client's test set; `None` without a test set, or for classification.
    pub test_mse: Option<f64>,
    /// Directions of the features that the least-squares fit dropped.
    pub dropped: DroppedDirections,
    /// True if the client's samples determine no head and it has no solver for that ([`FleetArithmetic`]). Its head is zero.
    pub undetermined: bool,
    /// Predictions for the client's test set; `None` without a test set.
    pub predictions: Option<Box<Predictions>>,
    /// CRC-32C of the parameters of all layers; `None` if the model is not a network.
    pub parameters: Option<u32>,
}

/// Fits a head on the representation `b` (d x k, row-major) for each client and scores the personal model, in
/// the arithmetic of the devices. Clients are processed in parallel; results are in the order of `clients`.
#[must_use]
pub fn personal(
    clients: &[Client],
    b: &[f32],
    shape: Shape,
    head: HeadSolve,
    arithmetic: FleetArithmetic,
) -> Vec<ClientScore> {
    clients
        .par_iter()
        .enumerate()
        .map_init(
            || None,
            |last, (index, client)| {
                let numeric = arithmetic.numeric_of(index as u64);
                let new_model =
                    || (numeric, arithmetic.with_solver(Linear::new(HeapWorkspace::new(shape, numeric))));
                // Memory is kept for the next client with the same arithmetic.
                let (_, model) = match last {
                    Some((of_last, _)) if *of_last != numeric => last.insert(new_model()),
                    _ => last.get_or_insert_with(new_model),
                };
                let _ = model.set_representation(b);
                // If the client has no samples, a head of zeros is scored.
                model.head_mut().fill(0.0);
                let (train, test) = (client.train.load(), client.test.load());
                let fitted = model.fit_head(head, &mut recording(&train, shape));
                let mut score = score_sets(model, &train, &test, shape);
                match fitted {
                    Err(DeclineReason::Undetermined) => score.undetermined = true,
                    Err(_) if !train.is_empty() => score.loss = f64::NAN,
                    _ => {}
                }
                score
            },
        )
        .collect()
}

/// Wraps a set as a replayable sample source.
#[must_use]
pub fn recording(set: &Set, shape: Shape) -> Recording<'_> {
    match &set.y {
        Labels::Values { values: y, .. } | Labels::Absent(y) => {
            Recording::regression(&set.x, y, shape.features, shape.outputs)
        }
        Labels::Classes(y) => Recording::classification(&set.x, y, shape.features),
    }
}

/// Scores a model with a fitted head on one client.
#[must_use]
pub fn score<P: Mechanism>(
    model: &mut Linear<HeapWorkspace, P>,
    client: &Client,
    shape: Shape,
) -> ClientScore {
    score_sets(model, &client.train.load(), &client.test.load(), shape)
}

/// Linear model with a head, as a device has it.
trait Predict: Task {
    /// Computes the prediction for one sample.
    fn predict_one(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady>;

    /// Whether the device declines samples that determine no head.
    fn declines_undetermined(&self) -> bool {
        false
    }
}

impl<P: Mechanism> Predict for Linear<HeapWorkspace, P> {
    fn predict_one(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.predict(x, out)
    }

    fn declines_undetermined(&self) -> bool {
        self.solves_normal_equations_only()
    }
}

impl Predict for LearnedPrior<Vec<f32>> {
    fn predict_one(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.predict(x, out)
    }
}

impl Predict for PriorNetwork<HeapNetwork, Vec<f32>> {
    fn predict_one(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.predict(x, out)
    }
}

/// Scores a model with a fitted head on training and test samples.
fn score_sets(model: &mut impl Predict, train_set: &Set, test_set: &Set, shape: Shape) -> ClientScore {
    let mut predictions = Predictions::of(test_set);
    let train = errors(model, train_set, shape, |_| {});
    let test = errors(model, test_set, shape, |out| predictions.push(&test_set.y, out));
    let classification = matches!(test_set.y, Labels::Classes(_));
    #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
    let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
    let loss = mean(train.squares, train_set.len()).unwrap_or(0.0) / 2.0;
    let undetermined = train.has_no_head && model.declines_undetermined();
    let head =
        model.head().iter().map(|weight| if undetermined { 0.0 } else { f64::from(*weight) }).collect();
    ClientScore {
        head,
        loss: if train.failed_prediction && !undetermined { f64::NAN } else { loss },
        #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
        accuracy: if classification { mean(test.correct as f64, test_set.len()) } else { None },
        test_mse: if classification { None } else { mean(test.squares, test_set.len()) },
        dropped: DroppedDirections::default(),
        undetermined,
        predictions: predictions.boxed(),
        parameters: None,
    }
}

/// Scores the current model of a device, with the head that the device has fitted, on the samples of its
/// client.
#[must_use]
pub fn score_device(task: &mut SimTask, client: &Client, shape: Shape) -> ClientScore {
    match task {
        SimTask::Linear(model) => score(model, client, shape),
        SimTask::Network(network) => score_network(network, network.own(), client),
        SimTask::LearnedPrior(model) => score_sets(model, &client.train.load(), &client.test.load(), shape),
        SimTask::PriorNetwork(model) => score_sets(model, &client.train.load(), &client.test.load(), shape),
        SimTask::Scaled(scaled) => {
            let scale = scaled.scale().and_then(|scale| {
                let (shift, factor) = scale.split_at_checked(shape.features)?;
                Scale::new(shift.to_vec(), factor.to_vec())
            });
            let scaled_samples = scale.map(|scale| scaled_client(client, &scale));
            score_device(scaled.task_mut(), scaled_samples.as_ref().unwrap_or(client), shape)
        }
        SimTask::ErrorFeedback(feedback) => score_device(feedback.task_mut(), client, shape),
    }
}

/// Scores a network on the samples of a client. `device` gives the shape of the network, and `parameters` its
/// weights.
#[must_use]
pub fn score_network(device: &SimNetwork, parameters: &[f32], client: &Client) -> ClientScore {
    score_parameters(device.shape(), device.frozen(), parameters, client)
}

/// Scores one network, without an adapter, on the samples of all clients.
#[must_use]
pub fn shared_network(shape: NetworkShape, parameters: &[f32], clients: &[Client]) -> Scores {
    let score = |client| score_parameters(shape, Frozen::Nothing, parameters, client);
    average(&clients.par_iter().map(score).collect::<Vec<_>>())
}

fn score_parameters(
    shape: NetworkShape,
    frozen: Frozen<'_>,
    parameters: &[f32],
    client: &Client,
) -> ClientScore {
    let train = network::errors(shape, frozen, parameters, &client.train);
    let test = network::errors(shape, frozen, parameters, &client.test);
    #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
    let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
    let head = shape.range(shape.layers() - 1..shape.layers());
    ClientScore {
        head: parameters.get(head).unwrap_or_default().iter().map(|weight| f64::from(*weight)).collect(),
        loss: mean(train.loss, train.count).unwrap_or(0.0),
        #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
        accuracy: mean(test.correct as f64, test.count),
        test_mse: None,
        dropped: DroppedDirections::default(),
        undetermined: false,
        predictions: test.predictions.boxed(),
        parameters: Some(crc32c_f32(parameters)),
    }
}

/// Scores every client with the network of its device, in which `shared` replaces the shared layers. `tuning`
/// is a head solver and a round: if given, the head is first trained with this solver, in the sample order of
/// this round. Clients are processed in parallel; results are in the order of `clients`.
#[must_use]
pub fn score_shared_layers(
    clients: &[Client],
    devices: &[&SimDevice],
    shared: &[Tensor],
    tuning: Option<(HeadSolve, u32)>,
) -> Vec<ClientScore> {
    let score_client = |(device, client): (&&SimDevice, &Client)| match device.session.task().model() {
        SimTask::Network(network) => {
            let scored = network.scored(shared, &client.train);
            let scored = match tuning {
                Some((head, round)) => network.fine_tuned(scored, &client.train, head, round),
                None => scored,
            };
            score_network(network, &scored, client)
        }
        _ => ClientScore::default(),
    };
    devices.par_iter().zip(clients).map(score_client).collect()
}

/// Scores every client with the current network of its device. Clients are processed in parallel; results are
/// in the order of `clients`.
#[must_use]
pub fn score_own_networks(clients: &[Client], devices: &[&SimDevice]) -> Vec<ClientScore> {
    let score_client = |(device, client): (&&SimDevice, &Client)| match device.session.task().model() {
        SimTask::Network(network) => score_network(network, network.own(), client),
        _ => ClientScore::default(),
    };
    devices.par_iter().zip(clients).map(score_client).collect()
}

/// Sum of the squared errors of all outputs on a set, and number of correct predictions.
struct Errors {
    squares: f64,
    correct: usize,
    /// True if the model failed to predict a sample.
    failed_prediction: bool,
    /// True if it failed because it has no head.
    has_no_head: bool,
}

/// Computes the errors of a model on a set in f32, with the arithmetic of devices. Calls `each` with the outputs for each sample.
fn errors(model: &mut impl Predict, set: &Set, shape: Shape, mut each: impl FnMut(&[f32])) -> Errors {
    let mut total = Errors { squares: 0.0, correct: 0, failed_prediction: false, has_no_head: false };
    let mut out = vec![0.0f32; shape.outputs];
    let samples = set.samples();
    for (index, x) in samples.x.chunks_exact(shape.features.max(1)).enumerate() {
        if let Err(reason) = model.predict_one(x, &mut out) {
            out.fill(0.0);
            total.failed_prediction = true;
            total.has_no_head |= reason == NotReady::NoHead;
        }
        each(&out);
        match samples.targets {
            Targets::Values(y) => {
                let expected = y.get(index * shape.outputs..(index + 1) * shape.outputs).unwrap_or_default();
                total.squares +=
                    out.iter().zip(expected).map(|(a, b)| f64::from(a - b) * f64::from(a - b)).sum::<f64>();
            }
            Targets::Classes(classes) => {
                let class = classes.get(index).map_or(usize::MAX, |&class| usize::from(class));
                total.correct += usize::from(largest(&out) == class);
                for (output, value) in out.iter().enumerate() {
                    let error = f64::from(*value) - f64::from(u8::from(output == class));
                    total.squares += error * error;
                }
            }
        }
    }
    total
}

/// Index of the largest value; the first index if several values are equal.
#[must_use]
pub fn largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values.get(best).copied().unwrap_or(f32::NEG_INFINITY) {
            best = index;
        }
    }
    best
}

/// Mean accuracy over the tenth of the clients with the lowest accuracy, which is at least one client.
#[must_use]
pub fn worst_decile(clients: &[ClientScore]) -> Option<f64> {
    let mut accuracies: Vec<f64> = clients.iter().filter_map(|client| client.accuracy).collect();
    accuracies.sort_by(f64::total_cmp);
    let count = (accuracies.len() / 10).max(1);
    mean(accuracies.into_iter().take(count).map(Some))
}

/// Averages the scores of clients. Clients are summed in order.
#[must_use]
pub fn average(clients: &[ClientScore]) -> Scores {
    Scores {
        loss: mean(clients.iter().map(|c| Some(c.loss))),
        accuracy: mean(clients.iter().map(|c| c.accuracy)),
        test_mse: mean(clients.iter().map(|c| c.test_mse)),
        ..Scores::default()
    }
}

fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (sum, count) = values.flatten().fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// Computes the metrics of a representation on a data set, and the scores of the clients. If the data set has
/// no targets, only the distance is computed and no head is fitted. Clients fit heads on the representation that devices decode from
/// `download`; the distance is that of the server's.
#[must_use]
pub fn representation(
    dataset: &Dataset,
    b: &Matrix,
    download: Encoding,
    head: HeadSolve,
    arithmetic: FleetArithmetic,
) -> (Scores, Vec<ClientScore>) {
    if !dataset.has_targets() {
        return (distance(dataset, b), Vec::new());
    }
    let basis = orthonormal(b).unwrap_or_else(|_| b.clone());
    let on_devices = decoded_representation(&basis, download).values;
    let clients = personal(&dataset.clients, &on_devices, shape_of(dataset, b.ncols()), head, arithmetic);
    let mut scores = average(&clients);
    scores.distance = distance_of(dataset, &basis);
    (scores, clients)
}

/// Computes the distance of a representation from the true representation, as the only metric.
#[must_use]
pub fn distance(dataset: &Dataset, b: &Matrix) -> Scores {
    let basis = orthonormal(b).unwrap_or_else(|_| b.clone());
    Scores { distance: distance_of(dataset, &basis), ..Scores::default() }
}

fn distance_of(dataset: &Dataset, basis: &Matrix) -> Option<f64> {
    dataset.truth.as_ref().map(|truth| principal_angle_distance(basis, truth))
}

/// Returns a matrix as devices decode it.
#[must_use]
pub fn decoded(matrix: &Matrix, encoding: Encoding) -> Matrix {
    if encoding == Encoding::F32 {
        return matrix.clone();
    }
    let mut values = to_f32(matrix);
    let mut bytes = vec![0; encoding.byte_len(values.len())];
    // The lengths agree, so only values that are not finite fail here; they stay as they are.
    if encoding.encode(&values, &mut bytes).is_ok() {
        let _ = encoding.decode(&bytes, &mut values);
    }
    from_f32(matrix.nrows(), matrix.ncols(), &values)
}

/// Computes the metrics of a shared model `(b, w)` on the test sets of all clients. If the data set has no
/// targets, the metrics are empty.
#[must_use]
pub fn shared(clients: &[Client], b: &Matrix, w: &Matrix) -> Scores {
    let combined =
        Matrix::from_fn(b.nrows(), w.ncols(), |i, c| (0..b.ncols()).map(|j| b[(i, j)] * w[(j, c)]).sum());
    score_raw_features(clients, &to_f32(&combined), w.ncols())
}

/// Computes the metrics of a shared head on the raw features (d x C, row-major).
fn score_raw_features(clients: &[Client], w: &[f32], outputs: usize) -> Scores {
    if !clients.iter().any(|client| client.train.has_targets()) {
        return Scores::default();
    }
    let d = w.len() / outputs.max(1);
    let shape = Shape { features: d, width: outputs, outputs };
    // Uses W as the representation and the identity as the head, which gives the same predictions.
    let identity = to_f32(&Matrix::identity(outputs, outputs));
    let scores: Vec<ClientScore> = clients
        .par_iter()
        .map_init(
            || Linear::new(HeapWorkspace::new(shape, Numeric::F32)),
            |model, client| {
                let _ = model.set_representation(w);
                model.head_mut().copy_from_slice(&identity);
                model.restore_head(fedspan_client::task::representation_hash(w));
                score(model, client, shape)
            },
        )
        .collect();
    average(&scores)
}

/// Converts the device's f32 values to a d x k matrix.
#[must_use]
pub fn matrix(shape: Shape, values: &[f32]) -> Matrix {
    from_f32(shape.features, shape.width, values)
}
