//! Low-rank adapters (LoRA) of models that are trained elsewhere, such as with PEFT.
//!
//! [`files`] averages and compares adapter files in the safetensors format, [`http`] serves rounds of them, [`cli`] holds the
//! options of `fedspan-aggregator adapter`. `ADAPTERS.md` and `EXCHANGE.md` are for users.

#![forbid(unsafe_code)]

pub mod cli;
pub mod files;
pub mod http;
