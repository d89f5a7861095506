//! Scaling of the features of a table. The scale is computed in f64 from the training rows, and applied
//! before values are rounded to f32.

use super::table::narrow;
use super::{DataError, Dataset, Set, SharedSet};

/// Method of scaling features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// No scaling.
    #[default]
    None,
    /// Scaling to mean 0 and standard deviation 1.
    Standard,
    /// Scaling to median 0 and interquartile range 1.
    Robust,
}

impl Scale {
    /// Name of the method in a scenario.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Standard => "standard",
            Self::Robust => "robust",
        }
    }
}

/// Scale that was applied: each feature becomes `(x - shift) * factor`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Scaling {
    /// Name of the method in a scenario.
    pub scale: &'static str,
    /// Names of the features, without the constant 1.
    pub features: Vec<String>,
    /// Mean or median of each feature.
    pub shift: Vec<f64>,
    /// Inverse of the standard deviation or interquartile range of each feature; 1 if the feature has the
    /// same value in all training rows.
    pub factor: Vec<f64>,
}

/// Shift and factor of one feature.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FeatureScale {
    shift: f64,
    factor: f64,
    /// True if the feature has the same value in all training rows.
    constant: bool,
}

impl Scale {
    /// Scales the features of a table, and rounds all values to f32. `names` are the names of the features; a
    /// constant 1 may follow the features. Only the training rows of training clients determine the scale;
    /// test rows and rows of newcomers do not.
    ///
    /// # Errors
    /// [`DataError`] naming a feature whose scaled value does not fit an f32.
    pub fn apply(self, mut dataset: Dataset, names: &[String], path: &str) -> Result<Dataset, DataError> {
        let d = dataset.features;
        let columns: Vec<FeatureScale> = match self {
            Self::None => Vec::new(),
            _ => {
                (0..names.len()).map(|feature| self.fit(&mut training_values(&dataset, d, feature))).collect()
            }
        };
        let mut differing_rows = vec![0u64; columns.len()];
        let mut shared: Vec<(SharedSet, SharedSet)> = Vec::new();
        for client in dataset.clients.iter_mut().chain(&mut dataset.newcomers) {
            for set in [&mut client.train, &mut client.test] {
                if let Some(unshared) = set.get_mut() {
                    scale_rows(unshared, d, &columns, &mut differing_rows, names, path)?;
                } else if let Some((_, scaled)) = shared.iter().find(|(original, _)| original.is_same(set)) {
                    *set = scaled.clone();
                } else {
                    let mut unshared = Set::clone(set);
                    scale_rows(&mut unshared, d, &columns, &mut differing_rows, names, path)?;
                    let scaled = SharedSet::from(unshared);
                    shared.push((set.clone(), scaled.clone()));
                    *set = scaled;
                }
            }
        }
        for ((name, rows), column) in names.iter().zip(differing_rows).zip(&columns) {
            if rows > 0 {
                dataset.warnings.push(format!(
                    "{path}: {name:?} is {} in every training row, but differs in {rows} other rows: data.scale = {:?} \
                     shifts it and keeps its unit",
                    column.shift,
                    self.word()
                ));
            }
        }
        if self != Self::None {
            dataset.scale = Some(Scaling {
                scale: self.word(),
                features: names.to_vec(),
                shift: columns.iter().map(|column| column.shift).collect(),
                factor: columns.iter().map(|column| column.factor).collect(),
            });
        }
        Ok(dataset)
    }

    /// Computes the scale of a feature from its values in the training rows.
    fn fit(self, values: &mut [f64]) -> FeatureScale {
        let first = values.first().copied().unwrap_or(0.0);
        let constant = FeatureScale { shift: first, factor: 1.0, constant: true };
        if values.iter().all(|value| *value == first) {
            return constant;
        }
        let (shift, spread) = match self {
            Self::Robust => robust(values),
            Self::Standard | Self::None => standard(values),
        };
        let factor = 1.0 / spread;
        if factor.is_finite() { FeatureScale { shift, factor, constant: false } } else { constant }
    }
}

/// Collects the values of a feature in all training rows.
fn training_values(dataset: &Dataset, d: usize, feature: usize) -> Vec<f64> {
    let rows = dataset.clients.iter().filter_map(|client| client.train.x_f64.as_ref());
    rows.flat_map(|wide| wide.iter().skip(feature).step_by(d.max(1))).copied().collect()
}

/// Mean and standard deviation, with divisor n. Deviations are divided by the largest deviation before they
/// are squared, so that squares do not underflow.
fn standard(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    // Values are taken relative to the first value, so that a common offset does not reduce the precision.
    let first = values.first().copied().unwrap_or(0.0);
    let mean = first + values.iter().map(|value| value - first).sum::<f64>() / count;
    let largest = values.iter().map(|value| (value - mean).abs()).fold(0.0, f64::max);
    let squares: f64 = values.iter().map(|value| ((value - mean) / largest).powi(2)).sum();
    (mean, largest * (squares / count).sqrt())
}

/// Median and interquartile range. If the range is zero, as when half of the values are equal, the standard
/// deviation replaces it.
fn robust(values: &mut [f64]) -> (f64, f64) {
    let (_, deviation) = standard(values);
    values.sort_unstable_by(f64::total_cmp);
    let [low, median, high] = [0.25, 0.5, 0.75].map(|part| quantile(values, part));
    (median, if high > low { high - low } else { deviation })
}

/// Quantile of sorted values, linearly interpolated.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let position = part * (sorted.len().saturating_sub(1)) as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place among values")]
    let below = position.floor() as usize;
    let value_at =
        |position: usize| sorted.get(position.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0);
    let (low, high) = (value_at(below), value_at(below + 1));
    low + (high - low) * (position - position.floor())
}

/// Scales rows of `d` values in place and rounds them to f32. For each constant feature, `differing_rows`
/// counts the values that differ from the constant.
fn scale_rows(
    set: &mut Set,
    d: usize,
    columns: &[FeatureScale],
    differing_rows: &mut [u64],
    names: &[String],
    path: &str,
) -> Result<(), DataError> {
    let Some(wide) = &mut set.x_f64 else { return Ok(()) };
    for row in wide.chunks_exact_mut(d.max(1)) {
        for ((value, column), differing_rows) in row.iter_mut().zip(columns).zip(differing_rows.iter_mut()) {
            *differing_rows += u64::from(column.constant && *value != column.shift);
            *value = (*value - column.shift) * column.factor;
        }
    }
    set.x = wide.iter().map(|value| narrow(*value)).collect();
    if let Some(index) = set.x.iter().position(|value| !value.is_finite()) {
        let name = names.get(index % d.max(1)).map_or("", String::as_str);
        let message = format!(
            "found {:e} in {name:?} once it is scaled, which does not fit an f32; remove the row or the feature",
            wide.get(index).unwrap_or(&0.0)
        );
        return Err(DataError::new(path, message));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::data::{Client, Labels};

    fn set(rows: &[[f64; 3]]) -> Set {
        let wide: Vec<f64> = rows.iter().flatten().copied().collect();
        let y = Labels::values(vec![0.0; rows.len()]);
        Set { y, x_f64: Some(wide), ..Set::empty(false) }
    }

    /// Creates two clients and one newcomer with the features `a` and `b` and a constant 1.
    fn dataset() -> Dataset {
        let test = SharedSet::from(set(&[[100.0, 7.0, 1.0]]));
        let client = |rows: &[[f64; 3]]| Client { test: test.clone(), ..Client::new(set(rows), set(&[])) };
        Dataset {
            features: 3,
            outputs: 1,
            clients: vec![client(&[[1013.0, 7.0, 1.0], [1015.0, 7.0, 1.0]]), client(&[[1011.0, 7.0, 1.0]])],
            newcomers: vec![client(&[[1e6, 8.0, 1.0]])],
            ..Dataset::default()
        }
    }

    #[test]
    fn only_training_rows_determine_the_scale() {
        let names = ["a".to_owned(), "b".to_owned()];
        let scaled = Scale::Standard.apply(dataset(), &names, "f.csv").unwrap();
        let deviation = (8.0f64 / 3.0).sqrt();
        let Scaling { shift, factor, scale, .. } = scaled.scale.clone().unwrap();
        assert_eq!((shift, factor, scale), (vec![1013.0, 7.0], vec![1.0 / deviation, 1.0], "standard"));
        assert_eq!(scaled.clients[0].train.x, [0.0, 0.0, 1.0, (2.0 / deviation) as f32, 0.0, 1.0]);
        assert!(
            scaled.clients[0].test.is_same(&scaled.newcomers[0].test),
            "the test set is no longer shared"
        );
        assert!((scaled.clients[1].test.x_f64.as_ref().unwrap()[0] + 913.0 / deviation).abs() < 1e-9);
        assert_eq!(scaled.newcomers[0].train.x[1..], [1.0, 1.0]);
        // The value 8 of the newcomer differs from the constant 7; the value 7 of the test set does not.
        assert_eq!(scaled.warnings.len(), 1);
        assert!(scaled.warnings[0].contains("\"b\" is 7 in every training row, but differs in 1 other rows"));
    }

    #[test]
    fn scale_none_only_rounds_values() {
        let plain = Scale::None.apply(dataset(), &["a".to_owned(), "b".to_owned()], "f.csv").unwrap();
        assert_eq!(plain.clients[0].train.x, [1013.0, 7.0, 1.0, 1015.0, 7.0, 1.0]);
        assert!(plain.scale.is_none() && plain.warnings.is_empty());
    }

    /// Compares with values computed by NumPy's `numpy.quantile` and `numpy.std`.
    #[test]
    fn spreads_equal_numpy() {
        let values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6];
        let column = Scale::Robust.fit(&mut values.to_vec());
        assert!((column.shift - 2.8).abs() < 1e-15 && (1.0 / column.factor - (3.75 - 1.775)).abs() < 1e-14);
        let column = Scale::Standard.fit(&mut values.to_vec());
        assert!((column.shift - 3.516_666_666_666_667).abs() < 1e-14);
        assert!((1.0 / column.factor - 2.639_707_475_375_928).abs() < 1e-13, "{}", 1.0 / column.factor);
        let mostly_zero = [0.0, 0.0, 0.0, 0.0, 0.0, 6.0];
        let column = Scale::Robust.fit(&mut mostly_zero.to_vec());
        assert!(column.shift == 0.0 && (1.0 / column.factor - 5.0f64.sqrt()).abs() < 1e-14);
    }

    /// An offset does not reduce the precision, tiny units do not underflow, and the spread of equal values
    /// is zero.
    #[test]
    fn units_and_offsets_leave_scaled_values_unchanged() {
        let values: Vec<f64> = (0..50).map(|i| f64::from(i * i % 17)).collect();
        let plain = Scale::Standard.fit(&mut values.clone());
        for (unit, offset) in [(1e-200, 0.0), (1e30, 0.0), (1.0, 1e9), (1e-6, -3e3)] {
            let mut rescaled: Vec<f64> = values.iter().map(|value| value * unit + offset).collect();
            let column = Scale::Standard.fit(&mut rescaled);
            for (value, rescaled) in values.iter().zip(&rescaled) {
                let (a, b) =
                    ((value - plain.shift) * plain.factor, (rescaled - column.shift) * column.factor);
                assert!((a - b).abs() < 1e-5, "{unit} {offset}: {a} {b}");
            }
        }
        let column = Scale::Standard.fit(&mut [0.1; 7]);
        assert_eq!((column.shift.to_bits(), column.factor, column.constant), (0.1f64.to_bits(), 1.0, true));
    }
}
