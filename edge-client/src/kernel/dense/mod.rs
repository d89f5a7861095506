//! Dense layers of a network: forward, backward, the derivative of the loss, and a step of SGD with momentum.
//!
//! A layer from `i` inputs to `o` outputs is one slice of (i + 1) x o values, row-major: row `r` holds the weights
//! from input `r` to the outputs, the last row is the bias. A batch is `n` samples, one per row. A network is a
//! body of such layers with [`relu`] after each, and a last layer whose outputs are logits.
//!
//! ```
//! use fedspan_client::kernel::dense;
//!
//! // Two inputs, two classes, one sample of class 1: a step of plain SGD on softmax regression.
//! let (x, mut layer, mut logits) = ([1.0, 2.0], [0.0; 6], [0.0; 2]);
//! dense::forward(&x, &layer, 2, &mut logits);
//! let before = dense::cross_entropy(&logits, 1);
//! assert!(dense::softmax_errors(&mut logits, &[1], 1.0));
//! dense::descend(&x, &logits, 2, &mut layer, None, 0.1);
//! dense::forward(&x, &layer, 2, &mut logits);
//! assert!(dense::cross_entropy(&logits, 1) < before);
//! ```
//!
//! **Bits.** Every sum is one chain in a stated order, with each product rounded before it is added (no fused
//! multiply-add). So results have the same bits for every batch size, blocking and vector width: a microcontroller
//! and the simulator agree. Zeros are multiplied like other values.
//!
//! **Memory.** The caller's slices; [`backward`] and [`backward_linear`] also need half a kilobyte of stack (4 KiB
//! with the feature `wide`).
//!
//! **Speed.** With the feature `wide` the kernels use the widest vectors that the host has, without fused
//! multiply-add. The program `epochs` of the tests crate compares them with numpy and the machine's peak.
//!
//! **Lengths.** The caller ensures that they match. Otherwise the functions process the whole rows that all slices
//! contain; nothing panics.

mod backward;
mod forward;
mod loss;
mod simd;
mod step;
mod tiles;

pub use loss::{cross_entropy, softmax_errors};

use backward::Backward;
use forward::Forward;
use step::{Descent, Gradient, Sums};
use tiles::dispatch;

/// Momentum of gradient descent.
#[derive(Debug)]
pub struct Momentum<'a> {
    /// Momentum factor: the fraction of the velocity that is kept, 0 to 1.
    pub factor: f32,
    /// Velocity, as long as the layer; zeros before the first step.
    pub velocity: &'a mut [f32],
}

/// Computes `out = x W + bias`. `x` is n x i, `layer` (i + 1) x o, `out` receives n x o, where o is `outputs`.
///
/// A sum starts with the bias; products follow by input, ascending.
#[inline(never)]
pub fn forward(x: &[f32], layer: &[f32], outputs: usize, out: &mut [f32]) {
    dispatch(Forward::new(x, layer, outputs, out));
}

/// Replaces values that are not positive by zero. A NaN stays, so that [`softmax_errors`] detects it.
#[inline(never)]
pub fn relu(values: &mut [f32]) {
    for value in values {
        *value = if *value <= 0.0 { 0.0 } else { *value };
    }
}

/// Propagates errors back through a ReLU: zero where its output (`activations`) is not positive.
#[inline(never)]
pub fn relu_errors(activations: &[f32], errors: &mut [f32]) {
    for (error, activation) in errors.iter_mut().zip(activations) {
        *error = if *activation > 0.0 { *error } else { 0.0 };
    }
}

/// Computes `out = delta W^T` where the activation is positive, and zero elsewhere: the derivative with respect to
/// the input of the ReLU (zero at zero) whose output `activations` (n x i) is the input of this layer. `delta` is n
/// x o, where o is `outputs`; `layer` is (i + 1) x o, `out` receives n x i.
///
/// A sum starts with zero; products follow by output, ascending.
#[inline(never)]
pub fn backward(delta: &[f32], layer: &[f32], outputs: usize, activations: &[f32], out: &mut [f32]) {
    dispatch(Backward::<true>::new(delta, layer, outputs, activations, out));
}

/// Computes `out = delta W^T`, as [`backward`] without a ReLU and with the same sums.
#[inline(never)]
pub fn backward_linear(delta: &[f32], layer: &[f32], outputs: usize, out: &mut [f32]) {
    dispatch(Backward::<false>::new(delta, layer, outputs, &[], out));
}

/// Adds the gradient of a layer: `sums += x^T delta`, and the sum of `delta`'s rows to the last row. `x` is n x i,
/// `delta` n x o, where o is `outputs`; `sums` is (i + 1) x o.
///
/// Products follow by sample, ascending. A batch may be split into parts: the bits are those of the whole.
#[inline(never)]
pub fn add_gradient(x: &[f32], delta: &[f32], outputs: usize, sums: &mut [f32]) {
    dispatch(Gradient::new(x, delta, outputs, Sums(sums)));
}

/// Takes one step along the gradient `g` (as [`add_gradient`] to zeros) in one pass over the layer:
/// `v = factor v + g` and `w -= step_size v`, or `w -= step_size g` without momentum. This is PyTorch's SGD without
/// dampening.
///
/// `x` is n x i, `delta` n x o, where o is `outputs`; `layer` is (i + 1) x o.
#[inline(never)]
pub fn descend(
    x: &[f32],
    delta: &[f32],
    outputs: usize,
    layer: &mut [f32],
    momentum: Option<Momentum>,
    step_size: f32,
) {
    dispatch(Gradient::new(x, delta, outputs, Descent { layer, momentum, step_size }));
}

/// Computes `out += x W` for weights without a bias: `x` is n x i, `weights` i x o, `out` n x o, where o is
/// `outputs`.
///
/// A sum starts with the value of `out`; products follow by input, ascending.
#[cfg(feature = "adapter")]
#[inline(never)]
pub fn add_product(x: &[f32], weights: &[f32], outputs: usize, out: &mut [f32]) {
    dispatch(Forward::product(x, weights, outputs, out));
}

/// Computes [`backward_linear`] for weights without a bias, i x o.
#[cfg(feature = "adapter")]
#[inline(never)]
pub fn backward_product(delta: &[f32], weights: &[f32], outputs: usize, out: &mut [f32]) {
    dispatch(Backward::product(delta, weights, outputs, out));
}

/// Computes [`add_gradient`] for weights without a bias: `sums` is i x o.
#[cfg(feature = "adapter")]
#[inline(never)]
pub fn add_product_gradient(x: &[f32], delta: &[f32], outputs: usize, sums: &mut [f32]) {
    dispatch(Gradient::product(x, delta, outputs, Sums(sums)));
}

/// Computes [`descend`] for weights without a bias, i x o.
#[cfg(feature = "adapter")]
#[inline(never)]
pub fn descend_product(
    x: &[f32],
    delta: &[f32],
    outputs: usize,
    weights: &mut [f32],
    momentum: Option<Momentum>,
    step_size: f32,
) {
    dispatch(Gradient::product(x, delta, outputs, Descent { layer: weights, momentum, step_size }));
}
