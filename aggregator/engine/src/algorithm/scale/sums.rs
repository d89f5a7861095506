//! Sums of a feature over devices: exact integers, in any order (SPEC.md, FeatureSums).

use fedspan_protocol::tensor::SUMS_COLUMNS;
use num_bigint::BigInt;

/// Bits of a limb.
const LIMB: u32 = 22;

/// Exponents that a device's grid can have.
const EXPONENTS: std::ops::RangeInclusive<i32> = -149..=98;

/// A device has fewer samples than this.
const SAMPLES_END: u32 = 1 << 28;

/// Largest magnitude of a sample on its grid.
const UNITS_MAX: i128 = (1 << 30) - 1;

/// Mean and standard deviation of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FeatureMoments {
    /// Mean.
    pub mean: f64,
    /// Standard deviation, of all samples: the square's mean is over their number.
    pub deviation: f64,
}

/// A row of a device's sums.
struct Row {
    /// Of the unit, less the least that there is.
    exponent: u32,
    sum: i128,
    squares: i128,
}

impl Row {
    /// `None` if no `samples` samples have these sums.
    fn read(samples: u32, row: &[f32]) -> Option<Self> {
        let [exponent, s0, s1, s2, q0, q1, q2, q3] = *row else { return None };
        let exponent = whole(exponent).and_then(|whole| i32::try_from(whole).ok())?;
        let low = |limb: f32| whole(limb).filter(|limb| (0..1 << LIMB).contains(limb));
        let top = whole(s2).filter(|limb| (-(1 << LIMB)..1 << LIMB).contains(limb))?;
        let sum = low(s0)? + (low(s1)? << LIMB) + (top << (2 * LIMB));
        let squares = low(q0)? + (low(q1)? << LIMB) + (low(q2)? << (2 * LIMB)) + (low(q3)? << (3 * LIMB));
        let m = i128::from(samples);
        let possible = EXPONENTS.contains(&exponent)
            && samples < SAMPLES_END
            && sum.abs() <= m * UNITS_MAX
            // Both below 2^117.
            && sum * sum <= m * squares
            && squares <= m * UNITS_MAX * UNITS_MAX
            && (sum + squares) % 2 == 0;
        let exponent = u32::try_from(exponent - EXPONENTS.start()).ok()?;
        possible.then_some(Self { exponent, sum, squares })
    }
}

/// An integer of at most 24 bits.
fn whole(value: f32) -> Option<i128> {
    #[allow(clippy::cast_possible_truncation, reason = "an integer of at most 24 bits")]
    let integer = value as i32;
    #[allow(clippy::cast_precision_loss, reason = "compared with what it was")]
    let same = value.abs() <= 16_777_216.0 && integer as f32 == value;
    same.then_some(i128::from(integer))
}

/// Whether a device with so many samples can have sent these rows.
#[must_use]
pub fn are_possible(samples: u32, rows: &[f32]) -> bool {
    samples > 0 && rows.chunks(usize::from(SUMS_COLUMNS)).all(|row| Row::read(samples, row).is_some())
}

/// Sums of some features over the devices that have come so far.
#[derive(Clone, Debug, Default)]
pub struct FeatureSums {
    samples: u64,
    /// Sum and sum of squares of each, in units of 2^-149 and 2^-298.
    features: Vec<(BigInt, BigInt)>,
}

impl FeatureSums {
    /// Nothing yet, of so many features.
    #[must_use]
    pub fn new(features: usize) -> Self {
        Self { samples: 0, features: vec![(BigInt::default(), BigInt::default()); features] }
    }

    /// Adds a device's rows. False, with nothing changed, if no samples have such sums.
    pub fn absorb(&mut self, samples: u32, rows: &[f32]) -> bool {
        let fits = rows.len() == self.features.len() * usize::from(SUMS_COLUMNS);
        if !fits || !are_possible(samples, rows) {
            return false;
        }
        self.samples += u64::from(samples);
        for ((sum, squares), row) in self.features.iter_mut().zip(rows.chunks(usize::from(SUMS_COLUMNS))) {
            if let Some(row) = Row::read(samples, row) {
                *sum += BigInt::from(row.sum) << row.exponent;
                *squares += BigInt::from(row.squares) << (2 * row.exponent);
            }
        }
        true
    }

    /// Means and deviations, each rounded from the exact number only at the end; `None` without samples.
    #[must_use]
    pub fn moments(&self) -> Option<Vec<FeatureMoments>> {
        if self.samples == 0 {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
        let m = self.samples as f64;
        let unit = 2f64.powi(*EXPONENTS.start());
        let moments = |(sum, squares): &(BigInt, BigInt)| {
            // m^2 times the variance: exact, and not negative.
            let spread = BigInt::from(self.samples) * squares - sum * sum;
            // Square roots before units: what is small stays in range.
            FeatureMoments {
                mean: float(sum) / m * unit,
                deviation: float(&spread).max(0.0).sqrt() / m * unit,
            }
        };
        Some(self.features.iter().map(moments).collect())
    }
}

/// The nearest number; these have fewer than 900 bits.
fn float(value: &BigInt) -> f64 {
    value.to_string().parse().unwrap_or(f64::INFINITY)
}
