//! Optimal stages of doubling participation, after SRPFL's theory (Tziotis et al., appendix B): a recursion
//! for the distance, and the expected arrivals of exponential times. Lemma B.1 is rederived here for levels
//! `n0`, `2 n0`, ... with the cohort `N` as the last one, which need not be `n0` times a power of two.
//!
//! With `n` devices of mean computation time 1, a round takes `t_n = H_N - H_{N-n} + C` and maps the distance
//! `D` to `s D + a / sqrt(n/n0 (1 - a))`, where `s = sqrt(1 - a)` (equation 199). With its fixed point `f_n`
//! that is `D - f_n <- s (D - f_n)`, so a unit of time gains `(1 - s) (D - f_n) / t_n` (equation 200). Two
//! levels gain the same at (equations 204 to 206)
//!
//! ```text
//! X = f_n + (f_n - f_m) t_n / (t_m - t_n),    n < m
//! ```
//!
//! and below it more devices are better. From one switch to the next the excess over `f_n` shrinks by
//! `(f_n - f_m) (t_n - t_l) / ((f_l - f_n) (t_m - t_n))`, `l < n < m`. The communication `C` cancels, which
//! is why equation 203 does not contain it, and holds with equality. The first switch does depend on `C`:
//! equation 203 lets every stage begin at its switch, as if the start were infinitely far away. A start below
//! the first switches should skip those stages; [`optimal_stages`] does, [`theorem_stages`] does not.

/// Expected `n`-th smallest of `total` independent exponential times of mean 1: `H_N - H_{N-n}`.
#[must_use]
pub fn expected_arrival(n: usize, total: usize) -> f64 {
    let n = n.min(total);
    // Summed from the smallest term up: all terms are positive, so the sum is exact to a few units in the
    // last place.
    (total - n + 1..=total).rev().fold(0.0, |sum, left| sum + 1.0 / left as f64)
}

/// Recursion of the distance over a round (equation 199).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recursion {
    /// Contraction `a`, above 0 and below 1: a round shrinks the excess over the fixed point by
    /// `sqrt(1 - a)`. The theory has at most 1/4.
    pub contraction: f64,
}

impl Recursion {
    /// Factor `sqrt(1 - a)` per round.
    fn factor(self) -> f64 {
        libm::sqrt(1.0 - self.contraction)
    }

    /// Distance after one round that waits for `ratio` = `n / n0` times the first number of devices.
    #[must_use]
    pub fn step(self, distance: f64, ratio: f64) -> f64 {
        self.factor() * distance + self.contraction / (ratio * (1.0 - self.contraction)).sqrt()
    }

    /// Fixed point of rounds with `ratio` = `n / n0`.
    #[must_use]
    pub fn floor(self, ratio: f64) -> f64 {
        // 1 - s = a / (1 + s) without the cancellation.
        (1.0 + self.factor()) / (ratio * (1.0 - self.contraction)).sqrt()
    }

    /// Number of rounds with `ratio` until the distance is at most `to`: 0 if it is already, `u32::MAX` if it
    /// never is.
    #[must_use]
    pub fn rounds(self, from: f64, to: f64, ratio: f64) -> u32 {
        if from <= to {
            return 0;
        }
        let floor = self.floor(ratio);
        if floor >= to {
            return u32::MAX;
        }
        rounds(libm::log((to - floor) / (from - floor)) / libm::log(self.factor()))
    }

    /// Distance after `rounds` rounds with `ratio`.
    #[must_use]
    pub fn after(self, distance: f64, rounds: u32, ratio: f64) -> f64 {
        let floor = self.floor(ratio);
        floor + (distance - floor) * libm::exp(0.5 * f64::from(rounds) * libm::log1p(-self.contraction))
    }
}

/// Rounds up to an integer; `u32::MAX` for NaN.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn rounds(exact: f64) -> u32 {
    if exact.is_nan() { u32::MAX } else { exact.ceil() as u32 }
}

/// Number of devices that a stage waits for, with its round time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Ratio to the number of devices in the first stage, `n / n0`.
    pub ratio: f64,
    /// Time of a round, communication included.
    pub time: f64,
}

/// Levels of a cohort: `first`, doubled while below `cohort`, then `cohort`.
#[must_use]
pub fn levels(first: usize, cohort: usize, communication: f64) -> Vec<Level> {
    let first = first.max(1);
    let doubled = std::iter::successors(Some(first), |n| n.checked_mul(2));
    let level = |n: usize| Level {
        ratio: n as f64 / first as f64,
        time: expected_arrival(n, cohort) + communication,
    };
    doubled.take_while(|n| *n < cohort).chain([cohort]).map(level).collect()
}

/// Distance at which `now` and `next`, with more devices, gain the same per time (equation 206); at or below
/// it `next` is better. Infinite if more devices take no longer.
#[must_use]
pub fn switch_distance(recursion: Recursion, now: Level, next: Level) -> f64 {
    let (here, there) = (recursion.floor(now.ratio), recursion.floor(next.ratio));
    let longer = next.time - now.time;
    if longer > 0.0 { here + (here - there) * now.time / longer } else { f64::INFINITY }
}

/// Rounds of each stage but the last by equation 203, rounded up and at least 1, independent of the
/// communication: `first` (`n0`), `2 first`, ... devices of `cohort` (`N`), contraction `a`. The equation is
/// undefined for the first stage; there `first / 2` devices (rounded down) stand for the level before it.
#[must_use]
pub fn theorem_stages(first: usize, cohort: usize, contraction: f64) -> Vec<u32> {
    let recursion = Recursion { contraction };
    let before = Level { ratio: 0.5, time: expected_arrival(first.max(1) / 2, cohort) };
    let all: Vec<Level> = [before].into_iter().chain(levels(first, cohort, 0.0)).collect();
    let stage = |three: &[Level]| {
        let &[before, now, next] = three else { return 1 };
        let [l, n, m] = [before, now, next].map(|level| recursion.floor(level.ratio));
        // sqrt 2 if the devices double at both steps.
        let shrinks = (l - n) / (n - m);
        let exact = libm::log(shrinks * (next.time - now.time) / (now.time - before.time));
        rounds(exact / -libm::log(recursion.factor())).max(1)
    };
    all.windows(3).map(stage).collect()
}

/// Rounds of each stage but the last: equation 199 from the distance `start`, where a stage ends when a later
/// one gains more per time (equation 206, with the communication). A stage may have no round. `start` and
/// `floor`, the distance that full participation cannot get below, share any unit, which is converted to the
/// recursion's by its own floor. Both, and `communication` in mean computation times, are at least 0.
#[must_use]
pub fn optimal_stages(
    first: usize,
    cohort: usize,
    contraction: f64,
    communication: f64,
    start: f64,
    floor: f64,
) -> Vec<u32> {
    let recursion = Recursion { contraction };
    let levels = levels(first, cohort, communication);
    let Some(last) = levels.last() else { return Vec::new() };
    let mut distance = start / floor * recursion.floor(last.ratio);
    let mut stages = Vec::new();
    for (index, now) in levels.iter().enumerate().take(levels.len() - 1) {
        let later = levels.iter().skip(index + 1).map(|next| switch_distance(recursion, *now, *next));
        let rounds = recursion.rounds(distance, later.fold(0.0, f64::max), now.ratio);
        distance = recursion.after(distance, rounds, now.ratio);
        stages.push(rounds);
    }
    stages
}

/// Expected time from `start` to `target`, in the recursion's unit of distance, with the given rounds in each
/// stage but the last, which is as long as needed. A stage ends early at the target.
#[must_use]
pub fn time(recursion: Recursion, levels: &[Level], stages: &[u32], start: f64, target: f64) -> f64 {
    let (mut distance, mut time) = (start, 0.0);
    for (level, rounds) in levels.iter().zip(stages.iter().copied().chain([u32::MAX])) {
        let rounds = rounds.min(recursion.rounds(distance, target, level.ratio));
        distance = recursion.after(distance, rounds, level.ratio);
        time += f64::from(rounds) * level.time;
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, stream};

    const CONTRACTIONS: [f64; 4] = [0.01, 0.1, 0.19, 0.25];
    const COMMUNICATIONS: [f64; 4] = [0.0, 1.0, 10.0, 100.0];

    fn rate(recursion: Recursion, distance: f64, level: Level) -> f64 {
        (distance - recursion.step(distance, level.ratio)) / level.time
    }

    #[test]
    fn recursion_converges_to_floor() {
        for contraction in CONTRACTIONS {
            let recursion = Recursion { contraction };
            for ratio in [1.0, 2.0, 17.3, 65536.0] {
                let floor = recursion.floor(ratio);
                assert!((recursion.step(floor, ratio) / floor - 1.0).abs() < 1e-14);
                let s = (1.0 - contraction).sqrt();
                let printed = contraction / ((ratio * (1.0 - contraction)).sqrt() * (1.0 - s));
                assert!((floor / printed - 1.0).abs() < 1e-12);
                let mut distance = 3.0;
                for round in 0..50 {
                    assert!((recursion.after(3.0, round, ratio) - distance).abs() < 1e-12);
                    distance = recursion.step(distance, ratio);
                }
            }
        }
    }

    #[test]
    fn rounds_returns_fewest_that_reach_distance() {
        let recursion = Recursion { contraction: 0.1 };
        for to in [0.3, 0.5, 0.9] {
            let rounds = recursion.rounds(1.0, to, 100.0);
            assert!(recursion.after(1.0, rounds, 100.0) <= to + 1e-12);
            assert!(recursion.after(1.0, rounds - 1, 100.0) > to);
        }
        assert_eq!(recursion.rounds(1.0, recursion.floor(100.0) / 2.0, 100.0), u32::MAX);
        assert_eq!(recursion.rounds(1.0, 0.9, 1.0), u32::MAX, "these rounds lead away");
        assert_eq!(recursion.rounds(1.0, 1.0, 100.0), 0);
    }

    /// Compared with the means of sorted draws, within six standard errors; the largest rank has the largest
    /// error, about 1.28 / sqrt(n).
    #[test]
    fn expected_arrivals_match_exponential_draws() {
        for total in [1, 7, 40] {
            let draws = 20_000;
            let mut sums = vec![0.0; total];
            for draw in 0..draws {
                let mut random = stream(draw, Purpose::Speed, total as u64);
                let mut times: Vec<f64> = (0..total).map(|_| random.exponential()).collect();
                times.sort_by(f64::total_cmp);
                sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
            }
            for (rank, sum) in sums.iter().enumerate() {
                let off = sum / draws as f64 - expected_arrival(rank + 1, total);
                assert!(off.abs() < 6.0 * 1.28 / (draws as f64).sqrt(), "{} of {total}: {off}", rank + 1);
            }
        }
    }

    /// Compared with `H_N = ln N + gamma + 1/(2N) - 1/(12 N^2) + 1/(120 N^4) - ...`
    #[test]
    fn expected_arrivals_match_harmonic_numbers() {
        let harmonic = |n: f64| {
            n.ln() + 0.577_215_664_901_532_9 + 0.5 / n - 1.0 / (12.0 * n * n) + 1.0 / (120.0 * n.powi(4))
        };
        let total = 4 * 65536;
        assert!((expected_arrival(total, total) - harmonic(total as f64)).abs() < 1e-12);
        let half = harmonic(total as f64) - harmonic(total as f64 / 2.0);
        assert!((expected_arrival(total / 2, total) - half).abs() < 1e-12);
        assert_eq!((expected_arrival(0, 9), expected_arrival(9, 3)), (0.0, expected_arrival(3, 3)));
    }

    #[test]
    fn levels_gain_equally_at_switch_distance() {
        for contraction in CONTRACTIONS {
            for communication in COMMUNICATIONS {
                for (first, cohort) in [(1, 16), (4, 64), (4, 4096), (3, 48)] {
                    let recursion = Recursion { contraction };
                    let levels = levels(first, cohort, communication);
                    let mut above = f64::INFINITY;
                    for pair in levels.windows(2) {
                        let x = switch_distance(recursion, pair[0], pair[1]);
                        let rates = [0, 1].map(|side| rate(recursion, x, pair[side]));
                        assert!((rates[0] / rates[1] - 1.0).abs() < 1e-12, "{rates:?}");
                        assert!(rate(recursion, 1.01 * x, pair[0]) > rate(recursion, 1.01 * x, pair[1]));
                        assert!(rate(recursion, 0.99 * x, pair[0]) < rate(recursion, 0.99 * x, pair[1]));
                        assert!(x < above, "N = {cohort}, C = {communication}: {x} after {above}");
                        above = x;
                    }
                }
            }
        }
    }

    /// Compared with the formula as printed, with sqrt 2, for cohorts whose last level is `2^j first`.
    #[test]
    fn theorem_stages_match_equation_203() {
        for contraction in CONTRACTIONS {
            for (first, cohort) in [(4, 64), (2, 1024), (1, 8)] {
                let t = |n: usize| expected_arrival(n, cohort);
                let printed = |n: usize| {
                    let ratio = 2f64.sqrt() * (t(2 * n) - t(n)) / (t(n) - t(n / 2));
                    (2.0 * ratio.ln() / (1.0 / (1.0 - contraction)).ln()).ceil().max(1.0)
                };
                let stages = theorem_stages(first, cohort, contraction);
                let n: Vec<usize> =
                    std::iter::successors(Some(first), |n| Some(2 * n)).take_while(|n| *n < cohort).collect();
                assert_eq!(
                    stages.iter().copied().map(f64::from).collect::<Vec<_>>(),
                    n.into_iter().map(printed).collect::<Vec<_>>()
                );
            }
        }
        assert!(theorem_stages(4, 4, 0.1).is_empty() && theorem_stages(8, 4, 0.1).is_empty());
        assert_eq!(theorem_stages(4, 9, 0.1).len(), 2);
    }

    /// The communication cancels between two switches, so equation 203 is exact there.
    #[test]
    fn stage_between_switches_has_theorem_length() {
        let recursion = Recursion { contraction: 0.19 };
        let theorem = theorem_stages(4, 1000, 0.19);
        for communication in COMMUNICATIONS {
            let levels = levels(4, 1000, communication);
            for (three, rounds) in levels.windows(3).zip(&theorem[1..]) {
                let from = switch_distance(recursion, three[0], three[1]);
                let to = switch_distance(recursion, three[1], three[2]);
                assert_eq!(recursion.rounds(from, to, three[1].ratio).max(1), *rounds);
            }
        }
    }

    #[test]
    fn optimal_stages_are_unit_free() {
        let stages = |scale: f64| optimal_stages(4, 1024, 0.19, 1.0, 0.5 * scale, 0.009 * scale);
        assert_eq!(stages(1.0), stages(7.5));
        assert!(stages(1.0).iter().any(|rounds| *rounds > 0));
        // From a start at the floor, and with a single level, no round precedes full participation.
        assert!(optimal_stages(4, 1024, 0.19, 1.0, 0.009, 0.009).iter().all(|rounds| *rounds == 0));
        assert!(optimal_stages(4, 3, 0.19, 1.0, 1.0, 0.1).is_empty());
    }

    /// Least time over all vectors of stage lengths of at most `most` rounds each.
    fn best(recursion: Recursion, levels: &[Level], start: f64, target: f64, most: u32) -> f64 {
        let mut stages = vec![0; levels.len() - 1];
        let mut best = f64::INFINITY;
        loop {
            best = best.min(time(recursion, levels, &stages, start, target));
            let Some(next) = stages.iter().position(|rounds| *rounds < most) else { return best };
            stages[..next].fill(0);
            stages[next] += 1;
        }
    }

    /// Compared with all vectors of stage lengths. For rounds that could be cut anywhere the switches are
    /// optimal, for every target; whole rounds cost at most one round of full participation more.
    #[test]
    fn switching_is_optimal_up_to_whole_rounds() {
        let (mut worst, mut sum, mut same, mut cases): (f64, f64, u32, u32) = (1.0, 0.0, 0, 0);
        for contraction in [0.1, 0.25] {
            for communication in [0.0, 0.3, 1.0, 10.0] {
                for (first, cohort) in [(4, 8), (4, 16), (4, 32), (1, 8), (4, 27)] {
                    for scale in [1.0, 3.0] {
                        for factor in [1.1, 1.2, 1.4] {
                            let recursion = Recursion { contraction };
                            let levels = levels(first, cohort, communication);
                            let all = levels[levels.len() - 1];
                            let floor = recursion.floor(all.ratio);
                            let (start, target) = (scale * recursion.floor(1.0), factor * floor);
                            let stages =
                                optimal_stages(first, cohort, contraction, communication, start, floor);
                            let greedy = time(recursion, &levels, &stages, start, target);
                            let most = stages.iter().copied().fold(0, u32::max) + 6;
                            let best = best(recursion, &levels, start, target, most);
                            assert!(
                                greedy - best < all.time,
                                "{greedy} {best} {stages:?}, a = {contraction}, C = {communication}, N = {cohort}"
                            );
                            worst = worst.max(greedy / best);
                            sum += greedy / best;
                            same += u32::from(greedy < best + 1e-9);
                            cases += 1;
                        }
                    }
                }
            }
        }
        let mean = sum / f64::from(cases);
        println!(
            "{same} of {cases} are the best of whole rounds; {mean:.3} times as long, at worst {worst:.3}"
        );
        assert!(worst < 1.15 && mean < 1.04);
    }
}
