//! Evidence of held-out devices for a grid of priors, with the variance of the noise that is best for each.
//!
//! With the covariance S of a head's columns in units of the noise's variance, and a device with m samples, C targets each, twice the
//! negative logarithm of the evidence is `q / noise + C (log det (I + X S X^T) + m log (2 pi noise))`, where q is what the prior
//! leaves of the squared targets. Its minimum over the noise is at `noise = sum q / (C sum m)`.

use fedspan_protocol::message::GeometricGrid;

/// Factors of the floor for priors without representation: half decades from 1e-5 to 1e3.
pub const FLOORS: GeometricGrid = GeometricGrid { first: 1e-5, factor: HALF_DECADE, count: 17 };

/// Factor 0 of the variances of the representation.
pub const NO_SPAN: GeometricGrid = GeometricGrid { first: 0.0, factor: 1.0, count: 1 };

/// Factors of the variances of the representation.
pub const SPANS: GeometricGrid = GeometricGrid { first: 0.1, factor: HALF_DECADE, count: 5 };

/// Factors of the floor next to a representation.
pub const FLOORS_WITH_SPANS: GeometricGrid =
    GeometricGrid { first: 0.031_622_78, factor: HALF_DECADE, count: 6 };

/// Number of targets that are added to those of the devices, so that a prior which explains few targets exactly has no unbounded
/// evidence.
const ADDED_TARGETS: f64 = 8.0;

/// Squared residual of an added target, relative to the mean square of a target.
const ADDED_NOISE: f64 = 0.3;

/// Difference in the logarithm of the evidence of all targets beyond which evidence is called very strong (Kass and Raftery 1995,
/// JASA 90).
const VERY_STRONG: f64 = 5.0;

const HALF_DECADE: f32 = 3.162_277_7;

/// Sums of the evidence for a grid of priors over devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// For each prior the sum of q, of `log det (I + X S X^T)`, and of the fractions of correct predictions; then the number of
    /// samples, and of predictions.
    sums: Vec<f64>,
    /// Number of devices.
    devices: f64,
}

/// Best prior of a grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Score by which it is the best: the mean fraction of correct predictions, or the logarithm of the evidence for a target.
    pub score: f64,
    /// Factor of the variances of the representation.
    pub span: f64,
    /// Factor of the floor.
    pub floor: f64,
    /// Best variance of the noise.
    pub noise: f64,
}

impl Evidence {
    /// Creates empty sums for `priors` priors.
    pub fn new(priors: usize) -> Self {
        Self { sums: vec![0.0; length(priors)], devices: 0.0 }
    }

    /// Number of values of [`Self::state`].
    pub fn len(&self) -> usize {
        self.sums.len() + 1
    }

    /// Adds the sums of `devices` devices, given as means over them. `log_determinants` are those of S for each prior.
    pub fn add(&mut self, devices: f64, means: &[f64], log_determinants: impl Iterator<Item = f64>) {
        self.devices += devices;
        for (sum, mean) in self.sums.iter_mut().zip(means) {
            *sum += devices * mean;
        }
        // log det (I + X S X^T) = log det S + log det (X^T X + S^-1), of which devices send the second.
        for (of_prior, log_determinant) in self.sums.chunks_exact_mut(3).zip(log_determinants) {
            if let [_, sum, _] = of_prior {
                *sum += devices * log_determinant;
            }
        }
    }

    /// Best prior of the grid, the first of several: by correct predictions if there are any, otherwise by evidence. `None` without
    /// samples, or if no evidence is finite. `size` is the mean square of a target, from which the variance of the noise may not
    /// depart too far where there are few.
    pub fn best(
        &self,
        spans: GeometricGrid,
        floors: GeometricGrid,
        outputs: usize,
        size: f64,
    ) -> Option<Best> {
        let (of_priors, &[samples, predictions]) = self.sums.split_last_chunk()?;
        // With one output there are no classes, even if a device reports some.
        let by_predictions = outputs > 1 && predictions > 0.0;
        #[allow(clippy::cast_precision_loss, reason = "a number of outputs")]
        let outputs = outputs as f64;
        let targets = outputs * samples;
        if targets <= 0.0 {
            return None;
        }
        let mut best: Option<Best> = None;
        for (of_prior, (span, floor)) in of_priors.chunks_exact(3).zip(grid(spans, floors)) {
            let &[squares, log_determinant, correct] = of_prior else { continue };
            let counted = targets + ADDED_TARGETS;
            let noise = (squares + ADDED_TARGETS * ADDED_NOISE * size) / counted;
            let log_evidence = -0.5 * (counted * libm::log(noise) + outputs * log_determinant) / targets;
            let score = if by_predictions { correct / self.devices } else { log_evidence };
            if score.is_finite() && best.is_none_or(|best| score > best.score) {
                best = Some(Best { score, span, floor, noise });
            }
        }
        best
    }

    /// Difference by which the score of a refined prior must be larger than that of the prior before it: very strong evidence; 0 for
    /// fractions of correct predictions.
    pub fn margin(&self, outputs: usize) -> f64 {
        let Some((_, &[samples, _])) = self.sums.split_last_chunk() else { return 0.0 };
        #[allow(clippy::cast_precision_loss, reason = "a number of outputs")]
        let targets = outputs as f64 * samples;
        if self.counts_predictions(outputs) || targets <= 0.0 { 0.0 } else { VERY_STRONG / targets }
    }

    /// Mean square of what the first prior of the grid leaves of a target: about that of a target itself if the prior is narrow.
    pub fn mean_square(&self, outputs: usize) -> f64 {
        let Some((of_priors, &[samples, _])) = self.sums.split_last_chunk() else { return 0.0 };
        #[allow(clippy::cast_precision_loss, reason = "a number of outputs")]
        let targets = outputs as f64 * samples;
        if targets > 0.0 { of_priors.first().map_or(0.0, |squares| squares / targets) } else { 0.0 }
    }

    /// Whether devices have scored heads by their correct predictions.
    pub fn counts_predictions(&self, outputs: usize) -> bool {
        outputs > 1 && self.sums.last().is_some_and(|predictions| *predictions > 0.0)
    }

    /// Numbers from which [`Self::restore`] restores the sums.
    pub fn state(&self) -> impl Iterator<Item = f64> + '_ {
        std::iter::once(self.devices).chain(self.sums.iter().copied())
    }

    /// Restores the sums.
    pub fn restore(&mut self, state: &[f64]) {
        let Some((devices, sums)) = state.split_first() else { return };
        self.devices = *devices;
        for (target, value) in self.sums.iter_mut().zip(sums) {
            *target = *value;
        }
    }
}

/// Number of values that a device sends for `priors` priors.
pub const fn length(priors: usize) -> usize {
    3 * priors + 2
}

/// Factors of the priors of a grid, in the order in which devices score them.
pub fn grid(spans: GeometricGrid, floors: GeometricGrid) -> impl Iterator<Item = (f64, f64)> {
    spans.values().flat_map(move |span| floors.values().map(move |floor| (span.into(), floor.into())))
}

/// Number of priors of a grid.
pub fn count(spans: GeometricGrid, floors: GeometricGrid) -> usize {
    usize::from(spans.count) * usize::from(floors.count)
}

#[cfg(test)]
mod tests {
    use super::{Evidence, FLOORS, NO_SPAN, count, length};

    /// The margin is 5 in the logarithm of the evidence of all targets, and 0 where predictions are counted or nothing is known.
    #[test]
    fn margins_are_very_strong_evidence() {
        let priors = count(NO_SPAN, FLOORS);
        let evidence = |samples: f64, predictions: f64| {
            let mut evidence = Evidence::new(priors);
            let mut means = vec![1.0; length(priors) - 2];
            means.extend([samples, predictions]);
            evidence.add(4.0, &means, std::iter::repeat_n(0.0, priors));
            evidence
        };
        // Four devices of 25 samples with two outputs: 200 targets.
        assert!((evidence(25.0, 0.0).margin(2) * 200.0 - 5.0).abs() < 1e-12);
        assert!((evidence(25.0, 30.0).margin(1) * 100.0 - 5.0).abs() < 1e-12, "one output has no classes");
        for (without, outputs) in
            [(evidence(25.0, 30.0), 2), (evidence(0.0, 0.0), 2), (Evidence::new(priors), 1)]
        {
            assert!(without.margin(outputs).abs() < f64::MIN_POSITIVE);
        }
    }
}
