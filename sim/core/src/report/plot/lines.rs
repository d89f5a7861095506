//! Lines of a chart: the points of a metric, over seeds.

use super::{Axis, Metric, Point, Series};

/// Largest number of points of a line; longer curves are thinned.
const POINTS: usize = 400;

/// Curve of a series for one metric, or its level if the method has no rounds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// Index of the series.
    pub series: usize,
    /// Curves of the seeds; empty for a single seed and for a level.
    pub seeds: Vec<Vec<(f64, f64)>>,
    /// Single curve, or median over the seeds.
    pub median: Vec<(f64, f64)>,
    /// True for a method without rounds, which has a single point.
    pub level: bool,
}

/// Lines of all series that have the metric, in the order of the series.
pub(super) fn lines(series: &[Series], metric: Metric, axis: Axis) -> Vec<Line> {
    let line = |(index, entry): (usize, &Series)| {
        let runs: Vec<Vec<(f64, f64, f64)>> = entry
            .runs
            .iter()
            .map(|run| drawn(entry, run, metric, axis))
            .filter(|points| !points.is_empty())
            .collect();
        let median = median(&runs);
        let level = median.len() == 1 && runs.iter().all(|run| run.len() == 1);
        if median.is_empty() || median.len() == 1 && !level {
            return None;
        }
        let several = runs.len() > 1 && !level;
        let pair = |run: Vec<(f64, f64, f64)>| run.into_iter().map(|(_, x, y)| (x, y)).collect();
        let seeds = if several { runs.into_iter().map(pair).collect() } else { Vec::new() };
        Some(Line { series: index, seeds, median, level })
    };
    series.iter().enumerate().filter_map(line).collect()
}

/// Round, position and value of the points of a run that are drawn.
fn drawn(series: &Series, run: &[Point], metric: Metric, axis: Axis) -> Vec<(f64, f64, f64)> {
    let every = f64::from(series.every.max(1));
    let last = run.len().saturating_sub(1);
    let kept = run.iter().enumerate().filter(|(index, point)| *index == last || point.round % every == 0.0);
    let points: Vec<(f64, f64, f64)> = kept
        .filter_map(|(_, point)| {
            let (x, y) = (axis.position(point), metric.value(series, &point.scores)?);
            x.is_finite().then_some((point.round, x, y))
        })
        .collect();
    let stride = points.len().div_ceil(POINTS).max(1);
    let last = points.len().saturating_sub(1);
    points
        .into_iter()
        .enumerate()
        .filter(|(index, _)| index % stride == 0 || *index == last)
        .map(|(_, point)| point)
        .collect()
}

/// Median of the positions and of the values after each round that all runs have.
fn median(runs: &[Vec<(f64, f64, f64)>]) -> Vec<(f64, f64)> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let at_round = |point: &(f64, f64, f64)| -> Option<(f64, f64)> {
        let mut points = vec![*point];
        for run in others {
            let found = run.binary_search_by(|other| other.0.total_cmp(&point.0)).ok()?;
            points.push(*run.get(found)?);
        }
        Some((middle(points.iter().map(|point| point.1)), middle(points.iter().map(|point| point.2))))
    };
    first.iter().filter_map(at_round).collect()
}

/// Median of at least one value.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    f64::midpoint(values.get(low).copied().unwrap_or(0.0), values.get(high).copied().unwrap_or(0.0))
}

/// Smallest and largest value of the lines for which `is_included` is true.
pub(super) fn range(lines: &[Line], is_included: impl Fn(&Line) -> bool) -> (f64, f64) {
    let lines = lines.iter().filter(|line| is_included(line));
    let values = lines.flat_map(|line| line.seeds.iter().flatten().chain(&line.median)).map(|(_, y)| *y);
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)))
}
