//! Accounting of differential privacy for the Gaussian mechanism: the (epsilon, delta) that a number of noisy
//! releases spends, and the noise for which the releases stay within a budget.
//!
//! ```text
//!  (multiplier, releases), ... -> Composition -> epsilon at a delta, delta at an epsilon   exact
//!                                             -> renyi::epsilon                            an upper bound
//!  (epsilon, delta, releases)  -> calibration -> the least multiplier, the most releases
//!                              -> fedpower    -> the standard deviation of the noise
//! ```
//!
//! Neighbouring data sets differ in one record that is replaced by another. A sensitivity is the largest L2
//! distance between the releases of neighbours. A noise multiplier is the standard deviation of the noise
//! over the sensitivity. Every record is assumed to be in every release, so the accounts contain no
//! amplification by subsampling. The multipliers are fixed in advance; the query of a release may depend on
//! earlier releases (adaptive composition).
//!
//! All results are rounded conservatively: epsilon, delta and multipliers up, numbers of releases down.
//! Elementary functions are from `libm`, so that results are the same on all machines.
//!
//! [`gaussian`] covers continuous noise. Devices add discrete Gaussian noise whose variance is larger by 16
//! squared grid units; with this increase it is at least as private as the continuous noise (proof in
//! `PRIVACY.md`). [`renyi`] covers discrete noise without the increase.

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
