//! Updates of FedRep on linear models with nalgebra: a rival of [`super::updates`].

use std::time::Instant;

use nalgebra::{DMatrix, Dyn, linalg::Cholesky};

use super::updates::{ROUNDS, STEP_SIZE, Sizes, clients, labels, n};
use crate::benchmarks::side::{Facts, Setting, Side, Turn};

/// Samples and targets of a client.
struct Client {
    x: DMatrix<f32>,
    y: DMatrix<f32>,
}

/// Prepares the data.
///
/// # Errors
/// A sentence, if the file with the initial representation cannot be read.
pub fn start(sizes: &Sizes, setting: &Setting) -> Result<Side, String> {
    let Sizes { d, k, samples, outputs } = *sizes;
    let initial = DMatrix::from_row_slice(d, k, &setting.read("b.f32")?);
    let clients: Vec<Client> = clients(sizes)
        .iter()
        .map(|client| Client {
            x: DMatrix::from_row_slice(samples, d, &client.train.x),
            y: DMatrix::from_row_slice(samples, outputs, labels(client)),
        })
        .collect();
    let facts = Facts {
        program: "nalgebra 0.35".to_owned(),
        form: "client by client, preallocated".to_owned(),
        dtype: "f32".to_owned(),
        n: n(sizes),
        cost: None,
    };
    let samples_of_all = (samples * clients.len()) as f32;
    let (mut z, mut residual) = (DMatrix::zeros(samples, k), DMatrix::zeros(samples, outputs));
    let (mut column, mut gradient) = (DMatrix::zeros(d, outputs), DMatrix::zeros(d, k));
    let turn = Box::new(move |repeats| {
        let mut turn = Turn { seconds: 0.0, check: f64::NAN };
        for _ in 0..repeats {
            let begin = Instant::now();
            let mut b = initial.clone();
            for _ in 0..ROUNDS {
                gradient.fill(0.0);
                for Client { x, y } in &clients {
                    let w = solve(x, y, &b, &mut z)?;
                    residual.copy_from(y);
                    residual.gemm(1.0, &z, &w, -1.0);
                    column.gemm_tr(1.0, x, &residual, 0.0);
                    gradient.gemm(1.0, &column, &w.transpose(), 1.0);
                }
                b -= &gradient * (STEP_SIZE / samples_of_all);
                b = b.qr().q();
            }
            let mut heads = Vec::with_capacity(clients.len());
            for Client { x, y } in &clients {
                heads.push(solve(x, y, &b, &mut z)?);
            }
            turn.seconds += begin.elapsed().as_secs_f64();
            let squares = clients.iter().zip(&heads).map(|(Client { x, y }, w)| {
                let residual = x * &b * w - y;
                f64::from(residual.norm_squared())
            });
            turn.check = squares.sum::<f64>() / f64::from(2.0 * samples_of_all);
        }
        Ok(turn)
    });
    Ok(Side { facts, turn })
}

/// Returns the head of a client, and in `z` the projected samples.
fn solve(
    x: &DMatrix<f32>,
    y: &DMatrix<f32>,
    b: &DMatrix<f32>,
    z: &mut DMatrix<f32>,
) -> Result<DMatrix<f32>, String> {
    z.gemm(1.0, x, b, 0.0);
    let gram: Option<Cholesky<f32, Dyn>> = z.tr_mul(z).cholesky();
    gram.map(|gram| gram.solve(&z.tr_mul(y))).ok_or_else(|| "a client's samples determine no head".to_owned())
}
