//! Measurement of one training epoch of a network on a host: this project's kernels, the same work in numpy,
//! and the machine's peak rate.

pub mod network;
pub mod numpy;
pub mod peak;

/// Widths of the layers of the network for handwritten digits, inputs first.
pub const SIZES: [usize; 4] = [784, 128, 64, 10];
/// Number of images of a client.
pub const IMAGES: usize = 80;
/// Number of images in a batch.
pub const BATCH: usize = 10;
/// Step size of SGD.
pub const STEP_SIZE: f32 = 0.1;
/// Momentum of SGD.
pub const MOMENTUM: f32 = 0.5;

/// Returns the number of floating-point operations of one epoch: two for each weight and sample in each
/// direction (none backwards through the first layer), and four for each weight and step.
#[must_use]
pub fn operations() -> f64 {
    let layers = || SIZES.windows(2).map(|pair| (pair[0] as f64 + 1.0) * pair[1] as f64);
    let (all_weights, weights_behind_first): (f64, f64) = (layers().sum(), layers().skip(1).sum());
    let batches = (IMAGES / BATCH) as f64;
    batches * (BATCH as f64 * (4.0 * all_weights + 2.0 * weights_behind_first) + 4.0 * all_weights)
}

/// Returns the median (the upper one of an even number of values); 0 if there are none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
