//! Weight of an update, from its sample count and the number of draws of its device.

use crate::types::Weighting;

/// Sample count of an update, and number of times that its device was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateWeight {
    /// Declared sample count, capped by the server.
    pub samples: u32,
    /// Number of times that the device was drawn for the round: 1 unless the policy draws with replacement,
    /// and 0 for a device that was invited only as the reference for the alignment of other devices.
    pub draws: u32,
}

impl UpdateWeight {
    /// Weight of a device that was drawn once.
    #[must_use]
    pub const fn from_samples(samples: u32) -> Self {
        Self { samples, draws: 1 }
    }

    /// Weight as a number, for a kind of weighting.
    #[must_use]
    pub fn weight(self, weighting: Weighting) -> u32 {
        weighting.weight(self.samples).saturating_mul(self.draws)
    }
}
