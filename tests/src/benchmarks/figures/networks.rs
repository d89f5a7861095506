//! Update of one client that trains a network: from the broadcast weights, an epoch of SGD with momentum over its images in
//! batches, by the layers of `fedspan_client::kernel`.

use std::time::Instant;

use fedspan_client::kernel::Layer;
use fedspan_client::kernel::convolution::{Convolution, MaxPooling};
use fedspan_client::kernel::dense::{cross_entropy, relu, softmax_errors};
use fedspan_client::kernel::layer::{ForwardPass, Gradient, LayerBuffers, Step};
use fedspan_client::kernel::recurrent::Lstm;
use fedspan_client::pace::Pace;
use serde_json::json;

use super::{pseudo_random_values, version};
use crate::benchmarks::side::{Cost, Facts, Setting, Side, Turn};

/// Height and width of an image; for an LSTM the number of steps, and of values in a step.
const SIDE: usize = 28;
/// Number of images of a client.
const IMAGES: usize = 80;
/// Number of images in a batch.
const BATCH: usize = 10;
/// Number of classes.
const CLASSES: usize = 10;
/// Step size of SGD.
const STEP_SIZE: f32 = 0.1;
/// Momentum of SGD.
const MOMENTUM: f32 = 0.5;

/// Prepares the network of handwritten digits, 784-128-64-10.
///
/// # Errors
/// A sentence, if a file cannot be written.
pub fn mlp(setting: &Setting) -> Result<Side, String> {
    let layers = [dense(SIDE * SIDE, 128), dense(128, 64), dense(64, CLASSES)];
    start("mlp", &layers, &json!({ "widths": [SIDE * SIDE, 128, 64, CLASSES] }), setting)
}

/// Prepares LeNet-5 as the papers of FedRep and SRPFL have it: two layers of 64 filters of 5 x 5, each pooled by two, and
/// dense layers of 120, 64 and 10.
///
/// # Errors
/// A sentence, if a file cannot be written.
pub fn lenet5(setting: &Setting) -> Result<Side, String> {
    const FILTERS: usize = 64;
    let filters = |side: usize, channels: usize| {
        let convolution = Convolution {
            height: side,
            width: side,
            channels,
            rows: 5,
            columns: 5,
            stride: 1,
            filters: FILTERS,
        };
        let (height, width) = (convolution.out_height(), convolution.out_width());
        let pooling = MaxPooling { height, width, channels: FILTERS, rows: 2, columns: 2 };
        (Layer::Filters { convolution, pooling }, pooling.out_height())
    };
    let (first, side) = filters(SIDE, 1);
    let (second, side) = filters(side, FILTERS);
    let values = side * side * FILTERS;
    let layers = [first, second, dense(values, 120), dense(120, 64), dense(64, CLASSES)];
    start("lenet5", &layers, &json!({ "filters": FILTERS, "widths": [values, 120, 64, CLASSES] }), setting)
}

/// Prepares an LSTM of 64 cells that reads an image row by row, and a dense layer.
///
/// # Errors
/// A sentence, if a file cannot be written.
pub fn lstm(setting: &Setting) -> Result<Side, String> {
    let lstm = Lstm { steps: SIDE, channels: SIDE, cells: 64 };
    let layers = [Layer::Lstm(lstm), dense(lstm.cells, CLASSES)];
    start("lstm", &layers, &json!({ "cells": lstm.cells, "widths": [lstm.cells, CLASSES] }), setting)
}

const fn dense(inputs: usize, outputs: usize) -> Layer {
    Layer::Dense { inputs, outputs }
}

/// Writes data and initial weights, and makes the side.
fn start(kind: &str, layers: &[Layer], sizes: &serde_json::Value, setting: &Setting) -> Result<Side, String> {
    let mut client = Client::new(layers);
    setting.write("x.f32", client.x.iter().copied())?;
    setting.write("weights.f32", client.broadcast.iter().flatten().copied())?;
    let mut numbers = json!({ "kind": kind, "side": SIDE, "images": IMAGES, "batch": BATCH, "classes": CLASSES,
        "step_size": STEP_SIZE, "momentum": MOMENTUM });
    if let (Some(numbers), Some(sizes)) = (numbers.as_object_mut(), sizes.as_object()) {
        numbers.extend(sizes.clone());
    }
    setting.write_sizes(&numbers)?;
    let parameters: usize = layers.iter().map(Layer::parameters).sum();
    let facts = Facts {
        program: version(),
        form: "the client's kernels".to_owned(),
        dtype: "f32".to_owned(),
        n: format!("{kind} of {parameters} weights, {IMAGES} images of {SIDE} x {SIDE}, batches of {BATCH}"),
        cost: Some(Cost {
            unit: "updates".to_owned(),
            units: 1.0,
            operations: operations(layers),
            // Each step reads weights and velocities.
            bytes: (IMAGES / BATCH * 2 * 4 * parameters) as f64,
            resident: (2 * 4 * parameters) as f64,
            check: "loss".to_owned(),
            ..Cost::default()
        }),
    };
    let turn = Box::new(move |repeats| {
        let begin = Instant::now();
        for _ in 0..repeats {
            if !client.update() {
                return Err("training diverged".to_owned());
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Turn { seconds, check: client.loss() })
    });
    Ok(Side { facts, turn })
}

/// Returns the number of additions and multiplications of an update: two for each weight and input in each direction
/// (none backwards through the first layer, except through the steps of an LSTM), and four for each weight and step.
fn operations(layers: &[Layer]) -> f64 {
    let products = |layer: &Layer| {
        let (rows, columns) = layer.matrix();
        match layer {
            Layer::Filters { convolution, .. } => convolution.positions() * layer.parameters(),
            Layer::Lstm(lstm) => lstm.steps * layer.parameters(),
            _ => (rows + 1) * columns,
        }
    };
    let backwards_through_first = match layers.first() {
        Some(Layer::Lstm(lstm)) => lstm.steps * lstm.cells * lstm.gates(),
        _ => 0,
    };
    let all: usize = layers.iter().map(products).sum();
    let later: usize = layers.iter().skip(1).map(products).sum();
    let parameters: usize = layers.iter().map(Layer::parameters).sum();
    let sample = 4 * all + 2 * (later + backwards_through_first);
    (IMAGES * sample + IMAGES / BATCH * 4 * parameters) as f64
}

/// Weights, data and buffers of a client.
struct Client {
    layers: Vec<Layer>,
    broadcast: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    velocities: Vec<Vec<f32>>,
    activations: Vec<Vec<f32>>,
    saved: Vec<Vec<f32>>,
    pool_indices: Vec<Vec<u8>>,
    /// Errors of the layer's outputs, and of its inputs.
    errors: [Vec<f32>; 2],
    scratch: Vec<f32>,
    x: Vec<f32>,
    classes: Vec<u8>,
}

impl Client {
    fn new(layers: &[Layer]) -> Self {
        let each =
            |values: &dyn Fn(&Layer) -> usize| layers.iter().map(|layer| vec![0.0; values(layer)]).collect();
        let weights = |(depth, layer): (u32, &Layer)| {
            let (rows, columns) = layer.matrix();
            let scale = 1.0 / (rows as f32).sqrt();
            let mut weights = pseudo_random_values(layer.parameters(), depth + 1);
            weights.iter_mut().for_each(|weight| *weight *= scale);
            weights[rows * columns..].fill(0.0);
            weights
        };
        let broadcast: Vec<Vec<f32>> = (0..).zip(layers).map(weights).collect();
        let widest = layers.iter().map(|layer| layer.inputs().max(layer.outputs())).max().unwrap_or(0);
        Self {
            weights: broadcast.clone(),
            broadcast,
            velocities: each(&Layer::parameters),
            activations: each(&|layer| BATCH * layer.outputs()),
            saved: each(&|layer| BATCH * layer.saved()),
            pool_indices: layers.iter().map(|layer| vec![0; BATCH * layer.pool_indices()]).collect(),
            errors: [vec![0.0; BATCH * widest], vec![0.0; BATCH * widest]],
            scratch: vec![0.0; layers.iter().map(Layer::scratch).max().unwrap_or(0)],
            x: pseudo_random_values(IMAGES * SIDE * SIDE, 100),
            classes: (0..IMAGES).map(|image| (image % CLASSES) as u8).collect(),
            layers: layers.to_vec(),
        }
    }

    /// Runs an update. Returns false if the training diverged.
    fn update(&mut self) -> bool {
        for (weights, broadcast) in self.weights.iter_mut().zip(&self.broadcast) {
            weights.copy_from_slice(broadcast);
        }
        self.velocities.iter_mut().for_each(|velocity| velocity.fill(0.0));
        let mut is_finite = true;
        for batch in 0..IMAGES / BATCH {
            self.forward(batch);
            let Self {
                layers,
                weights,
                velocities,
                activations,
                saved,
                pool_indices,
                errors,
                scratch,
                x,
                classes,
                ..
            } = self;
            let images = batch * BATCH..(batch + 1) * BATCH;
            let [delta, below] = errors;
            let (mut delta, mut below) = (delta, below);
            for (depth, layer) in layers.iter().enumerate().rev() {
                let outputs = BATCH * layer.outputs();
                if depth + 1 == layers.len() {
                    let logits = &mut activations[depth];
                    is_finite &=
                        softmax_errors(logits, &classes[images.clone()], 1.0 / BATCH as f32, Pace::NONE);
                    delta[..outputs].copy_from_slice(logits);
                }
                let inputs = match depth {
                    0 => &x[images.start * SIDE * SIDE..images.end * SIDE * SIDE],
                    _ => &activations[depth - 1],
                };
                let room = LayerBuffers {
                    saved: &mut saved[depth],
                    pool_indices: &mut pool_indices[depth],
                    scratch,
                    pace: Pace::NONE,
                };
                let after_relu = depth > 0 && layers[depth - 1].has_relu();
                let below_errors = (depth > 0).then(|| &mut below[..BATCH * layer.inputs()]);
                let velocity = Some(velocities[depth].as_mut_slice());
                let step = Gradient::Step(Step { momentum: MOMENTUM, velocity, size: STEP_SIZE });
                let pass = ForwardPass { x: inputs, after_relu, room };
                layer.backward(pass, &delta[..outputs], &mut weights[depth], below_errors, step);
                std::mem::swap(&mut delta, &mut below);
            }
        }
        is_finite
    }

    /// Computes the activations of a batch; the last ones are the logits.
    fn forward(&mut self, batch: usize) {
        let Self { layers, weights, activations, saved, pool_indices, scratch, x, .. } = self;
        for (depth, layer) in layers.iter().enumerate() {
            let (before, from_here) = activations.split_at_mut(depth);
            let inputs = match before.last() {
                Some(activations) => activations,
                None => &x[batch * BATCH * SIDE * SIDE..(batch + 1) * BATCH * SIDE * SIDE],
            };
            let (saved, pool_indices) = (&mut saved[depth], &mut pool_indices[depth]);
            let room = LayerBuffers { saved, pool_indices, scratch, pace: Pace::NONE };
            layer.forward(inputs, &weights[depth], &mut from_here[0], room);
            if layer.has_relu() && depth + 1 < layers.len() {
                relu(&mut from_here[0]);
            }
        }
    }

    /// Returns the mean cross-entropy of all images.
    fn loss(&mut self) -> f64 {
        let mut sum = 0.0;
        for batch in 0..IMAGES / BATCH {
            self.forward(batch);
            let logits = self.activations.last().into_iter().flat_map(|logits| logits.chunks_exact(CLASSES));
            let classes = &self.classes[batch * BATCH..];
            sum +=
                logits.zip(classes).map(|(logits, &class)| cross_entropy(logits, class.into())).sum::<f64>();
        }
        sum / IMAGES as f64
    }
}
