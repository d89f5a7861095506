//! Coordinate-wise trimmed mean (Yin, Chen, Ramchandran and Bartlett 2018) with weights: in each coordinate,
//! a fraction of the weight is cut off at the lowest and at the highest values, and the remaining values are
//! averaged.

use super::Weighted;
use super::rule::{AggregationRule, NamedRule};
use crate::reader::{Problem, Section};

/// Default fraction of the weight that a trimmed mean cuts off at each end. The guarantee holds for at most
/// 20 % of attackers.
pub const TRIM: f64 = 0.2;

/// Coordinate-wise mean without the fraction `trim` of the weight at the lowest and at the highest values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrimmedMean {
    /// Fraction of the weight that is cut off at each end, from 0 to below 0.5. If this fraction of the
    /// devices can have more of the weight, the larger weight is cut off.
    pub trim: f64,
}

impl NamedRule for TrimmedMean {
    const NAME: &'static str = "trimmed-mean";
    const SUMMARY: &'static str =
        "per coordinate, the mean without the lowest and the highest part of the weight";

    fn read(section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self { trim: section.number("trim", Some(TRIM), 0.05..=0.49)? })
    }
}

impl AggregationRule for TrimmedMean {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn combine(&self, updates: &[Weighted<'_>], _center: &[f64], out: &mut [f64]) {
        // Attackers, up to the fraction `trim` of the devices, may have a larger fraction of the weight.
        let trim = self.trim.max(heaviest(updates, self.trim));
        out.copy_from_slice(&trimmed_mean(updates, trim));
    }

    fn parameters(&self) -> Vec<(&'static str, f64)> {
        vec![("trim", self.trim)]
    }
}

/// Fraction of the weight of the heaviest devices, which are the fraction `part` of all devices.
fn heaviest(updates: &[Weighted<'_>], part: f64) -> f64 {
    let mut weights: Vec<f64> = updates.iter().map(|update| update.weight).collect();
    weights.sort_by(|a, b| b.total_cmp(a));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded down")]
    let devices = (part * weights.len() as f64) as usize;
    let total: f64 = weights.iter().sum();
    weights.iter().take(devices).sum::<f64>() / total.max(f64::MIN_POSITIVE)
}

/// Trimmed mean of `updates`, without the fraction `trim` (0 to below 0.5) of the weight at each end of each
/// coordinate. A device at the cut counts with the part of its weight that is not cut off. Computed in f64;
/// equal values keep the given order. The result is zero if no update has a weight.
#[must_use]
pub fn trimmed_mean(updates: &[Weighted<'_>], trim: f64) -> Vec<f64> {
    let length = updates.first().map_or(0, |update| update.values.len());
    let total: f64 = updates.iter().map(|update| update.weight).sum();
    let cut = trim.clamp(0.0, 0.499) * total;
    let mut column: Vec<(f32, f64)> = Vec::with_capacity(updates.len());
    (0..length)
        .map(|index| {
            column.clear();
            let values =
                updates.iter().filter_map(|update| Some((*update.values.get(index)?, update.weight)));
            column.extend(values);
            column.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            within(&column, cut, total - cut)
        })
        .collect()
}

/// Mean of the values whose cumulative weight is between `low` and `high`. `column` contains pairs of value
/// and weight in ascending order of values.
fn within(column: &[(f32, f64)], low: f64, high: f64) -> f64 {
    let (mut below, mut sum, mut kept) = (0.0, 0.0, 0.0);
    for (value, weight) in column {
        let above = below + weight;
        let part = above.min(high) - f64::max(below, low);
        if part > 0.0 {
            sum += part * f64::from(*value);
            kept += part;
        }
        below = above;
    }
    if kept > 0.0 { sum / kept } else { 0.0 }
}
