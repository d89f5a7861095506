//! Algorithms on linear models.
//!
//! Each algorithm has one file with its name, keys and server ([`LinearAlgorithm`],
//! [`Algorithm`](super::Algorithm)); `registry` lists them. A new algorithm is a file and a line in the
//! registry.

mod fedavg;
mod fedpower;
mod fedrep;
mod gd_gd;
mod gradient_rank;
mod learned_prior;
mod linear_algorithm;
mod registry;
mod rolora;
mod without_rounds;

pub use fedavg::{FedAvg, FedAvgParameters, FedAvgSettings};
pub use fedpower::{FedPower, FedPowerParameters, FedPowerSettings, synchronisations};
pub use fedrep::{FedRep, FedRepParameters, FedRepSettings};
pub use gd_gd::GdGdSettings;
pub use learned_prior::{ChosenPrior, HeadPrior, LearnedPrior, LearnedPriorSettings};
pub use linear_algorithm::{LinearAlgorithm, LinearSettings, LinearStart, Noise, SecondTensor, Uploads};
pub use registry::LinearMethod;
pub use rolora::{FfaLoraSettings, LinearAdapter, LinearAdapterParameters, RoLoraSettings};
pub use without_rounds::{LocalOnlySettings, PooledSettings};
