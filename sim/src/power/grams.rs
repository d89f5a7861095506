//! A fleet of which only the Gram matrices are kept: what FedPower needs of a device's samples, d x d instead of s x d.

use fedspan_aggregator::linalg::{Matrix, product, top_eigenspace};

/// Devices as their `A_i = (1/s) M_i^T M_i`.
#[derive(Clone, Debug, PartialEq)]
pub struct Grams {
    /// One a device, d x d.
    pub grams: Vec<Matrix>,
    /// s, samples of each device.
    pub samples: u64,
    /// The eigenspace that is looked for, d x k: that of the mean of all.
    pub truth: Matrix,
}

impl Grams {
    /// These devices, with the same number of samples each; k directions are looked for.
    #[must_use]
    pub fn new(grams: Vec<Matrix>, samples: u64, k: usize) -> Self {
        let d = grams.first().map_or(0, Matrix::nrows);
        let mut pooled = Matrix::zeros(d, d);
        for gram in &grams {
            pooled += gram;
        }
        Self { truth: top_eigenspace(&pooled, k), grams, samples }
    }

    /// `A_i Z`.
    #[must_use]
    pub fn product(&self, device: usize, z: &Matrix) -> Option<Matrix> {
        self.grams.get(device).map(|gram| product(gram, z))
    }
}
