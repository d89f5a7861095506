//! RoLoRA on a linear model of rank 1 (Chen et al. 2025, section 5.1 and appendix A): effect of an iteration of
//! Algorithm 2, i.e. two rounds, on the angle between A and the true A*. The distance is the sine of that
//! angle. `x` is eta L^2, with L the norm of the mean B*.

/// Sine after one iteration if every client has the population instead of samples (appendix A.5): with the
/// angle theta, `tan theta' = tan theta |1 - 2x cos^2 theta| / (1 + 2x sin^2 theta)`.
#[must_use]
pub fn sine_after_iteration(sine: f64, x: f64) -> f64 {
    let square = sine * sine;
    let cosine = (1.0 - square).max(0.0).sqrt();
    // Components of A after the step: across A* and along it.
    let across = sine * (1.0 - 2.0 * x * cosine * cosine).abs();
    let along = cosine * (1.0 + 2.0 * x * square);
    across / across.hypot(along)
}

/// Sine after a number of iterations.
#[must_use]
pub fn sine_after(iterations: u32, sine: f64, x: f64) -> f64 {
    (0..iterations).fold(sine, |sine, _| sine_after_iteration(sine, x))
}

/// Bound of Lemma 5.3 for identical clients: the sine after `iterations` is at most this, from `start`. The
/// lemma allows x up to 1, but holds only for x clearly below 1: at 1 an iteration hardly changes a small
/// angle.
#[must_use]
pub fn identical_clients_bound(iterations: u32, start: f64, x: f64) -> f64 {
    start * powi((1.0 - x * (1.0 - start * start)).max(0.0).sqrt(), iterations)
}

/// Bound of Lemma A.16 for heterogeneous clients that have the population: the sine after `iterations`, for x
/// up to 1/2.
#[must_use]
pub fn heterogeneous_clients_bound(iterations: u32, start: f64, x: f64) -> f64 {
    start * powi((1.0 - 2.0 * x * (1.0 - start * start)).max(0.0), iterations)
}

/// Proposition A.17: final mean squared residual of FFA-LoRA with its A at this sine. RoLoRA ends with the
/// value at sine 0, which is gamma^2.
#[must_use]
pub fn final_residual(heterogeneity: f64, strength: f64, sine: f64) -> f64 {
    heterogeneity * heterogeneity + (strength * sine) * (strength * sine)
}

/// Proposition 5.5: with N identical clients of m samples each (m above 2), the mean squared residual of
/// FFA-LoRA on these samples is on average `1 + c` times the one of the population; this is c.
#[must_use]
pub fn finite_sample_excess(clients: u32, samples: u32) -> f64 {
    let (n, m) = (f64::from(clients), f64::from(samples));
    -2.0 / (n * m) + 1.0 / (n * n * m) + (n - 1.0) / (n * n * (m - 2.0))
}

/// Product of equal factors, multiplied in a fixed order.
fn powi(factor: f64, count: u32) -> f64 {
    (0..count).fold(1.0, |product, _| product * factor)
}
