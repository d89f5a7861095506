//! RoLoRA's linear model (Chen et al. 2025, section 5.1 and appendix A.5): `y = B_i*^T A*^T x + noise`, x normal, A* everyone's, d x r with
//! orthonormal columns, B_i* r x C.

use std::sync::Arc;

use fedspan_engine::linalg::{Matrix, product, random_basis};
use fedspan_engine::random::{Purpose, Stream, stream};

use super::generator::Generator;
use super::{Client, Dataset, LARGEST_VALUES, Layout};

/// Settings of `kind = "low-rank-regression"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRankRegression {
    /// Clients.
    pub clients: usize,
    /// Features.
    pub d: usize,
    /// C: targets of a sample.
    pub outputs: usize,
    /// r.
    pub rank: usize,
    /// Samples per client (per round where fresh).
    pub samples: usize,
    /// A new batch every round.
    pub fresh: bool,
    /// L: every singular value of the mean of all B_i*.
    pub strength: f64,
    /// gamma: the root of the mean over clients of `|B_i* - mean|^2` (Frobenius; definition A.13).
    pub heterogeneity: f64,
    /// Standard deviation of the noise on each target.
    pub noise_std: f64,
    /// Noiseless test samples per client.
    pub test_samples: usize,
}

impl LowRankRegression {
    /// That this machine can hold it.
    ///
    /// # Errors
    /// A sentence with the numbers.
    pub fn check(&self) -> Result<(), String> {
        let Self { clients, d, outputs, samples, fresh, test_samples, .. } = *self;
        let wide = |n: usize| n as u64;
        // A fresh batch stands beside the first one; a client's map is f64.
        let own = wide(samples).saturating_mul(if fresh { 2 } else { 1 }).saturating_add(wide(test_samples));
        let each = own
            .saturating_mul(wide(d).saturating_add(wide(outputs)))
            .saturating_add((2 * wide(d)).saturating_mul(wide(outputs)));
        let values = wide(clients).saturating_mul(each);
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        Err(format!(
            "{clients} clients x ({samples} + {test_samples} samples) x ({d} features + {outputs} targets): {values} \
             values, allowed: at most {LARGEST_VALUES} (2^31, 8 GiB)"
        ))
    }

    /// The true down-projection A*, and everybody's B_i*.
    #[must_use]
    pub fn truth(&self, seed: u64) -> (Matrix, Vec<Matrix>) {
        let mut random = stream(seed, Purpose::Truth, 0);
        let down = random_basis(self.d, self.rank, &mut random);
        let mean = random_basis(self.outputs, self.rank, &mut random).transpose() * self.strength;
        let ups = self.deviations(&mut random).into_iter().map(|deviation| &mean + deviation).collect();
        (down, ups)
    }

    /// What everybody has of their own, r x C: normal, with a mean of zero and gamma's size.
    #[allow(clippy::cast_precision_loss, reason = "a count of clients")]
    fn deviations(&self, random: &mut Stream) -> Vec<Matrix> {
        let (r, c, n) = (self.rank, self.outputs, self.clients as f64);
        let drawn: Vec<Matrix> =
            (0..self.clients).map(|_| Matrix::from_fn(r, c, |_, _| random.normal())).collect();
        let mean = drawn.iter().fold(Matrix::zeros(r, c), |sum, one| sum + one) / n;
        let centered: Vec<Matrix> = drawn.into_iter().map(|one| one - &mean).collect();
        let square = centered.iter().flat_map(Matrix::iter).fold(0.0, |sum, v| sum + v * v) / n;
        // One client has nothing of its own.
        let scale = if square > 0.0 { self.heterogeneity / square.sqrt() } else { 0.0 };
        centered.into_iter().map(|one| one * scale).collect()
    }

    /// Draws the truth and all clients.
    #[must_use]
    pub fn dataset(&self, seed: u64) -> Dataset {
        let Self { d, outputs, samples, noise_std, fresh, test_samples, .. } = *self;
        let (down, ups) = self.truth(seed);
        let client = |(client, up): (u64, &Matrix)| {
            // Row-major.
            let map = Arc::new(product(&down, up).transpose().as_slice().to_vec());
            let purpose = Purpose::Samples;
            let generator =
                Generator { map, outputs, feature_std: 1.0, noise_std, samples, seed, client, purpose };
            let mut client = Client::new(generator.batch(0), generator.tests(test_samples).batch(0));
            client.fresh = fresh.then_some(generator);
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
