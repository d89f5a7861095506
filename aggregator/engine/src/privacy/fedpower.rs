//! Calibration of the privacy noise of FedPower (Guo, Li, Chang, Wang and Zhang), which a device adds to each
//! product `A Z` before it uploads the product.
//!
//! `A = weight M^T M` is d x d, and each row of `M` is a record of L2 norm at most 1. `Z` is d x r with
//! orthonormal columns and may depend on all earlier releases. Noise of standard deviation `nu` is added to
//! each of the `d r` entries of the product.
//!
//! Replacing a record `u` by `v` changes the product by `weight (u u^T - v v^T) Z`. The paper bounds each
//! column by `|u|^2 + |v|^2`, which gives a sensitivity of `2 sqrt r` times the weight. The attained
//! sensitivity is smaller: `u u^T - v v^T` has a spectral norm of at most 1 and a Frobenius norm of at most
//! `sqrt(|u|^4 + |v|^4 - 2 (u v)^2)`. So the sensitivity is the weight for one column, and `sqrt 2` times the
//! weight for more columns, attained if `u` and `v` are orthogonal unit vectors in the span of `Z`.

use super::calibration::noise_multiplier;
use super::parameters::is_positive;
use super::{Delta, Epsilon, ParameterError, Releases};

/// Method by which the noise is calibrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calibration {
    /// Uses the attained sensitivity and the exact privacy account.
    #[default]
    Tight,
    /// Uses Theorem 6 as printed in the paper.
    Paper,
}

impl Calibration {
    /// Name of the method in configuration files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tight => "tight",
            Self::Paper => "paper",
        }
    }
}

/// Sensitivity of the products `A Z` that a device releases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Products {
    rank: u32,
    weight: f64,
}

impl Products {
    /// Describes products with bases of `rank` columns in which each record has the weight `weight`. If `A`
    /// is the mean over the device's records, the weight is 1 over their number; in the paper it is `m / n`,
    /// the number of machines over the number of records of all machines.
    ///
    /// # Errors
    /// [`ParameterError::Rank`] if `rank` is 0, and [`ParameterError::Weight`] if `weight` is not finite and
    /// above 0.
    pub fn new(rank: u32, weight: f64) -> Result<Self, ParameterError> {
        match rank {
            0 => Err(ParameterError::Rank(rank)),
            _ if !is_positive(weight) => Err(ParameterError::Weight(weight)),
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

    /// Standard deviation `nu` of the noise for a total of `releases` products, whether they are uploaded or
    /// not.
    ///
    /// # Errors
    /// [`ParameterError::OutOfReach`] if no finite noise suffices.
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
        // The last factor covers the rounding of the product.
        let noise = self.sensitivity(calibration) * multiplier * (1.0 + 4.0 * f64::EPSILON);
        if noise.is_finite() {
            Ok(noise)
        } else {
            let (epsilon, delta, releases) = (epsilon.get(), delta.get(), releases.get());
            Err(ParameterError::OutOfReach { epsilon, delta, releases })
        }
    }
}

/// Noise multiplier of Theorem 6 for `T` releases:
/// `max(sqrt(T / epsilon), 2 sqrt(2 T ln(1 / delta)) / epsilon)`. The standard deviation `nu` is
/// `2 sqrt(r) m / n` times the multiplier. The theorem converts `T / (2 z^2)`-zCDP to (epsilon, delta) by the
/// classical bound (Mironov 2017, Proposition 3) and limits each of its two terms to half of epsilon.
#[must_use]
pub fn paper_multiplier(epsilon: Epsilon, delta: Delta, releases: Releases) -> f64 {
    let (epsilon, releases) = (epsilon.get(), f64::from(releases.get()));
    let tail = -libm::log(delta.get());
    (releases / epsilon).sqrt().max(2.0 * (2.0 * releases * tail).sqrt() / epsilon)
}
