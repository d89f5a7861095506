//! Local training that all baselines share: batches, gradients and steps of gradient descent.

use fedspan_client::memory::{NetworkMemory, NetworkParts, NetworkShape};
use fedspan_client::source::SampleSource;
use fedspan_client::task::{Batches, Usage, add_gradient};
use fedspan_protocol::message::{DeclineReason, Descent, RoundId};

use crate::network::HeapNetwork;

/// Local training of a device in a round. A model is the concatenation of all layers of a network.
pub struct Training<'a> {
    /// Parameters of the gradient descent.
    pub descent: Descent,
    epochs: u16,
    batches: Batches,
    source: &'a mut dyn SampleSource,
    /// Working memory of a network, without parameters.
    memory: HeapNetwork,
    /// Number of samples in the loaded batch.
    size: usize,
}

impl<'a> Training<'a> {
    /// Prepares the training in round `id`, and counts the samples. `seed` determines the order of samples.
    ///
    /// # Errors
    /// See [`Batches::new`].
    pub fn new(
        shape: NetworkShape,
        id: RoundId,
        seed: u64,
        (descent, epochs): (Descent, u16),
        source: &'a mut dyn SampleSource,
    ) -> Result<Self, DeclineReason> {
        let batches = Batches::new(shape, id, seed, descent.batch, source)?;
        Ok(Self { descent, epochs, batches, source, memory: HeapNetwork::scratch(shape), size: 0 })
    }

    /// Number of usable and skipped samples of the round.
    pub fn usage(&self) -> Usage {
        self.batches.usage()
    }

    /// Loads the next batch of the epoch. Returns false at the end of the epoch; the previous batch then
    /// remains loaded.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails.
    pub fn next_batch(&mut self) -> Result<bool, DeclineReason> {
        let count = self.batches.next(&mut self.memory.parts(), self.source)?;
        if count > 0 {
            self.size = count;
        }
        Ok(count > 0)
    }

    /// Calls `step` for each batch of all epochs and returns the number of calls. `step` may load further
    /// batches.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails, and errors of `step`.
    pub fn each_batch(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<(), DeclineReason>,
    ) -> Result<u32, DeclineReason> {
        let mut steps = 0;
        for _ in 0..self.epochs {
            self.batches.begin_epoch();
            while self.next_batch()? {
                step(self)?;
                steps += 1;
            }
        }
        Ok(steps)
    }

    /// Computes the gradient of the mean loss of the loaded batch at `model`.
    ///
    /// # Errors
    /// [`DeclineReason::UpdateNonFinite`] if the gradient is not finite.
    pub fn gradient(&mut self, model: &mut [f32], gradient: &mut [f32]) -> Result<(), DeclineReason> {
        gradient.fill(0.0);
        let batch_size = self.size;
        self.add_gradient(model, batch_size, gradient)
    }

    /// Adds the contribution of the loaded batch to the gradient of the mean loss of `sample_count` samples.
    fn add_gradient(
        &mut self,
        model: &mut [f32],
        sample_count: usize,
        sums: &mut [f32],
    ) -> Result<(), DeclineReason> {
        let parts = self.memory.parts();
        let mut parts = NetworkParts { parameters: model, ..parts };
        #[allow(clippy::cast_precision_loss, reason = "samples of a device are far below 2^24")]
        let scale = 1.0 / sample_count as f32;
        let finite = add_gradient(&mut parts, self.size, scale, sums);
        if finite { Ok(()) } else { Err(DeclineReason::UpdateNonFinite) }
    }

    /// Computes the gradient of the mean loss of all samples at `model`.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails, [`DeclineReason::UpdateNonFinite`] if the gradient is
    /// not finite.
    pub fn whole_gradient(&mut self, model: &mut [f32]) -> Result<Vec<f32>, DeclineReason> {
        let mut sums = vec![0.0; model.len()];
        let sample_count = usize::try_from(self.usage().samples).unwrap_or(usize::MAX);
        self.batches.begin_epoch();
        while self.next_batch()? {
            self.add_gradient(model, sample_count, &mut sums)?;
        }
        Ok(sums)
    }

    /// Runs stochastic gradient descent from `model` for all epochs and returns the number of steps.
    /// `correct` is called with the model and the gradient before each step, and may modify the gradient.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails, [`DeclineReason::UpdateNonFinite`] if a gradient or the
    /// final model is not finite.
    pub fn descend(
        &mut self,
        model: &mut [f32],
        mut correct: impl FnMut(&[f32], &mut [f32]),
    ) -> Result<u32, DeclineReason> {
        let mut gradient = vec![0.0; model.len()];
        let mut steps = Steps::new(self.descent, model.len());
        let count = self.each_batch(|training| {
            training.gradient(model, &mut gradient)?;
            correct(model, &mut gradient);
            steps.step(model, &gradient);
            Ok(())
        })?;
        check_finite(model)?;
        Ok(count)
    }
}

/// Gradient descent of a model in a round with the arithmetic of the client: `v <- momentum v + g` and
/// `w <- w - step_size v`, where v is initially zero.
pub struct Steps {
    descent: Descent,
    /// Velocity; empty if the momentum is 0.
    velocity: Vec<f32>,
}

impl Steps {
    /// Prepares steps with zero velocity.
    pub fn new(descent: Descent, parameters: usize) -> Self {
        let velocity = if descent.momentum > 0.0 { vec![0.0; parameters] } else { Vec::new() };
        Self { descent, velocity }
    }

    /// Takes one step along `gradient`.
    pub fn step(&mut self, model: &mut [f32], gradient: &[f32]) {
        let Descent { step_size, momentum, .. } = self.descent;
        for (velocity, g) in self.velocity.iter_mut().zip(gradient) {
            *velocity = momentum * *velocity + g;
        }
        let along = if self.velocity.is_empty() { gradient } else { &self.velocity };
        for (w, v) in model.iter_mut().zip(along) {
            *w -= step_size * v;
        }
    }
}

/// Adds the gradient of `pull / 2 |model - anchor|^2`: `gradient += pull (model - anchor)`.
pub fn add_proximal_term(pull: f32, model: &[f32], anchor: &[f32], gradient: &mut [f32]) {
    for ((g, w), a) in gradient.iter_mut().zip(model).zip(anchor) {
        *g += pull * (w - a);
    }
}

/// Checks that training has not diverged.
///
/// # Errors
/// [`DeclineReason::UpdateNonFinite`] if a value is not finite.
pub fn check_finite(values: &[f32]) -> Result<(), DeclineReason> {
    if values.iter().all(|value| value.is_finite()) { Ok(()) } else { Err(DeclineReason::UpdateNonFinite) }
}
