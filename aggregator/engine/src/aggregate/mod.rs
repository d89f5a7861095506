//! How many updates become one: the rules, and what of a round each of them keeps.
//!
//! The mean streams: a sum in fixed point, whatever the order of arrival. The robust rules need all updates of
//! a round at once, so they keep them by device and run in the order of devices when the round closes. Either
//! way one set of updates gives one result, bit by bit. `POISON.md` says what each rule promises.

mod geometric_median;
mod gram;
mod mean;
mod procrustes;
mod round_aggregate;
mod rule;
mod sample_cap;
mod subspaces;
mod trimmed_mean;
mod update_weight;

pub use geometric_median::geometric_median;
pub use mean::{FixedPointMean, MAGNITUDE_MAX};
pub use procrustes::procrustes;
pub use round_aggregate::RoundAggregate;
pub use rule::{Rule, TRIM};
pub use sample_cap::SampleCap;
pub use subspaces::{projector_geometric_median, projector_mean};
pub use trimmed_mean::trimmed_mean;
pub use update_weight::UpdateWeight;

/// One device's vector and what it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted<'a> {
    /// Its weight.
    pub weight: f64,
    /// Its values.
    pub values: &'a [f32],
}

/// The smallest of the values that at least half of the weight is not above: a weighted median that is one of
/// the values, and to which twice the weight is the same as two such values. 0 for none.
fn weighted_median(mut values: Vec<(f64, f64)>) -> f64 {
    values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let total: f64 = values.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    for (value, weight) in &values {
        below += weight;
        if 2.0 * below >= total {
            return *value;
        }
    }
    values.last().map_or(0.0, |(value, _)| *value)
}
