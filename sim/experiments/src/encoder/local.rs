//! Local training of an adapter: steps of AdamW on the sentences of one client.

use std::ops::Range;

use fedspan_adapters::files::RoundKind;
use fedspan_engine::random::{Purpose, stream};

use super::sentences::Sentence;
use super::{Adam, Adapter, Batch, Model};

/// Settings of local training. The optimiser starts from zero moments in every round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalTraining {
    /// Number of optimiser steps in a round.
    pub steps: usize,
    /// Number of sentences in a step. A client with fewer sentences uses all of its sentences in each step.
    pub batch: usize,
    /// Step size of AdamW.
    pub step_size: f32,
    /// Weight decay of AdamW. Each step multiplies the trained values by `1 - step_size * decay`.
    pub decay: f32,
}

/// Input of the local training of one client in one round.
#[derive(Clone, Copy, Debug)]
pub struct ClientRound<'a> {
    /// Sentences of the client.
    pub sentences: &'a [Sentence],
    /// Kind of the round, which determines the trained tensors. The other tensors do not change.
    pub round: RoundKind,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the round and index of the client.
    pub place: (u32, u32),
}

impl LocalTraining {
    /// Trains the adapter in place. Returns the mean over all steps of the loss before the step, in nats.
    pub fn train(&self, model: &Model, adapter: &mut Adapter, client_round: ClientRound<'_>) -> f64 {
        let ClientRound { sentences, round, seed, place } = client_round;
        let index = u64::from(place.0) << 32 | u64::from(place.1);
        let mut random = stream(seed, Purpose::Device, index);
        let trained = trained(adapter, round);
        let mut adam = Adam::new(adapter.values.len(), self.step_size, self.decay);
        let mut gradient = vec![0.0; adapter.values.len()];
        let numbers: Vec<usize> = (0..sentences.len()).collect();
        let mut remaining: Vec<usize> = Vec::new();
        let mut sum = 0.0;
        for _ in 0..self.steps {
            // Sentences are drawn without replacement. If too few remain for a batch, a new pass over all
            // sentences begins.
            if remaining.len() < self.batch.min(numbers.len()) {
                remaining = random.choose(&numbers, numbers.len());
            }
            let batch_indices = remaining.split_off(remaining.len().saturating_sub(self.batch));
            let batch_indices = batch_indices.iter().filter_map(|number| sentences.get(*number));
            let batch =
                Batch::from_sentences(batch_indices.map(|sentence| (&*sentence.tokens, sentence.label)));
            sum += model.gradient(adapter, &batch, &mut gradient);
            adam.step(&mut adapter.values, &gradient, &trained);
        }
        sum / self.steps.max(1) as f64
    }
}

/// Ranges of the adapter's values that a round of this kind trains.
#[must_use]
pub fn trained(adapter: &Adapter, round: RoundKind) -> Vec<Range<usize>> {
    let trained_parts = adapter.parts.iter().filter(|part| !round.freezes(part.role));
    trained_parts.map(|part| part.range.clone()).collect()
}
