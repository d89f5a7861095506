//! Validation of data sets that the calling program has made. Readers of files validate what they read
//! themselves.

use std::fmt;

use super::{Client, Dataset, LARGEST_VALUES, Labels, Set};

/// Largest number of features, the same as for tables.
const FEATURES_MAX: usize = super::table::FEATURES;
/// Largest number of classes: class numbers are bytes.
const CLASSES_MAX: usize = 256;

/// Place of a set of samples in a data set, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPlace {
    /// Index of the client, from 0, among the training clients or the newcomers.
    pub client: usize,
    /// Whether the client is a newcomer.
    pub newcomer: bool,
    /// Whether the set contains test samples.
    pub test: bool,
}

impl fmt::Display for SetPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = if self.newcomer { "newcomer" } else { "client" };
        let set = if self.test { "test" } else { "training" };
        write!(f, "{client} {} (from 0), {set} samples", self.client)
    }
}

/// Reason why a data set in memory cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A size is outside its range.
    #[error("the data set has {found} {what}, allowed: from 1 to {most}")]
    Size {
        /// `clients`, `features`, `outputs` or `classes`.
        what: &'static str,
        /// Number found.
        found: usize,
        /// Largest number.
        most: usize,
    },
    /// All sets together have too many values.
    #[error("the data set has {found} values, allowed: at most {LARGEST_VALUES} (2^31)")]
    Values {
        /// Number found.
        found: u64,
    },
    /// The values of a set are not rows of `features` values, one for each target.
    #[error("{place}: {values} values for {samples} targets, allowed: {features} values for each")]
    Width {
        /// Set of samples.
        place: SetPlace,
        /// Number of values found.
        values: usize,
        /// Number of targets found.
        samples: usize,
        /// Number of features of the data set.
        features: usize,
    },
    /// The kind of a set's targets differs from the kind of the data set.
    #[error("{place}: the targets are {found}, allowed: {allowed}, as in the data set")]
    Targets {
        /// Set of samples.
        place: SetPlace,
        /// Kind found, in words.
        found: String,
        /// Kind of the data set, in words.
        allowed: String,
    },
    /// A class number is too large.
    #[error("{place}: sample {sample} (from 0) has class {found}, allowed: 0 to {}", classes - 1)]
    Label {
        /// Set of samples.
        place: SetPlace,
        /// Index of the sample, from 0.
        sample: usize,
        /// Class found.
        found: u8,
        /// Number of classes of the data set.
        classes: usize,
    },
    /// A value is NaN or infinite.
    #[error("{place}: sample {sample} (from 0) has {what} {column} = {value}, allowed: finite numbers")]
    NotFinite {
        /// Set of samples.
        place: SetPlace,
        /// Index of the sample, from 0.
        sample: usize,
        /// `feature` or `target`.
        what: &'static str,
        /// Index of the feature or target, from 0.
        column: usize,
        /// Value found.
        value: f64,
    },
    /// The number of names differs from the number of clients, features or classes.
    #[error("the data set has {found} names of {what}, allowed: {allowed}, one for each, or none")]
    Names {
        /// `clients`, `newcomers`, `features` or `classes`.
        what: &'static str,
        /// Number of names.
        found: usize,
        /// Number of clients, newcomers, features or classes in the data set.
        allowed: usize,
    },
    /// The number of rows of the true representation differs from the number of features.
    #[error("the true representation has {found} rows, allowed: {features}, the number of features")]
    Truth {
        /// Number of rows found.
        found: usize,
        /// Number of features of the data set.
        features: usize,
    },
    /// The shape of a row does not have as many values as a row.
    #[error(
        "the layout has {found} values, allowed: {features}, the number of features, less the constant if there is one"
    )]
    Layout {
        /// Number of values that the shape describes.
        found: usize,
        /// Number of features of the data set.
        features: usize,
    },
}

/// Iterates over the training and test sets of `clients`, each with its place in the data set.
fn sets(clients: &[Client], newcomer: bool) -> impl Iterator<Item = (SetPlace, &Set)> {
    clients.iter().enumerate().flat_map(move |(client, Client { train, test, .. })| {
        let place_of = |test| SetPlace { client, newcomer, test };
        [(place_of(false), train.as_ref()), (place_of(true), test.as_ref())]
    })
}

impl Dataset {
    /// Checks that all samples have `features` finite values and targets of one kind, and that classes are
    /// below `outputs`. Clients without samples are allowed: a scenario removes them.
    ///
    /// # Errors
    /// [`DatasetError`] for the first violation, with its place and the numbers found and allowed.
    pub fn check(&self) -> Result<(), DatasetError> {
        let Self { features, outputs, classification, clients, newcomers, .. } = self;
        let (features, outputs) = (*features, *outputs);
        let (what, max_outputs) =
            if *classification { ("classes", CLASSES_MAX) } else { ("outputs", FEATURES_MAX) };
        for (what, found, most) in [
            ("clients", clients.len(), 1_000_000),
            ("features", features, FEATURES_MAX),
            (what, outputs, max_outputs),
        ] {
            if !(1..=most).contains(&found) {
                return Err(DatasetError::Size { what, found, most });
            }
        }
        let sets = || sets(clients, false).chain(sets(newcomers, true));
        let found: u64 = sets().map(|(_, set)| set.x.len() as u64).sum();
        if found > LARGEST_VALUES {
            return Err(DatasetError::Values { found });
        }
        let has_targets = self.has_targets();
        for (set_place, set) in sets().filter(|(_, set)| !set.x.is_empty() || !set.is_empty()) {
            self.check_set(set_place, set, has_targets)?;
        }
        let names = [
            ("clients", self.client_names.len(), clients.len()),
            ("newcomers", self.newcomer_names.len(), newcomers.len()),
            ("features", self.feature_names.len(), features - usize::from(self.layout.constant)),
            ("classes", self.class_names.len(), if *classification { outputs } else { 0 }),
        ];
        if let Some((what, found, allowed)) = names.into_iter().find(|(_, n, needed)| *n > 0 && n != needed) {
            return Err(DatasetError::Names { what, found, allowed });
        }
        if let Some(found) = self.truth.as_ref().map(|truth| truth.nrows()).filter(|rows| *rows != features) {
            return Err(DatasetError::Truth { found, features });
        }
        let row = features - usize::from(self.layout.constant);
        match self.layout.shape.map(|shape| shape.len()).filter(|found| *found != row) {
            Some(found) => Err(DatasetError::Layout { found, features }),
            None => Ok(()),
        }
    }

    /// Checks the targets and values of one set.
    fn check_set(&self, place: SetPlace, set: &Set, has_targets: bool) -> Result<(), DatasetError> {
        let (features, outputs) = (self.features, self.outputs);
        let found = match &set.y {
            Labels::Classes(_) => "class numbers".to_owned(),
            Labels::Values { outputs, .. } => format!("{outputs} numbers for each sample"),
            Labels::Absent(_) => "absent".to_owned(),
        };
        let allowed = match (self.classification, has_targets) {
            (true, _) => "class numbers".to_owned(),
            (false, true) => format!("{outputs} numbers for each sample"),
            (false, false) => "absent".to_owned(),
        };
        if found != allowed {
            return Err(DatasetError::Targets { place, found, allowed });
        }
        let samples = set.len();
        let value_counts = [Some(set.x.len()), set.x_f64.as_ref().map(Vec::len)];
        for values in value_counts.into_iter().flatten() {
            if values != samples * features {
                return Err(DatasetError::Width { place, values, samples, features });
            }
        }
        let infinite = |what, width: usize, (index, value): (usize, f64)| DatasetError::NotFinite {
            place,
            sample: index / width,
            what,
            column: index % width,
            value,
        };
        let first_not_finite = |values: &[f32]| {
            let index = values.iter().position(|value| !value.is_finite())?;
            Some((index, f64::from(*values.get(index)?)))
        };
        if let Some(found) = first_not_finite(&set.x) {
            return Err(infinite("feature", features, found));
        }
        match &set.y {
            Labels::Values { values, outputs } => match first_not_finite(values) {
                Some(found) => Err(infinite("target", *outputs, found)),
                None if values.len() == samples * outputs => Ok(()),
                None => {
                    let found = format!("{} numbers in all", values.len());
                    Err(DatasetError::Targets { place, found, allowed })
                }
            },
            Labels::Classes(classes) => {
                let found = classes.iter().position(|class| usize::from(*class) >= outputs);
                match found.and_then(|sample| Some((sample, *classes.get(sample)?))) {
                    Some((sample, found)) => {
                        Err(DatasetError::Label { place, sample, found, classes: outputs })
                    }
                    None => Ok(()),
                }
            }
            Labels::Absent(_) => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::data::{Layout, SharedSet};
    use fedspan_engine::linalg::Matrix;

    /// Creates a valid data set: two clients and a newcomer, with two features and two classes.
    fn valid_dataset() -> Dataset {
        let set = || Set::new(vec![1.0, 2.0, 3.0, 4.0], Labels::Classes(vec![0, 1]));
        let client = || Client::new(set(), set());
        Dataset::classes(2, 2, vec![client(), client()]).with_newcomers(vec![client()])
    }

    fn error(change: impl FnOnce(&mut Dataset)) -> String {
        let mut dataset = valid_dataset();
        change(&mut dataset);
        dataset.check().unwrap_err().to_string()
    }

    fn set(features: &[f32], y: Labels) -> SharedSet {
        Set::new(features.to_vec(), y).into()
    }

    #[test]
    fn good_data_pass() {
        valid_dataset().check().unwrap();
        let values = Set::new(vec![1.0, 2.0], Labels::values(vec![0.5, 0.5]));
        let clients = vec![Client::new(values, Set::empty(true))];
        Dataset::regression(1, 1, clients).check().unwrap();
    }

    #[test]
    fn errors_name_place_and_numbers() {
        let classes = |classes: &[u8]| Labels::Classes(classes.to_vec());
        assert_eq!(
            error(|data| data.clients.clear()),
            "the data set has 0 clients, allowed: from 1 to 1000000"
        );
        assert_eq!(error(|data| data.features = 0), "the data set has 0 features, allowed: from 1 to 65535");
        assert_eq!(error(|data| data.outputs = 257), "the data set has 257 classes, allowed: from 1 to 256");
        assert_eq!(
            error(|data| data.clients[1].train = set(&[1.0; 5], classes(&[0, 1]))),
            "client 1 (from 0), training samples: 5 values for 2 targets, allowed: 2 values for each"
        );
        assert_eq!(
            error(|data| data.newcomers[0].test = set(&[1.0; 4], classes(&[0, 2]))),
            "newcomer 0 (from 0), test samples: sample 1 (from 0) has class 2, allowed: 0 to 1"
        );
        assert_eq!(
            error(|data| data.clients[0].test = set(&[1.0, 2.0, 3.0, f32::NAN], classes(&[0, 1]))),
            "client 0 (from 0), test samples: sample 1 (from 0) has feature 1 = NaN, allowed: finite numbers"
        );
        assert_eq!(
            error(|data| data.clients[0].train = set(&[1.0; 4], Labels::values(vec![1.0, 2.0]))),
            "client 0 (from 0), training samples: the targets are 1 numbers for each sample, allowed: class numbers, as in the data \
             set"
        );
        assert_eq!(
            error(|data| data.client_names = vec!["one".to_owned()]),
            "the data set has 1 names of clients, allowed: 2, one for each, or none"
        );
        assert_eq!(
            error(|data| data.truth = Some(Matrix::zeros(3, 1))),
            "the true representation has 3 rows, allowed: 2, the number of features"
        );
        let shape = Some(crate::data::Shape::Series { steps: 2, channels: 1 });
        assert_eq!(
            error(|data| data.layout = Layout { shape, constant: true }),
            "the layout has 2 values, allowed: 2, the number of features, less the constant if there is one"
        );
    }
}
