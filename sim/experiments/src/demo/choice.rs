//! Settings of the demo, and those recorded in `chosen.json`.

use serde::{Deserialize, Serialize};

use super::DemoError;
use super::part::Part;

static RECORDED: &str = include_str!("chosen.json");

/// Feature set of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// The features that the client computes on a device.
    Device,
    /// Logarithms of the spreads and other weights, which suit local-only training better.
    Logarithmic,
}

/// A setting of FedRep and its validation score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FedRepChoice {
    /// Width of the representation.
    pub k: usize,
    /// Step size of the representation.
    pub step_size: f64,
    /// Windows per class that the head of a training round is fitted on.
    pub head_samples_per_class: usize,
    /// Ridge of the final heads.
    pub final_ridge: f32,
    /// Mean accuracy of held-out people on validation windows.
    pub validation: f64,
}

/// A ridge (and weight) of a baseline with its validation score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RidgeChoice {
    /// Weight of a newcomer's label; 1 for baselines without weights.
    pub weight: usize,
    /// Ridge of the least squares fit.
    pub ridge: f32,
    /// Mean accuracy on validation windows.
    pub validation: f64,
}

/// All chosen settings of one fold of one part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Number of the held-out fold, from 0.
    pub fold: usize,
    /// FedRep on the device's features.
    pub fedrep: FedRepChoice,
    /// FedRep on the logarithmic features.
    pub fedrep_logarithmic: FedRepChoice,
    /// Model of a new wearer alone, on the device's features.
    pub local: RidgeChoice,
    /// Model of a new wearer alone, on the logarithmic features.
    pub local_logarithmic: RidgeChoice,
    /// Model of a training wearer alone.
    pub local_trained: RidgeChoice,
    /// Pooled model for new wearers, whose labels count once.
    pub pooled: RidgeChoice,
    /// Pooled model for new wearers, whose labels count more than once.
    pub pooled_weighted: RidgeChoice,
    /// Pooled model for the training wearers.
    pub pooled_trained: RidgeChoice,
}

/// Choices of one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choices {
    /// Name of the scenario.
    pub scenario: String,
    /// Choice of each fold.
    pub folds: Vec<Choice>,
}

impl Choice {
    /// FedRep's setting on one of the feature sets.
    #[must_use]
    pub fn fedrep(&self, features: Features) -> FedRepChoice {
        match features {
            Features::Device => self.fedrep,
            Features::Logarithmic => self.fedrep_logarithmic,
        }
    }

    /// Reads the recorded choice.
    ///
    /// # Errors
    /// [`DemoError::Choice`] if `chosen.json` is broken or lacks the fold, which only a broken build can cause.
    pub fn recorded(part: &Part, fold: usize) -> Result<Self, DemoError> {
        let all: Vec<Choices> =
            serde_json::from_str(RECORDED).map_err(|error| DemoError::Choice(error.to_string()))?;
        let of_part = all.iter().find(|choices| choices.scenario == part.name);
        let found = of_part.and_then(|choices| choices.folds.iter().find(|choice| choice.fold == fold));
        found.copied().ok_or_else(|| DemoError::Choice(format!("{} has no fold {fold}", part.name)))
    }
}

impl FedRepChoice {
    /// The setting as changes of the scenario.
    #[must_use]
    pub fn changes(&self) -> Vec<String> {
        vec![
            format!("model.k={}", self.k),
            format!("algorithm.step_size={:?}", self.step_size),
            format!("data.head_samples_per_class={}", self.head_samples_per_class),
            format!("algorithm.final_ridge={:?}", self.final_ridge),
        ]
    }
}
