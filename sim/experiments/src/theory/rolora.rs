//! RoLoRA on a linear model of rank 1 (Chen et al. 2025, section 5.1 and appendix A): what an iteration of Algorithm 2, which is two
//! rounds, does to the angle between A and the true A*, whose sine is the distance. `x` is eta L^2, L the norm of the mean B*.

/// The sine after an iteration where every client has all samples there are (appendix A.5): with the angle theta,
/// `tan theta' = tan theta |1 - 2x cos^2 theta| / (1 + 2x sin^2 theta)`.
#[must_use]
pub fn step(sine: f64, x: f64) -> f64 {
    let square = sine * sine;
    let cosine = (1.0 - square).max(0.0).sqrt();
    // Of A after the step, what is across A* and what is along it.
    let across = sine * (1.0 - 2.0 * x * cosine * cosine).abs();
    let along = cosine * (1.0 + 2.0 * x * square);
    across / across.hypot(along)
}

/// The same a number of times.
#[must_use]
pub fn after(iterations: u32, sine: f64, x: f64) -> f64 {
    (0..iterations).fold(sine, |sine, _| step(sine, x))
}

/// Lemma 5.3 for clients that are alike: the sine after so many iterations is at most this, from `start`. It asks for x up to 1,
/// but holds only where x is clearly below: at 1 an iteration hardly moves a small angle.
#[must_use]
pub fn alike(iterations: u32, start: f64, x: f64) -> f64 {
    start * powi((1.0 - x * (1.0 - start * start)).max(0.0).sqrt(), iterations)
}

/// Lemma A.16 for clients of any kind with all samples there are: the same, for x up to 1/2.
#[must_use]
pub fn unlike(iterations: u32, start: f64, x: f64) -> f64 {
    start * powi((1.0 - 2.0 * x * (1.0 - start * start)).max(0.0), iterations)
}

/// Proposition A.17: the mean squared residual that FFA-LoRA ends with, its A at this sine. That of RoLoRA is the same at a
/// sine of 0: gamma^2.
#[must_use]
pub fn floor(heterogeneity: f64, strength: f64, sine: f64) -> f64 {
    heterogeneity * heterogeneity + (strength * sine) * (strength * sine)
}

/// Proposition 5.5: with `samples` m at each of `clients` N that are alike, FFA-LoRA's mean squared residual on these samples is
/// `1 + c` times that on average. m is above 2.
#[must_use]
pub fn sampled(clients: u32, samples: u32) -> f64 {
    let (n, m) = (f64::from(clients), f64::from(samples));
    -2.0 / (n * m) + 1.0 / (n * n * m) + (n - 1.0) / (n * n * (m - 2.0))
}

/// A product of equal factors, in a fixed order.
fn powi(factor: f64, count: u32) -> f64 {
    (0..count).fold(1.0, |product, _| product * factor)
}
