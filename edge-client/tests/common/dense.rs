//! Test helpers for dense layers: naive kernels in f32, with sums in the order that the client's kernels
//! specify, and the loss of a network in f64.

use super::Random;

/// Returns `count` values, uniform in [-1, 1).
pub fn values(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect()
}

/// Computes the exact bits of the kernel `forward`.
pub fn forward(x: &[f32], layer: &[f32], outputs: usize, n: usize) -> Vec<f32> {
    let inputs = layer.len() / outputs - 1;
    let element = |n: usize, o: usize| {
        (0..inputs)
            .fold(layer[inputs * outputs + o], |sum, i| sum + x[n * inputs + i] * layer[i * outputs + o])
    };
    (0..n * outputs).map(|index| element(index / outputs, index % outputs)).collect()
}

/// Computes the exact bits of the kernel `backward`.
pub fn backward(delta: &[f32], layer: &[f32], outputs: usize, activations: &[f32]) -> Vec<f32> {
    let inputs = layer.len() / outputs - 1;
    let element = |n: usize, i: usize| {
        (0..outputs).fold(0.0, |sum, o| sum + delta[n * outputs + o] * layer[i * outputs + o])
    };
    let mask = |(index, &activation): (usize, &f32)| {
        if activation > 0.0 { element(index / inputs, index % inputs) } else { 0.0 }
    };
    activations.iter().enumerate().map(mask).collect()
}

/// Computes the exact bits of the kernel `add_gradient` for `inputs` inputs.
pub fn add_gradient(x: &[f32], delta: &[f32], inputs: usize, outputs: usize, start: &[f32]) -> Vec<f32> {
    let n = delta.len() / outputs;
    let input = |n: usize, i: usize| if i == inputs { 1.0 } else { x[n * inputs + i] };
    let element = |index: usize| {
        let (i, o) = (index / outputs, index % outputs);
        (0..n).fold(start[index], |sum, n| sum + input(n, i) * delta[n * outputs + o])
    };
    (0..start.len()).map(element).collect()
}

/// Computes the mean cross-entropy of a network with ReLUs between its layers. `sizes` are the widths of the
/// network, starting with the number of inputs.
pub fn loss(x: &[f64], classes: &[u8], sizes: &[usize], layers: &[Vec<f64>]) -> f64 {
    let sample = |(x, &class): (&[f64], &u8)| {
        let mut x = x.to_vec();
        for (depth, (layer, &outputs)) in layers.iter().zip(&sizes[1..]).enumerate() {
            let inputs = x.len();
            let last = depth + 2 == sizes.len();
            x = (0..outputs)
                .map(|o| {
                    let sum: f64 = (0..inputs).map(|i| x[i] * layer[i * outputs + o]).sum();
                    let sum = sum + layer[inputs * outputs + o];
                    if last { sum } else { sum.max(0.0) }
                })
                .collect();
        }
        cross_entropy(&x, class)
    };
    x.chunks(sizes[0]).zip(classes).map(sample).sum::<f64>() / classes.len() as f64
}

/// Returns the cross-entropy of one sample.
pub fn cross_entropy(logits: &[f64], class: u8) -> f64 {
    -softmax(logits)[usize::from(class)].ln()
}

/// Returns the softmax of one sample's logits. The largest logit is subtracted, so that nothing overflows.
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - largest).exp()).sum();
    logits.iter().map(|l| (l - largest).exp() / sum).collect()
}

/// Converts values to f64.
pub fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
