//! Samples with targets: values that devices hold, and the numbers that they were rounded from.

use fedspan_client::source::{Samples, Targets};

/// Samples with targets, as a device holds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set {
    /// Row-major, m x d.
    pub x: Vec<f32>,
    /// Targets of m samples.
    pub y: Labels,
    /// The values of `x` before they were rounded to f32, of the same layout, where the data are a table: what
    /// baselines on hosts compute with.
    pub wide: Option<Vec<f64>>,
    /// The targets of a regression before they were rounded to f32, of the layout of `y`, where the data are a table.
    pub wide_y: Option<Vec<f64>>,
}

/// Targets.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// Regression.
    Values {
        /// Row-major, m x C.
        values: Vec<f32>,
        /// C, values a sample.
        outputs: usize,
    },
    /// Class numbers.
    Classes(Vec<u8>),
    /// There are none: a zero a sample, which is what a device gets that asks.
    Absent(Vec<f32>),
}

impl Default for Labels {
    fn default() -> Self {
        Self::Absent(Vec::new())
    }
}

impl Labels {
    /// Targets of a regression, one a sample.
    #[must_use]
    pub fn values(values: Vec<f32>) -> Self {
        Self::Values { values, outputs: 1 }
    }
}

impl Set {
    /// Samples with targets, in f32 alone.
    #[must_use]
    pub fn new(x: Vec<f32>, y: Labels) -> Self {
        Self { x, y, wide: None, wide_y: None }
    }

    /// Samples without targets: rows of `d` values.
    #[must_use]
    pub fn unlabelled(x: Vec<f32>, d: usize) -> Self {
        let count = x.len().checked_div(d).unwrap_or(0);
        Self::new(x, Labels::Absent(vec![0.0; count]))
    }

    /// Whether there is anything to learn a head from.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        !matches!(self.y, Labels::Absent(_))
    }

    /// Whether targets are class numbers.
    #[must_use]
    pub fn is_classes(&self) -> bool {
        matches!(self.y, Labels::Classes(_))
    }

    /// No samples.
    #[must_use]
    pub fn empty(classes: bool) -> Self {
        let y = if classes { Labels::Classes(Vec::new()) } else { Labels::values(Vec::new()) };
        Self::new(Vec::new(), y)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.y {
            Labels::Values { values, outputs } => values.len().checked_div(*outputs).unwrap_or(0),
            Labels::Classes(classes) => classes.len(),
            Labels::Absent(zeros) => zeros.len(),
        }
    }

    /// Values of a sample; 0 where there is no sample.
    #[must_use]
    pub fn width(&self) -> usize {
        let values = self.wide.as_ref().map_or(self.x.len(), Vec::len);
        values.checked_div(self.len()).unwrap_or(0)
    }

    /// None.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All, as the client takes them.
    #[must_use]
    pub fn samples(&self) -> Samples<'_> {
        let targets = match &self.y {
            Labels::Values { values, .. } | Labels::Absent(values) => Targets::Values(values),
            Labels::Classes(classes) => Targets::Classes(classes),
        };
        Samples { x: &self.x, targets }
    }

    /// The samples at `indices`, in that order.
    #[must_use]
    pub fn select(&self, d: usize, indices: &[usize]) -> Self {
        let x = picked(&self.x, d, indices);
        let wide = self.wide.as_ref().map(|wide| picked(wide, d, indices));
        let wide_y = self.wide_y.as_ref().map(|wide| {
            let outputs = wide.len().checked_div(self.len()).unwrap_or(0);
            picked(wide, outputs, indices)
        });
        let y = match &self.y {
            Labels::Values { values, outputs } => {
                Labels::Values { values: picked(values, *outputs, indices), outputs: *outputs }
            }
            Labels::Classes(classes) => {
                Labels::Classes(indices.iter().filter_map(|&i| classes.get(i).copied()).collect())
            }
            Labels::Absent(zeros) => {
                Labels::Absent(indices.iter().filter_map(|&i| zeros.get(i).copied()).collect())
            }
        };
        Self { x, y, wide, wide_y }
    }

    /// Appends another set of the same kind; one of another kind is ignored. The values in f64 stay where both have
    /// them.
    pub fn append(&mut self, other: &Self) {
        let (ours, theirs) = (self.len(), other.len());
        match (&mut self.y, &other.y) {
            (Labels::Values { values, outputs }, Labels::Values { values: others, outputs: of_others })
                if outputs == of_others || values.is_empty() =>
            {
                *outputs = *of_others;
                values.extend_from_slice(others);
            }
            (Labels::Absent(a), Labels::Absent(b)) => a.extend_from_slice(b),
            (Labels::Classes(a), Labels::Classes(b)) => a.extend_from_slice(b),
            _ => return,
        }
        self.x.extend_from_slice(&other.x);
        append_wide(&mut self.wide, &other.wide, ours, theirs);
        append_wide(&mut self.wide_y, &other.wide_y, ours, theirs);
    }
}

/// The rows of `d` values at `indices`.
fn picked<T: Copy>(values: &[T], d: usize, indices: &[usize]) -> Vec<T> {
    indices.iter().flat_map(|&i| values.get(i * d..(i + 1) * d).unwrap_or_default()).copied().collect()
}

/// Joins values in f64 of `ours` and `theirs` samples; nothing where one side has samples without them.
fn append_wide(own: &mut Option<Vec<f64>>, other: &Option<Vec<f64>>, ours: usize, theirs: usize) {
    match (own.as_mut(), other) {
        (Some(own), Some(other)) => own.extend_from_slice(other),
        (None, Some(other)) if ours == 0 => *own = Some(other.clone()),
        _ if theirs > 0 => *own = None,
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Rows of two values a tenth apart, which f32 rounds, with targets.
    fn wide(rows: std::ops::Range<u32>) -> Set {
        let x: Vec<f64> = rows.clone().flat_map(|row| [f64::from(row) / 10.0, 1.0]).collect();
        let y: Vec<f64> = rows.map(|row| f64::from(row) / 7.0).collect();
        let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
        Set {
            wide: Some(x.clone()),
            wide_y: Some(y.clone()),
            ..Set::new(narrow(&x), Labels::values(narrow(&y)))
        }
    }

    #[test]
    fn selection_and_joining_keep_the_numbers_before_rounding() {
        let all = wide(0..6);
        let parts = [all.select(2, &[0, 1]), all.select(2, &[2, 3, 4]), all.select(2, &[5])];
        let mut joined = Set::empty(false);
        for part in &parts {
            joined.append(part);
        }
        assert_eq!(joined, all);
        joined.append(&Set::empty(false));
        assert_eq!(joined, all, "no samples, nothing lost");
        let swapped = all.select(2, &[3, 1]);
        assert_eq!(swapped.wide.unwrap(), [0.3, 1.0, 0.1, 1.0]);
        assert_eq!(swapped.wide_y.unwrap(), [3.0 / 7.0, 1.0 / 7.0]);
    }

    #[test]
    fn samples_in_f32_alone_leave_no_half_of_the_numbers() {
        let narrow = Set::new(vec![0.5, 1.0], Labels::values(vec![2.0]));
        for (mut first, second) in [(wide(0..2), narrow.clone()), (narrow, wide(0..2))] {
            first.append(&second);
            assert_eq!((first.len(), &first.wide, &first.wide_y), (3, &None, &None));
        }
    }
}
