//! The recursion's course over time, in the unit of a scenario, to be drawn with simulated runs.

use fedspan_engine::participation::theory::{Level, Recursion};

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::report::plot::Point;

/// Where a course begins, what it is scaled with, and how far it goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    /// Equation 199.
    pub recursion: Recursion,
    /// The distance at the start, in the scenario's unit.
    pub start: f64,
    /// Where full participation hovers, in the same unit.
    pub floor: f64,
    /// The time at which it ends.
    pub until: f64,
}

/// Time, round by round, and distance.
pub type Curve = Vec<Point>;

/// The course of these stages, the last level for the rest of the time.
#[must_use]
pub fn course(course: &Course, levels: &[Level], stages: &[u32]) -> Curve {
    let Some(last) = levels.last() else { return Vec::new() };
    let unit = course.floor / course.recursion.floor(last.ratio);
    let (mut distance, mut time, mut round) = (course.start / unit, 0.0, 0.0);
    let mut curve = vec![point(round, time, distance * unit)];
    for (level, rounds) in levels.iter().zip(stages.iter().copied().chain([u32::MAX])) {
        for _ in 0..rounds {
            if time + level.time > course.until {
                return curve;
            }
            distance = course.recursion.step(distance, level.ratio);
            time += level.time;
            round += 1.0;
            curve.push(point(round, time, distance * unit));
        }
    }
    curve
}

/// A place of a curve that is about the distance only.
#[must_use]
pub fn point(round: f64, time: f64, distance: f64) -> Point {
    Point { round, time, bytes: 0.0, scores: Scores { distance: Some(distance), ..Scores::default() } }
}
