//! Rounding of models to the values that devices decode, and conversion of matrices to tensors.

use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role};

use crate::linalg::{Matrix, to_f32};
use crate::types::Tensor;

/// Returns the representation, as every device has it after decoding, as a tensor.
#[must_use]
pub fn decoded_representation(representation: &Matrix, encoding: Encoding) -> Tensor {
    let mut values = as_decoded(to_f32(representation), encoding);
    if encoding == Encoding::I8 {
        let _ = orthonormalise(&mut values, representation.ncols());
    }
    tensor(Role::Representation, representation, values)
}

/// Encodes and decodes values, so that they equal those on the devices.
pub(super) fn as_decoded(mut values: Vec<f32>, encoding: Encoding) -> Vec<f32> {
    if encoding != Encoding::F32 {
        let mut bytes = vec![0; encoding.byte_len(values.len())];
        // The lengths agree, so only values that are not finite fail here, and every device rejects a round
        // with such values.
        let _ = encoding.encode(&values, &mut bytes);
        let _ = encoding.decode(&bytes, &mut values);
    }
    values
}

/// Values widened to f64, which is exact.
pub(super) fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Tensor with the shape of `matrix` and the given row-major values.
pub(super) fn tensor(role: Role, matrix: &Matrix, values: Vec<f32>) -> Tensor {
    let to_u16 = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    Tensor { role, rows: to_u16(matrix.nrows()), cols: to_u16(matrix.ncols()), values }
}
