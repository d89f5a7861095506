//! Rows of `M`: what a sample's features are multiplied by.

use fedspan_protocol::message::PowerRows;
#[cfg(feature = "privacy")]
use libm::sqrtf;

use crate::kernel::vector::dot;
use crate::source::Targets;

/// A row, as its sample's features and a weight. Both squares are finite.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    /// `|x|^2`.
    pub features: f32,
    /// The squared weight.
    pub weight: f32,
}

impl Row {
    /// Of sample `x` with target `index`; `y` is room for the target. `None` if the sample cannot be used: a value is
    /// not finite, a squared norm overflows, or the target is missing where it is needed.
    pub fn of(rows: PowerRows, x: &[f32], targets: Targets<'_>, index: usize, y: &mut [f32]) -> Option<Self> {
        let features = dot(x, x, 1);
        let weight = match rows {
            PowerRows::Weighted => targets.write(index, y).then(|| dot(y, y, 1))?,
            _ => 1.0,
        };
        (features.is_finite() && weight.is_finite()).then_some(Self { features, weight })
    }

    /// True if its norm is over 1. An overflow says so as well.
    pub fn is_clipped(self) -> bool {
        self.weight * self.features > 1.0
    }

    /// `a^2 z`, where `a x` is the row, clipped. Nothing overflows on the way for the `z` of an orthonormal basis: a
    /// row that is clipped has features of norm over 2^-64, any other a weight under 2^64.
    pub fn scale(self, z: f32) -> f32 {
        if self.is_clipped() { z / self.features } else { z * self.weight }
    }

    /// `a`, but for roundings.
    #[cfg(feature = "privacy")]
    pub fn factor(self) -> f32 {
        if self.is_clipped() { 1.0 / sqrtf(self.features) } else { sqrtf(self.weight) }
    }
}
