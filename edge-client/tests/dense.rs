//! Tests of dense layers: all sums are computed in the stated order, bit for bit, for every shape and batch.

use crate::common::dense::{self as naive, to_f64, values};
use crate::common::{EPS, Random};
use fedspan_client::kernel::dense::{
    Momentum, add_gradient, backward, backward_linear, cross_entropy, descend, forward, relu, softmax_errors,
};
use fedspan_client::pace::Pace;
use proptest::prelude::*;

/// Tolerance of the softmax, which covers rounding or the error of micromath's exponential.
const SOFTMAX_ERROR: f64 = if cfg!(feature = "micromath") { 1e-3 } else { 1e-6 };

/// Layer and batch: `n` samples, their inputs, and the errors of the outputs.
struct Case {
    n: usize,
    inputs: usize,
    outputs: usize,
    x: Vec<f32>,
    layer: Vec<f32>,
    delta: Vec<f32>,
}

impl Case {
    /// Draws a case. The inputs are not negative, as after a ReLU.
    fn new(random: &mut Random, n: usize, inputs: usize, outputs: usize) -> Self {
        let mut x = values(random, n * inputs);
        relu(&mut x);
        let layer = values(random, (inputs + 1) * outputs);
        Self { n, inputs, outputs, x, layer, delta: values(random, n * outputs) }
    }

    /// Returns the outputs of the layer.
    fn forward(&self) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.n * self.outputs];
        forward(&self.x, &self.layer, self.outputs, &mut out, Pace::NONE);
        out
    }

    /// Returns the errors of the inputs, which are the outputs of a ReLU.
    fn backward(&self) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.n * self.inputs];
        backward(&self.delta, &self.layer, self.outputs, &self.x, &mut out, Pace::NONE);
        out
    }

    /// Returns the errors of the inputs, which have no ReLU before them.
    fn backward_linear(&self) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.n * self.inputs];
        backward_linear(&self.delta, &self.layer, self.outputs, &mut out, Pace::NONE);
        out
    }

    /// Returns the gradient of the layer, summed over the batch.
    fn gradient(&self) -> Vec<f32> {
        let mut sums = vec![0.0; self.layer.len()];
        add_gradient(&self.x, &self.delta, self.outputs, &mut sums, Pace::NONE);
        sums
    }
}

/// Returns cases with every width and number of rows of a tile, with remainders, and a hundred random shapes.
fn test_cases() -> impl Iterator<Item = Case> {
    let mut random = Random(11);
    let mut shapes = vec![(10, 784, 128), (10, 128, 64), (64, 25, 6), (1, 0, 3), (3, 0, 17)];
    for outputs in [1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 31, 64, 65, 128] {
        for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 64] {
            shapes.push((n, 1 + random.below(40), outputs));
        }
    }
    for _ in 0..100 {
        shapes.push((1 + random.below(20), 1 + random.below(300), 1 + random.below(150)));
    }
    shapes.into_iter().map(move |(n, inputs, outputs)| Case::new(&mut random, n, inputs, outputs))
}

#[track_caller]
fn assert_bits(actual: &[f32], expected: &[f32], case: &Case) {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(bits(actual) == bits(expected), "n {} inputs {} outputs {}", case.n, case.inputs, case.outputs);
}

#[test]
fn sums_run_in_the_stated_order() {
    for case in test_cases() {
        assert_bits(&case.forward(), &naive::forward(&case.x, &case.layer, case.outputs, case.n), &case);
        assert_bits(
            &case.backward(),
            &naive::backward(&case.delta, &case.layer, case.outputs, &case.x),
            &case,
        );
        let positive = vec![1.0; case.x.len()];
        assert_bits(
            &case.backward_linear(),
            &naive::backward(&case.delta, &case.layer, case.outputs, &positive),
            &case,
        );
        let mut sums = case.layer.clone();
        add_gradient(&case.x, &case.delta, case.outputs, &mut sums, Pace::NONE);
        let expected = naive::add_gradient(&case.x, &case.delta, case.inputs, case.outputs, &case.layer);
        assert_bits(&sums, &expected, &case);
    }
}

#[test]
fn batch_equals_its_single_samples() {
    for case in test_cases().filter(|case| case.inputs > 0) {
        let (mut outputs, mut errors, mut linear_errors) = (Vec::new(), Vec::new(), Vec::new());
        let mut sums = vec![0.0; case.layer.len()];
        for (x, delta) in case.x.chunks(case.inputs).zip(case.delta.chunks(case.outputs)) {
            let single_sample =
                Case { n: 1, x: x.to_vec(), layer: case.layer.clone(), delta: delta.to_vec(), ..case };
            outputs.extend(single_sample.forward());
            errors.extend(single_sample.backward());
            linear_errors.extend(single_sample.backward_linear());
            add_gradient(x, delta, case.outputs, &mut sums, Pace::NONE);
        }
        assert_bits(&outputs, &case.forward(), &case);
        assert_bits(&errors, &case.backward(), &case);
        assert_bits(&linear_errors, &case.backward_linear(), &case);
        assert_bits(&sums, &case.gradient(), &case);
    }
}

#[test]
fn descent_equals_gradient_then_update() {
    let mut random = Random(5);
    for case in test_cases() {
        let gradient = case.gradient();
        let mut layer = case.layer.clone();
        descend(&case.x, &case.delta, case.outputs, &mut layer, None, 0.1, Pace::NONE);
        let expected: Vec<f32> = case.layer.iter().zip(&gradient).map(|(w, g)| w - 0.1 * g).collect();
        assert_bits(&layer, &expected, &case);

        let initial_velocity = values(&mut random, case.layer.len());
        let (mut layer, mut velocity) = (case.layer.clone(), initial_velocity.clone());
        let momentum = Momentum { factor: 0.9, velocity: &mut velocity };
        descend(&case.x, &case.delta, case.outputs, &mut layer, Some(momentum), 0.1, Pace::NONE);
        let updated_velocity: Vec<f32> =
            initial_velocity.iter().zip(&gradient).map(|(v, g)| 0.9 * v + g).collect();
        let expected: Vec<f32> = case.layer.iter().zip(&updated_velocity).map(|(w, v)| w - 0.1 * v).collect();
        assert_bits(&velocity, &updated_velocity, &case);
        assert_bits(&layer, &expected, &case);
    }
}

#[test]
fn momentum_equals_its_recursion() {
    let mut random = Random(8);
    let case = Case::new(&mut random, 6, 9, 5);
    let gradient = to_f64(&case.gradient());
    let (mut layer, mut velocity) = (case.layer.clone(), vec![0.0; case.layer.len()]);
    let (mut w, mut v) = (to_f64(&layer), to_f64(&velocity));
    for _ in 0..30 {
        let momentum = Momentum { factor: 0.5, velocity: &mut velocity };
        descend(&case.x, &case.delta, 5, &mut layer, Some(momentum), 0.01, Pace::NONE);
        for ((w, v), g) in w.iter_mut().zip(&mut v).zip(&gradient) {
            *v = 0.5 * *v + g;
            *w -= 0.01 * *v;
        }
    }
    for (weight, expected) in layer.iter().zip(w) {
        assert!((f64::from(*weight) - expected).abs() < 1e-5, "{weight} {expected}");
    }
}

/// The rounding error of a sum of `count` products is at most `count + 1` roundings of the sum of their
/// magnitudes.
#[test]
fn sums_are_close_to_f64() {
    for case in test_cases().filter(|case| case.inputs > 0) {
        let (x, w, delta) = (to_f64(&case.x), to_f64(&case.layer), to_f64(&case.delta));
        let (inputs, outputs) = (case.inputs, case.outputs);
        for (index, value) in case.forward().into_iter().enumerate() {
            let (n, o) = (index / outputs, index % outputs);
            let products = (0..inputs).map(|i| x[n * inputs + i] * w[i * outputs + o]);
            assert_sum(value, products.chain([w[inputs * outputs + o]]));
        }
        for (index, value) in case.backward().into_iter().enumerate() {
            let (n, i) = (index / inputs, index % inputs);
            let products = (0..outputs).map(|o| delta[n * outputs + o] * w[i * outputs + o]);
            if x[index] > 0.0 { assert_sum(value, products) } else { assert_eq!(value, 0.0) }
        }
        for (index, value) in case.gradient().into_iter().enumerate() {
            let (i, o) = (index / outputs, index % outputs);
            let input = |n: usize| if i == inputs { 1.0 } else { x[n * inputs + i] };
            assert_sum(value, (0..case.n).map(|n| input(n) * delta[n * outputs + o]));
        }
    }
}

/// Asserts that a value is the sum of these terms, up to the rounding of as many additions.
#[track_caller]
fn assert_sum(value: f32, terms: impl Iterator<Item = f64>) {
    let mut sum = 0.0;
    let mut size = 0.0;
    let mut count = 1.0;
    for term in terms {
        (sum, size, count) = (sum + term, size + term.abs(), count + 1.0);
    }
    assert!((f64::from(value) - sum).abs() <= 1.01 * count * EPS * size, "{value} {sum}");
}

#[test]
fn relu_zeroes_values_that_are_not_positive() {
    let mut values = [-1.0, -0.0, 0.0, 2.0, f32::NEG_INFINITY, f32::INFINITY];
    relu(&mut values);
    assert_eq!(values.map(f32::to_bits), [0.0, 0.0, 0.0, 2.0, 0.0, f32::INFINITY].map(f32::to_bits));
    let mut not_a_number = [f32::NAN];
    relu(&mut not_a_number);
    assert!(not_a_number[0].is_nan(), "divergence was not detected");
}

#[test]
fn softmax_equals_f64() {
    let mut random = Random(3);
    for _ in 0..200 {
        let (n, count) = (1 + random.below(9), 1 + random.below(30));
        let logits: Vec<f32> = values(&mut random, n * count).into_iter().map(|l| l * 20.0).collect();
        let classes: Vec<u8> = (0..n).map(|_| random.below(count) as u8).collect();
        let mut errors = logits.clone();
        assert!(softmax_errors(&mut errors, &classes, 0.5, Pace::NONE));
        for ((logits, errors), &class) in logits.chunks(count).zip(errors.chunks(count)).zip(&classes) {
            let logits = to_f64(logits);
            for (index, (error, expected)) in errors.iter().zip(naive::softmax(&logits)).enumerate() {
                let expected = 0.5 * (expected - f64::from(u8::from(index == usize::from(class))));
                assert!((f64::from(*error) - expected).abs() < SOFTMAX_ERROR, "{error} {expected}");
            }
        }
        let logits = &logits[..count];
        let expected = naive::cross_entropy(&to_f64(logits), classes[0]);
        let computed = cross_entropy(logits, usize::from(classes[0]));
        assert!((computed - expected).abs() < 1e-9 * (1.0 + expected), "{computed} {expected}");
    }
}

#[test]
fn softmax_of_extremes_is_finite() {
    const LARGEST: f32 = f32::MAX;
    for logits in [
        [1e30, -1e30, 0.0],
        [-LARGEST, -LARGEST, -LARGEST],
        [LARGEST, LARGEST, -LARGEST],
        [0.0; 3],
        [-LARGEST, 0.0, LARGEST],
    ] {
        for class in 0..3 {
            let mut errors = logits;
            assert!(softmax_errors(&mut errors, &[class], 1.0, Pace::NONE), "{logits:?}");
            assert!(errors.iter().sum::<f32>().abs() < 1e-6, "{errors:?}");
            assert!(cross_entropy(&logits, usize::from(class)).is_finite(), "{logits:?}");
        }
    }
    let mut equal = [7.0; 4];
    assert!(softmax_errors(&mut equal, &[2], 1.0, Pace::NONE));
    assert_eq!(equal, [0.25, 0.25, -0.75, 0.25]);
    assert!((cross_entropy(&[7.0; 4], 2) - 4f64.ln()).abs() < 1e-15);
}

#[test]
fn non_finite_logits_are_reported() {
    for non_finite in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for index in 0..4 {
            let mut logits = [0.5; 4];
            logits[index] = non_finite;
            // A single logit of minus infinity has a softmax of zero, which is defined.
            let defined = non_finite == f32::NEG_INFINITY;
            assert_eq!(
                softmax_errors(&mut logits.clone(), &[0, 1], 1.0, Pace::NONE),
                defined,
                "{non_finite} at {index}"
            );
            assert_eq!(
                softmax_errors(&mut logits, &[0], 1.0, Pace::NONE),
                defined,
                "{non_finite} at {index}"
            );
        }
    }
    assert!(!softmax_errors(&mut [f32::NEG_INFINITY; 2], &[0], 1.0, Pace::NONE));
    assert!(!softmax_errors(&mut [1.0, 2.0], &[2], 1.0, Pace::NONE), "a class out of range was accepted");
    assert!(!softmax_errors(&mut [1.0, 2.0, 3.0], &[0, 0], 1.0, Pace::NONE), "surplus logits were accepted");
    assert!(cross_entropy(&[1.0, 2.0], 2).is_nan());
    assert!(cross_entropy(&[1.0, f32::NAN], 0).is_nan());
    assert!(cross_entropy(&[1.0, f32::INFINITY], 1).is_nan());
}

proptest! {
    #[test]
    fn wrong_lengths_do_not_panic(
        lengths in prop::array::uniform5(0usize..70), outputs in 0usize..20, classes in 0usize..9,
    ) {
        let [x, delta, layer, velocity, out] = lengths.map(|length| vec![0.5f32; length]);
        let (mut out, mut layer, mut velocity) = (out, layer, velocity);
        forward(&x, &layer, outputs, &mut out, Pace::NONE);
        backward(&delta, &layer, outputs, &x, &mut out, Pace::NONE);
        backward_linear(&delta, &layer, outputs, &mut out, Pace::NONE);
        add_gradient(&x, &delta, outputs, &mut out, Pace::NONE);
        descend(&x, &delta, outputs, &mut layer, None, 0.1, Pace::NONE);
        descend(&x, &delta, outputs, &mut layer, Some(Momentum { factor: 0.5, velocity: &mut velocity }), 0.1, Pace::NONE);
        let finite = softmax_errors(&mut out, &vec![0; classes], 0.1, Pace::NONE);
        prop_assert!(finite || classes == 0 || out.len() % classes != 0 || out.len() < classes);
        let _ = cross_entropy(&out, classes);
    }
}
