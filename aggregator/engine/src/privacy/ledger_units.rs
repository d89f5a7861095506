//! Units of the devices' privacy ledgers ([`Privacy`](fedspan_protocol::message::Privacy)). A release costs
//! `(s / sigma)^2` in units of 2^-30, where `s` is its sensitivity and `sigma` the standard deviation of its
//! noise. Costs add up, and the total determines the account of one equivalent Gaussian release.

use super::bisection::largest_u64;
use super::{Composition, Delta, Epsilon, NoiseMultiplier, ParameterError, Releases};

/// Number of units in 1.
const ONE: f64 = 1_073_741_824.0;

/// Square of the noise multiplier, in units of 2^-16, for which a release costs one unit.
const SQUARE_OF_ONE_UNIT: u64 = 1 << 46;

/// Square of the smallest noise multiplier that devices support, in units of 2^-16.
const SQUARE_MIN: u64 = (1 << 14) + 1;
/// Square of the largest noise multiplier that devices support, in units of 2^-16.
const SQUARE_MAX: u64 = 1 << 40;

/// Epsilon of `units` spent units: 0 for 0 units, infinite if the units are too many for an account.
#[must_use]
pub fn epsilon_of(units: u64, delta: Delta) -> f64 {
    if units == 0 {
        return 0.0;
    }
    account(units).map_or(f64::INFINITY, |account| account.epsilon(delta))
}

/// Largest number of units whose epsilon at `delta` is at most `epsilon`.
#[must_use]
pub fn max_units(epsilon: Epsilon, delta: Delta) -> u64 {
    let within = |units: u64| units == 0 || account(units).is_some_and(|a| a.epsilon(delta) <= epsilon.get());
    largest_u64(u64::MAX, within)
}

/// Provisioning of a device that may spend `epsilon` at `delta` in `releases` releases: the square of its
/// noise multiplier, in units of 2^-16, and its budget in ledger units.
///
/// # Errors
/// [`ParameterError::OutOfReach`] if the square would be above 2^40, the largest that devices support.
pub fn provisioned(epsilon: Epsilon, delta: Delta, releases: Releases) -> Result<(u64, u64), ParameterError> {
    let budget = max_units(epsilon, delta);
    match min_multiplier_square(budget, releases).filter(|square| *square <= SQUARE_MAX) {
        Some(square) => Ok((square.max(SQUARE_MIN), budget)),
        None => Err(ParameterError::OutOfReach {
            epsilon: epsilon.get(),
            delta: delta.get(),
            releases: releases.get(),
        }),
    }
}

/// Square of the smallest noise multiplier, in units of 2^-16, for which the charges of `releases` releases
/// stay within a budget; `None` if even the smallest charge of one unit per release exceeds it.
#[must_use]
pub fn min_multiplier_square(budget: u64, releases: Releases) -> Option<u64> {
    // Largest charge per release. A device charges the inverse of the square, rounded up.
    let release = budget / u64::from(releases.get());
    (release > 0).then(|| SQUARE_OF_ONE_UNIT.div_ceil(release))
}

/// Account of one release whose cost is `units`. Its noise multiplier is rounded down.
#[allow(clippy::cast_precision_loss, reason = "rounded down after")]
fn account(units: u64) -> Option<Composition> {
    let multiplier = libm::sqrt(ONE / units as f64) * (1.0 - 4.0 * f64::EPSILON);
    let (multiplier, one_release) = (NoiseMultiplier::new(multiplier).ok()?, Releases::new(1).ok()?);
    Some(Composition::repeated(multiplier, one_release))
}
