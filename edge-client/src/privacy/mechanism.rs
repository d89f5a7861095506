//! Gaussian mechanism: its settings, and the seeds that it draws from the board's entropy source.

use core::fmt;

use super::discrete_gaussian::{Variance, VarianceError};
use super::entropy::{EntropyError, EntropySource, draw_seed};
use super::health::MinEntropy;
use super::multiplier::{NoiseMultiplier, NoiseMultiplierError};
use super::noise::Seed;
use super::sensitivity::{GRID_MAX, sensitivity};
use crate::release::Release;
use crate::time::Millis;

/// Number of bits of a sum over rows.
const SUM_BITS: u32 = 30;

/// Largest width of a basis for which the certificate covers its own rounding: the rounding adds about
/// `2^13.4 width` to a row sum, and at most 2^20 is allowed.
const WIDTH_MAX: u16 = 64;

/// Privacy settings of a device. The settings are public, and fixed before any data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivacySettings {
    multiplier: NoiseMultiplier,
    budget: u64,
    rows_max: u32,
    iterations_max: u16,
    slot: Millis,
}

impl PrivacySettings {
    /// Creates settings. `budget` is the total cost of all releases during the device's lifetime, in units of
    /// [`NoiseMultiplier::release`]. `rows_max` is the maximum number of samples of a round: sums use the
    /// finest grid on which this many rows fit, and later samples of a pass are ignored. Up to 2^15 rows the
    /// grid is the finest possible.
    ///
    /// `slot` is the response time in milliseconds: the device is silent from the start of a computation
    /// until the slot ends, however long the computation takes. Measure the longest computation on the board,
    /// and set `slot` to twice that time. The longest computation includes a whole pass over all samples for
    /// each allowed iteration, three passes for FedRep and for a head (on samples that do not determine the
    /// head), the most expensive rows (none clipped, none unusable), a gradient that is computed ten times to
    /// shorten it, the noise of every number, and both writes to flash with an erased page. If a slot is too
    /// short, [`Counters::slots_missed`](crate::session::Counters::slots_missed) counts it, and the response
    /// time reveals something about records. The server's idle limit and round deadlines must be longer than
    /// the slot.
    ///
    /// # Errors
    /// [`PrivacySettingsError::RowsMax`] for zero rows and for more than 2^30; [`PrivacySettingsError::Slot`]
    /// for 0.
    pub const fn new(
        multiplier: NoiseMultiplier,
        budget: u64,
        rows_max: u32,
        slot: Millis,
    ) -> Result<Self, PrivacySettingsError> {
        if rows_max == 0 || rows_max > 1 << SUM_BITS {
            return Err(PrivacySettingsError::RowsMax { rows_max });
        }
        if slot.is_zero() {
            return Err(PrivacySettingsError::Slot);
        }
        Ok(Self { multiplier, budget, rows_max, iterations_max: 1, slot })
    }

    /// Allows rounds of up to `iterations_max` iterations of FedPower, or gradient steps of a head. Rounds
    /// with more are declined; otherwise a server could make a computation as long as the slot and observe
    /// which records are slower.
    #[must_use]
    pub const fn with_iterations(self, iterations_max: u16) -> Self {
        Self { iterations_max, ..self }
    }

    /// Returns the maximum number of iterations of a round, or of gradient steps of a head.
    #[must_use]
    pub const fn iterations_max(&self) -> u16 {
        self.iterations_max
    }

    /// Returns the response time, in milliseconds after the start of a computation.
    #[must_use]
    pub const fn slot(&self) -> Millis {
        self.slot
    }

    /// Returns the noise multiplier.
    #[must_use]
    pub const fn multiplier(&self) -> NoiseMultiplier {
        self.multiplier
    }

    /// Returns the cost of one release.
    #[must_use]
    pub const fn release(&self) -> u32 {
        self.multiplier.release()
    }

    /// Returns the budget for all releases.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the maximum number of samples of a round.
    #[must_use]
    pub const fn rows_max(&self) -> u32 {
        self.rows_max
    }

    /// Returns `g`, the exponent of the grid `2^-g` of sums.
    #[must_use]
    pub const fn grid(&self) -> u32 {
        // Exponent of the smallest power of two that is not below `rows_max`; at most 30.
        let rows = u32::BITS - (self.rows_max - 1).leading_zeros();
        let bits_left = SUM_BITS - rows;
        if bits_left < GRID_MAX { bits_left } else { GRID_MAX }
    }

    /// Returns the variance of the noise on each entry of a d x `r` product, in squared units of the grid.
    ///
    /// # Errors
    /// [`PrivacySettingsError::Width`] if the basis is too wide for the certificate,
    /// [`PrivacySettingsError::Variance`] if the variance is too large for the sampler.
    pub fn variance(&self, d: u16, r: u16) -> Result<Variance, PrivacySettingsError> {
        if r > WIDTH_MAX {
            return Err(PrivacySettingsError::Width { width: r, most: WIDTH_MAX });
        }
        let sensitivity = sensitivity(d, r, self.grid());
        self.multiplier.variance(sensitivity).map_err(PrivacySettingsError::Variance)
    }
}

/// Error of settings with which no release is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrivacySettingsError {
    /// The maximum number of rows is out of range.
    RowsMax {
        /// Number that was given; allowed: 1 to 2^30.
        rows_max: u32,
    },
    /// The response time is zero.
    Slot,
    /// The mechanism clips gradients but adds no noise.
    ClipWithoutNoise,
    /// The noise multiplier is out of range.
    Multiplier(NoiseMultiplierError),
    /// The basis is too wide.
    Width {
        /// Number of columns.
        width: u16,
        /// Largest allowed number of columns.
        most: u16,
    },
    /// The sensitivity and the multiplier give a variance that cannot be sampled.
    Variance(VarianceError),
    /// The number of features or columns is too large for the protocol.
    Shape {
        /// Number of features.
        features: usize,
        /// Number of columns of the basis.
        width: usize,
    },
}

impl fmt::Display for PrivacySettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RowsMax { rows_max } => write!(f, "{rows_max} rows a round; allowed: 1 to 2^30"),
            Self::Slot => f.write_str("a slot of 0 ms; it must be longer than the longest computation"),
            Self::ClipWithoutNoise => f.write_str(
                "the mechanism clips gradients but adds no noise; add noise or remove the clipping",
            ),
            Self::Multiplier(error) => error.fmt(f),
            Self::Width { width, most } => {
                write!(f, "a basis of {width} columns; at most {most} are allowed")
            }
            Self::Variance(error) => error.fmt(f),
            Self::Shape { features, width } => {
                write!(f, "a model of {features} x {width}; each side is at most 65535")
            }
        }
    }
}

impl core::error::Error for PrivacySettingsError {}

/// Error of a seed that could not be drawn. [`Gaussian::failure`] returns the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEntropy;

impl fmt::Display for NoEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no entropy for the noise")
    }
}

impl core::error::Error for NoEntropy {}

/// Gaussian mechanism of a board, with a fresh seed for each release.
pub struct Gaussian<S: EntropySource> {
    pub(crate) settings: PrivacySettings,
    source: S,
    claim: MinEntropy,
    /// Seed of the prepared release.
    seed: Option<Seed>,
    /// Reason why the last seed could not be drawn.
    failure: Option<EntropyError<S::Error>>,
    /// Number of seeds that could not be drawn.
    failures: u32,
}

impl<S: EntropySource> Gaussian<S> {
    /// Creates the mechanism. `claim` is the min-entropy of the source's samples.
    pub const fn new(settings: PrivacySettings, source: S, claim: MinEntropy) -> Self {
        Self { settings, source, claim, seed: None, failure: None, failures: 0 }
    }

    /// Returns the reason why the last seed could not be drawn; `None` if it was drawn.
    pub const fn failure(&self) -> Option<&EntropyError<S::Error>> {
        self.failure.as_ref()
    }

    /// Returns the number of seeds that could not be drawn.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Draws the seed of a release, before its cost is charged.
    pub(crate) fn prepare_seed(&mut self, release: &Release) -> Result<(), NoEntropy> {
        (self.seed, self.failure) = (None, None);
        match draw_seed(&mut self.source, self.claim) {
            Ok(drawn) => {
                self.seed = Some(drawn.of_release(release));
                Ok(())
            }
            Err(error) => {
                self.failure = Some(error);
                self.failures = self.failures.saturating_add(1);
                Err(NoEntropy)
            }
        }
    }

    /// Returns the seed of the prepared release; a second call fails.
    pub(crate) fn take_seed(&mut self) -> Result<Seed, NoEntropy> {
        self.seed.take().ok_or(NoEntropy)
    }
}

impl<S: EntropySource> fmt::Debug for Gaussian<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gaussian")
            .field("settings", &self.settings)
            .field("claim", &self.claim)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}
