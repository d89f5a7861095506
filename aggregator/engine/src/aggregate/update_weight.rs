//! How much an update counts.

use crate::types::Weighting;

/// What an update was computed from, and how often its device was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateWeight {
    /// Samples, as the device says and as far as that counts.
    pub samples: u32,
    /// How often the device is in the round's sample: once, unless devices are drawn with replacement; never, if it is
    /// asked for other devices to be aligned with.
    pub draws: u32,
}

impl UpdateWeight {
    /// Of a device that is in the round once.
    #[must_use]
    pub const fn from_samples(samples: u32) -> Self {
        Self { samples, draws: 1 }
    }

    /// The weight of the update.
    #[must_use]
    pub fn weight(self, weighting: Weighting) -> u32 {
        weighting.weight(self.samples).saturating_mul(self.draws)
    }
}
