//! What a device's declared number of samples may count: a server cannot see samples, so it bounds the word.
//!
//! Under a robust rule nobody counts more than the median device of the round, and the fifth of the devices that say
//! they have the most have no more than a quarter of the weight together: rules withstand a fifth of the *weight*. A
//! fifth of liars among devices that are alike then has a fifth of it. What that costs is the say of those who do have
//! more.

/// Bounds on declared sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCap {
    /// The most that any device's count may be.
    pub max_samples: u32,
    /// Whether a count is also bounded by what the other devices of the round declare.
    pub relative: bool,
}

impl SampleCap {
    /// Bounds nothing.
    pub const NONE: Self = Self { max_samples: u32::MAX, relative: false };

    /// The most that a count of a round may be in which these (none of them 0) were declared, in ascending order. The
    /// median is the lower one: as long as under half of them lie it is at most the largest honest count.
    #[must_use]
    pub fn bound(&self, declared: &[u32]) -> u32 {
        if self.relative { self.max_samples.min(relative(declared)) } else { self.max_samples }
    }

    /// The sum of the counts of a round, ascending, each as far as it counts.
    #[must_use]
    pub fn total(&self, declared: &[u32]) -> u64 {
        let bound = self.bound(declared);
        declared.iter().map(|count| u64::from((*count).min(bound))).sum()
    }
}

/// The largest bound that is not above the median, and with which the heaviest fifth has no more than a quarter.
fn relative(declared: &[u32]) -> u32 {
    let n = declared.len();
    let Some(median) = declared.get(n.saturating_sub(1) / 2) else { return u32::MAX };
    // Nobody of that fifth is below the median, so it has (n / 5) c of p counts under c, and of n - p that are cut to c.
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
