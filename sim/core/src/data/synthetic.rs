//! The papers' linear model: `y = w_i^T B*^T x + noise`, x normal (FedRep, section 5.1).

use std::sync::Arc;

use fedspan_engine::linalg::{Matrix, orthonormal, random_basis};
use fedspan_engine::random::{Purpose, Stream, stream};

use super::generator::Generator;
use super::sizes::Sizes;
use super::{Client, Dataset, LARGEST_VALUES, Layout};

/// How the true heads are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    /// Each row has norm sqrt(k) (Assumption 3).
    SqrtK,
    /// As drawn: standard normal.
    Gaussian,
    /// Orthonormal columns times sqrt(k), as in the paper's appendix: rows of norm about k / sqrt(n).
    Qr,
}

/// Settings of `kind = "linear-regression"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearRegression {
    /// Clients that train.
    pub clients: usize,
    /// Features.
    pub d: usize,
    /// Width of the truth.
    pub k: usize,
    /// Samples per client (per round where fresh): everybody's number, the smallest, or the median.
    pub samples: usize,
    /// Which of these.
    pub sizes: Sizes,
    /// A new batch every round.
    pub fresh: bool,
    /// Standard deviation of each feature.
    pub feature_std: f64,
    /// Standard deviation of the noise on y.
    pub noise_std: f64,
    /// Scale of the true heads.
    pub head_norm: HeadNorm,
    /// Clients that come after training.
    pub new_clients: usize,
    /// Their samples.
    pub new_samples: usize,
    /// Noiseless test samples per client.
    pub test_samples: usize,
}

impl LinearRegression {
    /// What all of it takes, in values of an f32: samples, tests, the truth and every client's part of it.
    #[must_use]
    pub fn values(&self, seed: u64) -> u64 {
        let wide = |n: usize| n as u64;
        let (d, k, clients, new) = (wide(self.d), wide(self.k), wide(self.clients), wide(self.new_clients));
        let tests = wide(self.test_samples);
        let samples = match self.sizes {
            Sizes::Equal => clients * wide(self.samples),
            sizes => (0..clients)
                .map(|client| wide(sizes.samples(self.samples, seed, client)))
                .fold(0, u64::saturating_add),
        };
        // A fresh batch stands beside the first one.
        let own = samples.saturating_mul(if self.fresh { 2 } else { 1 });
        // What is f64 counts twice.
        own.saturating_add(clients * tests).saturating_mul(d).saturating_add(
            new * (wide(self.new_samples) + tests) * d + 2 * (clients + new) * (d + k) + 2 * d * k,
        )
    }

    /// That this machine can hold it.
    ///
    /// # Errors
    /// A sentence with the numbers.
    pub fn check(&self, seed: u64) -> Result<(), String> {
        let values = self.values(seed);
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        let Self { clients, d, k, samples, new_clients, new_samples, test_samples, .. } = self;
        let each = match self.sizes {
            Sizes::Equal => samples.to_string(),
            _ => format!("{samples} or more"),
        };
        Err(format!(
            "{clients} clients x ({each} + {test_samples} samples) x {d} features, {new_clients} new x \
             ({new_samples} + {test_samples}) x {d}, k = {k}: {values} values, allowed: at most {LARGEST_VALUES} \
             (2^31, 8 GiB)"
        ))
    }
}

/// Draws the truth and all clients.
#[must_use]
pub fn linear_regression(settings: &LinearRegression, seed: u64) -> Dataset {
    let LinearRegression { d, k, .. } = *settings;
    let (truth, heads) = truth(settings, seed);
    let client = |index: usize, samples: usize, fresh: bool| {
        let direction: Vec<f64> =
            (0..d).map(|i| (0..k).fold(0.0, |sum, j| sum + truth[(i, j)] * heads[(index, j)])).collect();
        let generator = Generator {
            map: Arc::new(direction),
            outputs: 1,
            feature_std: settings.feature_std,
            noise_std: settings.noise_std,
            samples,
            seed,
            client: index as u64,
            purpose: Purpose::Samples,
        };
        let clean = generator.tests(settings.test_samples);
        let mut client = Client::new(generator.batch(0), clean.batch(0));
        if fresh {
            client.fresh = Some(generator);
        }
        client
    };
    let own = |index: usize| settings.sizes.samples(settings.samples, seed, index as u64);
    Dataset {
        features: d,
        outputs: 1,
        classification: false,
        clients: (0..settings.clients).map(|i| client(i, own(i), settings.fresh)).collect(),
        newcomers: (0..settings.new_clients)
            .map(|i| client(settings.clients + i, settings.new_samples, false))
            .collect(),
        truth: Some(truth),
        layout: Layout::default(),
        ..Dataset::default()
    }
}

/// How much of its true head each client that trains has in the first of the truth's k directions: 0 to 1.
#[must_use]
pub fn alignments(settings: &LinearRegression, seed: u64) -> Vec<f64> {
    let (_, heads) = truth(settings, seed);
    let alignment = |row: usize| {
        let head = heads.row(row);
        head.iter().next().map_or(0.0, |first| first.abs() / head.norm().max(f64::MIN_POSITIVE))
    };
    (0..settings.clients).map(alignment).collect()
}

/// The true representation, d x k, and everybody's head, a row each.
fn truth(settings: &LinearRegression, seed: u64) -> (Matrix, Matrix) {
    let mut random = stream(seed, Purpose::Truth, 0);
    let truth = random_basis(settings.d, settings.k, &mut random);
    let everybody = settings.clients + settings.new_clients;
    let heads = heads(everybody, settings.k, settings.head_norm, &mut random);
    (truth, heads)
}

#[allow(clippy::cast_precision_loss, reason = "a width")]
fn heads(n: usize, k: usize, norm: HeadNorm, random: &mut Stream) -> Matrix {
    let mut heads = Matrix::from_fn(n, k, |_, _| random.normal());
    let sqrt_k = (k as f64).sqrt();
    match norm {
        HeadNorm::Gaussian => {}
        HeadNorm::SqrtK => {
            for mut row in heads.row_iter_mut() {
                let square = row.iter().fold(0.0, |sum, w| sum + w * w);
                row *= sqrt_k / square.sqrt();
            }
        }
        HeadNorm::Qr => {
            if let Ok(q) = orthonormal(&heads) {
                heads = q * sqrt_k;
            }
        }
    }
    heads
}
