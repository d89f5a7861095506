//! Checks and chores of the FedSpan repository: the library behind `cargo xtask`.
//!
//! [`boards`] is the table of boards, which tests read, too. Each other module is one command, or what commands share.

pub mod bare_metal;
pub mod boards;
pub mod ci;
pub mod cycles;
pub mod dependencies;
mod elf;
pub mod emulation;
pub mod firmware;
pub mod fuzz;
pub mod mutants;
pub mod nightly;
pub mod process;
pub mod prose;
pub mod seeded;
pub mod setup;
pub mod suite;

pub use process::{Context, Failure};
