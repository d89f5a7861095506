//! Times at which the accuracy of runs reaches a target.

use super::plot::Point;
use crate::run::RECENT_ROUNDS;

/// Converts the times of the curves to another communication cost, which is by `extra_communication` higher.
#[must_use]
pub fn shifted(curves: &[Vec<Point>], extra_communication: f64) -> Vec<Vec<Point>> {
    let shift = |point: &Point| Point { time: point.time + point.round * extra_communication, ..*point };
    curves.iter().map(|curve| curve.iter().map(shift).collect()).collect()
}

/// Mean over the seeds of the mean accuracy of the evaluated rounds among the last ten rounds.
#[must_use]
pub fn final_accuracy(curves: &[Vec<Point>]) -> Option<f64> {
    let curve_mean = |curve: &Vec<Point>| {
        let last = curve.last()?.round;
        let recent = curve.iter().filter(|point| point.round + f64::from(RECENT_ROUNDS) > last);
        mean(&recent.map(|point| point.scores.accuracy).collect::<Option<Vec<f64>>>()?)
    };
    mean(&curves.iter().map(curve_mean).collect::<Option<Vec<f64>>>()?)
}

#[allow(clippy::cast_precision_loss, reason = "seeds and rounds")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// First time at which the latest points of more than half of the curves are at or above the target.
#[must_use]
pub fn median_crossing(curves: &[Vec<Point>], target: f64) -> Option<f64> {
    let is_at_target = |point: &Point| point.scores.accuracy.is_some_and(|accuracy| accuracy >= target);
    let mut events: Vec<(f64, usize, bool)> = curves
        .iter()
        .enumerate()
        .flat_map(|(seed, curve)| curve.iter().map(move |point| (point.time, seed, is_at_target(point))))
        .collect();
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut at_target = vec![false; curves.len()];
    for (time, seed, is_at_target) in events {
        if let Some(entry) = at_target.get_mut(seed) {
            *entry = is_at_target;
        }
        if 2 * at_target.iter().filter(|at_target| **at_target).count() > curves.len() {
            return Some(time);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{final_accuracy, median_crossing};
    use crate::evaluate::Scores;
    use crate::report::plot::Point;

    fn curve(points: &[(f64, f64)]) -> Vec<Point> {
        let mut round = 0.0;
        let point = |&(time, accuracy): &(f64, f64)| {
            round += 1.0;
            let scores = Scores { accuracy: Some(accuracy), ..Scores::default() };
            Point { round, time, bytes: 0.0, scores }
        };
        points.iter().map(point).collect()
    }

    /// Checks that a seed below the target does not count even if it reached the target before, and that half
    /// of the seeds are not a majority.
    #[test]
    fn majority_of_seeds_must_be_at_the_target() {
        let early_curve = curve(&[(1.0, 0.9), (2.0, 0.1), (5.0, 0.9)]);
        let late_curve = curve(&[(1.5, 0.1), (3.0, 0.9)]);
        let unreached_curve = curve(&[(1.0, 0.1), (9.0, 0.2)]);
        assert_eq!(
            median_crossing(&[early_curve.clone(), late_curve.clone(), unreached_curve.clone()], 0.5),
            Some(5.0)
        );
        assert_eq!(median_crossing(&[early_curve.clone(), unreached_curve.clone()], 0.5), None);
        assert_eq!(median_crossing(&[early_curve], 0.5), Some(1.0));
        assert_eq!(median_crossing(&[], 0.5), None);
        assert_eq!(median_crossing(&[unreached_curve, late_curve.clone(), late_curve], 0.9), Some(3.0));
    }

    #[test]
    fn final_accuracy_averages_the_last_ten_rounds() {
        let long_curve: Vec<(f64, f64)> =
            (0..20).map(|n| (f64::from(n), if n < 10 { 0.0 } else { 0.5 })).collect();
        assert_eq!(final_accuracy(&[curve(&long_curve), curve(&[(1.0, 1.0)])]), Some(0.75));
        assert_eq!(final_accuracy(&[]), None);
    }
}
