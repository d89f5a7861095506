//! Test helpers for networks: one sample through one layer, forward and backward, in f64 and by
//! definition.

use fedspan_client::kernel::Layer;
#[cfg(feature = "convolution")]
use fedspan_client::kernel::convolution::{Convolution, MaxPooling};
#[cfg(feature = "recurrent")]
use fedspan_client::kernel::recurrent::Lstm;

/// Terms of an output: pairs of an input index and a row of the weight matrix, and the column of the matrix.
type Terms = (Vec<(usize, usize)>, usize);

/// One sample's pass through a layer.
pub struct Pass {
    layer: Layer,
    x: Vec<f64>,
    /// Outputs of the layer, before a ReLU.
    pub out: Vec<f64>,
    /// Terms of each output; empty for LSTM cells.
    terms: Vec<Terms>,
}

impl Pass {
    /// Computes the outputs of the layer for the input `x`.
    pub fn new(layer: Layer, x: Vec<f64>, weights: &[f64]) -> Self {
        let terms: Vec<Terms> = match layer {
            Layer::Dense { inputs, outputs } => {
                let input_rows: Vec<_> = (0..inputs).map(|input| (input, input)).collect();
                (0..outputs).map(|output| (input_rows.clone(), output)).collect()
            }
            #[cfg(feature = "adapter")]
            Layer::Down { .. } | Layer::Up { .. } => panic!("an adapter is tested by itself"),
            #[cfg(feature = "convolution")]
            Layer::Filters { convolution, pooling } => {
                let value_of = |terms: &Terms| output_value(terms, &x, weights, layer);
                let outputs = 0..pooling.outputs();
                let largest = |index| {
                    let candidates = pooled_terms(&convolution, &pooling, index);
                    candidates.max_by(|a, b| value_of(a).total_cmp(&value_of(b))).unwrap()
                };
                outputs.map(largest).collect()
            }
            #[cfg(feature = "recurrent")]
            Layer::Lstm(lstm) => {
                let out = lstm_steps(&lstm, &x, weights).pop().unwrap().hidden;
                return Self { layer, x, out, terms: Vec::new() };
            }
        };
        let out = terms.iter().map(|terms| output_value(terms, &x, weights, layer)).collect();
        Self { layer, x, out, terms }
    }

    /// Returns true if a ReLU follows this layer inside a network.
    pub fn is_rectified(&self) -> bool {
        !self.terms.is_empty()
    }

    /// Adds the layer's gradient for the given errors of the outputs to `sums`.
    pub fn add_gradient(&self, errors: &[f64], weights: &[f64], sums: &mut [f64]) {
        let (rows, columns) = self.layer.matrix();
        #[cfg(feature = "recurrent")]
        if let Layer::Lstm(lstm) = self.layer {
            return add_lstm_gradient(&lstm, &self.x, weights, errors, sums);
        }
        let _ = weights;
        for ((terms, column), error) in self.terms.iter().zip(errors) {
            for (input, row) in terms {
                sums[row * columns + column] += self.x[*input] * error;
            }
            sums[rows * columns + column] += error;
        }
    }

    /// Returns the errors of the inputs. Not implemented for LSTM cells, which are always the first layer.
    pub fn input_errors(&self, errors: &[f64], weights: &[f64]) -> Vec<f64> {
        let (_, columns) = self.layer.matrix();
        let mut errors_below = vec![0.0; self.x.len()];
        for ((terms, column), error) in self.terms.iter().zip(errors) {
            for (input, row) in terms {
                errors_below[*input] += weights[row * columns + column] * error;
            }
        }
        errors_below
    }
}

/// One step of LSTM cells: the inputs of the gates, the gates, and the states after the step.
#[cfg(feature = "recurrent")]
struct LstmStep {
    row: Vec<f64>,
    gates: Vec<[f64; 4]>,
    states: Vec<f64>,
    hidden: Vec<f64>,
}

/// Computes all steps of a sequence.
#[cfg(feature = "recurrent")]
fn lstm_steps(lstm: &Lstm, x: &[f64], weights: &[f64]) -> Vec<LstmStep> {
    let (n, sigmoid) = (lstm.cells, |z: f64| 1.0 / (1.0 + (-z).exp()));
    let (mut hidden, mut states) = (vec![0.0; n], vec![0.0; n]);
    let mut steps = Vec::new();
    for step in x.chunks(lstm.channels) {
        let row: Vec<f64> = step.iter().chain(&hidden).copied().chain([1.0]).collect();
        let gate_input = |column: usize| -> f64 {
            row.iter().zip(weights[column..].iter().step_by(4 * n)).map(|(x, w)| x * w).sum()
        };
        let gates: Vec<[f64; 4]> = (0..n)
            .map(|c| {
                [
                    sigmoid(gate_input(c)),
                    sigmoid(gate_input(n + c)),
                    gate_input(2 * n + c).tanh(),
                    sigmoid(gate_input(3 * n + c)),
                ]
            })
            .collect();
        for (c, [i, f, g, o]) in gates.iter().enumerate() {
            states[c] = f * states[c] + i * g;
            hidden[c] = o * states[c].tanh();
        }
        steps.push(LstmStep { row, gates, states: states.clone(), hidden: hidden.clone() });
    }
    steps
}

/// Adds the gradient for the given errors of the hidden state after the last step to `sums`.
#[cfg(feature = "recurrent")]
fn add_lstm_gradient(lstm: &Lstm, x: &[f64], weights: &[f64], errors: &[f64], sums: &mut [f64]) {
    let (n, steps) = (lstm.cells, lstm_steps(lstm, x, weights));
    let (mut hidden_errors, mut state_errors) = (errors.to_vec(), vec![0.0; n]);
    for (step, step_values) in steps.iter().enumerate().rev() {
        let mut gate_errors = vec![0.0; 4 * n];
        for (c, [i, f, g, o]) in step_values.gates.iter().enumerate() {
            let tanh = step_values.states[c].tanh();
            let previous_state = if step > 0 { steps[step - 1].states[c] } else { 0.0 };
            state_errors[c] += hidden_errors[c] * o * (1.0 - tanh * tanh);
            gate_errors[c] = state_errors[c] * g * i * (1.0 - i);
            gate_errors[n + c] = state_errors[c] * previous_state * f * (1.0 - f);
            gate_errors[2 * n + c] = state_errors[c] * i * (1.0 - g * g);
            gate_errors[3 * n + c] = hidden_errors[c] * tanh * o * (1.0 - o);
            state_errors[c] *= f;
        }
        for (row, value) in step_values.row.iter().enumerate() {
            for (column, error) in gate_errors.iter().enumerate() {
                sums[row * 4 * n + column] += value * error;
            }
        }
        let hidden_error = |c: usize| -> f64 {
            let weights = &weights[(lstm.channels + c) * 4 * n..];
            weights.iter().zip(&gate_errors).map(|(w, error)| w * error).sum()
        };
        hidden_errors = (0..n).map(hidden_error).collect();
    }
}

/// Computes an output, including its bias.
fn output_value((terms, column): &Terms, x: &[f64], weights: &[f64], layer: Layer) -> f64 {
    let (rows, columns) = layer.matrix();
    let products: f64 = terms.iter().map(|(input, row)| x[*input] * weights[row * columns + column]).sum();
    products + weights[rows * columns + column]
}

/// Returns the terms of each value of which output `index` of a convolution with pooling is the maximum.
#[cfg(feature = "convolution")]
fn pooled_terms<'a>(
    filters: &'a Convolution,
    pooling: &'a MaxPooling,
    index: usize,
) -> impl Iterator<Item = Terms> + 'a {
    let (pixel, filter) = (index / filters.filters, index % filters.filters);
    let (first_row, first_column) =
        (pixel / pooling.out_width() * pooling.rows, pixel % pooling.out_width() * pooling.columns);
    let corners = (first_row..first_row + pooling.rows)
        .flat_map(move |y| (first_column..first_column + pooling.columns).map(move |x| (y, x)));
    corners.map(move |(y, x)| {
        let mut terms = Vec::new();
        for row in 0..filters.rows {
            for column in 0..filters.columns {
                for channel in 0..filters.channels {
                    let input = ((y + row) * filters.width + x + column) * filters.channels + channel;
                    terms.push((input, (row * filters.columns + column) * filters.channels + channel));
                }
            }
        }
        (terms, filter)
    })
}
