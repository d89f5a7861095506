//! Test helpers for linear problems whose features have offsets and scales: an f64 oracle, the device's
//! solution, and a bound of their difference.
//!
//! **The bound.** Let `A` be the features with the columns centred if there is a constant column, and then
//! scaled to length one; `s` is the least singular value of `A`. Two kinds of errors change the columns of
//! `A`:
//!
//! * Rounding: each value of feature `i` is rounded to f32, with an error of at most `u max |x_i|`, where `u`
//!   is the unit roundoff of f32.
//! * Folding the samples into the triangular factor: `e = (sqrt(m + k) + 1) u` ([`rounding`]) times the norm
//!   of the column. If there is a constant column, the kernel first subtracts the first sample from every
//!   sample, and the norm is that of the differences.
//!
//! Divide both errors by the length of the centred column, and let `n^2` be the sum of their squares over all
//! features.
//! Errors `dA` of the columns rotate the projection on their span by at most `|dA| / s` (Stewart and Sun,
//! theorem III.3.9), so predictions change by `(n / s) |Y|`. A prediction rounds the weights, the samples and
//! the products; this adds at most `u |x_i w_i|`, which is also bounded by `(n / s) |Y|`. The normal equations square the
//! condition of the original columns; the device uses them only if each pivot is at least a tenth of its
//! diagonal element. Together:
//!
//! `|dY| <= 4 (n / s + e / s_0^2) |Y|`, where `s_0` is the least singular value of the original columns
//! scaled to length one; the term with `s_0` applies only if the normal equations were used.

use fedspan_client::task::HeadFits;
use fedspan_client::{Linear, Recording, Task};
use fedspan_protocol::message::Task as Wire;

use super::head::rounding;
use super::{EPS, EXACT, Heap, M, Random, Sliced, Svd, fed_rep_stream, flat, identity};

/// Linear problem whose features have offsets and scales. The targets are linear in the features up to noise.
pub struct Problem {
    pub k: usize,
    pub c: usize,
    pub x: M,
    pub y: M,
    /// Index of the constant column, if there is one.
    pub constant: Option<usize>,
}

impl Problem {
    /// Creates a problem with offsets of at most `offset` deviations and scales from `10^-scale` to
    /// `10^scale`.
    pub fn random(random: &mut Random, k: usize, m: usize, c: usize, offset: f64, scale: f64) -> Self {
        let constant = (offset > 0.0).then(|| random.below(k));
        let mut x = random.gaussian(m, k) * random.gaussian(k, k) * 0.3 + random.gaussian(m, k);
        for j in 0..k {
            let deviation = x.column(j).norm() / (m as f64).sqrt();
            let unit = 10f64.powf(scale * (2.0 * random.unit() - 1.0));
            let offset = deviation * offset * (2.0 * random.unit() - 1.0);
            let is_constant = constant == Some(j);
            for value in &mut x.column_mut(j) {
                *value = if is_constant { unit } else { unit * (*value + offset) };
            }
        }
        let mut y = random.gaussian(m, c) * [0.0, 0.1, 1.0][random.below(3)];
        for j in 0..k {
            let column = x.column(j);
            let mean = if constant.is_some() && constant != Some(j) { column.mean() } else { 0.0 };
            let unit = column.add_scalar(-mean);
            let unit = &unit / unit.norm() * (m as f64).sqrt();
            y += unit * random.gaussian(1, c);
        }
        Self { k, c, x, y, constant }
    }

    /// Returns the number of samples.
    pub fn m(&self) -> usize {
        self.x.nrows()
    }

    /// Returns the bound of the predictions' error as a fraction of `|Y|`, and the predictions in f64.
    /// `normal` is true if the head is solved by the normal equations.
    pub fn bound(&self, normal: bool) -> (f64, M) {
        let (m, k) = (self.m(), self.k);
        let folding_error = rounding(m, k);
        let (mut centred_columns, mut squared_error) = (self.x.clone(), 0.0);
        for j in 0..k {
            let column = self.x.column(j);
            let largest = column.amax();
            let is_centred = self.constant.is_some() && self.constant != Some(j);
            let mean = if is_centred { column.mean() } else { 0.0 };
            let first = if is_centred { column[0] } else { 0.0 };
            centred_columns.column_mut(j).add_scalar_mut(-mean);
            let length = centred_columns.column(j).norm();
            let folded = column.add_scalar(-first).norm();
            let rounding_error = EPS * largest * (m as f64).sqrt() / length;
            squared_error += rounding_error.powi(2) + (folding_error * folded / length).powi(2);
            centred_columns.column_mut(j).unscale_mut(length);
        }
        let least_singular_value = |a: &M| Svd::new(a).s.into_iter().fold(f64::INFINITY, f64::min);
        let mut plain = self.x.clone();
        for mut column in plain.column_iter_mut() {
            let length = column.norm();
            column.unscale_mut(length);
        }
        let normal_error = if normal { folding_error / least_singular_value(&plain).powi(2) } else { 0.0 };
        let svd = Svd::new(&centred_columns);
        (
            4.0 * (squared_error.sqrt() / least_singular_value(&centred_columns) + normal_error),
            &centred_columns * svd.minimum_norm(&self.y, 0.0),
        )
    }

    /// Fits the head from samples that are read twice, then from streamed samples. Returns both heads with
    /// the device's reports of the fits.
    pub fn fit_heads(&self) -> [(Vec<f32>, HeadFits); 2] {
        let (x, y, k, c) = (flat(&self.x), flat(&self.y), self.k, self.c);
        let mut two_pass = Linear::new(Heap::new(k, k, c));
        two_pass.set_representation(&identity(k)).unwrap();
        two_pass.fit_head(EXACT, &mut Recording::regression(&x, &y, k, c)).unwrap();
        let mut streaming = Linear::new(Heap::streaming(k, k, c));
        let samples = Sliced::regression(x, y, k, c);
        fed_rep_stream(&mut streaming, Wire::FitHead { head: EXACT }, &identity(k), &samples).unwrap();
        [&two_pass, &streaming].map(|model| (model.head().to_vec(), model.head_fits()))
    }

    /// Computes the predictions as a device does.
    pub fn predictions(&self, w: &[f32]) -> M {
        let mut y = M::zeros(self.m(), self.c);
        for (i, x) in flat(&self.x).chunks(self.k).enumerate() {
            let mut out = vec![0.0; self.c];
            fedspan_client::kernel::project::apply_head(w, x, &mut out);
            for (j, value) in out.into_iter().enumerate() {
                y[(i, j)] = f64::from(value);
            }
        }
        y
    }
}
