//! Tests of the LSTM layer: against loops in f64 and in f32, against finite differences, and properties of
//! the gates.
#![cfg(feature = "recurrent")]

use crate::common::Random;
use crate::common::dense::{to_f64, values};
use fedspan_client::kernel::dense::{add_gradient, backward_linear, descend, forward, softmax_errors};
use fedspan_client::kernel::recurrent::Lstm;
use fedspan_client::pace::Pace;
use proptest::prelude::*;

/// Layer, batch of `n` sequences, and errors of the layer's outputs.
struct Case {
    lstm: Lstm,
    n: usize,
    x: Vec<f32>,
    layer: Vec<f32>,
    delta: Vec<f32>,
}

/// Results of a case: outputs, errors of the inputs, gradient.
type Outcome = [Vec<f32>; 3];

impl Case {
    /// Draws `n` sequences and the layer.
    fn new(random: &mut Random, n: usize, [steps, channels, cells]: [usize; 3]) -> Self {
        let lstm = Lstm { steps, channels, cells };
        let mut values = |count| values(random, count);
        let (x, layer, delta) = (values(n * lstm.inputs()), values(lstm.layer()), values(n * cells));
        Self { lstm, n, x, layer, delta }
    }

    /// Runs the case in memory for `spare` more sequences, which is full of other data.
    fn run_case(&self, spare: usize) -> Outcome {
        let Self { lstm, n, x, layer, delta } = self;
        let mut memory = vec![f32::NAN; lstm.memory(n + spare)];
        let (mut out, mut errors) = (vec![f32::NAN; delta.len()], vec![f32::NAN; x.len()]);
        let mut gradient = vec![0.0; layer.len()];
        lstm.forward(x, layer, &mut memory, &mut out, Pace::NONE);
        let (rows, gates) = lstm.backward(delta, layer, &mut memory, &mut errors, Pace::NONE);
        add_gradient(rows, gates, lstm.gates(), &mut gradient, Pace::NONE);
        [out, errors, gradient]
    }

    /// Returns the case with only the sequence `index`.
    fn single_sequence(&self, index: usize) -> Self {
        let part = |values: &[f32], width: usize| values[index * width..(index + 1) * width].to_vec();
        let (x, delta) = (part(&self.x, self.lstm.inputs()), part(&self.delta, self.lstm.cells));
        Self { n: 1, x, delta, layer: self.layer.clone(), ..*self }
    }
}

/// Returns cases with one step and many, one cell, no channels, and sizes that no tile divides.
fn test_cases() -> impl Iterator<Item = Case> {
    let mut random = Random(21);
    let shapes =
        [[1, 1, 1], [7, 3, 5], [12, 6, 8], [4, 0, 3], [3, 9, 17], [25, 2, 10], [1, 40, 33], [0, 4, 3]];
    let sizes = [1, 2, 3, 5, 11].into_iter().flat_map(move |n| shapes.map(|shape| (n, shape)));
    sizes.map(move |(n, shape)| Case::new(&mut random, n, shape))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts that two results are equal bit for bit.
#[track_caller]
fn assert_bits(actual: &Outcome, expected: &Outcome, case: &Case) {
    for (actual, expected) in actual.iter().zip(expected) {
        assert!(bits(actual) == bits(expected), "{} of {:?}: {actual:?} {expected:?}", case.n, case.lstm);
    }
}

/// Computes the hidden state after the last step of one sequence, from the definition.
fn lstm_oracle(lstm: &Lstm, x: &[f64], layer: &[f64]) -> Vec<f64> {
    let Lstm { steps, channels, cells } = *lstm;
    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
    let (mut h, mut c) = (vec![0.0; cells], vec![0.0; cells]);
    for step in 0..steps {
        let row: Vec<f64> = x[step * channels..][..channels].iter().chain(&h).copied().chain([1.0]).collect();
        let gate = |number: usize, cell: usize| -> f64 {
            let weight = |row_index: usize| layer[row_index * 4 * cells + number * cells + cell];
            row.iter().enumerate().map(|(row_index, value)| value * weight(row_index)).sum()
        };
        let mut next_h = Vec::new();
        for (cell, c) in c.iter_mut().enumerate() {
            *c = sigmoid(gate(1, cell)) * *c + sigmoid(gate(0, cell)) * gate(2, cell).tanh();
            next_h.push(sigmoid(gate(3, cell)) * c.tanh());
        }
        h = next_h;
    }
    h
}

proptest! {
    #[test]
    fn forward_equals_the_definition(
        seed: u64, n in 1usize..6, steps in 0usize..20, channels in 0usize..9, cells in 1usize..12,
    ) {
        let case = Case::new(&mut Random(seed), n, [steps, channels, cells]);
        let [out, ..] = case.run_case(0);
        for (index, out) in out.chunks(cells).enumerate() {
            let expected = lstm_oracle(&case.lstm, &to_f64(&case.single_sequence(index).x), &to_f64(&case.layer));
            for (value, expected) in out.iter().zip(expected) {
                prop_assert!((f64::from(*value) - expected).abs() < 1e-5, "{value} {expected}");
            }
        }
    }

    /// The gradients of `<delta, h>` with respect to every weight and input equal finite differences.
    #[test]
    fn errors_and_gradients_equal_finite_differences(
        seed: u64, n in 1usize..4, steps in 1usize..9, channels in 0usize..5, cells in 1usize..6,
    ) {
        const STEP: f64 = 1e-5;
        let case = Case::new(&mut Random(seed), n, [steps, channels, cells]);
        let [_, errors, gradient] = case.run_case(0);
        let delta = to_f64(&case.delta);
        let weighted_sum = |x: &[f64], layer: &[f64]| -> f64 {
            let inputs = case.lstm.inputs();
            let value_of = |index: usize| {
                let h = lstm_oracle(&case.lstm, &x[index * inputs..][..inputs], layer);
                h.iter().zip(&delta[index * cells..]).map(|(h, delta)| h * delta).sum::<f64>()
            };
            (0..n).map(value_of).sum()
        };
        let (mut x, mut layer) = (to_f64(&case.x), to_f64(&case.layer));
        for (index, &computed) in gradient.iter().enumerate() {
            let w = layer[index];
            let [up, down] = [w + STEP, w - STEP].map(|w| { layer[index] = w; weighted_sum(&x, &layer) });
            layer[index] = w;
            let slope = (up - down) / (2.0 * STEP);
            prop_assert!((f64::from(computed) - slope).abs() < 1e-5, "weight {index}: {computed} {slope}");
        }
        for (index, &computed) in errors.iter().enumerate() {
            let w = x[index];
            let [up, down] = [w + STEP, w - STEP].map(|w| { x[index] = w; weighted_sum(&x, &layer) });
            x[index] = w;
            let slope = (up - down) / (2.0 * STEP);
            prop_assert!((f64::from(computed) - slope).abs() < 1e-5, "input {index}: {computed} {slope}");
        }
    }

    #[test]
    fn wrong_lengths_do_not_panic(
        [steps, channels, cells] in prop::array::uniform3(0usize..6),
        lengths in prop::array::uniform5(0usize..300),
    ) {
        let lstm = Lstm { steps, channels, cells };
        let [x, layer, mut memory, mut out, delta] = lengths.map(|length| vec![0.5f32; length]);
        lstm.forward(&x, &layer, &mut memory, &mut out, Pace::NONE);
        let (rows, errors) = lstm.backward(&delta, &layer, &mut memory, &mut out, Pace::NONE);
        prop_assert_eq!(rows.len() * lstm.gates(), errors.len() * lstm.row());
        // A layer with too few weights is ignored.
        let weights = vec![0.5; lstm.layer()];
        let mut large_memory = vec![0.5; lstm.memory(3)];
        let mut out = vec![7.0; 3 * cells];
        lstm.forward(&x, &weights[..weights.len().saturating_sub(1)], &mut large_memory, &mut out, Pace::NONE);
        prop_assert!(out.iter().all(|&value| value == 7.0));
        // If the data are incomplete, only the complete sequences are used.
        let n = (delta.len() / cells.max(1)).min(3);
        lstm.forward(&x, &weights, &mut large_memory, &mut out, Pace::NONE);
        let (rows, _) = lstm.backward(&delta, &weights, &mut large_memory, &mut [], Pace::NONE);
        prop_assert_eq!(rows.len(), if cells > 0 { n * steps * lstm.row() } else { 0 });
    }
}

/// Computes one sequence in f32 with every sum in the stated order. Returns hidden state, errors of the
/// inputs and gradient.
fn compute_in_stated_order(case: &Case) -> Outcome {
    let Case { lstm: Lstm { steps, channels, cells }, x, layer, delta, .. } = case;
    let (steps, channels, cells, gate_width) = (*steps, *channels, *cells, 4 * *cells);
    let width = channels + cells;
    let sigmoid = |z: f32| 1.0 / (1.0 + libm::expf(-z));
    let (mut h, mut c) = (vec![0f32; cells], vec![vec![0f32; cells]]);
    let (mut rows, mut gates) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let row: Vec<f32> = x[step * channels..][..channels].iter().chain(&h).copied().collect();
        let sum = |column: usize| {
            (0..width).fold(layer[width * gate_width + column], |sum, i| {
                sum + row[i] * layer[i * gate_width + column]
            })
        };
        let gate: Vec<f32> = (0..gate_width)
            .map(|column| if column / cells == 2 { libm::tanhf(sum(column)) } else { sigmoid(sum(column)) })
            .collect();
        let new_state = |j: usize| gate[cells + j] * c[step][j] + gate[j] * gate[2 * cells + j];
        c.push((0..cells).map(new_state).collect());
        h = (0..cells).map(|j| gate[3 * cells + j] * libm::tanhf(c[step + 1][j])).collect();
        rows.push(row);
        gates.push(gate);
    }
    let mut errors = vec![0.0; x.len()];
    let (mut dh, mut dc) = (delta.clone(), vec![0f32; cells]);
    let mut dz = vec![vec![0f32; gate_width]; steps];
    for step in (0..steps).rev() {
        for j in 0..cells {
            let [i, f, g, o] = [0, 1, 2, 3].map(|number| gates[step][number * cells + j]);
            let t = libm::tanhf(c[step + 1][j]);
            dc[j] += dh[j] * o * (1.0 - t * t);
            dz[step][j] = dc[j] * g * (i * (1.0 - i));
            dz[step][cells + j] = dc[j] * c[step][j] * (f * (1.0 - f));
            dz[step][2 * cells + j] = dc[j] * i * (1.0 - g * g);
            dz[step][3 * cells + j] = dh[j] * t * (o * (1.0 - o));
            dc[j] *= f;
        }
        let input_error =
            |i: usize| (0..gate_width).fold(0.0, |sum, o| sum + dz[step][o] * layer[i * gate_width + o]);
        (0..channels).for_each(|i| errors[step * channels + i] = input_error(i));
        dh = (channels..width).map(input_error).collect();
    }
    let input = |step: usize, i: usize| if i == width { 1.0 } else { rows[step][i] };
    let element = |index: usize| {
        (0..steps).fold(0.0, |sum, step| sum + input(step, index / gate_width) * dz[step][index % gate_width])
    };
    [h, errors, (0..layer.len()).map(element).collect()]
}

#[test]
fn sums_run_in_the_stated_order() {
    for case in test_cases().filter(|case| case.n == 1) {
        assert_bits(&case.run_case(0), &compute_in_stated_order(&case), &case);
    }
}

/// A batch has the bits of its sequences computed alone, also in memory for more sequences.
#[test]
fn batch_equals_its_single_sequences() {
    for case in test_cases() {
        let [mut out, mut errors, mut gradient] = [vec![], vec![], vec![0.0; case.layer.len()]];
        for single in (0..case.n).map(|index| case.single_sequence(index)) {
            let mut memory = vec![0.0; single.lstm.memory(3)];
            let (mut h, mut e) = (vec![0.0; single.delta.len()], vec![0.0; single.x.len()]);
            single.lstm.forward(&single.x, &single.layer, &mut memory, &mut h, Pace::NONE);
            let (rows, gates) =
                single.lstm.backward(&single.delta, &single.layer, &mut memory, &mut e, Pace::NONE);
            add_gradient(rows, gates, single.lstm.gates(), &mut gradient, Pace::NONE);
            out.extend(h);
            errors.extend(e);
        }
        let expected = [out, errors, gradient];
        assert_bits(&case.run_case(0), &expected, &case);
        assert_bits(&case.run_case(4), &expected, &case);
    }
}

/// If no errors of the inputs are requested, the other results are the same.
#[test]
fn input_errors_are_optional() {
    for case in test_cases() {
        let Case { lstm, n, x, layer, delta } = &case;
        let mut memory = vec![0.0; lstm.memory(*n)];
        let mut gradient = vec![0.0; layer.len()];
        lstm.forward(x, layer, &mut memory, &mut vec![0.0; delta.len()], Pace::NONE);
        let (rows, gates) = lstm.backward(delta, layer, &mut memory, &mut [], Pace::NONE);
        add_gradient(rows, gates, lstm.gates(), &mut gradient, Pace::NONE);
        assert_eq!(bits(&gradient), bits(&case.run_case(0)[2]));
    }
}

/// Returns a layer of one cell. Each gate (input, forget, candidate, output) has weights for two channels and
/// the hidden state, and a bias.
fn one_cell(gates: [[f32; 4]; 4]) -> Vec<f32> {
    (0..4).flat_map(|row| gates.map(|gate| gate[row])).collect()
}

/// The input gate is open only in the first step, and the forget gate is always open, so the state that was
/// written in the first step stays.
#[test]
fn open_forget_and_closed_input_gate_keep_the_state() {
    let mut random = Random(4);
    let open = [0.0, 0.0, 0.0, 200.0];
    let layer = one_cell([[400.0, 0.0, 0.0, -200.0], open, [0.0, 0.7, 0.0, 0.0], open]);
    for steps in [1, 2, 50] {
        let lstm = Lstm { steps, channels: 2, cells: 1 };
        let mut x = values(&mut random, 2 * steps);
        x.iter_mut().step_by(2).for_each(|open| *open = 0.0);
        x[0] = 1.0;
        let (mut memory, mut out) = (vec![0.0; lstm.memory(1)], [0.0]);
        lstm.forward(&x, &layer, &mut memory, &mut out, Pace::NONE);
        assert_eq!(out, [libm::tanhf(libm::tanhf(0.7 * x[1]))], "{steps} steps");
        // The error propagates back to the written value and to no later input.
        let mut errors = vec![f32::NAN; x.len()];
        lstm.backward(&[1.0], &layer, &mut memory, &mut errors, Pace::NONE);
        assert!(errors[1] > 0.1 && errors[2..].iter().all(|&error| error == 0.0), "{errors:?}");
    }
}

#[test]
fn closed_forget_gate_clears_the_state() {
    let (open, closed) = ([0.0, 0.0, 0.0, 200.0], [0.0, 0.0, 0.0, -200.0]);
    let layer = one_cell([open, closed, [0.3, -0.8, 0.0, 0.1], open]);
    let lstm = Lstm { steps: 3, channels: 2, cells: 1 };
    let last_input = [0.4, -0.2];
    let output_after = |first_inputs: [f32; 4]| {
        let x: Vec<f32> = first_inputs.into_iter().chain(last_input).collect();
        let mut out = [0.0];
        lstm.forward(&x, &layer, &mut vec![0.0; lstm.memory(1)], &mut out, Pace::NONE);
        out[0]
    };
    assert_eq!(output_after([9.0, 1.0, -3.0, 0.5]).to_bits(), output_after([0.0; 4]).to_bits());
}

#[test]
fn without_weights_the_output_is_zero() {
    let mut random = Random(6);
    let mut case = Case::new(&mut random, 3, [9, 4, 5]);
    case.layer.fill(0.0);
    let [out, errors, gradient] = case.run_case(0);
    assert!(out.iter().chain(&errors).all(|&value| value == 0.0));
    // All candidates are zero, so only the weights of the candidates have a slope.
    for (index, slope) in gradient.iter().enumerate() {
        assert!(index / 5 % 4 == 2 || *slope == 0.0, "{index}: {slope}");
    }
    assert!(gradient[9 * 20 + 10..][..5].iter().all(|slope| *slope != 0.0), "{gradient:?}");
}

#[test]
fn saturated_gates_are_finite() {
    let mut random = Random(9);
    for size in [1e3, 1e30] {
        let mut case = Case::new(&mut random, 4, [6, 3, 7]);
        case.layer.iter_mut().for_each(|weight| *weight *= size);
        for values in case.run_case(0) {
            assert!(values.iter().all(|value| value.is_finite()), "{size}");
        }
        assert!(case.run_case(0)[0].iter().all(|value| value.abs() <= 1.0));
        assert!(case.run_case(0)[0].iter().any(|value| value.abs() > 0.5));
    }
}

/// A NaN reaches the outputs of its sequence, so that the softmax reports the divergence, and no other
/// sequence.
#[test]
fn nan_shows_and_stays_in_its_sequence() {
    let mut random = Random(10);
    let clean = Case::new(&mut random, 3, [5, 2, 4]);
    for position in [0, 9] {
        let mut case =
            Case { layer: clean.layer.clone(), x: clean.x.clone(), delta: clean.delta.clone(), ..clean };
        case.x[10 + position] = f32::NAN;
        let ([out, errors, gradient], [expected, back, _]) = (case.run_case(0), clean.run_case(0));
        assert!(out[4..8].iter().all(|value| value.is_nan()), "{out:?}");
        assert!(errors[10..20].iter().any(|value| value.is_nan()), "{errors:?}");
        assert!(gradient.iter().any(|value| value.is_nan()));
        assert_eq!((bits(&out[..4]), bits(&out[8..])), (bits(&expected[..4]), bits(&expected[8..])));
        assert_eq!((bits(&errors[..10]), bits(&errors[20..])), (bits(&back[..10]), bits(&back[20..])));
    }
    let mut case = clean;
    case.layer[3] = f32::NAN;
    assert!(case.run_case(0)[0].iter().any(|value| value.is_nan()));
}

/// The network must remember which of two channels is active in the first of eleven steps; the other steps
/// are noise. Only a state that persists distinguishes the classes. A dense layer takes the hidden state, and
/// errors reach the LSTM layer unmasked.
#[test]
fn lstm_learns_to_remember() {
    const N: usize = 20;
    const CELLS: usize = 6;
    let lstm = Lstm { steps: 11, channels: 2, cells: CELLS };
    for seed in 0..5 {
        let mut random = Random(seed);
        let mut layer = values(&mut random, lstm.layer());
        layer[lstm.row() * lstm.gates() + CELLS..][..CELLS].fill(4.0);
        let mut head = values(&mut random, (CELLS + 1) * 2);
        let (mut memory, mut out) = (vec![0.0; lstm.memory(N)], vec![0.0; N * CELLS]);
        let (mut logits, mut delta) = (vec![0.0; N * 2], vec![0.0; N * CELLS]);
        let mut correct_counts = Vec::new();
        for _ in 0..1000 {
            let mut x: Vec<f32> = values(&mut random, N * lstm.inputs()).iter().map(|x| x * 0.3).collect();
            let classes: Vec<u8> = (0..N).map(|_| random.below(2) as u8).collect();
            for (x, &class) in x.chunks_mut(lstm.inputs()).zip(&classes) {
                x[usize::from(class)] += 1.0;
            }
            lstm.forward(&x, &layer, &mut memory, &mut out, Pace::NONE);
            forward(&out, &head, 2, &mut logits, Pace::NONE);
            let is_correct =
                |(logits, &class): (&[f32], &u8)| logits[usize::from(class)] == logits[0].max(logits[1]);
            correct_counts.push(logits.chunks(2).zip(&classes).filter(|&pair| is_correct(pair)).count());
            assert!(softmax_errors(&mut logits, &classes, 1.0 / N as f32, Pace::NONE));
            backward_linear(&logits, &head, 2, &mut delta, Pace::NONE);
            let (rows, gates) = lstm.backward(&delta, &layer, &mut memory, &mut [], Pace::NONE);
            descend(rows, gates, lstm.gates(), &mut layer, None, 0.3, Pace::NONE);
            descend(&out, &logits, 2, &mut head, None, 0.3, Pace::NONE);
        }
        let correct: usize = correct_counts.iter().rev().take(20).sum();
        assert!(correct >= 20 * N * 9 / 10, "seed {seed}: {correct} of {}", 20 * N);
    }
}
