//! Prior of heads, and its step of expectation-maximisation.

use nalgebra::SymmetricEigen;

use super::moments::Metric;
use crate::linalg::{Matrix, orthonormal, product, product_transposed};

/// Number of heads that are added to those of the fleet, distributed as the present prior says, so that few devices do not change it
/// too fast. They move no maximum of the likelihood.
const ADDED_HEADS: f64 = 4.0;

/// Number of targets for each parameter of the mean and the representation that a representation needs.
const TARGETS_PER_PARAMETER: f64 = 1.5;

/// Smallest part of the targets that is left as degrees of freedom of the noise.
const LEAST_FREEDOM: f64 = 1.0 / 3.0;

/// Smallest ratio of the floor to the largest variance. Devices compute in f32.
const LEAST_FLOOR: f64 = 1e-5;

/// Size of a step against the errors of newcomers.
const STEP: f64 = 3.0;

/// Smallest ratio of a variance of the representation to the floor in such a step, so that a variance of 0 may grow.
const LEAST_SPAN: f64 = 1e-6;

/// Prior of the columns of a head. In the coordinates `L^T v` of the metric `T = L L^T` the covariance is
/// `B diag(spans) B^T + floor I`, with the noise's variance as the unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Prior {
    /// Mean M, d x C; `None` for 0.
    pub mean: Option<Matrix>,
    /// Metric; `None` for the identity.
    pub metric: Option<Metric>,
    /// Representation, d x k, orthonormal in the metric's coordinates.
    pub basis: Matrix,
    /// Variance of each column of the representation in addition to the floor, k values.
    pub spans: Vec<f64>,
    /// Variance of all directions.
    pub floor: f64,
    /// Variance of the noise of a target, in units of the targets.
    pub noise: f64,
}

/// Sums over the devices of one step, as means over devices.
#[derive(Clone, Debug)]
pub struct HeadMoments {
    /// Number of devices.
    pub devices: f64,
    /// Second moments of heads times the representation that was sent, d x k.
    pub products: Matrix,
    /// Squared distance of heads from the mean in the metric of the prior.
    pub distance: f64,
    /// Sum of squared residuals of the targets.
    pub residuals: f64,
    /// Number of samples.
    pub samples: f64,
}

/// Mean over devices of the derivative of newcomers' errors.
#[derive(Clone, Debug)]
pub struct NewcomerGradient {
    /// Derivative by the covariance times the representation that was sent, d x k.
    pub products: Matrix,
    /// Mean squared residual of a target.
    pub error: f64,
}

impl Prior {
    /// Representation as it is sent: `L B`.
    pub fn sent_basis(&self) -> Matrix {
        self.metric.as_ref().map_or_else(|| self.basis.clone(), |metric| metric.times(&self.basis))
    }

    /// Logarithm of the determinant of the covariance in units of the noise's, if the variances are multiplied by factors.
    pub fn log_determinant(&self, span: f64, floor: f64) -> f64 {
        let floor = floor * self.floor;
        let others = self.basis.nrows() - self.basis.ncols();
        let of_basis: f64 = self.spans.iter().map(|value| libm::log(span * value + floor)).sum();
        let of_metric = self.metric.as_ref().map_or(0.0, Metric::log_determinant);
        of_basis + as_f64(others) * libm::log(floor) - of_metric
    }

    /// Takes a step of orthogonal iteration on the second moments of heads, without their posterior covariances.
    pub fn iterate(&mut self, moments: &HeadMoments) {
        let products = self.in_coordinates(&moments.products);
        if let Ok(basis) = orthonormal(&products) {
            self.basis = basis;
        }
    }

    /// Products in the coordinates of the metric: `L^T P`.
    fn in_coordinates(&self, products: &Matrix) -> Matrix {
        self.metric.as_ref().map_or_else(|| products.clone(), |metric| metric.transposed_times(products))
    }

    /// Takes a step of expectation-maximisation. The eigenvectors of the heads' second moments are those of one step of orthogonal
    /// iteration.
    pub fn update(&mut self, moments: &HeadMoments, outputs: usize) {
        let HeadMoments { devices, products, distance, residuals, samples } = moments;
        let (d, k) = self.basis.shape();
        let (outputs, features) = (as_f64(outputs), as_f64(d));
        let products = self.in_coordinates(products);
        let inner = product_transposed(&self.basis, &products);
        // The trace of the second moments, from that of their product with the precision.
        let of_basis = |(j, span): (usize, &f64)| span / (self.floor + span) * inner[(j, j)];
        let trace = self.floor * distance + self.spans.iter().enumerate().map(of_basis).sum::<f64>();
        let heads = devices * outputs;
        let weight = heads / (heads + ADDED_HEADS);
        let added = (1.0 - weight) * self.noise;
        let trace = weight * trace + added * (features * self.floor + self.spans.iter().sum::<f64>());
        let mut products = &products * weight;
        for (span, (mut column, of_basis)) in
            self.spans.iter().zip(products.column_iter_mut().zip(self.basis.column_iter()))
        {
            column.axpy(added * (span + self.floor), &of_basis, 1.0);
        }
        let inner = product_transposed(&self.basis, &products);
        let (values, rotation) = eigenvectors(&inner, k);
        let targets = devices * samples * outputs;
        let mean_parameters = if self.mean.is_some() { features * outputs } else { 0.0 };
        let allowed = ((targets / TARGETS_PER_PARAMETER - mean_parameters) / features).max(0.0);
        let is_allowed = |column: usize| as_f64(column + 1) <= allowed;
        let used: Vec<f64> =
            values.iter().enumerate().filter(|(j, _)| is_allowed(*j)).map(|(_, v)| *v).collect();
        let largest = values.first().copied().unwrap_or(0.0).max(trace / features);
        let others = features - as_f64(used.len());
        let floor = if others > 0.0 { (trace - used.iter().sum::<f64>()) / others } else { 0.0 };
        let floor = floor.max(LEAST_FLOOR * largest);
        let freedom =
            (targets - mean_parameters - features * as_f64(used.len())).max(LEAST_FREEDOM * targets);
        let noise = devices * residuals / freedom;
        let is_possible = noise > 0.0 && floor > 0.0 && noise.is_finite() && floor.is_finite();
        let Some(basis) = orthonormal(&product(&products, &rotation)).ok().filter(|_| is_possible) else {
            return;
        };
        let span =
            |(j, value): (usize, &f64)| if is_allowed(j) { (value - floor).max(0.0) / noise } else { 0.0 };
        self.spans = values.iter().enumerate().map(span).collect();
        (self.basis, self.floor, self.noise) = (basis, floor / noise, noise);
    }

    /// Takes a step against the errors of newcomers: along the natural gradient of the logarithm of their mean squared residual, of
    /// the factor `B diag(sqrt(spans))`. Mean, floor and noise stay.
    pub fn descend(&mut self, gradient: &NewcomerGradient) {
        let NewcomerGradient { products, error } = gradient;
        let k = self.basis.ncols();
        let products = self.in_coordinates(products);
        let step = STEP / error;
        let mut factor = self.basis.clone();
        for (j, mut column) in factor.column_iter_mut().enumerate() {
            let span = self.spans.get(j).copied().unwrap_or(0.0).max(LEAST_SPAN * self.floor);
            column.axpy(-step * span.sqrt() / (span + self.floor), &products.column(j), span.sqrt());
        }
        if !factor.iter().all(|value| value.is_finite()) {
            return;
        }
        let inner = product_transposed(&factor, &factor);
        let (values, rotation) = eigenvectors(&inner, k);
        if let Ok(basis) = orthonormal(&product(&factor, &rotation)) {
            (self.basis, self.spans) = (basis, values);
        }
    }

    /// Covariance of a column of a head, d x d, in units of the targets.
    pub fn covariance(&self) -> Matrix {
        let scaled = Matrix::from_fn(self.basis.nrows(), self.basis.ncols(), |i, j| {
            self.basis[(i, j)] * self.spans.get(j).copied().unwrap_or(0.0)
        });
        let mut inner = product(&scaled, &self.basis.transpose());
        for i in 0..inner.nrows() {
            inner[(i, i)] += self.floor;
        }
        let inner = inner * self.noise;
        let Some(metric) = &self.metric else { return inner };
        let half = metric.inverse_transposed_times(&inner);
        metric.inverse_transposed_times(&half.transpose())
    }

    /// Sets representation and variances to those of a covariance: its largest eigenvectors in the coordinates of the metric, and the
    /// mean of the other eigenvalues.
    pub fn set_covariance(&mut self, covariance: &Matrix) {
        let (d, k) = self.basis.shape();
        let inner = match &self.metric {
            Some(metric) => {
                let half = metric.transposed_times(covariance);
                metric.transposed_times(&half.transpose())
            }
            None => covariance.clone(),
        };
        let (values, basis) = eigenvectors(&inner, k);
        let value = |rank: usize| values.get(rank).copied().unwrap_or(0.0);
        let largest = value(0);
        let floor = (k..d).map(value).sum::<f64>() / as_f64((d - k).max(1));
        let floor = floor.max(LEAST_FLOOR * largest);
        if floor > 0.0 && floor.is_finite() && self.noise > 0.0 {
            self.basis = basis;
            self.spans = (0..k).map(|rank| (value(rank) - floor).max(0.0) / self.noise).collect();
            self.floor = floor / self.noise;
        }
    }
}

/// Eigenvalues of a symmetric matrix, the largest first and none negative, and the first `count` eigenvectors as columns.
fn eigenvectors(matrix: &Matrix, count: usize) -> (Vec<f64>, Matrix) {
    let eigen = SymmetricEigen::new((matrix + matrix.transpose()) * 0.5);
    let mut order: Vec<usize> = (0..matrix.nrows()).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]).then(a.cmp(b)));
    let vectors = Matrix::from_fn(matrix.nrows(), count, |i, j| {
        eigen.eigenvectors[(i, order.get(j).copied().unwrap_or(0))]
    });
    (order.iter().map(|index| eigen.eigenvalues[*index].max(0.0)).collect(), vectors)
}

#[allow(clippy::cast_precision_loss, reason = "a number of features or outputs")]
fn as_f64(number: usize) -> f64 {
    number as f64
}
