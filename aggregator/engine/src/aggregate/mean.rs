//! The weighted mean in fixed point. Integer sums are associative: one result for one set of updates,
//! whatever the order of arrival, the batching, or the number of threads.

/// Steps of the grid per unit: values are rounded to multiples of 2^-40, about 1e-12.
const GRID: f64 = 1_099_511_627_776.0;

/// Largest magnitude of a value: with weights up to 2^32 and 2^32 updates the sums stay inside `i128`.
pub const MAGNITUDE_MAX: f32 = 4_194_304.0;

/// A running weighted mean of vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedPointMean {
    sums: Vec<i128>,
    weight: u64,
}

impl FixedPointMean {
    /// Nothing yet, for vectors of `len` values.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { sums: vec![0; len], weight: 0 }
    }

    /// Adds one vector, of which these are the parts one after the other. Values beyond [`MAGNITUDE_MAX`] and values that
    /// are not finite must have been rejected before; here they saturate, so that even then nothing depends on order.
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

    /// The sum of the weights.
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
            // Most sums are short, and a processor knows those.
            let sum = i64::try_from(*sum).map_or_else(|_| *sum as f64, |sum| sum as f64);
            sum / (GRID * self.weight as f64)
        };
        Some(self.sums.iter().map(mean).collect())
    }

    /// Forgets everything absorbed.
    pub fn reset(&mut self) {
        self.sums.fill(0);
        self.weight = 0;
    }
}

/// From here on a value of f32 is a multiple of 2^-12, and is on the grid.
const ON_GRID: f32 = 2048.0;

/// Next to it, f64 are integers one apart: what is added is rounded to an integer, ties to even, and the lower bits of the
/// sum are that integer.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// The nearest multiple of a step of the grid, in steps; ties to even. At most 2^62.
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
