//! Feature scaling: devices subtract a shift from each feature and multiply by a factor.
//!
//! [`FleetScale`] is the stage that computes the scale from sums over the fleet. [`Scaled`] wraps an
//! algorithm and sends the scale with every later round. Devices scale in f32 (SPEC.md, Scale), and
//! [`Scale::apply`] does the same.

mod scaled;
mod stage;
mod sums;

use fedspan_protocol::tensor::Role;

use crate::types::Tensor;

pub use scaled::Scaled;
pub use stage::FleetScale;
pub use sums::{FeatureMoments, FeatureSums};

/// Source of the scale that a campaign uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ScaleSource {
    /// No scale.
    #[default]
    None,
    /// The scale is computed from sums over the fleet in the first stage of the campaign.
    Fleet,
    /// The scale is given in the configuration.
    Given(Scale),
}

/// Shift subtracted from each feature, and factor by which the difference is multiplied.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    shift: Vec<f32>,
    factor: Vec<f32>,
}

impl Scale {
    /// Creates a scale; `None` unless both lists have the same length, all values are finite, and no factor
    /// is zero.
    #[must_use]
    pub fn new(shift: Vec<f32>, factor: Vec<f32>) -> Option<Self> {
        let are_finite = shift.iter().chain(&factor).all(|value| value.is_finite());
        let is_valid =
            shift.len() == factor.len() && are_finite && factor.iter().all(|factor| *factor != 0.0);
        is_valid.then_some(Self { shift, factor })
    }

    /// Scale that changes nothing: shifts of 0 and factors of 1.
    #[must_use]
    pub fn identity(features: usize) -> Self {
        Self { shift: vec![0.0; features], factor: vec![1.0; features] }
    }

    /// Scale that gives each feature mean 0 and standard deviation 1. A constant feature, or a feature whose
    /// factor f32 cannot represent, is not scaled.
    #[must_use]
    pub fn standard(moments: &[FeatureMoments]) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a scale travels as f32")]
        let scale_of = |moments: &FeatureMoments| {
            let (shift, factor) = (moments.mean as f32, (1.0 / moments.deviation) as f32);
            let is_usable = moments.deviation > 0.0 && factor.is_finite() && factor > 0.0;
            if is_usable { (shift, factor) } else { (0.0, 1.0) }
        };
        let (shift, factor) = moments.iter().map(scale_of).unzip();
        Self { shift, factor }
    }

    /// Shifts, one per feature.
    #[must_use]
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }

    /// Factors, one per feature.
    #[must_use]
    pub fn factor(&self) -> &[f32] {
        &self.factor
    }

    /// Scales rows of samples in place, with the same rounding as devices.
    pub fn apply(&self, x: &mut [f32]) {
        for row in x.chunks_mut(self.shift.len().max(1)) {
            for ((value, shift), factor) in row.iter_mut().zip(&self.shift).zip(&self.factor) {
                *value = (*value - shift) * factor;
            }
        }
    }

    /// Tensor that devices receive: a row of shifts and a row of factors.
    #[must_use]
    pub fn tensor(&self) -> Tensor {
        let cols = u16::try_from(self.shift.len()).unwrap_or(u16::MAX);
        let values = self.shift.iter().chain(&self.factor).copied().collect();
        Tensor { role: Role::Scale, rows: 2, cols, values }
    }

    /// Shifts, then factors, as a checkpoint stores them.
    fn state(&self) -> impl Iterator<Item = f64> {
        self.shift.iter().chain(&self.factor).map(|value| f64::from(*value))
    }

    /// Scale from the values of [`Self::state`].
    fn from_state(state: &[f64]) -> Option<Self> {
        #[allow(clippy::cast_possible_truncation, reason = "written from f32")]
        let to_f32 = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
        let (shift, factor) = state.split_at_checked(state.len() / 2)?;
        Self::new(to_f32(shift), to_f32(factor))
    }
}
