//! Test helpers for FedPower: rounds without a session, and their results in f64.

use fedspan_client::memory::Memory;
use fedspan_client::source::SampleSource;
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Mechanism, Release, Task};
use fedspan_protocol::message::{DeclineReason, PowerRows, PowerUpload, Task as Wire};
use fedspan_protocol::tensor::{Encoding, Role};

use super::{Heap, M, Random, Sliced, collect_upload, flat, matrix, open, receive};

pub const ROWS: [PowerRows; 2] = [PowerRows::Features, PowerRows::Weighted];
pub const UPLOADS: [PowerUpload; 3] =
    [PowerUpload::Product, PowerUpload::ProductAndBasis, PowerUpload::Basis];

/// Returns a FedPower task with f32 uploads.
pub fn fed_power(iterations: u16, rows: PowerRows, upload: PowerUpload) -> Wire {
    Wire::FedPower { iterations, rows, upload, encoding: Encoding::F32 }
}

/// Runs a round from the basis `z` (d x r). Returns the usage of samples and the upload.
pub fn power_round<A: Memory, P: Mechanism>(
    model: &mut Linear<A, P>,
    task: Wire,
    z: &[f32],
    source: &mut dyn SampleSource,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let shape = model.shape();
    let round = open(1, task, Role::Subspace, Encoding::F32, shape.features, shape.width);
    receive(model, &round, &[z])?;
    model.prepare(&Release::default())?;
    let usage = model.run(round.id, source)?;
    Ok((usage, collect_upload(model, 7)))
}

/// Returns the rows of `M`, each clipped to norm 1.
pub fn rows64(samples: &Sliced, rows: PowerRows) -> M {
    let (mut x, y) = (samples.x64(), samples.y64());
    for (mut x, y) in x.row_iter_mut().zip(y.row_iter()) {
        if rows == PowerRows::Weighted {
            x *= y.norm();
        }
        let norm = x.norm();
        if norm > 1.0 {
            x /= norm;
        }
    }
    x
}

/// Computes the moment matrix `A = (1/s) M^T M` of the clipped rows.
pub fn moment64(samples: &Sliced, rows: PowerRows) -> M {
    let m = rows64(samples, rows);
    m.transpose() * &m / m.nrows() as f64
}

/// Returns the orthonormal factor of a QR decomposition in which R has a positive diagonal.
pub fn orthonormal64(y: &M) -> M {
    let qr = y.clone().qr();
    let (mut q, r) = (qr.q(), qr.r());
    for (j, mut column) in q.column_iter_mut().enumerate() {
        if r[(j, j)] < 0.0 {
            column.neg_mut();
        }
    }
    q
}

/// Computes the tensors that a round uploads, in f64.
pub fn oracle(a: &M, z: &M, iterations: u16, upload: PowerUpload) -> Vec<M> {
    let (mut z, mut y) = (z.clone(), a * z);
    for _ in 1..iterations {
        z = orthonormal64(&y);
        y = a * &z;
    }
    match upload {
        PowerUpload::Product => vec![y],
        PowerUpload::ProductAndBasis => vec![y, z],
        _ => vec![orthonormal64(&y)],
    }
}

/// Splits an upload into its tensors.
pub fn split_tensors(d: usize, k: usize, sent: &[f32]) -> Vec<M> {
    sent.chunks(d * k).map(|tensor| matrix(d, k, tensor)).collect()
}

/// Creates samples with a decaying spectrum and norms around `size`, so that some rows are clipped and some
/// are not.
pub fn decaying_samples(random: &mut Random, d: usize, c: usize, m: usize, size: f64) -> Sliced {
    let rotation = random.orthonormal(d, d);
    let scale = M::from_fn(d, d, |i, j| if i == j { 0.6f64.powi(i as i32) } else { 0.0 });
    let x = random.gaussian(m, d) * scale * rotation.transpose() * size;
    Sliced::regression(flat(&x), random.normals(m * c), d, c)
}

/// Runs a round on a new device without noise.
pub fn run_power_round(
    samples: &Sliced,
    task: Wire,
    z: &[f32],
    k: usize,
) -> Result<(Usage, Vec<f32>), DeclineReason> {
    let mut model = Linear::new(Heap::power(samples.features, k, samples.outputs));
    power_round(&mut model, task, z, &mut samples.clone())
}

/// Returns the first k unit vectors as the columns of a d x k matrix, row-major.
pub fn identity_columns(d: usize, k: usize) -> Vec<f32> {
    flat(&M::identity(d, k))
}
