//! Inverse of the exact privacy account: the smallest noise for a privacy budget, and the largest number of
//! releases for a given noise.

use super::bisection::{largest_u64, smallest_f64};
use super::parameters::is_positive;
use super::{Composition, Delta, Epsilon, NoiseMultiplier, ParameterError, Releases};

/// Smallest noise multiplier for which `releases` releases spend at most `epsilon` at `delta`, as computed by
/// [`Composition::epsilon`].
///
/// # Errors
/// [`ParameterError::OutOfReach`] if no finite multiplier suffices, which happens only for budgets near the
/// smallest floats.
pub fn noise_multiplier(
    epsilon: Epsilon,
    delta: Delta,
    releases: Releases,
) -> Result<NoiseMultiplier, ParameterError> {
    let within = |multiplier: f64| {
        let multiplier = NoiseMultiplier::new(multiplier);
        multiplier.is_ok_and(|z| Composition::repeated(z, releases).epsilon(delta) <= epsilon.get())
    };
    let out_of_reach =
        ParameterError::OutOfReach { epsilon: epsilon.get(), delta: delta.get(), releases: releases.get() };
    smallest_f64(within).filter(|z| is_positive(*z)).map_or(Err(out_of_reach), NoiseMultiplier::new)
}

/// Largest number of releases with this noise multiplier that spend at most `epsilon` at `delta`; 0 if a
/// single release spends more.
#[must_use]
pub fn max_releases(multiplier: NoiseMultiplier, epsilon: Epsilon, delta: Delta) -> u32 {
    let within = |releases: u64| {
        let releases = u32::try_from(releases).ok().and_then(|n| Releases::new(n).ok());
        releases.is_some_and(|n| Composition::repeated(multiplier, n).epsilon(delta) <= epsilon.get())
    };
    u32::try_from(largest_u64(1 << 32, within)).unwrap_or(u32::MAX)
}
