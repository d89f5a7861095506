//! A fleet that keeps only the Gram matrices of its devices: FedPower needs d x d numbers of a device instead
//! of its s x d samples.

use fedspan_engine::linalg::{Matrix, product};
use rayon::prelude::*;

use fedspan_sim_core::data::DataError;
use fedspan_sim_core::data::eigenspace::{Eigenspace, Gram};
use fedspan_sim_core::data::spiked_covariance::Model;
use fedspan_sim_core::scenario::{DataSection, Scenario};

/// Devices as their Gram matrices `A_i = (1/s) M_i^T M_i`.
#[derive(Clone, Debug, PartialEq)]
pub struct Grams {
    /// Gram matrix of each device, d x d.
    pub grams: Vec<Matrix>,
    /// Number of samples of each device, s.
    pub samples: Vec<u64>,
    /// True eigenspace, d x k.
    pub truth: Matrix,
}

impl Grams {
    /// Computes the Gram matrices of a scenario. Synthetic rows are not kept, so memory does not grow with the
    /// number of samples.
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

    /// Creates a fleet of these devices. The truth is the top k eigenspace of the mean over all samples.
    ///
    /// # Errors
    /// [`NoEigenspace`](fedspan_sim_core::data::eigenspace::NoEigenspace) if that eigenspace is not unique.
    pub fn new(
        grams: Vec<Matrix>,
        samples: Vec<u64>,
        k: usize,
    ) -> Result<Self, fedspan_sim_core::data::eigenspace::NoEigenspace> {
        let d = grams.first().map_or(0, Matrix::nrows);
        let all = samples.iter().sum::<u64>().max(1) as f64;
        let mut pooled = Matrix::zeros(d, d);
        for (gram, samples) in grams.iter().zip(&samples) {
            pooled += gram * (*samples as f64 / all);
        }
        Ok(Self { truth: Eigenspace::top(&pooled, k)?.basis, grams, samples })
    }

    /// Sample count that a device declares to the server.
    #[must_use]
    pub fn declared(&self, device: u64) -> u32 {
        let samples = usize::try_from(device).ok().and_then(|device| self.samples.get(device));
        samples.map_or(0, |samples| u32::try_from(*samples).unwrap_or(u32::MAX))
    }

    /// The product `A_i Z`.
    #[must_use]
    pub fn product(&self, device: usize, z: &Matrix) -> Option<Matrix> {
        self.grams.get(device).map(|gram| product(gram, z))
    }
}
