//! Privacy mechanisms, which either leave an update unchanged or add the noise of differential privacy before
//! the update is sent.

use fedspan_protocol::message::Privacy;

#[cfg(feature = "privacy")]
use crate::privacy::{Clipped, Clipping, EntropySource, Gaussian, NoEntropy, PrivacySettings, Seed};
#[cfg(feature = "privacy")]
use crate::release::Release;

/// Mechanism of differential privacy: [`NoPrivacy`], or `privacy::Gaussian` with the feature `privacy`.
pub trait Mechanism {
    /// Returns the settings of the noise; `None` for a mechanism without noise.
    #[cfg(feature = "privacy")]
    fn settings(&self) -> Option<PrivacySettings> {
        None
    }

    /// Prepares the seed of a release before its cost is charged, so that a failure charges nothing.
    ///
    /// # Errors
    /// [`NoEntropy`] if no seed can be drawn. The device must then release nothing.
    #[cfg(feature = "privacy")]
    fn prepare(&mut self, _release: &Release) -> Result<(), NoEntropy> {
        Ok(())
    }

    /// Returns the seed of the [prepared](Self::prepare) release; a second call fails. If two releases used
    /// the same seed, their difference would contain no noise.
    ///
    /// # Errors
    /// [`NoEntropy`] if no release is prepared. The device must then release nothing.
    #[cfg(feature = "privacy")]
    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        Err(NoEntropy)
    }

    /// Returns the clipping of whole gradients; `None` if gradients must not be sent. The result never
    /// changes between `Some` and `None`.
    #[cfg(feature = "privacy")]
    fn clipping(&self) -> Option<&Clipping> {
        None
    }

    /// Returns the clipping of [`Self::clipping`], mutable.
    #[cfg(feature = "privacy")]
    fn clipping_mut(&mut self) -> Option<&mut Clipping> {
        None
    }
}

/// Mechanism without noise: the update is sent as computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrivacy;

impl Mechanism for NoPrivacy {}

#[cfg(feature = "privacy")]
impl<S: EntropySource> Mechanism for Gaussian<S> {
    fn settings(&self) -> Option<PrivacySettings> {
        Some(self.settings)
    }

    fn prepare(&mut self, release: &Release) -> Result<(), NoEntropy> {
        self.prepare_seed(release)
    }

    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        self.take_seed()
    }
}

#[cfg(feature = "privacy")]
impl<P: Mechanism> Mechanism for Clipped<P> {
    fn settings(&self) -> Option<PrivacySettings> {
        self.mechanism.settings()
    }

    fn prepare(&mut self, release: &Release) -> Result<(), NoEntropy> {
        self.mechanism.prepare(release)
    }

    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        self.mechanism.draw_seed()
    }

    fn clipping(&self) -> Option<&Clipping> {
        Some(&self.clipping)
    }

    fn clipping_mut(&mut self) -> Option<&mut Clipping> {
        Some(&mut self.clipping)
    }
}

/// Returns the privacy capability of a mechanism with a spent budget of zero; the session fills in the spent
/// budget.
pub(crate) fn declared_privacy(mechanism: &impl Mechanism) -> Privacy {
    #[cfg(feature = "privacy")]
    if let Some(settings) = mechanism.settings() {
        return Privacy::Gaussian { release: settings.release(), budget: settings.budget(), spent: 0 };
    }
    let _ = mechanism;
    Privacy::None
}

/// Returns true if records influence uploads only through noise.
pub(crate) fn is_private(mechanism: &impl Mechanism) -> bool {
    declared_privacy(mechanism) != Privacy::None
}

/// Returns true if gradients may be sent, clipped or unchanged.
pub(crate) fn sends_gradients(mechanism: &impl Mechanism) -> bool {
    #[cfg(feature = "privacy")]
    if is_private(mechanism) {
        return mechanism.clipping().is_some();
    }
    !is_private(mechanism)
}
