//! Fits of heads, and the directions that they left out.

use super::Usage;

/// The last fit of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadFit {
    /// Samples that the head was fitted on.
    pub samples: u32,
    /// Directions that the representation has: its width k.
    pub width: u16,
    /// Directions that the head has a weight for. Fewer than k where the features of the samples do not determine the head
    /// as far as the arithmetic can tell: there are fewer samples than directions, features that are zero or depend on
    /// each other, or values that are roundings.
    pub rank: u16,
    /// The ridge of the fit, in units of squared features.
    pub ridge: f32,
}

impl HeadFit {
    /// Directions that were cut, for whatever reason.
    #[must_use]
    pub const fn cut(&self) -> u16 {
        self.width.saturating_sub(self.rank)
    }

    /// True if there were fewer samples than directions: no more than one direction a sample can be determined then.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.samples < self.width as u32
    }
}

/// Counters of a device's fits, for the firmware: none of them leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadFits {
    /// The last one.
    pub last: HeadFit,
    /// Fits that cut directions although there were as many samples as directions: worth a warning.
    pub cut: u32,
    /// Fits that cut directions for want of samples.
    pub short: u32,
}

impl HeadFits {
    pub(super) const NONE: Self =
        Self { last: HeadFit { samples: 0, width: 0, rank: 0, ridge: 0.0 }, cut: 0, short: 0 };

    pub(super) fn record(&mut self, usage: Usage, width: usize, rank: usize, ridge: f32) {
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        self.last = HeadFit { samples: usage.samples, width: small(width), rank: small(rank), ridge };
        if self.last.cut() > 0 {
            let counter = if self.last.is_short() { &mut self.short } else { &mut self.cut };
            *counter = counter.saturating_add(1);
        }
    }
}
