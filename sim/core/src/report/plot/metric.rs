//! Metrics on the vertical axis.

use fedspan_engine::algorithm::LinearMethod;

use super::Series;
use crate::evaluate::Scores;
use crate::scenario::Scenario;

/// Loss of a model. Different losses are never drawn on one axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// Halved squared error of linear models with heads that are fitted for the evaluation.
    #[default]
    Squared,
    /// Halved squared error of one linear model of all clients.
    SquaredShared,
    /// Cross-entropy of personal networks.
    CrossEntropy,
    /// Cross-entropy of networks whose heads are fine-tuned for the evaluation.
    CrossEntropyTuned,
    /// Cross-entropy of one network of all clients.
    CrossEntropyShared,
}

/// Description of networks that are scored as one model of all clients.
const SHARED_NETWORK: &str = "the shared network";

impl Loss {
    /// All losses, in the order of a report.
    pub const ALL: [Self; 5] = [
        Self::Squared,
        Self::SquaredShared,
        Self::CrossEntropy,
        Self::CrossEntropyTuned,
        Self::CrossEntropyShared,
    ];

    /// Loss of the curves of a scenario.
    #[must_use]
    pub fn of(scenario: &Scenario) -> Self {
        match (scenario.algorithm.network_with_trained_heads(), scenario.algorithm.linear()) {
            (Some(network), _) if network.tuned => Self::CrossEntropyTuned,
            (Some(network), _) if network.method.evaluated_model() == SHARED_NETWORK => {
                Self::CrossEntropyShared
            }
            (Some(_), _) => Self::CrossEntropy,
            (None, Some(LinearMethod::FedAvg(_) | LinearMethod::Pooled(_))) => Self::SquaredShared,
            (None, _) => Self::Squared,
        }
    }

    /// Title of the axis: the model, the loss and its unit.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Squared => "training loss, heads refitted: 1/(2m) |residual|²",
            Self::SquaredShared => "training loss of the shared model: 1/(2m) |residual|²",
            Self::CrossEntropy => "training loss of personal networks: cross-entropy in nats",
            Self::CrossEntropyTuned => "training loss, heads fine-tuned: cross-entropy in nats",
            Self::CrossEntropyShared => "training loss of the shared network: cross-entropy in nats",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Squared => "loss",
            Self::SquaredShared => "loss-shared-model",
            Self::CrossEntropy => "cross-entropy",
            Self::CrossEntropyTuned => "cross-entropy-tuned",
            Self::CrossEntropyShared => "cross-entropy-shared-network",
        }
    }
}

/// Metric on the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Distance from the true representation, on a logarithmic axis.
    Distance,
    /// Accuracy of the scored models, on a linear axis.
    Accuracy,
    /// Accuracy of new clients, on a linear axis.
    AccuracyNewClients,
    /// Accuracy of the shared linear model, on a linear axis.
    AccuracyGlobal,
    /// Training loss of one kind, on a logarithmic axis.
    Loss(Loss),
    /// Test error, on a logarithmic axis.
    TestMse,
    /// Test error of new clients, on a logarithmic axis.
    TestMseNewClients,
}

impl Metric {
    /// Metrics that the series may have, in the order of a report, with one entry for each loss.
    #[must_use]
    pub fn of(series: &[Series]) -> Vec<Self> {
        let losses = Loss::ALL.into_iter().filter(|loss| series.iter().any(|entry| entry.loss == *loss));
        let first =
            [Self::Distance, Self::Accuracy, Self::AccuracyNewClients, Self::AccuracyGlobal].into_iter();
        first.chain(losses.map(Self::Loss)).chain([Self::TestMse, Self::TestMseNewClients]).collect()
    }

    /// Title of the vertical axis, with the unit, and with a mark if the axis is logarithmic.
    #[must_use]
    pub fn title(self) -> String {
        let title = match self {
            Self::Distance => "distance to the true representation: sine of the largest angle",
            Self::Accuracy => "accuracy on test samples, mean over clients (fraction)",
            Self::AccuracyNewClients => "accuracy of new clients that join after this round, mean (fraction)",
            Self::AccuracyGlobal => "accuracy of the one shared model, mean over clients (fraction)",
            Self::Loss(loss) => loss.title(),
            Self::TestMse => "mean squared error on test samples, mean over clients",
            Self::TestMseNewClients => "mean squared error of new clients that join after this round",
        };
        let mark = if self.is_logarithmic() { " (log scale)" } else { "" };
        format!("{title}{mark}")
    }

    /// Short name, for file names.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Distance => "distance",
            Self::Accuracy => "accuracy",
            Self::AccuracyNewClients => "accuracy-new-clients",
            Self::AccuracyGlobal => "accuracy-shared-model",
            Self::Loss(loss) => loss.name(),
            Self::TestMse => "test-error",
            Self::TestMseNewClients => "test-error-new-clients",
        }
    }

    /// Value of the metric; `None` if the series does not have it or it cannot be drawn on the metric's axis.
    pub(super) fn value(self, series: &Series, scores: &Scores) -> Option<f64> {
        let value = match self {
            Self::Distance => scores.distance,
            Self::Loss(loss) => scores.loss.filter(|_| series.loss == loss),
            Self::Accuracy => scores.accuracy,
            Self::AccuracyNewClients => scores.accuracy_new_clients,
            Self::AccuracyGlobal => scores.accuracy_global,
            Self::TestMse => scores.test_mse,
            Self::TestMseNewClients => scores.test_mse_new_clients,
        };
        value.filter(|value| value.is_finite() && (!self.is_logarithmic() || *value > 0.0))
    }

    pub(super) const fn is_logarithmic(self) -> bool {
        !matches!(self, Self::Accuracy | Self::AccuracyNewClients | Self::AccuracyGlobal)
    }
}
