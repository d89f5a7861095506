//! What all baselines do with a round's samples: batches, gradients, steps.

use fedspan_client::memory::{NetworkMemory, NetworkParts, NetworkShape};
use fedspan_client::source::SampleSource;
use fedspan_client::task::{Batches, Usage, add_gradient};
use fedspan_protocol::message::{DeclineReason, Descent, RoundId};

use crate::network::HeapNetwork;

/// The training of one device in one round. Models are all layers of a network, one after the other.
pub struct Training<'a> {
    /// The steps.
    pub descent: Descent,
    epochs: u16,
    batches: Batches,
    source: &'a mut dyn SampleSource,
    /// Its parameters are nobody's; only its working memory is used.
    memory: HeapNetwork,
    /// Samples of the batch in memory.
    size: usize,
}

impl<'a> Training<'a> {
    /// Counts the samples of round `id` of a device whose order of samples has this seed.
    ///
    /// # Errors
    /// Those of [`Batches::new`].
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

    /// What can be used of the round's samples.
    pub fn usage(&self) -> Usage {
        self.batches.usage()
    }

    /// Takes the epoch's next batch into memory. False at its end; the batch before stays in memory then.
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

    /// Lets `step` see each batch of all epochs, in memory, and returns how many these were. It may take more of them.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails, and those of `step`.
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

    /// The gradient of the mean loss of the batch in memory, at `model`, into `gradient`.
    ///
    /// # Errors
    /// [`DeclineReason::UpdateNonFinite`] if it is not finite.
    pub fn gradient(&mut self, model: &mut [f32], gradient: &mut [f32]) -> Result<(), DeclineReason> {
        gradient.fill(0.0);
        let all = self.size;
        self.add_gradient(model, all, gradient)
    }

    /// Adds the batch's part of the gradient of the mean loss of `all` samples.
    fn add_gradient(&mut self, model: &mut [f32], all: usize, sums: &mut [f32]) -> Result<(), DeclineReason> {
        let parts = self.memory.parts();
        let mut parts = NetworkParts { parameters: model, ..parts };
        #[allow(clippy::cast_precision_loss, reason = "samples of a device are far below 2^24")]
        let scale = 1.0 / all as f32;
        let finite = add_gradient(&mut parts, self.size, scale, sums);
        if finite { Ok(()) } else { Err(DeclineReason::UpdateNonFinite) }
    }

    /// The gradient of the mean loss of all samples, at `model`.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails, [`DeclineReason::UpdateNonFinite`].
    pub fn whole_gradient(&mut self, model: &mut [f32]) -> Result<Vec<f32>, DeclineReason> {
        let mut sums = vec![0.0; model.len()];
        let all = usize::try_from(self.usage().samples).unwrap_or(usize::MAX);
        self.batches.begin_epoch();
        while self.next_batch()? {
            self.add_gradient(model, all, &mut sums)?;
        }
        Ok(sums)
    }

    /// Stochastic gradient descent from `model`, for all epochs, along what `corrected` makes of a model and its gradient.
    /// Returns how many steps that were.
    ///
    /// # Errors
    /// [`DeclineReason::Device`] if the source fails, [`DeclineReason::UpdateNonFinite`] if the model does not stay finite.
    pub fn descend(
        &mut self,
        model: &mut [f32],
        mut corrected: impl FnMut(&[f32], &mut [f32]),
    ) -> Result<u32, DeclineReason> {
        let mut gradient = vec![0.0; model.len()];
        let mut steps = Steps::new(self.descent, model.len());
        let count = self.each_batch(|training| {
            training.gradient(model, &mut gradient)?;
            corrected(model, &mut gradient);
            steps.take(model, &gradient);
            Ok(())
        })?;
        finite(model)?;
        Ok(count)
    }
}

/// The steps of one model in one round: as the client's own, `v <- momentum v + g` and `w <- w - step_size v`, with v zero
/// at first.
pub struct Steps {
    descent: Descent,
    /// Nothing without momentum.
    velocity: Vec<f32>,
}

impl Steps {
    /// The first.
    pub fn new(descent: Descent, parameters: usize) -> Self {
        let velocity = if descent.momentum > 0.0 { vec![0.0; parameters] } else { Vec::new() };
        Self { descent, velocity }
    }

    /// One step along `gradient`.
    pub fn take(&mut self, model: &mut [f32], gradient: &[f32]) {
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

/// `gradient += pull (model - anchor)`: what `pull / 2 |model - anchor|^2` adds to a loss.
pub fn add_proximal_term(pull: f32, model: &[f32], anchor: &[f32], gradient: &mut [f32]) {
    for ((g, w), a) in gradient.iter_mut().zip(model).zip(anchor) {
        *g += pull * (w - a);
    }
}

/// Whether nothing has diverged.
///
/// # Errors
/// [`DeclineReason::UpdateNonFinite`] if a value is not finite.
pub fn finite(values: &[f32]) -> Result<(), DeclineReason> {
    if values.iter().all(|value| value.is_finite()) { Ok(()) } else { Err(DeclineReason::UpdateNonFinite) }
}
