//! What an epoch of a network costs on a host: ours, the same work in numpy, and the machine's peak.

pub mod network;
pub mod numpy;
pub mod peak;

/// Widths of the network, inputs first: handwritten digits.
pub const SIZES: [usize; 4] = [784, 128, 64, 10];
/// Images of a client.
pub const IMAGES: usize = 80;
/// Images in a batch.
pub const BATCH: usize = 10;
/// Step size of SGD.
pub const STEP_SIZE: f32 = 0.1;
/// Its momentum.
pub const MOMENTUM: f32 = 0.5;

/// Additions and multiplications of one epoch: two for each weight and sample in each direction (there is none
/// back through the first layer), four for each weight and step.
#[must_use]
pub fn operations() -> f64 {
    let layers = || SIZES.windows(2).map(|pair| (pair[0] as f64 + 1.0) * pair[1] as f64);
    let (all, behind): (f64, f64) = (layers().sum(), layers().skip(1).sum());
    let batches = (IMAGES / BATCH) as f64;
    batches * (BATCH as f64 * (4.0 * all + 2.0 * behind) + 4.0 * all)
}

/// The middle value; zero of none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
