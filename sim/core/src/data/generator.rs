//! Generator of a client's batches from a linear model: `y = M_i^T x + noise` with normal x.

use std::sync::Arc;

use fedspan_engine::random::{Purpose, stream};

use super::{Labels, Set};

/// Number of values that are drawn at a time, if a sample does not have more.
const BLOCK: usize = 512;

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
        let features = self.map.len() / outputs;
        let width = features + outputs;
        // A few samples at a time, so that their draws stay in the first cache.
        let samples_per_block = (BLOCK / width).max(1);
        let mut draws = vec![0.0; samples_per_block * width];
        let mut remaining = self.samples;
        while remaining > 0 {
            let count = remaining.min(samples_per_block);
            remaining -= count;
            let draws = draws.get_mut(..count * width).unwrap_or_default();
            random.fill_normal(draws);
            for draws in draws.chunks_exact_mut(width) {
                let (features, noise) = draws.split_at_mut(features);
                features.iter_mut().for_each(|draw| *draw *= self.feature_std);
                features.get_mut(self.measured..).unwrap_or_default().fill(0.0);
                x.extend(features.iter().map(|value| narrow(*value)));
                y.extend(noise.iter().enumerate().map(|(output, draw)| {
                    let factors = self.map.iter().skip(output).step_by(outputs);
                    let noiseless =
                        features.iter().zip(factors).fold(0.0, |sum, (x, factor)| sum + factor * x);
                    narrow(noiseless + self.noise_std * draw)
                }));
            }
        }
        Set::new(x, Labels::Values { values: y, outputs })
    }
}

#[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws a batch value by value: the features of a sample, then the noise of its targets.
    fn one_by_one(generator: &Generator, round: u64) -> Set {
        let mut random = stream(generator.seed, generator.purpose, generator.client << 32 | round);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..generator.samples {
            let mut noiseless = vec![0.0; generator.outputs];
            for (feature, row) in generator.map.chunks_exact(generator.outputs).enumerate() {
                let draw = generator.feature_std * random.normal();
                let value = if feature < generator.measured { draw } else { 0.0 };
                for (sum, factor) in noiseless.iter_mut().zip(row) {
                    *sum += factor * value;
                }
                x.push(narrow(value));
            }
            y.extend(noiseless.iter().map(|sum| narrow(sum + generator.noise_std * random.normal())));
        }
        Set::new(x, Labels::Values { values: y, outputs: generator.outputs })
    }

    #[test]
    fn batches_are_those_drawn_one_by_one() {
        let shapes = [(1, 1, 1), (20, 1, 50), (5, 3, 41), (600, 2, 3), (7, 1, 0), (511, 1, 2), (512, 1, 2)];
        for (number, (d, outputs, samples)) in shapes.into_iter().enumerate() {
            let mut random = stream(number as u64, Purpose::Truth, 0);
            let generator = Generator {
                map: Arc::new((0..d * outputs).map(|_| random.normal()).collect()),
                outputs,
                feature_std: 1.5,
                measured: d - d / 3,
                noise_std: 0.1,
                samples,
                seed: 4,
                client: number as u64,
                purpose: Purpose::Samples,
            };
            for round in [0, 7] {
                assert_eq!(generator.batch(round), one_by_one(&generator, round), "d={d} outputs={outputs}");
            }
        }
    }
}
