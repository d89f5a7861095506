//! One sample through one layer of a network and back, in f64 and by its definition.

use fedspan_client::kernel::Layer;
#[cfg(feature = "convolution")]
use fedspan_client::kernel::convolution::{Convolution, MaxPooling};

/// What goes into an output: which inputs with which rows of the matrix, and the column.
type Terms = (Vec<(usize, usize)>, usize);

/// A sample that has gone through a layer.
pub struct Pass {
    layer: Layer,
    x: Vec<f64>,
    /// What the layer made of it, before the ReLU.
    pub out: Vec<f64>,
    terms: Vec<Terms>,
}

impl Pass {
    pub fn new(layer: Layer, x: Vec<f64>, weights: &[f64]) -> Self {
        let terms: Vec<Terms> = match layer {
            Layer::Dense { inputs, outputs } => {
                let all: Vec<_> = (0..inputs).map(|input| (input, input)).collect();
                (0..outputs).map(|output| (all.clone(), output)).collect()
            }
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
        };
        let out = terms.iter().map(|terms| sum(terms, &x, weights, layer)).collect();
        Self { layer, x, out, terms }
    }

    /// Adds the gradient, from the errors of the outputs.
    pub fn add_gradient(&self, errors: &[f64], sums: &mut [f64]) {
        let (rows, columns) = self.layer.matrix();
        for ((terms, column), error) in self.terms.iter().zip(errors) {
            for (input, row) in terms {
                sums[row * columns + column] += self.x[*input] * error;
            }
            sums[rows * columns + column] += error;
        }
    }

    /// The errors of the inputs; zero where they are not positive.
    pub fn back(&self, errors: &[f64], weights: &[f64]) -> Vec<f64> {
        let (_, columns) = self.layer.matrix();
        let mut back = vec![0.0; self.x.len()];
        for ((terms, column), error) in self.terms.iter().zip(errors) {
            for (input, row) in terms {
                back[*input] += weights[row * columns + column] * error;
            }
        }
        back.iter().zip(&self.x).map(|(error, x)| if *x > 0.0 { *error } else { 0.0 }).collect()
    }
}

/// An output, with its bias.
fn sum((terms, column): &Terms, x: &[f64], weights: &[f64], layer: Layer) -> f64 {
    let (rows, columns) = layer.matrix();
    let products: f64 = terms.iter().map(|(input, row)| x[*input] * weights[row * columns + column]).sum();
    products + weights[rows * columns + column]
}

/// What goes into each of the values of which output `index` of filters is the largest.
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
