//! Aggregation rules, which combine the updates of a round into one.
//!
//! The mean keeps only one fixed-point sum, which does not depend on the order of arrival. The robust rules
//! need all updates of a round at once: updates are stored by device, and the rule combines them in the order
//! of devices when the round closes. In both cases the result is bit-identical for any order of arrival.
//! `POISON.md` states the guarantee of each rule.

mod geometric_median;
mod gram;
mod mean;
mod measured_space;
mod opponents;
mod procrustes;
mod registry;
mod round_aggregate;
mod rule;
mod sample_cap;
mod spectral_filter;
mod steps;
mod subspaces;
mod trimmed_mean;
mod update_weight;

pub use geometric_median::{GeometricMedian, geometric_median};
pub use mean::{FixedPointMean, MAGNITUDE_MAX, Mean};
pub use measured_space::{DEVICES_PER_WIDTH, FleetSize, LARGEST_WIDTH, SAMPLES_PER_VALUE, SAMPLES_PER_WIDTH};
pub use procrustes::procrustes;
pub use registry::{CustomRule, Rule};
pub use round_aggregate::RoundAggregate;
pub use rule::{AggregationRule, NamedRule, SubspaceRule};
pub use sample_cap::SampleCap;
pub use spectral_filter::{ATTACKERS, RANK_TOLERANCE, SpectralFilter, spectral_filter};
pub use subspaces::{ProjectorGeometricMedian, ProjectorMean, projector_geometric_median, projector_mean};
pub use trimmed_mean::{TRIM, TrimmedMean, trimmed_mean};
pub use update_weight::UpdateWeight;

/// Update of one device as a vector, with its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted<'a> {
    /// Weight of the device.
    pub weight: f64,
    /// Values of the vector.
    pub values: &'a [f32],
}

/// Weighted median of pairs of value and weight. Returns 0 for an empty list.
fn weighted_median(values: Vec<(f64, f64)>) -> f64 {
    weighted_quantile(values, 0.5)
}

/// Weighted quantile of pairs of value and weight: the smallest value such that the values up to it have at
/// least this fraction of the total weight. Returns 0 for an empty list.
fn weighted_quantile(mut values: Vec<(f64, f64)>, fraction: f64) -> f64 {
    values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let total: f64 = values.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    for (value, weight) in &values {
        below += weight;
        if below >= fraction * total {
            return *value;
        }
    }
    values.last().map_or(0.0, |(value, _)| *value)
}
