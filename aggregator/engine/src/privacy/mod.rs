//! What noise is worth: the account of Gaussian releases in (epsilon, delta).
//!
//! ```text
//!  (multiplier, releases), ... -> Composition -> epsilon at a delta, delta at an epsilon   exact
//!                                             -> renyi::epsilon                            an upper bound
//!  (epsilon, delta, releases)  -> calibration -> the least multiplier, the most releases
//!                              -> fedpower    -> the standard deviation of the noise
//! ```
//!
//! Neighbours differ in one record that is replaced by another. A sensitivity is the greatest L2 distance that this
//! makes in what is released; a noise multiplier is the standard deviation of the noise over that. Every record is
//! taken to be in every release: no amplification by subsampling is credited. Multipliers are fixed beforehand; what is
//! released may depend on earlier releases.
//!
//! Whatever is returned is rounded against the one who spends: an epsilon, a delta and a multiplier up, a number of
//! releases down. Arithmetic is `libm`'s, so that all machines agree.
//!
//! [`gaussian`] is about noise from the real line. Discrete Gaussian noise, as devices add it, is worth no less if its
//! variance is larger by 16 squared units of its grid, which devices see to (`PRIVACY.md` has the proof); [`renyi`]
//! holds for it as it stands.

mod bisection;
pub mod calibration;
mod display;
pub mod fedpower;
pub mod gaussian;
mod ledger;
pub mod ledger_units;
mod normal;
pub mod parameters;
pub mod renyi;

pub use display::{rounded_down, shown};
pub use gaussian::Composition;
pub use ledger::{Account, Ledger, PrivacyRequirement, releases};
pub use parameters::{Delta, Epsilon, NoiseMultiplier, ParameterError, Releases};
