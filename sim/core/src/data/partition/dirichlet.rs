//! Division of the samples of each class among clients, in proportions from a Dirichlet distribution.

use fedspan_engine::random::{Purpose, Stream, stream};

/// Largest number of draws before an error is returned. A draw takes about as long as one pass over the
/// labels.
const MAX_DRAWS: usize = 1000;

/// Divides each class among `clients` clients in proportions from Dirichlet(alpha, ..., alpha). Draws are
/// repeated until every client has at least `min_samples` samples.
pub fn deal(
    classes: &[&[usize]],
    clients: usize,
    alpha: f64,
    min_samples: usize,
    seed: u64,
) -> Result<Vec<Vec<usize>>, String> {
    let mut random = stream(seed, Purpose::Partition, 4000);
    let mut best = 0;
    for _ in 0..MAX_DRAWS {
        let mut parts: Vec<Vec<usize>> = vec![Vec::new(); clients];
        for class in classes {
            let shares = draw_shares(&mut random, clients, alpha);
            let (mut sum, mut start) = (0.0, 0);
            for (number, (part, share)) in (1..).zip(parts.iter_mut().zip(shares)) {
                sum += share;
                // The last client takes the rounding remainder.
                let end = if number == clients { class.len() } else { part_of(class.len(), sum) };
                let end = end.clamp(start, class.len());
                part.extend_from_slice(class.get(start..end).unwrap_or_default());
                start = end;
            }
        }
        let fewest = parts.iter().map(Vec::len).min().unwrap_or(0);
        if fewest >= min_samples {
            return Ok(parts);
        }
        best = best.max(fewest);
    }
    let samples: usize = classes.iter().map(|class| class.len()).sum();
    Err(format!(
        "data.partition.alpha = {alpha}: in each of {MAX_DRAWS} draws of {clients} clients from {samples} samples some client had \
         fewer than min_samples = {min_samples} (at best {best}); increase alpha or reduce min_samples"
    ))
}

/// Draws `count` proportions from Dirichlet(alpha, ..., alpha): gamma variates divided by their sum.
/// Logarithms of the variates are used, since for small alpha most variates are below the smallest f64.
fn draw_shares(random: &mut Stream, count: usize, alpha: f64) -> Vec<f64> {
    let logarithms: Vec<f64> = (0..count).map(|_| log_gamma_variate(random, alpha)).collect();
    let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut shares: Vec<f64> = logarithms.iter().map(|value| libm::exp(value - largest)).collect();
    let sum: f64 = shares.iter().sum();
    for share in &mut shares {
        *share /= sum;
    }
    shares
}

/// Draws the logarithm of a variate of Gamma(alpha, 1) with the method of Marsaglia and Tsang (2000). For
/// alpha below 1, a variate of Gamma(alpha + 1, 1) is multiplied by a power of a uniform variate.
fn log_gamma_variate(random: &mut Stream, alpha: f64) -> f64 {
    // The uniform variate is in (0, 1], so its logarithm is finite.
    let mut uniform = || (1.0 - random.uniform(), random.normal());
    let shape = if alpha < 1.0 { alpha + 1.0 } else { alpha };
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let log_variate = loop {
        // More than 19 of 20 draws are accepted.
        let (u, x) = uniform();
        let t = 1.0 + c * x;
        let v = t * t * t;
        if v > 0.0 && libm::log(u) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            break libm::log(d * v);
        }
    };
    if alpha < 1.0 { log_variate + libm::log(uniform().0) / alpha } else { log_variate }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
fn part_of(count: usize, share: f64) -> usize {
    (count as f64 * share).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A component of Dirichlet(a, ..., a) over n has mean 1 / n and variance (n - 1) / (n^2 (n a + 1)).
    #[test]
    fn shares_have_dirichlet_moments() {
        const DRAWS: usize = 20_000;
        for alpha in [0.05, 0.5, 1.0, 7.0] {
            let mut random = stream(1, Purpose::Partition, 0);
            let first: Vec<f64> = (0..DRAWS)
                .map(|_| {
                    let shares = draw_shares(&mut random, 5, alpha);
                    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                    shares[0]
                })
                .collect();
            let mean = first.iter().sum::<f64>() / DRAWS as f64;
            let variance = first.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / DRAWS as f64;
            let truth = 4.0 / (25.0 * (5.0 * alpha + 1.0));
            // Tolerances: four standard errors for the mean, and 5 % for the variance.
            assert!((mean - 0.2).abs() < 4.0 * (truth / DRAWS as f64).sqrt(), "{alpha}: {mean}");
            assert!((variance / truth - 1.0).abs() < 0.05, "{alpha}: {variance} for {truth}");
        }
    }

    #[test]
    fn tiny_concentration_gives_finite_shares() {
        let mut random = stream(1, Purpose::Partition, 0);
        let shares = draw_shares(&mut random, 50, 1e-3);
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
        assert!(shares.iter().any(|share| *share > 0.9), "no share is above 0.9: {shares:?}");
    }
}
