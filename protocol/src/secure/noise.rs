//! Noise entry of a provisioning record: the noise that the device adds to its uploads, and its privacy
//! budget.

use super::fields::take;

/// Tag of the entry. Bit 7 is not set, so that firmware that does not support the entry refuses the record
/// instead of running without noise.
pub(super) const TAG: u8 = 0x01;

/// Length of the entry's value, in bytes.
pub(super) const VALUE: usize = 8 + 8 + 4 + 4 + 4 + 2;

/// Noise of a device and its privacy budget, as provisioned. The device checks whether the numbers are
/// usable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProvisionedNoise {
    /// Square of the noise multiplier (standard deviation over sensitivity), in units of 2^-16.
    pub multiplier_square: u64,
    /// Budget for all releases during the device's lifetime, in units of 2^-30 (one release costs the inverse
    /// square of the multiplier).
    pub budget: u64,
    /// Maximum number of samples that a round uses.
    pub rows_max: u32,
    /// Time from the start of a computation to its answer, in milliseconds.
    pub slot: u32,
    /// Norm to which whole gradients are clipped; 0 if the device uploads no gradients.
    pub clip: f32,
    /// Maximum number of iterations of a round, or of gradient steps of a head.
    pub iterations_max: u16,
}

impl ProvisionedNoise {
    /// Decodes the entry's value. Returns `None` if the length is wrong, or the clipping norm is negative or
    /// not finite.
    pub(super) fn read(mut value: &[u8]) -> Option<Self> {
        let fields = &mut value;
        let noise = Self {
            multiplier_square: u64::from_le_bytes(take(fields)?),
            budget: u64::from_le_bytes(take(fields)?),
            rows_max: u32::from_le_bytes(take(fields)?),
            slot: u32::from_le_bytes(take(fields)?),
            clip: f32::from_le_bytes(take(fields)?),
            iterations_max: u16::from_le_bytes(take(fields)?),
        };
        (value.is_empty() && noise.clip.is_finite() && noise.clip.is_sign_positive()).then_some(noise)
    }

    /// Returns the bytes of the whole entry.
    pub(super) fn bytes(&self) -> impl Iterator<Item = u8> {
        [TAG, VALUE as u8]
            .into_iter()
            .chain(self.multiplier_square.to_le_bytes())
            .chain(self.budget.to_le_bytes())
            .chain(self.rows_max.to_le_bytes())
            .chain(self.slot.to_le_bytes())
            .chain(self.clip.to_le_bytes())
            .chain(self.iterations_max.to_le_bytes())
    }
}
