//! Privacy account of Gaussian releases in (epsilon, delta), and its inverse, the noise for a budget.
//!
//! ```text
//!  (multiplier, releases), ... -> Composition -> epsilon at a delta, delta at an epsilon   exact
//!                                             -> renyi::epsilon                            an upper bound
//!  (epsilon, delta, releases)  -> calibration -> the least multiplier, the most releases
//!                              -> fedpower    -> the standard deviation of the noise
//! ```
//!
//! Neighbouring data sets differ in one record that is replaced by another. A sensitivity is the largest L2
//! distance between the releases of neighbours; a noise multiplier is the standard deviation of the noise
//! over the sensitivity. Every record is assumed to be in every release, so no amplification by subsampling
//! is credited. Multipliers are fixed beforehand; what is released may depend on earlier releases.
//!
//! All results are rounded to the safe side: an epsilon, a delta and a multiplier up, a number of releases
//! down. All arithmetic is from `libm`, so that all machines agree.
//!
//! [`gaussian`] is about continuous noise. Discrete Gaussian noise, which devices add, is at least as private
//! if its variance is larger by 16 squared units of its grid, as devices ensure (`PRIVACY.md` has the proof);
//! [`renyi`] holds for discrete noise as it stands.

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
