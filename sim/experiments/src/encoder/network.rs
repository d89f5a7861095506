//! Complete network of the encoder: embeddings, layers, mean pooling over the tokens of a sentence, and a
//! linear head. The module computes logits, loss and gradient.

use fedspan_client::kernel::dense;
use fedspan_client::pace::Pace;

use super::adapter::{Adapter, CLASSES};
use super::attention::Rows;
use super::layer::{AdaptedLayer, LayerCache};
use super::model::Model;
use super::pointwise::normalize;

/// Batch of tokenised sentences, concatenated without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Tokens of all sentences; each token is less than the vocabulary size.
    pub tokens: Vec<u32>,
    /// Number of tokens of each sentence, from 1 to the number of positions of the model.
    pub lengths: Vec<usize>,
    /// Class of each sentence.
    pub labels: Vec<u8>,
}

impl Batch {
    /// Concatenates sentences with their classes.
    pub fn from_sentences<'a>(sentences: impl IntoIterator<Item = (&'a [u32], u8)>) -> Self {
        let mut batch = Self::default();
        for (tokens, label) in sentences {
            batch.tokens.extend_from_slice(tokens);
            batch.lengths.push(tokens.len());
            batch.labels.push(label);
        }
        batch
    }
}

impl Model {
    /// Computes the logits of each sentence, n x 2 for n sentences.
    #[must_use]
    pub fn logits(&self, adapter: &Adapter, batch: &Batch) -> Vec<f32> {
        let mut x = self.embed(batch);
        for number in 0..self.layers.len() {
            x = self.adapted_layer(adapter, batch, number).forward(x, false).0;
        }
        compute_logits(adapter, &mean_pool(&x, batch, self.shape.hidden))
    }

    /// Returns the mean cross-entropy of a batch, in nats, and writes the gradient with respect to the
    /// adapter's values to `gradient`, which has the same length. Returns NaN if the logits are not finite.
    pub fn gradient(&self, adapter: &Adapter, batch: &Batch, gradient: &mut [f32]) -> f64 {
        let d = self.shape.hidden;
        let mut x = self.embed(batch);
        let mut caches: Vec<LayerCache> = Vec::with_capacity(self.layers.len());
        for number in 0..self.layers.len() {
            let (out, cache) = self.adapted_layer(adapter, batch, number).forward(x, true);
            x = out;
            caches.push(cache);
        }
        let pooled = mean_pool(&x, batch, d);
        let mut logits = compute_logits(adapter, &pooled);
        let loss = loss(&logits, &batch.labels);
        let scale = 1.0 / batch.labels.len().max(1) as f32;
        if !dense::softmax_errors(&mut logits, &batch.labels, scale, Pace::NONE) {
            return f64::NAN;
        }
        gradient.fill(0.0);
        let [weight, bias] = adapter.head();
        dense::add_product_gradient(&logits, &pooled, d, &mut gradient[weight.clone()], Pace::NONE);
        for row in logits.chunks_exact(CLASSES) {
            gradient[bias.clone()].iter_mut().zip(row).for_each(|(sum, error)| *sum += error);
        }
        let mut means = vec![0.0; pooled.len()];
        dense::add_product(&logits, &adapter.values[weight], d, &mut means, Pace::NONE);
        let mut errors = Vec::with_capacity(x.len());
        for (mean, length) in means.chunks_exact(d).zip(&batch.lengths) {
            let share = 1.0 / *length as f32;
            for _ in 0..*length {
                errors.extend(mean.iter().map(|error| error * share));
            }
        }
        for (number, cache) in caches.iter().enumerate().rev() {
            errors = self.adapted_layer(adapter, batch, number).backward(errors, cache, gradient);
        }
        loss
    }

    /// Layer `number` with its adapters, for the layout of `batch`.
    fn adapted_layer<'a>(
        &'a self,
        adapter: &'a Adapter,
        batch: &'a Batch,
        number: usize,
    ) -> AdaptedLayer<'a> {
        let rows = Rows { lengths: &batch.lengths, hidden: self.shape.hidden, head: self.shape.head() };
        AdaptedLayer { layer: &self.layers[number], adapter, number, rows, epsilon: self.shape.epsilon }
    }

    /// Computes the normalised sum of the token and position embeddings of each token, n x d for n tokens.
    fn embed(&self, batch: &Batch) -> Vec<f32> {
        let d = self.shape.hidden;
        let mut x = Vec::with_capacity(batch.tokens.len() * d);
        let mut tokens = batch.tokens.iter();
        for length in &batch.lengths {
            for (token, position) in
                tokens.by_ref().take(*length).zip(self.position_embeddings.chunks_exact(d))
            {
                let embedding = &self.token_embeddings[*token as usize * d..][..d];
                x.extend(embedding.iter().zip(position).map(|(embedding, position)| embedding + position));
            }
        }
        normalize(&mut x, &self.norm, self.shape.epsilon);
        x
    }
}

/// Mean over the tokens of each sentence, one row of d features for each sentence.
fn mean_pool(x: &[f32], batch: &Batch, d: usize) -> Vec<f32> {
    let mut rows = x.chunks_exact(d);
    let mut means = vec![0.0; batch.lengths.len() * d];
    for (mean, length) in means.chunks_exact_mut(d).zip(&batch.lengths) {
        for row in rows.by_ref().take(*length) {
            mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        mean.iter_mut().for_each(|sum| *sum /= *length as f32);
    }
    means
}

/// Computes the logits (n x 2) from the pooled features (n x d).
fn compute_logits(adapter: &Adapter, pooled: &[f32]) -> Vec<f32> {
    let [weight, bias] = adapter.head();
    let mut logits = vec![0.0; pooled.len() / adapter.hidden * CLASSES];
    dense::backward_product(pooled, &adapter.values[weight], adapter.hidden, &mut logits, Pace::NONE);
    for row in logits.chunks_exact_mut(CLASSES) {
        row.iter_mut().zip(&adapter.values[bias.clone()]).for_each(|(logit, bias)| *logit += bias);
    }
    logits
}

/// Mean cross-entropy of logits (n x 2), in nats.
#[must_use]
pub fn loss(logits: &[f32], labels: &[u8]) -> f64 {
    let rows = logits.chunks_exact(CLASSES).zip(labels);
    let sum: f64 = rows.map(|(logits, label)| dense::cross_entropy(logits, usize::from(*label))).sum();
    sum / labels.len().max(1) as f64
}
