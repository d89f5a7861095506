//! Weighted mean of updates in fixed point. Integer sums are associative, so the result does not depend on
//! the order of arrival, the batching, or the number of threads.

use super::Weighted;
use super::rule::{AggregationRule, NamedRule};
use crate::reader::{Problem, Section};

/// Weighted mean of updates. A single bad device can move the mean anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mean;

impl NamedRule for Mean {
    const NAME: &'static str = "mean";
    const SUMMARY: &'static str = "weighted mean; one bad device can move it anywhere";

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }
}

impl AggregationRule for Mean {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Computes the mean in f64. Rounds use [`FixedPointMean`] instead, which computes the mean in fixed
    /// point.
    fn combine(&self, updates: &[Weighted<'_>], _center: &[f64], out: &mut [f64]) {
        let total: f64 = updates.iter().map(|update| update.weight).sum();
        for update in updates {
            for (sum, value) in out.iter_mut().zip(update.values) {
                *sum += update.weight / total * f64::from(*value);
            }
        }
    }
}

/// Number of grid steps in 1: values are rounded to multiples of 2^-40, about 1e-12.
const GRID: f64 = 1_099_511_627_776.0;

/// Largest magnitude of a value. With this bound, sums of 2^32 updates with weights below 2^32 fit in `i128`.
pub const MAGNITUDE_MAX: f32 = 4_194_304.0;

/// Running weighted mean of vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedPointMean {
    sums: Vec<i128>,
    weight: u64,
}

impl FixedPointMean {
    /// Creates an empty mean of vectors of `len` values.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { sums: vec![0; len], weight: 0 }
    }

    /// Adds one vector, given as consecutive parts. The caller must reject values beyond [`MAGNITUDE_MAX`]
    /// and values that are not finite. Such values saturate (NaN is 0), so that the result is independent of
    /// the order in any case.
    pub fn absorb<'a>(&mut self, weight: u32, parts: impl IntoIterator<Item = &'a [f32]>) {
        let mut rest = self.sums.as_mut_slice();
        for values in parts {
            let (sums, after) = rest.split_at_mut(values.len().min(rest.len()));
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += i128::from(steps(value)) * i128::from(weight);
            }
            rest = after;
        }
        self.weight += u64::from(weight);
    }

    /// Sum of the weights.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// The mean; `None` if the sum of the weights is 0.
    #[must_use]
    pub fn value(&self) -> Option<Vec<f64>> {
        if self.weight == 0 {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "rounded once, at the end")]
        let mean = |sum: &i128| {
            // Most sums fit 64 bits, whose conversion is one instruction.
            let sum = i64::try_from(*sum).map_or_else(|_| *sum as f64, |sum| sum as f64);
            sum / (GRID * self.weight as f64)
        };
        Some(self.sums.iter().map(mean).collect())
    }

    /// Discards all absorbed vectors.
    pub fn reset(&mut self) {
        self.sums.fill(0);
        self.weight = 0;
    }
}

/// Magnitude from which every f32 is a multiple of 2^-12 and therefore of the grid step.
const ON_GRID: f32 = 2048.0;

/// Number near which neighbouring f64 values differ by 1. Adding it to a value rounds the value to an
/// integer, ties to even, which is in the lower bits of the sum.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// Value in grid steps, rounded to the nearest integer, ties to even. The magnitude is at most 2^62.
fn steps(value: f32) -> i64 {
    if value.abs() < ON_GRID {
        let rounded = f64::from(value) * GRID + TO_INTEGER;
        return rounded.to_bits().wrapping_sub(TO_INTEGER.to_bits()).cast_signed();
    }
    let bounded = value.clamp(-MAGNITUDE_MAX, MAGNITUDE_MAX);
    #[allow(clippy::cast_possible_truncation, reason = "an integer of at most 2^62; NaN becomes 0")]
    let steps = (f64::from(bounded) * GRID) as i64;
    steps
}
