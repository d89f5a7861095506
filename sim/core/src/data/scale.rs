//! Scales of a table's features, computed in f64 from what trains, before values are rounded to what devices hold.

use std::sync::Arc;

use super::table::narrow;
use super::{DataError, Dataset, Set};

/// How features are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// As they are in the file.
    #[default]
    None,
    /// To mean 0 and standard deviation 1.
    Standard,
    /// To median 0 and interquartile range 1.
    Robust,
}

impl Scale {
    /// The word for it in a scenario.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Standard => "standard",
            Self::Robust => "robust",
        }
    }
}

/// A scale that was used: of each feature `(x - shift) * factor`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Scaling {
    /// Its word in a scenario.
    pub scale: &'static str,
    /// Names of the features, without the constant 1.
    pub features: Vec<String>,
    /// The mean or the median of each.
    pub shift: Vec<f64>,
    /// One over the deviation or the range of each; 1 where all that trains has one value.
    pub factor: Vec<f64>,
}

/// The shift and the factor of one feature.
#[derive(Clone, Copy, Debug, PartialEq)]
struct One {
    shift: f64,
    factor: f64,
    /// All values are the same.
    constant: bool,
}

impl Scale {
    /// Scales the features of a table, and rounds all its values to what devices hold. `names` are those of its features,
    /// behind which there may be a constant 1. Only rows on which clients train have a say: no test row, and none of
    /// clients that come later.
    ///
    /// # Errors
    /// [`DataError`] naming a feature that no f32 can hold once it is scaled.
    pub fn finish(self, mut dataset: Dataset, names: &[String], path: &str) -> Result<Dataset, DataError> {
        let d = dataset.features;
        let columns: Vec<One> = match self {
            Self::None => Vec::new(),
            _ => (0..names.len()).map(|feature| self.column(&mut training(&dataset, d, feature))).collect(),
        };
        let mut differ = vec![0u64; columns.len()];
        let mut shared: Vec<(Arc<Set>, Arc<Set>)> = Vec::new();
        for client in dataset.clients.iter_mut().chain(&mut dataset.newcomers) {
            for set in [&mut client.train, &mut client.test] {
                if let Some(own) = Arc::get_mut(set) {
                    scaled(own, d, &columns, &mut differ, names, path)?;
                } else if let Some((_, done)) = shared.iter().find(|(from, _)| Arc::ptr_eq(from, set)) {
                    *set = Arc::clone(done);
                } else {
                    let mut own = Set::clone(set);
                    scaled(&mut own, d, &columns, &mut differ, names, path)?;
                    let done = Arc::new(own);
                    shared.push((Arc::clone(set), Arc::clone(&done)));
                    *set = done;
                }
            }
        }
        for ((name, rows), one) in names.iter().zip(differ).zip(&columns) {
            if rows > 0 {
                dataset.warnings.push(format!(
                    "{path}: {name:?} is {} in every row that trains, and something else in {rows} others: data.scale = {:?} \
                     shifts it, and leaves its unit",
                    one.shift,
                    self.word()
                ));
            }
        }
        if self != Self::None {
            dataset.scale = Some(Scaling {
                scale: self.word(),
                features: names.to_vec(),
                shift: columns.iter().map(|one| one.shift).collect(),
                factor: columns.iter().map(|one| one.factor).collect(),
            });
        }
        Ok(dataset)
    }

    /// The scale of a feature that has these values where it trains.
    fn column(self, values: &mut [f64]) -> One {
        let first = values.first().copied().unwrap_or(0.0);
        let constant = One { shift: first, factor: 1.0, constant: true };
        if values.iter().all(|value| *value == first) {
            return constant;
        }
        let (shift, spread) = match self {
            Self::Robust => robust(values),
            Self::Standard | Self::None => standard(values),
        };
        let factor = 1.0 / spread;
        if factor.is_finite() { One { shift, factor, constant: false } } else { constant }
    }
}

/// Values of a feature in all rows that train.
fn training(dataset: &Dataset, d: usize, feature: usize) -> Vec<f64> {
    let rows = dataset.clients.iter().filter_map(|client| client.train.wide.as_ref());
    rows.flat_map(|wide| wide.iter().skip(feature).step_by(d.max(1))).copied().collect()
}

/// Mean and standard deviation (over n), from the largest deviation, which no square is too small for.
fn standard(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    // From the first value, so that what all have in common costs no digits.
    let first = values.first().copied().unwrap_or(0.0);
    let mean = first + values.iter().map(|value| value - first).sum::<f64>() / count;
    let largest = values.iter().map(|value| (value - mean).abs()).fold(0.0, f64::max);
    let squares: f64 = values.iter().map(|value| ((value - mean) / largest).powi(2)).sum();
    (mean, largest * (squares / count).sqrt())
}

/// Median and interquartile range; where half of all values are one, the standard deviation in place of the range.
fn robust(values: &mut [f64]) -> (f64, f64) {
    let (_, deviation) = standard(values);
    values.sort_unstable_by(f64::total_cmp);
    let [low, median, high] = [0.25, 0.5, 0.75].map(|part| quantile(values, part));
    (median, if high > low { high - low } else { deviation })
}

/// A quantile of sorted values, between two of them in proportion.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len().saturating_sub(1)) as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place among values")]
    let below = place.floor() as usize;
    let at = |place: usize| sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0);
    let (low, high) = (at(below), at(below + 1));
    low + (high - low) * (place - place.floor())
}

/// Scales rows of `d` values in place, counts values of constant features that are others, and rounds.
fn scaled(
    set: &mut Set,
    d: usize,
    columns: &[One],
    differ: &mut [u64],
    names: &[String],
    path: &str,
) -> Result<(), DataError> {
    let Some(wide) = &mut set.wide else { return Ok(()) };
    for row in wide.chunks_exact_mut(d.max(1)) {
        for ((value, one), differ) in row.iter_mut().zip(columns).zip(differ.iter_mut()) {
            *differ += u64::from(one.constant && *value != one.shift);
            *value = (*value - one.shift) * one.factor;
        }
    }
    set.x = wide.iter().map(|value| narrow(*value)).collect();
    if let Some(at) = set.x.iter().position(|value| !value.is_finite()) {
        let name = names.get(at % d.max(1)).map_or("", String::as_str);
        let message = format!(
            "{name:?} is {:e} in a row once it is scaled, which no f32 holds",
            wide.get(at).unwrap_or(&0.0)
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
        Set { x: Vec::new(), y, wide: Some(wide), wide_y: None }
    }

    /// Two clients, one newcomer; features a, b and a constant.
    fn dataset() -> Dataset {
        let test = Arc::new(set(&[[100.0, 7.0, 1.0]]));
        let client =
            |rows: &[[f64; 3]]| Client { test: Arc::clone(&test), ..Client::new(set(rows), set(&[])) };
        Dataset {
            features: 3,
            outputs: 1,
            clients: vec![client(&[[1013.0, 7.0, 1.0], [1015.0, 7.0, 1.0]]), client(&[[1011.0, 7.0, 1.0]])],
            newcomers: vec![client(&[[1e6, 8.0, 1.0]])],
            ..Dataset::default()
        }
    }

    #[test]
    fn only_rows_that_train_have_a_say() {
        let names = ["a".to_owned(), "b".to_owned()];
        let scaled = Scale::Standard.finish(dataset(), &names, "f.csv").unwrap();
        let deviation = (8.0f64 / 3.0).sqrt();
        let Scaling { shift, factor, scale, .. } = scaled.scale.clone().unwrap();
        assert_eq!((shift, factor, scale), (vec![1013.0, 7.0], vec![1.0 / deviation, 1.0], "standard"));
        assert_eq!(scaled.clients[0].train.x, [0.0, 0.0, 1.0, (2.0 / deviation) as f32, 0.0, 1.0]);
        assert!(Arc::ptr_eq(&scaled.clients[0].test, &scaled.newcomers[0].test), "shared as before");
        assert!((scaled.clients[1].test.wide.as_ref().unwrap()[0] + 913.0 / deviation).abs() < 1e-9);
        assert_eq!(scaled.newcomers[0].train.x[1..], [1.0, 1.0]);
        // The newcomer's 8; the test set has the constant's 7.
        assert_eq!(scaled.warnings.len(), 1);
        assert!(
            scaled.warnings[0]
                .contains("\"b\" is 7 in every row that trains, and something else in 1 others")
        );
    }

    #[test]
    fn without_a_scale_values_are_rounded_and_nothing_else() {
        let plain = Scale::None.finish(dataset(), &["a".to_owned(), "b".to_owned()], "f.csv").unwrap();
        assert_eq!(plain.clients[0].train.x, [1013.0, 7.0, 1.0, 1015.0, 7.0, 1.0]);
        assert!(plain.scale.is_none() && plain.warnings.is_empty());
    }

    /// Against NumPy: `numpy.quantile`, `numpy.std`.
    #[test]
    fn spreads_are_those_of_the_definitions() {
        let values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6];
        let one = Scale::Robust.column(&mut values.to_vec());
        assert!((one.shift - 2.8).abs() < 1e-15 && (1.0 / one.factor - (3.75 - 1.775)).abs() < 1e-14);
        let one = Scale::Standard.column(&mut values.to_vec());
        assert!((one.shift - 3.516_666_666_666_667).abs() < 1e-14);
        assert!((1.0 / one.factor - 2.639_707_475_375_928).abs() < 1e-13, "{}", 1.0 / one.factor);
        let mostly = [0.0, 0.0, 0.0, 0.0, 0.0, 6.0];
        let one = Scale::Robust.column(&mut mostly.to_vec());
        assert!(one.shift == 0.0 && (1.0 / one.factor - 5.0f64.sqrt()).abs() < 1e-14);
    }

    /// An offset costs no digits, tiny units no spread, and the same value is no spread at all.
    #[test]
    fn units_and_offsets_do_not_matter() {
        let values: Vec<f64> = (0..50).map(|i| f64::from(i * i % 17)).collect();
        let plain = Scale::Standard.column(&mut values.clone());
        for (unit, offset) in [(1e-200, 0.0), (1e30, 0.0), (1.0, 1e9), (1e-6, -3e3)] {
            let mut moved: Vec<f64> = values.iter().map(|value| value * unit + offset).collect();
            let one = Scale::Standard.column(&mut moved);
            for (value, moved) in values.iter().zip(&moved) {
                let (a, b) = ((value - plain.shift) * plain.factor, (moved - one.shift) * one.factor);
                assert!((a - b).abs() < 1e-5, "{unit} {offset}: {a} {b}");
            }
        }
        let one = Scale::Standard.column(&mut [0.1; 7]);
        assert_eq!((one.shift.to_bits(), one.factor, one.constant), (0.1f64.to_bits(), 1.0, true));
    }
}
