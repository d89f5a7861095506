//! Results of the single clients of runs, for the figures of a report: accuracies and confusion matrices.

use serde::{Deserialize, Serialize};

use super::plot::Figure;
use super::plot::confusion::{Counts, confusion};
use super::plot::histogram::histogram;
use super::predictions::Confusion;
use crate::evaluate::ClientScore;
use crate::run::Outcome;

/// Name of the clients that trained, in names of figures.
const TRAINED: &str = "clients";

/// Results of one group of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Group {
    accuracies: Vec<f64>,
    confusion: Confusion,
}

/// Results of the clients of one run, or of the runs of several seeds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ClientFigures {
    classes: Vec<String>,
    trained: Group,
    new_clients: Group,
}

impl Group {
    fn of(clients: &[ClientScore]) -> Self {
        let accuracies = clients.iter().filter_map(|client| client.accuracy).collect();
        Self { accuracies, confusion: Confusion::of(clients) }
    }

    fn add(&mut self, other: Self) {
        self.accuracies.extend(other.accuracies);
        self.confusion.add(other.confusion);
    }
}

impl ClientFigures {
    /// Results of the clients of a run.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        Self {
            classes: outcome.names.classes.clone(),
            trained: Group::of(&outcome.clients),
            new_clients: Group::of(&outcome.newcomers),
        }
    }

    /// Adds the results of another run of the same scenario.
    pub fn add(&mut self, other: Self) {
        if self.classes.is_empty() {
            self.classes = other.classes;
        }
        self.trained.add(other.trained);
        self.new_clients.add(other.new_clients);
    }

    /// Groups of clients, each with its name in the names of figures and its heading.
    fn groups(&self) -> [(&'static str, &'static str, &Group); 2] {
        [
            (TRAINED, "clients that trained", &self.trained),
            ("new-clients", "clients that came after training", &self.new_clients),
        ]
    }

    /// Lowest accuracy of a client; 1 if there are no accuracies.
    #[must_use]
    pub fn lowest(&self) -> f64 {
        self.groups().iter().flat_map(|group| &group.2.accuracies).copied().fold(1.0, f64::min)
    }

    /// Histograms of the accuracies. A `label` that is not empty precedes their headings, and replaces that of the
    /// clients that trained. `lowest` is the lowest accuracy of the page, or any number above it if the page has no
    /// further results.
    #[must_use]
    pub fn histograms(&self, label: &str, lowest: f64) -> Vec<Figure> {
        let lowest = lowest.min(self.lowest());
        self.groups()
            .into_iter()
            .filter_map(|(name, heading, group)| {
                let heading = match (label, name) {
                    ("", _) => heading.to_owned(),
                    (label, TRAINED) => label.to_owned(),
                    (label, _) => format!("{label}: {heading}"),
                };
                let file = format!("accuracy-of-{name} {label}");
                let file = file.trim_end().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
                histogram(&file, &heading, &group.accuracies, lowest)
            })
            .collect()
    }

    /// Confusion matrices.
    #[must_use]
    pub fn matrices(&self) -> Vec<Figure> {
        let counts = |group: &Group| -> Counts { group.confusion.counts(&self.classes) };
        self.groups()
            .into_iter()
            .filter_map(|(name, heading, group)| {
                confusion(&format!("confusion-of-{name}"), heading, &counts(group))
            })
            .collect()
    }
}
