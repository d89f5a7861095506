//! Step of an encoder with adapters in the sizes of MiniLM: forward and backward pass of 8 sentences of 64 tokens.

use std::time::Instant;

use fedspan_experiments::encoder::{Adapter, Batch, Dense, Layer, Model, Norm, Shape};
use serde_json::json;

use super::{pseudo_random_values, version};
use crate::benchmarks::side::{Cost, Facts, Setting, Side, Turn};

/// Sizes of all-MiniLM-L6-v2, with fewer words, since only those of the sentences are read.
const SHAPE: Shape = Shape {
    vocabulary: 1000,
    hidden: 384,
    layers: 6,
    heads: 12,
    intermediate: 1536,
    positions: TOKENS,
    types: 1,
    epsilon: 1e-12,
};
/// Number of sentences in a step.
const SENTENCES: usize = 8;
/// Number of tokens of a sentence.
const TOKENS: usize = 64;
/// Rank of the adapters.
const RANK: usize = 8;
/// Magnitude of the adapters' values.
const ADAPTER_SCALE: f32 = 0.05;

/// Draws the weights and writes them.
///
/// # Errors
/// A sentence, if a file cannot be written.
pub fn start(setting: &Setting) -> Result<Side, String> {
    let mut drawn = Vec::new();
    let model = draw(&mut drawn);
    let mut adapter = Adapter::zeros(&SHAPE, RANK);
    adapter.values = pseudo_random_values(adapter.values.len(), 1);
    adapter.values.iter_mut().for_each(|value| *value *= ADAPTER_SCALE);
    let tokens: Vec<u32> =
        (0..SENTENCES * TOKENS).map(|index| (index * 577 % SHAPE.vocabulary) as u32).collect();
    let labels = (0..SENTENCES).map(|sentence| u8::from(sentence % 2 == 1)).collect();
    let batch = Batch { tokens, lengths: vec![TOKENS; SENTENCES], labels };
    setting.write("weights.f32", drawn)?;
    setting.write("adapter.f32", adapter.values.iter().copied())?;
    setting.write("tokens.f32", batch.tokens.iter().map(|token| *token as f32))?;
    setting.write_sizes(&json!({ "vocabulary": SHAPE.vocabulary, "hidden": SHAPE.hidden, "layers": SHAPE.layers,
        "heads": SHAPE.heads, "intermediate": SHAPE.intermediate, "tokens": TOKENS, "sentences": SENTENCES, "rank": RANK,
        "epsilon": SHAPE.epsilon, "scale": adapter.scale() }))?;
    let facts = Facts {
        program: version(),
        form: "fixed order of sums, libm".to_owned(),
        dtype: "f32".to_owned(),
        n: format!(
            "{SENTENCES} sentences x {TOKENS} tokens, {} layers of {}, rank {RANK}",
            SHAPE.layers, SHAPE.hidden
        ),
        cost: Some(Cost {
            unit: "steps".to_owned(),
            units: 1.0,
            operations: operations(),
            check: "norm of the gradient".to_owned(),
            ..Cost::default()
        }),
    };
    let mut gradient = vec![0.0; adapter.values.len()];
    let turn = Box::new(move |repeats| {
        let begin = Instant::now();
        for _ in 0..repeats {
            model.gradient(&adapter, &batch, &mut gradient);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let squares = gradient.iter().map(|value| f64::from(*value).powi(2));
        Ok(Turn { seconds, check: squares.sum::<f64>().sqrt() })
    });
    Ok(Side { facts, turn })
}

/// Draws a model, and appends its values to `drawn` in the order in which they are drawn.
fn draw(drawn: &mut Vec<f32>) -> Model {
    let Shape { vocabulary, hidden: d, layers, intermediate, positions, .. } = SHAPE;
    let mut seed = 1;
    let mut values = |count: usize, scale: f32, offset: f32| {
        seed += 1;
        let values: Vec<f32> =
            pseudo_random_values(count, seed).iter().map(|value| offset + scale * value).collect();
        drawn.extend(&values);
        values
    };
    let token_embeddings = values(vocabulary * d, 1.0, 0.0);
    let position_embeddings = values(positions * d, 0.5, 0.0);
    let norm = Norm { weight: values(d, 0.1, 1.0), bias: values(d, 0.1, 0.0) };
    let mut dense = |inputs: usize, outputs: usize| {
        let scale = 1.0 / (inputs as f32).sqrt();
        Dense { layer: values((inputs + 1) * outputs, scale, 0.0), outputs }
    };
    let layer = |_| {
        let [query, key, value, attention_output] = [(); 4].map(|()| dense(d, d));
        let (feed_up, feed_down) = (dense(d, intermediate), dense(intermediate, d));
        // Both normalisations of a layer share their values with that of the embeddings.
        let [attention_norm, output_norm] = [norm.clone(), norm.clone()];
        Layer { query, key, value, attention_output, attention_norm, feed_up, feed_down, output_norm }
    };
    let layers = (0..layers).map(layer).collect();
    Model { shape: SHAPE, token_embeddings, position_embeddings, norm: norm.clone(), layers }
}

/// Returns the number of additions and multiplications of the products of a step. Errors pass backwards through all
/// of them; gradients are needed of the adapters only.
fn operations() -> f64 {
    let [d, intermediate, tokens, rank] =
        [SHAPE.hidden, SHAPE.intermediate, TOKENS, RANK].map(|size| size as f64);
    let dense = 4.0 * d * d + 2.0 * d * intermediate;
    let attention = 2.0 * tokens * d;
    // Backwards, each of the two products of the attention has two factors with errors.
    let frozen = 2.0 * (2.0 * dense + 3.0 * attention);
    let adapters = 2.0 * 3.0 * 2.0 * 2.0 * d * rank;
    (SHAPE.layers * SENTENCES * TOKENS) as f64 * (frozen + adapters)
}
