//! Operations on adapter files (LoRA): exact averaging of factors, and a report of the error that plain
//! averaging would make.
//!
//! ```text
//!  base ------ Header, Layout, Config --+
//!  clients --- the same, compared ------+--> Inputs --> average: block by block --> output
//!                                               \----> check: changes of each client, interference
//! ```
//!
//! An adapter adds `B A` to a frozen weight. `A` is the *down* factor (r x d_in, `lora_A` in files) and `B`
//! is the *up* factor (d_out x r, `lora_B`). In general, the mean of products differs from the product of
//! means. An up or down round ([`RoundKind`]) therefore trains and averages one of the two factors while the
//! other one is frozen (RoLoRA, Chen et al. 2025, Algorithm 1); the product of means then equals the mean of
//! products. `ADAPTERS.md` is the user's guide.
//!
//! Files are read in place, one block of every client at a time, so the memory does not grow with the model.
//! The mean is computed from an exact sum, so it depends neither on the order of clients nor on the number of
//! threads.
//!
//! This module has its own parser of headers, because the `safetensors` crate needs the whole file in memory
//! and accepts duplicate names.

mod agreement;
mod average;
mod check;
mod compare;
mod config;
mod config_keys;
mod dtype;
mod error;
mod exact_sum;
mod extract;
mod header;
mod inputs;
mod interference;
mod json;
mod layout;
mod limits;
mod output;
mod pattern;
mod role;
mod scaling;
mod source;
mod tensor_name;

pub use average::{AverageJob, AverageReport, average};
pub use check::{ChangeNorms, ChangedFactors, CheckReport, ClientReport, ModuleReport, check};
pub use config::Config;
pub use dtype::{Dtype, MergeRule};
pub use error::{AdapterError, ConfigDifference, Fault, LocatedFault};
pub use exact_sum::{MeanBuffers, weighted_mean};
pub use extract::{ExtractHashes, extract_trained, merge_update, read_layout};
pub use header::{Header, Tensor};
pub use inputs::{ClientWeight, Inputs};
pub use layout::{AdapterTensor, FactorPair, Layout};
pub use limits::{HEADER_MAX, HEADER_ROOM, NAME_MAX, OPEN_MAX, SAMPLES_MAX};
pub use output::Output;
pub use role::Role;
pub use scaling::ModuleScaling;
pub use tensor_name::parse_tensor_name;

/// Factors that clients train in a round and that are averaged. Saved modules are averaged in every kind of
/// round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundKind {
    /// Down factors; the up factors are frozen.
    Down,
    /// Up factors; the down factors are frozen.
    Up,
    /// Both factors, each averaged separately (plain averaging).
    Plain,
}

impl RoundKind {
    /// True if tensors of this role must equal those of the base bit by bit.
    #[must_use]
    pub fn freezes(self, role: Role) -> bool {
        matches!((self, role), (Self::Down, Role::Up) | (Self::Up, Role::Down))
    }

    /// Name in options and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Plain => "plain",
        }
    }
}

/// Progress function. The arguments are the number of bytes read so far and the total number of bytes.
/// Returning `false` interrupts the work.
pub type ProgressFn<'a> = dyn Fn(u64, u64) -> bool + Sync + 'a;
