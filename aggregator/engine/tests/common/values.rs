//! Random matrices, tensors and updates, and comparisons of matrices.
#![allow(dead_code)]

use fedspan_engine::linalg::Matrix;
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_engine::{Tensor, Update};
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::{Encoding, TensorDescriptor};

pub fn bits(matrix: &Matrix) -> Vec<u64> {
    matrix.iter().map(|v| v.to_bits()).collect()
}

pub fn distance(a: &Matrix, b: &Matrix) -> f64 {
    (a - b).norm()
}

pub fn random(index: u64) -> Stream {
    stream(77, Purpose::Truth, index)
}

pub fn gaussian(rows: usize, cols: usize, random: &mut Stream) -> Matrix {
    Matrix::from_fn(rows, cols, |_, _| random.normal())
}

/// Random tensors in answer to a request; each value is a normal number times `scale`.
pub fn tensors(expects: &[TensorDescriptor], random: &mut Stream, scale: f64) -> Vec<Tensor> {
    let tensor = |d: &TensorDescriptor| Tensor {
        role: d.role,
        rows: d.rows,
        cols: d.cols,
        values: (0..d.elements()).map(|_| (random.normal() * scale) as f32).collect(),
    };
    expects.iter().map(tensor).collect()
}

/// Update as the connection passes it on.
pub fn update(id: RoundId, samples: u32, expects: &[TensorDescriptor], tensors: Vec<Tensor>) -> Update {
    Update { id, samples, skipped: 0, descriptors: expects.to_vec(), tensors }
}

pub fn encoded(encoding: Encoding, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; encoding.byte_len(values.len())];
    encoding.encode(values, &mut bytes).unwrap();
    bytes
}
