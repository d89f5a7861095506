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
                let all: Vec<_> = (0..inputs).map(|input| (input, input)).collect();
                (0..outputs).map(|output| (all.clone(), output)).collect()
            }
            #[cfg(feature = "adapter")]
            Layer::Down { .. } | Layer::Up { .. } => panic!("an adapter is tested by itself"),
            #[cfg(feature = "convolution")]
            Layer::Filters { convolution, pooling } => {
                let larger = |terms: &Terms| sum(terms, &x, weights, layer);
                let outputs = 0..pooling.outputs();
                let largest = |index| {
                    let places = seen(&convolution, &pooling, index);
                    places.max_by(|a, b| larger(a).total_cmp(&larger(b))).unwrap()
                };
                outputs.map(largest).collect()
            }
            #[cfg(feature = "recurrent")]
            Layer::Lstm(lstm) => {
                let out = steps(&lstm, &x, weights).pop().unwrap().hidden;
                return Self { layer, x, out, terms: Vec::new() };
            }
        };
        let out = terms.iter().map(|terms| sum(terms, &x, weights, layer)).collect();
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
            return through_time(&lstm, &self.x, weights, errors, sums);
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
    pub fn back(&self, errors: &[f64], weights: &[f64]) -> Vec<f64> {
        let (_, columns) = self.layer.matrix();
        let mut back = vec![0.0; self.x.len()];
        for ((terms, column), error) in self.terms.iter().zip(errors) {
            for (input, row) in terms {
                back[*input] += weights[row * columns + column] * error;
            }
        }
        back
    }
}

/// One step of LSTM cells: the inputs of the gates, the gates, and the states after the step.
#[cfg(feature = "recurrent")]
struct Moment {
    row: Vec<f64>,
    gates: Vec<[f64; 4]>,
    states: Vec<f64>,
    hidden: Vec<f64>,
}

/// Computes all steps of a sequence.
#[cfg(feature = "recurrent")]
fn steps(lstm: &Lstm, x: &[f64], weights: &[f64]) -> Vec<Moment> {
    let (n, sigmoid) = (lstm.cells, |z: f64| 1.0 / (1.0 + (-z).exp()));
    let (mut hidden, mut states) = (vec![0.0; n], vec![0.0; n]);
    let mut moments = Vec::new();
    for step in x.chunks(lstm.channels) {
        let row: Vec<f64> = step.iter().chain(&hidden).copied().chain([1.0]).collect();
        let sum = |column: usize| -> f64 {
            row.iter().zip(weights[column..].iter().step_by(4 * n)).map(|(x, w)| x * w).sum()
        };
        let gates: Vec<[f64; 4]> = (0..n)
            .map(|c| [sigmoid(sum(c)), sigmoid(sum(n + c)), sum(2 * n + c).tanh(), sigmoid(sum(3 * n + c))])
            .collect();
        for (c, [i, f, g, o]) in gates.iter().enumerate() {
            states[c] = f * states[c] + i * g;
            hidden[c] = o * states[c].tanh();
        }
        moments.push(Moment { row, gates, states: states.clone(), hidden: hidden.clone() });
    }
    moments
}

/// Adds the gradient for the given errors of the hidden state after the last step to `sums`.
#[cfg(feature = "recurrent")]
fn through_time(lstm: &Lstm, x: &[f64], weights: &[f64], errors: &[f64], sums: &mut [f64]) {
    let (n, moments) = (lstm.cells, steps(lstm, x, weights));
    let (mut of_hidden, mut of_states) = (errors.to_vec(), vec![0.0; n]);
    for (step, moment) in moments.iter().enumerate().rev() {
        let mut of_sums = vec![0.0; 4 * n];
        for (c, [i, f, g, o]) in moment.gates.iter().enumerate() {
            let tanh = moment.states[c].tanh();
            let before = if step > 0 { moments[step - 1].states[c] } else { 0.0 };
            of_states[c] += of_hidden[c] * o * (1.0 - tanh * tanh);
            of_sums[c] = of_states[c] * g * i * (1.0 - i);
            of_sums[n + c] = of_states[c] * before * f * (1.0 - f);
            of_sums[2 * n + c] = of_states[c] * i * (1.0 - g * g);
            of_sums[3 * n + c] = of_hidden[c] * tanh * o * (1.0 - o);
            of_states[c] *= f;
        }
        for (row, value) in moment.row.iter().enumerate() {
            for (column, error) in of_sums.iter().enumerate() {
                sums[row * 4 * n + column] += value * error;
            }
        }
        let back = |c: usize| -> f64 {
            let weights = &weights[(lstm.channels + c) * 4 * n..];
            weights.iter().zip(&of_sums).map(|(w, error)| w * error).sum()
        };
        of_hidden = (0..n).map(back).collect();
    }
}

/// Computes an output, including its bias.
fn sum((terms, column): &Terms, x: &[f64], weights: &[f64], layer: Layer) -> f64 {
    let (rows, columns) = layer.matrix();
    let products: f64 = terms.iter().map(|(input, row)| x[*input] * weights[row * columns + column]).sum();
    products + weights[rows * columns + column]
}

/// Returns the terms of each value of which output `index` of a convolution with pooling is the maximum.
#[cfg(feature = "convolution")]
fn seen<'a>(
    filters: &'a Convolution,
    pooling: &'a MaxPooling,
    index: usize,
) -> impl Iterator<Item = Terms> + 'a {
    let (pixel, filter) = (index / filters.filters, index % filters.filters);
    let (top, left) =
        (pixel / pooling.out_width() * pooling.rows, pixel % pooling.out_width() * pooling.columns);
    let corners =
        (top..top + pooling.rows).flat_map(move |y| (left..left + pooling.columns).map(move |x| (y, x)));
    corners.map(move |(y, x)| {
        let mut terms = Vec::new();
        for row in 0..filters.rows {
            for column in 0..filters.columns {
                for channel in 0..filters.channels {
                    let place = ((y + row) * filters.width + x + column) * filters.channels + channel;
                    terms.push((place, (row * filters.columns + column) * filters.channels + channel));
                }
            }
        }
        (terms, filter)
    })
}
