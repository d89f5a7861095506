//! Measurement of the duration of a training step on 8 sentences of 64 tokens; other implementations are
//! measured in the same setting.

use std::time::Instant;

use fedspan_engine::random::{Purpose, stream};
use serde::Serialize;

use super::{Adapter, Batch, Model};

/// Number of sentences in a step.
pub const SENTENCES: usize = 8;

/// Number of tokens of a sentence.
pub const TOKENS: usize = 64;

/// Durations on one thread, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Median duration of a forward pass.
    pub forward_s: f64,
    /// Median duration of a step, which consists of forward pass, loss, and gradients of all trained values.
    pub step_s: f64,
    /// Duration of the shortest step.
    pub least_step_s: f64,
}

/// Measures `steps` steps on random tokens in the calling thread.
#[must_use]
pub fn measure(model: &Model, rank: usize, steps: usize) -> Speed {
    let mut random = stream(1, Purpose::Samples, 0);
    let tokens = TOKENS.min(model.shape.positions);
    let mut batch = Batch::default();
    for sentence in 0..SENTENCES {
        let random_tokens =
            (0..tokens).map(|_| u32::try_from(random.below(model.shape.vocabulary)).unwrap_or(0));
        batch.tokens.extend(random_tokens);
        batch.lengths.push(tokens);
        batch.labels.push(u8::from(sentence % 2 == 1));
    }
    let adapter = Adapter::start(&model.shape, rank, 1);
    let mut gradient = vec![0.0; adapter.values.len()];
    let (mut forward, mut step) = (Vec::new(), Vec::new());
    // The first two steps only warm up the caches; their durations are dropped.
    for number in 0..steps + 2 {
        let began = Instant::now();
        std::hint::black_box(model.logits(&adapter, &batch));
        let forward_end = Instant::now();
        std::hint::black_box(model.gradient(&adapter, &batch, &mut gradient));
        if number >= 2 {
            forward.push((forward_end - began).as_secs_f64());
            step.push(forward_end.elapsed().as_secs_f64());
        }
    }
    forward.sort_by(f64::total_cmp);
    step.sort_by(f64::total_cmp);
    let median = |times: &[f64]| times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    Speed {
        forward_s: median(&forward),
        step_s: median(&step),
        least_step_s: step.first().copied().unwrap_or(f64::NAN),
    }
}
