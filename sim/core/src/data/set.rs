//! Set of samples with targets: the f32 values that devices use, and optionally the f64 values before
//! rounding.

use fedspan_client::source::{Samples, Targets};
use fedspan_engine::random::{Purpose, stream};

/// Samples with targets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set {
    /// Features, row-major, m x d.
    pub x: Vec<f32>,
    /// Targets of the m samples.
    pub y: Labels,
    /// Features before rounding to f32, in the layout of `x`; present for tables and used by baselines on the
    /// host.
    pub x_f64: Option<Vec<f64>>,
    /// Real-valued targets before rounding to f32, in the layout of `y`; present for tables.
    pub y_f64: Option<Vec<f64>>,
    /// Number of each sample in the data, from 0, for result files; empty if the samples are numbered in their order.
    pub rows: Vec<u32>,
}

/// Targets of samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// Real values, for regression.
    Values {
        /// Values, row-major, m x C.
        values: Vec<f32>,
        /// Number of target values of a sample, `C`.
        outputs: usize,
    },
    /// Class numbers.
    Classes(Vec<u8>),
    /// No targets. The vector has one zero per sample, which a device reads in place of a target.
    Absent(Vec<f32>),
}

impl Default for Labels {
    fn default() -> Self {
        Self::Absent(Vec::new())
    }
}

impl Labels {
    /// Creates targets of a regression with one value per sample.
    #[must_use]
    pub fn values(values: Vec<f32>) -> Self {
        Self::Values { values, outputs: 1 }
    }
}

impl Set {
    /// Creates a set of f32 values, without f64 values.
    #[must_use]
    pub fn new(x: Vec<f32>, y: Labels) -> Self {
        Self { x, y, x_f64: None, y_f64: None, rows: Vec::new() }
    }

    /// Creates a set without targets from rows of `d` values.
    #[must_use]
    pub fn unlabelled(x: Vec<f32>, d: usize) -> Self {
        let count = x.len().checked_div(d).unwrap_or(0);
        Self::new(x, Labels::Absent(vec![0.0; count]))
    }

    /// True if the samples have targets.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        !matches!(self.y, Labels::Absent(_))
    }

    /// True if targets are class numbers.
    #[must_use]
    pub fn is_classes(&self) -> bool {
        matches!(self.y, Labels::Classes(_))
    }

    /// Creates an empty set.
    #[must_use]
    pub fn empty(classes: bool) -> Self {
        let y = if classes { Labels::Classes(Vec::new()) } else { Labels::values(Vec::new()) };
        Self::new(Vec::new(), y)
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.y {
            Labels::Values { values, outputs } => values.len().checked_div(*outputs).unwrap_or(0),
            Labels::Classes(classes) => classes.len(),
            Labels::Absent(zeros) => zeros.len(),
        }
    }

    /// Number of features of a sample; 0 if the set is empty.
    #[must_use]
    pub fn width(&self) -> usize {
        let values = self.x_f64.as_ref().map_or(self.x.len(), Vec::len);
        values.checked_div(self.len()).unwrap_or(0)
    }

    /// True if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Borrows all samples as the type that the client crate uses.
    #[must_use]
    pub fn samples(&self) -> Samples<'_> {
        let targets = match &self.y {
            Labels::Values { values, .. } | Labels::Absent(values) => Targets::Values(values),
            Labels::Classes(classes) => Targets::Classes(classes),
        };
        Samples { x: &self.x, targets }
    }

    /// Number of a sample in the data.
    #[must_use]
    pub fn row(&self, index: usize) -> u32 {
        self.rows.get(index).copied().unwrap_or_else(|| u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Copies the samples at `indices`, in that order.
    #[must_use]
    pub fn select(&self, d: usize, indices: &[usize]) -> Self {
        let x = pick_rows(&self.x, d, indices);
        let x_f64 = self.x_f64.as_ref().map(|wide| pick_rows(wide, d, indices));
        let y_f64 = self.y_f64.as_ref().map(|wide| {
            let outputs = wide.len().checked_div(self.len()).unwrap_or(0);
            pick_rows(wide, outputs, indices)
        });
        let y = match &self.y {
            Labels::Values { values, outputs } => {
                Labels::Values { values: pick_rows(values, *outputs, indices), outputs: *outputs }
            }
            Labels::Classes(classes) => {
                Labels::Classes(indices.iter().filter_map(|&i| classes.get(i).copied()).collect())
            }
            Labels::Absent(zeros) => {
                Labels::Absent(indices.iter().filter_map(|&i| zeros.get(i).copied()).collect())
            }
        };
        let rows = indices.iter().map(|&index| self.row(index)).collect();
        Self { x, y, x_f64, y_f64, rows }
    }

    /// Appends another set with the same kind of targets. A set with another kind of targets is ignored.
    /// Values in f64 are kept only if both sets have f64 values.
    pub fn append(&mut self, other: &Self) {
        let (own_count, other_count) = (self.len(), other.len());
        match (&mut self.y, &other.y) {
            (
                Labels::Values { values, outputs },
                Labels::Values { values: other_values, outputs: other_outputs },
            ) if outputs == other_outputs || values.is_empty() => {
                *outputs = *other_outputs;
                values.extend_from_slice(other_values);
            }
            (Labels::Absent(a), Labels::Absent(b)) => a.extend_from_slice(b),
            (Labels::Classes(a), Labels::Classes(b)) => a.extend_from_slice(b),
            _ => return,
        }
        self.x.extend_from_slice(&other.x);
        // Numbers of samples of two sources would be ambiguous.
        self.rows.clear();
        append_f64(&mut self.x_f64, &other.x_f64, own_count, other_count);
        append_f64(&mut self.y_f64, &other.y_f64, own_count, other_count);
    }
}

/// First class that occurs at least once but fewer than `count` times, with its number of samples.
#[must_use]
pub fn first_scarce_class(set: &Set, count: usize) -> Option<(u8, usize)> {
    let Labels::Classes(labels) = &set.y else { return None };
    let mut counts = [0usize; 256];
    for label in labels {
        if let Some(class_count) = counts.get_mut(usize::from(*label)) {
            *class_count += 1;
        }
    }
    (0..=u8::MAX).zip(counts).find(|(_, available)| (1..count).contains(available))
}

/// Draws the indices of `count` random samples of each class that occurs.
#[must_use]
pub fn draw_per_class(set: &Set, count: usize, seed: u64, index: u64) -> Vec<usize> {
    let Labels::Classes(labels) = &set.y else { return (0..set.len()).collect() };
    let mut random = stream(seed, Purpose::Partition, 2000 + index);
    let mut chosen = Vec::new();
    for class in 0..=labels.iter().copied().max().unwrap_or(0) {
        let of_class: Vec<usize> =
            labels.iter().enumerate().filter(|(_, label)| **label == class).map(|(i, _)| i).collect();
        chosen.extend(random.choose(&of_class, count));
    }
    chosen
}

/// Copies the rows of `d` values at `indices`.
fn pick_rows<T: Copy>(values: &[T], d: usize, indices: &[usize]) -> Vec<T> {
    indices.iter().flat_map(|&i| values.get(i * d..(i + 1) * d).unwrap_or_default()).copied().collect()
}

/// Appends the f64 values of a set of `other_count` samples to those of a set of `own_count` samples. Removes
/// the f64 values if one of the sets has samples without f64 values.
fn append_f64(values: &mut Option<Vec<f64>>, other: &Option<Vec<f64>>, own_count: usize, other_count: usize) {
    match (values.as_mut(), other) {
        (Some(values), Some(other)) => values.extend_from_slice(other),
        (None, Some(other)) if own_count == 0 => *values = Some(other.clone()),
        _ if other_count > 0 => *values = None,
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Creates rows of two values in f64 with targets. Values are multiples of 0.1, which f32 rounds.
    fn wide(rows: std::ops::Range<u32>) -> Set {
        let x: Vec<f64> = rows.clone().flat_map(|row| [f64::from(row) / 10.0, 1.0]).collect();
        let y: Vec<f64> = rows.map(|row| f64::from(row) / 7.0).collect();
        let to_f32 = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
        Set {
            x_f64: Some(x.clone()),
            y_f64: Some(y.clone()),
            ..Set::new(to_f32(&x), Labels::values(to_f32(&y)))
        }
    }

    #[test]
    fn select_and_append_keep_f64_values() {
        let whole_set = wide(0..6);
        let parts =
            [whole_set.select(2, &[0, 1]), whole_set.select(2, &[2, 3, 4]), whole_set.select(2, &[5])];
        let mut joined = Set::empty(false);
        for part in &parts {
            joined.append(part);
        }
        assert_eq!(joined, whole_set);
        joined.append(&Set::empty(false));
        assert_eq!(joined, whole_set, "an empty set changed the other set");
        let swapped = whole_set.select(2, &[3, 1]);
        assert_eq!(swapped.x_f64.unwrap(), [0.3, 1.0, 0.1, 1.0]);
        assert_eq!(swapped.y_f64.unwrap(), [3.0 / 7.0, 1.0 / 7.0]);
    }

    #[test]
    fn append_drops_f64_values_unless_both_sets_have_them() {
        let narrow = Set::new(vec![0.5, 1.0], Labels::values(vec![2.0]));
        for (mut first, second) in [(wide(0..2), narrow.clone()), (narrow, wide(0..2))] {
            first.append(&second);
            assert_eq!((first.len(), &first.x_f64, &first.y_f64), (3, &None, &None));
        }
    }
}
