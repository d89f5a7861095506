//! Tests of a network with two hidden layers: its gradient equals finite differences, and training lowers the loss.

use crate::common::Random;
use crate::common::dense::{self as naive, to_f64, values};
use fedspan_client::kernel::dense::{
    Momentum, add_gradient, backward, cross_entropy, descend, forward, relu, softmax_errors,
};
use fedspan_client::pace::Pace;

const SIZES: [usize; 4] = [6, 9, 7, 4];
const N: usize = 5;
/// Tolerance of a gradient whose largest elements are about 0.1, which covers rounding or the error of
/// micromath's exponential.
const ERROR: f64 = if cfg!(feature = "micromath") { 1e-3 } else { 1e-6 };

/// Dense network with momentum, and memory for a batch of activations and errors.
struct Network {
    layers: [Vec<f32>; 3],
    velocities: [Vec<f32>; 3],
    activations: [Vec<f32>; 3],
    deltas: [Vec<f32>; 2],
}

impl Network {
    /// Draws the layers. Everything else is zero.
    fn new(random: &mut Random) -> Self {
        let depths = [0, 1, 2];
        let layer = |depth: usize| values(random, (SIZES[depth] + 1) * SIZES[depth + 1]);
        let layers = depths.map(layer);
        let velocities = depths.map(|depth| vec![0.0; layers[depth].len()]);
        let activations = depths.map(|depth| vec![0.0; N * SIZES[depth + 1]]);
        let deltas = [1, 2].map(|depth| vec![0.0; N * SIZES[depth]]);
        Self { layers, velocities, activations, deltas }
    }

    /// Computes the activations of all layers, then the errors. Returns false if a value is not finite.
    fn propagate(&mut self, x: &[f32], classes: &[u8]) -> bool {
        let Self { layers: [l0, l1, l2], activations: [a0, a1, a2], deltas: [d0, d1], .. } = self;
        forward(x, l0, SIZES[1], a0, Pace::NONE);
        relu(a0);
        forward(a0, l1, SIZES[2], a1, Pace::NONE);
        relu(a1);
        forward(a1, l2, SIZES[3], a2, Pace::NONE);
        let finite = softmax_errors(a2, classes, 1.0 / classes.len() as f32, Pace::NONE);
        backward(a2, l2, SIZES[3], a1, d1, Pace::NONE);
        backward(d1, l1, SIZES[2], a0, d0, Pace::NONE);
        finite
    }

    /// Returns the inputs of each layer, and the errors of its outputs.
    fn inputs_and_errors<'a>(&'a self, x: &'a [f32]) -> [(&'a [f32], &'a [f32]); 3] {
        let Self { activations: [a0, a1, a2], deltas: [d0, d1], .. } = self;
        [(x, d0), (a0, d1), (a1, a2)]
    }
}

fn draw_batch(random: &mut Random) -> (Vec<f32>, [u8; N]) {
    (values(random, N * SIZES[0]), [0, 1, 2, 3, 1])
}

#[test]
fn gradients_equal_finite_differences() {
    const STEP: f64 = 1e-5;
    for seed in 0..5 {
        let mut random = Random(seed);
        let (x, classes) = draw_batch(&mut random);
        let mut network = Network::new(&mut random);
        assert!(network.propagate(&x, &classes));
        let mut layers: Vec<Vec<f64>> = network.layers.iter().map(|layer| to_f64(layer)).collect();
        let x64 = to_f64(&x);
        for (depth, (input, delta)) in network.inputs_and_errors(&x).into_iter().enumerate() {
            let mut gradient = vec![0.0; network.layers[depth].len()];
            add_gradient(input, delta, SIZES[depth + 1], &mut gradient, Pace::NONE);
            assert!(gradient.iter().any(|g| g.abs() > 0.05));
            for (index, g) in gradient.into_iter().enumerate() {
                let w = layers[depth][index];
                let mut loss = |w: f64| {
                    layers[depth][index] = w;
                    naive::loss(&x64, &classes, &SIZES, &layers)
                };
                let slope = (loss(w + STEP) - loss(w - STEP)) / (2.0 * STEP);
                loss(w);
                assert!(
                    (f64::from(g) - slope).abs() < ERROR,
                    "seed {seed} layer {depth} place {index}: {g} {slope}"
                );
            }
        }
    }
}

#[test]
fn descent_with_momentum_fits_the_batch() {
    let mut random = Random(1);
    let (x, classes) = draw_batch(&mut random);
    let mut network = Network::new(&mut random);
    for _ in 0..300 {
        assert!(network.propagate(&x, &classes));
        let Network { layers, velocities, activations: [a0, a1, a2], deltas: [d0, d1] } = &mut network;
        let inputs_and_errors: [(&[f32], &[f32]); 3] = [(&x, d0), (a0, d1), (a1, a2)];
        for (depth, (input, delta)) in inputs_and_errors.into_iter().enumerate() {
            let momentum = Some(Momentum { factor: 0.5, velocity: &mut velocities[depth] });
            descend(input, delta, SIZES[depth + 1], &mut layers[depth], momentum, 0.1, Pace::NONE);
        }
    }
    let Network { layers: [l0, l1, l2], activations: [a0, a1, a2], .. } = &mut network;
    forward(&x, l0, SIZES[1], a0, Pace::NONE);
    relu(a0);
    forward(a0, l1, SIZES[2], a1, Pace::NONE);
    relu(a1);
    forward(a1, l2, SIZES[3], a2, Pace::NONE);
    for (logits, class) in a2.chunks(SIZES[3]).zip(classes) {
        let loss = cross_entropy(logits, usize::from(class));
        assert!(loss < 0.1, "{loss}");
    }
}
