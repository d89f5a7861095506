//! Test helpers for head fits: solvers of the head, and bounds of the errors that rounding causes.
//!
//! Let `u` be the rounding of f32 ([`EPS`]). Norms of `Z` are spectral norms, all other norms are Frobenius
//! norms.
//!
//! **Backward error.** Givens and Householder QR solve nearby data exactly, as do the normal equations while
//! the pivots stay close: `(Z + dZ)^T ((Z + dZ) W - (Y + dY)) = 0` with `|dZ| <= e |Z|`, `|dY| <= e |Y|`
//! (Higham, *Accuracy and Stability*, theorem 20.3 and section 20.4). The worst case of `e` is a small
//! multiple of `(m + k) u`. Independent roundings add up like a random walk (Higham and Mary, *A new approach
//! to probabilistic rounding error analysis*, 2019). An element goes through `m + k` steps. Each step has six
//! roundings of at most u (lemma 19.7) and 0.4 u on average, which add up to about u, and all steps to
//! `sqrt(m + k) u`. Storing `W` rounds once more. Hence `e = (sqrt(m + k) + 1) u`: [`rounding`].
//!
//! **Residual.** It follows that `r = Z^T (Z W - Y) = -dZ^T (Z W - Y) - Z^T dZ W + Z^T dY` to first order,
//! and because `|Z W - Y| <= |Y|` at the minimum, `|r| <= 2 e |Z| (|Z| |W| + |Y|)`. The quotient of `|r|` and
//! `|Z| (|Z| |W| + |Y|)` is the *normwise residual* ([`Residual::normwise`]).
//!
//! **Rank cut.** Columns that [`least_squares`] drops are further errors of the data. The norm of each
//! dropped column is at most `cut |Z| + 1e-18`, so the Frobenius norm of all dropped columns is at most
//! `sqrt(k)` times that bound. Columns are dropped only if the least singular value is no larger than this
//! Frobenius norm.
//!
//! **Underflow.** A product or quotient below f32's normal range has an error of up to `2^-150`, half the
//! least subnormal, at any size of the data (Higham, section 2.1): [`underflow_bound`].

use fedspan_client::kernel::constant_column::ConstantColumn;
use fedspan_client::kernel::least_squares::{Limits, add_normal, solve_normal};
use fedspan_client::kernel::qr_update::add_row;
use fedspan_client::kernel::rank::{RANK_CUT, least_squares};
use fedspan_client::pace::Pace;
use fedspan_client::{Linear, Recording, Task};
use fedspan_protocol::message::{HeadSolve, Task as Wire};

use super::{EPS, EXACT, Heap, M, Sliced, Svd, fed_rep_stream, identity};

/// Norm below which the solver treats a column as zero.
pub const SMALLEST: f64 = 1e-18;

/// Returns the powers of two by which columns are scaled up that are shorter than the longest one by a factor
/// of 32 or more, as `kernel::rank` does below full rank.
pub fn column_lifts(z: &M) -> Vec<f64> {
    let longest = z.column_iter().map(|column| column.norm()).fold(0.0, f64::max);
    let lift = |exponent: f64| if (1.0..56.0).contains(&exponent) { exponent.exp2() } else { 1.0 };
    let lift_of = |norm: f64| if norm < SMALLEST { 1.0 } else { lift((longest / norm).log2().floor() - 4.0) };
    z.column_iter().map(|column| lift_of(column.norm())).collect()
}

/// Returns the relative data error `e` that results from rounding over `m` samples and `k` columns.
pub fn rounding(m: usize, k: usize) -> f64 {
    (((m + k) as f64).sqrt() + 1.0) * EPS
}

/// Returns the largest normwise residual that rounding explains, and the rank cut if it is possible.
pub fn residual_bound(z: &Svd, m: usize) -> f64 {
    let k = z.s.len();
    // The smallest positive f32 takes the place of zero, so that no division by zero occurs.
    let (largest, root_k) = (z.largest().max(1e-45), (k as f64).sqrt());
    let smallest = z.s.iter().copied().fold(f64::INFINITY, f64::min);
    let dropped = root_k * (f64::from(RANK_CUT) + SMALLEST / largest);
    let cut_is_possible = m < k || smallest <= (dropped + rounding(m, k)) * largest;
    2.0 * (rounding(m, k) + if cut_is_possible { dropped } else { 0.0 })
}

/// Returns the part of `|r|` that underflow explains, for a `Z` of spectral norm `largest`. `r` is a k x c
/// matrix.
///
/// Each element of `Q^T Y` goes through m rotations of two products (then times `Z`), or each element of
/// `Z^T Y` is a sum of m products. The k x k solve after it has the error of at most `(k + 1)^3` products,
/// times up to `(1 + |Z|)^2`. Rounding `W` is one more error, times `|Z|^2`.
pub fn underflow_bound(largest: f64, m: usize, k: usize, c: usize) -> f64 {
    let products = (2 * m + (k + 1).pow(3)) as f64 * ((k * c) as f64).sqrt();
    2f64.powi(-150) * products * (1.0 + largest).powi(2)
}

/// Residual of the normal equations, with the quantities to which it is compared.
#[derive(Debug)]
pub struct Residual {
    /// Norm of the residual, `|Z^T (Z W - Y)|`.
    pub norm: f64,
    /// Norm of the right-hand side, `|Z^T Y|`.
    pub right_side: f64,
    /// Size of the terms of the residual, `|Z| (|Z| |W| + |Y|)`.
    pub data: f64,
}

impl Residual {
    /// Computes the residual of the head `w`. `largest` is `|Z|`.
    pub fn new(z: &M, largest: f64, y: &M, w: &M) -> Self {
        let norm = (z.transpose() * (z * w - y)).norm();
        let right_side = (z.transpose() * y).norm();
        Self { norm, right_side, data: largest * (largest * w.norm() + y.norm()) }
    }

    /// Returns the normwise residual, `|r| / (|Z| (|Z| |W| + |Y|))`.
    pub fn normwise_residual(&self) -> f64 {
        if self.norm == 0.0 { 0.0 } else { self.norm / self.data }
    }

    /// Returns the relative residual, `|r| / |Z^T Y|`.
    pub fn relative_residual(&self) -> f64 {
        if self.norm == 0.0 { 0.0 } else { self.norm / self.right_side }
    }

    /// Returns the cancellation in `Z^T Y`: the relative residual is the normwise residual times this factor.
    pub fn cancellation(&self) -> f64 {
        self.data / self.right_side
    }
}

/// Returns the largest distance of a head from the `oracle` of the same rank, for relative data errors of
/// `e`: first for the triangular solver, by Wedin's bound (Bjoerck, *Numerical Methods for Least Squares
/// Problems*, theorem 1.4.6), then for the normal equations. The normal equations are used at full rank only,
/// and their residual is multiplied by the square of the condition (Higham, section 20.4):
/// `W - oracle = (Z^T Z)^-1 r`.
pub fn head_bound(z: &M, y: &M, oracle: &M, largest: f64, condition: f64, e: f64) -> [f64; 2] {
    let misfit = (z * oracle - y).norm() / largest;
    let (w, y) = (oracle.norm(), y.norm() / largest);
    [e * condition * (2.0 * w + y + condition * misfit), 2.0 * e * condition.powi(2) * (w + y)]
}

/// Computes the head of `[Z | Y]` with the triangular kernels. Returns the head and the rank.
pub fn fit_by_rotations(z: &[f32], y: &[f32], k: usize, c: usize) -> (Vec<f32>, usize) {
    let (mut r, mut q) = (vec![0.0; k * k], vec![0.0; k * c]);
    for (z, y) in z.chunks(k).zip(y.chunks(c)) {
        add_row(&mut r, &mut q, &mut z.to_vec(), &mut y.to_vec(), Pace::NONE);
    }
    let rank = least_squares(
        &mut r,
        &mut q,
        &mut vec![0.0; k],
        &mut vec![0.0; 2 * k],
        ConstantColumn::default(),
        Pace::NONE,
    );
    (q, rank)
}

/// Computes the head with the normal equations. Returns `None` if a pivot is too small.
pub fn fit_by_normal_equations(z: &[f32], y: &[f32], k: usize, c: usize, limits: Limits) -> Option<Vec<f32>> {
    let (mut gram, mut rhs) = (vec![0.0; k * k], vec![0.0; k * c]);
    for (z, y) in z.chunks(k).zip(y.chunks(c)) {
        add_normal(&mut gram, &mut rhs, z, y);
    }
    solve_normal(&mut gram, &mut rhs, &mut vec![0.0; k], limits, Pace::NONE).then_some(rhs)
}

/// Computes the head with the complete client. `B` is the identity, so `Z` equals `X` bit for bit.
pub fn fit_by_client(z: &[f32], y: &[f32], k: usize, c: usize, head: HeadSolve) -> Vec<f32> {
    let mut model = Linear::new(Heap::new(k, k, c));
    model.set_representation(&identity(k)).unwrap();
    model.fit_head(head, &mut Recording::regression(z, y, k, c)).unwrap();
    head_of(&model)
}

/// Computes the head with the complete client from streamed samples.
pub fn fit_by_stream(z: &[f32], y: &[f32], k: usize, c: usize, head: HeadSolve) -> Vec<f32> {
    let mut model = Linear::new(Heap::streaming(k, k, c));
    let task = Wire::FitHead { head };
    let samples = Sliced::regression(z.to_vec(), y.to_vec(), k, c);
    fed_rep_stream(&mut model, task, &identity(k), &samples).unwrap();
    head_of(&model)
}

/// Returns a copy of the model's head.
pub fn head_of(model: &Linear<Heap>) -> Vec<f32> {
    model.head().to_vec()
}

/// Computes the head with every available solver, and returns each head with the solver's name.
pub fn fit_by_every_method(z: &[f32], y: &[f32], k: usize, c: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut heads = vec![
        ("rotations", fit_by_rotations(z, y, k, c).0),
        ("client", fit_by_client(z, y, k, c, EXACT)),
        ("stream", fit_by_stream(z, y, k, c, EXACT)),
    ];
    heads.extend(
        fit_by_normal_equations(z, y, k, c, Limits::WITH_TRIANGULAR).map(|w| ("normal equations", w)),
    );
    heads
}
