//! RoLoRA's Algorithm 2 in f64, from the paper (Chen et al. 2025), with the paper's loss `(1/m) |X A B - Y|^2`,
//! whose gradient has a factor of 2.

use fedspan_engine::linalg::Matrix;
use fedspan_sim_core::data::{Labels, Set};

/// Samples of one client, m x d and m x C.
pub struct Client {
    pub x: Matrix,
    pub y: Matrix,
}

impl Client {
    pub fn of(set: &Set, d: usize) -> Self {
        let Labels::Values { values, outputs } = &set.y else { panic!("no values") };
        let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
        Self {
            x: Matrix::from_row_slice(set.len(), d, &wide(&set.x)),
            y: Matrix::from_row_slice(set.len(), *outputs, &wide(values)),
        }
    }

    fn samples(&self) -> f64 {
        self.x.nrows() as f64
    }

    /// Solution of `argmin_B |X A B - Y|^2`.
    pub fn best(&self, a: &Matrix) -> Matrix {
        let z = &self.x * a;
        (z.transpose() * &z).cholesky().unwrap().solve(&(z.transpose() * &self.y))
    }

    /// Gradient of the loss with respect to A.
    fn gradient(&self, a: &Matrix, b: &Matrix) -> Matrix {
        self.x.transpose() * (&self.x * a * b - &self.y) * b.transpose() * (2.0 / self.samples())
    }

    pub fn loss(&self, a: &Matrix, b: &Matrix) -> f64 {
        (&self.x * a * b - &self.y).norm_squared() / self.samples()
    }
}

/// Mean over clients.
pub fn mean<T>(clients: &[Client], of: impl Fn(&Client) -> T) -> T
where
    T: std::ops::Add<Output = T> + std::ops::Div<f64, Output = T>,
{
    clients.iter().map(of).reduce(|sum, one| sum + one).unwrap() / clients.len() as f64
}

/// Update of B, lines 4 to 7 of the algorithm.
pub fn up(clients: &[Client], a: &Matrix) -> Matrix {
    mean(clients, |client| client.best(a))
}

/// Update of A, lines 8 to 11. For a rank above 1 the orthonormal factor of QR replaces normalisation.
pub fn down(clients: &[Client], a: &Matrix, b: &Matrix, eta: f64) -> Matrix {
    let stepped = a - mean(clients, |client| client.gradient(a, b)) * eta;
    stepped.qr().q()
}

/// `|(I - A A^T) A*|` in the spectral norm: sine of the largest angle.
pub fn sine(a: &Matrix, truth: &Matrix) -> f64 {
    let rest = truth - a * (a.transpose() * truth);
    rest.svd(false, false).singular_values.max()
}
