//! What a device's declared number of samples may count: a server cannot see samples, so it bounds the word.
//!
//! Under a robust rule nobody counts more than the median device of the round. A fifth of liars among devices that are
//! alike then has a fifth of the weight, as many as the rule is promised to withstand; at one and a half times the
//! median it would be 27 %, which it does not always. What that costs is the say of those who do have more.

/// Bounds on declared sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCap {
    /// The most that any device's count may be.
    pub most: u32,
    /// Whether a count is also bounded by the median of what the devices of the round declare.
    pub relative: bool,
}

impl SampleCap {
    /// Bounds nothing.
    pub const NONE: Self = Self { most: u32::MAX, relative: false };

    /// The most that a count of a round may be in which these were declared, in ascending order. The median is
    /// the lower one: as long as under half of them lie it is at most the largest honest count.
    #[must_use]
    pub fn bound(&self, declared: &[u32]) -> u32 {
        let median = declared.get(declared.len().saturating_sub(1) / 2);
        median.filter(|_| self.relative).map_or(self.most, |median| (*median).min(self.most))
    }

    /// The sum of the counts of a round, ascending, each as far as it counts.
    #[must_use]
    pub fn total(&self, declared: &[u32]) -> u64 {
        let bound = self.bound(declared);
        declared.iter().map(|count| u64::from((*count).min(bound))).sum()
    }
}
