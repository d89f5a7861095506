//! The Gaussian mechanism: settings, and the board's source of seeds.

use core::fmt;

use super::discrete_gaussian::{Variance, VarianceError};
use super::entropy::{EntropyError, EntropySource, draw_seed};
use super::health::MinEntropy;
use super::multiplier::{NoiseMultiplier, NoiseMultiplierError};
use super::noise::Seed;
use super::sensitivity::{GRID_MAX, sensitivity};
use crate::mechanism::{Mechanism, Release};
use crate::time::Millis;

/// Sums of rows stay within so many bits.
const SUM_BITS: u32 = 30;

/// The widest basis whose certificate the roundings of it leave intact: they add up to a row sum of about
/// `2^13.4 width`, and 2^20 is allowed.
const WIDTH_MAX: u16 = 64;

/// How a device hides what it sends. All of it is public, and fixed before any data is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    multiplier: NoiseMultiplier,
    budget: u64,
    rows_max: u32,
    iterations_max: u16,
    slot: Millis,
}

impl Settings {
    /// `budget`: what all releases of the device's life may cost together, in units of
    /// [`NoiseMultiplier::release`]. `rows_max`: samples of a round that count; sums take the finest grid that they fit
    /// on with so many, and later samples of a pass are ignored. Up to 2^15 the grid is the finest.
    ///
    /// `slot`: how long the device is quiet once it begins to compute, in milliseconds; then its answer leaves, whatever
    /// the computation took. Measure the longest one on the board: a whole pass over all samples for each iteration that
    /// is allowed, three passes for FedRep and for a head (samples that do not determine it), rows that make the most work
    /// (none clipped, none unusable), a gradient that is formed ten times to make it short, the noise of every number, and
    /// both writes to flash with an erased page; and take twice
    /// that. Where it is too short, [`Counters::slots_missed`](crate::session::Counters::slots_missed) counts, and the
    /// time of answering tells something of records. The server's limits, for silence and for rounds, have to be longer.
    ///
    /// # Errors
    /// [`SettingsError::RowsMax`] for none, and for more than 2^30; [`SettingsError::Slot`] for 0.
    pub const fn new(
        multiplier: NoiseMultiplier,
        budget: u64,
        rows_max: u32,
        slot: Millis,
    ) -> Result<Self, SettingsError> {
        if rows_max == 0 || rows_max > 1 << SUM_BITS {
            return Err(SettingsError::RowsMax { rows_max });
        }
        if slot.is_zero() {
            return Err(SettingsError::Slot);
        }
        Ok(Self { multiplier, budget, rows_max, iterations_max: 1, slot })
    }

    /// The same for rounds of more than one iteration: `most` of FedPower, or gradient steps of a head. What asks for more
    /// is declined, since otherwise a server could make a computation as long as a slot and see which records are slower.
    #[must_use]
    pub const fn with_iterations(self, most: u16) -> Self {
        Self { iterations_max: most, ..self }
    }

    /// Iterations, or gradient steps of a head, that a round may ask for.
    #[must_use]
    pub const fn iterations_max(&self) -> u16 {
        self.iterations_max
    }

    /// How long a device is quiet once it begins to compute, in milliseconds.
    #[must_use]
    pub const fn slot(&self) -> Millis {
        self.slot
    }

    /// How much noise.
    #[must_use]
    pub const fn multiplier(&self) -> NoiseMultiplier {
        self.multiplier
    }

    /// What one release costs.
    #[must_use]
    pub const fn release(&self) -> u32 {
        self.multiplier.release()
    }

    /// What all releases may cost together.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.budget
    }

    /// Samples of a round that count.
    #[must_use]
    pub const fn rows_max(&self) -> u32 {
        self.rows_max
    }

    /// The grid of a sum is `2^-grid`.
    #[must_use]
    pub const fn grid(&self) -> u32 {
        // The exponent of the least power of two that is not below `rows_max`, at most 30.
        let rows = u32::BITS - (self.rows_max - 1).leading_zeros();
        let left = SUM_BITS - rows;
        if left < GRID_MAX { left } else { GRID_MAX }
    }

    /// The variance of each number of a product of d x `r`, in squared units of the grid.
    ///
    /// # Errors
    /// [`SettingsError::Width`] where no basis could be certified, [`SettingsError::Variance`] where the noise is too
    /// much for the sampler.
    pub fn variance(&self, d: u16, r: u16) -> Result<Variance, SettingsError> {
        if r > WIDTH_MAX {
            return Err(SettingsError::Width { width: r, most: WIDTH_MAX });
        }
        let sensitivity = sensitivity(d, r, self.grid());
        self.multiplier.variance(sensitivity).map_err(SettingsError::Variance)
    }
}

/// Settings that no release is possible with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// No sums of so many rows.
    RowsMax {
        /// What was asked for: from 1 to 2^30.
        rows_max: u32,
    },
    /// No time at which anything may leave.
    Slot,
    /// A mechanism that clips and adds no noise.
    Open,
    /// No such noise multiplier.
    Multiplier(NoiseMultiplierError),
    /// No basis of so many columns.
    Width {
        /// Columns.
        width: u16,
        /// At most.
        most: u16,
    },
    /// Sensitivity and multiplier give no variance that can be sampled.
    Variance(VarianceError),
    /// A side of the model has no room in the protocol.
    Shape {
        /// Features.
        features: usize,
        /// Columns of the basis.
        width: usize,
    },
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RowsMax { rows_max } => write!(f, "{rows_max} rows a round: it has to be 1 to 2^30"),
            Self::Slot => f.write_str("a slot of 0 ms: it has to be longer than the longest computation"),
            Self::Open => f.write_str("a mechanism that clips gradients, and adds no noise to them"),
            Self::Multiplier(error) => error.fmt(f),
            Self::Width { width, most } => {
                write!(f, "a basis of {width} columns, at most {most} are possible")
            }
            Self::Variance(error) => error.fmt(f),
            Self::Shape { features, width } => write!(f, "a model of {features} x {width} is too large"),
        }
    }
}

impl core::error::Error for SettingsError {}

/// There is no seed, for whatever reason: the mechanism knows more ([`Gaussian::failure`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEntropy;

impl fmt::Display for NoEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no entropy for the noise")
    }
}

impl core::error::Error for NoEntropy {}

/// The Gaussian mechanism of a board, with a fresh seed for each release.
pub struct Gaussian<S: EntropySource> {
    settings: Settings,
    source: S,
    claim: MinEntropy,
    /// Of the release that is prepared.
    seed: Option<Seed>,
    failure: Option<EntropyError<S::Error>>,
    failures: u32,
}

impl<S: EntropySource> Gaussian<S> {
    /// `claim`: what is known of the source's samples.
    pub const fn new(settings: Settings, source: S, claim: MinEntropy) -> Self {
        Self { settings, source, claim, seed: None, failure: None, failures: 0 }
    }

    /// Why the last seed could not be drawn, if it could not.
    pub const fn failure(&self) -> Option<&EntropyError<S::Error>> {
        self.failure.as_ref()
    }

    /// How many seeds could not be drawn.
    pub const fn failures(&self) -> u32 {
        self.failures
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

impl<S: EntropySource> Mechanism for Gaussian<S> {
    fn settings(&self) -> Option<Settings> {
        Some(self.settings)
    }

    fn prepare(&mut self, release: &Release) -> Result<(), NoEntropy> {
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

    fn draw_seed(&mut self) -> Result<Seed, NoEntropy> {
        self.seed.take().ok_or(NoEntropy)
    }
}
