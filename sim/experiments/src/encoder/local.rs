//! Local training: steps of AdamW on a client's own sentences.

use std::ops::Range;

use fedspan_adapters::files::RoundKind;
use fedspan_engine::random::{Purpose, stream};

use super::sentences::Sentence;
use super::{Adam, Adapter, Batch, Model};

/// Settings of local training. The optimiser's moments start at zero in every round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalTraining {
    /// Steps in a round.
    pub steps: usize,
    /// Sentences in a step; fewer if the client has fewer.
    pub batch: usize,
    /// Step size of AdamW.
    pub step_size: f32,
    /// Weight decay of AdamW: weights shrink by `step_size decay` in each step.
    pub decay: f32,
}

/// One client in one round.
#[derive(Clone, Copy, Debug)]
pub struct ClientRound<'a> {
    /// Sentences of the client.
    pub sentences: &'a [Sentence],
    /// Kind of the round, which decides the trained tensors; frozen ones keep their bits.
    pub round: RoundKind,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the round and index of the client.
    pub place: (u32, u32),
}

impl LocalTraining {
    /// Trains the adapter. Returns the mean loss over the steps, each computed before its step.
    pub fn train(&self, model: &Model, adapter: &mut Adapter, client_round: ClientRound<'_>) -> f64 {
        let ClientRound { sentences, round, seed, place } = client_round;
        let index = u64::from(place.0) << 32 | u64::from(place.1);
        let mut random = stream(seed, Purpose::Device, index);
        let trained = trained(adapter, round);
        let mut adam = Adam::new(adapter.values.len(), self.step_size, self.decay);
        let mut gradient = vec![0.0; adapter.values.len()];
        let numbers: Vec<usize> = (0..sentences.len()).collect();
        let mut left: Vec<usize> = Vec::new();
        let mut sum = 0.0;
        for _ in 0..self.steps {
            // Draw every sentence once before one repeats.
            if left.len() < self.batch.min(numbers.len()) {
                left = random.choose(&numbers, numbers.len());
            }
            let drawn = left.split_off(left.len().saturating_sub(self.batch));
            let drawn = drawn.iter().filter_map(|number| sentences.get(*number));
            let batch = Batch::from_sentences(drawn.map(|sentence| (&*sentence.tokens, sentence.label)));
            sum += model.gradient(adapter, &batch, &mut gradient);
            adam.step(&mut adapter.values, &gradient, &trained);
        }
        sum / self.steps.max(1) as f64
    }
}

/// Ranges of the values that this kind of round trains.
#[must_use]
pub fn trained(adapter: &Adapter, round: RoundKind) -> Vec<Range<usize>> {
    let free = adapter.parts.iter().filter(|part| !round.freezes(part.role));
    free.map(|part| part.range.clone()).collect()
}
