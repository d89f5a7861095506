//! Tests of the server side of heads with a learned prior, with devices that compute their replies in f64 from the definitions of the
//! wire protocol (SPEC.md, "A prior of heads").
#![allow(clippy::indexing_slicing, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use fedspan_engine::aggregate::{Rule, UpdateWeight};
use fedspan_engine::algorithm::{Algorithm, HeadPrior, LearnedPrior, LearnedPriorSettings, random_start};
use fedspan_engine::linalg::Matrix;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_engine::{DeviceId, Request, Tensor};
use fedspan_protocol::message::{GeometricGrid, HeadSolve, Task};
use fedspan_protocol::tensor::Role;
use proptest::prelude::*;

/// Samples of one device: features m x d, and targets m x C.
struct Device {
    x: Matrix,
    y: Matrix,
    /// Whether targets are classes, so that the device can be a newcomer: samples are sorted by class, the same number of each.
    has_classes: bool,
}

/// Prior that a device has received.
struct Received {
    basis: Matrix,
    mean: Matrix,
    metric: Matrix,
    variances: Vec<f64>,
}

fn matrix(tensor: &Tensor) -> Matrix {
    Matrix::from_row_iterator(
        tensor.rows.into(),
        tensor.cols.into(),
        tensor.values.iter().map(|v| f64::from(*v)),
    )
}

fn with_role(request: &Request, role: Role) -> Option<&Tensor> {
    request.tensors.iter().find(|tensor| tensor.role == role)
}

impl Received {
    fn from_request(request: &Request, d: usize, c: usize) -> Self {
        let basis = matrix(with_role(request, Role::Representation).unwrap());
        let mean = with_role(request, Role::PriorMean).map_or_else(|| Matrix::zeros(d, c), matrix);
        let metric = with_role(request, Role::SecondMoments).map_or_else(
            || Matrix::identity(d, d),
            |packed| {
                Matrix::from_fn(d, d, |i, j| {
                    let (row, column) = (i.max(j), i.min(j));
                    f64::from(packed.values[row * (row + 1) / 2 + column])
                })
            },
        );
        let variances = with_role(request, Role::PriorVariances).unwrap().values.iter();
        Self { basis, mean, metric, variances: variances.map(|v| f64::from(*v)).collect() }
    }

    /// Inverse covariance of a column of a head, in units of the noise's variance.
    fn precision(&self, span: f64, floor: f64) -> Matrix {
        let k = self.basis.ncols();
        let f = floor * self.variances[k];
        let mut precision = &self.metric / f;
        for j in 0..k {
            let a = span * self.variances[j];
            let q = self.basis.column(j);
            precision -= q * q.transpose() * (a / (f * (a + f)));
        }
        precision
    }
}

/// Newcomer that a device simulates: its head on one sample of each class, and the residuals of the others.
struct Newcomer {
    inverse: Matrix,
    e: Matrix,
    x: Matrix,
    residuals: Matrix,
}

impl Device {
    /// Newcomer that labels the sample of number `draw` of each class.
    fn newcomer(&self, prior: &Received, (span, floor): (f32, f32), draw: u32) -> Newcomer {
        let per_class = self.x.nrows() / self.y.ncols();
        let is_labelled = |row: &usize| row % per_class == draw as usize % per_class;
        let rows = 0..self.x.nrows();
        let (labelled, others): (Vec<usize>, Vec<usize>) = rows.partition(is_labelled);
        let (x, y) = (self.x.select_rows(&labelled), self.y.select_rows(&labelled));
        let precision = prior.precision(span.into(), floor.into());
        let inverse = (x.transpose() * &x + precision).try_inverse().unwrap();
        let e = &inverse * x.transpose() * (y - &x * &prior.mean);
        let (x, y) = (self.x.select_rows(&others), self.y.select_rows(&others));
        let residuals = y - &x * (&prior.mean + &e);
        Newcomer { inverse, e, x, residuals }
    }

    /// Fraction of correct predictions of a newcomer; 0 without classes.
    fn score(&self, prior: &Received, grid_point: (f32, f32)) -> f64 {
        if !self.has_classes {
            return 0.0;
        }
        let Newcomer { x, e, .. } = self.newcomer(prior, grid_point, 0);
        let (outputs, per_class) = (&x * (&prior.mean + e), self.x.nrows() / self.y.ncols());
        let correct = (0..x.nrows())
            .filter(|row| outputs.row(*row).transpose().imax() == row / (per_class - 1))
            .count();
        correct as f64 / x.nrows() as f64
    }

    /// Reply to a request: the number of samples, and the tensors.
    fn reply(&self, request: &Request) -> (u32, Vec<Tensor>) {
        let (m, d, c) = (self.x.nrows(), self.x.ncols(), self.y.ncols());
        let moments = self.x.transpose() * &self.x;
        let values = match request.task {
            Task::PooledMoments => {
                let squares: Vec<f64> = (0..d)
                    .flat_map(|i| (0..=i).map(move |j| (i, j)))
                    .map(|ij| moments[ij] / m as f64)
                    .collect();
                let products = (self.x.transpose() * &self.y).transpose() / m as f64;
                vec![squares, products.iter().copied().collect()]
            }
            Task::HeadMoments { noise } => {
                let prior = Received::from_request(request, d, c);
                let precision = prior.precision(1.0, 1.0);
                let inverse = (&moments + &precision).try_inverse().unwrap();
                let residuals = &self.y - &self.x * &prior.mean;
                let e = &inverse * self.x.transpose() * &residuals;
                let second = &e * e.transpose() / c as f64 + &inverse * f64::from(noise);
                let sent = (&second * &prior.basis).transpose();
                let distance = (&precision * &second).trace();
                let left = (&residuals - &self.x * &e).norm_squared()
                    + c as f64 * f64::from(noise) * (&moments * &inverse).trace();
                vec![sent.iter().copied().collect(), vec![distance, left, m as f64]]
            }
            Task::PriorEvidence { spans, floors, .. } => {
                let prior = Received::from_request(request, d, c);
                let residuals = &self.y - &self.x * &prior.mean;
                let mut values = Vec::new();
                for span in spans.values() {
                    for floor in floors.values() {
                        let inner = &moments + prior.precision(span.into(), floor.into());
                        let factor = inner.cholesky().unwrap();
                        let products = self.x.transpose() * &residuals;
                        let explained = products.dot(&factor.solve(&products));
                        let log: f64 = factor.l().diagonal().iter().map(|v| 2.0 * v.ln()).sum();
                        let residuals = (residuals.norm_squared() - explained).max(0.0);
                        values.extend([residuals, log, self.score(&prior, (span, floor))]);
                    }
                }
                values.extend([m as f64, if self.has_classes { (m - c) as f64 } else { 0.0 }]);
                vec![values]
            }
            Task::NewcomerGradient { labels: 1, draws, first } => {
                let prior = Received::from_request(request, d, c);
                let (mut products, mut error, mut samples) = (Matrix::zeros(d, prior.basis.ncols()), 0.0, 0);
                for draw in first..first + u32::from(draws) {
                    let Newcomer { inverse, e, x, residuals } = self.newcomer(&prior, (1.0, 1.0), draw);
                    let targets = residuals.len() as f64 * f64::from(draws);
                    let h = &inverse * x.transpose() * &residuals / -targets;
                    products += (&e * h.transpose() + &h * e.transpose()) * &prior.basis;
                    error += residuals.norm_squared() / targets;
                    samples = x.nrows();
                }
                vec![products.transpose().iter().copied().collect(), vec![error, samples as f64]]
            }
            _ => Vec::new(),
        };
        let tensors = request.expects.iter().zip(values).map(|(descriptor, values)| Tensor {
            role: descriptor.role,
            rows: descriptor.rows,
            cols: descriptor.cols,
            values: values.into_iter().map(|v| v as f32).collect(),
        });
        (m as u32, tensors.collect())
    }
}

fn normal_matrix(rows: usize, cols: usize, random: &mut Stream) -> Matrix {
    Matrix::from_fn(rows, cols, |_, _| random.normal())
}

const SETTINGS: LearnedPriorSettings =
    LearnedPriorSettings { second_moments: true, groups: 3, learning_rounds: 4, refining_rounds: 2 };

fn server(settings: LearnedPriorSettings, d: usize, k: usize, outputs: usize) -> LearnedPrior {
    LearnedPrior::new(settings, Rule::MEAN, random_start(d, k, 5), outputs, 0)
}

/// Runs one round with the devices that are asked, in the given order.
fn run_round(server: &mut LearnedPrior, devices: &[Device], order: impl Iterator<Item = usize>) {
    let request = server.request();
    for index in order {
        let id = DeviceId(index as u64);
        if !server.asks(id) {
            continue;
        }
        let (samples, tensors) = devices[index].reply(&request);
        assert!(server.admits(samples, &tensors), "{:?}", request.task);
        server.absorb(id, UpdateWeight::from_samples(samples), &tensors);
    }
    server.finish().unwrap();
}

fn rounds(settings: LearnedPriorSettings) -> u32 {
    use fedspan_engine::algorithm::LinearAlgorithm;
    settings.rounds().unwrap() as u32
}

fn assert_finite(request: &Request) {
    for tensor in &request.tensors {
        assert!(tensor.values.iter().all(|v| v.is_finite()), "{:?}: {:?}", request.task, tensor.role);
    }
    if let Task::FitHead { head: HeadSolve::Prior { noise } } = request.task {
        assert!(noise.is_finite() && noise >= 0.0);
    }
    if let Some(variances) = with_role(request, Role::PriorVariances) {
        assert!(variances.values.iter().all(|v| *v >= 0.0) && *variances.values.last().unwrap() > 0.0);
    }
}

/// Runs the whole campaign, and returns the server and the prior that it publishes.
fn campaign(settings: LearnedPriorSettings, devices: &[Device], k: usize) -> (LearnedPrior, Received) {
    let (d, c) = (devices[0].x.ncols(), devices[0].y.ncols());
    let mut server = server(settings, d, k, c);
    for _ in 0..rounds(settings) {
        run_round(&mut server, devices, 0..devices.len());
        assert_finite(&server.request());
    }
    let fit = server.fit_request(HeadSolve::LeastSquares { ridge: 0.0 });
    assert_finite(&fit);
    let received = Received::from_request(&fit, d, c);
    (server, received)
}

/// Devices whose heads are drawn from N(mean, L L^T + floor I).
fn draw_devices(
    count: usize,
    samples: usize,
    mean: &Matrix,
    l: &Matrix,
    floor: f64,
    noise: f64,
    seed: u64,
) -> Vec<Device> {
    let random = &mut stream(seed, Purpose::Start, 0);
    let (d, c) = mean.shape();
    (0..count)
        .map(|_| {
            let head =
                mean + l * normal_matrix(l.ncols(), c, random) + normal_matrix(d, c, random) * floor.sqrt();
            let x = normal_matrix(samples, d, random);
            let y = &x * head + normal_matrix(samples, c, random) * noise.sqrt();
            Device { x, y, has_classes: false }
        })
        .collect()
}

fn noise_of(server: &LearnedPrior) -> f64 {
    match server.fit_request(HeadSolve::LeastSquares { ridge: 0.0 }).task {
        Task::FitHead { head: HeadSolve::Prior { noise } } => f64::from(noise),
        task => panic!("{task:?}"),
    }
}

/// Covariance of a published prior, in units of the targets.
fn covariance(prior: &Received, noise: f64) -> Matrix {
    prior.precision(1.0, 1.0).try_inverse().unwrap() * noise
}

/// With many devices the covariance and the mean are about those from which the heads were drawn, for several kinds of priors. The
/// covariance and the noise are less exact than the number of devices allows: the published ones are products with factors of a
/// coarse grid.
#[test]
fn many_devices_reveal_the_distribution_of_their_heads() {
    let (d, k) = (8, 2);
    let random = &mut stream(3, Purpose::Start, 0);
    let (noise, floor) = (0.1, 0.01);
    for (kind, outputs, spread, mean_size) in [
        ("mean and low rank", 8, 1.0, 1.0),
        ("low rank", 8, 1.0, 0.0),
        ("mean", 8, 0.0, 1.0),
        ("mean and low rank, one output", 1, 1.0, 1.0),
        ("low rank, one output", 1, 1.0, 0.0),
        ("mean, one output", 1, 0.0, 1.0),
    ] {
        let mean = normal_matrix(d, outputs, random) * mean_size;
        let l = normal_matrix(d, k, random) * spread;
        let devices = draw_devices(400, 12, &mean, &l, floor, noise, 4);
        let settings = LearnedPriorSettings { learning_rounds: 40, ..SETTINGS };
        let (server, prior) = campaign(settings, &devices, k);
        let learned_noise = noise_of(&server);
        assert!((learned_noise / noise - 1.0).abs() < 0.1, "{kind}: noise {learned_noise}");
        let truth = &l * l.transpose() + Matrix::identity(d, d) * floor;
        let error = (covariance(&prior, learned_noise) - &truth).norm() / truth.norm();
        // The standard deviation of a variance of n heads is sqrt(2 / n) of it: 0.025 of 3,200 and 0.07 of 400.
        let allowed = if outputs == 1 { 0.25 } else { 0.1 };
        assert!(error < allowed, "{kind}: {error}");
        let size = 1.0 + mean.norm();
        assert!((&prior.mean - &mean).norm() < 0.15 * size, "{kind}: {}", &prior.mean - &mean);
    }
}

/// Part of the targets of newcomers that lie in the interval which their predictive distribution gives a probability of 0.9. The newcomers' heads
/// and samples are drawn like those of `fleet` devices with `samples` samples, which have learned the prior.
fn coverage(fleet: usize, samples: usize, rank: usize, mean_size: f64, floor: f64, seed: u64) -> f64 {
    let (d, k, noise) = (12, 3, 0.25);
    let random = &mut stream(seed, Purpose::Start, 1);
    let mean = normal_matrix(d, 1, random) * mean_size;
    let l = normal_matrix(d, rank, random);
    let devices = draw_devices(fleet, samples, &mean, &l, floor, noise, seed);
    let settings = LearnedPriorSettings { groups: 4, learning_rounds: 5, ..SETTINGS };
    let (server, prior) = campaign(settings, &devices, k);
    let learned_noise = noise_of(&server);
    let precision = prior.precision(1.0, 1.0);
    let (mut within, mut tested) = (0u32, 0u32);
    for newcomer in draw_devices(60, 60, &mean, &l, floor, noise, seed + 1_000) {
        for labels in [1, 3, 10] {
            let (x, y) = (newcomer.x.rows(0, labels), newcomer.y.rows(0, labels));
            let inverse = (x.transpose() * x + &precision).try_inverse().unwrap();
            let head = &prior.mean + &inverse * x.transpose() * (y - x * &prior.mean);
            for sample in 20..60 {
                let x = newcomer.x.row(sample);
                let variance = learned_noise * (1.0 + (x * &inverse * x.transpose())[(0, 0)]);
                let error = newcomer.y[(sample, 0)] - (x * &head)[(0, 0)];
                // The 0.95 quantile of the normal distribution.
                within += u32::from(error.abs() < 1.644_854 * variance.sqrt());
                tested += 1;
            }
        }
    }
    f64::from(within) / f64::from(tested)
}

/// Intervals of probability 0.9 cover between 0.87 and 0.95 of the targets of newcomers, on average over fleets, for heads of low rank, with and
/// without a mean, around a mean only, and of full rank. Where devices have fewer samples than features and heads low rank, they cover
/// more, up to 0.99: five rounds of learning are few there, and the devices of other groups fit what was learned without them less well.
#[test]
fn intervals_of_predictions_cover_as_much_as_they_say() {
    let kinds = [
        ("low rank", 2, 0.0, 0.001),
        ("mean and low rank", 2, 1.0, 0.01),
        ("mean", 0, 1.0, 0.05),
        ("full rank", 12, 0.0, 0.01),
    ];
    for (kind, rank, mean_size, floor) in kinds {
        for (fleet, samples) in [(100, 60), (100, 6), (12, 60), (10, 5)] {
            let fleets = 8_u64;
            let of_fleet = |seed: u64| coverage(fleet, samples, rank, mean_size, floor, 50 + seed);
            let mean = (0..fleets).map(of_fleet).sum::<f64>() / fleets as f64;
            let most = if samples == 6 && rank == 2 { 0.99 } else { 0.95 };
            assert!((0.87..most).contains(&mean), "{kind}, {fleet} devices with {samples} samples: {mean}");
        }
    }
}

/// Heads and predictive variances by the formulas of [`HeadPrior`] are those of the precision that devices receive, with and without a
/// mean, a metric and a representation. Before the choice there is no prior to export.
#[test]
fn exported_matrices_are_the_prior_of_devices() {
    let (d, c, k) = (7, 2, 3);
    let random = &mut stream(12, Purpose::Start, 0);
    let mut seen = Vec::new();
    for (mean, spread) in [(0.0, 0.0), (0.0, 2.0), (1.0, 0.0), (1.0, 2.0)] {
        for scale in [1.0, 4.0] {
            let head = normal_matrix(d, c, random) * mean;
            let mut devices =
                draw_devices(40, 12, &head, &(normal_matrix(d, k, random) * spread), 0.05, 0.1, 5);
            for device in &mut devices {
                device.x.column_mut(0).scale_mut(scale);
                device.y = &device.x * &head + (&device.y - &device.x * &head) / scale;
            }
            let (server, received) = campaign(SETTINGS, &devices, k);
            let HeadPrior { mean, covariance, noise } = server.head_prior().unwrap();
            let chosen = server.chosen_prior().unwrap();
            seen.push((chosen.mean, chosen.metric, chosen.columns > 0));
            let x = normal_matrix(4, d, random);
            let y = normal_matrix(4, c, random);
            let spread = &x * &covariance;
            let inverse = (&spread * x.transpose() + Matrix::identity(4, 4)).try_inverse().unwrap();
            let head = &mean + spread.transpose() * &inverse * (&y - &x * &mean);
            let precision = x.transpose() * &x + received.precision(1.0, 1.0);
            let inner = precision.try_inverse().unwrap();
            let expected = &received.mean + &inner * x.transpose() * (&y - &x * &received.mean);
            let size = expected.norm().max(1.0);
            assert!((&head - &expected).norm() < 1e-3 * size, "{head} {expected}");
            let posterior = &covariance - spread.transpose() * &inverse * &spread;
            assert!((posterior - &inner).norm() < 1e-3 * inner.norm());
            assert!((noise / noise_of(&server) - 1.0).abs() < 1e-6);
        }
    }
    for (what, is_seen) in [
        ("a mean", seen.iter().any(|(mean, ..)| mean != "zero")),
        ("no mean", seen.iter().any(|(mean, ..)| mean == "zero")),
        ("a representation", seen.iter().any(|(.., columns)| *columns)),
        ("a metric", seen.iter().any(|(_, metric, _)| metric != "identity")),
        ("no metric", seen.iter().any(|(_, metric, _)| metric == "identity")),
    ] {
        assert!(is_seen, "{what}: {seen:?}");
    }
    assert!(server(SETTINGS, d, k, c).head_prior().is_none());
}

/// Devices with classes that are numbered differently on each: class c has its samples around the centre of a random class, of which
/// there are more than a device has. The centres differ in `2 k` directions of d, and noise is larger in the others.
fn class_devices(count: usize, outputs: usize, per_class: usize, seed: u64) -> Vec<Device> {
    let (d, centres) = (16, 2 * outputs);
    let random = &mut stream(seed, Purpose::Start, 0);
    let inner = &mut stream(1, Purpose::Start, 0);
    let centres = normal_matrix(centres, 6, inner) * 2.0;
    (0..count)
        .map(|_| {
            let mut order: Vec<usize> = (0..centres.nrows()).collect();
            order.sort_by_cached_key(|_| random.normal().to_bits());
            let x = Matrix::from_fn(outputs * per_class, d, |row, column| {
                let centre = order[row / per_class];
                let deviation = random.normal() * if column < 6 { 0.7 } else { 1.5 };
                if column < 6 { centres[(centre, column)] + deviation } else { deviation }
            });
            let y = Matrix::from_fn(outputs * per_class, outputs, |row, column| {
                f64::from(u8::from(row / per_class == column))
            });
            Device { x, y, has_classes: true }
        })
        .collect()
}

/// Where targets are classes, steps against the errors of newcomers follow on expectation-maximisation: the errors become smaller in each
/// chain, on the devices that take part and on newcomers who do not.
#[test]
fn refinement_reduces_the_errors_of_newcomers() {
    let newcomers = class_devices(60, 4, 8, 77);
    for (seed, k, second_moments) in [(1, 4, false), (2, 4, true), (3, 2, false)] {
        let devices = class_devices(18, 4, 8, seed);
        let settings = LearnedPriorSettings { second_moments, refining_rounds: 15, ..SETTINGS };
        let mut server = server(settings, 16, k, 4);
        let mut chains: Vec<(Vec<bool>, Vec<[f64; 2]>)> = Vec::new();
        for _ in 0..rounds(settings) {
            let request = server.request();
            if let Task::NewcomerGradient { .. } = request.task {
                let asked: Vec<bool> =
                    (0..devices.len()).map(|id| server.asks(DeviceId(id as u64))).collect();
                let of_others = asked.iter().zip(&devices).filter(|(is_asked, _)| **is_asked);
                let mean = |devices: Vec<&Device>| {
                    let errors =
                        devices.iter().map(|device| f64::from(device.reply(&request).1[1].values[0]));
                    errors.sum::<f64>() / devices.len() as f64
                };
                let errors =
                    [mean(of_others.map(|(_, device)| device).collect()), mean(newcomers.iter().collect())];
                match chains.last_mut() {
                    Some((known, of_chain)) if *known == asked => of_chain.push(errors),
                    _ => chains.push((asked, vec![errors])),
                }
            }
            run_round(&mut server, &devices, 0..devices.len());
        }
        assert_eq!(server.chosen_prior().unwrap().scored_by, "correct predictions");
        // At the end all devices take steps, if the refined prior has the best score.
        chains.retain(|(asked, _)| asked.iter().any(|is_asked| !is_asked));
        assert_eq!(chains.len(), if second_moments { 6 } else { 3 });
        let mut sums = [0.0; 2];
        for (_, of_chain) in chains {
            let (first, last) = (of_chain[0], of_chain[of_chain.len() - 1]);
            assert!(last[0] < first[0], "k = {k}: {} after {} on the devices", last[0], first[0]);
            (sums[0], sums[1]) = (sums[0] + first[1], sums[1] + last[1]);
        }
        assert!(sums[1] < 0.98 * sums[0], "k = {k}: {} after {} on newcomers", sums[1], sums[0]);
    }
}

/// Without second moments there is neither a mean nor a metric.
#[test]
fn without_second_moments_no_mean_is_sent() {
    let devices = draw_devices(9, 10, &Matrix::zeros(5, 2), &Matrix::identity(5, 2), 0.01, 0.1, 6);
    let settings = LearnedPriorSettings { second_moments: false, ..SETTINGS };
    let (server, _) = campaign(settings, &devices, 2);
    let roles = |request: &Request| request.tensors.iter().map(|tensor| tensor.role).collect::<Vec<_>>();
    let mut requests = server.requests();
    requests.push(server.fit_request(HeadSolve::LeastSquares { ridge: 0.0 }));
    for request in requests {
        assert_ne!(request.task, Task::PooledMoments);
        assert_eq!(roles(&request), [Role::Representation, Role::PriorVariances]);
        assert!(request.expects.iter().all(|tensor| tensor.role != Role::SecondMoments));
    }
}

/// Fleets in which little can be learned: every request is finite, and the published prior can be used.
#[test]
fn poor_fleets_get_a_prior() {
    let zeros = |m: usize, d: usize, c: usize| Device {
        x: Matrix::zeros(m, d),
        y: Matrix::zeros(m, c),
        has_classes: false,
    };
    let random = &mut stream(9, Purpose::Start, 0);
    let head = normal_matrix(4, 1, random);
    let sampled = |m: usize, random: &mut Stream| {
        let x = normal_matrix(m, 4, random);
        let y = &x * &head;
        Device { x, y, has_classes: false }
    };
    let fleets = [
        ("one device", vec![sampled(5, random)]),
        ("one sample each", (0..7).map(|_| sampled(1, random)).collect()),
        ("no noise, one head", (0..12).map(|_| sampled(9, random)).collect()),
        ("one with many samples", vec![sampled(5_000, random), sampled(2, random), sampled(2, random)]),
        ("nothing but zeros", (0..5).map(|_| zeros(3, 4, 1)).collect()),
    ];
    for (name, devices) in fleets {
        for k in [1, 4] {
            let (server, prior) = campaign(SETTINGS, &devices, k);
            let covariance = covariance(&prior, noise_of(&server));
            assert!(covariance.iter().all(|v| v.is_finite()), "{name}, k = {k}");
        }
    }
}

/// Rounds without a single update leave a prior that can be used.
#[test]
fn rounds_without_updates_are_harmless() {
    let mut server = server(SETTINGS, 5, 2, 3);
    for _ in 0..rounds(SETTINGS) {
        assert_finite(&server.request());
        server.finish().unwrap();
    }
    assert_finite(&server.fit_request(HeadSolve::LeastSquares { ridge: 0.0 }));
}

/// Every device is asked in the rounds of its group, and never both for learning and for scoring of a chain.
#[test]
fn groups_score_what_others_have_learned() {
    let devices = draw_devices(7, 6, &Matrix::zeros(3, 1), &Matrix::identity(3, 1), 0.01, 0.1, 6);
    let mut server = server(SETTINGS, 3, 1, 1);
    let mut learners: Vec<Vec<bool>> = Vec::new();
    let mut scored = Vec::new();
    for _ in 0..rounds(SETTINGS) {
        let asked: Vec<bool> = (0..7).map(|device| server.asks(DeviceId(device))).collect();
        match server.request().task {
            Task::HeadMoments { .. } if learners.last() != Some(&asked) => learners.push(asked),
            Task::PriorEvidence { spans: GeometricGrid { count: 5, .. }, .. } => scored.push(asked),
            _ => {}
        }
        run_round(&mut server, &devices, 0..devices.len());
    }
    assert_eq!(scored.len(), 12);
    // The last rounds of learning are of all devices.
    assert_eq!(learners.pop(), Some(vec![true; 7]));
    assert_eq!(learners.len(), 12);
    for (learners, scored) in learners.iter().zip(&scored) {
        assert!(learners.iter().zip(scored).all(|(learns, scores)| learns != scores));
    }
}

/// Updates that no device can have computed are not admitted.
#[test]
fn impossible_updates_are_not_admitted() {
    let regression = draw_devices(3, 6, &Matrix::zeros(3, 1), &Matrix::identity(3, 1), 0.01, 0.1, 6);
    for (devices, outputs) in [(regression, 1), (class_devices(3, 3, 4, 6), 3)] {
        let server = server(SETTINGS, devices[0].x.ncols(), 1, outputs);
        check_admission(server, &devices);
    }
}

fn check_admission(mut server: LearnedPrior, devices: &[Device]) {
    for _ in 0..rounds(SETTINGS) {
        let request = server.request();
        let (samples, tensors) = devices[0].reply(&request);
        let changed = |tensor: usize, index: usize, value: f32| {
            let mut tensors = tensors.clone();
            tensors[tensor].values[index] = value;
            tensors
        };
        assert!(server.admits(samples, &tensors));
        match request.task {
            Task::PooledMoments => {
                assert!(!server.admits(0, &tensors));
                assert!(!server.admits(samples, &changed(0, 0, -1.0)));
            }
            Task::HeadMoments { .. } => {
                assert!(!server.admits(samples, &changed(1, 1, -1.0)));
                assert!(!server.admits(samples, &changed(1, 2, 0.0)));
                assert!(!server.admits(samples, &changed(1, 1, f32::NAN)));
            }
            Task::PriorEvidence { .. } => {
                assert!(!server.admits(samples, &changed(0, 0, -1.0)));
                assert!(!server.admits(samples, &changed(0, 2, 1.5)));
                let last = tensors[0].values.len();
                assert!(!server.admits(samples, &changed(0, last - 2, 0.0)));
            }
            Task::NewcomerGradient { .. } => {
                assert!(!server.admits(samples, &changed(1, 0, -1.0)));
                assert!(!server.admits(samples, &changed(1, 0, f32::NAN)));
                assert!(!server.admits(samples, &changed(1, 1, 0.0)));
            }
            task => panic!("{task:?}"),
        }
        run_round(&mut server, devices, 0..devices.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// A server that is restored before any round continues with the same bits, and the order of updates does not matter.
    #[test]
    fn restored_servers_continue_with_the_same_bits(
        seed: u64, count in 1usize..9, restart in 0u32..45, reversed: bool, has_moments: bool, has_classes: bool,
    ) {
        let settings = LearnedPriorSettings {
            second_moments: has_moments, learning_rounds: 20, refining_rounds: 20, ..SETTINGS
        };
        let random = &mut stream(seed, Purpose::Start, 0);
        let (mean, l) = (normal_matrix(4, 2, random), normal_matrix(4, 2, random));
        let devices = match has_classes {
            true => class_devices(count, 2, 3, seed),
            false => draw_devices(count, 5, &mean, &l, 0.1, 0.1, seed),
        };
        let d = devices[0].x.ncols();
        let (mut one, mut other) = (server(settings, d, 2, 2), server(settings, d, 2, 2));
        for number in 0..rounds(settings) {
            if number == restart {
                let mut restored = server(settings, d, 2, 2);
                prop_assert!(!restored.restore(&other.state()[1..]));
                prop_assert!(restored.restore(&other.state()));
                other = restored;
            }
            prop_assert_eq!(one.request(), other.request());
            run_round(&mut one, &devices, 0..count);
            if reversed {
                run_round(&mut other, &devices, (0..count).rev());
            } else {
                run_round(&mut other, &devices, 0..count);
            }
        }
        let head = HeadSolve::LeastSquares { ridge: 0.0 };
        prop_assert_eq!(one.fit_request(head), other.fit_request(head));
        prop_assert_eq!(one.state(), other.state());
    }
}
