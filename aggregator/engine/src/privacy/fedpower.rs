//! Noise of FedPower (Guo, Li, Chang, Wang and Zhang), which a device adds to each product `A Z` before it
//! uploads it.
//!
//! `A = weight M^T M` is d x d, and each row of `M` is a record of L2 norm at most 1. `Z` is d x r with
//! orthonormal columns and may depend on all earlier releases. Noise is added to each of the `d r` entries of
//! the product; its standard deviation `nu` is in the unit of these.
//!
//! Replacing a record `u` by `v` moves the product by `weight (u u^T - v v^T) Z`. The paper bounds each
//! column by `|u|^2 + |v|^2`, which gives `2 sqrt r`. The attained value is less: `u u^T - v v^T` has a
//! spectral norm of at most 1 and a Frobenius norm of at most `sqrt(|u|^4 + |v|^4 - 2 (u v)^2)`, so it is 1
//! for one column and `sqrt 2` for more, the latter if `u` and `v` are orthogonal unit vectors in the span of
//! `Z`.

use super::calibration::noise_multiplier;
use super::parameters::positive;
use super::{Delta, Epsilon, ParameterError, Releases};

/// Calibration of the noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calibration {
    /// By the attained sensitivity and the exact account.
    #[default]
    Tight,
    /// By Theorem 6 as printed.
    Paper,
}

impl Calibration {
    /// Name in configuration files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tight => "tight",
            Self::Paper => "paper",
        }
    }
}

/// Releases of a device: products with bases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Products {
    rank: u32,
    weight: f64,
}

impl Products {
    /// Creates products with bases of `rank` columns in which a record weighs `weight`: 1 over the device's
    /// records if `A` is their mean; machines over all records of all machines (`m / n`) in the paper.
    ///
    /// # Errors
    /// [`ParameterError::Rank`] if `rank` is 0, and [`ParameterError::Weight`] if `weight` is not finite and
    /// above 0.
    pub fn new(rank: u32, weight: f64) -> Result<Self, ParameterError> {
        match rank {
            0 => Err(ParameterError::Rank(rank)),
            _ if !positive(weight) => Err(ParameterError::Weight(weight)),
            _ => Ok(Self { rank, weight }),
        }
    }

    /// L2 sensitivity that a calibration assumes.
    #[must_use]
    pub fn sensitivity(self, calibration: Calibration) -> f64 {
        self.weight
            * match calibration {
                Calibration::Paper => 2.0 * f64::from(self.rank).sqrt(),
                Calibration::Tight if self.rank == 1 => 1.0,
                Calibration::Tight => std::f64::consts::SQRT_2,
            }
    }

    /// Standard deviation `nu` of the noise for `releases` products in all, communicated or not.
    ///
    /// # Errors
    /// [`ParameterError::OutOfReach`] if no finite noise is enough.
    pub fn noise(
        self,
        calibration: Calibration,
        epsilon: Epsilon,
        delta: Delta,
        releases: Releases,
    ) -> Result<f64, ParameterError> {
        let multiplier = match calibration {
            Calibration::Paper => paper_multiplier(epsilon, delta, releases),
            Calibration::Tight => noise_multiplier(epsilon, delta, releases)?.get(),
        };
        // Covers the rounding of the product.
        let noise = self.sensitivity(calibration) * multiplier * (1.0 + 4.0 * f64::EPSILON);
        if noise.is_finite() {
            Ok(noise)
        } else {
            let (epsilon, delta, releases) = (epsilon.get(), delta.get(), releases.get());
            Err(ParameterError::OutOfReach { epsilon, delta, releases })
        }
    }
}

/// Noise multiplier of Theorem 6: `max(sqrt(T / epsilon), 2 sqrt(2 T ln(1 / delta)) / epsilon)`; `nu` is
/// `2 sqrt(r) m / n` times that. The theorem lets both terms of the classical conversion of
/// `T / (2 z^2)`-zCDP (Mironov 2017, Proposition 3) be half of epsilon.
#[must_use]
pub fn paper_multiplier(epsilon: Epsilon, delta: Delta, releases: Releases) -> f64 {
    let (epsilon, releases) = (epsilon.get(), f64::from(releases.get()));
    let tail = -libm::log(delta.get());
    (releases / epsilon).sqrt().max(2.0 * (2.0 * releases * tail).sqrt() / epsilon)
}
