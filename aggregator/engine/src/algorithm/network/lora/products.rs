//! Mean of the products `A_i B_i` of low-rank factors, kept as two factors so that no matrix of the layer's
//! full size is formed.
//!
//! D (d x Nr) is all A_i side by side, and U (Nr x h) is all `w_i B_i` stacked vertically, where `w_i` is the
//! fraction of the total weight of upload i. The mean of products is then D U. The QR factorisations of D and
//! of U^T give a core `R_D R_U^T` of at most Nr rows and columns, with the same norm and singular values as D
//! U.

use crate::linalg::{Matrix, product};

/// Factors uploaded by one device.
#[derive(Clone, Debug)]
pub struct Factors {
    /// Weight of the upload.
    pub weight: f64,
    /// A, d x r.
    pub down: Matrix,
    /// B, r x h.
    pub up: Matrix,
}

/// Mean of the products of uploads, as two factors.
#[derive(Clone, Debug)]
pub struct MeanOfProducts {
    /// D: all A_i, side by side, d x Nr.
    downs: Matrix,
    /// U: all B_i times their fraction of the weight, stacked vertically, Nr x h.
    ups: Matrix,
    /// Fraction of the total weight of each upload.
    parts: Vec<f64>,
    rank: usize,
}

impl MeanOfProducts {
    /// Creates the mean of uploads of equal sizes; `None` if their total weight is 0.
    #[must_use]
    pub fn new(updates: &[Factors]) -> Option<Self> {
        let total: f64 = updates.iter().map(|update| update.weight).sum();
        let first = updates.first().filter(|_| total > 0.0)?;
        let ((d, rank), h) = (first.down.shape(), first.up.ncols());
        let parts: Vec<f64> = updates.iter().map(|update| update.weight / total).collect();
        let mut downs = Matrix::zeros(d, updates.len() * rank);
        let mut ups = Matrix::zeros(updates.len() * rank, h);
        for (number, (update, part)) in updates.iter().zip(&parts).enumerate() {
            downs.columns_mut(number * rank, rank).copy_from(&update.down);
            ups.rows_mut(number * rank, rank).copy_from(&(&update.up * *part));
        }
        Some(Self { downs, ups, parts, rank })
    }

    /// Frobenius distance between the product of the means and the mean of the products, divided by the norm
    /// of the mean of the products; 0 if that norm is 0. This is the error of plain averaging of both factors
    /// (Chen et al. 2025, equations 1 and 2).
    ///
    /// The formula is `mean(A_i B_i) - mean(A) mean(B) = D (I - E J) U`. E is the r x r identity times
    /// each `w_i`, stacked vertically; J is N identities side by side.
    #[must_use]
    pub fn interference(&self) -> f64 {
        let mut means = Matrix::zeros(self.rank, self.ups.ncols());
        for number in 0..self.parts.len() {
            means += self.ups.rows(number * self.rank, self.rank);
        }
        let mut deviations = self.ups.clone();
        for (number, part) in self.parts.iter().enumerate() {
            let mut rows = deviations.rows_mut(number * self.rank, self.rank);
            rows -= &means * *part;
        }
        let r_of_downs = self.downs.clone().qr().r();
        let norm = |ups: &Matrix| product(&r_of_downs, ups).norm();
        let scale = norm(&self.ups);
        if scale > 0.0 { norm(&deviations) / scale } else { 0.0 }
    }

    /// Best approximation of the mean of products by factors of rank r (Eckart and Young 1936), as in
    /// FlexLoRA (Bai et al. 2024). A has orthonormal columns, and B contains the singular values. `None` if a
    /// value is not finite.
    #[must_use]
    pub fn truncated(&self) -> Option<(Matrix, Matrix)> {
        let downs_qr = self.downs.clone().qr();
        let ups_qr = self.ups.transpose().qr();
        let core = product(&downs_qr.r(), &ups_qr.r().transpose());
        if core.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let svd = core.svd(true, true);
        let (u, v_t) = (svd.u?, svd.v_t?);
        let mut order: Vec<usize> = (0..svd.singular_values.len()).collect();
        order.sort_by(|a, b| svd.singular_values[*b].total_cmp(&svd.singular_values[*a]));
        let mut down = Matrix::zeros(self.downs.nrows(), self.rank);
        let mut up = Matrix::zeros(self.rank, self.ups.ncols());
        let left_vectors = product(&downs_qr.q(), &u);
        let right_vectors = product(&ups_qr.q(), &v_t.transpose());
        for (target, &source) in order.iter().take(self.rank).enumerate() {
            let value = svd.singular_values[source];
            // The largest entry of a column is made positive, so that the result is unique.
            let column = left_vectors.column(source);
            let sign = column
                .iter()
                .fold(0.0f64, |largest, v| if v.abs() > largest.abs() { *v } else { largest })
                .signum();
            down.set_column(target, &(column * sign));
            up.set_row(target, &(right_vectors.column(source).transpose() * (sign * value)));
        }
        Some((down, up))
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::random::{Purpose, stream};

    /// Random uploads with factors of sizes d x rank and rank x h.
    fn random_uploads(seed: u64, count: usize, [d, rank, h]: [usize; 3]) -> Vec<Factors> {
        let mut random = stream(seed, Purpose::Network, 0);
        let update = |number: usize| Factors {
            weight: number as f64 + 1.0,
            down: Matrix::from_fn(d, rank, |_, _| random.normal()),
            up: Matrix::from_fn(rank, h, |_, _| random.normal()),
        };
        (0..count).map(update).collect()
    }

    /// Means of A, of B and of their products, computed with dense matrices.
    fn dense_means(updates: &[Factors]) -> (Matrix, Matrix, Matrix) {
        let total: f64 = updates.iter().map(|update| update.weight).sum();
        let mean = |matrix: &dyn Fn(&Factors) -> Matrix| {
            updates
                .iter()
                .map(|update| matrix(update) * (update.weight / total))
                .reduce(|a, b| a + b)
                .unwrap_or_default()
        };
        (mean(&|u| u.down.clone()), mean(&|u| u.up.clone()), mean(&|u| product(&u.down, &u.up)))
    }

    const SIZES: [[usize; 3]; 4] = [[9, 2, 5], [4, 3, 11], [20, 1, 20], [3, 2, 3]];

    /// Compares with the result of dense matrices, and with `mean((A_i - mean A)(B_i - mean B))`, which
    /// equals the difference.
    #[test]
    fn interference_equals_dense_computation() {
        for (seed, sizes) in SIZES.into_iter().enumerate() {
            for count in [1, 2, 5] {
                let updates = random_uploads(seed as u64, count, sizes);
                let (down, up, product_mean) = dense_means(&updates);
                let expected = (&product_mean - product(&down, &up)).norm() / product_mean.norm();
                let centred: Vec<Factors> = updates
                    .iter()
                    .map(|u| Factors { weight: u.weight, down: &u.down - &down, up: &u.up - &up })
                    .collect();
                let (_, _, centred_mean) = dense_means(&centred);
                assert!((centred_mean.norm() / product_mean.norm() - expected).abs() < 1e-12);
                let got = MeanOfProducts::new(&updates).map(|mean| mean.interference());
                assert!(got.is_some_and(|got| (got - expected).abs() < 1e-12), "{got:?} {expected}");
            }
        }
    }

    /// If all uploads have one factor in common, the interference is zero.
    #[test]
    fn common_factor_has_no_interference() {
        for down_is_common in [true, false] {
            let mut updates = random_uploads(7, 4, [12, 3, 6]);
            let first = updates[0].clone();
            for update in &mut updates {
                if down_is_common { update.down = first.down.clone() } else { update.up = first.up.clone() }
            }
            let interference = MeanOfProducts::new(&updates).map_or(f64::NAN, |mean| mean.interference());
            assert!(interference < 1e-14, "{interference}");
        }
    }

    /// The squared error of the truncation equals the sum of the discarded squared singular values. A single
    /// upload is reproduced exactly.
    #[test]
    fn truncation_is_optimal() {
        for (seed, sizes) in SIZES.into_iter().enumerate() {
            for count in [1, 2, 5] {
                let updates = random_uploads(seed as u64, count, sizes);
                let (_, _, product_mean) = dense_means(&updates);
                let truncated = MeanOfProducts::new(&updates).and_then(|mean| mean.truncated());
                let (down, up) = truncated.expect("finite values have a decomposition");
                let mut values: Vec<f64> = product_mean.clone().singular_values().iter().copied().collect();
                values.sort_by(|a, b| b.total_cmp(a));
                let discarded: f64 = values.iter().skip(sizes[1]).map(|v| v * v).sum();
                let error = (&product_mean - product(&down, &up)).norm_squared();
                assert!(
                    (error - discarded).abs() < 1e-9 * product_mean.norm_squared(),
                    "{error} {discarded}"
                );
                if count == 1 {
                    assert!(error < 1e-20 * product_mean.norm_squared());
                }
            }
        }
    }

    #[test]
    fn zero_weight_gives_no_mean() {
        assert!(MeanOfProducts::new(&[]).is_none());
        let mut updates = random_uploads(1, 1, [2, 1, 2]);
        updates[0].weight = 0.0;
        assert!(MeanOfProducts::new(&updates).is_none());
        updates[0] =
            Factors { weight: 1.0, down: Matrix::from_element(2, 1, f64::NAN), up: updates[0].up.clone() };
        assert!(MeanOfProducts::new(&updates).is_some_and(|mean| mean.truncated().is_none()));
    }
}
