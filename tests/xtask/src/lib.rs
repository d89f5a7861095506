//! Checks and maintenance commands of the FedSpan repository: the library behind `cargo xtask`.
//!
//! [`boards`] reads the table of boards, which tests use, too. Each other module contains one command, or
//! code that several commands share.

pub mod bare_metal;
pub mod boards;
pub mod ci;
pub mod commands;
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
