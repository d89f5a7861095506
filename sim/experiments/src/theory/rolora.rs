//! Theory of RoLoRA on a linear model of rank 1 (Chen et al. 2025, section 5.1 and appendix A): effect of an
//! iteration of Algorithm 2, i.e. two rounds, on the angle between the trained factor A and the true factor
//! A*.
//!
//! The distance is the sine of this angle. The argument `x` of the functions is eta L^2, where eta is the
//! step size and L is the norm of the mean of the true factors B*.

/// Sine of the angle theta' after one iteration from the angle theta, if clients use expectations over the
/// population instead of samples (appendix A.5):
/// `tan theta' = tan theta |1 - 2x cos^2 theta| / (1 + 2x sin^2 theta)`.
#[must_use]
pub fn sine_after_iteration(sine: f64, x: f64) -> f64 {
    let square = sine * sine;
    let cosine = (1.0 - square).max(0.0).sqrt();
    // Components of A after the step: orthogonal to A*, and parallel to A*.
    let orthogonal_part = sine * (1.0 - 2.0 * x * cosine * cosine).abs();
    let along = cosine * (1.0 + 2.0 * x * square);
    orthogonal_part / orthogonal_part.hypot(along)
}

/// Sine of the angle after several iterations of [`sine_after_iteration`].
#[must_use]
pub fn sine_after(iterations: u32, sine: f64, x: f64) -> f64 {
    (0..iterations).fold(sine, |sine, _| sine_after_iteration(sine, x))
}

/// Bound of Lemma 5.3 for identical clients: upper bound of the sine after `iterations` from the sine
/// `start`. The lemma is stated for x up to 1, but is correct only for x well below 1: at x = 1 an iteration
/// hardly changes a small angle.
#[must_use]
pub fn identical_clients_bound(iterations: u32, start: f64, x: f64) -> f64 {
    start * powi((1.0 - x * (1.0 - start * start)).max(0.0).sqrt(), iterations)
}

/// Bound of Lemma A.16 for heterogeneous clients that use expectations over the population: upper bound of
/// the sine after `iterations` from the sine `start`, for x up to 1/2.
#[must_use]
pub fn heterogeneous_clients_bound(iterations: u32, start: f64, x: f64) -> f64 {
    start * powi((1.0 - 2.0 * x * (1.0 - start * start)).max(0.0), iterations)
}

/// Final mean squared residual of FFA-LoRA if its fixed factor A has the given sine (Proposition A.17).
/// RoLoRA reaches the value at sine 0, which is gamma^2, the square of `heterogeneity`.
#[must_use]
pub fn final_residual(heterogeneity: f64, strength: f64, sine: f64) -> f64 {
    heterogeneity * heterogeneity + (strength * sine) * (strength * sine)
}

/// Relative excess c of the residual due to finite samples (Proposition 5.5): with N identical clients of m
/// samples each, where m is above 2, the expected mean squared residual of FFA-LoRA on these samples is
/// `1 + c` times the residual on the population.
#[must_use]
pub fn finite_sample_excess(clients: u32, samples: u32) -> f64 {
    let (n, m) = (f64::from(clients), f64::from(samples));
    -2.0 / (n * m) + 1.0 / (n * n * m) + (n - 1.0) / (n * n * (m - 2.0))
}

/// Integer power, computed by multiplications in a fixed order.
fn powi(factor: f64, count: u32) -> f64 {
    (0..count).fold(1.0, |product, _| product * factor)
}
