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
        }
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
