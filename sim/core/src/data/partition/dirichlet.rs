//! Classes shared out in proportions from a Dirichlet law.

use fedspan_engine::random::{Purpose, Stream, stream};

/// Draws that are tried before it is said that none will do. Each costs about as much as one pass over the labels.
const TRIES: usize = 1000;

/// Deals each class to `clients` clients in proportions from Dirichlet(alpha, ..., alpha), drawn anew until everyone
/// has `least` samples.
pub fn deal(
    classes: &[&[usize]],
    clients: usize,
    alpha: f64,
    least: usize,
    seed: u64,
) -> Result<Vec<Vec<usize>>, String> {
    let mut random = stream(seed, Purpose::Partition, 4000);
    let mut best = 0;
    for _ in 0..TRIES {
        let mut parts: Vec<Vec<usize>> = vec![Vec::new(); clients];
        for class in classes {
            let shares = shares(&mut random, clients, alpha);
            let (mut sum, mut start) = (0.0, 0);
            for (number, (part, share)) in (1..).zip(parts.iter_mut().zip(shares)) {
                sum += share;
                // The last one has what rounding leaves.
                let end = if number == clients { class.len() } else { part_of(class.len(), sum) };
                let end = end.clamp(start, class.len());
                part.extend_from_slice(class.get(start..end).unwrap_or_default());
                start = end;
            }
        }
        let fewest = parts.iter().map(Vec::len).min().unwrap_or(0);
        if fewest >= least {
            return Ok(parts);
        }
        best = best.max(fewest);
    }
    let samples: usize = classes.iter().map(|class| class.len()).sum();
    Err(format!(
        "data.partition.alpha = {alpha}: in {TRIES} draws of {clients} clients from {samples} samples someone had fewer \
         than min_samples = {least}; in the best draw {best}"
    ))
}

/// Proportions from Dirichlet(alpha, ..., alpha): gamma variates over their sum. Taken by their logarithms, since
/// with a small alpha most are below the smallest f64.
fn shares(random: &mut Stream, count: usize, alpha: f64) -> Vec<f64> {
    let logarithms: Vec<f64> = (0..count).map(|_| log_gamma_variate(random, alpha)).collect();
    let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut shares: Vec<f64> = logarithms.iter().map(|value| libm::exp(value - largest)).collect();
    let sum: f64 = shares.iter().sum();
    for share in &mut shares {
        *share /= sum;
    }
    shares
}

/// The logarithm of a variate of Gamma(alpha, 1), by Marsaglia and Tsang (2000): for alpha below 1 that of alpha + 1
/// times a power of a uniform one.
fn log_gamma_variate(random: &mut Stream, alpha: f64) -> f64 {
    // Open at 0, so that its logarithm is a number.
    let mut uniform = || (1.0 - random.uniform(), random.normal());
    let shape = if alpha < 1.0 { alpha + 1.0 } else { alpha };
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let log_variate = loop {
        // More than 19 of 20 draws are taken.
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

    /// Of a Dirichlet(a, ..., a) share over n: mean 1 / n, variance (n - 1) / (n^2 (n a + 1)).
    #[test]
    fn shares_have_the_moments_of_the_law() {
        const DRAWS: usize = 20_000;
        for alpha in [0.05, 0.5, 1.0, 7.0] {
            let mut random = stream(1, Purpose::Partition, 0);
            let first: Vec<f64> = (0..DRAWS)
                .map(|_| {
                    let shares = shares(&mut random, 5, alpha);
                    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                    shares[0]
                })
                .collect();
            let mean = first.iter().sum::<f64>() / DRAWS as f64;
            let variance = first.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / DRAWS as f64;
            let truth = 4.0 / (25.0 * (5.0 * alpha + 1.0));
            // Four standard errors of the mean; the variance to 5 in a hundred.
            assert!((mean - 0.2).abs() < 4.0 * (truth / DRAWS as f64).sqrt(), "{alpha}: {mean}");
            assert!((variance / truth - 1.0).abs() < 0.05, "{alpha}: {variance} for {truth}");
        }
    }

    #[test]
    fn a_tiny_concentration_is_no_nan() {
        let mut random = stream(1, Purpose::Partition, 0);
        let shares = shares(&mut random, 50, 1e-3);
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
        assert!(shares.iter().any(|share| *share > 0.9), "one has almost all: {shares:?}");
    }
}
