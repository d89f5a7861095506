//! Privacy account by Renyi divergences: an upper bound of the exact account for Gaussian noise that is also
//! valid for discrete Gaussian noise.
//!
//! A Gaussian release with multiplier `z` has a Renyi divergence of `order / (2 z^2)` at every order above 1
//! (Mironov 2017, Corollary 3), and divergences of releases add up. The same holds for the discrete Gaussian
//! on integers (Canonne, Kamath and Steinke 2020). A divergence `d` at an order is converted to an epsilon:
//! for every delta
//!
//! ```text
//! epsilon = d + ln(1 - 1/order) - (ln delta + ln order) / (order - 1)
//! ```
//!
//! (Canonne, Kamath and Steinke 2020, Proposition 12; the same as equation 20 of Balle, Barthe, Gaboardi, Hsu
//! and Sato 2020.) With `d = rho order` the derivative of epsilon by the order is
//! `rho + (ln delta + ln order) / (order - 1)^2`. So epsilon is smallest at the order with
//! `rho (order - 1)^2 + ln order = -ln delta`. A minimum over a fixed list of orders is larger: with whole
//! orders above 10, one release of multiplier 4 has epsilon 1.0126 at delta = 1e-5 (order 18) instead of
//! 1.0123 (order 17.63).

use super::bisection::smallest_f64;
use super::{Composition, Delta, ParameterError};

/// Upper bound of epsilon from the divergence at one order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Epsilon, rounded up.
    pub epsilon: f64,
    /// Order of the divergence.
    pub order: f64,
}

/// Smallest bound of epsilon over all orders.
#[must_use]
pub fn epsilon(composition: Composition, delta: Delta) -> Bound {
    let rho = rho(composition);
    let ln_inverse = -libm::log(delta.get());
    let is_past_minimum = |above: f64| rho * above * above + libm::log1p(above) >= ln_inverse;
    // A solution exists for every rho above 0. For rho = 0 there may be none, since the logarithm of the
    // largest float is below 710, and `-ln delta` can be 745.
    let above = smallest_f64(is_past_minimum).unwrap_or(f64::MAX);
    Bound { epsilon: epsilon_bound(rho, ln_inverse, above), order: 1.0 + above }
}

/// Bound of epsilon from the divergence at `order`.
///
/// # Errors
/// [`ParameterError::Order`] if the order is not finite and above 1.
pub fn epsilon_at(composition: Composition, delta: Delta, order: f64) -> Result<Bound, ParameterError> {
    if !(order.is_finite() && order > 1.0) {
        return Err(ParameterError::Order(order));
    }
    Ok(Bound { epsilon: epsilon_bound(rho(composition), -libm::log(delta.get()), order - 1.0), order })
}

/// Divergence divided by its order: `mu^2 / 2`.
fn rho(composition: Composition) -> f64 {
    0.5 * composition.mu() * composition.mu()
}

/// Converts the divergence at the order `1 + above` to an epsilon, with `ln_inverse = -ln delta`, and adds a
/// bound of the rounding error.
fn epsilon_bound(rho: f64, ln_inverse: f64, above: f64) -> f64 {
    if rho.is_infinite() {
        return f64::INFINITY;
    }
    let divergence = rho * (1.0 + above);
    let (gain, order) = (libm::log1p(1.0 / above), libm::log1p(above));
    let rounding = 8.0 * f64::EPSILON * (divergence + gain + (ln_inverse + order) / above);
    (divergence - gain + (ln_inverse - order) / above + rounding).max(0.0)
}
