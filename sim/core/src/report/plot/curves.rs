//! Charts of curves.

use std::fmt::Write;

use super::super::table::escape;
use super::axis::{Scale, tick_label};
use super::colours::classes;
use super::labels::{placed, short_labels};
use super::lines::{Line, lines, range};
use super::panels::{Panel, panels};
use super::svg::{LINE, TEXT, bold_characters, bold_width, characters, px, shortened, text, width, wrapped};
use super::{Axis, Figure, Metric, Series};

/// Size of a chart and of its parts, in CSS pixels.
struct Layout {
    class: &'static str,
    width: f64,
    /// Height of the area of the curves.
    plot: f64,
    /// Largest width of the labels at the ends of the curves.
    labels: f64,
    /// Numbers of ticks.
    ticks: (f64, f64),
}

const LAYOUTS: [Layout; 2] = [
    Layout { class: "wide", width: 540.0, plot: 250.0, labels: 170.0, ticks: (6.0, 6.0) },
    Layout { class: "narrow", width: 330.0, plot: 220.0, labels: 110.0, ticks: (3.5, 6.0) },
];

/// Distance between two labels.
const LABEL_GAP: f64 = 14.0;
/// Logarithmic axes leave out levels that are this many times as far as the curves, which would be flat.
const FAR: f64 = 30.0;

/// Draws the charts of one metric: one for up to eight curves, otherwise one for each panel, with the curves of the
/// other panels in grey. Empty if no series has two values of the metric, or if all positions are 0.
#[must_use]
pub fn figures(series: &[Series], metric: Metric, axis: Axis) -> Vec<Figure> {
    let mut lines = lines(series, metric, axis);
    if !lines.iter().any(|line| !line.level) {
        return Vec::new();
    }
    let mut far: Vec<usize> = Vec::new();
    if metric.is_logarithmic() {
        let (low, high) = range(&lines, |line| !line.level);
        let is_far =
            |line: &Line| line.level && line.median.iter().any(|(_, y)| *y < low / FAR || *y > high * FAR);
        far = lines.iter().filter(|line| is_far(line)).map(|line| line.series).collect();
        lines.retain(|line| !is_far(line));
    }
    let points = lines.iter().flat_map(|line| line.seeds.iter().flatten().chain(&line.median));
    let right = points.map(|(x, _)| *x).fold(0.0, f64::max);
    if right <= 0.0 {
        return Vec::new();
    }
    let label = |index: &usize| series.get(*index).map(|entry| entry.label.as_str()).unwrap_or_default();
    let note = match far.iter().map(label).collect::<Vec<_>>().join(", ") {
        far if far.is_empty() => String::new(),
        far => format!("Not drawn, as its level is far outside the range of the curves: {far}."),
    };
    let drawn: Vec<usize> = lines.iter().map(|line| line.series).collect();
    let panels = panels(series, &drawn);
    let several = panels.len() > 1;
    let chart = Chart { series, metric, axis, lines: &lines, range: range(&lines, |_| true), right };
    panels
        .iter()
        .enumerate()
        .map(|(number, panel)| {
            let part = if several { format!("-{}", number + 1) } else { String::new() };
            let heading = if panel.title.is_empty() { String::new() } else { format!("{}: ", panel.title) };
            Figure {
                name: format!("{}-{}{part}", metric.name(), axis.name().replace(' ', "-")),
                description: format!("{heading}{} against {}", metric.title(), axis.title()),
                pictures: LAYOUTS.iter().map(|layout| chart.draw(panel, layout)).collect(),
                note: note.clone(),
            }
        })
        .collect()
}

/// Content of a chart that does not depend on the layout.
struct Chart<'a> {
    series: &'a [Series],
    metric: Metric,
    axis: Axis,
    lines: &'a [Line],
    /// Range of the values of all panels.
    range: (f64, f64),
    /// Right end of the horizontal axis, which starts at 0.
    right: f64,
}

impl Chart<'_> {
    fn vertical(&self, layout: &Layout, top: f64) -> Scale {
        let (low, high) = self.range;
        let pixels = (top + layout.plot, top);
        if self.metric.is_logarithmic() {
            return Scale::logarithmic(low / 1.3, high * 1.3, pixels);
        }
        let margin = ((high - low) * 0.08).max(0.005);
        Scale::linear((low - margin).max(0.0), (high + margin).min(1.0), layout.ticks.1, pixels)
    }

    /// Labels of the panel's curves, shortened to the layout. A single curve has none.
    fn labels(&self, panel: &Panel, layout: &Layout) -> Vec<String> {
        if self.series.len() < 2 {
            return Vec::new();
        }
        let label = |index: &usize| self.series.get(*index).map(|entry| entry.label.as_str());
        let labels: Vec<&str> = panel.members.iter().filter_map(label).collect();
        let limit = bold_characters(layout.labels);
        short_labels(&labels).iter().map(|label| shortened(label, limit)).collect()
    }

    fn draw(&self, panel: &Panel, layout: &Layout) -> String {
        let limit = characters(layout.width - 8.0);
        let heading = wrapped(&panel.title, bold_characters(layout.width - 8.0));
        let title = wrapped(&self.metric.title(), limit);
        let mut out = String::new();
        let mut top = 2.0;
        for (line, class) in
            heading.iter().map(|line| (line, "head")).chain(title.iter().map(|line| (line, "title")))
        {
            top += LINE;
            out.push_str(&text(2.0, top - 4.0, class, line));
        }
        top += 10.0;
        let labels = self.labels(panel, layout);
        let y = self.vertical(layout, top);
        let tick_width = y.ticks.iter().map(|tick| width(&tick_label(*tick))).fold(0.0, f64::max);
        let label_width = labels.iter().map(|label| bold_width(label)).fold(0.0, f64::max);
        let left = tick_width + 12.0;
        let right = layout.width - if labels.is_empty() { 18.0 } else { label_width + 18.0 };
        let (unit, size) = self.axis.unit(self.right);
        let x = Scale::linear(0.0, self.right / size, layout.ticks.0, (left, right));
        let bottom = top + layout.plot;
        out.push_str(&self.frame(&x, &y, layout));
        self.grey_lines(&mut out, panel, &x, &y, size);
        let member = |line: &&Line| panel.members.contains(&line.series);
        let ends: Vec<f64> = self
            .lines
            .iter()
            .filter(member)
            .map(|line| line.median.last().map_or(top, |(_, value)| y.at(*value)))
            .collect();
        let places = placed(&ends, LABEL_GAP, top + 4.0, bottom - 4.0);
        for (number, line) in self.lines.iter().filter(member).enumerate() {
            let _ = writeln!(out, "<g data-s=\"{}\">", line.series);
            out.push_str(&line_paths(line, &x, &y, size));
            if let (Some(label), Some(place)) = (labels.get(number), places.get(number)) {
                out.push_str(&end_label(line, label, *place, &x, &y, size));
            }
            out.push_str("</g>\n");
        }
        let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
        out.push_str(&text(
            f64::midpoint(left, right),
            bottom + 36.0,
            "middle",
            &format!("{}{unit}", self.axis.title()),
        ));
        format!(
            "<svg class=\"plot {}\" viewBox=\"0 0 {} {}\" font-size=\"{TEXT}\" data-x=\"{}\" data-y=\"{}\" data-name=\"{}{unit}\">\n{out}</svg>\n",
            layout.class,
            px(layout.width),
            px(bottom + 44.0),
            x.attribute(),
            y.attribute(),
            escape(self.axis.title()),
        )
    }

    /// Grid, axis and ticks.
    fn frame(&self, x: &Scale, y: &Scale, layout: &Layout) -> String {
        let (left, right) = x.pixels;
        let (bottom, top) = y.pixels;
        let mut out = String::new();
        for tick in &y.ticks {
            let height = y.at(*tick);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{} {1}L{2} {1}\"/>",
                px(left),
                px(height),
                px(right)
            );
            out.push_str(&text(left - 6.0, height + 4.0, "end", &tick_label(*tick)));
        }
        for tick in y.minor_ticks() {
            let height = px(y.at(tick));
            let _ = writeln!(
                out,
                "<path class=\"axis\" d=\"M{} {height}L{} {height}\"/>",
                px(left - 3.0),
                px(left)
            );
        }
        for tick in &x.ticks {
            let place = x.at(*tick);
            let _ = writeln!(
                out,
                "<path class=\"axis\" d=\"M{0} {1}L{0} {2}\"/>",
                px(place),
                px(bottom),
                px(bottom + 4.0)
            );
            let label = tick_label(*tick);
            // The last label may not leave the picture.
            let place = place.min(layout.width - width(&label) / 2.0 - 1.0);
            out.push_str(&text(place, bottom + 18.0, "middle", &label));
        }
        let _ = writeln!(
            out,
            "<path class=\"axis\" d=\"M{0} {1}L{0} {2}L{3} {2}\"/>",
            px(left),
            px(top),
            px(bottom),
            px(right)
        );
        out
    }

    /// Curves of the other panels.
    fn grey_lines(&self, out: &mut String, panel: &Panel, x: &Scale, y: &Scale, size: f64) {
        for line in self.lines.iter().filter(|line| !panel.members.contains(&line.series)) {
            let path = path(line, &line.median, x, y, size);
            let _ = writeln!(out, "<path class=\"other\" data-s=\"{}\" d=\"{path}\"/>", line.series);
        }
    }
}

/// Curves of the seeds and their median.
fn line_paths(line: &Line, x: &Scale, y: &Scale, size: f64) -> String {
    let classes = classes(line.series);
    let mut out = String::new();
    for seed in &line.seeds {
        let _ = writeln!(out, "<path class=\"seed {classes}\" d=\"{}\"/>", path(line, seed, x, y, size));
    }
    let level = if line.level { " level" } else { "" };
    let path = path(line, &line.median, x, y, size);
    let _ = writeln!(out, "<path class=\"line {classes}{level}\" d=\"{path}\"/>");
    out
}

/// Path through points; a level is a horizontal line over the whole width.
fn path(line: &Line, points: &[(f64, f64)], x: &Scale, y: &Scale, size: f64) -> String {
    let ends: Vec<(f64, f64)>;
    let mut places: Vec<(f64, f64)> =
        points.iter().map(|(at, value)| (x.at(*at / size), y.at(*value))).collect();
    if line.level {
        let height = places.first().map_or(y.pixels.0, |place| place.1);
        ends = vec![(x.pixels.0, height), (x.pixels.1, height)];
        places = ends;
    }
    let mut out = String::new();
    for (index, (place, height)) in places.into_iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(out, "{command}{} {}", px(place), px(height));
    }
    out
}

/// Label right of the area of the curves, with a line to the end of its curve.
fn end_label(line: &Line, label: &str, place: f64, x: &Scale, y: &Scale, size: f64) -> String {
    let right = x.pixels.1;
    let colour = format!("c{}", super::style_of(line.series).0);
    let mut out = String::new();
    if let Some((at, value)) = line.median.last() {
        let from = if line.level { right } else { x.at(*at / size) };
        let _ = writeln!(
            out,
            "<path class=\"lead {colour}\" d=\"M{} {}L{} {}L{} {3}\"/>",
            px(from),
            px(y.at(*value)),
            px(right + 6.0),
            px(place),
            px(right + 10.0),
        );
    }
    out.push_str(&text(right + 13.0, place + 4.0, &format!("label {colour}"), label));
    out
}
