//! Check of the rank of an uploaded gradient.
//!
//! The gradient of a representation is `1/m X^T (X B W - Y) W^T`: its rank is at most the number of outputs C,
//! for any samples, labels and head. Attackers that push against the mean of honest updates send a matrix of
//! full rank, unless they give it the form of a gradient, which limits them to C head directions each.

use fedspan_protocol::tensor::{Encoding, I8_BLOCK};
use nalgebra::SymmetricEigen;

use crate::linalg::{Matrix, from_f32, product_transposed};
use crate::types::Tensor;

/// Half of the distance of neighbouring values of [`Encoding::F16`] below its smallest normal number.
const F16_ABSOLUTE: f64 = 1.0 / 33_554_432.0;
/// Largest relative rounding error of [`Encoding::F16`].
const F16_RELATIVE: f64 = 1.0 / 2048.0;

/// Whether the part of a gradient beyond its best approximation of rank `outputs` has at most the fraction
/// `tolerance` of its norm, aside from the rounding by `encoding`. A gradient of rank `outputs` that was
/// rounded by `encoding` always passes, since no matrix of that rank is nearer than the best approximation.
pub(super) fn has_rank_of_outputs(
    gradient: &Tensor,
    outputs: usize,
    tolerance: f64,
    encoding: Encoding,
) -> bool {
    let (rows, columns) = (usize::from(gradient.rows), usize::from(gradient.cols));
    if outputs >= rows.min(columns) || tolerance >= 1.0 {
        return true;
    }
    let matrix = from_f32(rows, columns, &gradient.values);
    let smaller: Matrix = if columns <= rows {
        product_transposed(&matrix, &matrix)
    } else {
        let transposed = matrix.transpose();
        product_transposed(&transposed, &transposed)
    };
    let square = smaller.trace();
    let mut squares: Vec<f64> = SymmetricEigen::new(smaller).eigenvalues.iter().copied().collect();
    squares.sort_by(|a, b| b.total_cmp(a));
    let beyond: f64 = squares.iter().skip(outputs).map(|square| square.max(0.0)).sum();
    let allowed = tolerance * square.sqrt() + rounding(&gradient.values, square.sqrt(), encoding);
    beyond.sqrt() <= allowed
}

/// Largest norm of the rounding error of encoded values with this norm.
fn rounding(values: &[f32], norm: f64, encoding: Encoding) -> f64 {
    match encoding {
        Encoding::F32 => 0.0,
        Encoding::F16 => F16_RELATIVE * norm + F16_ABSOLUTE * (values.len() as f64).sqrt(),
        Encoding::I8 => {
            let block = |block: &[f32]| {
                let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                let half_step = f64::from(largest) / 254.0;
                block.len() as f64 * half_step * half_step
            };
            values.chunks(I8_BLOCK).map(block).sum::<f64>().sqrt()
        }
        // The protocol may get encodings whose rounding is not known here: their gradients pass.
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::to_f32;
    use crate::random::{Purpose, Stream, stream};
    use fedspan_protocol::tensor::Role;

    fn gaussian(rows: usize, columns: usize, random: &mut Stream) -> Matrix {
        Matrix::from_fn(rows, columns, |_, _| random.normal())
    }

    fn passes(matrix: &Matrix, outputs: usize, encoding: Encoding) -> bool {
        let values = crate::algorithm::decoded::as_decoded(to_f32(matrix), encoding);
        let (rows, cols) = (matrix.nrows() as u16, matrix.ncols() as u16);
        let tensor = Tensor { role: Role::Representation, rows, cols, values };
        has_rank_of_outputs(&tensor, outputs, 0.0, encoding)
            || (encoding == Encoding::F32 && has_rank_of_outputs(&tensor, outputs, 1e-6, encoding))
    }

    /// Gradients of rank C pass in every encoding, at any scale that the encoding represents, even without a
    /// tolerance beyond rounding; gradients of higher rank do not pass with the default tolerance.
    #[test]
    fn gradients_of_the_outputs_pass_and_others_do_not() {
        let random = &mut stream(5, Purpose::Start, 0);
        for (d, k, c) in [(10, 2, 1), (20, 4, 1), (57, 8, 3), (128, 16, 2), (3, 8, 2)] {
            for scale in [1e-4, 1.0, 100.0] {
                let heavy = Matrix::from_fn(d, c, |_, _| random.normal() * random.normal().exp() * scale);
                let gradient = heavy * gaussian(c, k, random);
                for encoding in [Encoding::F32, Encoding::F16, Encoding::I8] {
                    assert!(passes(&gradient, c, encoding), "{d} x {k}, {c} outputs, {scale}, {encoding:?}");
                }
                let full = gaussian(d, k, random) * scale;
                let values = to_f32(&full);
                let tensor = Tensor { role: Role::Representation, rows: d as u16, cols: k as u16, values };
                assert!(!has_rank_of_outputs(&tensor, c, 0.05, Encoding::F32), "{d} x {k}, {c} outputs");
                assert!(has_rank_of_outputs(&tensor, c, 1.0, Encoding::F32));
                assert!(has_rank_of_outputs(&tensor, k.min(d), 0.05, Encoding::F32));
            }
        }
    }

    #[test]
    fn zero_gradient_passes() {
        assert!(passes(&Matrix::zeros(20, 4), 1, Encoding::F32));
    }
}
