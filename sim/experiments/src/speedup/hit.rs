//! When the median over the seeds is at or under a target, and how sure ratios of such times are.

use fedspan_engine::random::{Purpose, stream};
use serde::Serialize;

use super::trajectory::Trajectory;

/// Resamples of the seeds.
pub const RESAMPLES: u64 = 1000;
/// Of these, as many are below the lower bound, and above the upper one: 5 %.
const OUTSIDE: usize = 50;

/// When each seed comes to the target or leaves it.
#[derive(Clone, Debug)]
pub struct Crossings {
    /// Whether each seed is there from the beginning.
    there: Vec<bool>,
    /// Time, seed, whether it is at or under the target from then on; ascending in time.
    events: Vec<(f64, usize, bool)>,
    /// As far as each seed was followed.
    ends: Vec<f64>,
}

impl Crossings {
    /// Of a run for each seed, with this communication.
    #[must_use]
    pub fn of(runs: &[Trajectory], communication: f64, target: f64) -> Self {
        let mut crossings = Self { there: Vec::new(), events: Vec::new(), ends: Vec::new() };
        for (seed, run) in runs.iter().enumerate() {
            let mut points = run.points(communication);
            let mut there = points.next().is_some_and(|(_, distance)| distance <= target);
            crossings.there.push(there);
            for (time, distance) in points {
                if (distance <= target) != there {
                    there = !there;
                    crossings.events.push((time, seed, there));
                }
            }
            crossings.ends.push(run.end(communication));
        }
        crossings.events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        crossings
    }

    /// Seeds.
    #[must_use]
    pub fn seeds(&self) -> usize {
        self.there.len()
    }

    /// The first time at which more than half of the seeds are at or under the target, the last round of each counting
    /// that is finished by then.
    #[must_use]
    pub fn hit(&self) -> Option<f64> {
        self.hit_of(&vec![1; self.seeds()])
    }

    /// When all but few resamples of the seeds have come to it: runs have to last until then.
    #[must_use]
    pub fn hit_of_most(&self) -> Option<f64> {
        let never = f64::INFINITY;
        let mut hits: Vec<f64> =
            resamples(self.seeds()).map(|counts| self.hit_of(&counts).unwrap_or(never)).collect();
        hits.sort_by(f64::total_cmp);
        let most = hits.get(hits.len().saturating_sub(OUTSIDE / 2)).copied();
        most.filter(|hit| hit.is_finite()).filter(|_| self.hit().is_some())
    }

    /// As far as all seeds that count were followed.
    #[must_use]
    pub fn horizon(&self) -> f64 {
        self.horizon_of(&vec![1; self.seeds()])
    }

    fn horizon_of(&self, counts: &[u32]) -> f64 {
        let counting = self.ends.iter().zip(counts).filter(|(_, count)| **count > 0);
        counting.map(|(end, _)| *end).fold(f64::INFINITY, f64::min)
    }

    /// [`Self::hit`] with each seed counted that often.
    fn hit_of(&self, counts: &[u32]) -> Option<f64> {
        let count = |seed: usize| counts.get(seed).copied().unwrap_or(0);
        let all: u32 = counts.iter().sum();
        let mut there: u32 =
            self.there.iter().zip(counts).filter(|(there, _)| **there).map(|(_, n)| *n).sum();
        if 2 * there > all {
            return Some(0.0);
        }
        let horizon = self.horizon_of(counts);
        // Seeds whose rounds end at the same time cross together.
        for together in self.events.chunk_by(|a, b| a.0 == b.0) {
            for &(time, seed, now) in together {
                if time > horizon {
                    return None;
                }
                there = if now { there + count(seed) } else { there - count(seed) };
            }
            if 2 * there > all {
                return together.first().map(|event| event.0);
            }
        }
        None
    }
}

/// How many times as fast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The ratio, or what it is below.
    pub value: f64,
    /// The target was not reached as far as runs went: the ratio is below `value`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub below: bool,
}

/// A ratio of times with its bounds over resamples of the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speedup {
    /// Time of the policy; absent where it does not come to the target as far as it was followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// The time of full participation over it.
    pub ratio: Ratio,
    /// The 5 % quantile.
    pub low: Ratio,
    /// The 95 % quantile.
    pub high: Ratio,
}

impl Speedup {
    /// `full` over `policy`, seed by seed the same data and speeds; resamples take both together.
    #[must_use]
    pub fn of(full: &Crossings, policy: &Crossings) -> Self {
        let once = vec![1; full.seeds()];
        let mut resampled: Vec<Ratio> =
            resamples(full.seeds()).map(|counts| ratio(full, policy, &counts)).collect();
        resampled.sort_by(|a, b| a.value.total_cmp(&b.value).then(b.below.cmp(&a.below)));
        let whole = ratio(full, policy, &once);
        let at = |index: usize| resampled.get(index).copied().unwrap_or(whole);
        Self {
            time: policy.hit(),
            ratio: whole,
            low: at(OUTSIDE - 1),
            high: at(resampled.len().saturating_sub(OUTSIDE)),
        }
    }
}

/// How often each of so many seeds counts.
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

fn ratio(full: &Crossings, policy: &Crossings, counts: &[u32]) -> Ratio {
    // Where full participation does not come to it in time, it takes at least as long: the smaller ratio.
    let time = full.hit_of(counts).unwrap_or_else(|| full.horizon_of(counts));
    match policy.hit_of(counts) {
        Some(own) if own > 0.0 => Ratio { value: time / own, below: false },
        // Both have nothing to do.
        Some(_) => Ratio { value: 1.0, below: false },
        None => Ratio { value: time / policy.horizon_of(counts), below: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossings(there: &[bool], events: &[(f64, usize, bool)], ends: &[f64]) -> Crossings {
        Crossings { there: there.to_vec(), events: events.to_vec(), ends: ends.to_vec() }
    }

    #[test]
    fn more_than_half_of_the_seeds_make_a_hit() {
        let events = [(1.0, 0, true), (2.0, 1, true), (3.0, 0, false), (3.0, 2, true), (4.0, 0, true)];
        let four = crossings(&[false; 4], &events, &[9.0; 4]);
        assert_eq!(four.hit(), Some(4.0), "two of four are no majority, nor are those that change places");
        assert_eq!(crossings(&[false; 3], &events, &[9.0; 3]).hit(), Some(2.0));
        assert_eq!(crossings(&[true, true, false], &[], &[9.0; 3]).hit(), Some(0.0));
    }

    #[test]
    fn nobody_is_judged_beyond_the_shortest_run() {
        let events = [(1.0, 0, true), (2.0, 1, true)];
        assert_eq!(crossings(&[false; 3], &events, &[9.0, 9.0, 1.5]).hit(), None);
        assert_eq!(crossings(&[false; 3], &events, &[9.0, 9.0, 1.5]).hit_of(&[1, 1, 0]), Some(2.0));
    }

    #[test]
    fn something_against_itself_is_as_fast() {
        let events = [(1.0, 0, true), (2.0, 1, true), (2.5, 2, true)];
        let one = crossings(&[false; 3], &events, &[9.0; 3]);
        let Speedup { time, ratio, low, high } = Speedup::of(&one, &one);
        assert_eq!((time, ratio.value, low.value, high.value), (Some(2.0), 1.0, 1.0, 1.0));
        let never = crossings(&[false; 3], &[], &[2.3; 3]);
        let speedup = Speedup::of(&one, &never);
        assert!(speedup.ratio.below && (speedup.ratio.value - 2.0 / 2.3).abs() < 1e-12);
        assert_eq!(speedup.time, None);
    }
}
