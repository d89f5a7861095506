//! Tasks that a server assigns to a device in a round, with their hyper-parameters.

use serde::{Deserialize, Serialize};

#[allow(unused_imports, reason = "a build with every task refuses none")]
use crate::codec;
use crate::limits::PRIVATE_PARAMETERS;
use crate::tensor::{Encoding, Role};

/// Task of a device in a round, with its hyper-parameters. In the descriptions, "Down" lists the tensors sent
/// to the device and "Up" the tensors that the device sends back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Task {
    /// FedRep: fits the head on `B`, then takes one gradient step on `B` (Collins et al. 2021, Algorithm 2).
    /// Down: representation. Up: gradient or representation.
    FedRep {
        /// Step size eta of the representation; used only if the new representation is uploaded.
        step_size: f32,
        /// Solver for the head.
        head: HeadSolve,
        /// Tensor that is uploaded.
        upload: Upload,
        /// Encoding of the upload.
        encoding: Encoding,
    },
    /// Fits the head on the final `B`; nothing is uploaded. Down: representation.
    FitHead {
        /// Solver for the head.
        head: HeadSolve,
    },
    /// FedAvg on one shared linear model. Down and up: representation and shared head.
    #[cfg_attr(not(feature = "shared-head"), serde(deserialize_with = "codec::refuse"))]
    FedAvg {
        /// Step size of the representation.
        step_size: f32,
        /// Step size of the head.
        head_step_size: f32,
        /// Number of gradient steps before the upload.
        local_steps: u16,
        /// Encoding of the upload.
        encoding: Encoding,
    },
    /// One step of the power method that computes an initial representation from data:
    /// `(1/m) sum |y|^2 x (x^T Q)`. Down and up: subspace.
    PowerStart,
    /// Rows of the upper half of the moment matrix `(1/m) sum |y|^2 x x^T`. Up: moment. The rows can reveal
    /// single records, so only firmware built with a special feature supports this task.
    #[cfg_attr(not(feature = "moment-rows"), serde(deserialize_with = "codec::refuse"))]
    MomentRows {
        /// Index of the first row.
        first: u16,
        /// Number of rows.
        count: u16,
    },
    /// FedPower (Guo et al. 2024, Algorithms 1 to 3): power iterations `Y = A_i Z` with the device's matrix
    /// `A_i = (1/s) M_i^T M_i`, where M_i has s rows of norm at most 1. The next `Z` is the orthonormal
    /// factor of `Y`. Down: subspace. Up: one or two subspaces.
    #[cfg_attr(not(feature = "power"), serde(deserialize_with = "codec::refuse"))]
    FedPower {
        /// Number of iterations.
        iterations: u16,
        /// Definition of the rows of `M_i`.
        rows: PowerRows,
        /// Tensors that are uploaded.
        upload: PowerUpload,
        /// Encoding of the upload.
        encoding: Encoding,
    },
    /// Stochastic gradient descent on the cross-entropy of a network. The shared layers are the tensors of
    /// the round, down and up, with one tensor per layer: the body (FedRep, FedPer), the last layers
    /// (LG-FedAvg), all layers (FedAvg) or none.
    #[cfg_attr(not(feature = "network"), serde(deserialize_with = "codec::refuse"))]
    Sgd {
        /// Step size, momentum and batch size.
        descent: Descent,
        /// Number of epochs of the first phase, which trains the personal layers with the shared layers fixed
        /// (FedRep's tau_h).
        head_epochs: u16,
        /// Number of epochs of the second phase, which trains the layers `trained` (FedRep's tau_phi, the
        /// other methods' tau).
        epochs: u16,
        /// Layers that the second phase trains.
        trained: Trained,
        /// Encoding of the uploaded layers.
        encoding: Encoding,
    },
    /// Baseline method on a network, for comparisons with simulated devices. Down and up: all layers, with
    /// one tensor per layer.
    #[cfg_attr(not(feature = "baselines"), serde(deserialize_with = "codec::refuse"))]
    Baseline {
        /// Baseline method and its parameters.
        baseline: Baseline,
        /// Step size, momentum and batch size.
        descent: Descent,
        /// Number of epochs.
        epochs: u16,
        /// Encoding of the uploaded layers.
        encoding: Encoding,
    },
    /// First half of RoLoRA (Chen et al. 2025, Algorithm 2): fits the up-projection of a linear model for a
    /// fixed down-projection. Down: adapter-down, unless the device has it. Up: adapter-up.
    #[cfg_attr(not(feature = "shared-head"), serde(deserialize_with = "codec::refuse"))]
    AdapterUp {
        /// Solver for the up-projection.
        head: HeadSolve,
        /// Encoding of the upload.
        encoding: Encoding,
    },
    /// Second half of RoLoRA: one gradient step on the down-projection of a linear model, with the shared
    /// up-projection fixed. Down: adapter-down, unless the device has it, and adapter-up. Up: adapter-down.
    #[cfg_attr(not(feature = "shared-head"), serde(deserialize_with = "codec::refuse"))]
    AdapterDown {
        /// Step size.
        step_size: f32,
        /// Encoding of the upload.
        encoding: Encoding,
    },
    /// Sums and sums of squares of some features, as exact integers, from which the server computes one scale
    /// for the fleet. Up: feature sums, `count` x [`SUMS_COLUMNS`](crate::tensor::SUMS_COLUMNS). The sums
    /// reveal the device's means.
    #[cfg_attr(not(feature = "scale"), serde(deserialize_with = "codec::refuse"))]
    FeatureSums {
        /// Index of the first feature.
        first: u16,
        /// Number of features.
        count: u16,
    },
    /// Scores of a geometric grid of ridges. For each ridge the device fits a head on `labels_per_class` of
    /// its samples per class and counts the correct predictions on its other samples. Down: representation,
    /// and scale if the campaign has one. Up: ridge scores, 1 x `count`.
    #[cfg_attr(not(feature = "ridge-choice"), serde(deserialize_with = "codec::refuse"))]
    RidgeScores {
        /// Number of labelled samples per class on which a head is fitted.
        labels_per_class: u16,
        /// First ridge of the grid.
        first: f32,
        /// Ratio between neighbouring ridges of the grid.
        factor: f32,
        /// Number of ridges.
        count: u8,
    },
    /// Task for private use, whose meaning no version of the wire protocol defines. Firmware and server that
    /// share a custom task use one of four such numbers, and agree on the tensors and parameters of the task.
    #[cfg_attr(not(feature = "custom-tasks"), serde(deserialize_with = "codec::refuse"))]
    Private12(PrivateTask),
    /// Task for private use, like [`Self::Private12`].
    #[cfg_attr(not(feature = "custom-tasks"), serde(deserialize_with = "codec::refuse"))]
    Private13(PrivateTask),
    /// Task for private use, like [`Self::Private12`].
    #[cfg_attr(not(feature = "custom-tasks"), serde(deserialize_with = "codec::refuse"))]
    Private14(PrivateTask),
    /// Task for private use, like [`Self::Private12`].
    #[cfg_attr(not(feature = "custom-tasks"), serde(deserialize_with = "codec::refuse"))]
    Private15(PrivateTask),
    /// Means over the device's samples, from which the server computes the mean and the metric of a prior of heads. Up: second
    /// moments and cross moments. They reveal the device's samples if it has no more than d of them.
    #[cfg_attr(not(feature = "learned-prior"), serde(deserialize_with = "codec::refuse"))]
    PooledMoments,
    /// One step of expectation-maximisation for the prior of heads: the posterior of the device's head under the present prior.
    /// Down: representation, prior mean (unless it is zero), second moments (unless the metric is the identity), prior variances.
    /// Up: head moments and head sums.
    #[cfg_attr(not(feature = "learned-prior"), serde(deserialize_with = "codec::refuse"))]
    HeadMoments {
        /// Variance of the noise of a target.
        noise: f32,
    },
    /// Evidence of the device's samples for a grid of priors, and how well heads on few of them predict the others. Down: as for [`Self::HeadMoments`]. Up: prior evidence. The prior of
    /// grid point `(i, j)` has the variances of the representation's columns times `spans.value(i)`, and the variance of the other
    /// directions times `floors.value(j)`; j runs first.
    #[cfg_attr(not(feature = "learned-prior"), serde(deserialize_with = "codec::refuse"))]
    PriorEvidence {
        /// Factors of the variances of the representation's columns.
        spans: GeometricGrid,
        /// Factors of the variance of all other directions.
        floors: GeometricGrid,
        /// Number of draws of labelled samples for each number of labels; 0 to score no heads.
        draws: u8,
    },
    /// Derivative of a newcomer's error by the prior: the device fits heads on a few of its samples, and differentiates the error of
    /// the others by the covariance of the prior. Down: as for [`Self::HeadMoments`]. Up: newcomer gradient and newcomer
    /// error.
    #[cfg_attr(not(feature = "learned-prior"), serde(deserialize_with = "codec::refuse"))]
    NewcomerGradient {
        /// Number of labelled samples of each class.
        labels: u16,
        /// Number of draws of labelled samples, over which the device averages; at least 1.
        draws: u8,
        /// Number of the first draw.
        first: u32,
    },
}

/// Geometric grid of positive numbers: `first`, `first * factor`, and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GeometricGrid {
    /// First number.
    pub first: f32,
    /// Ratio between neighbouring numbers.
    pub factor: f32,
    /// Number of numbers.
    pub count: u8,
}

impl GeometricGrid {
    /// Returns the numbers of the grid, in order. Each product is rounded to binary32.
    pub fn values(self) -> impl Iterator<Item = f32> + Clone {
        core::iter::successors(Some(self.first), move |value| Some(value * self.factor))
            .take(self.count.into())
    }
}

impl Task {
    /// Returns this task without its parameters.
    #[must_use]
    pub const fn kind(&self) -> TaskKind {
        match self {
            Self::FedRep { .. } => TaskKind::FedRep,
            Self::FitHead { .. } => TaskKind::FitHead,
            Self::FedAvg { .. } => TaskKind::FedAvg,
            Self::PowerStart => TaskKind::PowerStart,
            Self::MomentRows { .. } => TaskKind::MomentRows,
            Self::FedPower { .. } => TaskKind::FedPower,
            Self::Sgd { .. } => TaskKind::Sgd,
            Self::Baseline { .. } => TaskKind::Baseline,
            Self::AdapterUp { .. } => TaskKind::AdapterUp,
            Self::AdapterDown { .. } => TaskKind::AdapterDown,
            Self::FeatureSums { .. } => TaskKind::FeatureSums,
            Self::RidgeScores { .. } => TaskKind::RidgeScores,
            Self::Private12(_) => TaskKind::Private12,
            Self::Private13(_) => TaskKind::Private13,
            Self::Private14(_) => TaskKind::Private14,
            Self::Private15(_) => TaskKind::Private15,
            Self::PooledMoments => TaskKind::PooledMoments,
            Self::HeadMoments { .. } => TaskKind::HeadMoments,
            Self::PriorEvidence { .. } => TaskKind::PriorEvidence,
            Self::NewcomerGradient { .. } => TaskKind::NewcomerGradient,
        }
    }

    /// Returns this task's bit in a set of tasks.
    #[must_use]
    pub const fn bit(&self) -> u32 {
        self.kind().bit()
    }

    /// Returns the solver of the task for heads, if it has one.
    #[must_use]
    pub const fn head(&self) -> Option<HeadSolve> {
        match self {
            Self::FedRep { head, .. } | Self::FitHead { head } | Self::AdapterUp { head, .. } => Some(*head),
            _ => None,
        }
    }

    /// Returns the encoding of the upload, or `None` for a task that uploads nothing, or f32 in any case.
    #[must_use]
    pub const fn encoding(&self) -> Option<Encoding> {
        match self {
            Self::FedRep { encoding, .. }
            | Self::FedAvg { encoding, .. }
            | Self::FedPower { encoding, .. }
            | Self::Sgd { encoding, .. }
            | Self::Baseline { encoding, .. }
            | Self::AdapterUp { encoding, .. }
            | Self::AdapterDown { encoding, .. } => Some(*encoding),
            Self::Private12(task) | Self::Private13(task) | Self::Private14(task) | Self::Private15(task) => {
                Some(task.encoding)
            }
            Self::FitHead { .. }
            | Self::PowerStart
            | Self::MomentRows { .. }
            | Self::FeatureSums { .. }
            | Self::RidgeScores { .. }
            | Self::PooledMoments
            | Self::HeadMoments { .. }
            | Self::PriorEvidence { .. }
            | Self::NewcomerGradient { .. } => None,
        }
    }

    /// Returns the task for a device that cannot select ridges ([`CHOOSES_RIDGE`](super::CHOOSES_RIDGE)): its
    /// head is fitted with the fallback ridge. Returns `None` if the device does not choose the ridge of this
    /// task.
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

/// Kind of a task: the task without its parameters. Its value is the task's number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum TaskKind {
    /// [`Task::FedRep`].
    FedRep = 0,
    /// [`Task::FitHead`].
    FitHead = 1,
    /// [`Task::FedAvg`].
    FedAvg = 2,
    /// [`Task::PowerStart`].
    PowerStart = 3,
    /// [`Task::MomentRows`].
    MomentRows = 4,
    /// [`Task::FedPower`].
    FedPower = 5,
    /// [`Task::Sgd`].
    Sgd = 6,
    /// [`Task::Baseline`].
    Baseline = 7,
    /// [`Task::AdapterUp`].
    AdapterUp = 8,
    /// [`Task::AdapterDown`].
    AdapterDown = 9,
    /// [`Task::FeatureSums`].
    FeatureSums = 10,
    /// [`Task::RidgeScores`].
    RidgeScores = 11,
    /// [`Task::Private12`].
    Private12 = 12,
    /// [`Task::Private13`].
    Private13 = 13,
    /// [`Task::Private14`].
    Private14 = 14,
    /// [`Task::Private15`].
    Private15 = 15,
    /// [`Task::PooledMoments`].
    PooledMoments = 16,
    /// [`Task::HeadMoments`].
    HeadMoments = 17,
    /// [`Task::PriorEvidence`].
    PriorEvidence = 18,
    /// [`Task::NewcomerGradient`].
    NewcomerGradient = 19,
}

impl TaskKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 20] = [
        Self::FedRep,
        Self::FitHead,
        Self::FedAvg,
        Self::PowerStart,
        Self::MomentRows,
        Self::FedPower,
        Self::Sgd,
        Self::Baseline,
        Self::AdapterUp,
        Self::AdapterDown,
        Self::FeatureSums,
        Self::RidgeScores,
        Self::Private12,
        Self::Private13,
        Self::Private14,
        Self::Private15,
        Self::PooledMoments,
        Self::HeadMoments,
        Self::PriorEvidence,
        Self::NewcomerGradient,
    ];

    /// Returns this kind's bit in a set of tasks.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u8
    }

    /// Returns true if this kind is in a set of tasks.
    #[must_use]
    pub const fn is_in(self, tasks: u32) -> bool {
        tasks & self.bit() != 0
    }
}

impl From<Task> for TaskKind {
    fn from(task: Task) -> Self {
        task.kind()
    }
}

/// Parameters of a task for private use. The firmware and the server that share the task define their
/// meaning; unused parameters are 0. Step sizes, ridges and counts up to 2^24 are exact in binary32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrivateTask {
    /// Encoding of the upload.
    pub encoding: Encoding,
    /// Parameters; all bit patterns of binary32 are allowed.
    pub parameters: [f32; PRIVATE_PARAMETERS],
}

/// Method by which a device fits its head on a given representation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HeadSolve {
    /// Minimises `1/(2m) |X B W - Y|^2 + ridge/2 |W|^2`. Chooses the solution of minimum norm if there are
    /// several.
    LeastSquares {
        /// Ridge; 0 for least squares without a ridge.
        ridge: f32,
    },
    /// Gradient steps from the device's current head (initially zero): the methods GD-GD (one step) and
    /// 10GD-GD (ten steps).
    #[cfg_attr(not(feature = "gradient-head"), serde(deserialize_with = "codec::refuse"))]
    Gradient {
        /// Number of steps.
        steps: u16,
        /// Step size.
        step_size: f32,
    },
    /// Stochastic gradient descent on a network's cross-entropy, from the device's current head. Zero epochs
    /// leave the head unchanged.
    #[cfg_attr(not(feature = "network"), serde(deserialize_with = "codec::refuse"))]
    Sgd {
        /// Number of epochs. [`UNTIL_PLATEAU`](crate::limits::UNTIL_PLATEAU) trains until the loss stops
        /// decreasing.
        epochs: u16,
        /// Step size, momentum and batch size.
        descent: Descent,
    },
    /// Least squares with the ridge of least leave-one-out error, if every class that occurs has at least two
    /// samples; otherwise with `fallback_ridge`.
    #[cfg_attr(not(feature = "ridge-choice"), serde(deserialize_with = "codec::refuse"))]
    LeaveOneOut {
        /// Ridge for data in which a class has only one sample, so that leaving the sample out would leave
        /// the class empty; 0 for least squares without a ridge.
        fallback_ridge: f32,
    },
    /// Posterior mean of a head on all features under a prior that the fleet has learned. Comes with the tensors of
    /// [`Task::HeadMoments`].
    #[cfg_attr(not(feature = "learned-prior"), serde(deserialize_with = "codec::refuse"))]
    Prior {
        /// Variance of the noise of a target, for the variance of predictions.
        noise: f32,
    },
}

/// Parameters of stochastic gradient descent: `v <- momentum v + g`, `W <- W - step_size v`, where g is the
/// mean gradient of the next `batch` samples. Each epoch draws a new order of samples. `v` is zero at the
/// start of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Descent {
    /// Step size.
    pub step_size: f32,
    /// Momentum, at least 0 and below 1.
    pub momentum: f32,
    /// Number of samples in a batch; the last batch of an epoch may be smaller.
    pub batch: u16,
}

/// Layers that the second phase of [`Task::Sgd`] trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Trained {
    /// Shared layers.
    #[default]
    Shared,
    /// All layers.
    All,
    /// LoRA's down-projection, which is the only uploaded tensor; the up-projection stays fixed.
    Down,
    /// LoRA's up-projection, which is the only uploaded tensor; the down-projection stays fixed.
    Up,
}

/// Baseline method of a device's round. In the formulas g is the gradient of a batch, w the trained model and
/// w0 the received model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Baseline {
    /// FedProx (Li et al. 2020): steps along `g + proximal_weight (w - w0)`.
    FedProx {
        /// Proximal weight mu.
        proximal_weight: f32,
    },
    /// SCAFFOLD (Karimireddy et al. 2020), option II: steps along `g - c_i + c`. Each tensor has twice the
    /// rows of its layer: the rows of the layer, then the rows of the control variate (down: c; up: the
    /// change of c_i).
    Scaffold,
    /// Per-FedAvg (Fallah et al. 2020), first-order: steps along the gradient at `w - inner_step g`.
    PerFedAvg {
        /// Inner step size alpha.
        inner_step: f32,
    },
    /// Per-FedAvg, Hessian-free: the first-order gradient times the derivative of `w - inner_step g`,
    /// approximated by a difference of gradients.
    PerFedAvgHf {
        /// Inner step size alpha.
        inner_step: f32,
    },
    /// Ditto (Li et al. 2021): trains and uploads the received model, and trains a personal model v along
    /// `g + proximal_weight (v - w0)`.
    Ditto {
        /// Proximal weight lambda.
        proximal_weight: f32,
    },
    /// APFL (Deng et al. 2020): trains and uploads the received model, and trains a personal model in a
    /// mixture of the two models.
    Apfl {
        /// Initial mixing weight alpha: the share of the personal model in the mixture.
        mixing_weight: f32,
        /// Step size of alpha, which each device learns; 0 keeps alpha fixed.
        mixing_step_size: f32,
    },
    /// L2GD (Hanzely and Richtarik 2020): moves the personal model towards the received mean, trains it, and
    /// uploads it.
    L2gd {
        /// Fraction of the way to the mean, 0 to 1.
        averaging_step: f32,
    },
    /// Fed-MTL (Smith et al. 2017) with all tasks equally related: trains the personal model along
    /// `g + proximal_weight (w - w0)`, where w0 is the mean of all models, and uploads the personal model.
    FedMtl {
        /// Proximal weight lambda.
        proximal_weight: f32,
    },
}

/// Tensor that a FedRep device uploads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Upload {
    /// Gradient of the device's loss.
    #[default]
    Gradient,
    /// Representation after the device's gradient step.
    Representation,
}

impl Upload {
    /// Returns the role of the uploaded tensor.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::Gradient => Role::Gradient,
            Self::Representation => Role::Representation,
        }
    }
}

/// Rows of the matrix in a power iteration. A row of norm over 1 is scaled to norm 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PowerRows {
    /// Features of the sample.
    #[default]
    Features,
    /// Features of the sample times the norm of its target. The principal directions of these rows are an
    /// initial representation for FedRep, because regression finds the representation in them.
    Weighted,
}

/// Tensors that a FedPower device uploads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PowerUpload {
    /// `Y` of the last iteration.
    #[default]
    Product,
    /// `Y` of the last iteration and the `Z` from which it was computed, with which the server aligns the
    /// bases.
    ProductAndBasis,
    /// Orthonormal factor of `Y` of the last iteration.
    Basis,
}

impl PowerUpload {
    /// Returns the number of uploaded tensors. Each has the shape of the received subspace.
    #[must_use]
    pub const fn tensors(self) -> u8 {
        match self {
            Self::Product | Self::Basis => 1,
            Self::ProductAndBasis => 2,
        }
    }
}
