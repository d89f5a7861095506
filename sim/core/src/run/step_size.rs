//! Measurement of step sizes for linear models (`step_size = "auto"`). The step size is the inverse of the
//! curvature of the loss as a function of the representation, measured on the training samples before the
//! first round.

use fedspan_engine::linalg::{Matrix, orthonormal, to_f32};
use fedspan_protocol::message::HeadSolve;
use rayon::prelude::*;

use crate::data::{Client, Dataset, Labels, Set, shape_of};
use crate::evaluate::{self, ClientScore};
use crate::fleet::FleetArithmetic;
use crate::least_squares::{F64_ROUNDOFF, Problem, predict, solve};

/// Number of power iterations. The accuracy is 1 % if the largest eigenvalue is well separated. Otherwise the
/// result may be the next eigenvalue, which is close.
const ITERATIONS: usize = 60;

/// Measured step sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSizes {
    /// Step size of the representation.
    pub step_size: f64,
    /// Step size of a head on this representation.
    pub head_step_size: f64,
}

/// Measures step sizes at the initial representation `b` (d x k), with heads that are fitted by the solver
/// `head`. If rounds fit the head of each client exactly, `exact` is the ridge of these fits.
///
/// The loss of client i is quadratic in B. Its curvature is the map `V -> (1/m) X^T (I - P) X V W W^T`, where
/// W is the head fitted on `b`. If heads are refitted in every round, P projects onto the columns of X B,
/// along which the loss cannot decrease further (Golub and Pereyra 1973); otherwise P = 0. Power iteration
/// finds the largest eigenvalue L of the mean over clients. While B is learnt, heads explain more of the
/// targets and the curvature grows, so L is multiplied by |Y|^2 / |X B W|^2. The step size is 1 / L. On
/// features of unequal sizes heads may grow further. If rounds fit heads exactly, the step size is therefore
/// halved until the loss decreases in each of [`TRIAL_ROUNDS`] rounds with all clients. The step size of a
/// head is the inverse of the largest eigenvalue of the mean of `(1/m) B^T X^T X B`.
///
/// Returns `None` if the loss has no finite positive curvature.
#[must_use]
pub fn measure(dataset: &Dataset, b: &Matrix, head: HeadSolve, exact: Option<f64>) -> Option<StepSizes> {
    let basis = orthonormal(b).ok()?;
    let (d, k) = basis.shape();
    let shape = shape_of(dataset, k);
    let heads = evaluate::personal(&dataset.clients, &to_f32(&basis), shape, head, FleetArithmetic::F32);
    let c = dataset.outputs;
    let fitted_clients: Vec<(&Set, Matrix)> = dataset
        .clients
        .iter()
        .zip(&heads)
        .filter(|(client, _)| !client.train.is_empty())
        .map(|(client, fitted)| (&*client.train, Matrix::from_row_slice(k, c, &fitted.head)))
        .collect();
    // Clients are summed in order, so the result does not depend on the number of threads.
    let mean = |summand: &(dyn Fn(&Set, &Matrix) -> Matrix + Sync)| {
        let summands: Vec<Matrix> = fitted_clients.par_iter().map(|(set, w)| summand(set, w)).collect();
        summands.into_iter().fold(Matrix::zeros(d, k), |sum, value| sum + value)
            / fitted_clients.len().max(1) as f64
    };
    let start = Matrix::from_fn(d, k, |i, j| if j == 0 { 1.0 } else { 0.0 } + basis[(i, j)]);
    let largest_curvature = |fitted: Option<(&Matrix, f64)>| {
        largest_eigenvalue(start.clone(), |v| mean(&|set, w| curvature(set, v, w, fitted)))
    };
    let unfitted = largest_curvature(None);
    // With as many columns as features or samples, fitted heads are equally good for every basis, and the curvature is
    // a rounding error.
    let fitted = exact.map(|ridge| largest_curvature(Some((&basis, ridge))));
    let body_curvature = fitted.filter(|curvature| *curvature > ROUNDING * unfitted).unwrap_or(unfitted);
    let head_curvature =
        largest_eigenvalue(basis.clone(), |v| project_onto(&basis, &mean(&|set, _| second_moment(set, v))));
    let (mut explained, mut targets) = (0.0, 0.0);
    for (set, w) in &fitted_clients {
        let (y_hat, y) = sums_of_squares(set, &basis, w);
        explained += y_hat / set.len() as f64;
        targets += y / set.len() as f64;
    }
    let growth = (targets / explained).max(1.0);
    let is_valid = |step: f64| step.is_finite() && step > 0.0;
    let (mut step_size, head_step_size) = (1.0 / (body_curvature * growth), 1.0 / head_curvature);
    if !(is_valid(step_size) && is_valid(head_step_size)) {
        return None;
    }
    let mut halvings = 0;
    while exact.is_some() && halvings < MAX_HALVINGS && !loss_decreases(dataset, &basis, head, step_size) {
        (step_size, halvings) = (step_size / 2.0, halvings + 1);
    }
    Some(StepSizes { step_size, head_step_size })
}

/// Largest part of a curvature that is treated as rounding error.
const ROUNDING: f64 = 1e-9;

/// Number of rounds in a trial of a step size.
const TRIAL_ROUNDS: usize = 40;

/// Largest number of times that a step size is halved.
const MAX_HALVINGS: usize = 12;

/// Largest relative increase of a loss that is treated as rounding error.
const LOSS_TOLERANCE: f64 = 1e-5;

/// True if the loss of FedRep with exact heads decreases in every round of a trial with all clients.
/// Increases within rounding error are ignored.
fn loss_decreases(dataset: &Dataset, basis: &Matrix, head: HeadSolve, step: f64) -> bool {
    let mut b = basis.clone();
    let mut previous_loss = f64::INFINITY;
    let mut first = None;
    let shape = shape_of(dataset, basis.ncols());
    for _ in 0..TRIAL_ROUNDS {
        let heads = evaluate::personal(&dataset.clients, &to_f32(&b), shape, head, FleetArithmetic::F32);
        let loss = evaluate::average(&heads).loss.unwrap_or(0.0);
        let first = *first.get_or_insert(loss);
        if loss.is_nan() || loss > previous_loss * (1.0 + LOSS_TOLERANCE) + LOSS_TOLERANCE * first {
            return false;
        }
        previous_loss = loss;
        let client_gradient = |(client, fitted): (&Client, &ClientScore)| {
            let w = Matrix::from_row_slice(b.ncols(), dataset.outputs, &fitted.head);
            gradient(&client.train, &b, &w)
        };
        let gradients: Vec<Matrix> = dataset.clients.par_iter().zip(&heads).map(client_gradient).collect();
        let sum =
            gradients.into_iter().fold(Matrix::zeros(b.nrows(), b.ncols()), |sum, gradient| sum + gradient);
        let stepped = &b - sum * (step / dataset.clients.len().max(1) as f64);
        match orthonormal(&stepped) {
            Ok(next) => b = next,
            Err(_) => return false,
        }
    }
    true
}

/// Gradient of the loss of a client, `(1/m) X^T (X B W - Y) W^T`, d x k.
fn gradient(set: &Set, b: &Matrix, w: &Matrix) -> Matrix {
    let (k, c) = w.shape();
    let z = project_samples(set, b);
    let row = |(index, z): (usize, &[f64])| -> Vec<f64> {
        let residual = |o: usize| {
            let target = match &set.y {
                Labels::Classes(classes) => {
                    f64::from(u8::from(classes.get(index).is_some_and(|class| usize::from(*class) == o)))
                }
                Labels::Values { values, .. } | Labels::Absent(values) => {
                    values.get(index * c + o).map_or(0.0, |value| f64::from(*value))
                }
            };
            z.iter().enumerate().map(|(j, z)| z * w[(j, o)]).sum::<f64>() - target
        };
        let residual: Vec<f64> = (0..c).map(residual).collect();
        (0..k).map(|j| residual.iter().enumerate().map(|(o, r)| r * w[(j, o)]).sum()).collect()
    };
    multiply_by_samples(set, b.nrows(), k, z.chunks_exact(k.max(1)).enumerate().map(row))
}

/// Largest eigenvalue of a positive linear map on matrices, by power iteration from `v`. Returns 0 if an
/// iterate is zero or not finite.
fn largest_eigenvalue(mut v: Matrix, map: impl Fn(&Matrix) -> Matrix) -> f64 {
    let mut value = 0.0;
    for _ in 0..ITERATIONS {
        let norm = v.norm();
        if !(norm > 0.0 && norm.is_finite()) {
            return 0.0;
        }
        v = map(&(v / norm));
        value = v.norm();
    }
    value
}

/// Curvature `(1/m) X^T (I - P) X V W W^T` of a client. `fitted` is a basis and a ridge: P projects onto the
/// columns of X times the basis, shrunk by the ridge. If `fitted` is `None`, P = 0.
fn curvature(set: &Set, v: &Matrix, w: &Matrix, fitted: Option<(&Matrix, f64)>) -> Matrix {
    let (k, c) = w.shape();
    let mut predictions: Vec<f64> = Vec::with_capacity(set.len() * c);
    for z in project_samples(set, v).chunks_exact(k.max(1)) {
        predictions.extend((0..c).map(|o| z.iter().enumerate().map(|(j, z)| z * w[(j, o)]).sum::<f64>()));
    }
    if let Some((fitted, ridge)) = fitted {
        let z = project_samples(set, fitted);
        let problem =
            Problem { x: &z, y: &predictions, features: k, outputs: c, ridge, roundoff: F64_ROUNDOFF };
        let weights = solve(&problem).weights;
        let mut answer = vec![0.0; c];
        for (predictions, z) in predictions.chunks_exact_mut(c.max(1)).zip(z.chunks_exact(k.max(1))) {
            predict(&weights, z, &mut answer);
            predictions.iter_mut().zip(&answer).for_each(|(predictions, answer)| *predictions -= answer);
        }
    }
    let back_projected = |predictions: &[f64]| -> Vec<f64> {
        (0..k)
            .map(|j| predictions.iter().enumerate().map(|(o, predictions)| predictions * w[(j, o)]).sum())
            .collect()
    };
    multiply_by_samples(set, v.nrows(), k, predictions.chunks_exact(c.max(1)).map(back_projected))
}

/// Product `(1/m) X^T X V`, d x k.
fn second_moment(set: &Set, v: &Matrix) -> Matrix {
    let (d, k) = v.shape();
    multiply_by_samples(set, d, k, project_samples(set, v).chunks_exact(k.max(1)).map(<[f64]>::to_vec))
}

/// Product `X V`, m x k, row-major.
fn project_samples(set: &Set, v: &Matrix) -> Vec<f64> {
    let (d, k) = v.shape();
    let rows: Vec<f64> = (0..d).flat_map(|i| (0..k).map(move |j| (i, j))).map(|entry| v[entry]).collect();
    let mut projections = vec![0.0; set.len() * k];
    for (x, z) in set.x.chunks_exact(d.max(1)).zip(projections.chunks_exact_mut(k.max(1))) {
        for (x, row) in x.iter().zip(rows.chunks_exact(k.max(1))) {
            z.iter_mut().zip(row).for_each(|(z, v)| *z += f64::from(*x) * v);
        }
    }
    projections
}

/// Product `(1/m) X^T Z`, d x k, where `rows` are the rows of Z.
fn multiply_by_samples(set: &Set, d: usize, k: usize, rows: impl Iterator<Item = Vec<f64>>) -> Matrix {
    let mut sum = vec![0.0; d * k];
    for (x, z) in set.x.chunks_exact(d.max(1)).zip(rows) {
        for (x, row) in x.iter().zip(sum.chunks_exact_mut(k.max(1))) {
            row.iter_mut().zip(&z).for_each(|(sum, z)| *sum += f64::from(*x) * z);
        }
    }
    Matrix::from_row_slice(d, k, &sum) / set.len().max(1) as f64
}

/// Projection `B B^T V` of V onto the span of an orthonormal basis B.
fn project_onto(basis: &Matrix, v: &Matrix) -> Matrix {
    let (d, k) = basis.shape();
    let inner = Matrix::from_fn(k, v.ncols(), |i, j| (0..d).map(|row| basis[(row, i)] * v[(row, j)]).sum());
    Matrix::from_fn(d, v.ncols(), |i, j| (0..k).map(|l| basis[(i, l)] * inner[(l, j)]).sum())
}

/// Sum of squares of the predictions of a model `(b, w)` on a set, and sum of squares of the targets.
fn sums_of_squares(set: &Set, b: &Matrix, w: &Matrix) -> (f64, f64) {
    let (d, k) = b.shape();
    let mut answers = 0.0;
    for x in set.x.chunks_exact(d.max(1)) {
        let z: Vec<f64> =
            (0..k).map(|j| x.iter().enumerate().map(|(i, x)| f64::from(*x) * b[(i, j)]).sum()).collect();
        answers += (0..w.ncols()).map(|o| (0..k).map(|j| z[j] * w[(j, o)]).sum::<f64>().powi(2)).sum::<f64>();
    }
    let targets = match &set.y {
        Labels::Classes(classes) => classes.len() as f64,
        Labels::Values { values, .. } | Labels::Absent(values) => {
            values.iter().map(|value| f64::from(*value).powi(2)).sum()
        }
    };
    (answers, targets)
}
