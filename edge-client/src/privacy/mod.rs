//! Noise for differential privacy, in integers: an exact sampler of the discrete Gaussian, noise that is expanded from
//! a seed coordinate by coordinate, seeds from a board's entropy source; and the Gaussian mechanism, by which a
//! [`Linear`](crate::Linear) hides what leaves: FedPower's products (the feature `power`) and, with [`Clipped`], FedRep's
//! gradients.
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
//! // Before the data is read. No entropy, no seed, no release.
//! let seed = draw_seed(&mut Board(1), MinEntropy::new(4)?)?;
//! // sigma = 5/2 units of the grid.
//! let variance = Variance::new(25, 4)?;
//! let released: i64 = 17 + noise(&seed, 0, &variance);
//! // A retry says the same.
//! assert_eq!(released, 17 + noise(&seed, 0, &variance));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # What is claimed
//!
//! * [`sample`](discrete_gaussian::sample) turns independent fair bits into the discrete Gaussian, conditioned on an
//!   event of probability above 1 - 2^-2800, and into nothing else: no rounding, no modulo, no floating point, on any
//!   core. That event is all that a mechanism has to add to its delta.
//! * [`noise`] is a function of seed, coordinate and variance, the same on every core and in any order. Its bits are
//!   ChaCha20's: fair and independent for whoever cannot tell ChaCha20 from random.
//! * [`draw_seed`] gives no seed unless 1024 samples of the source have passed the health tests.
//! * With [`Gaussian`], what leaves of a FedPower round but for its noise is moved by one record that is replaced by any
//!   other by no more than [`sensitivity`], in the integers that are really added up: rows are clipped, and bases are
//!   certified, in integers. With [`Clipped`], the integers of a FedRep gradient are checked to lie in a ball, so that no
//!   set of records moves them by more than its diameter ([`Clip`]). [`NoiseMultiplier`] makes the variance, and what the account is charged, of that. The number
//!   of records is public, and so is whether the source of samples or of entropy fails; nothing else that is reported, no
//!   decline included, depends on a record but through the noise.
//!
//! # What is not
//!
//! * **A budget.** [`Task::cost`](crate::Task::cost) says what a round costs; the [session](crate::session) charges it
//!   before the update is computed. A round that fails then (a basis of noisy products that has no full rank) is declined,
//!   and stays charged.
//! * **Privacy of anything else.** Heads, predictions and counters are for the device alone, and depend on its records:
//!   a head without noise. Whoever shows its predictions shows it.
//! * **Entropy.** Health tests notice a source that has died. Whether a source has the entropy that is claimed for it,
//!   only its design and its measurement can tell; a generator with a known seed passes every test, and so does a driver
//!   that gives the same samples after every reset, or on every board: each seed is tested by itself. ([`Seed::of_release`]
//!   keeps two releases from having the same noise even then, as long as the ledger is kept and no two devices have one
//!   identity; it is no help against who knows the samples.)
//! * **Constant time.** How long a draw takes depends on the noise that is drawn
//!   ([how](discrete_gaussian#running-time)). Who can time a release must not be able to time its noise: a session says
//!   nothing from the beginning of a computation to its slot ([`PrivacySettings::new`]); `aggregator/PRIVACY.md` says what that
//!   does not hide. Power and emission are not considered at all.
//! * **Memory without traces.** Seeds, samples and key streams are overwritten when they are dropped. What a compiler
//!   leaves in registers and on the stack is not, nor is the state of the hash.

// Integers only, in every file of this folder.
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
pub use noise::{SEED, Seed, noise};
pub use sensitivity::sensitivity;
#[cfg(feature = "power")]
pub(crate) use sensitivity::{CERTIFIED, FRACTION};
