//! Bounds on the sample counts that devices declare, since a server cannot see the samples.
//!
//! Under a robust rule no device counts more than the median device of the round, and the fifth of the
//! devices with the largest counts has at most a quarter of the weight, as the rules withstand a fraction of
//! the *weight*. A fifth of lying devices, among devices of equal size, then has a fifth of the weight. The
//! price is that devices with more samples count less than they could.

/// Bounds on declared sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCap {
    /// Largest count for any device.
    pub max_samples: u32,
    /// Whether a count is also bounded relative to those of the other devices of the round.
    pub relative: bool,
}

impl SampleCap {
    /// No bound at all.
    pub const NONE: Self = Self { max_samples: u32::MAX, relative: false };

    /// Largest effective count in a round with these declared counts, ascending and none of them 0. The
    /// median is the lower one, so it is at most the largest honest count as long as fewer than half of the
    /// devices lie.
    #[must_use]
    pub fn bound(&self, declared: &[u32]) -> u32 {
        if self.relative { self.max_samples.min(relative(declared)) } else { self.max_samples }
    }

    /// Sum of the effective counts of a round, for declared counts in ascending order.
    #[must_use]
    pub fn total(&self, declared: &[u32]) -> u64 {
        let bound = self.bound(declared);
        declared.iter().map(|count| u64::from((*count).min(bound))).sum()
    }
}

/// Largest bound that is at most the median and leaves the heaviest fifth of the devices at most a quarter of
/// the total.
fn relative(declared: &[u32]) -> u32 {
    let n = declared.len();
    let Some(median) = declared.get(n.saturating_sub(1) / 2) else { return u32::MAX };
    // No device of that fifth is below the median, so the fifth has (n / 5) c of: the sum of the p counts
    // below c, plus (n - p) c.
    let quarter = 4 * (n / 5);
    let mut below = 0;
    for (p, count) in declared.iter().take_while(|count| *count < median).enumerate() {
        let over = (quarter + p).saturating_sub(n) as u64;
        if over > 0 && below / over < u64::from(*count) {
            return u32::try_from(below / over).unwrap_or(*median);
        }
        below += u64::from(*count);
    }
    let p = declared.partition_point(|count| count < median);
    let over = (quarter + p).saturating_sub(n) as u64;
    below
        .checked_div(over)
        .and_then(|most| u32::try_from(most).ok())
        .map_or(*median, |most| most.min(*median))
}
