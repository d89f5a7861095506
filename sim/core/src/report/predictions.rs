//! Result files with the predictions for every test sample: the predictions themselves, the confusion matrix, and the
//! figures of every class.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::files::quote_cell;
use super::plot::confusion::Counts;
use crate::evaluate::ClientScore;
use crate::run::Outcome;

/// F1 score, the harmonic mean of precision and recall, averaged over the classes that occur in the test samples.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct MacroF1 {
    /// For the clients that trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<f64>,
    /// For the clients that came after training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_clients: Option<f64>,
}

/// Number of test samples for each pair of true and predicted class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "Vec<(u8, u8, u64)>", into = "Vec<(u8, u8, u64)>")]
pub(super) struct Confusion(BTreeMap<(u8, u8), u64>);

impl From<Vec<(u8, u8, u64)>> for Confusion {
    fn from(cells: Vec<(u8, u8, u64)>) -> Self {
        Self(
            cells
                .into_iter()
                .map(|(true_class, predicted, count)| ((true_class, predicted), count))
                .collect(),
        )
    }
}

impl From<Confusion> for Vec<(u8, u8, u64)> {
    fn from(confusion: Confusion) -> Self {
        confusion
            .0
            .into_iter()
            .map(|((true_class, predicted), count)| (true_class, predicted, count))
            .collect()
    }
}

/// Precision, recall and F1 score of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ClassFigures {
    samples: u64,
    /// Part of the samples predicted as this class that are of it; 0 if there are none.
    precision: f64,
    /// Part of the samples of this class that are predicted as it.
    recall: f64,
    f1: f64,
}

impl Confusion {
    pub(super) fn of(clients: &[ClientScore]) -> Self {
        let mut counts = BTreeMap::new();
        for predictions in clients.iter().filter_map(|client| client.predictions.as_deref()) {
            for (truth, class) in predictions.truth.iter().zip(&predictions.classes) {
                *counts.entry((class_number(*truth), *class)).or_insert(0) += 1;
            }
        }
        Self(counts)
    }

    /// Adds the counts of other predictions.
    pub(super) fn add(&mut self, other: Self) {
        for (cell, count) in other.0 {
            *self.0.entry(cell).or_insert(0) += count;
        }
    }

    /// Matrix of all classes that occur, or that the data name, with their names.
    pub(super) fn counts(&self, names: &[String]) -> Counts {
        let occurring = self.0.keys().map(|(truth, predicted)| usize::from(*truth.max(predicted)) + 1).max();
        let count = occurring.unwrap_or(0).max(names.len());
        let class_name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let mut counts = vec![vec![0; count]; count];
        for ((truth, predicted), samples) in &self.0 {
            if let Some(cell) =
                counts.get_mut(usize::from(*truth)).and_then(|row| row.get_mut(usize::from(*predicted)))
            {
                *cell = *samples;
            }
        }
        Counts { classes: (0..count).map(class_name).collect(), counts }
    }

    /// Sum of the counts of the cells that satisfy a condition.
    fn sum(&self, matches: impl Fn(u8, u8) -> bool) -> u64 {
        self.0
            .iter()
            .filter(|((truth, predicted), _)| matches(*truth, *predicted))
            .map(|(_, count)| count)
            .sum()
    }

    /// Figures of the classes that occur in the test samples.
    fn classes(&self) -> BTreeMap<u8, ClassFigures> {
        let figures = |class: u8| {
            let (samples, predicted) =
                (self.sum(|truth, _| truth == class), self.sum(|_, found| found == class));
            let correct = self.0.get(&(class, class)).copied().unwrap_or(0);
            #[allow(clippy::cast_precision_loss, reason = "counts of samples")]
            let ratio = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
            ClassFigures {
                samples,
                precision: ratio(correct, predicted),
                recall: ratio(correct, samples),
                f1: ratio(2 * correct, samples + predicted),
            }
        };
        self.0.keys().map(|(truth, _)| (*truth, figures(*truth))).collect()
    }

    fn macro_f1(&self) -> Option<f64> {
        let classes = self.classes();
        #[allow(clippy::cast_precision_loss, reason = "at most 256 classes")]
        let count = classes.len() as f64;
        (!classes.is_empty()).then(|| classes.values().map(|class| class.f1).sum::<f64>() / count)
    }
}

impl MacroF1 {
    /// Computes the scores; `None` for regression, and without test samples.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Option<Self> {
        let of = |clients: &[ClientScore]| Confusion::of(clients).macro_f1();
        let (trained, new_clients) = (of(&outcome.clients), of(&outcome.newcomers));
        (trained.is_some() || new_clients.is_some()).then_some(Self { trained, new_clients })
    }
}

/// Clients that trained and clients that came after training, with the words for both in result files.
fn groups(outcome: &Outcome) -> [(&'static str, &[ClientScore]); 2] {
    [("before", &outcome.clients), ("after", &outcome.newcomers)]
}

/// Number of a class that is stored as a target.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
fn class_number(truth: f32) -> u8 {
    truth as u8
}

/// Name of a class as a CSV cell: its number if the data name none.
fn class_name(outcome: &Outcome, class: u8) -> String {
    outcome.names.classes.get(usize::from(class)).map_or_else(|| class.to_string(), |name| quote_cell(name))
}

/// Text of `predictions.csv`; `None` if no client has test samples.
#[must_use]
pub fn predictions(outcome: &Outcome) -> Option<String> {
    let clients = || outcome.clients.iter().chain(&outcome.newcomers);
    let tested = || clients().filter_map(|client| client.predictions.as_deref());
    let classification = tested().any(|predictions| !predictions.classes.is_empty());
    if tested().all(|predictions| predictions.scores.is_empty()) {
        return None;
    }
    let outputs = outcome.outputs.max(1);
    let mut text = String::from(if classification {
        "client,row,true,predicted,score\n"
    } else {
        "client,row,output,true,predicted\n"
    });
    for (number, client) in outcome.numbers.iter().zip(clients()) {
        let Some(predictions) = client.predictions.as_deref() else { continue };
        if classification {
            let samples = predictions
                .rows
                .iter()
                .zip(&predictions.truth)
                .zip(&predictions.classes)
                .zip(&predictions.scores);
            for (((row, truth), class), score) in samples {
                let (truth, class) = (class_name(outcome, class_number(*truth)), class_name(outcome, *class));
                let _ = writeln!(text, "{number},{row},{truth},{class},{score}");
            }
            continue;
        }
        for (index, (truth, value)) in predictions.truth.iter().zip(&predictions.scores).enumerate() {
            let row = predictions.rows.get(index / outputs).copied().unwrap_or(0);
            let _ = writeln!(text, "{number},{row},{},{truth},{value}", index % outputs);
        }
    }
    Some(text)
}

/// Text of `confusion.csv`: the number of test samples for each pair of true and predicted class that occurs. `None` for
/// regression, and without test samples.
#[must_use]
pub fn confusion(outcome: &Outcome) -> Option<String> {
    let mut text = String::from("came,true,predicted,samples\n");
    let header = text.len();
    for (came, clients) in groups(outcome) {
        for ((truth, class), count) in Confusion::of(clients).0 {
            let (truth, class) = (class_name(outcome, truth), class_name(outcome, class));
            let _ = writeln!(text, "{came},{truth},{class},{count}");
        }
    }
    (text.len() > header).then_some(text)
}

/// Text of `classes.csv`: precision, recall and F1 score of every class. `None` as for [`confusion`].
#[must_use]
pub fn classes(outcome: &Outcome) -> Option<String> {
    let mut text = String::from("came,class,samples,precision,recall,f1\n");
    let header = text.len();
    for (came, clients) in groups(outcome) {
        for (class, figures) in Confusion::of(clients).classes() {
            let ClassFigures { samples, precision, recall, f1 } = figures;
            let _ =
                writeln!(text, "{came},{},{samples},{precision},{recall},{f1}", class_name(outcome, class));
        }
    }
    (text.len() > header).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::evaluate::Predictions;

    fn client(truth: &[u8], classes: &[u8]) -> ClientScore {
        let predictions = Predictions {
            classes: classes.to_vec(),
            scores: vec![0.5; classes.len()],
            truth: truth.iter().copied().map(f32::from).collect(),
            rows: (0..).take(truth.len()).collect(),
        };
        ClientScore { predictions: predictions.boxed(), ..ClientScore::default() }
    }

    /// Class 0: 3 samples, 2 found, 1 of class 1 taken for it. Class 1: 2 samples, 1 found, 1 of class 0 taken for it.
    /// Class 2 does not occur, but is predicted once for a sample of class 1 more.
    #[test]
    fn figures_of_classes_follow_from_counts() {
        let confusion = Confusion::of(&[client(&[0, 0, 0, 1], &[0, 0, 1, 0]), client(&[1, 1], &[1, 2])]);
        assert_eq!(confusion.sum(|_, _| true), 6);
        let classes = confusion.classes();
        assert_eq!(classes.keys().copied().collect::<Vec<u8>>(), [0, 1]);
        let (first, second) = (classes[&0], classes[&1]);
        assert_eq!((first.samples, first.precision, first.recall), (3, 2.0 / 3.0, 2.0 / 3.0));
        assert_eq!((second.samples, second.precision, second.recall), (3, 0.5, 1.0 / 3.0));
        let f1 = |figures: ClassFigures| {
            2.0 * figures.precision * figures.recall / (figures.precision + figures.recall)
        };
        assert!((f1(first) - first.f1).abs() < 1e-12 && (f1(second) - second.f1).abs() < 1e-12);
        assert!((confusion.macro_f1().unwrap() - (first.f1 + second.f1) / 2.0).abs() < 1e-12);
        assert_eq!(Confusion::default().macro_f1(), None);
    }
}
