//! What a device is asked to compute in a round, with its hyper-parameters.

use serde::{Deserialize, Serialize};

use crate::tensor::{Encoding, Role};

/// What a device computes in a round, with its hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Task {
    /// FedRep: solve the head on `B`, then one gradient step on `B` (Collins et al. 2021, Algorithm 2).
    /// Down: representation. Up: gradient or representation.
    FedRep {
        /// Step size eta of the representation; only used where the new representation is sent.
        step_size: f32,
        /// How the head is solved.
        head: HeadSolve,
        /// What is sent.
        upload: Upload,
        /// How it is encoded.
        encoding: Encoding,
    },
    /// Fit the head on the final `B`; nothing is uploaded. Down: representation.
    FitHead {
        /// How the head is solved.
        head: HeadSolve,
    },
    /// Gradient steps on one shared linear model. Down and up: representation and shared head.
    FedAvg {
        /// Step size of the representation.
        step_size: f32,
        /// Step size of the head.
        head_step_size: f32,
        /// Gradient steps before the upload.
        local_steps: u16,
        /// How the upload is encoded.
        encoding: Encoding,
    },
    /// One power iteration of the start: `(1/m) sum |y|^2 x (x^T Q)`. Down and up: subspace.
    PowerStart,
    /// Rows of the moment matrix `(1/m) sum |y|^2 x x^T`, upper half. Up: moment. Reveals records: the
    /// device must have been built to allow it.
    MomentRows {
        /// First row.
        first: u16,
        /// Rows.
        count: u16,
    },
    /// Power iterations with the device's own `A_i = (1/s) M_i^T M_i`, of s rows of norm 1 at most: `Y = A_i Z`, and
    /// between two of them the orthonormal factor of `Y` (FedPower, Guo et al. 2024, Algorithms 1 to 3). Down: subspace.
    /// Up: one or two subspaces.
    FedPower {
        /// How many.
        iterations: u16,
        /// What a row of `M_i` is.
        rows: PowerRows,
        /// What is sent.
        upload: PowerUpload,
        /// How it is encoded.
        encoding: Encoding,
    },
    /// Stochastic gradient descent on the cross-entropy of a network, of which some layers travel: those of its body
    /// (FedRep, FedPer), the last ones (LG-FedAvg), all (FedAvg) or none. Down and up: these layers, a tensor each.
    Sgd {
        /// Its steps.
        descent: Descent,
        /// Epochs of the layers that stay, those that travel as they came: FedRep's tau_h. They come first.
        head_epochs: u16,
        /// Epochs of `trained`: FedRep's tau_phi, everybody else's tau.
        epochs: u16,
        /// What these change.
        trained: Trained,
        /// How the layers are encoded on the way up.
        encoding: Encoding,
    },
    /// What a baseline does with a network, to compare: for simulated devices. Down and up: all layers, a tensor each.
    Baseline {
        /// Which one.
        baseline: Baseline,
        /// The steps of its epochs.
        descent: Descent,
        /// Epochs.
        epochs: u16,
        /// How the layers are encoded on the way up.
        encoding: Encoding,
    },
    /// The up-projection that fits best under a linear model's down-projection (RoLoRA, Chen et al. 2025, Algorithm 2).
    /// Down: adapter-down, unless the device has it. Up: adapter-up.
    AdapterUp {
        /// How it is found.
        head: HeadSolve,
        /// How it is encoded.
        encoding: Encoding,
    },
    /// One gradient step on the down-projection of a linear model, under everyone's up-projection. Down: adapter-down,
    /// unless the device has it, and adapter-up. Up: adapter-down.
    AdapterDown {
        /// Step size.
        step_size: f32,
        /// How the new one is encoded.
        encoding: Encoding,
    },
    /// Sums and sums of squares of some features, as exact integers: from those of a fleet the server computes one
    /// scale. Up: feature sums, `count` x [`SUMS_COLUMNS`](crate::tensor::SUMS_COLUMNS). Reveals the device's means.
    FeatureSums {
        /// First feature.
        first: u16,
        /// Features.
        count: u16,
    },
    /// For each ridge of a geometric grid, how many of the device's own samples a head gets right that was fitted on
    /// `labels_per_class` of them. Down: representation, and scale where the campaign has one. Up: ridge scores, 1 x
    /// `count`.
    RidgeScores {
        /// Samples of each class that a head is fitted on.
        labels_per_class: u16,
        /// The first ridge.
        first: f32,
        /// Each further ridge is the one before times this.
        factor: f32,
        /// Ridges.
        count: u8,
    },
}

impl Task {
    /// This task's bit in a set of tasks.
    #[must_use]
    pub const fn bit(&self) -> u16 {
        match self {
            Self::FedRep { .. } => 1,
            Self::FitHead { .. } => 1 << 1,
            Self::FedAvg { .. } => 1 << 2,
            Self::PowerStart => 1 << 3,
            Self::MomentRows { .. } => 1 << 4,
            Self::FedPower { .. } => 1 << 5,
            Self::Sgd { .. } => 1 << 6,
            Self::Baseline { .. } => 1 << 7,
            Self::AdapterUp { .. } => 1 << 8,
            Self::AdapterDown { .. } => 1 << 9,
            Self::FeatureSums { .. } => 1 << 10,
            Self::RidgeScores { .. } => 1 << 11,
        }
    }

    /// The same for a device that does not choose ridges ([`CHOOSES_RIDGE`](super::CHOOSES_RIDGE)): its head takes the ridge
    /// that comes with the choice. `None` where there is no choice in it.
    #[must_use]
    pub const fn without_ridge_choice(mut self) -> Option<Self> {
        let (Self::FedRep { head, .. } | Self::FitHead { head } | Self::AdapterUp { head, .. }) = &mut self
        else {
            return None;
        };
        let HeadSolve::LeaveOneOut { fallback_ridge: otherwise } = *head else { return None };
        *head = HeadSolve::LeastSquares { ridge: otherwise };
        Some(self)
    }
}

/// How a device finds its head on a given representation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HeadSolve {
    /// Minimises `1/(2m) |X B W - Y|^2 + ridge/2 |W|^2`; the minimum-norm solution where that is not
    /// unique.
    LeastSquares {
        /// The ridge; 0 for none.
        ridge: f32,
    },
    /// Gradient steps from the head the device has (zero at first): GD-GD with one, 10GD-GD with ten.
    Gradient {
        /// How many.
        steps: u16,
        /// Step size.
        step_size: f32,
    },
    /// Epochs of stochastic gradient descent on a network's cross-entropy, from the head the device has; none leave it
    /// as it is.
    Sgd {
        /// How many; [`UNTIL_PLATEAU`](crate::limits::UNTIL_PLATEAU) for as many as the loss falls in.
        epochs: u16,
        /// Their steps.
        descent: Descent,
    },
    /// The ridge of least leave-one-out error where every class present has two samples; `otherwise` elsewhere.
    LeaveOneOut {
        /// The ridge where leaving a sample out would leave a class without any; 0 for none.
        fallback_ridge: f32,
    },
}

/// The steps of stochastic gradient descent: `v <- momentum v + g`, `W <- W - step_size v`, with g the mean gradient of
/// the next `batch` samples, in an order that each epoch draws anew. `v` is zero at the start of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Descent {
    /// Step size.
    pub step_size: f32,
    /// Momentum, from 0 to below 1.
    pub momentum: f32,
    /// Samples in a batch; the last of an epoch has what is left.
    pub batch: u16,
}

/// What the epochs of [`Task::Sgd`] change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Trained {
    /// The layers that travel.
    #[default]
    Shared,
    /// All layers.
    All,
    /// LoRA's down-projection, which alone is sent; the up-projection stays as it is.
    Down,
    /// LoRA's up-projection, which alone is sent; the down-projection stays as it is.
    Up,
}

/// What a device does in a round of a baseline. Its gradient g is that of a batch, `w` what it trains, `w0` what came.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Baseline {
    /// FedProx (Li et al. 2020): steps along `g + pull (w - w0)`.
    FedProx {
        /// mu.
        proximal_weight: f32,
    },
    /// SCAFFOLD (Karimireddy et al. 2020), option II: steps along `g - c_i + c`. Tensors have twice the rows: a layer, and
    /// below it the control variate (down: c; up: by how much c_i has changed).
    Scaffold,
    /// Per-FedAvg (Fallah et al. 2020), first order: steps along the gradient at `w - inner_step g`.
    PerFedAvg {
        /// alpha.
        inner_step: f32,
    },
    /// Per-FedAvg, Hessian-free: the same, times the derivative of `w - inner_step g`, by a difference of gradients.
    PerFedAvgHf {
        /// alpha.
        inner_step: f32,
    },
    /// Ditto (Li et al. 2021): what came is trained and sent; beside it the device's own model, along
    /// `g + pull (v - w0)`.
    Ditto {
        /// lambda.
        proximal_weight: f32,
    },
    /// APFL (Deng et al. 2020): what came is trained and sent; beside it the device's own model, in a mixture of both.
    Apfl {
        /// alpha: how much of the mixture is its own, at first.
        mixing_weight: f32,
        /// Step size of alpha, which each device learns; 0 keeps it.
        mixing_step_size: f32,
    },
    /// L2GD (Hanzely and Richtarik 2020): the device's own model moves towards the mean that came, takes its steps, and
    /// is sent.
    L2gd {
        /// What part of the way, from 0 to 1.
        averaging_step: f32,
    },
    /// Fed-MTL (Smith et al. 2017) with all tasks related alike: the device's own model takes steps along
    /// `g + pull (w - w0)`, w0 the mean of all, and is sent.
    FedMtl {
        /// lambda.
        proximal_weight: f32,
    },
}

/// What a FedRep device sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Upload {
    /// The gradient of its loss.
    #[default]
    Gradient,
    /// Its representation after the step.
    Representation,
}

impl Upload {
    /// The role of the tensor that is sent.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::Gradient => Role::Gradient,
            Self::Representation => Role::Representation,
        }
    }
}

/// What a power iteration takes for a row; one of norm over 1 is scaled to norm 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PowerRows {
    /// The sample's features.
    #[default]
    Features,
    /// The features times the norm of the target: of such rows the principal directions are those in which regression
    /// finds a representation (a start for FedRep).
    Weighted,
}

/// What a FedPower device sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PowerUpload {
    /// `Y` of the last iteration.
    #[default]
    Product,
    /// `Y` of the last iteration, and the `Z` that it was computed from, which the server aligns by.
    ProductAndBasis,
    /// The orthonormal factor of `Y` of the last iteration.
    Basis,
}

impl PowerUpload {
    /// Tensors that are sent, each a subspace of the shape that came.
    #[must_use]
    pub const fn tensors(self) -> u8 {
        match self {
            Self::Product | Self::Basis => 1,
            Self::ProductAndBasis => 2,
        }
    }
}
