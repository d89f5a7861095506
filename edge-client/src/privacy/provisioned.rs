//! Privacy settings read from a provisioning record.

use fedspan_protocol::secure::ProvisionedNoise;

use super::mechanism::{PrivacySettings, PrivacySettingsError};
use super::multiplier::NoiseMultiplier;

impl PrivacySettings {
    /// Creates the settings from the noise entry of a provisioning record. The clipping radius of gradients
    /// is not part of the record.
    ///
    /// # Errors
    /// [`PrivacySettingsError`] if a number is out of range. The device must then not join a campaign.
    pub fn provisioned(noise: &ProvisionedNoise) -> Result<Self, PrivacySettingsError> {
        let multiplier = NoiseMultiplier::from_square(noise.multiplier_square)
            .map_err(PrivacySettingsError::Multiplier)?;
        let settings = Self::new(multiplier, noise.budget, noise.rows_max, noise.slot.into())?;
        Ok(settings.with_iterations(noise.iterations_max))
    }
}
