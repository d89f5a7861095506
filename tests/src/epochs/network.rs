//! Training epoch of one client with the kernels of `fedspan_client::kernel::dense`.

use fedspan_client::kernel::dense::{
    Momentum, backward, cross_entropy, descend, forward, relu, softmax_errors,
};
use fedspan_client::pace::Pace;

use super::{BATCH, IMAGES, MOMENTUM, SIZES, STEP_SIZE};

/// Weights, data and buffers of one client.
#[derive(Debug)]
pub struct Network {
    layers: [Vec<f32>; 3],
    velocities: [Vec<f32>; 3],
    activations: [Vec<f32>; 3],
    deltas: [Vec<f32>; 2],
    x: Vec<f32>,
    classes: Vec<u8>,
}

/// Returns pseudo-random values from -1 to 1. `scripts/epochs.py` draws the same values.
fn pseudo_random_values(count: usize, mut state: u32) -> Vec<f32> {
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

impl Default for Network {
    fn default() -> Self {
        let layer = |depth: usize| {
            let (inputs, outputs) = (SIZES[depth], SIZES[depth + 1]);
            let scale = 1.0 / (inputs as f32).sqrt();
            let weights = pseudo_random_values(inputs * outputs, depth as u32 + 1);
            let weights = weights.into_iter().map(|w| w * scale);
            weights.chain(std::iter::repeat_n(0.0, outputs)).collect::<Vec<_>>()
        };
        let layers = [0, 1, 2].map(layer);
        let velocities = [0, 1, 2].map(|depth: usize| vec![0.0; layers[depth].len()]);
        let activations = [1, 2, 3].map(|depth: usize| vec![0.0; BATCH * SIZES[depth]]);
        let deltas = [1, 2].map(|depth: usize| vec![0.0; BATCH * SIZES[depth]]);
        let x = pseudo_random_values(IMAGES * SIZES[0], 4);
        let classes = (0..IMAGES).map(|image| (image % SIZES[3]) as u8).collect();
        Self { layers, velocities, activations, deltas, x, classes }
    }
}

impl Network {
    /// Runs one epoch of SGD with momentum. Returns false if the training diverged.
    pub fn epoch(&mut self) -> bool {
        let Self { layers: [l0, l1, l2], velocities, activations, deltas: [d0, d1], x, classes } = self;
        let ([v0, v1, v2], [a0, a1, a2]) = (velocities, activations);
        let mut finite = true;
        for (x, classes) in x.chunks_exact(BATCH * SIZES[0]).zip(classes.chunks_exact(BATCH)) {
            forward_pass(x, [l0, l1, l2], [a0, a1, a2]);
            finite &= softmax_errors(a2, classes, 1.0 / BATCH as f32, Pace::NONE);
            backward(a2, l2, SIZES[3], a1, d1, Pace::NONE);
            backward(d1, l1, SIZES[2], a0, d0, Pace::NONE);
            descend(x, d0, SIZES[1], l0, momentum(v0), STEP_SIZE, Pace::NONE);
            descend(a0, d1, SIZES[2], l1, momentum(v1), STEP_SIZE, Pace::NONE);
            descend(a1, a2, SIZES[3], l2, momentum(v2), STEP_SIZE, Pace::NONE);
        }
        finite
    }

    /// Returns the mean cross-entropy of all images.
    pub fn loss(&mut self) -> f64 {
        let Self { layers: [l0, l1, l2], activations: [a0, a1, a2], x, classes, .. } = self;
        let mut sum = 0.0;
        for (x, classes) in x.chunks_exact(BATCH * SIZES[0]).zip(classes.chunks_exact(BATCH)) {
            forward_pass(x, [l0, l1, l2], [a0, a1, a2]);
            for (logits, &class) in a2.chunks_exact(SIZES[3]).zip(classes) {
                sum += cross_entropy(logits, usize::from(class));
            }
        }
        sum / IMAGES as f64
    }
}

fn forward_pass(x: &[f32], [l0, l1, l2]: [&[f32]; 3], [a0, a1, a2]: [&mut [f32]; 3]) {
    forward(x, l0, SIZES[1], a0, Pace::NONE);
    relu(a0);
    forward(a0, l1, SIZES[2], a1, Pace::NONE);
    relu(a1);
    forward(a1, l2, SIZES[3], a2, Pace::NONE);
}

fn momentum(velocity: &mut [f32]) -> Option<Momentum<'_>> {
    Some(Momentum { factor: MOMENTUM, velocity })
}
