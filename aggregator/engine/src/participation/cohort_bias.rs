//! Measure of how the fastest devices differ from the fleet, from rounds with all devices.
//!
//! In such a round all steps are taken at one and the same model, so the mean step of the first `n` devices can be
//! compared with the mean step of all `N`. If speed has nothing to do with data, the squared length of the
//! difference is `(1/n - 1/N) s^2` in expectation, with the variance `s^2` between the devices' steps. A
//! quotient that stays above this shows that the first `n` lead elsewhere.

use super::contraction::Progress;
use super::round_steps::ModelStep;
use crate::linalg::Matrix;

/// Factor of the weight of a round for each later round.
const FORGETTING: f64 = 0.7;
/// Quotient of the squared difference to its expectation from which on the first devices count as different.
const SIGNIFICANT: f64 = 1.5;
/// Largest quotient of a round, so that a fleet without variance is not remembered for ever, and the state stays finite.
const LARGEST_QUOTIENT: f64 = 1e3;
/// Smallest squared length of the mean step without noise, as a fraction of that with noise.
const SMALLEST_SIGNAL: f64 = 0.1;

/// Comparison of the first devices with all devices, for several numbers of devices.
#[derive(Clone, Debug, Default)]
pub struct CohortBias {
    /// In ascending order of the number of devices.
    levels: Vec<Level>,
}

/// Comparison for one number of devices.
#[derive(Clone, Copy, Debug)]
struct Level {
    devices: usize,
    /// Weighted sum over rounds of the quotient of the squared difference to its expectation.
    quotient: f64,
    /// Sum of the weights.
    weight: f64,
    progress: Progress,
}

impl Level {
    /// Creates a comparison without observations.
    fn new(devices: usize) -> Self {
        Self { devices, quotient: 0.0, weight: 0.0, progress: Progress::FULL }
    }
}

impl CohortBias {
    /// Observes a round with all devices. `first` are mean steps of the first devices, each with the number of
    /// these devices, in ascending order.
    pub fn update<'a>(&mut self, observed: &ModelStep, first: impl IntoIterator<Item = (usize, &'a Matrix)>) {
        let (all, count) = (&observed.mean, observed.count);
        let variance = observed.variance();
        let squared = all.norm_squared();
        let signal = (squared - variance / count).max(SMALLEST_SIGNAL * squared).max(f64::MIN_POSITIVE);
        for (devices, mean) in first {
            let n = devices as f64;
            // A round that was short of updates may have had fewer than the first devices of another one.
            if n >= count {
                continue;
            }
            let expected = ((1.0 / n - 1.0 / count) * variance).max(f64::MIN_POSITIVE);
            let quotient = ((mean - all).norm_squared() / expected).min(LARGEST_QUOTIENT);
            let along = ((mean.dot(all) - variance / count) / signal).clamp(-1.0, 1.5);
            let squared = ((mean.norm_squared() - variance / n) / signal).max(along * along);
            let progress = Progress { along, squared };
            let at = self.levels.partition_point(|level| level.devices < devices);
            if self.levels.get(at).is_none_or(|level| level.devices != devices) {
                self.levels.insert(at, Level::new(devices));
            }
            let Some(level) = self.levels.get_mut(at) else { continue };
            level.quotient = FORGETTING * level.quotient + quotient;
            level.weight = FORGETTING * level.weight + 1.0;
            level.progress = progress;
        }
    }

    /// Progress of a round with the first `n` devices. The first devices of a larger number that differs from
    /// the fleet are assumed to differ at least as much.
    pub fn progress(&self, n: usize) -> Progress {
        let mut progress = Progress::FULL;
        for level in self.levels.iter().rev().filter(|level| level.devices >= n) {
            if level.quotient > SIGNIFICANT * level.weight && level.progress.along < progress.along {
                progress = level.progress;
            }
        }
        progress
    }

    /// Number of levels.
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// State for checkpoints: five values for each level.
    pub fn state(&self) -> impl Iterator<Item = f64> + '_ {
        self.levels.iter().flat_map(|level| {
            let Progress { along, squared } = level.progress;
            [level.devices as f64, level.quotient, level.weight, along, squared]
        })
    }

    /// Restores a state that [`Self::state`] returned; `None` if the values are no such state.
    pub fn restored(state: &[f64]) -> Option<Self> {
        let (levels, rest) = state.as_chunks();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let level = |&[devices, quotient, weight, along, squared]: &[f64; 5]| Level {
            devices: devices as usize,
            quotient,
            weight,
            progress: Progress { along, squared },
        };
        rest.is_empty().then(|| Self { levels: levels.iter().map(level).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::model_motion::ModelPoint;
    use super::*;

    /// A cycle whose last round was short of updates has fewer steps than the first devices of another round, or
    /// steps without variance. Neither may make the state infinite, since no checkpoint with it can be restored.
    #[test]
    fn short_rounds_keep_the_state_finite() {
        let point = ModelPoint::Values(Matrix::zeros(2, 1));
        let observed = ModelStep::new(point.clone(), point, Matrix::from_element(2, 1, 1.0));
        let far = Matrix::from_element(2, 1, 1e9);
        let mut bias = CohortBias::default();
        bias.update(&observed, [(1, &far), (4, &far)]);
        assert_eq!(bias.len(), 0, "as many first devices as steps");
        let observed = observed.with_count(8.0);
        for _ in 0..100 {
            bias.update(&observed, [(4, &far)]);
        }
        assert!(bias.state().all(f64::is_finite));
        // Later rounds without a difference outweigh these soon.
        for _ in 0..40 {
            bias.update(&observed, [(4, &observed.mean)]);
        }
        assert_eq!(bias.progress(4), Progress::FULL);
    }
}
