//! Differential privacy in integer arithmetic: an exact sampler of the discrete Gaussian, noise expanded from
//! a seed for each coordinate, seeds drawn from a board's entropy source, and the Gaussian mechanism. The
//! mechanism adds noise to the uploads of a [`Linear`](crate::Linear): FedPower's products (with the feature
//! `power`) and, with [`Clipped`], FedRep's gradients.
//!
//! ```
//! use core::convert::Infallible;
//! use fedspan_client::privacy::{EntropySource, MinEntropy, Variance, draw_seed, noise};
//!
//! struct Board(u64);
//!
//! impl EntropySource for Board {
//!     type Error = Infallible;
//!
//!     fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
//!         for sample in samples {
//!             // For this example only: a real source is hardware.
//!             self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
//!             *sample = self.0.to_le_bytes()[7];
//!         }
//!         Ok(())
//!     }
//! }
//!
//! // Drawn before the data is read. Without entropy there is no seed, and no release.
//! let seed = draw_seed(&mut Board(1), MinEntropy::new(4)?)?;
//! // sigma = 5/2 units of the grid.
//! let variance = Variance::new(25, 4)?;
//! let released: i64 = 17 + noise(&seed, 0, &variance);
//! // A retry returns the same noise.
//! assert_eq!(released, 17 + noise(&seed, 0, &variance));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! * [`sample`](discrete_gaussian::sample) turns independent fair bits into the discrete Gaussian conditioned
//!   on an event of probability above 1 - 2^-2800. The distribution is exact: the sampler uses no rounding,
//!   modulo or floating point, on any core. A mechanism must add only the probability of the complement to
//!   its delta.
//! * [`noise`] is a function of seed, coordinate and variance, the same on every core and in any order. Its
//!   bits come from ChaCha20: they are fair and independent for everyone who cannot distinguish ChaCha20 from
//!   random bits.
//! * [`draw_seed`] returns a seed only if 1024 samples of the source have passed the health tests.
//! * With [`Gaussian`], replacing one record by any other record changes a FedPower upload, before noise is
//!   added, by at most [`sensitivity`]. The bound holds for the integers that are actually summed: rows are
//!   clipped, and bases certified, in integers. With [`Clipped`], the integers of a FedRep gradient are
//!   checked to lie in a ball, so that no set of records changes them by more than its diameter ([`Clip`]).
//!   [`NoiseMultiplier`] converts sensitivities to the variance and the cost of a release. The number of
//!   records is public, and so are failures of the sample source and the entropy source. All other reports,
//!   including declines, depend on a record only through the noise.
//!
//! # Not guaranteed
//!
//! * **Budgets.** [`Task::cost`](crate::Task::cost) returns the cost of a round; the
//!   [session](crate::session) charges the cost before the update is computed. A round that fails afterwards
//!   (noisy products without full rank) is declined, and its cost remains charged.
//! * **Privacy of other outputs.** Heads, predictions and counters are for the device alone. They depend on
//!   the device's records without noise, and showing predictions reveals the head.
//! * **Entropy.** Health tests detect a dead source. Only the design and measurement of a source can show
//!   that it has the claimed entropy: a generator with a known seed passes every test, and so does a driver
//!   that returns the same samples after every reset or on every board, because each seed is tested
//!   separately. (Even with such a source [`Seed::of_release`] gives two releases different noise, as long as
//!   the ledger is kept and no two devices have the same identity; it does not protect against an attacker
//!   who knows the samples.)
//! * **Constant time.** The duration of a draw depends on the drawn noise
//!   ([details](discrete_gaussian#running-time)). An attacker who can time a release must not learn that
//!   duration, so the session is silent from the start of a computation to the end of its slot
//!   ([`PrivacySettings::new`]). `aggregator/PRIVACY.md` lists the observations that this does not prevent.
//!   Power consumption and emission are not considered.
//! * **Erasure of memory.** Seeds, samples and key streams are overwritten when they are dropped. Copies that
//!   the compiler leaves in registers and on the stack are not overwritten, and neither is the state of the
//!   hash.

// All files of this module use integer arithmetic only.
#![deny(clippy::float_arithmetic)]

mod clip;
mod clipped_mechanism;
pub mod discrete_gaussian;
mod entropy;
mod health;
mod mechanism;
mod multiplier;
mod noise;
mod provisioned;
mod sensitivity;

pub use clip::{Clip, ClipError};
pub use clipped_mechanism::{ClipCounts, Clipped, Clipping};
pub(crate) use clipped_mechanism::{ClipFactor, Release};
pub use discrete_gaussian::{Variance, VarianceError};
pub use entropy::{EntropyError, EntropySource, SAMPLES, draw_seed};
pub use health::{HealthFailure, HealthTests, MinEntropy, MinEntropyError, WINDOW};
pub use mechanism::{Gaussian, NoEntropy, PrivacySettings, PrivacySettingsError};
pub use multiplier::{NoiseMultiplier, NoiseMultiplierError};
pub(crate) use noise::NOISE_WORK;
pub use noise::{SEED, Seed, noise};
pub use sensitivity::sensitivity;
#[cfg(feature = "power")]
pub(crate) use sensitivity::{CERTIFIED, FRACTION};
