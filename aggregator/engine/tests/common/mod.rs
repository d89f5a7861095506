//! Test helpers: small campaigns, a simple model of the engine to compare with, and random matrices and
//! updates.
#![allow(dead_code, reason = "the aggregator's tests use other parts of these files")]

pub mod campaign;
pub mod model;
mod values;

pub use values::*;
