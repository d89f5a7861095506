//! Charts of curves as SVG. The colours are CSS variables that the page defines ([`super::html`]), so that a
//! chart suits light and dark screens. Fonts are not embedded.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::evaluate::Scores;
use crate::run::Outcome;

/// Placeholder colours of text, grid and axes, which are replaced by CSS variables in the finished SVG.
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(1, 1, 2);
const AXIS: RGBColor = RGBColor(1, 1, 3);
/// Number of distinct colours for series; further series reuse these colours.
pub const SERIES_COLOURS: usize = 6;

/// Size of a chart in CSS pixels, before scaling.
const SIZE: (u32, u32) = (620, 340);

/// State of a run after a round.
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// Runs of one scenario, which are drawn in one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Label in the legend.
    pub label: String,
    /// One curve for each seed.
    pub runs: Vec<Vec<Point>>,
}

/// Metric on the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Distance from the true representation, on a logarithmic axis.
    Distance,
    /// Training loss, on a logarithmic axis.
    Loss,
    /// Accuracy of personal models, on a linear axis.
    Accuracy,
    /// Accuracy of the shared model, on a linear axis.
    AccuracyGlobal,
    /// Test error of personal models, on a logarithmic axis.
    TestMse,
}

/// Quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Number of the round.
    Round,
    /// Simulated time.
    Time,
    /// Number of uploaded and downloaded bytes.
    Bytes,
}

impl Metric {
    /// All metrics, in the order of a report.
    pub const ALL: [Self; 5] =
        [Self::Distance, Self::Accuracy, Self::AccuracyGlobal, Self::Loss, Self::TestMse];

    /// Title of the chart of this metric.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Distance => "Distance to the true representation (sine of the largest angle)",
            Self::Loss => "Training loss, heads refitted",
            Self::Accuracy => "Accuracy of personal models, mean over clients",
            Self::AccuracyGlobal => "Accuracy of the one shared model, mean over clients",
            Self::TestMse => "Mean squared test error of personal models",
        }
    }

    /// Value of the metric; `None` if it is missing or cannot be drawn on the metric's axis.
    fn value(self, scores: &Scores) -> Option<f64> {
        let value = match self {
            Self::Distance => scores.distance,
            Self::Loss => scores.loss,
            Self::Accuracy => scores.accuracy,
            Self::AccuracyGlobal => scores.accuracy_global,
            Self::TestMse => scores.test_mse,
        };
        value.filter(|value| value.is_finite() && (!self.is_logarithmic() || *value > 0.0))
    }

    fn is_logarithmic(self) -> bool {
        !matches!(self, Self::Accuracy | Self::AccuracyGlobal)
    }
}

impl Axis {
    /// All axes, in the order of a report.
    pub const ALL: [Self; 3] = [Self::Round, Self::Time, Self::Bytes];

    /// Title of the axis.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Round => "rounds",
            Self::Time => "simulated time (mean computations)",
            Self::Bytes => "bytes sent, both directions, all clients",
        }
    }

    /// Short name for the axis selector.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Round => "rounds",
            Self::Time => "simulated time",
            Self::Bytes => "bytes",
        }
    }

    fn position(self, point: &Point) -> f64 {
        match self {
            Self::Round => point.round,
            Self::Time => point.time,
            Self::Bytes => point.bytes,
        }
    }

    fn label(self, value: f64) -> String {
        match self {
            Self::Bytes if value >= 1e9 => format!("{} GB", format_trimmed(value / 1e9)),
            Self::Bytes if value >= 1e6 => format!("{} MB", format_trimmed(value / 1e6)),
            Self::Bytes if value >= 1e3 => format!("{} kB", format_trimmed(value / 1e3)),
            _ => format_trimmed(value),
        }
    }
}

/// Formats a value without trailing zeros.
fn format_trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Line of a chart.
struct ChartLine {
    points: Vec<(f64, f64)>,
    colour: RGBColor,
    style: LineStyle,
}

/// Style of a line, which depends on the kind of curve.
#[derive(Clone, Copy, PartialEq)]
enum LineStyle {
    /// Thin line, for one of several seeds.
    Faint,
    /// Bold line, for a single run or the median over seeds.
    Full,
    /// Horizontal dashed line, for a method without rounds.
    Level,
}

/// Draws the chart of a metric. Returns `None` if no series has at least two values of the metric.
#[must_use]
pub fn chart(series: &[Series], metric: Metric, axis: Axis) -> Option<String> {
    let mut lines = Vec::new();
    for (index, entry) in series.iter().enumerate() {
        let colour = RGBColor(1, 2, u8::try_from(index % SERIES_COLOURS).unwrap_or(0));
        let points_of = |run: &Vec<Point>| -> Vec<(f64, f64)> {
            run.iter().filter_map(|p| metric.value(&p.scores).map(|y| (axis.position(p), y))).collect()
        };
        let runs: Vec<Vec<(f64, f64)>> =
            entry.runs.iter().map(points_of).filter(|points| !points.is_empty()).collect();
        let median = pointwise_median(&runs);
        if median.is_empty() {
            continue;
        }
        let style = if median.len() == 1 { LineStyle::Level } else { LineStyle::Full };
        if runs.len() > 1 && style == LineStyle::Full {
            lines.extend(runs.into_iter().map(|points| ChartLine {
                points,
                colour,
                style: LineStyle::Faint,
            }));
        }
        lines.push(ChartLine { points: median, colour, style });
    }
    lines.iter().any(|line| line.style == LineStyle::Full).then_some(())?;
    // Faint lines are drawn first, so the medians are on top.
    lines.sort_by_key(|line| line.style != LineStyle::Faint);
    if metric.is_logarithmic() {
        // A horizontal line far outside the range of the curves would flatten the curves, so it is omitted.
        let (low, high) = range(&lines, |line| line.style != LineStyle::Level);
        let is_near = |y: f64| y > low / 30.0 && y < high * 30.0;
        lines.retain(|line| {
            line.style != LineStyle::Level || line.points.iter().all(|point| is_near(point.1))
        });
    }
    let (low, high) = range(&lines, |_| true);
    let x_max = lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(0.0, f64::max);
    let x_max = if x_max > 0.0 { x_max } else { 1.0 };
    let scale = if metric.is_logarithmic() {
        Scale::logarithmic(low / 1.3, high * 1.3)
    } else {
        let margin = ((high - low) * 0.08).max(0.005);
        Scale::linear((low - margin).max(0.0), (high + margin).min(1.0))
    };
    let mut svg = String::new();
    let result = draw_chart(&mut svg, &lines, axis, x_max, scale);
    result.is_ok().then(|| use_page_colours(&svg))
}

/// Scale of the vertical axis: range and ticks.
struct Scale {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    logarithmic: bool,
}

impl Scale {
    fn linear(low: f64, high: f64) -> Self {
        let ticks = RangedCoordf64::from(low..high).key_points(7);
        Self { low, high, ticks, logarithmic: false }
    }

    /// Creates a logarithmic scale. Ticks are at 1, 2 and 5 times powers of ten for a range of up to three
    /// decades, otherwise at powers of ten.
    fn logarithmic(low: f64, high: f64) -> Self {
        let (first, last) = (low.log10().floor(), high.log10().ceil());
        let steps: &[f64] = if last - first > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let stride = ((last - first) / 8.0).ceil().max(1.0);
        let mut ticks = Vec::new();
        let mut power = first;
        while power <= last {
            ticks.extend(steps.iter().map(|step| step * 10f64.powf(power)));
            power += stride;
        }
        ticks.retain(|tick| (low..=high).contains(tick));
        Self { low, high, ticks, logarithmic: true }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    #[allow(clippy::cast_possible_truncation, reason = "pixels")]
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let height = |value: f64| if self.logarithmic { value.log10() } else { value };
        let part = (height(*value) - height(self.low)) / (height(self.high) - height(self.low));
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        if *value != 0.0 && !(1e-3..1e4).contains(&value.abs()) {
            return format!("{value:.0e}");
        }
        format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// Range of the vertical values of the lines for which `is_included` is true.
fn range(lines: &[ChartLine], is_included: impl Fn(&ChartLine) -> bool) -> (f64, f64) {
    let values = lines.iter().filter(|line| is_included(line)).flat_map(|line| &line.points).map(|(_, y)| *y);
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)))
}

/// Draws the axes and all lines. `right` is the right end of the horizontal axis, which starts at 0.
fn draw_chart(
    svg: &mut String,
    lines: &[ChartLine],
    axis: Axis,
    right: f64,
    scale: Scale,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let text = ("sans-serif", 16).into_font().color(&INK);
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(48)
        .y_label_area_size(68)
        .build_cartesian_2d(0.0..right, scale)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID.stroke_width(1))
        .light_line_style(TRANSPARENT)
        .axis_style(AXIS.stroke_width(1))
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_labels(6)
        .x_label_formatter(&|x: &f64| axis.label(*x))
        .x_desc(axis.title())
        .draw()?;
    for line in lines {
        let points = line.points.iter().copied();
        match line.style {
            LineStyle::Faint => {
                chart.draw_series(LineSeries::new(points, line.colour.mix(0.3).stroke_width(1)))?;
            }
            LineStyle::Full => {
                chart.draw_series(LineSeries::new(points, line.colour.stroke_width(3)))?;
            }
            LineStyle::Level => {
                let Some((_, level)) = line.points.first().copied() else { continue };
                let ends = [(0.0, level), (right, level)];
                chart.draw_series(DashedLineSeries::new(ends, 8, 6, line.colour.stroke_width(2)))?;
            }
        }
    }
    root.present()?;
    Ok(())
}

/// Pointwise median of several runs, as long as the shortest run.
fn pointwise_median(runs: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let length = runs.iter().map(Vec::len).min().unwrap_or(0);
    let median_at = |index: usize, pick: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = runs.iter().filter_map(|run| run.get(index)).map(pick).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
        (values.get(low).copied().unwrap_or(0.0) + values.get(high).copied().unwrap_or(0.0)) / 2.0
    };
    (0..length).map(|index| (median_at(index, |p| p.0), median_at(index, |p| p.1))).collect()
}

/// Replaces the placeholder colours by CSS variables of the page.
fn use_page_colours(svg: &str) -> String {
    let hex = |colour: RGBColor| format!("\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
    let mut out = svg.replace(&hex(INK), "\"var(--ink)\"");
    out = out.replace(&hex(GRID), "\"var(--grid)\"").replace(&hex(AXIS), "\"var(--axis)\"");
    for index in 0..SERIES_COLOURS {
        let stand_in = RGBColor(1, 2, u8::try_from(index).unwrap_or(0));
        out = out.replace(&hex(stand_in), &format!("\"var(--series-{index})\""));
    }
    out
}
