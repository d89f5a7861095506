//! Self-attention within each sentence (Vaswani et al. 2017): forward and backward pass.
//!
//! Sentences of a batch are concatenated without padding. Attention is computed per sentence, so no mask is
//! needed.

use fedspan_client::kernel::dense;
use fedspan_client::pace::Pace;

use super::pointwise::{softmax, softmax_errors};

/// Layout of a batch: lengths of its sentences, which have n tokens together, and sizes of the attention
/// heads.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Number of tokens of each sentence.
    pub lengths: &'a [usize],
    /// Number of features of a token over all heads, d.
    pub hidden: usize,
    /// Number of features of one head.
    pub head: usize,
}

impl Rows<'_> {
    /// First token and number of tokens of each sentence.
    fn sentences(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.lengths.iter().scan(0, |next_start, length| {
            let first = *next_start;
            *next_start += length;
            Some((first, *length))
        })
    }

    /// Index of the first feature of each head.
    fn heads(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.hidden).step_by(self.head)
    }

    /// Copies the features of one head for the t tokens of one sentence into `into` (t x head, row-major).
    fn take(&self, from: &[f32], (first, count): (usize, usize), head: usize, into: &mut Vec<f32>) {
        into.clear();
        for row in from.chunks_exact(self.hidden).skip(first).take(count) {
            into.extend_from_slice(&row[head..head + self.head]);
        }
    }

    /// Copies the features of one head and one sentence back into all features; the inverse of
    /// [`Self::take`].
    fn put(&self, from: &[f32], (first, count): (usize, usize), head: usize, into: &mut [f32]) {
        let rows = into.chunks_exact_mut(self.hidden).skip(first).take(count);
        for (row, from) in rows.zip(from.chunks_exact(self.head)) {
            row[head..head + self.head].copy_from_slice(from);
        }
    }

    /// Factor of the products of queries and keys.
    fn scale(&self) -> f32 {
        1.0 / (self.head as f32).sqrt()
    }
}

/// Computes the attention output of every token (n x d). Also returns the attention weights, which are t x t
/// for each sentence of t tokens and each head.
pub fn attend(rows: Rows<'_>, query: &[f32], key: &[f32], value: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let mut out = vec![0.0; query.len()];
    let mut weights = Vec::new();
    let [mut q, mut k, mut v, mut mixed] = [const { Vec::new() }; 4];
    for sentence in rows.sentences() {
        let t = sentence.1;
        for head in rows.heads() {
            rows.take(query, sentence, head, &mut q);
            rows.take(key, sentence, head, &mut k);
            rows.take(value, sentence, head, &mut v);
            q.iter_mut().for_each(|value| *value *= rows.scale());
            let begin = weights.len();
            weights.resize(begin + t * t, 0.0);
            let scores = &mut weights[begin..];
            dense::backward_product(&q, &k, rows.head, scores, Pace::NONE);
            softmax(scores, t);
            mixed.clear();
            mixed.resize(t * rows.head, 0.0);
            dense::add_product(scores, &v, rows.head, &mut mixed, Pace::NONE);
            rows.put(&mixed, sentence, head, &mut out);
        }
    }
    (out, weights)
}

/// Backward pass: computes the gradients with respect to query, key and value (n x d each) from the gradient
/// with respect to the output of [`attend`].
pub fn attend_errors(
    rows: Rows<'_>,
    [query, key, value]: [&[f32]; 3],
    weights: &[f32],
    errors: &[f32],
) -> [Vec<f32>; 3] {
    let mut out = [const { Vec::new() }; 3].map(|_: Vec<f32>| vec![0.0; errors.len()]);
    let [mut q, mut k, mut v, mut e, mut scores, mut transposed] = [const { Vec::new() }; 6];
    let mut begin = 0;
    let zeroed = |values: &mut Vec<f32>, length: usize| {
        values.clear();
        values.resize(length, 0.0);
    };
    for sentence in rows.sentences() {
        let t = sentence.1;
        for head in rows.heads() {
            rows.take(query, sentence, head, &mut q);
            rows.take(key, sentence, head, &mut k);
            rows.take(value, sentence, head, &mut v);
            rows.take(errors, sentence, head, &mut e);
            let weights = &weights[begin..begin + t * t];
            begin += t * t;
            zeroed(&mut scores, t * t);
            dense::backward_product(&e, &v, rows.head, &mut scores, Pace::NONE);
            softmax_errors(&mut scores, weights, t);
            scores.iter_mut().for_each(|error| *error *= rows.scale());
            zeroed(&mut transposed, t * rows.head);
            dense::add_product(&scores, &k, rows.head, &mut transposed, Pace::NONE);
            rows.put(&transposed, sentence, head, &mut out[0]);
            zeroed(&mut transposed, t * rows.head);
            dense::add_product_gradient(&scores, &q, rows.head, &mut transposed, Pace::NONE);
            rows.put(&transposed, sentence, head, &mut out[1]);
            zeroed(&mut transposed, t * rows.head);
            dense::add_product_gradient(weights, &e, rows.head, &mut transposed, Pace::NONE);
            rows.put(&transposed, sentence, head, &mut out[2]);
        }
    }
    out
}
