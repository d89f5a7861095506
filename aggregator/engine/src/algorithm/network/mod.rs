//! Networks: which layers travel, what devices do with them, and the mean of what comes back.
//!
//! One file a method. [`Method`] names them; [`build`] makes the server's side of one.

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
pub use layers::{Front, NetworkShape, Travelling, sequence};
pub use lora::{Adapter, Averaging};
pub use mean::LayerMean;
pub use scaffold::Scaffold;

use super::Algorithm;
use crate::aggregate::Rule;
use crate::types::Weighting;

/// What is done with a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Shared body, own head, trained one after the other.
    FedRep,
    /// The same, trained together.
    FedPer,
    /// One network for all.
    FedAvg,
    /// One network for all, from which nobody goes far.
    FedProx {
        /// mu.
        pull: f32,
    },
    /// One network for all, with corrected steps.
    Scaffold,
    /// Own body, shared head.
    LgFedAvg {
        /// How many layers are shared, counted from the last.
        layers: usize,
    },
    /// One network from which a step leads to a good one.
    PerFedAvg {
        /// alpha.
        inner_step: f32,
        /// Whether second derivatives are approximated, rather than left out.
        hessian_free: bool,
    },
    /// One network for all, and one's own beside it.
    Ditto {
        /// lambda.
        pull: f32,
    },
    /// A mixture of one network for all and one's own.
    Apfl {
        /// alpha, at first.
        own: f32,
        /// Its step size.
        adaptation: f32,
    },
    /// One's own network, drawn towards the mean.
    L2gd {
        /// What part of the way in a step.
        part: f32,
        /// Probability of such a step rather than a local one; 0 for one of each in every round.
        coin: f32,
    },
    /// One's own network, drawn towards the mean at each step.
    FedMtl {
        /// lambda.
        pull: f32,
    },
    /// Everyone alone.
    LocalOnly,
    /// A low-rank adapter that everyone shares, beside what stays as it is.
    LowRank(Averaging),
}

impl Method {
    /// Which model of a client its accuracy is of. Who was in no round has what all begin with for what is its own.
    #[must_use]
    pub fn scored(self) -> &'static str {
        match self {
            Self::FedRep | Self::FedPer => {
                "everyone's body with the client's head as it was trained last; zeros, where it was in no round"
            }
            Self::FedAvg | Self::FedProx { .. } | Self::Scaffold | Self::LowRank(_) => "everyone's network",
            Self::LgFedAvg { .. } => {
                "the client's body as it was trained last with everyone's last layers; what all begin with, where it was in \
                 no round"
            }
            Self::PerFedAvg { .. } => {
                "everyone's network after one step down the gradient of all the client's samples"
            }
            Self::Apfl { .. } => {
                "the client's mixture of its own network, which is what all begin with where it was in no round, and everyone's"
            }
            Self::Ditto { .. } | Self::L2gd { .. } | Self::FedMtl { .. } | Self::LocalOnly => {
                "the client's own network as it was trained last; what all begin with, where it was in no round"
            }
        }
    }

    /// The same of a client that came after training.
    #[must_use]
    pub fn scored_of_newcomers(self) -> &'static str {
        match self {
            Self::FedRep | Self::FedPer => "everyone's body with a head that the newcomer trained",
            Self::LgFedAvg { .. } => {
                "the newcomer's own network, trained from what all begin with and everyone's last layers for as many \
                 epochs as clients have had on average, then its head"
            }
            Self::LocalOnly => {
                "the newcomer's own network, trained from what all begin with for as many epochs as clients have had on \
                 average, then its head"
            }
            Self::PerFedAvg { .. } => {
                "everyone's network after one step down the gradient of all the newcomer's samples and epochs on its head"
            }
            _ => "everyone's network after epochs on its head by the newcomer",
        }
    }

    /// Whether each device has a head of its own and everyone's body.
    #[must_use]
    pub fn has_own_head(self) -> bool {
        matches!(self, Self::FedRep | Self::FedPer)
    }

    /// Whether who comes after training gets a body, to train a head on.
    #[must_use]
    pub fn has_body_for_newcomers(self) -> bool {
        !matches!(self, Self::LgFedAvg { .. } | Self::LocalOnly)
    }

    /// Matrices of a layer's size in each tensor.
    #[must_use]
    pub fn tensors_a_layer(self) -> usize {
        if self == Self::Scaffold { 2 } else { 1 }
    }

    /// Whether firmware has it, rather than simulated devices alone.
    #[must_use]
    pub fn is_on_devices(self) -> bool {
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

/// What all methods are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkParameters {
    /// Sizes.
    pub shape: NetworkShape,
    /// Which method.
    pub method: Method,
    /// The steps.
    pub descent: Descent,
    /// FedRep's epochs of the head.
    pub head_epochs: u16,
    /// Epochs of everything else.
    pub epochs: u16,
    /// How layers are sent to devices.
    pub download_encoding: Encoding,
    /// How devices encode what they send.
    pub upload_encoding: Encoding,
    /// Weights of the updates.
    pub weighting: Weighting,
    /// How they become one.
    pub rule: Rule,
    /// Devices in the fleet.
    pub fleet: usize,
    /// Draws the network that all begin with.
    pub seed: u64,
}

/// What a method's rounds are: which layers travel, and what devices do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Which layers.
    pub travelling: Travelling,
    /// What devices do.
    pub task: Task,
}

/// The server's side of a method.
#[must_use]
pub fn build(parameters: NetworkParameters) -> Box<dyn Algorithm> {
    match parameters.method {
        Method::Scaffold => Box::new(Scaffold::new(parameters)),
        Method::L2gd { part, coin } if coin > 0.0 => Box::new(L2gd::new(parameters, part, coin)),
        Method::LowRank(averaging) => Box::new(Adapter::new(parameters, averaging)),
        _ => Box::new(LayerMean::new(parameters, plan(&parameters))),
    }
}

/// The rounds of a method.
#[must_use]
pub fn plan(parameters: &NetworkParameters) -> Plan {
    match parameters.method {
        Method::FedRep => fedrep::plan(parameters),
        Method::FedPer => fedper::plan(parameters),
        Method::FedAvg => fedavg::plan(parameters),
        Method::FedProx { pull } => fedprox::plan(parameters, pull),
        Method::Scaffold => scaffold::plan(parameters),
        Method::LgFedAvg { layers } => lg_fedavg::plan(parameters, layers),
        Method::PerFedAvg { inner_step, hessian_free } => {
            perfedavg::plan(parameters, inner_step, hessian_free)
        }
        Method::Ditto { pull } => ditto::plan(parameters, pull),
        Method::Apfl { own, adaptation } => apfl::plan(parameters, own, adaptation),
        Method::L2gd { part, .. } => l2gd::plan(parameters, part),
        Method::FedMtl { pull } => fed_mtl::plan(parameters, pull),
        Method::LocalOnly => local_only::plan(parameters),
        Method::LowRank(_) => lora::plan(parameters, Trained::Shared),
    }
}
