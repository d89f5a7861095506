//! FedPower's first model (Guo et al. 2024, section 5): rows from N(0, U U^T + sigma^2 I), scaled to norm 1.

use fedspan_aggregator::linalg::{Matrix, orthonormal};
use fedspan_aggregator::random::{Purpose, Stream, stream};
use rayon::prelude::*;

use super::eigenspace::{self, Eigenspace, Gram, NoEigenspace, pooled};
use super::{Client, Dataset, LARGEST_VALUES, Set};

/// Settings of `kind = "spiked-covariance"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpikedCovariance {
    /// Clients.
    pub clients: usize,
    /// Features.
    pub d: usize,
    /// Directions that stand out.
    pub k: usize,
    /// Samples per client.
    pub samples: usize,
    /// `sigma`.
    pub noise_std: f64,
}

impl SpikedCovariance {
    /// That this machine can hold it.
    ///
    /// # Errors
    /// A sentence with the numbers.
    pub fn check(&self) -> Result<(), String> {
        let Self { clients, d, samples, .. } = *self;
        // A zero a row stands for its target.
        let rows = (clients as u64).saturating_mul(samples as u64);
        let values = rows.saturating_mul(d as u64 + 1).saturating_add(eigenspace::values(d));
        if values <= LARGEST_VALUES {
            return Ok(());
        }
        let bytes = values.saturating_mul(4);
        Err(format!(
            "{clients} clients x {samples} samples x {d} features: {values} values ({bytes} bytes), allowed: at most \
             {LARGEST_VALUES} (2^31, 8 GiB)"
        ))
    }
}

/// The model with its directions, which draws every client's rows.
#[derive(Clone, Debug)]
pub struct Model {
    settings: SpikedCovariance,
    seed: u64,
    /// `U`, orthonormal.
    directions: Matrix,
}

impl Model {
    /// Draws the directions: the orthonormal factor of d x k numbers from N(0.5, 1).
    #[must_use]
    pub fn new(settings: SpikedCovariance, seed: u64) -> Self {
        let mut random = stream(seed, Purpose::Truth, 0);
        let directions = loop {
            let drawn = Matrix::from_fn(settings.d, settings.k, |_, _| 0.5 + random.normal());
            if let Ok(directions) = orthonormal(&drawn) {
                break directions;
            }
        };
        Self { settings, seed, directions }
    }

    /// `U`, d x k. What FedPower finds is the eigenspace of the rows that were drawn, which is near it.
    #[must_use]
    pub fn directions(&self) -> &Matrix {
        &self.directions
    }

    fn rows(&self, client: usize) -> Rows {
        let d = self.settings.d;
        let u = (0..d).flat_map(|i| self.directions.row(i).iter().copied().collect::<Vec<_>>()).collect();
        Rows {
            random: stream(self.seed, Purpose::Samples, (client as u64) << 32),
            u,
            noise_std: self.settings.noise_std,
            z: vec![0.0; self.settings.k],
            drawn: vec![0.0; d],
        }
    }

    /// A client's rows.
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

    /// `M^T M` of a client's rows, to the last bit that of [`Self::set`], of which no more than a few rows are there at
    /// a time.
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

    /// The top eigenspace of all clients' rows, which need not be in memory.
    ///
    /// # Errors
    /// [`NoEigenspace`].
    pub fn eigenspace(&self) -> Result<Eigenspace, NoEigenspace> {
        let SpikedCovariance { clients, d, k, .. } = self.settings;
        Eigenspace::top(&pooled(d, clients, |client| self.gram(client)), k)
    }

    /// All clients with their rows.
    ///
    /// # Errors
    /// [`NoEigenspace`].
    pub fn dataset(&self) -> Result<Dataset, NoEigenspace> {
        let SpikedCovariance { clients, d, k, .. } = self.settings;
        let numbers: Vec<usize> = (0..clients).collect();
        let clients =
            numbers.par_iter().map(|&client| Client::new(self.set(client), Set::unlabelled(Vec::new(), d)));
        Dataset::unlabelled(d, clients.collect(), k)
    }
}

/// A client's rows, one after the other.
struct Rows {
    random: Stream,
    /// `U`, row-major.
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
            let clean = u.iter().zip(z.iter()).fold(0.0, |sum, (u, z)| sum + u * z);
            *x = clean + *noise_std * random.normal();
        }
    }

    /// The row that was drawn, as a device holds it: of norm 1.
    fn scaled(&self) -> impl Iterator<Item = f32> + '_ {
        let norm = self.drawn.iter().fold(0.0, |sum, x| sum + x * x).sqrt();
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        #[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
        self.drawn.iter().map(move |x| (x * scale) as f32)
    }
}
