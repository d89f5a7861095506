//! Quantiles of durations.

use std::time::Duration;

/// A sample of durations.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    sorted: Vec<Duration>,
}

impl Quantiles {
    /// Creates a sample from durations in any order.
    #[must_use]
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { sorted: times }
    }

    /// Returns the size of the sample.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the least duration that is not exceeded by the given share (0 to 1) of the sample, in ms; 0
    /// for an empty sample.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted
            .get(rank.clamp(1, self.sorted.len().max(1)) - 1)
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_a_measured_duration() {
        let spread = Quantiles::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(
            [0.0, 0.005, 0.5, 0.99, 0.991, 1.0].map(|p| spread.quantile(p)),
            [1.0, 1.0, 50.0, 99.0, 100.0, 100.0]
        );
        assert_eq!((Quantiles::default().quantile(0.5), spread.count()), (0.0, 100));
    }
}
