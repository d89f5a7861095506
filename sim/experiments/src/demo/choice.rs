//! Hyperparameters of the demo's methods, and a reader of the values recorded in `chosen.json`.

use serde::{Deserialize, Serialize};

use super::DemoError;
use super::part::Part;

/// Content of `chosen.json`.
static RECORDED: &str = include_str!("chosen.json");

/// Set of features that are computed from a window of sensor samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// Features that the client crate computes on a device.
    Device,
    /// Features with logarithms of the spreads and with other weights, which suit local-only training better.
    Logarithmic,
}

/// Hyperparameters of FedRep with their validation score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FedRepChoice {
    /// Width of the representation.
    pub k: usize,
    /// Step size of the representation.
    pub step_size: f64,
    /// Number of windows per class on which a client fits its head in a training round.
    pub head_samples_per_class: usize,
    /// Ridge parameter of the heads that are fitted after training.
    pub final_ridge: f32,
    /// Mean accuracy of held-out people on validation windows, between 0 and 1.
    pub validation: f64,
}

/// Ridge parameter and label weight of a baseline with their validation score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RidgeChoice {
    /// Number of times that a label of a newcomer counts; 1 for baselines without weights.
    pub weight: usize,
    /// Ridge parameter of the least squares fit.
    pub ridge: f32,
    /// Mean accuracy on validation windows, between 0 and 1.
    pub validation: f64,
}

/// Chosen hyperparameters of all methods for one fold of one part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Number of the held-out fold, from 0.
    pub fold: usize,
    /// Hyperparameters of FedRep on the features of [`Features::Device`].
    pub fedrep: FedRepChoice,
    /// Hyperparameters of FedRep on the logarithmic features.
    pub fedrep_logarithmic: FedRepChoice,
    /// Ridge of the local-only models of new wearers, on the features of [`Features::Device`].
    pub local: RidgeChoice,
    /// Ridge of the local-only models of new wearers, on the logarithmic features.
    pub local_logarithmic: RidgeChoice,
    /// Ridge of the local-only models of training wearers.
    pub local_trained: RidgeChoice,
    /// Ridge of the pooled model for new wearers in which their labels count once.
    pub pooled: RidgeChoice,
    /// Ridge and label weight of the pooled model for new wearers in which their labels count more than once.
    pub pooled_weighted: RidgeChoice,
    /// Ridge of the pooled model for training wearers.
    pub pooled_trained: RidgeChoice,
}

/// Chosen hyperparameters of all folds of one part of the demo.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choices {
    /// Name of the scenario.
    pub scenario: String,
    /// Chosen hyperparameters of each fold.
    pub folds: Vec<Choice>,
}

impl Choice {
    /// Hyperparameters of FedRep on one of the feature sets.
    #[must_use]
    pub fn fedrep(&self, features: Features) -> FedRepChoice {
        match features {
            Features::Device => self.fedrep,
            Features::Logarithmic => self.fedrep_logarithmic,
        }
    }

    /// Reads the hyperparameters that `chosen.json` records for one fold.
    ///
    /// # Errors
    /// [`DemoError::Choice`] if `chosen.json` is broken or lacks the fold, which only a broken build can
    /// cause.
    pub fn recorded(part: &Part, fold: usize) -> Result<Self, DemoError> {
        let recorded_choices: Vec<Choices> =
            serde_json::from_str(RECORDED).map_err(|error| DemoError::Choice(error.to_string()))?;
        let of_part = recorded_choices.iter().find(|choices| choices.scenario == part.name);
        let choice_of_fold =
            of_part.and_then(|choices| choices.folds.iter().find(|choice| choice.fold == fold));
        choice_of_fold.copied().ok_or_else(|| DemoError::Choice(format!("{} has no fold {fold}", part.name)))
    }
}

impl FedRepChoice {
    /// Converts the hyperparameters into changes of the scenario.
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
