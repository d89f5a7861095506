//! Generator of data from RoLoRA's linear model (Chen et al. 2025, section 5.1 and appendix A.5):
//! `y = B_i*^T A*^T x + noise` with normal x. A* is common to all clients, d x r with orthonormal columns;
//! B_i* of client i is r x C.

use std::sync::Arc;

use fedspan_engine::linalg::{Matrix, product, random_basis};
use fedspan_engine::random::{Purpose, Stream, stream};

use super::generator::Generator;
use super::{Client, Dataset, LARGEST_VALUES, Layout};

/// Settings of `kind = "low-rank-regression"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRankRegression {
    /// Number of clients.
    pub clients: usize,
    /// Number of features.
    pub d: usize,
    /// Number of targets of a sample, `C`.
    pub outputs: usize,
    /// Rank `r` of the map.
    pub rank: usize,
    /// Number of samples per client, or per client and round if `fresh`.
    pub samples: usize,
    /// True if each client draws a new batch in every round.
    pub fresh: bool,
    /// Value `L` of all singular values of the mean of the B_i*.
    pub strength: f64,
    /// Heterogeneity `gamma`: the root of the mean over clients of `|B_i* - mean|^2` (Frobenius norm;
    /// definition A.13).
    pub heterogeneity: f64,
    /// Standard deviation of the noise on each target.
    pub noise_std: f64,
    /// Number of noiseless test samples per client.
    pub test_samples: usize,
}

impl LowRankRegression {
    /// Memory of the data in units of an f32.
    #[must_use]
    pub fn values(&self) -> u64 {
        let Self { clients, d, outputs, samples, fresh, test_samples, .. } = *self;
        let to_u64 = |n: usize| n as u64;
        // A new batch is in memory together with the first batch; a client's map is f64.
        let rows =
            to_u64(samples).saturating_mul(if fresh { 2 } else { 1 }).saturating_add(to_u64(test_samples));
        let values_per_client = rows
            .saturating_mul(to_u64(d).saturating_add(to_u64(outputs)))
            .saturating_add((2 * to_u64(d)).saturating_mul(to_u64(outputs)));
        to_u64(clients).saturating_mul(values_per_client)
    }

    /// Checks that the data have at most [`LARGEST_VALUES`] values.
    ///
    /// # Errors
    /// A one-line message with the sizes if they have more.
    pub fn check(&self) -> Result<(), String> {
        let Self { clients, d, outputs, samples, test_samples, .. } = *self;
        let values = self.values();
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        Err(format!(
            "{clients} clients x ({samples} + {test_samples} samples) x ({d} features + {outputs} targets): {values} \
             values, allowed: at most {LARGEST_VALUES} (2^31, 8 GiB)"
        ))
    }

    /// Draws the true down-projection A*, and the B_i* of each client.
    #[must_use]
    pub fn truth(&self, seed: u64) -> (Matrix, Vec<Matrix>) {
        let mut random = stream(seed, Purpose::Truth, 0);
        let down = random_basis(self.d, self.rank, &mut random);
        let mean = random_basis(self.outputs, self.rank, &mut random).transpose() * self.strength;
        let up_factors =
            self.deviations(&mut random).into_iter().map(|deviation| &mean + deviation).collect();
        (down, up_factors)
    }

    /// Draws the deviation of each client from the mean of the B_i*, r x C: normal entries, centred to mean
    /// zero over the clients and scaled to heterogeneity `gamma`.
    #[allow(clippy::cast_precision_loss, reason = "a count of clients")]
    fn deviations(&self, random: &mut Stream) -> Vec<Matrix> {
        let (r, c, n) = (self.rank, self.outputs, self.clients as f64);
        let random_maps: Vec<Matrix> =
            (0..self.clients).map(|_| Matrix::from_fn(r, c, |_, _| random.normal())).collect();
        let mean = random_maps.iter().fold(Matrix::zeros(r, c), |sum, deviation| sum + deviation) / n;
        let centered: Vec<Matrix> = random_maps.into_iter().map(|deviation| deviation - &mean).collect();
        let square = centered.iter().flat_map(Matrix::iter).fold(0.0, |sum, v| sum + v * v) / n;
        // The deviation of a single client is zero.
        let scale = if square > 0.0 { self.heterogeneity / square.sqrt() } else { 0.0 };
        centered.into_iter().map(|deviation| deviation * scale).collect()
    }

    /// Draws the true maps and the data of all clients.
    #[must_use]
    pub fn dataset(&self, seed: u64) -> Dataset {
        let Self { d, outputs, samples, noise_std, fresh, test_samples, .. } = *self;
        let (down, ups) = self.truth(seed);
        let client = |(client, up): (u64, &Matrix)| {
            // Row-major order.
            let map = Arc::new(product(&down, up).transpose().as_slice().to_vec());
            let purpose = Purpose::Samples;
            let generator = Generator {
                map,
                outputs,
                feature_std: 1.0,
                measured: d,
                noise_std,
                samples,
                seed,
                client,
                purpose,
            };
            let mut client = Client::new(generator.batch(0), generator.tests(test_samples).batch(0));
            client.fresh = fresh.then(|| Box::new(generator));
            client
        };
        Dataset {
            features: d,
            outputs,
            classification: false,
            clients: (0..).zip(&ups).map(client).collect(),
            truth: Some(down),
            layout: Layout::default(),
            ..Dataset::default()
        }
    }
}
