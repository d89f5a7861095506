//! Accounting of differential privacy for the Gaussian mechanism: the (epsilon, delta) that a number of noisy releases
//! spends, and the noise that keeps them within a budget.
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
//! is credited. The multipliers are fixed in advance; the query of a release may depend on earlier releases (adaptive
//! composition).
//!
//! All results are rounded conservatively: an epsilon, a delta and a multiplier up, a number of releases
//! down. All arithmetic is from `libm`, so that all machines agree.
//!
//! [`gaussian`] covers continuous noise. Devices add discrete Gaussian noise, and increase its variance by 16 squared
//! units of its grid; it is then at least as private (`PRIVACY.md` has the proof). [`renyi`] covers discrete noise
//! without that increase.

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
