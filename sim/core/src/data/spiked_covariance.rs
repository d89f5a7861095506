//! Generator of data from FedPower's Model I (Guo et al. 2024, section 5): rows from N(0, U U^T + sigma^2 I),
//! scaled to norm 1.

use fedspan_engine::linalg::{Matrix, orthonormal};
use fedspan_engine::random::{Purpose, Stream, stream};
use rayon::prelude::*;

use super::eigenspace::{self, Eigenspace, Gram, NoEigenspace, pooled};
use super::{Client, Dataset, LARGEST_VALUES, Set};

/// Settings of `kind = "spiked-covariance"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpikedCovariance {
    /// Number of clients.
    pub clients: usize,
    /// Number of features.
    pub d: usize,
    /// Number of directions with larger variance.
    pub k: usize,
    /// Number of samples per client.
    pub samples: usize,
    /// Standard deviation of the noise, `sigma`.
    pub noise_std: f64,
}

impl SpikedCovariance {
    /// Checks that the data have at most [`LARGEST_VALUES`] values.
    ///
    /// # Errors
    /// A one-line message with the sizes if they have more.
    pub fn check(&self) -> Result<(), String> {
        let Self { clients, d, samples, .. } = *self;
        let values = self.values();
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        let bytes = values.saturating_mul(4);
        Err(format!(
            "{clients} clients x {samples} samples x {d} features: {values} values ({bytes} bytes), allowed: at most \
             {LARGEST_VALUES} (2^31, 8 GiB)"
        ))
    }

    /// Memory of the data in units of an f32.
    #[must_use]
    pub fn values(&self) -> u64 {
        let Self { clients, d, samples, .. } = *self;
        // Each row has d features and a zero in place of a target.
        let rows = (clients as u64).saturating_mul(samples as u64);
        rows.saturating_mul(d as u64 + 1).saturating_add(eigenspace::values(d))
    }
}

/// Model with its directions, which generates the rows of all clients.
#[derive(Clone, Debug)]
pub struct Model {
    settings: SpikedCovariance,
    seed: u64,
    /// Directions `U`, orthonormal.
    directions: Matrix,
}

impl Model {
    /// Draws the directions: the orthonormal factor of a d x k matrix from N(0.5, 1).
    #[must_use]
    pub fn new(settings: SpikedCovariance, seed: u64) -> Self {
        let mut random = stream(seed, Purpose::Truth, 0);
        let directions = loop {
            let random_matrix = Matrix::from_fn(settings.d, settings.k, |_, _| 0.5 + random.normal());
            if let Ok(directions) = orthonormal(&random_matrix) {
                break directions;
            }
        };
        Self { settings, seed, directions }
    }

    /// Directions `U`, d x k. Their span is close to FedPower's target, the top eigenspace of the drawn rows.
    #[must_use]
    pub fn directions(&self) -> &Matrix {
        &self.directions
    }

    /// Creates the generator of a client's rows, which starts at the first row.
    fn rows(&self, client: usize) -> Rows {
        let d = self.settings.d;
        Rows {
            random: stream(self.seed, Purpose::Samples, (client as u64) << 32),
            u: self.directions.transpose().as_slice().to_vec(),
            noise_std: self.settings.noise_std,
            z: vec![0.0; self.settings.k],
            drawn: vec![0.0; d],
        }
    }

    /// Draws a client's rows.
    #[must_use]
    pub fn set(&self, client: usize) -> Set {
        let SpikedCovariance { d, samples, .. } = self.settings;
        let mut rows = self.rows(client);
        let mut x = Vec::with_capacity(samples * d);
        for _ in 0..samples {
            rows.draw();
            x.extend(rows.scaled());
        }
        Set::unlabelled(x, d)
    }

    /// Accumulates `M^T M` of a client's rows. The rows have the same bits as in [`Self::set`], but only a
    /// few rows are in memory at a time.
    #[must_use]
    pub fn gram(&self, client: usize) -> Gram {
        let SpikedCovariance { d, samples, .. } = self.settings;
        let (mut rows, mut gram) = (self.rows(client), Gram::new(d));
        let mut row = Vec::with_capacity(d);
        for _ in 0..samples {
            rows.draw();
            row.clear();
            row.extend(rows.scaled());
            gram.add(&row);
        }
        gram
    }

    /// Top eigenspace of the rows of all clients, computed without holding all rows in memory.
    ///
    /// # Errors
    /// [`NoEigenspace`] if the eigenspace is not unique.
    pub fn eigenspace(&self) -> Result<Eigenspace, NoEigenspace> {
        let SpikedCovariance { clients, d, k, .. } = self.settings;
        Eigenspace::top(&pooled(d, clients, |client| self.gram(client)), k)
    }

    /// Creates a data set with the rows of all clients.
    ///
    /// # Errors
    /// [`NoEigenspace`] if the top eigenspace of all rows is not unique.
    pub fn dataset(&self) -> Result<Dataset, NoEigenspace> {
        let SpikedCovariance { clients, d, k, .. } = self.settings;
        let numbers: Vec<usize> = (0..clients).collect();
        let clients =
            numbers.par_iter().map(|&client| Client::new(self.set(client), Set::unlabelled(Vec::new(), d)));
        Dataset::unlabelled(d, clients.collect(), k)
    }
}

/// Generator of a client's rows.
struct Rows {
    random: Stream,
    /// Directions `U`, row-major.
    u: Vec<f64>,
    noise_std: f64,
    z: Vec<f64>,
    drawn: Vec<f64>,
}

impl Rows {
    /// Draws the next row: `U z + sigma e`.
    fn draw(&mut self) {
        let Self { random, u, noise_std, z, drawn } = self;
        z.fill_with(|| random.normal());
        for (x, u) in drawn.iter_mut().zip(u.chunks_exact(z.len().max(1))) {
            let noiseless = u.iter().zip(z.iter()).fold(0.0, |sum, (u, z)| sum + u * z);
            *x = noiseless + *noise_std * random.normal();
        }
    }

    /// Current row in f32, scaled to norm 1.
    fn scaled(&self) -> impl Iterator<Item = f32> + '_ {
        let norm = self.drawn.iter().fold(0.0, |sum, x| sum + x * x).sqrt();
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        #[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
        self.drawn.iter().map(move |x| (x * scale) as f32)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fedspan_engine::linalg::principal_angle_distance;

    use super::*;

    const SMALL: SpikedCovariance = SpikedCovariance { clients: 5, d: 8, k: 2, samples: 70, noise_std: 0.6 };

    #[test]
    fn unscaled_rows_have_model_covariance() {
        let settings = SpikedCovariance { d: 6, ..SMALL };
        let model = Model::new(settings, 3);
        let count = 40_000;
        let d = 6;
        let mut rows = model.rows(0);
        let mut sums = Matrix::zeros(d, d);
        let mut mean = vec![0.0; d];
        for _ in 0..count {
            rows.draw();
            for i in 0..d {
                mean[i] += rows.drawn[i] / count as f64;
                for j in 0..d {
                    sums[(i, j)] += rows.drawn[i] * rows.drawn[j] / count as f64;
                }
            }
        }
        let u = model.directions();
        let sigma = u * u.transpose() + Matrix::identity(d, d) * (0.6 * 0.6);
        for i in 0..d {
            let deviation = (sigma[(i, i)] / count as f64).sqrt();
            assert!(mean[i].abs() < 5.0 * deviation, "{i}: {} of {deviation}", mean[i]);
            for j in 0..d {
                let square = sigma[(i, i)] * sigma[(j, j)] + sigma[(i, j)] * sigma[(i, j)];
                let (error, deviation) = (sums[(i, j)] - sigma[(i, j)], (square / count as f64).sqrt());
                assert!(error.abs() < 5.0 * deviation, "({i}, {j}): {error} of {deviation}");
            }
        }
    }

    #[test]
    fn rows_have_norm_one() {
        for noise_std in [0.0, 0.6, 1e6] {
            let set = Model::new(SpikedCovariance { noise_std, ..SMALL }, 1).set(0);
            assert_eq!((set.len(), set.x.len()), (70, 70 * 8));
            for row in set.x.chunks(8) {
                let square: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                assert!((square - 1.0).abs() < 1e-6, "{square}");
            }
        }
    }

    #[test]
    fn directions_reflect_a_mean_of_one_half() {
        let model = Model::new(SpikedCovariance { d: 3000, k: 1, ..SMALL }, 2);
        assert!((model.directions().norm() - 1.0).abs() < 1e-12);
        // Entries before normalisation have mean 1/2 and mean square 1 + 1/4; (1/2)^2 is a fifth of 1 + 1/4.
        let part = model.directions().sum().powi(2) / 3000.0;
        assert!((part - 0.2).abs() < 0.04, "{part}");
        let other_seed = Model::new(SMALL, 2);
        let products = other_seed.directions().transpose() * other_seed.directions();
        assert!((products - Matrix::identity(2, 2)).amax() < 1e-14);
    }

    #[test]
    fn streamed_gram_equals_stored_gram_bit_for_bit() {
        let model = Model::new(SMALL, 4);
        let dataset = model.dataset().unwrap();
        for (client, stored) in dataset.clients.iter().enumerate() {
            assert_eq!(model.gram(client).mean(), Gram::from_client(stored, 8).mean(), "{client}");
        }
        assert_eq!(Some(model.eigenspace().unwrap().basis), dataset.truth);
    }

    #[test]
    fn rows_depend_on_seed_and_client_but_not_on_threads() {
        let data = |seed: u64, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let dataset = pool.install(|| Model::new(SMALL, seed).dataset()).unwrap();
            let rows: Vec<Vec<f32>> = dataset.clients.iter().map(|client| client.train.x.clone()).collect();
            (rows, dataset.truth)
        };
        let seed_1 = data(1, 1);
        assert!(seed_1 == data(1, 2) && seed_1 == data(1, 3));
        let seed_2 = data(2, 1);
        assert!(seed_1.1 != seed_2.1);
        let mut all_rows: Vec<Vec<f32>> = seed_1.0.into_iter().chain(seed_2.0).collect();
        all_rows.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all_rows.dedup();
        assert_eq!(all_rows.len(), 10);
    }

    /// Uses the sizes of the paper, with a tenth of the samples.
    #[test]
    fn eigenspace_of_many_rows_approaches_directions() {
        let settings = SpikedCovariance { clients: 20, d: 100, k: 4, samples: 10_000, noise_std: 0.6 };
        let model = Model::new(settings, 1);
        let eigenspace = model.eigenspace().unwrap();
        let distance = principal_angle_distance(&eigenspace.basis, model.directions());
        assert!(distance < 0.03, "{distance}");
        // Four directions have variance 1 + 0.36 each, and the total variance is 4 + 100 x 0.36 = 40. The
        // mean of quotients is slightly smaller than the quotient of means.
        let expected = 1.36 / 40.0;
        assert!(
            eigenspace.eigenvalues[..4].iter().all(|value| (value / expected - 1.0).abs() < 0.1),
            "{eigenspace:?}"
        );
        assert!(eigenspace.eigenvalues[4] < 0.36 / 40.0 * 1.15, "{}", eigenspace.eigenvalues[4]);
    }

    #[test]
    fn check_reports_excess_in_bytes() {
        assert_eq!(SMALL.check(), Ok(()));
        let paper = SpikedCovariance { clients: 20, d: 100, k: 4, samples: 100_000, noise_std: 0.6 };
        assert_eq!(paper.check(), Ok(()));
        let message = SpikedCovariance { clients: 300, ..paper }.check().unwrap_err();
        // 300 x 100000 rows have 101 values each; 20 matrices of 100 x 100 are in f64.
        assert!(message.contains("3030400000 values (12121600000 bytes)"), "{message}");
        let too_large = SpikedCovariance { clients: usize::MAX, samples: usize::MAX, ..paper };
        assert!(too_large.check().is_err());
    }
}
