//! Theoretical predictions from the literature, computed without simulation.

pub mod rolora;
pub mod srpfl;
