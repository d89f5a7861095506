//! Weighted mean of updates in fixed point. Integer sums are associative, so the result does not depend on
//! the order of arrival, the batching, or the number of threads.

use std::ops::Range;

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
#[derive(Clone, Debug)]
pub struct FixedPointMean {
    /// Sums of the values in grid steps, without those in `recent`.
    sums: Vec<i128>,
    /// Sums of the latest vectors, in 64 bits, which processors add several at a time.
    recent: Vec<i64>,
    /// Bound on the magnitudes of `recent`, at most [`RECENT_MAX`].
    recent_bound: i64,
    weight: u64,
}

/// Largest magnitude of a sum in 64 bits.
const RECENT_MAX: i64 = 1 << 62;

/// Compares the sums, however they are stored.
impl PartialEq for FixedPointMean {
    fn eq(&self, other: &Self) -> bool {
        self.weight == other.weight && self.totals().eq(other.totals())
    }
}

impl Eq for FixedPointMean {}

impl FixedPointMean {
    /// Creates an empty mean of vectors of `len` values.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { sums: vec![0; len], recent: vec![0; len], recent_bound: 0, weight: 0 }
    }

    /// Adds one vector, given as consecutive parts. The caller must reject values beyond [`MAGNITUDE_MAX`]
    /// and values that are not finite. Such values saturate (NaN is 0), so that the result is independent of
    /// the order in any case.
    pub fn absorb<'a>(&mut self, weight: u32, parts: impl IntoIterator<Item = &'a [f32]>) {
        let mut first = 0;
        for values in parts {
            let range = first..self.sums.len().min(first + values.len());
            first = range.end;
            self.add(weight, values, range);
        }
        self.weight += u64::from(weight);
    }

    /// Adds one part of a vector to a range of the sums.
    fn add(&mut self, weight: u32, values: &[f32], range: Range<usize>) {
        // Without an early exit, so that the compiler can use vectors.
        let are_small = values.iter().fold(true, |all, value| all & (value.abs() < ON_GRID));
        if !are_small || i64::from(weight) > RECENT_WEIGHT_MAX {
            let sums = self.sums.get_mut(range).unwrap_or_default();
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += i128::from(steps(value)) * i128::from(weight);
            }
            return;
        }
        // Every part counts as a whole vector, which keeps the bound simple.
        let bound = i64::from(weight) * SMALL_STEPS_MAX;
        if self.recent_bound > RECENT_MAX - bound {
            self.add_recent();
        }
        self.recent_bound += bound;
        let sums = self.recent.get_mut(range).unwrap_or_default();
        if weight == 1 {
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += small_steps(*value));
        } else {
            let weight = i64::from(weight);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += small_steps(*value) * weight);
        }
    }

    /// Moves the latest sums to the others.
    fn add_recent(&mut self) {
        for (sum, recent) in self.sums.iter_mut().zip(&mut self.recent) {
            *sum += i128::from(std::mem::take(recent));
        }
        self.recent_bound = 0;
    }

    /// Sums of the values in grid steps.
    fn totals(&self) -> impl Iterator<Item = i128> {
        self.sums.iter().zip(&self.recent).map(|(sum, recent)| sum + i128::from(*recent))
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
        let mean = |sum: i128| {
            // Most sums fit 64 bits, whose conversion is one instruction.
            let sum = i64::try_from(sum).map_or_else(|_| sum as f64, |sum| sum as f64);
            sum / (GRID * self.weight as f64)
        };
        Some(self.totals().map(mean).collect())
    }

    /// Discards all absorbed vectors.
    pub fn reset(&mut self) {
        self.sums.fill(0);
        self.recent.fill(0);
        (self.recent_bound, self.weight) = (0, 0);
    }
}

/// Magnitude from which every f32 is a multiple of 2^-12 and therefore of the grid step.
const ON_GRID: f32 = 2048.0;

/// Number near which neighbouring f64 values differ by 1. Adding it to a value rounds the value to an
/// integer, ties to even, which is in the lower bits of the sum.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// Largest magnitude of [`small_steps`].
const SMALL_STEPS_MAX: i64 = 1 << 51;

/// Largest weight with which values are added in 64 bits.
const RECENT_WEIGHT_MAX: i64 = RECENT_MAX / SMALL_STEPS_MAX;

/// Value below [`ON_GRID`] in grid steps, rounded to the nearest integer, ties to even.
#[inline(always)]
fn small_steps(value: f32) -> i64 {
    let rounded = f64::from(value) * GRID + TO_INTEGER;
    rounded.to_bits().wrapping_sub(TO_INTEGER.to_bits()).cast_signed()
}

/// Value in grid steps, rounded to the nearest integer, ties to even. The magnitude is at most 2^62.
fn steps(value: f32) -> i64 {
    if value.abs() < ON_GRID {
        return small_steps(value);
    }
    let bounded = value.clamp(-MAGNITUDE_MAX, MAGNITUDE_MAX);
    #[allow(clippy::cast_possible_truncation, reason = "an integer of at most 2^62; NaN becomes 0")]
    let steps = (f64::from(bounded) * GRID) as i64;
    steps
}
