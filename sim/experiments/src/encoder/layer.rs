//! One layer of the encoder, forward and back.

use fedspan_client::kernel::dense;

use super::adapter::{Adapter, Target};
use super::attention::{Rows, attend, attend_errors};
use super::low_rank::Factors;
use super::model::{Dense, Layer};
use super::pointwise::{Normal, gelu, normalize, normalize_errors};

/// What the way back needs of the way forward.
#[derive(Debug)]
pub struct Kept {
    x: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    /// Of query's and value's adapters, n x r.
    low: [Vec<f32>; 2],
    /// Of attention.
    weights: Vec<f32>,
    attended: Normal,
    slopes: Vec<f32>,
    out: Normal,
}

/// A layer with its adapters.
#[derive(Clone, Copy, Debug)]
pub struct Adapted<'a> {
    /// The frozen weights.
    pub layer: &'a Layer,
    /// Factors of all layers.
    pub adapter: &'a Adapter,
    /// Which layer this is.
    pub number: usize,
    /// Where sentences are.
    pub rows: Rows<'a>,
    /// Of the normalisations.
    pub epsilon: f32,
}

impl<'a> Adapted<'a> {
    fn factors(&self, target: Target) -> Factors<'a> {
        let Adapter { rank, hidden, values, .. } = self.adapter;
        let [down, up] = self.adapter.factors(self.number, target);
        Factors {
            down: &values[down],
            up: &values[up],
            rank: *rank,
            hidden: *hidden,
            scale: self.adapter.scale(),
        }
    }

    /// From n x d to n x d. Without `keep` nothing but the result is of use.
    pub fn forward(&self, x: Vec<f32>, keep: bool) -> (Vec<f32>, Kept) {
        let layer = self.layer;
        let mut query = times(&x, &layer.query);
        let key = times(&x, &layer.key);
        let mut value = times(&x, &layer.value);
        let low = [
            self.factors(Target::Query).add(&x, &mut query),
            self.factors(Target::Value).add(&x, &mut value),
        ];
        let (mixed, weights) = attend(self.rows, &query, &key, &value);
        let mut middle = times(&mixed, &layer.attended);
        add(&mut middle, &x);
        let attended = normalize(&mut middle, &layer.attended_norm, self.epsilon);
        let mut wide = times(&middle, &layer.wide);
        let slopes = gelu(&mut wide, keep);
        let mut end = times(&wide, &layer.narrow);
        add(&mut end, &middle);
        let out = normalize(&mut end, &layer.norm, self.epsilon);
        (end, Kept { x, query, key, value, low, weights, attended, slopes, out })
    }

    /// Errors of what came out (n x d) become those of what went in, unless this is the first layer: nothing below it is
    /// trained. Gradients of the factors are added to `gradient`, which is as long as the adapter.
    pub fn back(&self, mut errors: Vec<f32>, kept: &Kept, gradient: &mut [f32]) -> Vec<f32> {
        let layer = self.layer;
        normalize_errors(&mut errors, &kept.out, &layer.norm);
        let mut wide = times_back(&errors, &layer.narrow);
        wide.iter_mut().zip(&kept.slopes).for_each(|(error, slope)| *error *= slope);
        add(&mut errors, &times_back(&wide, &layer.wide));
        normalize_errors(&mut errors, &kept.attended, &layer.attended_norm);
        let mixed = times_back(&errors, &layer.attended);
        let qkv = [&*kept.query, &*kept.key, &*kept.value];
        let [query, key, value] = attend_errors(self.rows, qkv, &kept.weights, &mixed);
        let first = self.number == 0;
        if !first {
            for (part, frozen) in [(&query, &layer.query), (&key, &layer.key), (&value, &layer.value)] {
                add(&mut errors, &times_back(part, frozen));
            }
        }
        let adapted = [(Target::Query, &query, &kept.low[0]), (Target::Value, &value, &kept.low[1])];
        for (target, part, low) in adapted {
            let [down, up] = self.adapter.factors(self.number, target);
            // They lie side by side.
            let (down, up) = gradient[down.start..up.end].split_at_mut(down.len());
            let below = (!first).then_some(&mut *errors);
            self.factors(target).back(&kept.x, low, part, [down, up], below);
        }
        errors
    }
}

fn times(x: &[f32], dense: &Dense) -> Vec<f32> {
    let inputs = dense.layer.len() / dense.outputs - 1;
    let mut out = vec![0.0; x.len() / inputs * dense.outputs];
    dense::forward(x, &dense.layer, dense.outputs, &mut out);
    out
}

fn times_back(errors: &[f32], dense: &Dense) -> Vec<f32> {
    let inputs = dense.layer.len() / dense.outputs - 1;
    let mut out = vec![0.0; errors.len() / dense.outputs * inputs];
    dense::backward_linear(errors, &dense.layer, dense.outputs, &mut out);
    out
}

fn add(to: &mut [f32], what: &[f32]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += what);
}
