//! Coordinate-wise trimmed mean (Yin, Chen, Ramchandran and Bartlett 2018) with weights: per coordinate, the
//! lowest and the highest part of the weight are cut off, and the rest is averaged.

use super::Weighted;

/// Trimmed mean of `updates`, without the lowest and the highest `trim` of the weight in each coordinate (0
/// to below 0.5). A device at the cut counts with the part of its weight inside. Computed in f64; equal
/// values keep the given order. Zeros if no update has a weight.
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

/// Mean over the part of the weight from `low` to `high`, for values in ascending order.
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
