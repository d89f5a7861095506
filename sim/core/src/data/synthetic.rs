//! Generator of data from the linear model of the FedRep paper (section 5.1): `y = w_i^T B*^T x + noise` with
//! normal x.

use std::collections::BTreeSet;
use std::sync::Arc;

use fedspan_engine::linalg::{Matrix, orthonormal, random_basis};
use fedspan_engine::random::{Purpose, Stream, stream};

use super::generator::Generator;
use super::sizes::Sizes;
use super::{Client, ClientGenerator, Dataset, LARGEST_VALUES, Layout, Part, Set, SharedSet};

/// Scaling of the true heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    /// Scales each head to norm sqrt(k) (Assumption 3).
    SqrtK,
    /// No scaling: entries are standard normal.
    Gaussian,
    /// Makes the columns of the matrix of all heads orthonormal and multiplies them by sqrt(k), as in the
    /// appendix of the paper. The norm of a head is then about k / sqrt(n).
    Qr,
}

/// Settings of `kind = "linear-regression"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearRegression {
    /// Number of training clients.
    pub clients: usize,
    /// Number of features.
    pub d: usize,
    /// Width of the true representation.
    pub k: usize,
    /// Base number of samples per client, or per client and round if `fresh`: the size of each client, the
    /// smallest size or the median size, depending on `sizes`.
    pub samples: usize,
    /// Distribution of the clients' sizes.
    pub sizes: Sizes,
    /// True if each client draws a new batch in every round.
    pub fresh: bool,
    /// Standard deviation of each feature.
    pub feature_std: f64,
    /// Fraction of the training clients, rounded, whose second half of the features is 0.
    pub blind_clients: f64,
    /// Fraction of the training clients, rounded, whose true head is a multiple of the last true direction. The
    /// true heads of all other clients have nothing of that direction.
    pub minority: f64,
    /// Norm of the minority's heads, as a multiple of sqrt(k).
    pub minority_strength: f64,
    /// Standard deviation of the noise on the target.
    pub noise_std: f64,
    /// Scaling of the true heads.
    pub head_norm: HeadNorm,
    /// Number of newcomers.
    pub new_clients: usize,
    /// Number of samples of a newcomer.
    pub new_samples: usize,
    /// Number of noiseless test samples per client.
    pub test_samples: usize,
}

impl LinearRegression {
    /// Memory of the data in units of an f32: training samples, test samples, the true representation and the
    /// true heads of all clients.
    #[must_use]
    pub fn values(&self, seed: u64) -> u64 {
        let to_u64 = |n: usize| n as u64;
        let (d, k, clients, new) =
            (to_u64(self.d), to_u64(self.k), to_u64(self.clients), to_u64(self.new_clients));
        let tests = to_u64(self.test_samples);
        let samples = match self.sizes {
            Sizes::Equal => clients * to_u64(self.samples),
            sizes => (0..clients)
                .map(|client| to_u64(sizes.samples(self.samples, seed, client)))
                .fold(0, u64::saturating_add),
        };
        // A new batch is in memory together with the first batch.
        let client_samples = samples.saturating_mul(if self.fresh { 2 } else { 1 });
        // An f64 counts as two values.
        client_samples.saturating_add(clients * tests).saturating_mul(d).saturating_add(
            new * (to_u64(self.new_samples) + tests) * d + 2 * (clients + new) * (d + k) + 2 * d * k,
        )
    }

    /// Checks that the data have at most [`LARGEST_VALUES`] values.
    ///
    /// # Errors
    /// A one-line message with the sizes if they have more.
    pub fn check(&self, seed: u64) -> Result<(), String> {
        let values = self.values(seed);
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        let Self { clients, d, k, samples, new_clients, new_samples, test_samples, .. } = self;
        let size_text = match self.sizes {
            Sizes::Equal => samples.to_string(),
            _ => format!("{samples} or more"),
        };
        Err(format!(
            "{clients} clients x ({size_text} + {test_samples} samples) x {d} features, {new_clients} new x \
             ({new_samples} + {test_samples}) x {d}, k = {k}: {values} values, allowed: at most {LARGEST_VALUES} \
             (2^31, 8 GiB)"
        ))
    }
}

/// Draws the true representation and the data of all clients.
#[must_use]
pub fn linear_regression(settings: &LinearRegression, seed: u64) -> Dataset {
    let (truth, heads) = draw_truth(settings, seed);
    let blind = draw_blind(settings, seed);
    let population = Arc::new(Population { settings: *settings, seed, truth: truth.clone(), heads, blind });
    let client = |index: usize| {
        let generator: Arc<dyn ClientGenerator> = Arc::<Population>::clone(&population);
        // A fleet has at most a million clients.
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let set = |part| SharedSet::generated(Arc::clone(&generator), number, part);
        let mut client = Client::new(set(Part::Train), set(Part::Test));
        if settings.fresh && index < settings.clients {
            client.fresh = Some(Box::new(population.generator(index)));
        }
        client
    };
    Dataset {
        features: settings.d,
        outputs: 1,
        classification: false,
        clients: (0..settings.clients).map(client).collect(),
        newcomers: (0..settings.new_clients).map(|i| client(settings.clients + i)).collect(),
        truth: Some(truth),
        layout: Layout::default(),
        ..Dataset::default()
    }
}

/// All clients of the model: the training clients, then the newcomers.
struct Population {
    settings: LinearRegression,
    seed: u64,
    /// True representation, d x k.
    truth: Matrix,
    /// True heads, one row for each client.
    heads: Matrix,
    /// Training clients whose second half of the features is 0.
    blind: BTreeSet<usize>,
}

impl Population {
    /// Creates the generator of a client's training samples.
    fn generator(&self, client: usize) -> Generator {
        let LinearRegression { d, k, feature_std, noise_std, .. } = self.settings;
        let (truth, heads) = (&self.truth, &self.heads);
        let mut direction = vec![0.0; d];
        for j in 0..k {
            let weight = heads[(client, j)];
            for (sum, truth) in direction.iter_mut().zip(truth.column(j).iter()) {
                *sum += truth * weight;
            }
        }
        Generator {
            map: Arc::new(direction),
            outputs: 1,
            feature_std,
            measured: if self.blind.contains(&client) { d.div_ceil(2) } else { d },
            noise_std,
            samples: self.samples(client, Part::Train),
            seed: self.seed,
            client: client as u64,
            purpose: Purpose::Samples,
        }
    }
}

impl ClientGenerator for Population {
    fn generate(&self, client: usize, part: Part) -> Set {
        let generator = self.generator(client);
        match part {
            Part::Train => generator.batch(0),
            Part::Test => generator.tests(self.settings.test_samples).batch(0),
        }
    }

    fn samples(&self, client: usize, part: Part) -> usize {
        let LinearRegression { clients, samples, sizes, new_samples, test_samples, .. } = self.settings;
        match part {
            Part::Test => test_samples,
            Part::Train if client < clients => sizes.samples(samples, self.seed, client as u64),
            Part::Train => new_samples,
        }
    }
}

/// Draws the training clients whose second half of the features is 0.
fn draw_blind(settings: &LinearRegression, seed: u64) -> BTreeSet<usize> {
    draw_clients(settings.clients, settings.blind_clients, &mut stream(seed, Purpose::BlindClients, 0))
}

/// Draws a fraction of the clients, rounded.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a count")]
fn draw_clients(clients: usize, fraction: f64, random: &mut Stream) -> BTreeSet<usize> {
    let indices: Vec<usize> = (0..clients).collect();
    let count = (fraction * clients as f64).round() as usize;
    random.choose(&indices, count.min(clients)).into_iter().collect()
}

/// Alignment of each training client's true head with the first of the k true directions: the absolute first
/// coordinate divided by the norm of the head, from 0 to 1.
#[must_use]
pub fn alignments(settings: &LinearRegression, seed: u64) -> Vec<f64> {
    let (_, heads) = draw_truth(settings, seed);
    let alignment = |row: usize| {
        let head = heads.row(row);
        head.iter().next().map_or(0.0, |first| first.abs() / head.norm().max(f64::MIN_POSITIVE))
    };
    (0..settings.clients).map(alignment).collect()
}

/// Draws the true representation, d x k, and the true heads, one row for each client.
fn draw_truth(settings: &LinearRegression, seed: u64) -> (Matrix, Matrix) {
    let mut random = stream(seed, Purpose::Truth, 0);
    let truth = random_basis(settings.d, settings.k, &mut random);
    let total = settings.clients + settings.new_clients;
    let heads = draw_heads(total, settings, &draw_minority(settings, seed), &mut random);
    (truth, heads)
}

/// Draws the training clients that share one task.
fn draw_minority(settings: &LinearRegression, seed: u64) -> BTreeSet<usize> {
    draw_clients(settings.clients, settings.minority, &mut stream(seed, Purpose::Minority, 0))
}

/// Draws `n` true heads, one row each, and scales them.
#[allow(clippy::cast_precision_loss, reason = "a width")]
fn draw_heads(
    n: usize,
    settings: &LinearRegression,
    minority: &BTreeSet<usize>,
    random: &mut Stream,
) -> Matrix {
    let LinearRegression { k, head_norm, minority_strength, .. } = *settings;
    let mut heads = Matrix::from_fn(n, k, |_, _| random.normal());
    let last_direction = Matrix::from_fn(1, k, |_, column| if column + 1 == k { 1.0 } else { 0.0 });
    if !minority.is_empty() {
        for (index, mut row) in heads.row_iter_mut().enumerate() {
            if minority.contains(&index) {
                row.copy_from(&last_direction);
            } else if let Some(last) = row.iter_mut().last() {
                *last = 0.0;
            }
        }
    }
    let sqrt_k = (k as f64).sqrt();
    match head_norm {
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
    for index in minority {
        heads.row_mut(*index).copy_from(&(&last_direction * (minority_strength * sqrt_k)));
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Labels;

    fn settings() -> LinearRegression {
        LinearRegression {
            clients: 10,
            d: 5,
            k: 2,
            samples: 7,
            sizes: Sizes::Equal,
            fresh: false,
            feature_std: 1.0,
            blind_clients: 0.0,
            minority: 0.0,
            minority_strength: 1.0,
            noise_std: 0.0,
            head_norm: HeadNorm::SqrtK,
            new_clients: 1,
            new_samples: 3,
            test_samples: 0,
        }
    }

    fn data(blind_clients: f64) -> Dataset {
        linear_regression(&LinearRegression { blind_clients, ..settings() }, 3)
    }

    /// The minority's heads are the same multiple of the last direction, the others have nothing of it, and
    /// have the norm that they have without a minority. The truth does not change.
    #[test]
    fn only_the_minority_has_the_last_direction() {
        for (head_norm, k) in [(HeadNorm::SqrtK, 2), (HeadNorm::SqrtK, 4), (HeadNorm::Qr, 3)] {
            let settings = LinearRegression { k, head_norm, ..settings() };
            let some = LinearRegression { minority: 0.2, minority_strength: 3.0, ..settings };
            let ((truth, all), (same_truth, heads)) = (draw_truth(&settings, 3), draw_truth(&some, 3));
            assert_eq!((truth, all.nrows()), (same_truth, heads.nrows()));
            let minority = draw_minority(&some, 3);
            assert_eq!(minority.len(), 2);
            let sqrt_k = (k as f64).sqrt();
            for (index, row) in heads.row_iter().enumerate() {
                let last = row[k - 1];
                if minority.contains(&index) {
                    assert!((last - 3.0 * sqrt_k).abs() < 1e-12 && (row.norm() - last).abs() < 1e-12);
                } else {
                    assert!(last.abs() < 1e-12 && row.norm() > 0.0, "{row}");
                    let is_scaled = (row.norm() - sqrt_k).abs() < 1e-12;
                    assert!(is_scaled || head_norm == HeadNorm::Qr, "{row}");
                }
            }
        }
    }

    /// Blind clients have the same draws in the first half of their features, and targets without the second
    /// half. Clients that are not blind do not change.
    #[test]
    fn blind_clients_lack_the_second_half_of_the_features() {
        let (all, some) = (data(0.0), data(0.3));
        let mut blind = 0;
        for (all, some) in all.clients.iter().zip(&some.clients) {
            if some.train.x == all.train.x {
                continue;
            }
            blind += 1;
            for (all, some) in all.train.x.chunks(5).zip(some.train.x.chunks(5)) {
                assert_eq!((&all[..3], &[0.0; 2][..]), (&some[..3], &some[3..]));
            }
            let (Labels::Values { values: all, .. }, Labels::Values { values: some, .. }) =
                (&all.train.y, &some.train.y)
            else {
                continue;
            };
            assert!(all.iter().zip(some).all(|(all, some)| all != some), "{all:?} {some:?}");
        }
        assert_eq!(blind, 3);
        assert_eq!(all.newcomers.first().map(|c| &c.train.x), some.newcomers.first().map(|c| &c.train.x));
    }
}
