//! Algorithms on networks: the shared layers, the devices' task, and the combination of updates.
//!
//! Each algorithm has one file with its name, keys, task and server ([`NetworkAlgorithm`]); `registry` lists
//! them. A new algorithm is a file and a line in the registry.

mod apfl;
mod ditto;
mod fed_mtl;
mod fedavg;
mod fedper;
mod fedprox;
mod fedrep;
mod l2gd;
mod layers;
mod learned_prior;
mod lg_fedavg;
mod local_only;
mod lora;
mod mean;
mod network_algorithm;
mod parameters;
mod perfedavg;
mod registry;
mod scaffold;

pub use apfl::Apfl;
pub use ditto::Ditto;
pub use fed_mtl::FedMtl;
pub use fedavg::FedAvg;
pub use fedper::FedPer;
pub use fedprox::FedProx;
pub use fedrep::FedRep;
pub use l2gd::{L2gd, L2gdServer};
pub use layers::{Front, NetworkShape, SharedLayers, sequence};
pub use learned_prior::{NetworkPrior, NetworkPriorServer};
pub use lg_fedavg::LgFedAvg;
pub use local_only::LocalOnly;
pub use lora::{Adapter, Averaging, FfaLora, FlexLora, Lora, RoLora};
pub use mean::LayerMean;
pub use network_algorithm::{MethodKeys, NetworkAlgorithm};
use network_algorithm::{OWN_NETWORK, SHARED_AND_HEAD};
pub use parameters::{NetworkParameters, Plan};
pub use perfedavg::PerFedAvg;
pub use registry::NetworkMethod;
pub use scaffold::{Scaffold, ScaffoldServer};
