//! Steps that the devices of an open round propose, and the step that the model takes at its end.

use super::model_motion::ModelPoint;
use super::{ClosedRound, UpdateArrival, UploadLayout};
use crate::linalg::Matrix;

/// Observations of the open round.
#[derive(Clone, Debug, Default)]
pub struct RoundSteps {
    /// Number of invited devices.
    pub invited: usize,
    /// Number of updates so far.
    pub answers: usize,
    /// Samples of all updates so far.
    pub samples: f64,
    /// Model before the round.
    pub origin: Option<ModelPoint>,
    /// Whether the devices upload layers of a network.
    is_of_layers: bool,
    /// Number of steps read from the updates.
    pub steps: usize,
    /// Sum of the steps.
    sum: Option<Matrix>,
    /// Sum of the squared lengths of the steps.
    squares: f64,
}

/// Step of the model at the end of a round.
#[derive(Clone, Debug)]
pub struct ModelStep {
    /// Model before the round.
    pub origin: ModelPoint,
    /// Model after the round.
    pub model_after: ModelPoint,
    /// Whether the model is a network, whose steps are gradients of an objective.
    pub is_of_layers: bool,
    /// Step of the model.
    pub step: Matrix,
    /// Number of devices' steps.
    pub count: f64,
    /// Mean of the devices' steps.
    pub mean: Matrix,
    /// Sum of the squared lengths of the devices' steps.
    squares: f64,
}

impl RoundSteps {
    /// Begins a round with `invited` devices.
    pub fn open(&mut self, invited: usize) {
        *self = Self { invited, ..Self::default() };
    }

    /// Observes the next update of the open round; returns its step, if it has one.
    pub fn counted(&mut self, answer: &UpdateArrival<'_>) -> Option<Matrix> {
        self.samples = answer.samples as f64;
        self.answers += 1;
        let role = answer.tensors.first()?.role;
        if self.answers == 1 {
            self.is_of_layers = matches!(answer.layout, UploadLayout::Layers { .. });
            self.origin = ModelPoint::new(answer.model, answer.layout, role);
        }
        let step = self.origin.as_ref()?.step_of(answer.tensors, answer.layout)?;
        self.steps += 1;
        self.squares += step.norm_squared();
        match &mut self.sum {
            Some(steps) => *steps += &step,
            None => self.sum = Some(step.clone()),
        }
        Some(step)
    }

    /// Mean of the steps so far.
    pub fn mean(&self) -> Option<Matrix> {
        self.sum.as_ref().map(|sum| sum / self.steps as f64)
    }

    /// Whether every invited device took part.
    pub fn is_complete(&self) -> bool {
        self.answers == self.invited
    }

    /// Ends the round; returns the step of the model, if it can be measured.
    pub fn close(&mut self, closed: &ClosedRound<'_>) -> Option<ModelStep> {
        let count = self.steps as f64;
        let sum = self.sum.take()?;
        let origin = self.origin.take()?;
        let model_after = origin.with_model(closed.model)?;
        let step = origin.step_to(&model_after)?;
        let (is_of_layers, mean, squares) = (self.is_of_layers, sum / count, self.squares);
        Some(ModelStep { origin, model_after, is_of_layers, step, count, mean, squares })
    }
}

impl ModelStep {
    /// Adds the step of the next round of a cycle, which trains other values of the model.
    pub fn extend(&mut self, next: Self) {
        let Self { origin: _, model_after, is_of_layers: _, step, count, mean, squares } = next;
        self.model_after = model_after;
        self.step += step;
        // The numbers differ if a round was short of updates; the variance is one of a mean of the fewest.
        self.squares = self.squares / self.count + squares / count;
        self.count = self.count.min(count);
        self.squares *= self.count;
        self.mean += mean;
    }

    /// Creates the step of a model for which a single device proposed this step.
    #[cfg(test)]
    pub fn new(origin: ModelPoint, model_after: ModelPoint, step: Matrix) -> Self {
        let (mean, squares) = (step.clone(), step.norm_squared());
        Self { origin, model_after, is_of_layers: false, step, count: 1.0, mean, squares }
    }

    /// The same step of a network.
    #[cfg(test)]
    pub fn of_layers(self) -> Self {
        Self { is_of_layers: true, ..self }
    }

    /// The same step, as the mean of this number of devices' steps.
    #[cfg(test)]
    pub fn with_count(self, count: f64) -> Self {
        Self { count, ..self }
    }

    /// Length of the model's step along the devices' mean step, as a multiple of the latter. `None` if the
    /// mean step is 0 or not finite.
    pub fn scale(&self) -> Option<f64> {
        let length = self.mean.norm_squared();
        (length > 0.0 && length.is_finite()).then(|| self.mean.dot(&self.step) / length)
    }

    /// Variance between the devices' steps; 0 for a single device.
    pub fn variance(&self) -> f64 {
        let n = self.count;
        if n > 1.0 { (self.squares / n - self.mean.norm_squared()).max(0.0) * n / (n - 1.0) } else { 0.0 }
    }
}
