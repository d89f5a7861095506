//! The entry of a provisioning record that says what noise the device adds to what it sends.

use super::provision::take;

/// The entry's tag. Without bit 7: a firmware that does not know it must not run without noise.
pub(super) const TAG: u8 = 0x01;

/// Bytes of its value.
pub(super) const VALUE: usize = 8 + 8 + 4 + 4 + 4 + 2;

/// What noise a device adds, and how much of it its owner lets it spend. The numbers are as they are provisioned:
/// whether noise can be made of them is for the device to say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProvisionedNoise {
    /// The square of the noise multiplier (standard deviation over sensitivity), in units of 2^-16.
    pub multiplier_square: u64,
    /// What all releases of the device's life may cost together, in units of 2^-30 (one costs the inverse square of the
    /// multiplier).
    pub budget: u64,
    /// Samples of a round that count.
    pub rows_max: u32,
    /// The time from the beginning of a computation to its answer, in milliseconds.
    pub slot: u32,
    /// The norm that whole gradients are clipped to; 0 if no gradient leaves.
    pub clip: f32,
    /// Iterations, or gradient steps of a head, that a round may ask for.
    pub iterations_max: u16,
}

impl ProvisionedNoise {
    /// Reads a value; `None` if it has another length, or a norm that is none.
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

    /// The whole entry, byte by byte.
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
