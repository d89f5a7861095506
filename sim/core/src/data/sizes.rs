//! Distributions of client sizes, which are numbers of samples.

use fedspan_engine::config::{Problem, Section};
use fedspan_engine::random::{Purpose, stream};

/// Largest standard deviation of a logarithm. Three standard deviations are then a factor of 10^13.
pub const LARGEST_SIGMA: f64 = 10.0;

/// Distribution of the clients' sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sizes {
    /// Equal sizes.
    #[default]
    Equal,
    /// Uniformly distributed sizes; the largest size is 1.5 times the smallest.
    Uniform,
    /// Log-normally distributed sizes around a median.
    LogNormal {
        /// Standard deviation of the logarithm of the size.
        sigma: f64,
    },
}

impl Sizes {
    /// Reads the key `sizes` and the keys of the chosen distribution from a section of a scenario.
    ///
    /// # Errors
    /// [`Problem`] for the first error.
    pub fn read(section: &Section<'_>) -> Result<Self, Problem> {
        let laws = [("equal", Some(Self::Equal)), ("uniform", Some(Self::Uniform)), ("log-normal", None)];
        Ok(match section.choice("sizes", Some("equal"), &laws)? {
            Some(law) => law,
            None => Self::LogNormal { sigma: section.number("size_sigma", Some(1.0), 0.0..=LARGEST_SIGMA)? },
        })
    }

    /// Number of samples of a client, at least 1 if `base` is at least 1. `base` is the size of each client,
    /// the smallest size or the median size, depending on the distribution.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is bounded then"
    )]
    pub fn samples(self, base: usize, seed: u64, client: u64) -> usize {
        match self {
            Self::Equal => base,
            Self::Uniform => base + stream(seed, Purpose::Size, client).below(base / 2 + 1),
            Self::LogNormal { sigma } => {
                let size = base as f64 * log_normal(sigma, seed, client);
                (size.round() as usize).max(base.min(1))
            }
        }
    }

    /// Weight of a client if all samples are divided among clients in proportion to their weights.
    #[must_use]
    pub fn weight(self, seed: u64, client: u64) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::Uniform => 1.0 + 0.5 * stream(seed, Purpose::Size, client).uniform(),
            Self::LogNormal { sigma } => log_normal(sigma, seed, client),
        }
    }
}

fn log_normal(sigma: f64, seed: u64, client: u64) -> f64 {
    libm::exp(sigma * stream(seed, Purpose::Size, client).normal())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(law: Sizes, base: usize) -> Vec<usize> {
        (0..4000).map(|client| law.samples(base, 2, client)).collect()
    }

    #[test]
    fn uniform_sizes_span_base_to_one_and_a_half() {
        let sizes = sizes(Sizes::Uniform, 100);
        assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&100), Some(&150)));
        let mean = sizes.iter().sum::<usize>() as f64 / 4000.0;
        assert!((mean - 125.0).abs() < 1.0, "{mean}");
    }

    #[test]
    fn log_normal_sizes_match_median_and_deviation() {
        let mut sizes = sizes(Sizes::LogNormal { sigma: 0.5 }, 1000);
        sizes.sort_unstable();
        assert!(sizes[2000].abs_diff(1000) < 30, "{}", sizes[2000]);
        // Percentiles 15.9 and 84.1 are one standard deviation below and above the median.
        let ratio = (sizes[3364] as f64 / sizes[636] as f64).ln();
        assert!((ratio - 1.0).abs() < 0.06, "{ratio}");
    }

    #[test]
    fn every_client_has_a_sample() {
        assert!(sizes(Sizes::LogNormal { sigma: 3.0 }, 2).into_iter().all(|size| size > 0));
        assert_eq!(Sizes::LogNormal { sigma: 10.0 }.samples(0, 1, 1), 0);
    }
}
