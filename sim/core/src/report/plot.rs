//! Figures of a report as SVG: curves over rounds, time or bytes ([`figures`]), a histogram over clients
//! ([`histogram`]) and a confusion matrix ([`confusion`]).
//!
//! The SVG is written directly. A plotting library draws one bitmap-like picture: its text shrinks with the
//! picture, its labels cannot be kept apart, and its lines have neither classes nor dash patterns that the page
//! could style, hide or read. Every chart of curves is drawn twice, for wide and for narrow screens; the page
//! shows one of them, at its natural size or larger, so that text is never smaller than 11 px. Colours are CSS
//! variables of the page ([`super::html`]).

mod axis;
mod colours;
pub mod confusion;
mod curves;
pub mod histogram;
mod labels;
mod legend;
mod lines;
mod metric;
mod panels;
mod svg;

pub use axis::Axis;
pub use colours::{COLOURS, DASHES, distinct_styles, style_of};
pub use curves::figures;
pub use legend::{curves_explained, legend};
pub use metric::{Loss, Metric};

use serde::{Deserialize, Serialize};

use crate::evaluate::Scores;
use crate::run::Outcome;
use crate::scenario::Scenario;

/// State of a run after a round.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Point {
    /// Number of the round; 0 is the initial model.
    pub round: f64,
    /// Simulated time in mean computations.
    pub time: f64,
    /// Cumulative number of uploaded and downloaded bytes.
    pub bytes: f64,
    /// Metrics after the round.
    pub scores: Scores,
}

/// Converts the rounds that were evaluated to points.
#[must_use]
pub fn curve(outcome: &Outcome) -> Vec<Point> {
    let mut points = Vec::new();
    let mut bytes = 0.0;
    for row in &outcome.rounds {
        #[allow(clippy::cast_precision_loss, reason = "for a plot")]
        let round_bytes = (row.bytes_up + row.bytes_down) as f64;
        bytes += round_bytes;
        if let Some(scores) = row.scores {
            points.push(Point { round: row.round.into(), time: row.time, bytes, scores });
        }
    }
    points
}

/// Runs of one scenario, which are drawn in one colour and dash pattern.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Label in the legend.
    pub label: String,
    /// Scenario without the algorithm: series of one family share a panel if there are many curves.
    pub family: String,
    /// Loss that the points have.
    pub loss: Loss,
    /// Number of rounds between two drawn points; 0 and 1 draw every point. The last point is always drawn.
    pub every: u32,
    /// One curve for each seed.
    pub runs: Vec<Vec<Point>>,
}

impl Series {
    /// Series of a scenario, with its loss, and with the interval of its evaluations: the last rounds of networks
    /// are also evaluated, one by one, which would be drawn as noise at the end of smooth curves.
    #[must_use]
    pub fn of(label: &str, scenario: &Scenario, runs: Vec<Vec<Point>>) -> Self {
        Self {
            label: label.to_owned(),
            family: labels::family(label, scenario.algorithm_name()),
            loss: Loss::of(scenario),
            every: scenario.evaluate_every,
            runs,
        }
    }
}

/// A figure of the page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Name of the file as which the page saves the figure, without extension: letters, digits and hyphens.
    pub name: String,
    /// Description for readers who do not see the figure.
    pub description: String,
    /// One picture, or one for wide and one for narrow screens.
    pub pictures: Vec<String>,
    /// Sentence below the figure; empty if there is none.
    pub note: String,
}
