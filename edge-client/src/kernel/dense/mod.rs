//! Dense layers of a network: forward pass, backward pass, derivative of the loss, and SGD step with
//! momentum.
//!
//! A layer from `i` inputs to `o` outputs is one slice of (i + 1) x o values, row-major: row `r` holds the
//! weights from input `r` to the outputs, and the last row is the bias. A batch is `n` samples, one per row.
//! A network is a body of such layers with [`relu`] after each, and a last layer whose outputs are logits.
//!
//! ```
//! use fedspan_client::kernel::dense;
//! use fedspan_client::pace::Pace;
//!
//! // Two inputs, two classes, one sample of class 1: a step of plain SGD on softmax regression.
//! let (x, mut layer, mut logits) = ([1.0, 2.0], [0.0; 6], [0.0; 2]);
//! dense::forward(&x, &layer, 2, &mut logits, Pace::NONE);
//! let before = dense::cross_entropy(&logits, 1);
//! assert!(dense::softmax_errors(&mut logits, &[1], 1.0, Pace::NONE));
//! dense::descend(&x, &logits, 2, &mut layer, None, 0.1, Pace::NONE);
//! dense::forward(&x, &layer, 2, &mut logits, Pace::NONE);
//! assert!(dense::cross_entropy(&logits, 1) < before);
//! ```
//!
//! **Reproducibility.** Every sum is one chain in a stated order, with each product rounded before it is
//! added (no fused multiply-add). Results are therefore bit-identical for every batch size, blocking and
//! vector width, on a microcontroller and in the simulator. Zeros are multiplied like other values.
//!
//! **Memory.** The kernels work on the caller's slices; [`backward`] and [`backward_linear`] also need half a
//! kilobyte of stack (8 KiB with the feature `wide`).
//!
//! **Speed.** With the feature `wide` the kernels use the widest vectors of the host, without fused
//! multiply-add. The program `benchmarks` of the tests crate compares their speed with numpy and with the
//! machine's peak.
//!
//! **Lengths.** The caller ensures that the lengths of slices match. Otherwise the functions process the
//! whole rows that all slices contain; nothing panics.

mod backward;
mod forward;
mod loss;
pub(in crate::kernel) mod simd;
mod step;
pub(in crate::kernel) mod tiles;
#[cfg(all(feature = "wide", not(target_os = "none")))]
pub(in crate::kernel) mod transpose;

#[cfg(feature = "network")]
pub(crate) use loss::EXP_WORK;
pub use loss::{cross_entropy, softmax_errors};

use crate::pace::Pace;
use backward::Backward;
use forward::Forward;
use step::{Descent, Gradient, Sums};
use tiles::dispatch;

/// Momentum of stochastic gradient descent.
#[derive(Debug)]
pub struct Momentum<'a> {
    /// Momentum factor, 0 to 1: the fraction of the velocity that each step keeps.
    pub factor: f32,
    /// Velocity, with the length of the layer; all zero before the first step.
    pub velocity: &'a mut [f32],
}

/// Computes `out = x W + bias`. `x` is n x i, `layer` (i + 1) x o, `out` receives n x o, where o is
/// `outputs`.
///
/// A sum starts with the bias; products are added in ascending order of inputs.
#[inline(never)]
pub fn forward(x: &[f32], layer: &[f32], outputs: usize, out: &mut [f32], pace: Pace<'_>) {
    dispatch(Forward::new(x, layer, outputs, out, pace));
}

/// Replaces values that are not positive by zero. NaNs are kept, so that [`softmax_errors`] detects them.
#[inline(never)]
pub fn relu(values: &mut [f32]) {
    for value in values {
        *value = if *value <= 0.0 { 0.0 } else { *value };
    }
}

/// Propagates errors back through a ReLU: an error becomes zero where the ReLU's output (`activations`) is
/// not positive.
#[inline(never)]
pub fn relu_errors(activations: &[f32], errors: &mut [f32]) {
    for (error, activation) in errors.iter_mut().zip(activations) {
        *error = if *activation > 0.0 { *error } else { 0.0 };
    }
}

/// Computes `out = delta W^T` where the activation is positive, and zero elsewhere: the derivative with
/// respect to the input of the ReLU (zero at zero) whose output `activations` (n x i) is the input of this
/// layer. `delta` is n x o, where o is `outputs`; `layer` is (i + 1) x o, `out` receives n x i.
///
/// A sum starts with zero; products are added in ascending order of outputs.
#[inline(never)]
pub fn backward(
    delta: &[f32],
    layer: &[f32],
    outputs: usize,
    activations: &[f32],
    out: &mut [f32],
    pace: Pace<'_>,
) {
    dispatch(Backward::<true>::new(delta, layer, outputs, activations, out, pace));
}

/// Computes `out = delta W^T` with the same sums as [`backward`], for a layer whose input is not the output
/// of a ReLU.
#[inline(never)]
pub fn backward_linear(delta: &[f32], layer: &[f32], outputs: usize, out: &mut [f32], pace: Pace<'_>) {
    dispatch(Backward::<false>::new(delta, layer, outputs, &[], out, pace));
}

/// Adds the gradient of a layer: `sums += x^T delta`, and the sum of `delta`'s rows to the last row. `x` is n
/// x i, `delta` n x o, where o is `outputs`; `sums` is (i + 1) x o.
///
/// Products are added in ascending order of samples. Splitting a batch into parts gives bit-identical sums.
#[inline(never)]
pub fn add_gradient(x: &[f32], delta: &[f32], outputs: usize, sums: &mut [f32], pace: Pace<'_>) {
    dispatch(Gradient::new(x, delta, outputs, Sums(sums), pace));
}

/// Takes one step along the gradient `g` (the result of [`add_gradient`] on zeros) in one pass over the
/// layer: `v = factor v + g` and `w -= step_size v`, or `w -= step_size g` without momentum. This is
/// PyTorch's SGD without dampening.
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
    pace: Pace<'_>,
) {
    dispatch(Gradient::new(x, delta, outputs, Descent { layer, momentum, step_size }, pace));
}

/// Computes `out += x W` for weights without a bias: `x` is n x i, `weights` i x o, `out` n x o, where o is
/// `outputs`.
///
/// A sum starts with the value of `out`; products are added in ascending order of inputs.
#[cfg(any(feature = "adapter", all(feature = "recurrent", feature = "wide", not(target_os = "none"))))]
#[inline(never)]
pub fn add_product(x: &[f32], weights: &[f32], outputs: usize, out: &mut [f32], pace: Pace<'_>) {
    dispatch(Forward::product(x, weights, outputs, out, pace));
}

/// Computes [`backward_linear`] for weights without a bias: `weights` is i x o.
#[cfg(feature = "adapter")]
#[inline(never)]
pub fn backward_product(delta: &[f32], weights: &[f32], outputs: usize, out: &mut [f32], pace: Pace<'_>) {
    dispatch(Backward::product(delta, weights, outputs, out, pace));
}

/// Computes [`add_gradient`] for weights without a bias: `sums` is i x o.
#[cfg(feature = "adapter")]
#[inline(never)]
pub fn add_product_gradient(x: &[f32], delta: &[f32], outputs: usize, sums: &mut [f32], pace: Pace<'_>) {
    dispatch(Gradient::product(x, delta, outputs, Sums(sums), pace));
}

/// Computes [`descend`] for weights without a bias: `weights` is i x o.
#[cfg(feature = "adapter")]
#[inline(never)]
pub fn descend_product(
    x: &[f32],
    delta: &[f32],
    outputs: usize,
    weights: &mut [f32],
    momentum: Option<Momentum>,
    step_size: f32,
    pace: Pace<'_>,
) {
    dispatch(Gradient::product(x, delta, outputs, Descent { layer: weights, momentum, step_size }, pace));
}
