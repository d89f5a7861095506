//! Histogram of a metric over clients.

use std::fmt::Write;

use super::Figure;
use super::axis::{Scale, tick_label};
use super::svg::{LINE, TEXT, bold_characters, px, text, wrapped};

/// Width of the picture and height of its bars, in CSS pixels.
const SIZE: (f64, f64) = (330.0, 150.0);
/// Space left of the bars.
const LEFT: f64 = 40.0;

/// Draws the histogram of the accuracies of clients, with their mean and the mean of the lowest tenth. `heading`
/// says whose accuracies they are; `name` is the name of the figure; `lowest` is the lowest accuracy of all histograms
/// of the page, which have one axis. `None` without accuracies.
#[must_use]
pub fn histogram(name: &str, heading: &str, accuracies: &[f64], lowest: f64) -> Option<Figure> {
    let mut sorted: Vec<f64> = accuracies.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let lowest = sorted.first()?.min(lowest);
    let mean = mean(&sorted);
    let worst = self::mean(sorted.get(..(sorted.len() / 10).max(1)).unwrap_or_default());
    let bins = Bins::new(lowest);
    let counts = bins.counts(&sorted);
    let largest = counts.iter().copied().fold(0.0, f64::max);
    let mut out = String::new();
    let mut top = 2.0;
    for line in wrapped(heading, bold_characters(SIZE.0 - 8.0)) {
        top += LINE;
        out.push_str(&text(2.0, top - 4.0, "head", &line));
    }
    top += LINE;
    out.push_str(&text(2.0, top - 4.0, "title", "number of clients"));
    top += 10.0;
    let (bottom, right) = (top + SIZE.1, SIZE.0 - 14.0);
    let y = Scale::linear(0.0, largest, largest.clamp(1.0, 5.0), (bottom, top));
    let x = Scale::linear(bins.low, 1.0, 5.0, (LEFT, right));
    for tick in y.ticks.iter().filter(|tick| tick.fract() == 0.0) {
        let height = px(y.at(*tick));
        let _ = writeln!(out, "<path class=\"grid\" d=\"M{} {height}L{} {height}\"/>", px(LEFT), px(right));
        out.push_str(&text(LEFT - 6.0, y.at(*tick) + 4.0, "end", &tick_label(*tick)));
    }
    for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
        let (from, to) = (x.at(bins.edge(index)), x.at(bins.edge(index + 1)));
        let _ = writeln!(
            out,
            "<rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{count} of {} clients: {} to {}</title></rect>",
            px(from + 0.5),
            px(y.at(*count)),
            px((to - from - 1.0).max(0.5)),
            px(bottom - y.at(*count)),
            sorted.len(),
            tick_label(bins.edge(index)),
            tick_label(bins.edge(index + 1)),
        );
    }
    for tick in &x.ticks {
        let _ = writeln!(
            out,
            "<path class=\"axis\" d=\"M{0} {1}L{0} {2}\"/>",
            px(x.at(*tick)),
            px(bottom),
            px(bottom + 4.0)
        );
        out.push_str(&text(x.at(*tick), bottom + 18.0, "middle", &tick_label(*tick)));
    }
    let _ = writeln!(out, "<path class=\"axis\" d=\"M{0} {1}L{2} {1}\"/>", px(LEFT), px(bottom), px(right));
    let _ =
        writeln!(out, "<path class=\"mean\" d=\"M{0} {1}L{0} {2}\"/>", px(x.at(mean)), px(top), px(bottom));
    let title = "accuracy on a client's test samples (fraction)";
    out.push_str(&text(SIZE.0 / 2.0, bottom + 36.0, "middle", title));
    let means = format!("mean {mean:.4} (dashed), of the lowest tenth {worst:.4}");
    out.push_str(&text(SIZE.0 / 2.0, bottom + 52.0, "middle", &means));
    let picture = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {} {}\" font-size=\"{TEXT}\">\n{out}</svg>\n",
        px(SIZE.0),
        px(bottom + 60.0)
    );
    Some(Figure {
        name: name.to_owned(),
        description: format!("{heading}: number of clients by accuracy; mean {mean:.4}"),
        pictures: vec![picture],
        note: String::new(),
    })
}

#[allow(clippy::cast_precision_loss, reason = "a number of clients")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Bins of equal width from `low` to 1.
struct Bins {
    low: f64,
    count: usize,
}

impl Bins {
    /// Ten to twenty bins that contain the lowest accuracy and 1.
    fn new(lowest: f64) -> Self {
        match lowest {
            lowest if lowest >= 0.9 => Self { low: 0.9, count: 10 },
            lowest if lowest >= 0.8 => Self { low: 0.8, count: 20 },
            lowest if lowest >= 0.5 => Self { low: 0.5, count: 20 },
            _ => Self { low: 0.0, count: 20 },
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "at most 20")]
    fn edge(&self, index: usize) -> f64 {
        self.low + (1.0 - self.low) * index as f64 / self.count as f64
    }

    /// Numbers of values in the bins. A bin contains its lower edge; the last one also its upper edge.
    fn counts(&self, values: &[f64]) -> Vec<f64> {
        let mut counts = vec![0.0; self.count];
        for value in values {
            let bin = (0..self.count).rev().find(|index| *value >= self.edge(*index) - 1e-9).unwrap_or(0);
            if let Some(count) = counts.get_mut(bin) {
                *count += 1.0;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::{Bins, histogram};

    #[test]
    fn every_accuracy_is_in_one_bin() {
        let values = [0.0, 0.05, 0.499, 0.5, 1.0, 1.0];
        let counts = Bins::new(0.0).counts(&values);
        assert_eq!(counts.iter().sum::<f64>(), 6.0);
        assert_eq!((counts[0], counts[1], counts[9], counts[10], counts[19]), (1.0, 1.0, 1.0, 1.0, 2.0));
        assert_eq!(Bins::new(0.95).counts(&[0.95, 1.0])[5], 1.0);
    }

    #[test]
    fn histogram_needs_a_client() {
        assert_eq!(histogram("clients", "", &[], 1.0), None);
        assert_eq!(histogram("clients", "", &[f64::NAN], 1.0), None);
        let figure = histogram("clients", "a <b>", &[1.0], 0.5);
        assert!(figure.is_some_and(
            |figure| figure.pictures[0].contains("a &lt;b&gt;") && figure.pictures[0].contains(">0.5<")
        ));
    }
}
