//! Fleet in which each device is represented by its d x d Gram matrix. FedPower uses the s x d samples of a
//! device only through this matrix.

use fedspan_engine::linalg::{Matrix, product};
use rayon::prelude::*;

use fedspan_sim_core::data::DataError;
use fedspan_sim_core::data::eigenspace::{Eigenspace, Gram};
use fedspan_sim_core::data::spiked_covariance::Model;
use fedspan_sim_core::scenario::{DataSection, Scenario};

/// Fleet of devices with Gram matrices `A_i = (1/s) M_i^T M_i`, where `M_i` has the samples of device i as
/// rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Grams {
    /// Gram matrix of each device, d x d.
    pub grams: Vec<Matrix>,
    /// Number of samples of each device, s.
    pub samples: Vec<u64>,
    /// Orthonormal basis of the true eigenspace, d x k.
    pub truth: Matrix,
}

impl Grams {
    /// Computes the Gram matrices of a scenario. Synthetic samples are not stored, so the memory use does not
    /// depend on their number.
    ///
    /// # Errors
    /// [`DataError`] if a file cannot be used or the true eigenspace is not unique.
    pub fn from_scenario(scenario: &Scenario) -> Result<Self, DataError> {
        let (sums, k): (Vec<Gram>, usize) = match &scenario.data {
            DataSection::Spiked(settings) => {
                let model = Model::new(*settings, scenario.seed);
                let devices: Vec<usize> = (0..settings.clients).collect();
                (devices.par_iter().map(|device| model.gram(*device)).collect(), settings.k)
            }
            data => {
                let dataset = scenario.dataset(scenario.seed)?;
                let d = dataset.features;
                let k = match data {
                    DataSection::Blocks(blocks) => blocks.k,
                    _ => scenario.model.target,
                };
                (dataset.clients.par_iter().map(|client| Gram::from_client(client, d)).collect(), k)
            }
        };
        let samples = sums.iter().map(Gram::rows).collect();
        let grams = sums.into_iter().map(Gram::mean).collect();
        Self::new(grams, samples, k).map_err(|error| DataError::new(&scenario.name, error.to_string()))
    }

    /// Creates a fleet from Gram matrices and sample counts. The true eigenspace is spanned by the k leading
    /// eigenvectors of the mean Gram matrix, weighted by sample counts.
    ///
    /// # Errors
    /// [`NoEigenspace`](fedspan_sim_core::data::eigenspace::NoEigenspace) if the true eigenspace is not
    /// unique.
    pub fn new(
        grams: Vec<Matrix>,
        samples: Vec<u64>,
        k: usize,
    ) -> Result<Self, fedspan_sim_core::data::eigenspace::NoEigenspace> {
        let d = grams.first().map_or(0, Matrix::nrows);
        let total_samples = samples.iter().sum::<u64>().max(1) as f64;
        let mut pooled = Matrix::zeros(d, d);
        for (gram, samples) in grams.iter().zip(&samples) {
            pooled += gram * (*samples as f64 / total_samples);
        }
        Ok(Self { truth: Eigenspace::top(&pooled, k)?.basis, grams, samples })
    }

    /// Sample count that a device declares to the server, at most `u32::MAX`; 0 for an unknown device.
    #[must_use]
    pub fn declared(&self, device: u64) -> u32 {
        let samples = usize::try_from(device).ok().and_then(|device| self.samples.get(device));
        samples.map_or(0, |samples| u32::try_from(*samples).unwrap_or(u32::MAX))
    }

    /// Computes the product `A_i Z`. Returns `None` for an unknown device.
    #[must_use]
    pub fn product(&self, device: usize, z: &Matrix) -> Option<Matrix> {
        self.grams.get(device).map(|gram| product(gram, z))
    }
}
