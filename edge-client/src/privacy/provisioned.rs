//! Settings from a provisioning record.

use fedspan_protocol::secure::ProvisionedNoise;

use super::mechanism::{PrivacySettings, PrivacySettingsError};
use super::multiplier::NoiseMultiplier;

impl PrivacySettings {
    /// As the record says. The norm that gradients are clipped to is not part of them.
    ///
    /// # Errors
    /// [`PrivacySettingsError`] where no noise can be made of the numbers. The device must not join.
    pub fn provisioned(noise: &ProvisionedNoise) -> Result<Self, PrivacySettingsError> {
        let multiplier = NoiseMultiplier::from_square(noise.multiplier_square)
            .map_err(PrivacySettingsError::Multiplier)?;
        let settings = Self::new(multiplier, noise.budget, noise.rows_max, noise.slot.into())?;
        Ok(settings.with_iterations(noise.iterations_max))
    }
}
