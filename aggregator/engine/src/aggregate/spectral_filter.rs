//! Spectral filter: the mean of the updates without those that stand out in the directions of the largest
//! variance.
//!
//! Attackers that move a mean must agree on a direction, so that the second moment of the updates is large
//! in that direction. The filter finds the leading direction of the second moment, lowers the weight of the
//! updates with the largest projections on it, and repeats until it has removed the weight that the
//! attackers may have, and a margin (Diakonikolas, Kamath, Kane, Li, Moitra and Stewart, "Being robust (in
//! high dimensions) can be practical", 2017). Its error does not depend on the norms of honest updates but
//! on their variance in one direction. Gradients of personal tasks have rank one and point in all directions:
//! they are long, but few agree. A rule that compares distances follows the few that agree, as the geometric
//! median does (`POISON.md`).
//!
//! Three differences from the paper. Updates are first clipped to the median norm of the round. The second
//! moment is about the coordinate-wise median and not about the mean: if honest updates are alike, the median
//! is the honest update; if they point in all directions, it is close to zero, and a minority hardly moves it.
//! The filter removes a bounded amount instead of comparing the variance with a threshold, because honest
//! updates of personal tasks have no known variance.

use super::Weighted;
use super::rule::{AggregationRule, NamedRule};
use super::steps::{Steps, add_scaled, dot, from_center, norm};
use crate::reader::{Problem, Section};

/// Default fraction of attackers.
pub const ATTACKERS: f64 = 0.2;
/// Removed weight, as a multiple of the weight of the attackers.
const MARGIN: f64 = 1.25;
/// Maximum number of directions. Each one removes at least the update that stands out most.
const DIRECTIONS: usize = 10;
/// Number of power iterations for the first direction.
const FIRST_ITERATIONS: usize = 12;
/// Number of power iterations for each further direction, which begin at the previous direction.
const NEXT_ITERATIONS: usize = 4;
/// Fractional part of the golden ratio, whose multiples modulo 1 are evenly distributed.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Mean of the updates that remain after the spectral filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectralFilter {
    /// Largest fraction of the weight that attackers may have, from 0.01 to 0.35.
    pub attackers: f64,
}

impl Default for SpectralFilter {
    fn default() -> Self {
        Self { attackers: ATTACKERS }
    }
}

impl NamedRule for SpectralFilter {
    const NAME: &'static str = "spectral-filter";
    const SUMMARY: &'static str =
        "mean without the updates that stand out in the directions of the largest variance";

    fn read(section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self { attackers: section.number("attackers", Some(ATTACKERS), 0.01..=0.35)? })
    }
}

impl AggregationRule for SpectralFilter {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn combine(&self, updates: &[Weighted<'_>], center: &[f64], out: &mut [f64]) {
        out.copy_from_slice(&spectral_filter(updates, center, self.attackers));
    }

    fn parameters(&self) -> Vec<(&'static str, f64)> {
        vec![("attackers", self.attackers)]
    }
}

/// Mean of `updates` after the spectral filter for a fraction `attackers` of the weight. The differences of
/// the updates from `center` (extended by zeros) are clipped to the median of their norms, filtered and
/// averaged, and `center` is added. Computed in f64, in the given order. If no update has a weight, the
/// result is `center`.
#[must_use]
pub fn spectral_filter(updates: &[Weighted<'_>], center: &[f64], attackers: f64) -> Vec<f64> {
    let steps = Steps::clipped(updates, center);
    let kept = kept_fractions(&steps.about_median(), MARGIN * attackers);
    from_center(&steps.mean(&kept), center)
}

/// Fraction of each device's weight that the filter keeps, given the differences of the steps from their
/// median, if it removes at most the fraction `removed` of the total weight.
fn kept_fractions(steps: &Steps, removed: f64) -> Vec<f64> {
    let points = &steps.points;
    let mut kept = vec![1.0; points.len()];
    let weight = |kept: &[f64]| points.iter().zip(kept).map(|((weight, _), kept)| weight * kept).sum::<f64>();
    let least = (1.0 - removed) * weight(&kept);
    let mut direction = first_direction(&steps.mean(&kept));
    for round in 0..DIRECTIONS {
        let iterations = if round == 0 { FIRST_ITERATIONS } else { NEXT_ITERATIONS };
        for _ in 0..iterations {
            direction = second_moment_times(steps, &kept, &direction);
            if !normalize(&mut direction) {
                return kept;
            }
        }
        let scores: Vec<f64> = points
            .iter()
            .zip(&kept)
            .map(|((_, step), kept)| if *kept > 0.0 { dot(step, &direction).powi(2) } else { 0.0 })
            .collect();
        let largest = scores.iter().fold(0.0, |largest, score| score.max(largest));
        if largest <= 0.0 {
            return kept;
        }
        let next: Vec<f64> =
            kept.iter().zip(&scores).map(|(kept, score)| kept * (1.0 - score / largest)).collect();
        let (before, after) = (weight(&kept), weight(&next));
        if after < least {
            // The last direction removes only what is left of the bound.
            let part = (before - least) / (before - after);
            return kept.iter().zip(&next).map(|(kept, next)| kept - part * (kept - next)).collect();
        }
        kept = next;
    }
    kept
}

/// Start of the power iterations: the direction of the mean plus a fixed direction. The leading direction has
/// a component in it unless attackers chose theirs orthogonal to both, and then they do not move the mean.
fn first_direction(mean: &[f64]) -> Vec<f64> {
    let mut direction = mean.to_vec();
    normalize(&mut direction);
    let mut fixed: Vec<f64> = (1..=mean.len()).map(|index| (index as f64 * GOLDEN).fract() - 0.5).collect();
    normalize(&mut fixed);
    add_scaled(&mut direction, 1.0, &fixed);
    direction
}

/// Product of the second moment of the kept steps with a direction, up to a factor.
fn second_moment_times(steps: &Steps, kept: &[f64], direction: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; steps.length];
    for ((weight, step), kept) in steps.points.iter().zip(kept) {
        if *kept > 0.0 {
            add_scaled(&mut product, weight * kept * dot(step, direction), step);
        }
    }
    product
}

/// Scales a vector to norm 1. Returns false, and leaves it unchanged, if its norm is zero or not finite.
fn normalize(values: &mut [f64]) -> bool {
    let norm = norm(values);
    if !(norm > 0.0 && norm.is_finite()) {
        return false;
    }
    for value in values.iter_mut() {
        *value /= norm;
    }
    true
}
