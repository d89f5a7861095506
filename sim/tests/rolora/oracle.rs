//! Test helpers: reference implementation of RoLoRA's Algorithm 2 in f64 (Chen et al. 2025). The loss is that
//! of the paper, `(1/m) |X A B - Y|^2`.

use fedspan_engine::linalg::Matrix;
use fedspan_sim_core::data::{Labels, Set};

/// Features (m x d) and targets (m x C) of one client.
pub struct Client {
    pub x: Matrix,
    pub y: Matrix,
}

impl Client {
    /// Converts a set with d features.
    pub fn of(set: &Set, d: usize) -> Self {
        let Labels::Values { values, outputs } = &set.y else { panic!("no values") };
        let to_f64 = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
        Self {
            x: Matrix::from_row_slice(set.len(), d, &to_f64(&set.x)),
            y: Matrix::from_row_slice(set.len(), *outputs, &to_f64(values)),
        }
    }

    /// Number of samples.
    fn samples(&self) -> f64 {
        self.x.nrows() as f64
    }

    /// Factor B that minimises `|X A B - Y|^2` for the given A.
    pub fn best(&self, a: &Matrix) -> Matrix {
        let z = &self.x * a;
        (z.transpose() * &z).cholesky().unwrap().solve(&(z.transpose() * &self.y))
    }

    /// Gradient of the loss with respect to A.
    fn gradient(&self, a: &Matrix, b: &Matrix) -> Matrix {
        self.x.transpose() * (&self.x * a * b - &self.y) * b.transpose() * (2.0 / self.samples())
    }

    /// Loss `(1/m) |X A B - Y|^2`.
    pub fn loss(&self, a: &Matrix, b: &Matrix) -> f64 {
        (&self.x * a * b - &self.y).norm_squared() / self.samples()
    }
}

/// Mean of a quantity over clients.
pub fn mean<T>(clients: &[Client], value: impl Fn(&Client) -> T) -> T
where
    T: std::ops::Add<Output = T> + std::ops::Div<f64, Output = T>,
{
    clients.iter().map(value).reduce(|sum, value_of_client| sum + value_of_client).unwrap()
        / clients.len() as f64
}

/// Update of B (lines 4 to 7 of the algorithm).
pub fn up(clients: &[Client], a: &Matrix) -> Matrix {
    mean(clients, |client| client.best(a))
}

/// Update of A (lines 8 to 11 of the algorithm). For a rank above 1, the orthonormal factor of a QR
/// decomposition replaces normalisation.
pub fn down(clients: &[Client], a: &Matrix, b: &Matrix, eta: f64) -> Matrix {
    let stepped = a - mean(clients, |client| client.gradient(a, b)) * eta;
    stepped.qr().q()
}

/// Sine of the largest angle between A and A*, i.e. the spectral norm of `(I - A A^T) A*`.
pub fn sine(a: &Matrix, truth: &Matrix) -> f64 {
    let outside = truth - a * (a.transpose() * truth);
    outside.svd(false, false).singular_values.max()
}
