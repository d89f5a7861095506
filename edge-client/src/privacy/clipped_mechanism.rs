//! Mechanism that also clips whole gradients, and its state during a round.

use core::fmt;

use super::clip::Clip;
use super::discrete_gaussian::Variance;
use super::noise::Seed;

/// Privacy mechanism that also allows FedRep's gradients. The memory needs a second d x k matrix: use a
/// [`StreamingWorkspace`](crate::memory::StreamingWorkspace), or a `PowerWorkspace` with the feature `power`.
/// Firmware that does not use this type contains no FedRep code.
///
/// The standard deviation of a gradient's noise is `multiplier x` [`Clip::sensitivity`]. The limit `rows_max`
/// of the settings does not apply, because the radius bounds the influence of all rows together.
#[derive(Debug)]
pub struct Clipped<P> {
    /// Mechanism that provides noise and seeds.
    pub(crate) mechanism: P,
    /// Radius and state of the clipping.
    pub(crate) clipping: Clipping,
}

impl<P> Clipped<P> {
    /// Adds clipping to `mechanism`, which provides noise and seeds.
    pub const fn new(mechanism: P, clip: Clip) -> Self {
        Self { mechanism, clipping: Clipping::new(clip) }
    }

    /// Returns the inner mechanism.
    pub const fn mechanism(&self) -> &P {
        &self.mechanism
    }
}

/// Clipping radius, and the state of the current round's gradient.
#[derive(Debug)]
pub struct Clipping {
    /// Radius.
    clip: Clip,
    /// Seed and variance of the round's noise, until a gradient uses them.
    release: Option<Release>,
    /// True if the memory's second matrix holds a gradient with noise.
    hidden: bool,
    /// Counts of the gradients of all rounds.
    counts: ClipCounts,
}

impl Clipping {
    /// Creates the state without a round.
    #[must_use]
    pub const fn new(clip: Clip) -> Self {
        Self { clip, release: None, hidden: false, counts: ClipCounts { whole: 0, clipped: 0, withheld: 0 } }
    }

    /// Returns the radius.
    #[must_use]
    pub const fn clip(&self) -> &Clip {
        &self.clip
    }

    /// Returns the counts of clipped, unchanged and withheld gradients.
    #[must_use]
    pub const fn counts(&self) -> ClipCounts {
        self.counts
    }

    /// Returns true if the memory's second matrix holds a gradient with noise, which may be sent.
    pub(crate) const fn has_noise(&self) -> bool {
        self.hidden
    }

    /// Starts a round that has no gradient yet.
    pub(crate) fn begin(&mut self, seed: Seed, variance: Variance) {
        self.release = Some(Release { seed, variance });
        self.hidden = false;
    }

    /// Counts the gradient, or its absence, and returns the seed and variance of its noise. A second call
    /// returns `None`.
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

    /// Discards the state of the round.
    pub(crate) fn clear(&mut self) {
        self.release = None;
        self.hidden = false;
    }
}

/// Counts of the gradients of all rounds, for use by the firmware. The counts are never sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClipCounts {
    /// Number of gradients within the radius.
    pub whole: u32,
    /// Number of gradients that were shortened.
    pub clipped: u32,
    /// Number of gradients replaced by zeros because there was no head or a value was not finite.
    pub withheld: u32,
}

/// Factor by which a gradient is multiplied to fit the radius.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClipFactor {
    /// Factor that converts sums to units of the grid.
    pub factor: f32,
    /// True if the factor is smaller than the factor of an unclipped mean.
    pub clipped: bool,
}

/// Seed and variance of a gradient's noise, drawn before the first sample is read.
pub(crate) struct Release {
    pub seed: Seed,
    pub variance: Variance,
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release").field("variance", &self.variance).finish_non_exhaustive()
    }
}
