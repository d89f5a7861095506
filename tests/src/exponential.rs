//! Measurement of the error of the softmax's exponential, and of its effect on training. The exponential of a
//! build is libm's or, with the feature `micromath`, an approximation.

use fedspan_client::kernel::dense::{cross_entropy, softmax_errors};
use fedspan_client::pace::Pace;
use fedspan_sim_core::run::{NoProgress, run};
use fedspan_sim_core::scenario::Scenario;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Name of this build's exponential.
pub const NAME: &str = if cfg!(feature = "micromath") { "micromath" } else { "libm" };

/// Number of random rows of logits.
const ROWS: usize = 200_000;
/// Largest number of logits in a random row.
const MAX_LOGITS: usize = 31;
/// Largest difference of two logits in the grid, and width of the range of random logits.
const MAX_DIFFERENCE: f64 = 40.0;
/// Number of steps of the grid of two logits in each direction.
const STEPS: i32 = 10_000;

/// Largest absolute errors compared with f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    /// Number of rows compared.
    pub rows: usize,
    /// Error of a probability.
    pub softmax: f64,
    /// Error of a cross-entropy, in nats. A cross-entropy uses libm's exponential in f64 in every build.
    pub cross_entropy: f64,
}

impl Errors {
    /// Measures the errors on a grid of two logits and on random rows.
    #[must_use]
    pub fn measure() -> Self {
        let mut errors = Self::default();
        for step in -STEPS..=STEPS {
            errors.add(&[0.0, (MAX_DIFFERENCE * f64::from(step) / f64::from(STEPS)) as f32]);
        }
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut uniform = || f64::from(random.next_u32()) / f64::from(u32::MAX);
        for _ in 0..ROWS {
            let (count, width) =
                (2 + (uniform() * (MAX_LOGITS - 1) as f64) as usize, uniform() * MAX_DIFFERENCE);
            let logits: Vec<f32> =
                (0..count.min(MAX_LOGITS)).map(|_| (width * (uniform() - 0.5)) as f32).collect();
            errors.add(&logits);
        }
        errors
    }

    /// Compares the probabilities and the cross-entropy of one row of logits with f64.
    fn add(&mut self, logits: &[f32]) {
        let logits_f64 = || logits.iter().map(|&logit| f64::from(logit));
        let max_logit = logits_f64().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits_f64().map(|logit| (logit - max_logit).exp()).sum();
        // `softmax_errors` returns the probabilities, minus 1 for the true class, which is the first class.
        let mut probabilities = logits.to_vec();
        let is_finite = softmax_errors(&mut probabilities, &[0], 1.0, Pace::NONE);
        for (class, (probability, logit)) in probabilities.iter().zip(logits_f64()).enumerate() {
            let true_class = if class == 0 { 1.0 } else { 0.0 };
            let error = (f64::from(*probability) + true_class - (logit - max_logit).exp() / sum).abs();
            self.softmax = if is_finite { self.softmax.max(error) } else { f64::INFINITY };
        }
        let loss = sum.ln() + max_logit - f64::from(logits.first().copied().unwrap_or(0.0));
        self.cross_entropy = self.cross_entropy.max((cross_entropy(logits, 0) - loss).abs());
        self.rows += 1;
    }
}

/// Returns the final accuracy of a built-in scenario that is run with another algorithm.
///
/// # Errors
/// If there is no such scenario, if it does not fit the algorithm, or if the run fails.
pub fn accuracy(scenario: &str, algorithm: &str, seed: u64) -> Result<f64, String> {
    let text = Scenario::built_in(scenario).ok_or_else(|| format!("no scenario {scenario}"))?;
    let changes = [format!("algorithm.name={algorithm}")];
    let scenario = Scenario::parse(scenario, text, &changes).map_err(|error| error.to_string())?;
    let outcome = run(&scenario, seed, &mut NoProgress).map_err(|error| error.to_string())?;
    outcome.scores.accuracy.ok_or_else(|| "the scenario's scores have no accuracy".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_error_is_that_of_the_exponential() {
        let errors = Errors::measure();
        let (min, max) = if cfg!(feature = "micromath") { (1e-4, 1e-3) } else { (0.0, 1e-6) };
        assert!((min..max).contains(&errors.softmax), "{errors:?}");
        assert!(errors.cross_entropy < 1e-13, "{errors:?}");
    }
}
