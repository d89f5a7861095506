//! What the exponential of the softmax is off by, and what training makes of it. A build has one of two: libm's, or with
//! the feature `micromath` an approximation.

use fedspan_client::kernel::dense::{cross_entropy, softmax_errors};
use fedspan_sim_core::run::{Unwatched, run};
use fedspan_sim_core::scenario::Scenario;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Whose this build has.
pub const NAME: &str = if cfg!(feature = "micromath") { "micromath" } else { "libm" };

/// Rows of logits by chance.
const ROWS: usize = 200_000;
/// Logits of such a row, at most.
const WIDEST: usize = 31;
/// Two logits are up to so far apart; those by chance up to half of it from zero.
const FAR: f64 = 40.0;
/// Steps of the grid of two logits, in each direction.
const STEPS: i32 = 10_000;

/// Largest errors against f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    /// Rows that were looked at.
    pub rows: usize,
    /// Of a probability.
    pub softmax: f64,
    /// Of a cross-entropy, in nats: its exponential is libm's in f64 in every build.
    pub cross_entropy: f64,
}

impl Errors {
    /// Of two logits at every distance, and of rows by chance.
    #[must_use]
    pub fn measure() -> Self {
        let mut errors = Self::default();
        for step in -STEPS..=STEPS {
            errors.add(&[0.0, (FAR * f64::from(step) / f64::from(STEPS)) as f32]);
        }
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut uniform = || f64::from(random.next_u32()) / f64::from(u32::MAX);
        for _ in 0..ROWS {
            let (count, width) = (2 + (uniform() * (WIDEST - 1) as f64) as usize, uniform() * FAR);
            let logits: Vec<f32> =
                (0..count.min(WIDEST)).map(|_| (width * (uniform() - 0.5)) as f32).collect();
            errors.add(&logits);
        }
        errors
    }

    fn add(&mut self, logits: &[f32]) {
        let wide = || logits.iter().map(|&logit| f64::from(logit));
        let most = wide().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = wide().map(|logit| (logit - most).exp()).sum();
        // Of the first class, whose place has a probability less one.
        let mut got = logits.to_vec();
        let sound = softmax_errors(&mut got, &[0], 1.0);
        for (place, (got, logit)) in got.iter().zip(wide()).enumerate() {
            let own = if place == 0 { 1.0 } else { 0.0 };
            let error = (f64::from(*got) + own - (logit - most).exp() / sum).abs();
            self.softmax = if sound { self.softmax.max(error) } else { f64::INFINITY };
        }
        let loss = sum.ln() + most - f64::from(logits.first().copied().unwrap_or(0.0));
        self.cross_entropy = self.cross_entropy.max((cross_entropy(logits, 0) - loss).abs());
        self.rows += 1;
    }
}

/// The accuracy at the end of a built-in scenario with another algorithm.
///
/// # Errors
/// What the scenario, or the run, says.
pub fn accuracy(scenario: &str, algorithm: &str, seed: u64) -> Result<f64, String> {
    let text = Scenario::built_in(scenario).ok_or_else(|| format!("no scenario {scenario}"))?;
    let changes = [format!("algorithm.name={algorithm}")];
    let scenario = Scenario::parse(scenario, text, &changes).map_err(|error| error.to_string())?;
    let outcome = run(&scenario, seed, &mut Unwatched).map_err(|error| error.to_string())?;
    outcome.scores.accuracy.ok_or_else(|| "it has no accuracy".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_the_exponential() {
        let errors = Errors::measure();
        let (least, most) = if cfg!(feature = "micromath") { (1e-4, 1e-3) } else { (0.0, 1e-6) };
        assert!((least..most).contains(&errors.softmax), "{errors:?}");
        assert!(errors.cross_entropy < 1e-13, "{errors:?}");
    }
}
