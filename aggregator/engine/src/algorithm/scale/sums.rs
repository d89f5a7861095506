//! Sums of features over devices as exact integers, which do not depend on the order of arrival (SPEC.md,
//! FeatureSums).

use fedspan_protocol::tensor::SUMS_COLUMNS;
use num_bigint::BigInt;

/// Number of bits of a limb. A row of sums contains each large integer as several f32 limbs.
const LIMB: u32 = 22;

/// Possible exponents of a device's grid: samples are integers in units of a power of two.
const EXPONENTS: std::ops::RangeInclusive<i32> = -149..=98;

/// Exclusive upper bound of a device's sample count.
const SAMPLES_END: u32 = 1 << 28;

/// Largest magnitude of a sample value, in units of the device's grid.
const UNITS_MAX: i128 = (1 << 30) - 1;

/// Mean and standard deviation of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FeatureMoments {
    /// Mean of the feature over all samples of the fleet.
    pub mean: f64,
    /// Population standard deviation (divided by the number of samples).
    pub deviation: f64,
}

/// Sums of one feature over the samples of one device, in units of the device's grid.
struct FeatureRow {
    /// Exponent of the grid's unit, minus the smallest possible exponent.
    exponent: u32,
    sum: i128,
    squares: i128,
}

impl FeatureRow {
    /// Decodes a row; `None` if these sums are impossible for `samples` samples.
    fn read(samples: u32, row: &[f32]) -> Option<Self> {
        let [exponent, s0, s1, s2, q0, q1, q2, q3] = *row else { return None };
        let exponent = as_integer(exponent).and_then(|integer| i32::try_from(integer).ok())?;
        let low = |limb: f32| as_integer(limb).filter(|limb| (0..1 << LIMB).contains(limb));
        let top = as_integer(s2).filter(|limb| (-(1 << LIMB)..1 << LIMB).contains(limb))?;
        let sum = low(s0)? + (low(s1)? << LIMB) + (top << (2 * LIMB));
        let squares = low(q0)? + (low(q1)? << LIMB) + (low(q2)? << (2 * LIMB)) + (low(q3)? << (3 * LIMB));
        let m = i128::from(samples);
        let is_possible = EXPONENTS.contains(&exponent)
            && samples < SAMPLES_END
            && sum.abs() <= m * UNITS_MAX
            // Both sides are below 2^117.
            && sum * sum <= m * squares
            && squares <= m * UNITS_MAX * UNITS_MAX
            && (sum + squares) % 2 == 0;
        let exponent = u32::try_from(exponent - EXPONENTS.start()).ok()?;
        is_possible.then_some(Self { exponent, sum, squares })
    }
}

/// Value as an integer; `None` unless it is an integer of at most 24 bits.
fn as_integer(value: f32) -> Option<i128> {
    #[allow(clippy::cast_possible_truncation, reason = "an integer of at most 24 bits")]
    let integer = value as i32;
    #[allow(clippy::cast_precision_loss, reason = "compared with the value")]
    let is_integer = value.abs() <= 16_777_216.0 && integer as f32 == value;
    is_integer.then_some(i128::from(integer))
}

/// Whether a device with `samples` samples can have sent these rows.
#[must_use]
pub fn are_possible(samples: u32, rows: &[f32]) -> bool {
    samples > 0 && rows.chunks(usize::from(SUMS_COLUMNS)).all(|row| FeatureRow::read(samples, row).is_some())
}

/// Sums of some features over the devices absorbed so far.
#[derive(Clone, Debug, Default)]
pub struct FeatureSums {
    samples: u64,
    /// Sum and sum of squares of each feature, in units of 2^-149 and 2^-298.
    features: Vec<(BigInt, BigInt)>,
}

impl FeatureSums {
    /// Creates empty sums of `features` features.
    #[must_use]
    pub fn new(features: usize) -> Self {
        Self { samples: 0, features: vec![(BigInt::default(), BigInt::default()); features] }
    }

    /// Adds a device's rows. Returns false, and changes nothing, if the sums are impossible for `samples`
    /// samples.
    pub fn absorb(&mut self, samples: u32, rows: &[f32]) -> bool {
        let has_all_features = rows.len() == self.features.len() * usize::from(SUMS_COLUMNS);
        if !has_all_features || !are_possible(samples, rows) {
            return false;
        }
        self.samples += u64::from(samples);
        for ((sum, squares), row) in self.features.iter_mut().zip(rows.chunks(usize::from(SUMS_COLUMNS))) {
            if let Some(row) = FeatureRow::read(samples, row) {
                *sum += BigInt::from(row.sum) << row.exponent;
                *squares += BigInt::from(row.squares) << (2 * row.exponent);
            }
        }
        true
    }

    /// Means and standard deviations of the features, computed from the exact sums; `None` without samples.
    #[must_use]
    pub fn moments(&self) -> Option<Vec<FeatureMoments>> {
        if self.samples == 0 {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
        let m = self.samples as f64;
        let unit = 2f64.powi(*EXPONENTS.start());
        let moments = |(sum, squares): &(BigInt, BigInt)| {
            // This is m^2 times the variance; it is exact and not negative.
            let spread = BigInt::from(self.samples) * squares - sum * sum;
            // The root is taken before the unit is applied, so that small values do not underflow.
            FeatureMoments {
                mean: nearest_f64(sum) / m * unit,
                deviation: nearest_f64(&spread).max(0.0).sqrt() / m * unit,
            }
        };
        Some(self.features.iter().map(moments).collect())
    }
}

/// Nearest f64 to an integer. The sums have fewer than 900 bits, so they do not overflow f64.
fn nearest_f64(value: &BigInt) -> f64 {
    value.to_string().parse().unwrap_or(f64::INFINITY)
}
