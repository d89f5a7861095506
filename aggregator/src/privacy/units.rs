//! The units in which devices keep their ledgers ([`Privacy`](fedspan_protocol::message::Privacy)): squares of
//! sensitivity over standard deviation, in 2^-30. They add up, and the sum is the account of one Gaussian release.

use super::{Composition, Delta, Epsilon, NoiseMultiplier, Releases};

/// Units in 1.
const ONE: f64 = 1_073_741_824.0;

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
pub fn most_units(epsilon: Epsilon, delta: Delta) -> u64 {
    let within = |units: u64| units == 0 || account(units).is_some_and(|a| a.epsilon(delta) <= epsilon.get());
    let (mut most, mut above) = (0, u64::MAX);
    while above - most > 1 {
        let middle = most + (above - most) / 2;
        if within(middle) {
            most = middle;
        } else {
            above = middle;
        }
    }
    most
}

/// One release with the multiplier that the units are the inverse square of, rounded down.
#[allow(clippy::cast_precision_loss, reason = "rounded down after")]
fn account(units: u64) -> Option<Composition> {
    let multiplier = libm::sqrt(ONE / units as f64) * (1.0 - 4.0 * f64::EPSILON);
    let (multiplier, once) = (NoiseMultiplier::new(multiplier).ok()?, Releases::new(1).ok()?);
    Some(Composition::repeated(multiplier, once))
}
