//! Privacy mechanisms: the treatment of an update before it leaves the device, nothing or the noise of differential
//! privacy.

use fedspan_protocol::message::Privacy;

#[cfg(feature = "privacy")]
use crate::privacy::{Clipped, Clipping, EntropySource, Gaussian, NoEntropy, PrivacySettings, Seed};
#[cfg(feature = "privacy")]
use crate::release::Release;

/// Mechanism of differential privacy: [`NoPrivacy`], or `privacy::Gaussian` (a feature).
pub trait Mechanism {
    /// Returns the settings of the noise; `None` without noise.
    #[cfg(feature = "privacy")]
    fn settings(&self) -> Option<PrivacySettings> {
        None
    }

    /// Prepares the seed of a release before its cost is charged, so that a failure charges nothing.
    ///
    /// # Errors
    /// [`NoEntropy`] if no seed can be drawn; the device must not release anything then.
    #[cfg(feature = "privacy")]
    fn prepare(&mut self, _release: &Release) -> Result<(), NoEntropy> {
        Ok(())
    }

    /// Returns the seed of the [prepared](Self::prepare) release, once. If two releases used one seed, the
    /// difference of both would have no noise.
    ///
    /// # Errors
    /// [`NoEntropy`] if no release is prepared; the device must not release anything then.
    #[cfg(feature = "privacy")]
    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        Err(NoEntropy)
    }

    /// Returns the clipping of whole gradients; `None` if no gradient may leave. The answer is the same for the
    /// mechanism's whole life.
    #[cfg(feature = "privacy")]
    fn clipping(&self) -> Option<&Clipping> {
        None
    }

    /// Returns the clipping for changes.
    #[cfg(feature = "privacy")]
    fn clipping_mut(&mut self) -> Option<&mut Clipping> {
        None
    }
}

/// Mechanism without noise: the update leaves as computed.
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

/// Returns the privacy capability of a mechanism, with nothing spent; the session fills in the spent budget.
pub(crate) fn declared_privacy(mechanism: &impl Mechanism) -> Privacy {
    #[cfg(feature = "privacy")]
    if let Some(settings) = mechanism.settings() {
        return Privacy::Gaussian { release: settings.release(), budget: settings.budget(), spent: 0 };
    }
    let _ = mechanism;
    Privacy::None
}

/// Returns true if a record may influence an upload only through noise.
pub(crate) fn is_private(mechanism: &impl Mechanism) -> bool {
    declared_privacy(mechanism) != Privacy::None
}

/// Returns true if gradients may leave, clipped or unchanged.
pub(crate) fn sends_gradients(mechanism: &impl Mechanism) -> bool {
    #[cfg(feature = "privacy")]
    if is_private(mechanism) {
        return mechanism.clipping().is_some();
    }
    !is_private(mechanism)
}
