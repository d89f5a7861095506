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

    /// Adds one vector. Values beyond [`MAGNITUDE_MAX`] and values that are not finite must have been
    /// rejected before; here they saturate, so that even then nothing depends on order.
    pub fn absorb(&mut self, weight: u32, values: &[f32]) {
        for (sum, &value) in self.sums.iter_mut().zip(values) {
            let bounded = value.clamp(-MAGNITUDE_MAX, MAGNITUDE_MAX);
            let steps = (f64::from(bounded) * GRID).round_ties_even();
            #[allow(clippy::cast_possible_truncation, reason = "at most 2^62 by the clamp; NaN becomes 0")]
            let steps = steps as i64;
            *sum += i128::from(steps) * i128::from(weight);
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
        let mean = |sum: &i128| *sum as f64 / (GRID * self.weight as f64);
        Some(self.sums.iter().map(mean).collect())
    }

    /// Forgets everything absorbed.
    pub fn reset(&mut self) {
        self.sums.fill(0);
        self.weight = 0;
    }
}
