//! Curves of the recursion over time, in the unit of a scenario, so that they can be drawn with simulated runs.

use fedspan_engine::participation::theory::{Level, Recursion};

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::report::plot::Point;

/// Start, scale and end of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePlan {
    /// The recursion, equation 199.
    pub recursion: Recursion,
    /// Distance at the start, in the scenario's unit.
    pub start: f64,
    /// Stationary distance of full participation, in the same unit.
    pub floor: f64,
    /// End of the curve, in simulated time.
    pub until: f64,
}

/// Distance over time, round by round.
pub type Curve = Vec<Point>;

/// The curve of these stages; the last level lasts until the end.
#[must_use]
pub fn recursion_curve(plan: &CurvePlan, levels: &[Level], stages: &[u32]) -> Curve {
    let Some(last) = levels.last() else { return Vec::new() };
    let unit = plan.floor / plan.recursion.floor(last.ratio);
    let (mut distance, mut time, mut round) = (plan.start / unit, 0.0, 0.0);
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

/// A curve point that has only a distance.
#[must_use]
pub fn point(round: f64, time: f64, distance: f64) -> Point {
    Point { round, time, bytes: 0.0, scores: Scores { distance: Some(distance), ..Scores::default() } }
}
