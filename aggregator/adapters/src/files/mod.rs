//! Low-rank adapters in files: averaged factor by factor, exactly and in blocks; and what averaging would have lost.
//!
//! ```text
//!  PREVIOUS ---- Header, Layout, Config --+
//!  CLIENT ...    the same, compared ------+--> Inputs --> average: block by block --> NEXT
//!                                                  \----> check: what changed, interference
//! ```
//!
//! An adapter adds `B A` to a frozen weight; `A` is the *down* factor (r x d_in, `lora_A` in files), `B` the *up* factor
//! (d_out x r, `lora_B`). The mean of products is not the product of means, so a [`RoundKind`] trains and averages one of the
//! two while the other is frozen (RoLoRA, Chen et al. 2025, Algorithm 1): then both are the same. `ADAPTERS.md` is for
//! users.
//!
//! Files are read in place, a block of every client at a time: memory does not depend on a model's size. The mean is that
//! of the exact sum, so it does not depend on the order of clients or the number of threads either.
//!
//! Headers are read by code of our own: what there is for them wants a whole file in memory and lets names be there twice.

mod agreement;
mod average;
mod check;
mod compare;
mod config;
mod dtype;
mod error;
mod exact_sum;
mod extract;
mod header;
mod inputs;
mod interference;
mod json;
mod layout;
mod meaning;
mod output;
mod pattern;
mod scaling;
mod source;
mod tensor_name;

pub use average::{AverageJob, AverageReport, average};
pub use check::{ChangeNorms, ChangedFactors, CheckReport, ClientReport, ModuleReport, check};
pub use config::{Config, ConfigDifference};
pub use dtype::{Dtype, MergeRule};
pub use error::{AdapterError, Fault};
pub use exact_sum::{MeanBuffers, weighted_mean};
pub use extract::{extract_trained, merge_update, read_layout};
pub use header::{HEADER_MAX, Header, Tensor};
pub use inputs::{ClientWeight, Inputs, SAMPLES_MAX};
pub use layout::{AdapterTensor, FactorPair, Layout};
pub use output::Output;
pub use scaling::ModuleScaling;
pub use tensor_name::{NAME_MAX, Role, parse_tensor_name};

/// What was trained, and is averaged; saved modules always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundKind {
    /// The down factors; the up factors are frozen.
    Down,
    /// The up factors; the down factors are frozen.
    Up,
    /// Both, each for itself: what plain averaging does.
    Plain,
}

impl RoundKind {
    /// Whether tensors of this role must be the base's, bit by bit.
    #[must_use]
    pub fn freezes(self, role: Role) -> bool {
        matches!((self, role), (Self::Down, Role::Up) | (Self::Up, Role::Down))
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Plain => "plain",
        }
    }
}

/// Is told how many bytes of how many have been read; `false` ends the work.
pub type ProgressFn<'a> = dyn Fn(u64, u64) -> bool + Sync + 'a;
