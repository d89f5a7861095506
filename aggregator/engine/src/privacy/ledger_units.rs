//! The units in which devices keep their ledgers ([`Privacy`](fedspan_protocol::message::Privacy)): squares of
//! sensitivity over standard deviation, in 2^-30. They add up, and the sum is the account of one Gaussian release.

use super::bisection::largest_u64;
use super::{Composition, Delta, Epsilon, NoiseMultiplier, ParameterError, Releases};

/// Units in 1.
const ONE: f64 = 1_073_741_824.0;

/// The square of the multiplier (in units of 2^-16) with which a release costs one unit.
const SQUARE_OF_ONE_UNIT: u64 = 1 << 46;

/// What devices add at least and at most, as squares of multipliers.
const SQUARE_MIN: u64 = (1 << 14) + 1;
const SQUARE_MAX: u64 = 1 << 40;

/// The epsilon of all that has cost so much: 0 of nothing, infinite where there is no account.
#[must_use]
pub fn epsilon_of(units: u64, delta: Delta) -> f64 {
    if units == 0 {
        return 0.0;
    }
    account(units).map_or(f64::INFINITY, |account| account.epsilon(delta))
}

/// The most that may be spent within epsilon at delta.
#[must_use]
pub fn max_units(epsilon: Epsilon, delta: Delta) -> u64 {
    let within = |units: u64| units == 0 || account(units).is_some_and(|a| a.epsilon(delta) <= epsilon.get());
    largest_u64(u64::MAX, within)
}

/// What a device is provisioned with so that so many releases stay within epsilon at delta: the square of its noise
/// multiplier, in units of 2^-16, and its budget.
///
/// # Errors
/// [`ParameterError::OutOfReach`] for more noise than a device adds: a square of more than 2^40.
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

/// The square of the least multiplier, in units of 2^-16, of which so many releases are charged no more than a budget; `None`
/// where the least charge is more.
#[must_use]
pub fn min_multiplier_square(budget: u64, releases: Releases) -> Option<u64> {
    // A device charges the inverse of the square, rounded up: no more than this.
    let release = budget / u64::from(releases.get());
    (release > 0).then(|| SQUARE_OF_ONE_UNIT.div_ceil(release))
}

/// One release with the multiplier that the units are the inverse square of, rounded down.
#[allow(clippy::cast_precision_loss, reason = "rounded down after")]
fn account(units: u64) -> Option<Composition> {
    let multiplier = libm::sqrt(ONE / units as f64) * (1.0 - 4.0 * f64::EPSILON);
    let (multiplier, once) = (NoiseMultiplier::new(multiplier).ok()?, Releases::new(1).ok()?);
    Some(Composition::repeated(multiplier, once))
}
