//! The papers' experiments on FedSpan's simulator.
//!
//! [`demo`] is the run without arguments, [`speedup`] compares participation schedules, [`theory`] computes the gain that
//! the papers predict, [`byzantine`] compares aggregation rules under attack, [`dropout`] measures campaigns whose devices
//! do not answer, [`power`] runs FedPower with and without noise.

#![forbid(unsafe_code)]

pub mod byzantine;
pub mod demo;
pub mod dropout;
#[cfg(feature = "encoder")]
pub mod encoder;
pub mod power;
pub mod speedup;
pub mod theory;
