//! `step_size = "auto"` of linear models: one over the curvature of the loss in the representation, measured on the training
//! samples before the first round.

use fedspan_aggregator::linalg::{Matrix, orthonormal, to_f32};
use fedspan_protocol::message::{HeadSolve, Numeric};
use rayon::prelude::*;

use crate::data::{Dataset, Labels, Set};
use crate::evaluate;

/// Power iterations: the largest curvature is found to a percent where it is that far above the next, and where it is not
/// the next does as well.
const ITERATIONS: usize = 60;

/// Step sizes that were measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// Of the representation.
    pub step_size: f64,
    /// Of a head under it.
    pub head_step_size: f64,
}

/// Measures step sizes at the start `b` (d x k), with heads fitted on it as `head` says.
///
/// The loss of client i is quadratic in B: its curvature is `V -> (1/m) X^T X V W W^T` with the head W that its samples have on
/// `b`. Of the mean over clients the largest eigenvalue L is found by power iteration. What heads explain of the targets
/// grows as B is learnt, and the curvature with it: L is multiplied by |Y|^2 / |X B W|^2. The step is 1 / L. That of a head
/// is one over the largest eigenvalue of the mean of `(1/m) B^T X^T X B`.
#[must_use]
pub fn steps(dataset: &Dataset, b: &Matrix, head: HeadSolve) -> Option<Steps> {
    let basis = orthonormal(b).ok()?;
    let (d, k) = basis.shape();
    let shape = evaluate::shape_of(dataset, k);
    let heads = evaluate::personal(&dataset.clients, &to_f32(&basis), shape, head, Numeric::F32);
    let c = dataset.outputs;
    let each: Vec<(&Set, Matrix)> = dataset
        .clients
        .iter()
        .zip(&heads)
        .filter(|(client, _)| !client.train.is_empty())
        .map(|(client, fitted)| (&*client.train, Matrix::from_row_slice(k, c, &fitted.head)))
        .collect();
    // In the order of clients, whatever the threads.
    let mean = |of: &(dyn Fn(&Set, &Matrix) -> Matrix + Sync)| {
        let all: Vec<Matrix> = each.par_iter().map(|(set, w)| of(set, w)).collect();
        all.into_iter().fold(Matrix::zeros(d, k), |sum, one| sum + one) / each.len().max(1) as f64
    };
    let start = Matrix::from_fn(d, k, |i, j| if j == 0 { 1.0 } else { 0.0 } + basis[(i, j)]);
    let curvature = largest(start.clone(), |v| mean(&|set, w| second_moment(set, v, Some(w))));
    let of_head = largest(basis.clone(), |v| {
        // Along the basis alone.
        let whole = mean(&|set, _| second_moment(set, v, None));
        along(&basis, &whole)
    });
    let (mut explained, mut targets) = (0.0, 0.0);
    for (set, w) in &each {
        let (y_hat, y) = energies(set, &basis, w);
        explained += y_hat / set.len() as f64;
        targets += y / set.len() as f64;
    }
    let growth = (targets / explained).max(1.0);
    let sound = |step: f64| step.is_finite() && step > 0.0;
    let (step_size, head_step_size) = (1.0 / (curvature * growth), 1.0 / of_head);
    (sound(step_size) && sound(head_step_size)).then_some(Steps { step_size, head_step_size })
}

/// The largest eigenvalue of a positive map of matrices, by power iteration from `v`.
fn largest(mut v: Matrix, map: impl Fn(&Matrix) -> Matrix) -> f64 {
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

/// `(1/m) X^T X V W W^T`, without the heads where there are none.
fn second_moment(set: &Set, v: &Matrix, w: Option<&Matrix>) -> Matrix {
    let (d, k) = v.shape();
    let mut sum = vec![0.0; d * k];
    let columns: Vec<f64> = (0..d).flat_map(|i| (0..k).map(move |j| (i, j))).map(|at| v[at]).collect();
    for x in set.x.chunks_exact(d.max(1)) {
        let mut z = vec![0.0; k];
        for (x, row) in x.iter().zip(columns.chunks_exact(k.max(1))) {
            z.iter_mut().zip(row).for_each(|(z, v)| *z += f64::from(*x) * v);
        }
        let z = match w {
            None => z,
            Some(w) => {
                let u: Vec<f64> = (0..w.ncols()).map(|o| (0..k).map(|j| z[j] * w[(j, o)]).sum()).collect();
                (0..k).map(|j| (0..w.ncols()).map(|o| u[o] * w[(j, o)]).sum()).collect()
            }
        };
        for (x, row) in x.iter().zip(sum.chunks_exact_mut(k.max(1))) {
            row.iter_mut().zip(&z).for_each(|(sum, z)| *sum += f64::from(*x) * z);
        }
    }
    Matrix::from_row_slice(d, k, &sum) / set.len().max(1) as f64
}

/// `B B^T V`.
fn along(basis: &Matrix, v: &Matrix) -> Matrix {
    let (d, k) = basis.shape();
    let inner = Matrix::from_fn(k, v.ncols(), |i, j| (0..d).map(|row| basis[(row, i)] * v[(row, j)]).sum());
    Matrix::from_fn(d, v.ncols(), |i, j| (0..k).map(|at| basis[(i, at)] * inner[(at, j)]).sum())
}

/// Sums of squares of what a head answers on a set, and of its targets.
fn energies(set: &Set, b: &Matrix, w: &Matrix) -> (f64, f64) {
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
