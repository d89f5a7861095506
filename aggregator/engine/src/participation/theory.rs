//! Theory of doubling participation (SRPFL, Tziotis et al., appendix B): optimal stage lengths from a
//! recursion for the distance to the true representation and the expected arrival times of exponentially
//! distributed devices. Lemma B.1 is rederived here for levels `n0`, `2 n0`, ... with the cohort `N` as the
//! last level, which need not be `n0` times a power of two.
//!
//! With `n` devices of mean computation time 1, a round takes `t_n = H_N - H_{N-n} + C`, where `H` are the
//! harmonic numbers and `C` is the communication time. It maps the distance `D` to
//! `s D + a / sqrt(n/n0 (1 - a))`, where `s = sqrt(1 - a)` (equation 199). With the fixed point `f_n` of this
//! map, `D - f_n <- s (D - f_n)`, so the gain per unit of time is `(1 - s) (D - f_n) / t_n` (equation 200).
//! Two levels have the same gain at the distance (equations 204 to 206)
//!
//! ```text
//! X = f_n + (f_n - f_m) t_n / (t_m - t_n),    n < m
//! ```
//!
//! and below this distance the level with more devices is better. From one switch of levels to the next, the
//! excess over `f_n` shrinks by `(f_n - f_m) (t_n - t_l) / ((f_l - f_n) (t_m - t_n))`, `l < n < m`. The
//! communication time `C` cancels, so equation 203 does not contain it, and the equation holds exactly. Only
//! the first switch depends on `C`: equation 203 assumes that every stage begins at its switch, as if the
//! initial distance were infinite. If the initial distance is below the first switches, the stages before
//! these should be skipped; [`optimal_stages`] skips them, [`theorem_stages`] does not.

/// Expected value of the `n`-th smallest of `total` independent exponential times of mean 1: `H_N - H_{N-n}`.
#[must_use]
pub fn expected_arrival(n: usize, total: usize) -> f64 {
    let n = n.min(total);
    // The sum starts with the smallest term. All terms are positive, so it is exact to a few units in the
    // last place.
    (total - n + 1..=total).rev().fold(0.0, |sum, remaining| sum + 1.0 / remaining as f64)
}

/// Recursion that maps the distance before a round to the distance after it (equation 199).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recursion {
    /// Contraction `a`, above 0 and below 1: a round multiplies the excess over the fixed point by
    /// `sqrt(1 - a)`. The theory assumes at most 1/4.
    pub contraction: f64,
}

impl Recursion {
    /// Factor `s = sqrt(1 - a)` of the excess per round.
    fn factor(self) -> f64 {
        libm::sqrt(1.0 - self.contraction)
    }

    /// Distance after one round that waits for `n = ratio n0` devices.
    #[must_use]
    pub fn step(self, distance: f64, ratio: f64) -> f64 {
        self.factor() * distance + self.contraction / (ratio * (1.0 - self.contraction)).sqrt()
    }

    /// Fixed point `f_n` of rounds with `n = ratio n0` devices.
    #[must_use]
    pub fn floor(self, ratio: f64) -> f64 {
        // Uses `1 - s = a / (1 + s)`, which avoids the cancellation.
        (1.0 + self.factor()) / (ratio * (1.0 - self.contraction)).sqrt()
    }

    /// Number of rounds with `ratio` that reduce the distance from `start` to at most `target`; 0 if `start`
    /// is at most `target`, and `u32::MAX` if no number of rounds suffices.
    #[must_use]
    pub fn rounds(self, start: f64, target: f64, ratio: f64) -> u32 {
        if start <= target {
            return 0;
        }
        let floor = self.floor(ratio);
        if floor >= target {
            return u32::MAX;
        }
        rounds(libm::log((target - floor) / (start - floor)) / libm::log(self.factor()))
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

/// Number of devices that a stage waits for, and the expected duration of its rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Ratio to the number of devices in the first stage, `n / n0`.
    pub ratio: f64,
    /// Expected duration of a round, communication included.
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

/// Distance at which the level `now` and the level `next`, with more devices, have the same gain per unit of
/// time (equation 206). At or below this distance `next` is at least as good. Infinite if rounds of `next`
/// take no longer.
#[must_use]
pub fn switch_distance(recursion: Recursion, now: Level, next: Level) -> f64 {
    let (now_floor, next_floor) = (recursion.floor(now.ratio), recursion.floor(next.ratio));
    let extra_time = next.time - now.time;
    if extra_time > 0.0 {
        now_floor + (now_floor - next_floor) * now.time / extra_time
    } else {
        f64::INFINITY
    }
}

/// Number of rounds of each stage but the last by equation 203, rounded up and at least 1, for stages with
/// `first` (`n0`), `2 first`, ... devices of a cohort of `cohort` (`N`). The numbers do not depend on the
/// communication time. The equation is undefined for the first stage, whose preceding level is taken as
/// `first / 2` devices (rounded down).
#[must_use]
pub fn theorem_stages(first: usize, cohort: usize, contraction: f64) -> Vec<u32> {
    let recursion = Recursion { contraction };
    let preceding = Level { ratio: 0.5, time: expected_arrival(first.max(1) / 2, cohort) };
    let all_levels: Vec<Level> = [preceding].into_iter().chain(levels(first, cohort, 0.0)).collect();
    let stage = |window: &[Level]| {
        let &[preceding, now, next] = window else { return 1 };
        let [l, n, m] = [preceding, now, next].map(|level| recursion.floor(level.ratio));
        // This ratio is sqrt 2 if the number of devices doubles at both steps.
        let ratio = (l - n) / (n - m);
        let exact = libm::log(ratio * (next.time - now.time) / (now.time - preceding.time));
        rounds(exact / -libm::log(recursion.factor())).max(1)
    };
    all_levels.windows(3).map(stage).collect()
}

/// Number of rounds of each stage but the last, by equation 199 from the initial distance `start`. A stage
/// ends when a later stage has a larger gain per unit of time (equation 206, with the communication time). A
/// stage may have no rounds.
///
/// `floor` is the smallest distance that full participation reaches. `start` and `floor` have the same unit,
/// and only their ratio matters. `communication` is in mean computation times. All three are at least 0.
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

/// Expected time from the distance `start` to the distance `target`, in the unit of the recursion. `stages`
/// are the numbers of rounds of all stages but the last, which is as long as necessary. A stage ends early if
/// the target is reached.
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

    /// Gain of a round per unit of time.
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
        assert_eq!(
            recursion.rounds(1.0, 0.9, 1.0),
            u32::MAX,
            "rounds with so few devices cannot reduce the distance"
        );
        assert_eq!(recursion.rounds(1.0, 1.0, 100.0), 0);
    }

    /// Compares with the means of sorted draws, within six standard errors. The standard error is largest for
    /// the largest rank, about 1.28 / sqrt(n).
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
                let deviation = sum / draws as f64 - expected_arrival(rank + 1, total);
                assert!(
                    deviation.abs() < 6.0 * 1.28 / (draws as f64).sqrt(),
                    "{} of {total}: {deviation}",
                    rank + 1
                );
            }
        }
    }

    /// Compares with `H_N = ln N + gamma + 1/(2N) - 1/(12 N^2) + 1/(120 N^4) - ...`.
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

    /// Compares with the formula as printed in the paper, which has the constant sqrt 2, for cohorts of
    /// `2^j first` devices.
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

    /// Between two switches the communication time cancels, so equation 203 is exact.
    #[test]
    fn stage_between_switches_has_theorem_length() {
        let recursion = Recursion { contraction: 0.19 };
        let theorem = theorem_stages(4, 1000, 0.19);
        for communication in COMMUNICATIONS {
            let levels = levels(4, 1000, communication);
            for (window, rounds) in levels.windows(3).zip(&theorem[1..]) {
                let from = switch_distance(recursion, window[0], window[1]);
                let to = switch_distance(recursion, window[1], window[2]);
                assert_eq!(recursion.rounds(from, to, window[1].ratio).max(1), *rounds);
            }
        }
    }

    #[test]
    fn optimal_stages_are_unit_free() {
        let stages = |scale: f64| optimal_stages(4, 1024, 0.19, 1.0, 0.5 * scale, 0.009 * scale);
        assert_eq!(stages(1.0), stages(7.5));
        assert!(stages(1.0).iter().any(|rounds| *rounds > 0));
        // If the initial distance is the floor, or if there is a single level, no round precedes full
        // participation.
        assert!(optimal_stages(4, 1024, 0.19, 1.0, 0.009, 0.009).iter().all(|rounds| *rounds == 0));
        assert!(optimal_stages(4, 3, 0.19, 1.0, 1.0, 0.1).is_empty());
    }

    /// Shortest time over all vectors of stage lengths of at most `rounds_max` rounds each.
    fn best_time(recursion: Recursion, levels: &[Level], start: f64, target: f64, rounds_max: u32) -> f64 {
        let mut stages = vec![0; levels.len() - 1];
        let mut best = f64::INFINITY;
        loop {
            best = best.min(time(recursion, levels, &stages, start, target));
            let Some(next) = stages.iter().position(|rounds| *rounds < rounds_max) else { return best };
            stages[..next].fill(0);
            stages[next] += 1;
        }
    }

    /// Compares with the best vector of stage lengths, found by trying all vectors. If rounds could end at
    /// any time, the switches would be optimal for every target. With whole rounds, the time is longer by
    /// less than one round of full participation.
    #[test]
    fn switching_is_optimal_up_to_whole_rounds() {
        let mut worst: f64 = 1.0;
        let mut sum: f64 = 0.0;
        let mut optimal: u32 = 0;
        let mut cases: u32 = 0;
        for contraction in [0.1, 0.25] {
            for communication in [0.0, 0.3, 1.0, 10.0] {
                for (first, cohort) in [(4, 8), (4, 16), (4, 32), (1, 8), (4, 27)] {
                    for scale in [1.0, 3.0] {
                        for factor in [1.1, 1.2, 1.4] {
                            let recursion = Recursion { contraction };
                            let levels = levels(first, cohort, communication);
                            let last_level = levels[levels.len() - 1];
                            let floor = recursion.floor(last_level.ratio);
                            let (start, target) = (scale * recursion.floor(1.0), factor * floor);
                            let stages =
                                optimal_stages(first, cohort, contraction, communication, start, floor);
                            let greedy = time(recursion, &levels, &stages, start, target);
                            let rounds_max = stages.iter().copied().fold(0, u32::max) + 6;
                            let best = best_time(recursion, &levels, start, target, rounds_max);
                            assert!(
                                greedy - best < last_level.time,
                                "{greedy} {best} {stages:?}, a = {contraction}, C = {communication}, N = {cohort}"
                            );
                            worst = worst.max(greedy / best);
                            sum += greedy / best;
                            optimal += u32::from(greedy < best + 1e-9);
                            cases += 1;
                        }
                    }
                }
            }
        }
        let mean = sum / f64::from(cases);
        println!(
            "{optimal} of {cases} are the best of whole rounds; {mean:.3} times as long, at worst {worst:.3}"
        );
        assert!(worst < 1.15 && mean < 1.04);
    }
}
