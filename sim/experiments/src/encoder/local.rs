//! What a client does in a round: some steps of AdamW on its own sentences.

use std::ops::Range;

use fedspan_adapters::files::RoundKind;
use fedspan_engine::random::{Purpose, stream};

use super::sentences::Sentence;
use super::{Adam, Adapter, Batch, Model};

/// How a client trains. The optimiser's moments begin at zero in every round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// Steps in a round.
    pub steps: usize,
    /// Sentences in a step, fewer where a client has fewer.
    pub batch: usize,
    /// Of AdamW.
    pub step_size: f32,
    /// Of AdamW: weights shrink by `step_size decay` a step.
    pub decay: f32,
}

/// One client in one round.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// What it has.
    pub sentences: &'a [Sentence],
    /// What is trained; what it freezes stays, bit by bit.
    pub round: RoundKind,
    /// Of the run.
    pub seed: u64,
    /// The number of the round, and of the client.
    pub place: (u32, u32),
}

impl Local {
    /// Trains what it is given. Returns the mean loss over the steps, each before it was taken.
    pub fn train(&self, model: &Model, adapter: &mut Adapter, visit: Visit<'_>) -> f64 {
        let Visit { sentences, round, seed, place } = visit;
        let index = u64::from(place.0) << 32 | u64::from(place.1);
        let mut random = stream(seed, Purpose::Device, index);
        let trained = trained(adapter, round);
        let mut adam = Adam::new(adapter.values.len(), self.step_size, self.decay);
        let mut gradient = vec![0.0; adapter.values.len()];
        let numbers: Vec<usize> = (0..sentences.len()).collect();
        let mut left: Vec<usize> = Vec::new();
        let mut sum = 0.0;
        for _ in 0..self.steps {
            // Every sentence once before one comes again.
            if left.len() < self.batch.min(numbers.len()) {
                left = random.choose(&numbers, numbers.len());
            }
            let drawn = left.split_off(left.len().saturating_sub(self.batch));
            let drawn = drawn.iter().filter_map(|number| sentences.get(*number));
            let batch = Batch::of(drawn.map(|sentence| (&*sentence.tokens, sentence.label)));
            sum += model.gradient(adapter, &batch, &mut gradient);
            adam.step(&mut adapter.values, &gradient, &trained);
        }
        sum / self.steps.max(1) as f64
    }
}

/// Where what this round trains lies: what is not frozen.
#[must_use]
pub fn trained(adapter: &Adapter, round: RoundKind) -> Vec<Range<usize>> {
    let free = adapter.parts.iter().filter(|part| !round.freezes(part.role));
    free.map(|part| part.range.clone()).collect()
}
