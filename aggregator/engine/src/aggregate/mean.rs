//! Weighted mean in fixed point. Integer sums are associative, so a set of updates has one result, whatever
//! the order of arrival, the batching, or the number of threads.

use super::Weighted;
use super::rule::{AggregationRule, NamedRule};
use crate::reader::{Problem, Section};

/// Weighted mean. A single bad device can move it anywhere.
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

    /// Combines as [`FixedPointMean`] does, which rounds take instead, except that weights are in f64.
    fn combine(&self, updates: &[Weighted<'_>], _center: &[f64], out: &mut [f64]) {
        let total: f64 = updates.iter().map(|update| update.weight).sum();
        for update in updates {
            for (sum, value) in out.iter_mut().zip(update.values) {
                *sum += update.weight / total * f64::from(*value);
            }
        }
    }
}

/// Grid steps per unit: values are rounded to multiples of 2^-40, about 1e-12.
const GRID: f64 = 1_099_511_627_776.0;

/// Largest magnitude of a value: with weights up to 2^32 and 2^32 updates the sums stay inside `i128`.
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

    /// Adds one vector, given as consecutive parts. The caller must have rejected values beyond
    /// [`MAGNITUDE_MAX`] and values that are not finite; here they saturate, so that the result is
    /// independent of the order even then.
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

    /// The mean, or `None` if nothing was absorbed.
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

    /// Discards everything absorbed.
    pub fn reset(&mut self) {
        self.sums.fill(0);
        self.weight = 0;
    }
}

/// Magnitude from which every f32 is a multiple of 2^-12, and so lies on the grid.
const ON_GRID: f32 = 2048.0;

/// Number next to which neighbouring f64 values are 1 apart: adding it rounds to an integer, ties to even, in
/// the sum's lower bits.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// Nearest grid step, ties to even; the magnitude is at most 2^62.
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
