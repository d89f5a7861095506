//! Statistics of head fits: the rank of the last fit, and counts of fits of less than full rank.

use super::Usage;

/// Result of the last fit of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadFit {
    /// Number of samples that the head was fitted on.
    pub samples: u32,
    /// Width k of the representation, which is its number of directions.
    pub width: u16,
    /// Rank of the fit: the number of directions with a weight. The rank is below k if the features do not
    /// determine the head numerically: fewer samples than directions, zero or dependent features, or values
    /// that are rounding errors.
    pub rank: u16,
    /// Ridge of the fit, in units of squared features.
    pub ridge: f32,
}

impl HeadFit {
    /// Returns the number of directions that were cut, for any reason.
    #[must_use]
    pub const fn cut(&self) -> u16 {
        self.width.saturating_sub(self.rank)
    }

    /// Returns true if there were fewer samples than directions, which limits the rank.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.samples < self.width as u32
    }
}

/// Counters of the head fits of a device, for use by the firmware. The counters are never sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadFits {
    /// Last fit.
    pub last: HeadFit,
    /// Number of fits that cut directions although there were enough samples. Firmware should report such
    /// fits.
    pub cut: u32,
    /// Number of fits that cut directions because of too few samples.
    pub short: u32,
}

impl HeadFits {
    /// Statistics before the first fit.
    pub(super) const NONE: Self =
        Self { last: HeadFit { samples: 0, width: 0, rank: 0, ridge: 0.0 }, cut: 0, short: 0 };

    /// Records a fit, and counts it if it cut directions.
    pub(super) fn record(&mut self, usage: Usage, width: usize, rank: usize, ridge: f32) {
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        self.last = HeadFit { samples: usage.samples, width: small(width), rank: small(rank), ridge };
        if self.last.cut() > 0 {
            let counter = if self.last.is_short() { &mut self.short } else { &mut self.cut };
            *counter = counter.saturating_add(1);
        }
    }
}
