//! The noise of FedPower (Guo, Li, Chang, Wang and Zhang): what a device adds to each product `A Z` before it leaves.
//!
//! `A = weight M^T M` is d x d, `M` has a record of L2 norm at most 1 in each row, `Z` is d x r with orthonormal columns and may depend
//! on all that was released before. Noise is added to each of the `d r` entries of the product, in whose unit its
//! standard deviation `nu` is.
//!
//! A record `u` that is replaced by `v` moves the product by `weight (u u^T - v v^T) Z`. The paper bounds each column by
//! `|u|^2 + |v|^2`, which gives `2 sqrt r`. Attained is less: `u u^T - v v^T` has a spectral norm of at most 1 and a
//! Frobenius norm of at most `sqrt(|u|^4 + |v|^4 - 2 (u v)^2)`, so it is 1 for one column and `sqrt 2` for more, the latter where `u` and
//! `v` are orthogonal unit vectors in the span of `Z`.

use super::calibration::noise_multiplier;
use super::parameters::positive;
use super::{Delta, Epsilon, ParameterError, Releases};

/// How the noise is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calibration {
    /// The sensitivity that is attained, and the exact account.
    #[default]
    Tight,
    /// Theorem 6 as it is printed.
    Paper,
}

impl Calibration {
    /// The name as it stands in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tight => "tight",
            Self::Paper => "paper",
        }
    }
}

/// What a device releases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Products {
    rank: u32,
    weight: f64,
}

impl Products {
    /// Products with bases of `rank` columns in which a record weighs `weight`: 1 over the device's records if `A` is their
    /// mean; machines over all records of all machines (`m / n`) in the paper.
    ///
    /// # Errors
    /// [`ParameterError::Rank`] and [`ParameterError::Weight`].
    pub fn new(rank: u32, weight: f64) -> Result<Self, ParameterError> {
        match rank {
            0 => Err(ParameterError::Rank(rank)),
            _ if !positive(weight) => Err(ParameterError::Weight(weight)),
            _ => Ok(Self { rank, weight }),
        }
    }

    /// The L2 sensitivity that a calibration reckons with.
    #[must_use]
    pub fn sensitivity(self, calibration: Calibration) -> f64 {
        self.weight
            * match calibration {
                Calibration::Paper => 2.0 * f64::from(self.rank).sqrt(),
                Calibration::Tight if self.rank == 1 => 1.0,
                Calibration::Tight => std::f64::consts::SQRT_2,
            }
    }

    /// The standard deviation `nu` for so many products in all, communicated or not.
    ///
    /// # Errors
    /// [`ParameterError::OutOfReach`] where no finite noise is enough.
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
        // A product or two of rounding.
        let noise = self.sensitivity(calibration) * multiplier * (1.0 + 4.0 * f64::EPSILON);
        if noise.is_finite() {
            Ok(noise)
        } else {
            let (epsilon, delta, releases) = (epsilon.get(), delta.get(), releases.get());
            Err(ParameterError::OutOfReach { epsilon, delta, releases })
        }
    }
}

/// Theorem 6 without its sensitivity: `max(sqrt(T / epsilon), 2 sqrt(2 T ln(1 / delta)) / epsilon)`, so that
/// `nu = 2 sqrt(r) m / n` times that. It lets both terms of the classical conversion of `T / (2 z^2)`-zCDP (Mironov
/// 2017, Proposition 3) be half of epsilon.
#[must_use]
pub fn paper_multiplier(epsilon: Epsilon, delta: Delta, releases: Releases) -> f64 {
    let (epsilon, releases) = (epsilon.get(), f64::from(releases.get()));
    let tail = -libm::log(delta.get());
    (releases / epsilon).sqrt().max(2.0 * (2.0 * releases * tail).sqrt() / epsilon)
}
