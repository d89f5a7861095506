//! Confusion matrix.

use std::fmt::Write;

use super::super::table::escape;
use super::Figure;
use super::svg::{CHARACTER, LINE, TEXT, bold_characters, characters, px, shortened, text, width, wrapped};

/// Largest number of classes that are drawn.
pub const CLASSES: usize = 20;
/// Width and height of a cell in CSS pixels.
const CELL: f64 = 28.0;
/// Largest width of the name of a class.
const NAMES: f64 = 100.0;

/// Numbers of test samples by true and by predicted class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// A row of counts for each true class, with a count for each predicted class.
    pub counts: Vec<Vec<u64>>,
}

impl Counts {
    fn count(&self, truth: usize, predicted: usize) -> u64 {
        self.counts.get(truth).and_then(|row| row.get(predicted)).copied().unwrap_or(0)
    }

    fn samples(&self, truth: usize) -> u64 {
        self.counts.get(truth).map_or(0, |row| row.iter().sum())
    }

    /// Classes with the most test samples, at most [`CLASSES`], in the order of their numbers.
    fn largest(&self) -> Vec<usize> {
        let mut classes: Vec<usize> = (0..self.classes.len()).collect();
        classes.sort_by_key(|class| (std::cmp::Reverse(self.samples(*class)), *class));
        classes.truncate(CLASSES);
        classes.sort_unstable();
        classes
    }
}

/// Draws a confusion matrix: counts, shaded by the part of the true class. `heading` says whose samples they are;
/// `name` is the name of the figure. `None` without samples.
#[must_use]
pub fn confusion(name: &str, heading: &str, counts: &Counts) -> Option<Figure> {
    let shown = counts.largest();
    let all: u64 = (0..counts.classes.len()).map(|class| counts.samples(class)).sum();
    if all == 0 {
        return None;
    }
    let class_name = |class: usize| counts.classes.get(class).map(String::as_str).unwrap_or_default();
    let names = shown.iter().map(|class| width(class_name(*class))).fold(CHARACTER, f64::max).min(NAMES);
    let limit = characters(names);
    let short = |class: usize| shortened(class_name(class), limit);
    // Long names of columns would overlap, so they are written upwards.
    let upright = shown.iter().any(|class| width(&short(*class)) > CELL - 3.0);
    #[allow(clippy::cast_precision_loss, reason = "at most 20")]
    let side = shown.len() as f64 * CELL;
    let left = names + 10.0 + LINE;
    let full_width = (left + side + 6.0).max(300.0);
    let mut out = String::new();
    let mut top = 2.0;
    for line in wrapped(heading, bold_characters(full_width - 8.0)) {
        top += LINE;
        out.push_str(&text(2.0, top - 4.0, "head", &line));
    }
    top += LINE;
    out.push_str(&text(left, top, "title", "predicted class"));
    top += if upright { names + 10.0 } else { LINE + 6.0 };
    let middle = top + side / 2.0;
    let _ = writeln!(
        out,
        "<text class=\"middle title\" transform=\"translate(12 {}) rotate(-90)\">true class</text>",
        px(middle)
    );
    let mut place = 0.0;
    for class in &shown {
        let (column, row) = (left + place + CELL / 2.0, top + place + CELL / 2.0 + 4.0);
        out.push_str(&text(left - 5.0, row, "end", &short(*class)));
        if upright {
            let _ = writeln!(
                out,
                "<text transform=\"translate({} {}) rotate(-90)\">{}</text>",
                px(column + 4.0),
                px(top - 5.0),
                escape(&short(*class))
            );
        } else {
            out.push_str(&text(column, top - 5.0, "middle", &short(*class)));
        }
        place += CELL;
    }
    let (mut row, mut visible) = (top, 0);
    for truth in &shown {
        let mut column = left;
        for predicted in &shown {
            let count = counts.count(*truth, *predicted);
            visible += count;
            let described =
                format!("true {}, predicted {}: {count}", class_name(*truth), class_name(*predicted));
            out.push_str(&cell(column, row, count, part(count, counts.samples(*truth)), &described));
            column += CELL;
        }
        row += CELL;
    }
    let _ = writeln!(
        out,
        "<path class=\"axis\" d=\"M{0} {1}H{2}V{3}H{0}Z\"/>",
        px(left),
        px(top),
        px(left + side),
        px(row)
    );
    let size = [full_width, row + 8.0].map(px);
    let picture = format!(
        "<svg class=\"plot matrix\" style=\"min-width:{0}px;max-width:{0}px\" viewBox=\"0 0 {0} {1}\" font-size=\"{TEXT}\">\n{out}</svg>\n",
        size[0], size[1]
    );
    let mut note =
        "Number of test samples; the shade is the part of the samples of the true class.".to_owned();
    if shown.len() < counts.classes.len() {
        let _ = write!(
            note,
            " The {CLASSES} classes of {} with the most samples; {} of {all} samples are in other cells.",
            counts.classes.len(),
            all - visible
        );
    }
    let description = format!("{heading}: confusion matrix of {} classes", shown.len());
    Some(Figure { name: name.to_owned(), description, pictures: vec![picture], note })
}

#[allow(clippy::cast_precision_loss, reason = "counts of samples")]
fn part(count: u64, samples: u64) -> f64 {
    if samples == 0 { 0.0 } else { count as f64 / samples as f64 }
}

/// Cell with a count; large counts are in thousands. Cells without samples have no number.
fn cell(x: f64, y: f64, count: u64, part: f64, description: &str) -> String {
    if count == 0 {
        return String::new();
    }
    let shown = match count {
        0..1000 => count.to_string(),
        1000..1_000_000 => format!("{}k", (count + 500) / 1000),
        _ => format!("{}M", (count + 500_000) / 1_000_000),
    };
    let dark = if part > 0.65 { " inverse" } else { "" };
    format!(
        "<rect class=\"cell\" x=\"{}\" y=\"{}\" width=\"{CELL}\" height=\"{CELL}\" fill-opacity=\"{}\"><title>{}</title></rect>\n{}",
        px(x),
        px(y),
        px(0.08 + 0.92 * part),
        escape(description),
        text(x + CELL / 2.0, y + CELL / 2.0 + 4.0, &format!("middle{dark}"), &shown)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{Counts, confusion};

    #[test]
    fn small_classes_are_left_out_with_a_note() {
        let names = (0..25).map(|class| format!("class <{class}>")).collect();
        // Class c has c + 1 samples, all predicted as class 0.
        let counts: Vec<Vec<u64>> = (0..25u64).map(|class| vec![class + 1]).collect();
        let figure = confusion("confusion", "all", &Counts { classes: names, counts }).unwrap();
        let picture = &figure.pictures[0];
        assert!(picture.contains("class &lt;24&gt;") && picture.contains("class &lt;5&gt;"));
        assert!(!picture.contains("class &lt;4&gt;") && !picture.contains("class <"));
        assert!(
            figure.note.contains("20 classes of 25") && figure.note.contains("325 of 325"),
            "{}",
            figure.note
        );
        assert_eq!(confusion("confusion", "", &Counts::default()), None);
    }

    #[test]
    fn cells_have_counts() {
        let counts = Counts {
            classes: ["a", "b"].map(str::to_owned).to_vec(),
            counts: vec![vec![12, 3], vec![0, 1234]],
        };
        let figure = confusion("confusion", "", &counts).unwrap();
        let picture = &figure.pictures[0];
        for shown in [">12<", ">3<", ">1k<", "true a, predicted b: 3"] {
            assert!(picture.contains(shown), "{shown}: {picture}");
        }
        assert_eq!(picture.matches("<rect").count(), 3, "a cell without samples is drawn");
    }
}
