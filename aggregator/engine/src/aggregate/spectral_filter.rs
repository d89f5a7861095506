//! Spectral filter: the mean of the updates without those that stand out in the directions of the largest
//! variance.
//!
//! Attackers that move a mean must agree on a direction, so that the second moment of the updates is large
//! in that direction. The filter finds the leading direction of the second moment, lowers the weight of the
//! updates with the largest projections on it, and repeats until it has removed the weight that the
//! attackers may have, and a margin (Diakonikolas, Kamath, Kane, Li, Moitra and Stewart, "Being robust (in
//! high dimensions) can be practical", 2017). Its error depends on the variance of honest updates in one
//! direction, not on their norms. Gradients of personal tasks have rank one and point in all directions:
//! they are far apart, and few agree. A rule that compares distances, as the geometric median, follows the few
//! that agree (`POISON.md`).
//!
//! Differences from the paper:
//!
//! - Updates are first clipped to the norm that all but the removed weight does not exceed. A smaller norm, such
//!   as the median, would slow the training down where the norms of honest updates differ much.
//! - The second moment is about the coordinate-wise median and not about the mean. If honest updates are alike,
//!   the median is the honest update; if they point in all directions, it is close to zero, and a minority
//!   hardly moves it.
//! - The second moment is that of the directions of the updates: every difference from the median is scaled to
//!   norm 1. Otherwise the filter would remove the honest devices with the longest gradients, which carry most
//!   of the signal, and spare attackers that send short ones.
//! - The filter removes a bounded amount instead of comparing the variance with a threshold, because honest
//!   updates of personal tasks have no known variance.
//! - Afterwards the updates that oppose the mean of the others are removed (`opponents.rs`), up to the weight of
//!   the attackers.

use super::Weighted;
use super::opponents::without_opponents;
use super::rule::{AggregationRule, NamedRule};
use super::steps::{Steps, add_scaled, dot, from_center, normalize};
use crate::reader::{Problem, Section};

/// Default fraction of attackers.
pub const ATTACKERS: f64 = 0.2;
/// Default fraction of a gradient's norm that may be beyond the rank of a gradient. Rounding is allowed for in
/// addition, so this is a margin for the arithmetic of the devices.
pub const RANK_TOLERANCE: f64 = 0.05;
/// Weight that the filter removes, as a multiple of the weight of the attackers. The fifth of the devices that
/// declare the most samples may have a quarter of the weight ([`super::SampleCap`]).
const MARGIN: f64 = 1.25;
/// Maximum number of directions. Each one removes at least the update that stands out most.
const DIRECTIONS: usize = 10;
/// Number of power iterations for the first direction.
const FIRST_ITERATIONS: usize = 12;
/// Number of power iterations for each further direction, which begin at the previous direction.
const NEXT_ITERATIONS: usize = 4;
/// Number of times that the removed shares may be squared. Squaring concentrates them on the updates that
/// stand out most, if a direction would otherwise exceed the weight that may be removed.
const SQUARINGS: usize = 16;
/// Fractional part of the golden ratio, whose multiples modulo 1 are evenly distributed.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Mean of the updates that remain after the spectral filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectralFilter {
    /// Largest fraction of the weight that attackers may have, from 0.01 to 0.35.
    pub attackers: f64,
    /// Fraction of a gradient's norm that may be beyond its best approximation whose rank is the number of
    /// outputs, from 0.001 to 1. With 1, gradients of any rank are admitted, as devices that add noise send
    /// them.
    pub rank_tolerance: f64,
}

impl Default for SpectralFilter {
    fn default() -> Self {
        Self { attackers: ATTACKERS, rank_tolerance: RANK_TOLERANCE }
    }
}

impl NamedRule for SpectralFilter {
    const NAME: &'static str = "spectral-filter";
    const SUMMARY: &'static str =
        "mean without the updates that stand out in the directions of the largest variance";

    fn read(section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self {
            attackers: section.number("attackers", Some(ATTACKERS), 0.01..=0.35)?,
            rank_tolerance: section.number("rank_tolerance", Some(RANK_TOLERANCE), 1e-3..=1.0)?,
        })
    }
}

impl AggregationRule for SpectralFilter {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn combine(&self, updates: &[Weighted<'_>], center: &[f64], out: &mut [f64]) {
        out.copy_from_slice(&spectral_filter(updates, center, self.attackers));
    }

    fn rank_tolerance(&self) -> f64 {
        self.rank_tolerance
    }

    fn parameters(&self) -> Vec<(&'static str, f64)> {
        vec![("attackers", self.attackers), ("rank_tolerance", self.rank_tolerance)]
    }
}

/// Mean of `updates` after the spectral filter for a fraction `attackers` of the weight. The differences of
/// the updates from `center` (extended by zeros) are clipped to a quantile of their norms, filtered and
/// averaged, and `center` is added. Computed in f64, in the given order. If no update has a weight, the
/// result is `center`.
#[must_use]
pub fn spectral_filter(updates: &[Weighted<'_>], center: &[f64], attackers: f64) -> Vec<f64> {
    let removed = MARGIN * attackers;
    let steps = Steps::clipped(updates, center, 1.0 - removed);
    let kept = kept_fractions(&steps.directions(), removed);
    let kept = without_opponents(&steps, kept, attackers);
    from_center(&steps.mean(&kept), center)
}

/// Fraction of each device's weight that the filter keeps, given the directions of the steps, if it removes
/// at most the fraction `removed` of the total weight.
fn kept_fractions(directions: &Steps, removed: f64) -> Vec<f64> {
    let points = &directions.points;
    let mut kept = vec![1.0; points.len()];
    let weight = |kept: &[f64]| points.iter().zip(kept).map(|((weight, _), kept)| weight * kept).sum::<f64>();
    let least = (1.0 - removed) * weight(&kept);
    let mut direction = first_direction(&directions.mean(&kept));
    for round in 0..DIRECTIONS {
        let iterations = if round == 0 { FIRST_ITERATIONS } else { NEXT_ITERATIONS };
        for _ in 0..iterations {
            direction = second_moment_times(directions, &kept, &direction);
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
        let before = weight(&kept);
        let mut shares: Vec<f64> = scores.iter().map(|score| score / largest).collect();
        let mut next = reduced(&kept, &shares);
        for _ in 0..SQUARINGS {
            if weight(&next) >= least {
                break;
            }
            shares.iter_mut().for_each(|share| *share *= *share);
            next = reduced(&kept, &shares);
        }
        let after = weight(&next);
        if after < least {
            // More updates stand out equally than may be removed: each loses the same part.
            let part = (before - least) / (before - after);
            return kept.iter().zip(&next).map(|(kept, next)| kept - part * (kept - next)).collect();
        }
        kept = next;
    }
    kept
}

/// Kept fractions after each one has lost a share.
fn reduced(kept: &[f64], shares: &[f64]) -> Vec<f64> {
    kept.iter().zip(shares).map(|(kept, share)| kept * (1.0 - share)).collect()
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

/// Product of the second moment of the kept points with a direction, up to a factor.
fn second_moment_times(directions: &Steps, kept: &[f64], direction: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; directions.length];
    for ((weight, step), kept) in directions.points.iter().zip(kept) {
        if *kept > 0.0 {
            add_scaled(&mut product, weight * kept * dot(step, direction), step);
        }
    }
    product
}
