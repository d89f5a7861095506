//! A campaign's scale: what devices subtract from each feature and multiply it by then.
//!
//! [`FleetScale`] is the stage that finds one from the sums of a fleet, [`Scaled`] the algorithm that sends it with
//! every round after that. Devices scale in f32 (SPEC.md, Scale), and so does [`Scale::apply`].

mod scaled;
mod stage;
mod sums;

use fedspan_protocol::tensor::Role;

use crate::types::Tensor;

pub use scaled::Scaled;
pub use stage::FleetScale;
pub use sums::{FeatureMoments, FeatureSums};

/// Where a campaign's scale comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ScaleSource {
    /// There is none.
    #[default]
    None,
    /// From the sums of the fleet, in the campaign's first stage.
    Fleet,
    /// From the configuration.
    Given(Scale),
}

/// What is subtracted from each feature, and what the difference is multiplied by.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    shift: Vec<f32>,
    factor: Vec<f32>,
}

impl Scale {
    /// `None` unless both have as many values, all of them finite, no factor zero.
    #[must_use]
    pub fn new(shift: Vec<f32>, factor: Vec<f32>) -> Option<Self> {
        let finite = shift.iter().chain(&factor).all(|value| value.is_finite());
        let sound = shift.len() == factor.len() && finite && factor.iter().all(|factor| *factor != 0.0);
        sound.then_some(Self { shift, factor })
    }

    /// One that changes nothing.
    #[must_use]
    pub fn identity(features: usize) -> Self {
        Self { shift: vec![0.0; features], factor: vec![1.0; features] }
    }

    /// The scale that gives each feature a mean of 0 and a standard deviation of 1. What is constant stays as it is, and so does
    /// what f32 has no factor for.
    #[must_use]
    pub fn standard(moments: &[FeatureMoments]) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a scale travels as f32")]
        let one = |moments: &FeatureMoments| {
            let (shift, factor) = (moments.mean as f32, (1.0 / moments.deviation) as f32);
            let usable = moments.deviation > 0.0 && factor.is_finite() && factor > 0.0;
            if usable { (shift, factor) } else { (0.0, 1.0) }
        };
        let (shift, factor) = moments.iter().map(one).unzip();
        Self { shift, factor }
    }

    /// What is subtracted, a value a feature.
    #[must_use]
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }

    /// What the difference is multiplied by.
    #[must_use]
    pub fn factor(&self) -> &[f32] {
        &self.factor
    }

    /// Scales rows of samples as devices do.
    pub fn apply(&self, x: &mut [f32]) {
        for row in x.chunks_mut(self.shift.len().max(1)) {
            for ((value, shift), factor) in row.iter_mut().zip(&self.shift).zip(&self.factor) {
                *value = (*value - shift) * factor;
            }
        }
    }

    /// As devices get it.
    #[must_use]
    pub fn tensor(&self) -> Tensor {
        let cols = u16::try_from(self.shift.len()).unwrap_or(u16::MAX);
        let values = self.shift.iter().chain(&self.factor).copied().collect();
        Tensor { role: Role::Scale, rows: 2, cols, values }
    }

    /// Both rows, to be kept.
    fn state(&self) -> impl Iterator<Item = f64> {
        self.shift.iter().chain(&self.factor).map(|value| f64::from(*value))
    }

    /// What [`Self::state`] was of.
    fn from_state(state: &[f64]) -> Option<Self> {
        #[allow(clippy::cast_possible_truncation, reason = "written from f32")]
        let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
        let (shift, factor) = state.split_at_checked(state.len() / 2)?;
        Self::new(narrow(shift), narrow(factor))
    }
}
