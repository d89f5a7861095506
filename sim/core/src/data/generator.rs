//! Generator of a client's batches from a linear model: `y = M_i^T x + noise` with normal x.

use std::sync::Arc;

use fedspan_engine::random::{Purpose, stream};

use super::{Labels, Set};

/// Generator of one client's batches.
#[derive(Clone, Debug)]
pub struct Generator {
    /// True map `M_i`, d x C, row-major.
    pub map: Arc<Vec<f64>>,
    /// Number of outputs, `C`.
    pub outputs: usize,
    /// Standard deviation of each feature.
    pub feature_std: f64,
    /// Number of measured features. The features after these are 0.
    pub measured: usize,
    /// Standard deviation of the noise on each target.
    pub noise_std: f64,
    /// Number of samples in a batch.
    pub samples: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// Number of the client.
    pub client: u64,
    /// Stream that the draws come from.
    pub purpose: Purpose,
}

impl Generator {
    /// Creates the generator of the client's test samples, whose targets have no noise.
    #[must_use]
    pub fn tests(&self, samples: usize) -> Self {
        Self { noise_std: 0.0, samples, purpose: Purpose::Test, ..self.clone() }
    }

    /// Draws the batch of a round. Repeated calls for one round return the same batch.
    #[must_use]
    pub fn batch(&self, round: u64) -> Set {
        let mut random = stream(self.seed, self.purpose, self.client << 32 | round);
        let outputs = self.outputs.max(1);
        let mut x = Vec::with_capacity(self.samples * self.map.len() / outputs);
        let mut y = Vec::with_capacity(self.samples * outputs);
        let mut noiseless = vec![0.0; outputs];
        for _ in 0..self.samples {
            noiseless.fill(0.0);
            for (feature, row) in self.map.chunks_exact(outputs).enumerate() {
                let draw = self.feature_std * random.normal();
                let value = if feature < self.measured { draw } else { 0.0 };
                for (sum, factor) in noiseless.iter_mut().zip(row) {
                    *sum += factor * value;
                }
                x.push(narrow(value));
            }
            y.extend(noiseless.iter().map(|noiseless| narrow(noiseless + self.noise_std * random.normal())));
        }
        Set::new(x, Labels::Values { values: y, outputs })
    }
}

#[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}
