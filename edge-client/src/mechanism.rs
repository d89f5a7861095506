//! What is done to an update before it leaves: nothing, or noise of differential privacy.

use fedspan_protocol::message::{Privacy, RoundId};

#[cfg(feature = "privacy")]
use crate::privacy::{Clipping, NoEntropy, PrivacySettings, Seed};

/// What tells one release from every other of the fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// The device's identity ([`Config::device`](crate::session::Config::device)).
    pub device: u64,
    /// The campaign of the round.
    pub campaign: u64,
    /// The round.
    pub round: RoundId,
    /// What all releases before it have cost, by the device's ledger: more for each.
    pub spent: u64,
}

/// A mechanism of differential privacy, or none: [`NoPrivacy`], or `privacy::Gaussian` (a feature).
pub trait Mechanism {
    /// The settings of its noise; `None` if there is none.
    #[cfg(feature = "privacy")]
    fn settings(&self) -> Option<PrivacySettings> {
        None
    }

    /// Before a release is paid for: whatever its seed needs that can fail.
    ///
    /// # Errors
    /// [`NoEntropy`]: there must be no release.
    #[cfg(feature = "privacy")]
    fn prepare(&mut self, _release: &Release) -> Result<(), NoEntropy> {
        Ok(())
    }

    /// The seed of the noise of the release that was [prepared](Self::prepare), once. Two releases with one seed would show
    /// their difference bare.
    ///
    /// # Errors
    /// [`NoEntropy`]: there must be no release.
    #[cfg(feature = "privacy")]
    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        Err(NoEntropy)
    }

    /// How whole gradients are clipped; `None` if none may leave. Whether there is one does not change.
    #[cfg(feature = "privacy")]
    fn clipping(&self) -> Option<&Clipping> {
        None
    }

    /// The same, to change.
    #[cfg(feature = "privacy")]
    fn clipping_mut(&mut self) -> Option<&mut Clipping> {
        None
    }
}

/// No noise: what leaves is what was computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrivacy;

impl Mechanism for NoPrivacy {}

/// What a device says of its mechanism; the session fills in what has been spent.
pub(crate) fn declared_privacy(mechanism: &impl Mechanism) -> Privacy {
    #[cfg(feature = "privacy")]
    if let Some(settings) = mechanism.settings() {
        return Privacy::Gaussian { release: settings.release(), budget: settings.budget(), spent: 0 };
    }
    let _ = mechanism;
    Privacy::None
}

/// Nothing that leaves may depend on a record but through noise.
pub(crate) fn is_private(mechanism: &impl Mechanism) -> bool {
    declared_privacy(mechanism) != Privacy::None
}

/// Whether a gradient may leave: as it is, or clipped.
pub(crate) fn sends_gradients(mechanism: &impl Mechanism) -> bool {
    #[cfg(feature = "privacy")]
    if is_private(mechanism) {
        return mechanism.clipping().is_some();
    }
    !is_private(mechanism)
}
