//! List of a model's metrics by name, for result files and tables.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::evaluate::Scores;
use crate::report::interned;

/// Metrics by name, in the order of the tables. Metrics that do not apply are omitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(Vec<(&'static str, f64)>);

impl Figures {
    /// Builds the list of a model's metrics on the training clients.
    #[must_use]
    pub fn new(scores: &Scores) -> Self {
        let mut figures = Self::default();
        figures.push("distance", scores.distance);
        figures.push("loss", scores.loss);
        figures.push("accuracy", scores.accuracy);
        figures.push("accuracy_global", scores.accuracy_global);
        figures.push("test_mse", scores.test_mse);
        figures.push("accuracy_new_clients", scores.accuracy_new_clients);
        figures.push("test_mse_new_clients", scores.test_mse_new_clients);
        figures
    }

    /// Appends a metric, unless the value is `None`. Values must be finite, since JSON would replace other
    /// values by null; runs with other values fail before metrics are reported.
    pub fn push(&mut self, name: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.0.push((name, value));
        }
    }

    /// Value of the metric with this name; `None` if the metric does not apply.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(entry, _)| *entry == name).map(|(_, value)| *value)
    }

    /// Iterates over the names and values of all metrics, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.0.iter().copied()
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Figures {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        interned::names_and_values(deserializer).map(Self)
    }
}
