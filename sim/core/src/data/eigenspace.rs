//! Computation of FedPower's target in f64: the top eigenspace of `A = (1/n) M^T M`, where `M` contains the
//! rows of all clients. Rows and clients are summed in a fixed order, so results do not depend on the number
//! of threads.

use fedspan_engine::linalg::{Matrix, product_transposed, top_eigenspace};
use rayon::prelude::*;

use super::{Client, Dataset};

/// Largest number of features for which an eigenspace is computed. The computation time grows with the third
/// power of the number of features; the largest number takes minutes.
pub const LARGEST_FEATURES: usize = 4096;

/// Number of rows that are added at once.
const BLOCK: usize = 32;
/// Largest number of f64 sums in memory: half a GiB. Limits the number of clients that are processed at once;
/// at least one client is processed.
const MAX_SUMS: usize = 1 << 26;
/// Smallest gap between the last eigenvalue of an eigenspace and the next eigenvalue, relative to the largest
/// eigenvalue. With this gap rounding errors rotate the eigenspace by at most a millionth.
const MIN_GAP: f64 = 1e-9;

/// Accumulator of `M^T M` over rows. Rows of norm above 1 are scaled to norm 1, as on devices.
#[derive(Clone, Debug)]
pub struct Gram {
    d: usize,
    rows: u64,
    /// Upper triangle of the d x d sums.
    sums: Vec<f64>,
    /// Scaled rows that are not yet added to `sums`.
    block: Vec<f64>,
}

impl Gram {
    /// Creates an accumulator without rows, for `d` features.
    #[must_use]
    pub fn new(d: usize) -> Self {
        Self { d, rows: 0, sums: vec![0.0; d * d], block: Vec::with_capacity(BLOCK * d) }
    }

    /// Creates an accumulator of a client's training rows.
    #[must_use]
    pub fn from_client(client: &Client, d: usize) -> Self {
        let mut gram = Self::new(d);
        gram.add(&client.train.x);
        gram
    }

    /// Adds rows of d values each; an incomplete last row is ignored.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.d.max(1)) {
            let square = row.iter().fold(0.0, |sum, &x| sum + f64::from(x) * f64::from(x));
            let scale = if square > 1.0 { 1.0 / square.sqrt() } else { 1.0 };
            self.block.extend(row.iter().map(|&x| f64::from(x) * scale));
            self.rows += 1;
            if self.block.len() >= BLOCK * self.d {
                self.flush();
            }
        }
    }

    /// Adds the block of rows to the sums, four rows at a time in a fixed order.
    fn flush(&mut self) {
        let d = self.d;
        for (i, sums) in self.sums.chunks_exact_mut(d.max(1)).enumerate() {
            let sums = sums.get_mut(i..).unwrap_or_default();
            let mut blocks_of_four = self.block.chunks_exact(4 * d);
            for block in &mut blocks_of_four {
                let mut rows = block.chunks_exact(d).filter_map(|row| row.get(i..));
                let (Some(a), Some(b), Some(c), Some(e)) =
                    (rows.next(), rows.next(), rows.next(), rows.next())
                else {
                    continue;
                };
                let first = |row: &[f64]| row.first().copied().unwrap_or(0.0);
                let (fa, fb, fc, fe) = (first(a), first(b), first(c), first(e));
                // Skips zeros, the most frequent values of images and graphs.
                if [fa, fb, fc, fe] == [0.0; 4] {
                    continue;
                }
                for ((((sum, a), b), c), e) in sums.iter_mut().zip(a).zip(b).zip(c).zip(e) {
                    *sum = *sum + fa * a + fb * b + fc * c + fe * e;
                }
            }
            for row in blocks_of_four.remainder().chunks_exact(d).filter_map(|row| row.get(i..)) {
                let factor = row.first().copied().unwrap_or(0.0);
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += factor * x;
                }
            }
        }
        self.block.clear();
    }

    /// Adds the rows of another accumulator.
    fn append(&mut self, mut other: Self) {
        self.flush();
        other.flush();
        self.rows += other.rows;
        for (sum, other_sum) in self.sums.iter_mut().zip(&other.sums) {
            *sum += other_sum;
        }
    }

    /// Number of accumulated rows, `s`.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Mean `(1/s) M^T M` over the `s` accumulated rows, d x d; zeros if there are no rows.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
    pub fn mean(mut self) -> Matrix {
        self.flush();
        let (d, count) = (self.d, self.rows.max(1) as f64);
        let sum_at = |i: usize, j: usize| self.sums.get(i.min(j) * d + i.max(j)).copied().unwrap_or(0.0);
        Matrix::from_fn(d, d, |i, j| sum_at(i, j) / count)
    }
}

/// Mean `(1/n) M^T M` over all n rows of `clients` clients, d x d. `gram` returns the accumulator of the
/// client with a given number. Clients are accumulated in parallel and summed in the order of their numbers.
pub fn pooled(d: usize, clients: usize, gram: impl Fn(usize) -> Gram + Sync) -> Matrix {
    let numbers: Vec<usize> = (0..clients).collect();
    let batch_size = clients_per_batch(d);
    let mut total = Gram::new(d);
    for numbers in numbers.chunks(batch_size) {
        let grams: Vec<Gram> = numbers.par_iter().map(|&client| gram(client)).collect();
        for gram in grams {
            total.append(gram);
        }
    }
    total.mean()
}

/// Number of clients that are processed at once. It affects memory only, not the result.
fn clients_per_batch(d: usize) -> usize {
    MAX_SUMS.checked_div(d * d).unwrap_or(1).clamp(1, 16)
}

/// Memory for computing an eigenspace, in units of an f32: sums, and copies for the factorisation. The rows
/// are not included.
#[must_use]
pub fn values(d: usize) -> u64 {
    let values_per_gram = 2 * (d as u64).saturating_mul(d as u64);
    values_per_gram.saturating_mul(clients_per_batch(d) as u64 + 4)
}

/// Reason why an eigenspace cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NoEigenspace {
    /// The eigenspace has more dimensions than there are features.
    #[error("found an eigenspace of {k} dimensions, allowed: at most {d}, the number of features")]
    TooManyDimensions {
        /// Requested number of dimensions.
        k: usize,
        /// Number of features.
        d: usize,
    },
    /// There are too many features: sums and factorisation would take too long.
    #[error("found {d} features, allowed for an eigenspace: at most {LARGEST_FEATURES}")]
    TooManyFeatures {
        /// Number of features.
        d: usize,
    },
    /// The eigenspace is not unique: its last eigenvalue equals the next eigenvalue, up to rounding.
    #[error(
        "eigenvalues {k} and {} of the rows of all clients are {inside:e} and {outside:e}, of {largest:e}: no unique \
         eigenspace of {k} dimensions exists; choose another number of dimensions", k + 1
    )]
    Undetermined {
        /// Requested number of dimensions.
        k: usize,
        /// Last eigenvalue of the eigenspace.
        inside: f64,
        /// Next eigenvalue, the first outside the eigenspace.
        outside: f64,
        /// Largest eigenvalue.
        largest: f64,
    },
    /// An entry of the products is not finite.
    #[error("entry ({row}, {column}) of the rows' products is {value}")]
    NotFinite {
        /// Row of the entry, from 0.
        row: usize,
        /// Column of the entry, from 0.
        column: usize,
        /// Value of the entry: NaN or infinite.
        value: f64,
    },
}

/// Eigenspace of the largest eigenvalues of a symmetric matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Eigenspace {
    /// Orthonormal columns, largest eigenvalue first.
    pub basis: Matrix,
    /// Eigenvalues of the columns, followed by the next eigenvalue if the matrix has one.
    pub eigenvalues: Vec<f64>,
}

impl Eigenspace {
    /// Computes the top eigenspace of `k` dimensions. All eigenvectors are computed, which takes seconds for
    /// 1000 features and minutes for [`LARGEST_FEATURES`].
    ///
    /// # Errors
    /// [`NoEigenspace`] if `k` exceeds the number of features, an entry is not finite, or the eigenspace is
    /// not unique.
    pub fn top(symmetric: &Matrix, k: usize) -> Result<Self, NoEigenspace> {
        let d = symmetric.nrows();
        if k > d {
            return Err(NoEigenspace::TooManyDimensions { k, d });
        }
        let not_finite = symmetric.iter().position(|value| !value.is_finite());
        if let Some((row, column)) = not_finite.map(|index| (index % d, index / d)) {
            return Err(NoEigenspace::NotFinite { row, column, value: symmetric[(row, column)] });
        }
        let vectors = top_eigenspace(symmetric, k + 1);
        let eigenvalues: Vec<f64> = (0..vectors.ncols())
            .map(|j| rayleigh_quotient(symmetric, &vectors.columns(j, 1).into_owned()))
            .collect();
        let eigenvalue = |index: usize| eigenvalues.get(index).copied().unwrap_or(0.0);
        let (largest, last_kept, first_dropped) =
            (eigenvalue(0), eigenvalue(k.saturating_sub(1)), eigenvalue(k));
        // The whole space and the space of dimension 0 are always unique.
        if (1..d).contains(&k) && last_kept - first_dropped <= MIN_GAP * largest {
            return Err(NoEigenspace::Undetermined { k, inside: last_kept, outside: first_dropped, largest });
        }
        Ok(Self { basis: vectors.columns(0, k).into_owned(), eigenvalues })
    }
}

/// Rayleigh quotient `v^T A v`: the eigenvalue of an eigenvector of norm 1.
fn rayleigh_quotient(symmetric: &Matrix, v: &Matrix) -> f64 {
    // A symmetric matrix equals its transpose.
    product_transposed(v, &product_transposed(symmetric, v)).sum()
}

/// True representation for FedPower if the data set has none: the top eigenspace, of `k` dimensions, of the
/// pooled training rows of all clients. If clients draw new samples in every round, the first samples count.
///
/// Rows of norm above 1 are scaled to norm 1, as on a device, which bounds the weight of a row. Every row of
/// an image data set is scaled, since pixels are in 0..=1 and the last feature is a constant 1. Rows of norm
/// below 1 are unchanged.
///
/// # Errors
/// [`NoEigenspace`] if the eigenspace is not unique or cannot be computed.
pub fn pooled_truth(dataset: &Dataset, k: usize) -> Result<Matrix, NoEigenspace> {
    let d = dataset.features;
    if d > LARGEST_FEATURES {
        return Err(NoEigenspace::TooManyFeatures { d });
    }
    let gram = |client: usize| {
        dataset.clients.get(client).map_or(Gram::new(d), |client| Gram::from_client(client, d))
    };
    Ok(Eigenspace::top(&pooled(d, dataset.clients.len(), gram), k)?.basis)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use fedspan_engine::linalg::{principal_angle_distance, random_basis};
    use fedspan_engine::random::{Purpose, stream};

    use super::super::{Layout, Set};
    use super::*;

    /// Creates rows with norms from about 0.5 to 5. A quarter of the values are zero.
    fn rows(count: usize, d: usize, seed: u64) -> Vec<f32> {
        let mut random = stream(seed, Purpose::Test, 0);
        let scale = 2.0 / (d as f64).sqrt();
        (0..count * d)
            .map(|_| if random.uniform() < 0.25 { 0.0 } else { (scale * random.normal()) as f32 })
            .collect()
    }

    /// Computes the mean `(1/n) M^T M` by its definition, summed in the order of the rows.
    fn mean_products(rows: &[f32], d: usize) -> Matrix {
        let mut sums = Matrix::zeros(d, d);
        for row in rows.chunks(d) {
            let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
            let norm = row.iter().fold(0.0, |sum, x| sum + x * x).sqrt();
            let scale = 1.0 / norm.max(1.0);
            for i in 0..d {
                for j in 0..d {
                    sums[(i, j)] += (row[i] * scale) * (row[j] * scale);
                }
            }
        }
        sums / (rows.len() / d).max(1) as f64
    }

    /// Creates a data set of clients with these numbers of rows.
    fn clients(sizes: &[usize], d: usize) -> Dataset {
        let set = |(seed, size): (u64, &usize)| Set::unlabelled(rows(*size, d, seed), d);
        let client = |set| Client::new(set, Set::unlabelled(Vec::new(), d));
        Dataset {
            features: d,
            outputs: 1,
            classification: false,
            clients: (0..).zip(sizes).map(set).map(client).collect(),
            truth: None,
            layout: Layout::default(),
            ..Dataset::default()
        }
    }

    #[test]
    fn gram_equals_definition_for_any_grouping_of_rows() {
        for (count, d) in [(0, 3), (1, 1), (3, 5), (4, 5), (31, 7), (32, 7), (70, 7), (257, 20)] {
            let rows = rows(count, d, 1);
            let mut grouped = Gram::new(d);
            grouped.add(&rows);
            let mut single_gram = Gram::new(d);
            rows.chunks(d).for_each(|row| single_gram.add(row));
            let grouped = grouped.mean();
            assert_eq!(grouped, mean_products(&rows, d), "{count} x {d}");
            assert_eq!(grouped, single_gram.mean(), "{count} x {d}");
        }
    }

    #[test]
    fn long_rows_count_by_direction() {
        let (small_row, large_row) = ([0.3f32, 0.4], [3e37f32, 4e37]);
        let mean_trace = |row: &[f32]| {
            let mut gram = Gram::new(2);
            gram.add(row);
            gram.mean().trace()
        };
        // 0.3 and 0.4 are not exact in f32.
        assert!((mean_trace(&small_row) - 0.25).abs() < 1e-7 && (mean_trace(&large_row) - 1.0).abs() < 1e-15);
        assert_eq!(mean_trace(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn pooled_mean_weights_rows_and_ignores_threads() {
        // 40 clients exceed the 16 that are processed at once.
        let sizes: Vec<usize> = (0..40).collect();
        let dataset = clients(&sizes, 6);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| pooled(6, 40, |client| Gram::from_client(&dataset.clients[client], 6)))
        };
        let all_values: Vec<f32> = dataset.clients.iter().flat_map(|client| client.train.x.clone()).collect();
        assert!((run(1) - mean_products(&all_values, 6)).amax() < 1e-15);
        assert_eq!(run(1), run(2));
        assert_eq!(run(1), run(5));
    }

    #[test]
    fn top_finds_eigenspace_and_eigenvalues() {
        for (d, k) in [(1, 1), (2, 1), (12, 3), (12, 11), (12, 12), (60, 5)] {
            let basis = random_basis(d, d, &mut stream(3, Purpose::Truth, d as u64));
            let known: Vec<f64> = (0..d).map(|j| 1.0 / (j + 1) as f64).collect();
            let diagonal = Matrix::from_fn(d, d, |i, j| if i == j { known[i] } else { 0.0 });
            let symmetric = &basis * diagonal * basis.transpose();
            let computed = Eigenspace::top(&symmetric, k).unwrap();
            let truth = basis.columns(0, k).into_owned();
            assert!(principal_angle_distance(&computed.basis, &truth) < 1e-11, "{d}, {k}");
            assert_eq!(computed.eigenvalues.len(), (k + 1).min(d));
            for (computed, known) in computed.eigenvalues.iter().zip(&known) {
                assert!((computed - known).abs() < 1e-13, "{d}, {k}: {computed} is not {known}");
            }
        }
    }

    #[test]
    fn ambiguous_eigenspace_is_an_error_with_numbers() {
        let fails = |symmetric: &Matrix, k: usize| Eigenspace::top(symmetric, k).unwrap_err();
        let repeated_eigenvalue = Matrix::from_diagonal(&[2.0, 1.0, 1.0].to_vec().into());
        assert_eq!(fails(&repeated_eigenvalue, 4), NoEigenspace::TooManyDimensions { k: 4, d: 3 });
        let message = fails(&repeated_eigenvalue, 2).to_string();
        assert!(message.contains("eigenvalues 2 and 3") && message.contains("1e0, of 2e0"), "{message}");
        assert!(
            Eigenspace::top(&repeated_eigenvalue, 1).is_ok()
                && Eigenspace::top(&repeated_eigenvalue, 3).is_ok()
        );
        // In a zero matrix all eigenvalues are equal, so no eigenspace is unique.
        assert!(matches!(fails(&Matrix::zeros(3, 3), 1), NoEigenspace::Undetermined { k: 1, .. }));
        let mut broken = repeated_eigenvalue;
        broken[(2, 1)] = f64::INFINITY;
        assert_eq!(fails(&broken, 1), NoEigenspace::NotFinite { row: 2, column: 1, value: f64::INFINITY });
        let wide = clients(&[1], LARGEST_FEATURES + 1);
        assert_eq!(pooled_truth(&wide, 1), Err(NoEigenspace::TooManyFeatures { d: LARGEST_FEATURES + 1 }));
    }

    #[test]
    fn pooled_truth_uses_training_rows_only() {
        let mut dataset = clients(&[30, 10, 0], 5);
        let all_values: Vec<f32> = dataset.clients.iter().flat_map(|client| client.train.x.clone()).collect();
        let expected = Eigenspace::top(&mean_products(&all_values, 5), 2).unwrap().basis;
        assert!(principal_angle_distance(&pooled_truth(&dataset, 2).unwrap(), &expected) < 1e-13);
        let before = pooled_truth(&dataset, 2).unwrap();
        let other_tests = Arc::new(Set::unlabelled(rows(50, 5, 9), 5));
        for client in &mut dataset.clients {
            client.test = Arc::clone(&other_tests).into();
        }
        assert_eq!(pooled_truth(&dataset, 2).unwrap(), before);
        dataset.clients[2].train = other_tests.into();
        assert_ne!(pooled_truth(&dataset, 2).unwrap(), before);
    }
}
