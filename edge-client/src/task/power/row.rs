//! Rows of the matrix `M` of FedPower: the features of a sample times a weight.

use fedspan_protocol::message::PowerRows;
#[cfg(feature = "privacy")]
use fedspan_protocol::sqrt::sqrtf;

use crate::kernel::vector::dot;
use crate::source::Targets;

/// Row, represented by the squared norm of its features and a squared weight, which are both finite.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    /// Squared norm of the features, `|x|^2`.
    pub features: f32,
    /// Squared weight.
    pub weight: f32,
}

impl Row {
    /// Returns the row of sample `x` with target `index`; `y` is scratch memory for the target. Returns
    /// `None` if the sample is not usable: a value is not finite, a squared norm overflows, or a required
    /// target is missing.
    pub fn from_sample(
        rows: PowerRows,
        x: &[f32],
        targets: Targets<'_>,
        index: usize,
        y: &mut [f32],
    ) -> Option<Self> {
        Self::new(rows, dot(x, x, 1), targets, index, y)
    }

    /// Returns the row of a sample whose features have the squared norm `features`, like [`Self::from_sample`].
    pub fn new(
        rows: PowerRows,
        features: f32,
        targets: Targets<'_>,
        index: usize,
        y: &mut [f32],
    ) -> Option<Self> {
        let weight = match rows {
            PowerRows::Weighted => targets.write(index, y).then(|| dot(y, y, 1))?,
            _ => 1.0,
        };
        (features.is_finite() && weight.is_finite()).then_some(Self { features, weight })
    }

    /// Returns true if the norm of the row is over 1, or overflows.
    pub fn is_clipped(self) -> bool {
        self.weight * self.features > 1.0
    }

    /// Returns `a^2 z`, where `a x` is the clipped row. Nothing overflows for the `z` of an orthonormal
    /// basis: the features of a clipped row have a norm over 2^-64, and any other row has a weight under
    /// 2^64.
    pub fn scale(self, z: f32) -> f32 {
        if self.is_clipped() { z / self.features } else { z * self.weight }
    }

    /// Returns the factor `a` of the clipped row `a x`, up to rounding.
    #[cfg(feature = "privacy")]
    pub fn factor(self) -> f32 {
        if self.is_clipped() { 1.0 / sqrtf(self.features) } else { sqrtf(self.weight) }
    }
}
