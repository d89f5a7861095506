//! Test helpers: test data, f64 oracles, memory of any shape, and rounds without a session.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[cfg(feature = "privacy")]
pub mod clipped;
pub mod dense;
#[cfg(feature = "network")]
pub mod exact;
#[cfg(feature = "i16")]
pub mod fixed;
pub mod head;
mod heap;
pub mod linear;
#[cfg(feature = "network")]
pub mod network;
pub mod power;
pub mod priced_task;
#[cfg(feature = "privacy")]
pub mod private;
pub mod problem;
pub mod server;

pub use heap::Heap;

use fedspan_client::memory::Memory;
use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Mechanism, SourceError, Task};
use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId, RoundOpen, Task as Wire, Upload};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use nalgebra::DMatrix;

/// Matrix of f64.
pub type M = DMatrix<f64>;

/// Unit roundoff of f32: half a unit in the last place of 1.
pub const EPS: f64 = f32::EPSILON as f64 / 2.0;

/// Head fit by exact least squares, without a ridge.
pub const EXACT: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };

/// SplitMix64 generator of test data that is the same on every host.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns a number uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a standard normal number (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// Returns `n` standard normal numbers.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal() as f32).collect()
    }

    /// Returns a rows x cols matrix of standard normal numbers.
    pub fn gaussian(&mut self, rows: usize, cols: usize) -> M {
        M::from_fn(rows, cols, |_, _| self.normal())
    }

    /// Returns a rows x cols matrix with orthonormal columns.
    pub fn orthonormal(&mut self, rows: usize, cols: usize) -> M {
        self.gaussian(rows, cols).qr().q().columns(0, cols).into_owned()
    }

    /// Returns a random m x k matrix with the given singular values.
    pub fn with_singular_values(&mut self, m: usize, values: &[f64]) -> M {
        let k = values.len();
        let s = M::from_fn(k, k, |i, j| if i == j { values[i] } else { 0.0 });
        self.orthonormal(m, k) * s * self.orthonormal(k, k).transpose()
    }
}

/// Returns singular values from 1 down to `1 / condition`, equally spaced in the logarithm.
pub fn geometric(k: usize, condition: f64) -> Vec<f64> {
    (0..k).map(|i| if k == 1 { 1.0 } else { condition.powf(-(i as f64) / (k - 1) as f64) }).collect()
}

/// Returns the values of a matrix as row-major f32.
pub fn flat(a: &M) -> Vec<f32> {
    a.transpose().iter().map(|&v| v as f32).collect()
}

/// Returns the matrix of these row-major f32 values.
pub fn matrix(rows: usize, cols: usize, values: &[f32]) -> M {
    assert_eq!(values.len(), rows * cols);
    M::from_fn(rows, cols, |i, j| f64::from(values[i * cols + j]))
}

/// Returns the k x k identity, row-major.
pub fn identity(k: usize) -> Vec<f32> {
    flat(&M::identity(k, k))
}

/// Singular value decomposition `A = U S V^T` by one-sided Jacobi rotations, slow and reliable. (nalgebra
/// 0.35 computes wrong singular vectors of a 15 x 11 matrix with equal columns, so it cannot be the oracle at
/// deficient rank.)
#[derive(Debug)]
pub struct Svd {
    /// `U S`, m x k.
    us: M,
    v: M,
    /// Singular values, unsorted.
    pub s: Vec<f64>,
}

impl Svd {
    /// Computes the decomposition of `a` by one-sided Jacobi rotations.
    pub fn new(a: &M) -> Self {
        let k = a.ncols();
        let (mut us, mut v) = (a.clone(), M::identity(k, k));
        for _ in 0..60 {
            let mut turned = false;
            for j in 1..k {
                for i in 0..j {
                    let (p, q) = (us.column(i).norm_squared(), us.column(j).norm_squared());
                    let pq = us.column(i).dot(&us.column(j));
                    if pq.abs() <= 1e-15 * (p * q).sqrt() || pq == 0.0 {
                        continue;
                    }
                    turned = true;
                    let zeta = (q - p) / (2.0 * pq);
                    let t = if zeta == 0.0 { 1.0 } else { zeta.signum() / (zeta.abs() + zeta.hypot(1.0)) };
                    let c = 1.0 / t.hypot(1.0);
                    for matrix in [&mut us, &mut v] {
                        for row in 0..matrix.nrows() {
                            let (x, y) = (matrix[(row, i)], matrix[(row, j)]);
                            matrix[(row, i)] = c * (x - t * y);
                            matrix[(row, j)] = c * (t * x + y);
                        }
                    }
                }
            }
            if !turned {
                break;
            }
        }
        let s = us.column_iter().map(|column| column.norm()).collect();
        Self { us, v, s }
    }

    /// Returns the largest singular value.
    pub fn largest(&self) -> f64 {
        self.s.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the largest singular value divided by the least.
    pub fn condition(&self) -> f64 {
        self.largest() / self.s.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the minimum-norm `W` that minimises `|A W - Y|`, with singular values up to `cut` taken as
    /// zero.
    pub fn minimum_norm(&self, y: &M, cut: f64) -> M {
        let mut projected = self.us.transpose() * y;
        for (mut row, &s) in projected.row_iter_mut().zip(&self.s) {
            row *= if s > cut { 1.0 / (s * s) } else { 0.0 };
        }
        &self.v * projected
    }
}

/// Returns the largest singular value of a matrix.
pub fn norm2(a: &M) -> f64 {
    Svd::new(a).largest()
}

/// Targets of samples: numbers or classes.
#[derive(Clone, Debug)]
pub enum Labels {
    Values(Vec<f32>),
    Classes(Vec<u8>),
}

/// Sample source that returns at most `at_once` samples per call, and fails at the start of pass
/// `failing_pass`.
#[derive(Clone, Debug)]
pub struct Sliced {
    pub x: Vec<f32>,
    pub labels: Labels,
    pub features: usize,
    pub outputs: usize,
    pub at_once: usize,
    /// Index of the next sample.
    pub position: usize,
    /// Number of passes, including the present one.
    pub passes: usize,
    /// Number of the pass in which `rewind` fails; the first pass is 1.
    pub failing_pass: Option<usize>,
}

impl Sliced {
    /// Creates a source of samples with target values.
    pub fn regression(x: Vec<f32>, y: Vec<f32>, features: usize, outputs: usize) -> Self {
        Self {
            x,
            labels: Labels::Values(y),
            features,
            outputs,
            at_once: usize::MAX,
            position: 0,
            passes: 0,
            failing_pass: None,
        }
    }

    /// Creates a source of samples with class numbers.
    pub fn classification(x: Vec<f32>, classes: Vec<u8>, features: usize, outputs: usize) -> Self {
        Self { labels: Labels::Classes(classes), ..Self::regression(x, Vec::new(), features, outputs) }
    }

    /// Limits the number of samples per call.
    pub fn at_once(self, at_once: usize) -> Self {
        Self { at_once, ..self }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.x.len() / self.features
    }

    /// Returns sample `i` and its target.
    pub fn get(&self, i: usize) -> (&[f32], Targets<'_>) {
        let x = &self.x[i * self.features..(i + 1) * self.features];
        let targets = match &self.labels {
            Labels::Values(y) => Targets::Values(&y[i * self.outputs..(i + 1) * self.outputs]),
            Labels::Classes(y) => Targets::Classes(&y[i..=i]),
        };
        (x, targets)
    }

    /// Returns the same source without the samples at the indices `left_out`.
    pub fn without(&self, left_out: &[usize]) -> Self {
        let mut remaining = Self { x: Vec::new(), labels: Labels::Values(Vec::new()), ..self.clone() };
        let (mut values, mut classes) = (Vec::new(), Vec::new());
        for i in (0..self.len()).filter(|i| !left_out.contains(i)) {
            let (x, targets) = self.get(i);
            remaining.x.extend(x);
            match targets {
                Targets::Values(y) => values.extend(y),
                Targets::Classes(y) => classes.extend(y),
            }
        }
        remaining.labels = match self.labels {
            Labels::Values(_) => Labels::Values(values),
            Labels::Classes(_) => Labels::Classes(classes),
        };
        remaining
    }

    /// Returns the samples as a matrix, m x d.
    pub fn x64(&self) -> M {
        matrix(self.len(), self.features, &self.x)
    }

    /// Returns the targets as a matrix, with classes as one-hot rows.
    pub fn y64(&self) -> M {
        match &self.labels {
            Labels::Values(y) => matrix(self.len(), self.outputs, y),
            Labels::Classes(y) => {
                M::from_fn(self.len(), self.outputs, |i, j| if usize::from(y[i]) == j { 1.0 } else { 0.0 })
            }
        }
    }
}

impl SampleSource for Sliced {
    fn rewind(&mut self, _id: RoundId) -> Result<(), SourceError> {
        self.position = 0;
        self.passes += 1;
        if self.failing_pass == Some(self.passes) { Err(SourceError::Device) } else { Ok(()) }
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        let first = self.position;
        let end = first.saturating_add(self.at_once).min(self.len());
        self.position = end;
        (first < end).then(|| Samples {
            x: &self.x[first * self.features..end * self.features],
            targets: match &self.labels {
                Labels::Values(y) => Targets::Values(&y[first * self.outputs..end * self.outputs]),
                Labels::Classes(y) => Targets::Classes(&y[first..end]),
            },
        })
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        let (x, targets) = (index < self.len()).then(|| self.get(index))?;
        Some(Samples { x, targets })
    }
}

/// Returns a FedRep task with an f32 upload.
pub fn fed_rep(head: HeadSolve, upload: Upload, step_size: f32) -> Wire {
    Wire::FedRep { step_size, head, upload, encoding: Encoding::F32 }
}

/// Returns the opening of a round with one tensor, d x k.
pub fn open(round: u32, task: Wire, role: Role, encoding: Encoding, d: usize, k: usize) -> RoundOpen {
    let tensor = TensorDescriptor::inline(role, encoding, d as u16, k as u16);
    let id = RoundId { round, stage: 0 };
    RoundOpen { id, task, tensors: std::iter::once(tensor).collect() }
}

/// Opens the round and loads its tensors, as the session does.
pub fn receive(model: &mut impl Task, round: &RoundOpen, tensors: &[&[f32]]) -> Result<(), DeclineReason> {
    model.open(round)?;
    for (index, (tensor, descriptor)) in tensors.iter().zip(&round.tensors).enumerate() {
        let mut bytes = vec![0; descriptor.byte_len()];
        descriptor.encoding.encode(tensor, &mut bytes).unwrap();
        descriptor.encoding.decode(&bytes, model.tensor_mut(index).unwrap()).unwrap();
    }
    model.verify()
}

/// Returns the values of all uploaded tensors, in order, read in pieces of `piece` elements.
pub fn collect_upload(model: &impl Task, piece: usize) -> Vec<f32> {
    let mut uploaded = Vec::new();
    for (index, tensor) in model.upload().iter().enumerate() {
        let mut values = vec![f32::NAN; tensor.elements()];
        for (i, part) in values.chunks_mut(piece).enumerate() {
            model.emit(index, i * piece, part);
        }
        uploaded.extend(values);
    }
    uploaded
}

/// Runs a FedRep round on `b` (d x k). Returns the usage of samples and the upload.
pub fn fed_rep_round<A: Memory, P: Mechanism>(
    model: &mut Linear<A, P>,
    task: Wire,
    b: &[f32],
    source: &mut dyn SampleSource,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let shape = model.shape();
    let round = open(1, task, Role::Representation, Encoding::F32, shape.features, shape.width);
    receive(model, &round, &[b])?;
    let usage = model.run(round.id, source)?;
    Ok((usage, collect_upload(model, 7)))
}

/// Runs a FedRep round with streamed samples. Returns the usage of samples and the upload.
pub fn fed_rep_stream<A: Memory, P: Mechanism>(
    model: &mut Linear<A, P>,
    task: Wire,
    b: &[f32],
    samples: &Sliced,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let shape = model.shape();
    let round = open(1, task, Role::Representation, Encoding::F32, shape.features, shape.width);
    receive(model, &round, &[b])?;
    model.begin()?;
    for i in 0..samples.len() {
        let (x, target) = samples.get(i);
        model.sample(x, target);
    }
    let usage = model.finish()?;
    Ok((usage, collect_upload(model, 5)))
}

/// Returns the bit patterns, for exact comparison.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Recorder of the largest value per name. Prints all maxima when it is dropped; `--nocapture` shows them.
#[derive(Debug, Default)]
pub struct Worst(Vec<(&'static str, f64)>);

impl Worst {
    /// Records a value.
    pub fn record_largest(&mut self, name: &'static str, value: f64) {
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, worst)) => *worst = worst.max(value),
            None => self.0.push((name, value)),
        }
    }

    /// Returns the largest value recorded under this name, or 0.
    pub fn get(&self, name: &str) -> f64 {
        self.0.iter().find(|(n, _)| *n == name).map_or(0.0, |(_, worst)| *worst)
    }
}

impl Drop for Worst {
    fn drop(&mut self) {
        for (name, value) in &self.0 {
            println!("worst {name}: {value:.2e}");
        }
    }
}
