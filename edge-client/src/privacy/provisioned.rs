//! Privacy settings from a provisioning record.

use fedspan_protocol::secure::ProvisionedNoise;

use super::mechanism::{PrivacySettings, PrivacySettingsError};
use super::multiplier::NoiseMultiplier;

impl PrivacySettings {
    /// Creates the settings of the record. The clipping norm of gradients is not part of them.
    ///
    /// # Errors
    /// [`PrivacySettingsError`] if a number is out of range. The device must not join a campaign then.
    pub fn provisioned(noise: &ProvisionedNoise) -> Result<Self, PrivacySettingsError> {
        let multiplier = NoiseMultiplier::from_square(noise.multiplier_square)
            .map_err(PrivacySettingsError::Multiplier)?;
        let settings = Self::new(multiplier, noise.budget, noise.rows_max, noise.slot.into())?;
        Ok(settings.with_iterations(noise.iterations_max))
    }
}
