//! Times at which the median distance over the seeds reaches a target, and bootstrap bounds for ratios of
//! such times.

use fedspan_engine::random::{Purpose, stream};
use serde::Serialize;

use super::trajectory::Trajectory;

/// Number of bootstrap resamples of the seeds.
pub const RESAMPLES: u64 = 1000;
/// Number of resamples below the lower bound, and above the upper bound; 5 % of all resamples each.
const RESAMPLES_OUTSIDE: usize = 50;

/// Times at which the distance of each seed's run crosses the target, in either direction.
#[derive(Clone, Debug)]
pub struct Crossings {
    /// For each seed, true if the run starts at or below the target.
    at_target: Vec<bool>,
    /// Crossings in ascending order of time: time, index of the seed, and true if the run is at or below the
    /// target after this time.
    events: Vec<(f64, usize, bool)>,
    /// End time of each seed's run.
    ends: Vec<f64>,
}

impl Crossings {
    /// Computes the crossings of `runs`, one for each seed, at the given communication cost.
    #[must_use]
    pub fn new(runs: &[Trajectory], communication: f64, target: f64) -> Self {
        let mut crossings = Self { at_target: Vec::new(), events: Vec::new(), ends: Vec::new() };
        for (seed, run) in runs.iter().enumerate() {
            let mut points = run.points(communication);
            let mut at_target = points.next().is_some_and(|(_, distance)| distance <= target);
            crossings.at_target.push(at_target);
            for (time, distance) in points {
                if (distance <= target) != at_target {
                    at_target = !at_target;
                    crossings.events.push((time, seed, at_target));
                }
            }
            crossings.ends.push(run.end(communication));
        }
        crossings.events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        crossings
    }

    /// Number of seeds.
    #[must_use]
    pub fn seeds(&self) -> usize {
        self.at_target.len()
    }

    /// First time at which the latest finished rounds of more than half of the seeds are at or below the
    /// target. Returns `None` if there is no such time before the shortest run ends.
    #[must_use]
    pub fn time(&self) -> Option<f64> {
        self.time_with_counts(&vec![1; self.seeds()])
    }

    /// Time at which all but 2.5 % of the resamples of the seeds have reached the target; runs must last
    /// until this time. Returns `None` if the original seeds, or too many resamples, have not reached the
    /// target.
    #[must_use]
    pub fn time_for_most_resamples(&self) -> Option<f64> {
        let never = f64::INFINITY;
        let mut times: Vec<f64> =
            resamples(self.seeds()).map(|counts| self.time_with_counts(&counts).unwrap_or(never)).collect();
        times.sort_by(f64::total_cmp);
        let upper_limit = times.get(times.len().saturating_sub(RESAMPLES_OUTSIDE / 2)).copied();
        upper_limit.filter(|time| time.is_finite()).filter(|_| self.time().is_some())
    }

    /// End time of the shortest run.
    #[must_use]
    pub fn horizon(&self) -> f64 {
        self.horizon_with_counts(&vec![1; self.seeds()])
    }

    /// End time of the shortest run among the seeds whose count is not 0.
    fn horizon_with_counts(&self, counts: &[u32]) -> f64 {
        let counting = self.ends.iter().zip(counts).filter(|(_, count)| **count > 0);
        counting.map(|(end, _)| *end).fold(f64::INFINITY, f64::min)
    }

    /// Variant of [`Self::time`] in which each seed counts as often as `counts` specifies.
    fn time_with_counts(&self, counts: &[u32]) -> Option<f64> {
        let count = |seed: usize| counts.get(seed).copied().unwrap_or(0);
        let total: u32 = counts.iter().sum();
        let mut at_target: u32 =
            self.at_target.iter().zip(counts).filter(|(at_target, _)| **at_target).map(|(_, n)| *n).sum();
        if 2 * at_target > total {
            return Some(0.0);
        }
        let horizon = self.horizon_with_counts(counts);
        // Crossings at the same time are processed together.
        for simultaneous in self.events.chunk_by(|a, b| a.0 == b.0) {
            for &(time, seed, is_at_target) in simultaneous {
                if time > horizon {
                    return None;
                }
                at_target = if is_at_target { at_target + count(seed) } else { at_target - count(seed) };
            }
            if 2 * at_target > total {
                return simultaneous.first().map(|event| event.0);
            }
        }
        None
    }
}

/// Ratio of times, or an upper bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Value of the ratio or of its upper bound.
    pub value: f64,
    /// True if the policy did not reach the target within its runs, so that the ratio is less than `value`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub below: bool,
}

/// Speedup of a policy over full participation, with bounds from resamples of the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speedup {
    /// Time that the policy needs to reach the target; absent if the policy does not reach it within its
    /// runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// Time of full participation divided by the time of the policy.
    pub ratio: Ratio,
    /// 5 % quantile of the ratio over the resamples.
    pub low: Ratio,
    /// 95 % quantile of the ratio over the resamples.
    pub high: Ratio,
}

impl Speedup {
    /// Compares a policy with full participation. For each seed, both have the same data and speeds, and each
    /// resample uses the same seeds for both.
    #[must_use]
    pub fn new(full: &Crossings, policy: &Crossings) -> Self {
        let equal_counts = vec![1; full.seeds()];
        let mut resampled: Vec<Ratio> =
            resamples(full.seeds()).map(|counts| ratio(full, policy, &counts)).collect();
        resampled.sort_by(|a, b| a.value.total_cmp(&b.value).then(b.below.cmp(&a.below)));
        let original = ratio(full, policy, &equal_counts);
        let ratio_at = |index: usize| resampled.get(index).copied().unwrap_or(original);
        Self {
            time: policy.time(),
            ratio: original,
            low: ratio_at(RESAMPLES_OUTSIDE - 1),
            high: ratio_at(resampled.len().saturating_sub(RESAMPLES_OUTSIDE)),
        }
    }
}

impl Speedup {
    /// Time of full participation divided by the time of the policy, without bounds; an upper bound if the
    /// policy does not reach the target within its runs.
    #[must_use]
    pub fn ratio_alone(full: &Crossings, policy: &Crossings) -> f64 {
        ratio(full, policy, &vec![1; full.seeds()]).value
    }
}

/// For each resample, the number of times that each seed was drawn.
fn resamples(seeds: usize) -> impl Iterator<Item = Vec<u32>> {
    (0..RESAMPLES).map(move |index| {
        let mut random = stream(0, Purpose::Resample, index);
        let mut counts = vec![0; seeds];
        for _ in 0..seeds {
            if let Some(count) = counts.get_mut(random.below(seeds)) {
                *count += 1;
            }
        }
        counts
    })
}

/// Ratio of the times to the target, in which each seed counts as often as `counts` specifies.
fn ratio(full: &Crossings, policy: &Crossings, counts: &[u32]) -> Ratio {
    // If full participation does not reach the target, the end of its shortest run is a lower bound of its
    // time, so the computed ratio is a lower bound as well.
    let time = full.time_with_counts(counts).unwrap_or_else(|| full.horizon_with_counts(counts));
    match policy.time_with_counts(counts) {
        Some(policy_time) if policy_time > 0.0 => Ratio { value: time / policy_time, below: false },
        // The policy, and therefore also full participation, is at the target from the start.
        Some(_) => Ratio { value: 1.0, below: false },
        None => Ratio { value: time / policy.horizon_with_counts(counts), below: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossings(at_target: &[bool], events: &[(f64, usize, bool)], ends: &[f64]) -> Crossings {
        Crossings { at_target: at_target.to_vec(), events: events.to_vec(), ends: ends.to_vec() }
    }

    #[test]
    fn majority_of_seeds_defines_the_time() {
        let events = [(1.0, 0, true), (2.0, 1, true), (3.0, 0, false), (3.0, 2, true), (4.0, 0, true)];
        let four_seeds = crossings(&[false; 4], &events, &[9.0; 4]);
        assert_eq!(four_seeds.time(), Some(4.0), "two of four counted as a majority");
        assert_eq!(crossings(&[false; 3], &events, &[9.0; 3]).time(), Some(2.0));
        assert_eq!(crossings(&[true, true, false], &[], &[9.0; 3]).time(), Some(0.0));
    }

    #[test]
    fn time_is_bounded_by_the_shortest_run() {
        let events = [(1.0, 0, true), (2.0, 1, true)];
        assert_eq!(crossings(&[false; 3], &events, &[9.0, 9.0, 1.5]).time(), None);
        assert_eq!(crossings(&[false; 3], &events, &[9.0, 9.0, 1.5]).time_with_counts(&[1, 1, 0]), Some(2.0));
    }

    #[test]
    fn speedup_over_itself_is_one() {
        let events = [(1.0, 0, true), (2.0, 1, true), (2.5, 2, true)];
        let reached = crossings(&[false; 3], &events, &[9.0; 3]);
        let Speedup { time, ratio, low, high } = Speedup::new(&reached, &reached);
        assert_eq!((time, ratio.value, low.value, high.value), (Some(2.0), 1.0, 1.0, 1.0));
        let never = crossings(&[false; 3], &[], &[2.3; 3]);
        let speedup = Speedup::new(&reached, &never);
        assert!(speedup.ratio.below && (speedup.ratio.value - 2.0 / 2.3).abs() < 1e-12);
        assert_eq!(speedup.time, None);
    }
}
