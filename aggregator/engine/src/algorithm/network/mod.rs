//! Algorithms on networks: the shared layers, the devices' task, and the combination of updates.
//!
//! One file per algorithm. [`NetworkMethod`] names them; [`build`] creates the server side of one.

mod apfl;
mod ditto;
mod fed_mtl;
mod fedavg;
mod fedper;
mod fedprox;
mod fedrep;
mod l2gd;
mod layers;
mod lg_fedavg;
mod local_only;
mod lora;
mod mean;
mod perfedavg;
mod scaffold;

use fedspan_protocol::message::{Descent, Task, Trained};
use fedspan_protocol::tensor::Encoding;

pub use l2gd::L2gd;
pub use layers::{Front, NetworkShape, SharedLayers, sequence};
pub use lora::{Adapter, Averaging};
pub use mean::LayerMean;
pub use scaffold::Scaffold;

use super::Algorithm;
use crate::aggregate::Rule;
use crate::types::Weighting;

/// Algorithm on a network, with its own parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NetworkMethod {
    /// FedRep: shared body and personal heads, trained one after the other.
    FedRep,
    /// FedPer: shared body and personal heads, trained together.
    FedPer,
    /// FedAvg: one network for all.
    FedAvg,
    /// FedProx: FedAvg with a proximal term.
    FedProx {
        /// Proximal weight mu.
        proximal_weight: f32,
    },
    /// SCAFFOLD: FedAvg with control variates.
    Scaffold,
    /// LG-FedAvg: personal bodies and shared last layers.
    LgFedAvg {
        /// Number of shared layers, counted from the last.
        layers: usize,
    },
    /// Per-FedAvg: one network that adapts to a client in one step.
    PerFedAvg {
        /// Size alpha of the adaptation step.
        inner_step: f32,
        /// Whether second derivatives are approximated rather than left out.
        hessian_free: bool,
    },
    /// Ditto: FedAvg, plus personal networks near the shared one.
    Ditto {
        /// Proximal weight lambda.
        proximal_weight: f32,
    },
    /// APFL: mixtures of a shared and personal networks.
    Apfl {
        /// Initial mixing weight alpha of the personal network.
        mixing_weight: f32,
        /// Step size of alpha; 0 keeps it fixed.
        mixing_step_size: f32,
    },
    /// L2GD: personal networks that move towards their mean.
    L2gd {
        /// Fraction of the way to the mean per step.
        averaging_step: f32,
        /// Probability of a step to the mean rather than a local one; 0 for one of each in every round.
        averaging_probability: f32,
    },
    /// Fed-MTL: personal networks drawn towards their mean at each step.
    FedMtl {
        /// Penalty weight lambda.
        proximal_weight: f32,
    },
    /// Local training without communication.
    LocalOnly,
    /// Shared low-rank adapter of a frozen layer.
    LowRank(Averaging),
}

impl NetworkMethod {
    /// Description of the model on which a client is evaluated, for reports.
    #[must_use]
    pub fn evaluated_model(self) -> &'static str {
        match self {
            Self::FedRep | Self::FedPer => {
                "the shared body with the client's head as last trained; a zero head if the client took part in no round"
            }
            Self::FedAvg | Self::FedProx { .. } | Self::Scaffold | Self::LowRank(_) => "the shared network",
            Self::LgFedAvg { .. } => {
                "the client's body as last trained with the shared last layers; the initial body if the client took part in \
                 no round"
            }
            Self::PerFedAvg { .. } => {
                "the shared network after one step down the gradient of all the client's samples"
            }
            Self::Apfl { .. } => {
                "the client's mixture of the shared network and its own, which is the initial one if it took part in no round"
            }
            Self::Ditto { .. } | Self::L2gd { .. } | Self::FedMtl { .. } | Self::LocalOnly => {
                "the client's own network as last trained; the initial network if the client took part in no round"
            }
        }
    }

    /// Description of the model on which a client that joined after training is evaluated.
    #[must_use]
    pub fn evaluated_newcomer_model(self) -> &'static str {
        match self {
            Self::FedRep | Self::FedPer => "the shared body with a head that the newcomer trained",
            Self::LgFedAvg { .. } => {
                "the newcomer's own network, trained from the initial body and the shared last layers for as many epochs as \
                 clients have had on average, then its head"
            }
            Self::LocalOnly => {
                "the newcomer's own network, trained from the initial network for as many epochs as clients have had on \
                 average, then its head"
            }
            Self::PerFedAvg { .. } => {
                "the shared network after one step down the gradient of all the newcomer's samples and epochs on its head"
            }
            Self::FedAvg
            | Self::FedProx { .. }
            | Self::Scaffold
            | Self::Ditto { .. }
            | Self::Apfl { .. }
            | Self::L2gd { .. }
            | Self::FedMtl { .. }
            | Self::LowRank(_) => "the shared network after the newcomer has trained its head",
        }
    }

    /// Whether devices share a body and keep personal heads.
    #[must_use]
    pub fn has_own_head(self) -> bool {
        matches!(self, Self::FedRep | Self::FedPer)
    }

    /// Whether a client that joins after training receives a body on which it can train a head.
    #[must_use]
    pub fn has_body_for_newcomers(self) -> bool {
        !matches!(self, Self::LgFedAvg { .. } | Self::LocalOnly)
    }

    /// Matrices of a layer's size in each tensor.
    #[must_use]
    pub fn tensors_per_layer(self) -> usize {
        if self == Self::Scaffold { 2 } else { 1 }
    }

    /// Whether the firmware supports the algorithm, rather than simulated devices alone.
    #[must_use]
    pub fn is_supported_by_firmware(self) -> bool {
        matches!(
            self,
            Self::FedRep
                | Self::FedPer
                | Self::FedAvg
                | Self::LgFedAvg { .. }
                | Self::LocalOnly
                | Self::LowRank(_)
        )
    }
}

/// Parameters common to all algorithms on networks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkParameters {
    /// Sizes of the network.
    pub shape: NetworkShape,
    /// Algorithm.
    pub method: NetworkMethod,
    /// Stochastic gradient descent: step size, momentum and batch.
    pub descent: Descent,
    /// Epochs of the head per round (FedRep).
    pub head_epochs: u16,
    /// Epochs of all other layers per round.
    pub epochs: u16,
    /// Encoding of the layers sent to devices.
    pub download_encoding: Encoding,
    /// Encoding of the devices' uploads.
    pub upload_encoding: Encoding,
    /// Weighting of the updates.
    pub weighting: Weighting,
    /// Rule that combines the updates.
    pub rule: Rule,
    /// Number of devices in the fleet.
    pub fleet: usize,
    /// Seed of the initial network and of L2GD's coin.
    pub seed: u64,
}

/// Rounds of an algorithm on a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Layers that devices and server exchange.
    pub shared: SharedLayers,
    /// Task of the devices.
    pub task: Task,
}

/// Creates the server side of an algorithm.
#[must_use]
pub fn build(parameters: NetworkParameters) -> Box<dyn Algorithm> {
    match parameters.method {
        NetworkMethod::Scaffold => Box::new(Scaffold::new(parameters)),
        NetworkMethod::L2gd { averaging_step, averaging_probability } if averaging_probability > 0.0 => {
            Box::new(L2gd::new(parameters, averaging_step, averaging_probability))
        }
        NetworkMethod::LowRank(averaging) => Box::new(Adapter::new(parameters, averaging)),
        NetworkMethod::FedRep
        | NetworkMethod::FedPer
        | NetworkMethod::FedAvg
        | NetworkMethod::FedProx { .. }
        | NetworkMethod::LgFedAvg { .. }
        | NetworkMethod::PerFedAvg { .. }
        | NetworkMethod::Ditto { .. }
        | NetworkMethod::Apfl { .. }
        | NetworkMethod::L2gd { .. }
        | NetworkMethod::FedMtl { .. }
        | NetworkMethod::LocalOnly => Box::new(LayerMean::new(parameters, plan(&parameters))),
    }
}

/// Shared layers and device task of an algorithm.
#[must_use]
pub fn plan(parameters: &NetworkParameters) -> Plan {
    match parameters.method {
        NetworkMethod::FedRep => fedrep::plan(parameters),
        NetworkMethod::FedPer => fedper::plan(parameters),
        NetworkMethod::FedAvg => fedavg::plan(parameters),
        NetworkMethod::FedProx { proximal_weight } => fedprox::plan(parameters, proximal_weight),
        NetworkMethod::Scaffold => scaffold::plan(parameters),
        NetworkMethod::LgFedAvg { layers } => lg_fedavg::plan(parameters, layers),
        NetworkMethod::PerFedAvg { inner_step, hessian_free } => {
            perfedavg::plan(parameters, inner_step, hessian_free)
        }
        NetworkMethod::Ditto { proximal_weight } => ditto::plan(parameters, proximal_weight),
        NetworkMethod::Apfl { mixing_weight, mixing_step_size } => {
            apfl::plan(parameters, mixing_weight, mixing_step_size)
        }
        NetworkMethod::L2gd { averaging_step, .. } => l2gd::plan(parameters, averaging_step),
        NetworkMethod::FedMtl { proximal_weight } => fed_mtl::plan(parameters, proximal_weight),
        NetworkMethod::LocalOnly => local_only::plan(parameters),
        NetworkMethod::LowRank(_) => lora::plan(parameters, Trained::Shared),
    }
}
