//! A mechanism that clips whole gradients as well, and what it holds of a round until the next one.

use core::fmt;

use super::clip::Clip;
use super::discrete_gaussian::Variance;
use super::mechanism::{NoEntropy, PrivacySettings};
use super::noise::Seed;
use crate::mechanism::{self, Mechanism};

/// A mechanism with which FedRep's gradients leave, too, from memory with room for another d x k: a
/// [`StreamingWorkspace`](crate::memory::StreamingWorkspace), or with the feature `power` a `PowerWorkspace`. A firmware that
/// does without it has nothing of FedRep in flash.
///
/// Its noise is `multiplier x` [`Clip::sensitivity`]; `rows_max` of the settings has no say here, as the radius bounds
/// what all rows together do.
#[derive(Debug)]
pub struct Clipped<P> {
    mechanism: P,
    clipping: Clipping,
}

impl<P: Mechanism> Clipped<P> {
    /// Noise and seeds are those of `mechanism`.
    pub const fn new(mechanism: P, clip: Clip) -> Self {
        Self { mechanism, clipping: Clipping::new(clip) }
    }

    /// The mechanism.
    pub const fn mechanism(&self) -> &P {
        &self.mechanism
    }
}

impl<P: Mechanism> Mechanism for Clipped<P> {
    fn settings(&self) -> Option<PrivacySettings> {
        self.mechanism.settings()
    }

    fn prepare(&mut self, release: &mechanism::Release) -> Result<(), NoEntropy> {
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

/// A radius, and what hides the gradient of the round that is open.
#[derive(Debug)]
pub struct Clipping {
    clip: Clip,
    release: Option<Release>,
    hidden: bool,
    counts: ClipCounts,
}

impl Clipping {
    /// No round yet.
    #[must_use]
    pub const fn new(clip: Clip) -> Self {
        Self { clip, release: None, hidden: false, counts: ClipCounts { whole: 0, clipped: 0, withheld: 0 } }
    }

    /// The radius.
    #[must_use]
    pub const fn clip(&self) -> &Clip {
        &self.clip
    }

    /// What became of gradients so far.
    #[must_use]
    pub const fn counts(&self) -> ClipCounts {
        self.counts
    }

    /// What the memory's second d x k holds is a gradient in its noise, and may leave.
    pub(crate) const fn has_noise(&self) -> bool {
        self.hidden
    }

    /// A round begins: no gradient yet.
    pub(crate) fn begin(&mut self, seed: Seed, variance: Variance) {
        self.release = Some(Release { seed, variance });
        self.hidden = false;
    }

    /// There is a gradient, or none that may be sent. What it is to be hidden with can be had once.
    pub(crate) fn take_release(&mut self, gradient: Option<&ClipFactor>) -> Option<Release> {
        let release = self.release.take()?;
        self.hidden = true;
        let counter = match gradient {
            Some(ClipFactor { clipped: false, .. }) => &mut self.counts.whole,
            Some(ClipFactor { clipped: true, .. }) => &mut self.counts.clipped,
            None => &mut self.counts.withheld,
        };
        *counter = counter.saturating_add(1);
        Some(release)
    }

    /// Nothing of a round is left.
    pub(crate) fn clear(&mut self) {
        self.release = None;
        self.hidden = false;
    }
}

/// What became of the gradients of all rounds. It is for the firmware and never leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClipCounts {
    /// Short enough as they were.
    pub whole: u32,
    /// Made shorter.
    pub clipped: u32,
    /// Zeros in their place: there was no head, or a value was not finite.
    pub withheld: u32,
}

/// A factor with which the gradient is no longer than the radius.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClipFactor {
    /// From sums to units of the grid.
    pub factor: f32,
    /// Smaller than what makes the sums a mean.
    pub clipped: bool,
}

/// What a gradient is hidden with: drawn before the first sample is read.
pub(crate) struct Release {
    pub seed: Seed,
    pub variance: Variance,
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release").field("variance", &self.variance).finish_non_exhaustive()
    }
}
