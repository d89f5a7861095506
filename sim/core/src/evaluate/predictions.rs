//! Predictions of a model for the samples of a set, with the truth.

use crate::data::{Labels, Set};

/// Predictions for the test samples of a client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predictions {
    /// Predicted class of each sample; empty for regression.
    pub classes: Vec<u8>,
    /// Score of each predicted class: for networks its probability, for linear models its output. For regression the
    /// predicted values, row-major, m x C.
    pub scores: Vec<f32>,
    /// Targets, as numbers of classes or as values in the layout of `scores`.
    pub truth: Vec<f32>,
    /// Number of each sample in the data.
    pub rows: Vec<u32>,
}

impl Predictions {
    /// Creates an empty list of predictions for the samples of a set.
    #[must_use]
    pub fn of(set: &Set) -> Self {
        let truth = match &set.y {
            Labels::Values { values, .. } => values.clone(),
            Labels::Classes(classes) => classes.iter().copied().map(f32::from).collect(),
            Labels::Absent(_) => Vec::new(),
        };
        let rows = (0..set.len()).map(|index| set.row(index)).collect();
        Self { truth, rows, ..Self::default() }
    }

    /// Puts the predictions on the heap, for lists of many clients; `None` if there are no samples.
    #[must_use]
    pub fn boxed(self) -> Option<Box<Self>> {
        (!self.rows.is_empty()).then(|| Box::new(self))
    }

    /// Adds the outputs of a linear model for one sample: for classes, the class with the largest output.
    pub fn push(&mut self, y: &Labels, outputs: &[f32]) {
        match y {
            Labels::Classes(_) => {
                let class = super::largest(outputs);
                self.push_class(class, outputs.get(class).copied().unwrap_or(f32::NAN));
            }
            Labels::Values { .. } => self.scores.extend_from_slice(outputs),
            Labels::Absent(_) => {}
        }
    }

    /// Adds a predicted class.
    pub fn push_class(&mut self, class: usize, score: f32) {
        self.classes.push(u8::try_from(class).unwrap_or(u8::MAX));
        self.scores.push(score);
    }
}
