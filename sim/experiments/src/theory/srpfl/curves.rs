//! Curves of SRPFL's recursion over time, scaled to the distances of a scenario, so that the curves can be
//! drawn with simulated runs.

use fedspan_engine::participation::theory::{Level, Recursion};

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::report::plot::Point;

/// Parameters of a curve: recursion, start, scale and end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePlan {
    /// Recursion of the distance (equation 199 of the paper).
    pub recursion: Recursion,
    /// Initial distance, in the unit of the scenario.
    pub start: f64,
    /// Stationary distance of full participation, in the unit of the scenario.
    pub floor: f64,
    /// End of the curve, in simulated time.
    pub until: f64,
}

/// Distances over time, one point for each round.
pub type Curve = Vec<Point>;

/// Computes the curve for levels that last the numbers of rounds in `stages`. The last level lasts until the
/// end of the curve.
#[must_use]
pub fn recursion_curve(plan: &CurvePlan, levels: &[Level], stages: &[u32]) -> Curve {
    let Some(last) = levels.last() else { return Vec::new() };
    let unit = plan.floor / plan.recursion.floor(last.ratio);
    let mut distance = plan.start / unit;
    let mut time = 0.0;
    let mut round = 0.0;
    let mut curve = vec![point(round, time, distance * unit)];
    for (level, rounds) in levels.iter().zip(stages.iter().copied().chain([u32::MAX])) {
        for _ in 0..rounds {
            if time + level.time > plan.until {
                return curve;
            }
            distance = plan.recursion.step(distance, level.ratio);
            time += level.time;
            round += 1.0;
            curve.push(point(round, time, distance * unit));
        }
    }
    curve
}

/// Creates a point of a curve that has no score except the distance.
#[must_use]
pub fn point(round: f64, time: f64, distance: f64) -> Point {
    Point { round, time, bytes: 0.0, scores: Scores { distance: Some(distance), ..Scores::default() } }
}
