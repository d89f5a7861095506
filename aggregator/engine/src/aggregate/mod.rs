//! Aggregation rules: combine the updates of a round into one.
//!
//! The mean streams: it keeps one fixed-point sum, independent of the order of arrival. The robust rules need
//! all updates of a round at once, so they keep them by device and run in the order of devices when the round
//! closes. Either way a set of updates has one result, bit by bit. `POISON.md` states the guarantee of each
//! rule.

mod geometric_median;
mod gram;
mod mean;
mod procrustes;
mod registry;
mod round_aggregate;
mod rule;
mod sample_cap;
mod subspaces;
mod trimmed_mean;
mod update_weight;

pub use geometric_median::{GeometricMedian, geometric_median};
pub use mean::{FixedPointMean, MAGNITUDE_MAX, Mean};
pub use procrustes::procrustes;
pub use registry::{CustomRule, Rule};
pub use round_aggregate::RoundAggregate;
pub use rule::{AggregationRule, NamedRule, SubspaceRule};
pub use sample_cap::SampleCap;
pub use subspaces::{ProjectorGeometricMedian, ProjectorMean, projector_geometric_median, projector_mean};
pub use trimmed_mean::{TRIM, TrimmedMean, trimmed_mean};
pub use update_weight::UpdateWeight;

/// Vector of one device with its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted<'a> {
    /// Weight of the device.
    pub weight: f64,
    /// Values of the vector.
    pub values: &'a [f32],
}

/// Weighted median: the smallest value such that values up to it have at least half of the weight. A value
/// with weight 2 counts as two equal values of weight 1. Returns 0 for an empty list.
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
