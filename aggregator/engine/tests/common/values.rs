//! Test helpers: random matrices, tensors and updates, and comparisons of matrices.
#![allow(dead_code)]

use fedspan_engine::linalg::Matrix;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_engine::{Tensor, Update};
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::{Encoding, TensorDescriptor};

/// Bits of the values of a matrix, for exact comparisons.
pub fn bits(matrix: &Matrix) -> Vec<u64> {
    matrix.iter().map(|v| v.to_bits()).collect()
}

/// Frobenius norm of the difference of two matrices.
pub fn distance(first: &Matrix, second: &Matrix) -> f64 {
    (first - second).norm()
}

/// Random stream with a fixed seed and this index.
pub fn random(index: u64) -> Stream {
    stream(77, Purpose::Truth, index)
}

/// Matrix of independent standard normal values.
pub fn gaussian(rows: usize, cols: usize, random: &mut Stream) -> Matrix {
    Matrix::from_fn(rows, cols, |_, _| random.normal())
}

/// Random tensors that match the descriptors of a request. Values are normal with standard deviation `scale`.
pub fn random_tensors(expects: &[TensorDescriptor], random: &mut Stream, scale: f64) -> Vec<Tensor> {
    let tensor = |d: &TensorDescriptor| Tensor {
        role: d.role,
        rows: d.rows,
        cols: d.cols,
        values: (0..d.elements()).map(|_| (random.normal() * scale) as f32).collect(),
    };
    expects.iter().map(tensor).collect()
}

/// Update as a connection passes it to the engine.
pub fn create_update(
    id: RoundId,
    samples: u32,
    expects: &[TensorDescriptor],
    tensors: Vec<Tensor>,
) -> Update {
    Update { id, samples, skipped: 0, descriptors: expects.to_vec(), tensors }
}

/// Wire encoding of values.
pub fn encode_values(encoding: Encoding, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; encoding.byte_len(values.len())];
    encoding.encode(values, &mut bytes).unwrap();
    bytes
}
