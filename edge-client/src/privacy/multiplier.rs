//! Noise multiplier: the ratio of the noise's standard deviation to the sensitivity.

use core::fmt;

use super::discrete_gaussian::{Variance, VarianceError};

/// Negated binary exponent of the unit of squares, which is `2^-UNIT`.
const UNIT: u32 = 16;

/// Negated binary exponent of the unit of costs, which is `2^-COST`.
const COST: u32 = 30;

/// Largest square (z = 1/2) that is rejected because its release cost does not fit 32 bits.
const SQUARE_TOO_SMALL: u64 = 1 << (UNIT - 2);

/// Largest allowed square (z = 4096).
const SQUARE_MAX: u64 = 1 << (UNIT + 24);

/// Exclusive bound on the sensitivity: from this value on the variance is too large for the sampler even with
/// the least noise.
const SENSITIVITY_TOO_LARGE: u64 = 1 << 29;

/// Variance added for the step from continuous to discrete noise, so that the privacy account of the
/// continuous mechanism holds for the discrete mechanism.
///
/// The discrete Gaussian of variance `s^2 + 16` around an integer can be derived from the continuous Gaussian
/// of variance `s^2` around the same integer by a step that does not depend on the integer: draw x from the
/// continuous Gaussian, then y from the discrete Gaussian of variance 16 around x. The density of x times the
/// probability of y, integrated over x, is the discrete Gaussian of variance `s^2 + 16` up to the variation
/// of the sums `sum over integers y of exp(-(y - x)^2 / 32)` with x. This variation is a factor between
/// `1 - 10^-130` and `1 + 10^-130`, because by Poisson's formula the sums are
/// `4 sqrt(2 pi) (1 + 2 exp(-2 pi^2 16) cos(2 pi x) + ...)`, and `exp(-2 pi^2 16) < 10^-137`.
const SMOOTHING: u128 = 16;

/// Noise multiplier `z`: standard deviation divided by sensitivity. The type stores `z^2` in units of 2^-16;
/// `z^2` is above 1/4 and at most 2^24.
///
/// ```
/// use fedspan_client::privacy::NoiseMultiplier;
///
/// // z = 2: a release costs a quarter of 2^30.
/// let z = NoiseMultiplier::from_square(4 << 16)?;
/// assert_eq!(z.release(), 1 << 28);
/// // Sensitivity of a sum that one record changes by at most 1000 units of its grid.
/// assert_eq!(z.variance(1000)?.ratio(), (4 * 1000 * 1000 + 16, 1));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NoiseMultiplier {
    /// Square `z^2` in units of 2^-16.
    square: u64,
    /// Cost of one release, in units of 2^-30.
    release: u32,
}

impl NoiseMultiplier {
    /// Creates a multiplier from `z^2`, in units of 2^-16.
    ///
    /// # Errors
    /// [`NoiseMultiplierError`] for 2^14 or less (z of at most 1/2; its release would cost at least 2^32),
    /// and for more than 2^40.
    pub const fn from_square(square: u64) -> Result<Self, NoiseMultiplierError> {
        if square <= SQUARE_TOO_SMALL || square > SQUARE_MAX {
            return Err(NoiseMultiplierError { square });
        }
        // The quotient is below 2^32 because the square is above 2^14.
        #[allow(clippy::cast_possible_truncation, reason = "32 bits")]
        let release = (1u64 << (UNIT + COST)).div_ceil(square) as u32;
        Ok(Self { square, release })
    }

    /// Returns `z^2`, in units of 2^-16.
    #[must_use]
    pub const fn square(self) -> u64 {
        self.square
    }

    /// Returns the cost of one release with this noise: `1 / z^2` in units of 2^-30, rounded up.
    #[must_use]
    pub const fn release(self) -> u32 {
        self.release
    }

    /// Returns the variance of the noise for a sensitivity (L2, in units of the grid):
    /// `ceil(z^2 sensitivity^2) + 16`. With the additional 16 the privacy account of continuous noise holds
    /// for integer noise.
    ///
    /// # Errors
    /// [`VarianceError`] if the variance is too large for the sampler.
    pub fn variance(self, sensitivity: u64) -> Result<Variance, VarianceError> {
        let too_large = VarianceError::TooLarge { numerator: u64::MAX, denominator: 1 };
        if sensitivity >= SENSITIVITY_TOO_LARGE {
            return Err(too_large);
        }
        // The factors are below 2^58 and at most 2^40.
        let product = u128::from(sensitivity * sensitivity) * u128::from(self.square);
        let variance = product.div_ceil(1 << UNIT) + SMOOTHING;
        Variance::new(u64::try_from(variance).map_err(|_| too_large)?, 1)
    }
}

/// Error of a noise multiplier that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseMultiplierError {
    /// Square that was given, in units of 2^-16.
    pub square: u64,
}

impl fmt::Display for NoiseMultiplierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { square } = self;
        write!(f, "a squared noise multiplier of {square}/2^16; allowed: above 1/4 and at most 2^24")
    }
}

impl core::error::Error for NoiseMultiplierError {}
