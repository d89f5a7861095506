//! Bounds on the sample counts that devices declare, which a server cannot verify.
//!
//! The guarantees of the robust rules are in terms of the fraction of the *weight* that attackers have. Under
//! a robust rule the sample counts are therefore capped such that no device has a larger count than the
//! median device of the round, and the fifth of the devices with the largest counts has at most a quarter of
//! the weight. If all devices have the same number of samples, a fifth of attackers then has a fifth of the
//! weight. The disadvantage is that devices with more samples have less weight than without the cap.

/// Bounds on declared sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCap {
    /// Largest count for any device.
    pub max_samples: u32,
    /// Whether a count is also bounded relative to the counts of the other devices of the round.
    pub relative: bool,
}

impl SampleCap {
    /// No bound.
    pub const NONE: Self = Self { max_samples: u32::MAX, relative: false };

    /// Largest effective count in a round with these declared counts, which are in ascending order and not 0.
    /// For an even number of counts the median is the lower of the two middle counts. So the bound is at most
    /// the largest honest count if fewer than half of the devices declare false counts.
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

/// Largest bound that is at most the median and with which the heaviest fifth of the devices has at most a
/// quarter of the total.
fn relative(declared: &[u32]) -> u32 {
    let n = declared.len();
    let Some(median) = declared.get(n.saturating_sub(1) / 2) else { return u32::MAX };
    // With a bound c of at most the median, the heaviest fifth has (n / 5) c samples, since none of its
    // counts is below the median. The total is the sum of the p counts below c, plus (n - p) c.
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
